//! What shards say to the links to other brokers, and what they hear from them (rules R3, R8). Plain messages: links carry them,
//! replicas on both ends decide.

use crate::wal::WalPermit;
use millpond_core::replica::{Cursor, Push, PushHead, PushReply};
use millpond_log::{BrokerId, LeaderEpoch, Offset, PartitionId};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

/// What a shard tells the link to one follower's broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkMsg {
    /// Push the partition from this cursor on, until told otherwise. A newer cursor replaces an older one.
    Follow { partition: PartitionId, cursor: Cursor, head: PushHead, end: Offset },
    /// What the leader says of itself has moved, or the end of its log has.
    Moved { partition: PartitionId, head: PushHead, end: Offset },
    /// Push nothing more of the partition.
    Unfollow { partition: PartitionId },
}

/// A leader's push as it reaches the shard of the follower. The queue is bounded because memory and room were acquired before.
pub(crate) struct Pushed {
    pub(crate) partition: PartitionId,
    pub(crate) push: Push,
    /// Room in the WAL, for each of its batches.
    pub(crate) room: Vec<WalPermit>,
    /// What its batches hold in memory until they are durable.
    pub(crate) memory: Option<OwnedSemaphorePermit>,
    /// Where the answers go.
    pub(crate) answers: AnswerSender,
}

/// A follower's answer on its way to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What the replica says.
    Said { partition: PartitionId, reply: PushReply },
    /// This broker does not hold the partition, or not yet (rule K1), or has no room for it: push to it later.
    Unknown { partition: PartitionId, nonce: u64 },
}

/// Takes the answers to one leader's broker.
pub(crate) type AnswerSender = UnboundedSender<Answer>;

/// To whom a follower answers: the stream of the newest push, by its leader's epoch and its nonce. What comes late from a stream before, to a
/// session that has ended, or of a leader that is one no more, takes no answers away from the one after.
#[derive(Default)]
pub(crate) struct Answering(Option<(LeaderEpoch, u64, AnswerSender)>);

impl Answering {
    /// Turns to the stream of a push, to whom is said at once what is about it; gives back the newer stream that is to be turned to again then.
    pub(crate) fn turn_to(&mut self, push: &Push, answers: AnswerSender) -> Option<Answering> {
        let this = (push.head.epoch, push.nonce);
        let before = self.0.replace((this.0, this.1, answers));
        before.filter(|(epoch, nonce, _)| (*epoch, *nonce) > this).map(|newer| Answering(Some(newer)))
    }

    /// Without its stream the leader hears nothing, and pushes anew when it is back.
    pub(crate) fn say(&self, answer: Answer) {
        if let Some((.., answers)) = &self.0 {
            let _ = answers.send(answer);
        }
    }
}

/// The ways to all links. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Links {
    senders: Arc<RwLock<BTreeMap<BrokerId, UnboundedSender<LinkMsg>>>>,
}

impl Links {
    /// Replaces the ways to all links, before any shard hears of the brokers behind them.
    pub(crate) fn set(&self, senders: BTreeMap<BrokerId, UnboundedSender<LinkMsg>>) {
        *self.senders.write().unwrap_or_else(PoisonError::into_inner) = senders;
    }

    /// Hands a message to the link to `to`. Without a link to it nothing happens: whoever is not alive is not pushed to.
    pub(crate) fn send(&self, to: BrokerId, message: LinkMsg) {
        if let Some(link) = self.senders.read().unwrap_or_else(PoisonError::into_inner).get(&to) {
            // A link ends only once its broker is gone.
            let _ = link.send(message);
        }
    }
}
