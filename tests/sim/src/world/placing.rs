//! How a broker takes replicas in and gives them up while it runs: in steps, between which anything may happen (rules S5, K6).

use super::{Checked, World};
use crate::node::Placing;
use millpond_core::replica::Input;
use millpond_log::PartitionId;
use std::rc::Rc;

impl World {
    /// Begins to open and to give up replicas as the image says; never because something is not there (rule K6).
    pub(super) fn place(&mut self, node: usize) -> Checked {
        let id = self.nodes[node].id;
        let image = Rc::clone(&self.nodes[node].running.as_ref().expect("it follows the store").image);
        for (partition, (record, _)) in &image.records {
            let running = self.nodes[node].running.as_mut().expect("it follows the store");
            let held = running.slots.contains_key(partition);
            match record.replicas.contains(&id) {
                true if !held => drop(running.opening.entry(*partition).or_insert(Placing::Asks)),
                // One that is being opened is looked at once it is open.
                false if held && !running.leaving.contains_key(partition) => {
                    running.leaving.insert(*partition, None);
                    // It acknowledges nothing from here on. Whoever waits for a commit is told that it will not be seen here.
                    self.step(node, *partition, Input::Session(None))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A replica that is being opened, or given up, gets on by a step.
    pub(super) fn get_on(&mut self, node: usize) -> Result<bool, String> {
        let Some(running) = &self.nodes[node].running else { return Ok(false) };
        // The store is asked first, and what it says may be old by the time it is heard.
        if self.cut_off.contains(&node) {
            return Ok(false);
        }
        let all: Vec<PartitionId> = running.opening.keys().chain(running.leaving.keys()).copied().collect();
        if all.is_empty() {
            return Ok(false);
        }
        let partition = all[self.rng.below(all.len())];
        let placed = self.etcd.record(partition).replicas.contains(&self.nodes[node].id);
        let (root, revision) = self.etcd.roots[&partition].clone();
        let running = self.nodes[node].running.as_mut().expect("it runs");
        if let Some(said) = running.leaving.get_mut(&partition) {
            match said.replace(placed) {
                None => {}
                Some(stays) => {
                    running.leaving.remove(&partition);
                    if stays { self.begin_session(node, partition)? } else { self.give_up(node, partition)? }
                }
            }
        } else {
            match running.opening.insert(partition, Placing::Reads { root, revision }) {
                // Rule G4: what it names may be gone by now; then the manifest is read again, as it is done here already.
                Some(Placing::Reads { root, revision })
                    if revision < self.etcd.roots[&partition].1 && self.bucket.state(&root).is_err() => {}
                Some(Placing::Reads { root, revision }) => {
                    running.opening.remove(&partition);
                    let image = Rc::clone(&running.image);
                    self.open(node, &image, partition, None, &root, revision)?;
                    self.begin_session(node, partition)?;
                    // A change that came while it had no replica is heard of now (rule I7).
                    if let Some(wanted) = image.min_isr.get(&partition) {
                        self.step(node, partition, Input::MinIsr(*wanted))?;
                    }
                    self.assign(node, partition)?;
                    self.place(node)?;
                }
                Some(Placing::Asks) | None => {}
            }
        }
        Ok(true)
    }

    /// Tells a replica of the broker's session, if it is not on its way out.
    pub(super) fn begin_session(&mut self, node: usize, partition: PartitionId) -> Checked {
        let inc = self.nodes[node].live().map(|live| live.inc);
        let leaves = self.nodes[node].running.as_ref().is_some_and(|running| running.leaving.contains_key(&partition));
        self.step(node, partition, Input::Session(inc.filter(|_| !leaves)))
    }

    /// The record names this broker no more (rule K6). By now it may again.
    fn give_up(&mut self, node: usize, partition: PartitionId) -> Checked {
        let running = self.nodes[node].running.as_mut().expect("it follows the store");
        running.slots.remove(&partition);
        self.nodes[node].note(partition, crate::log::Record::Drop, None);
        self.place(node)
    }
}
