//! Power cuts and kills at random moments (rules W1, W3, W3a), and proof that the check would see a missing sync.

use super::harness::*;
use crate::wal::sim::{Faults, SimDisk};
use crate::wal::*;

/// A small stream of choices.
pub(super) struct Choices(pub(super) u64);

impl Choices {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One life of the broker: appenders on threads of their own, until the power goes at a moment that the seed chose.
/// Returns them with what they know.
fn live(disk: &SimDisk, wal: Wal, clients: Vec<Client>, seed: u64, faults: Faults) -> Vec<Client> {
    disk.fail(faults);
    let run = |(nth, mut client): (usize, Client)| {
        std::thread::spawn(move || {
            let mut choices = Choices(seed * 31 + nth as u64);
            let own = [partition(2 * nth as u32), partition(2 * nth as u32 + 1)];
            loop {
                let of = own[choices.below(2) as usize];
                let alive = match choices.below(12) {
                    0 => client.sync(),
                    1 if client.end(of) > 0 => {
                        // What is acknowledged stays: only the newest batch goes, if nobody was told of it yet.
                        client.poll();
                        let acknowledged = client.acknowledged(of).len();
                        let log = &client.logs[&of];
                        if acknowledged < log.len() {
                            let to = log[log.len() - 1].base;
                            client.truncate(of, to);
                        }
                        client.poisoned.is_none()
                    }
                    2 => {
                        client.poll();
                        let acknowledged = client.acknowledged(of);
                        let to = acknowledged.get(acknowledged.len() / 2).map_or(0, |written| written.base);
                        client.trim(of, to);
                        client.poisoned.is_none()
                    }
                    _ => {
                        let (records, bytes) = (1 + choices.below(3) as u32, choices.below(1500) as usize);
                        while !client.append(of, records, bytes) && client.sync() {
                            // The log is full: what is old is done with.
                            for own in own {
                                let acknowledged = client.acknowledged(own);
                                let old = acknowledged.len().saturating_sub(5);
                                client.trim(own, acknowledged.get(old).map_or(0, |written| written.base));
                            }
                            client.poll();
                            std::thread::yield_now();
                        }
                        client.poisoned.is_none()
                    }
                };
                if !alive {
                    client.poll();
                    return client;
                }
            }
        })
    };
    let threads: Vec<_> = clients.into_iter().enumerate().map(run).collect();
    let clients = threads.into_iter().map(|thread| thread.join().expect("an appender runs to the cut")).collect();
    drop(wal.close());
    clients
}

/// What is held after a cut is what may be held; the client goes on from there.
fn survivors(client: &Client, wal: &Wal) -> std::collections::BTreeMap<PartitionId, Vec<Written>> {
    let held = |of: &PartitionId| (*of, state_held(client, wal, *of).expect("it was checked"));
    client.logs.keys().map(held).collect()
}

/// Lives and cuts, several on one disk: how many of the cuts had something to lose, or the first fault found.
fn run(seed: u64, lives: u64, syncs_lie: bool, kill: bool) -> Result<usize, String> {
    let mut cuts = 0;
    let disk = SimDisk::new(seed);
    let mut choices = Choices(seed);
    let mut clients: Vec<Client> = Vec::new();
    let mut wal_gen = None;
    for life in 0..=lives {
        let (wal, found) = match open(&disk, &small(), 1 + life) {
            Ok(opened) => opened,
            Err(error) => return Err(format!("life {life}: {error}")),
        };
        if !found.damage.is_empty() || wal_gen.is_some_and(|known| known != found.identity.wal_gen) {
            return Err(format!("life {life}: {:?}, {:?}", found.damage, found.identity));
        }
        wal_gen = Some(found.identity.wal_gen);
        for client in &clients {
            for of in client.logs.keys() {
                if let Some(fault) = faults(client, &wal, *of) {
                    return Err(format!("life {life}: {fault}"));
                }
            }
        }
        let resumed = clients.iter().map(|client| {
            let mut next = Client::resume(&wal, survivors(client, &wal));
            next.trimmed.clone_from(&client.trimmed);
            next
        });
        let resumed: Vec<Client> = resumed.collect();
        clients = if resumed.is_empty() { (0..3).map(|_| Client::new(&wal)).collect() } else { resumed };
        if life == lives {
            drop(wal.close());
            break;
        }
        let stop_at = Some(1 + choices.below(120));
        clients = live(&disk, wal, clients, seed + life, Faults { stop_at, syncs_lie, ..Faults::default() });
        let acknowledged = |client: &Client| client.synced > 0;
        cuts += usize::from(clients.iter().any(acknowledged));
        if kill && choices.below(2) == 0 {
            disk.kill();
        } else {
            disk.power_cut();
        }
    }
    Ok(cuts)
}

/// Where seeds begin: `MILLPOND_SEED`, so that a longer search can go on where another one ended.
pub(super) fn first_seed() -> u64 {
    std::env::var("MILLPOND_SEED").map_or(0, |seed| seed.parse().expect("`MILLPOND_SEED` is a number"))
}

/// The run whose cuts the two tests below share; each of its seeds is cut five times.
fn cut_run(seed: u64, syncs_lie: bool) -> Result<usize, String> {
    run(first_seed() + seed, 5, syncs_lie, false).map_err(|fault| format!("SEED={}: {fault}", first_seed() + seed))
}

const CUT_RUNS: u64 = 60;

#[test]
fn power_cuts_at_200_random_moments_lose_change_and_reorder_nothing_acknowledged() {
    let runs: Result<Vec<usize>, String> = (0..CUT_RUNS).map(|seed| cut_run(seed, false)).collect();
    let cuts: usize = runs.unwrap_or_else(|fault| panic!("{fault}")).iter().sum();
    assert!(cuts >= 200, "only {cuts} cuts came after something was acknowledged");
}

#[test]
fn the_same_power_cuts_lose_something_acknowledged_where_the_sync_is_left_out() {
    // Rule W1: what the test above shows, it shows of the fdatasync.
    let caught = (0..CUT_RUNS).filter(|seed| cut_run(*seed, true).is_err()).count();
    assert!(caught >= CUT_RUNS as usize / 2, "a WAL that does not sync passed all but {caught} of {CUT_RUNS} runs");
}

#[test]
fn kills_and_power_cuts_in_turn_lose_nothing_acknowledged() {
    for seed in first_seed()..first_seed() + 40 {
        run(1000 + seed, 6, false, true).unwrap_or_else(|fault| panic!("SEED={seed}: {fault}"));
    }
}
