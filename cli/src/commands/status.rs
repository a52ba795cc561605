//! The state of partitions, as `topic describe` and `cluster describe` show it: one question for all that have leaders.

use futures::StreamExt;
use millpond_sdk::{Admin, BrokerId, PartitionDescription, PartitionLoss, PartitionStatus, TopicDescription};
use serde::Serialize;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How many leaders are asked at once, one by one.
const QUESTIONS_AT_ONCE: usize = 16;

/// A partition. The offsets and sizes are null when its leader did not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct PartitionState {
    pub(super) partition: u32,
    pub(super) leader: Option<u32>,
    pub(super) leader_epoch: u32,
    pub(super) replicas: Vec<u32>,
    pub(super) isr: Vec<u32>,
    /// Not in sync, and still with everything committed.
    pub(super) elr: Vec<u32>,
    /// Not alive.
    pub(super) offline: Vec<u32>,
    pub(super) log_start: Option<u64>,
    pub(super) tiered_end: Option<u64>,
    pub(super) high_watermark: Option<u64>,
    pub(super) log_end: Option<u64>,
    pub(super) tail_bytes: Option<u64>,
    pub(super) tiered_bytes: Option<u64>,
    /// Why nobody may lead it; null if somebody does, or may.
    pub(super) loss: Option<LossState>,
}

/// What is lost of a partition, until somebody accepts that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct LossState {
    pub(super) cause: String,
    pub(super) file: Option<String>,
    pub(super) position: Option<u64>,
    /// Where the log ends once the loss is accepted.
    pub(super) end: u64,
    /// How far it is known to have reached.
    pub(super) known_end: u64,
    pub(super) command: String,
    #[serde(skip)]
    pub(super) sentence: String,
}

/// Says on standard error for how long nobody has known how things are; the same in milliseconds, for scripts.
pub(super) fn warned(stale_for: Option<Duration>) -> Option<u64> {
    let time = stale_for?;
    let since = Duration::from_secs(time.as_secs());
    eprintln!("warning: things were so {since:?} ago; no broker that answers has heard from the metadata store since");
    u64::try_from(time.as_millis()).ok()
}

/// How long all of them may take to answer: whoever asks wants to know what is wrong, above all when something is.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks for the state of every partition of these topics; in their order, and by index. One broker asks the leaders of all of them. What is
/// missing then, since its leader is new or nobody may lead it, is asked for one by one.
pub(super) async fn partitions(admin: &Admin, topics: &[TopicDescription]) -> Vec<Vec<PartitionState>> {
    let deadline = Instant::now() + PATIENCE;
    let names: Vec<&str> = topics.iter().map(|topic| topic.name.as_str()).collect();
    // Of several it is all: one that was deleted since it was listed would be refused for all of them.
    let names = if names.len() == 1 { names.as_slice() } else { &[] };
    let led = timeout_at(deadline, admin.partition_states(names)).await;
    let led = led.ok().and_then(Result::ok).unwrap_or_default();
    let of_topic = async |topic: &TopicDescription| {
        let asked = topic.partitions.iter().map(|partition| async {
            let status = match led.get(&(topic.id, partition.index)).copied() {
                None if (partition.leader.is_some() || partition.loss.is_some()) && Instant::now() < deadline => {
                    let asked = admin.partition_status(&topic.name, partition.index);
                    timeout_at(deadline, asked).await.ok().and_then(Result::ok)
                }
                status => status,
            };
            PartitionState::new(partition, status)
        });
        futures::stream::iter(asked).buffered(QUESTIONS_AT_ONCE).collect().await
    };
    let mut states = Vec::with_capacity(topics.len());
    for topic in topics {
        states.push(of_topic(topic).await);
    }
    states
}

impl PartitionState {
    fn new(partition: &PartitionDescription, status: Option<PartitionStatus>) -> PartitionState {
        let ids = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect();
        PartitionState {
            partition: partition.index,
            leader: partition.leader.map(|leader| leader.0),
            leader_epoch: partition.leader_epoch.0,
            replicas: ids(&partition.replicas),
            isr: ids(&partition.isr),
            elr: ids(&partition.elr),
            offline: ids(&partition.offline),
            log_start: status.map(|status| status.log_start.0),
            tiered_end: status.map(|status| status.tiered_end.0),
            high_watermark: status.map(|status| status.high_watermark.0),
            log_end: status.map(|status| status.log_end.0),
            tail_bytes: status.map(|status| status.tail_bytes),
            tiered_bytes: status.map(|status| status.tiered_bytes),
            loss: partition.loss.as_ref().map(LossState::from),
        }
    }
}

impl From<&PartitionLoss> for LossState {
    fn from(loss: &PartitionLoss) -> LossState {
        let (file, position) = loss.place.clone().unzip();
        LossState {
            cause: loss.cause.clone(),
            file,
            position,
            end: loss.end.0,
            known_end: loss.known_end.0,
            command: loss.command.clone(),
            sentence: loss.to_string(),
        }
    }
}

/// A line about a partition's loss, and one about what to do.
pub(super) fn loss_line(topic: &str, partition: u32, loss: &LossState) -> String {
    let LossState { sentence, command, .. } = loss;
    format!("lost of {topic}:{partition}: {sentence}\n  accept that with: {command}\n")
}

#[cfg(test)]
impl PartitionState {
    /// A partition with everything known.
    pub(super) fn example() -> PartitionState {
        let partition = PartitionDescription {
            index: 1,
            leader: Some(BrokerId(0)),
            leader_epoch: millpond_sdk::LeaderEpoch(7),
            replicas: vec![BrokerId(0), BrokerId(1)],
            isr: vec![BrokerId(0)],
            elr: vec![BrokerId(1)],
            offline: vec![BrokerId(1)],
            loss: None,
        };
        PartitionState::new(&partition, Some(PartitionStatus::default()))
    }

    /// A partition without a leader.
    pub(super) fn unknown(partition: u32) -> PartitionState {
        PartitionState { partition, replicas: vec![0], ..PartitionState::default() }
    }

    /// A partition that lost records.
    pub(super) fn lost(partition: u32) -> PartitionState {
        PartitionState { loss: Some(LossState::example()), ..PartitionState::unknown(partition) }
    }
}

#[cfg(test)]
impl LossState {
    pub(super) fn example() -> LossState {
        LossState::from(&PartitionLoss {
            cause: "the disk".to_owned(),
            place: Some(("wal/1".to_owned(), 4096)),
            end: millpond_sdk::Offset(50),
            known_end: millpond_sdk::Offset(80),
            command: "millpond partition accept-loss t:3 --yes".to_owned(),
        })
    }
}
