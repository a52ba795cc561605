//! A shard of groups as a machine of a lane. All that is decided is `core`'s.

use super::machine::{LoadError, Loaded, Machine, Made, Office};
use super::world::World;
use millpond_core::groups::{Answer, Now, Request, Shard, Step, Token};
use millpond_log::{CoordinatorEpoch, ErrorCode, TopicId};
use millpond_metadata::keys::ShardKind;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{HeldShard, ShardWrite, Store};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

/// A shard of groups, and the deleted topics it was told of.
pub(crate) struct Groups {
    number: u32,
    shard: Shard,
    told: BTreeSet<TopicId>,
    /// It said that it has nothing of what was deleted up to here.
    purged: Revision,
}

impl From<Step> for Made<Answer, Infallible> {
    fn from(step: Step) -> Made<Answer, Infallible> {
        let writes = step.changes.iter().map(ShardWrite::from).collect();
        Made { writes, answers: step.answers, ..Made::default() }
    }
}

impl Machine for Groups {
    type Request = Request;
    type Answer = Answer;
    type Effect = Infallible;
    type Carrier = ();
    type Services = ();
    const KIND: ShardKind = ShardKind::Group;

    async fn load(
        store: &Store,
        held: &HeldShard,
        now: impl Fn() -> Now + Send,
        world: &World,
    ) -> Result<Loaded<Groups>, LoadError> {
        let loaded = store.load_groups(held).await?;
        let records = loaded.records.len() as u64;
        let (now, topics) = (now(), Arc::clone(&world.topics));
        let (shard, step) = Shard::load(now, world.rules(), topics, loaded.records)
            .map_err(|misplaced| LoadError::Records(misplaced.to_string()))?;
        let shard = shard.in_office(CoordinatorEpoch(held.coord_epoch()));
        let (number, purged) = (held.shard(), Revision::ABSENT);
        let mut machine = Groups { number, shard, told: BTreeSet::new(), purged };
        let made = Made::from(step).and(machine.look_around(now, world));
        Ok(Loaded { machine, made, records, bytes: loaded.bytes })
    }

    fn carrier(_: Office<Groups>, (): &()) {}

    fn too_large(&self, request: &Request) -> Option<Answer> {
        request.refused(ErrorCode::MessageTooLarge)
    }

    fn step(&mut self, now: Now, token: Token, request: Request) -> Made<Answer, Infallible> {
        let proven = request.wants_proof();
        Made { proven, ..self.shard.step(now, token, request).into() }
    }

    fn tick(&mut self, now: Now) -> Made<Answer, Infallible> {
        self.shard.tick(now).into()
    }

    fn next_deadline(&self) -> Option<u64> {
        self.shard.next_deadline()
    }

    fn look_around(&mut self, now: Now, world: &World) -> Made<Answer, Infallible> {
        self.shard.set_topics(Arc::clone(&world.topics));
        self.shard.set_overrides(Arc::clone(&world.overrides));
        let mut made = Made::default();
        // Rule K6: only a tombstone tells that a topic is gone.
        for topic in world.deleted.difference(&self.told) {
            made = made.and(self.shard.topic_deleted(now, *topic).into());
        }
        self.told.clone_from(&world.deleted);
        if !world.deleted.is_empty() && self.purged < world.deleted_up_to {
            self.purged = world.deleted_up_to;
            // Nobody waits for it. Behind what makes it true: from here on nothing is committed of a topic that is not served.
            made.lazy.push(ShardWrite::purged(ShardKind::Group, self.number, self.purged));
        }
        made
    }
}
