//! What brokers ask each other about transactions, as messages: markers for those who lead, questions to those who coordinate.
//!
//! It decides nothing. What comes in is checked for all that a replica or a coordinator relies on, and handed to whoever answers.

use super::wire::{Nonsense, Read, epoch, partition_in, topic_out};
use super::{Peers, Shared};
use crate::marks::{Asked, Confirm, Confirmed, Mark, MarkCall, MarkPlace, Marked};
use millpond_core::records::ProducerInstance;
use millpond_core::transactions::{ID_BYTES_MAX, Parts, RECORD_BYTES_MAX};
use millpond_log::transactions::{EndMarker, Marker, TxnOutcome};
use millpond_log::{BrokerId, CoordinatorEpoch, ErrorCode, PartitionId, ProducerEpoch, ProducerId};
use millpond_proto::internal as proto;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::Status;

/// Most markers in one call.
const MARKS_MAX: usize = 10_000;

/// Most partitions and groups in one question.
const PARTS_MAX: usize = 10_000;

/// How long a broker may take to answer: longer than it waits itself for what it was asked to do.
const ANSWERED_WITHIN: Duration = Duration::from_secs(4);

impl Peers {
    /// Sends markers to another broker. What is not known to be done may be, or may yet be.
    pub(crate) async fn mark(&self, broker: BrokerId, call: MarkCall) -> Marked {
        let marked = timeout(ANSWERED_WITHIN, self.shared.mark(broker, call)).await;
        marked.ok().flatten().unwrap_or_default()
    }

    /// Asks another broker, as the coordinator.
    pub(crate) async fn confirm(&self, broker: BrokerId, confirm: &Confirm) -> Confirmed {
        let confirmed = timeout(ANSWERED_WITHIN, self.shared.confirm(broker, confirm)).await;
        confirmed.ok().flatten().unwrap_or(Err(ErrorCode::RequestTimedOut))
    }
}

impl Shared {
    async fn mark(&self, broker: BrokerId, call: MarkCall) -> Option<Marked> {
        let link = self.known().get(&broker).cloned()?;
        let caller = self.caller(&link).await?;
        let answer = caller.client().mark(caller.request(call_out(call))).await.ok()?.into_inner();
        Some(answer.codes.into_iter().map(outcome_in).collect())
    }

    async fn confirm(&self, broker: BrokerId, confirm: &Confirm) -> Option<Confirmed> {
        let link = self.known().get(&broker).cloned()?;
        let caller = self.caller(&link).await?;
        let answer = caller.client().confirm(caller.request(confirm_out(confirm))).await.ok()?.into_inner();
        Some(outcome_in(answer.code).map(|()| CoordinatorEpoch(answer.coordinator_epoch)))
    }
}

/// Answers markers.
pub(super) async fn marked(shared: &Shared, request: proto::MarkRequest) -> Result<proto::MarkResponse, Status> {
    let call = call_in(request).map_err(|nonsense| Status::invalid_argument(nonsense.to_string()))?;
    let (reply, answer) = oneshot::channel();
    shared.asked.send(Asked::Mark(call, reply)).await.map_err(|_| ends())?;
    let marked = answer.await.map_err(|_| ends())?;
    Ok(proto::MarkResponse { codes: marked.into_iter().map(outcome_out).collect() })
}

/// Answers a question.
pub(super) async fn confirmed(
    shared: &Shared,
    request: proto::ConfirmRequest,
) -> Result<proto::ConfirmResponse, Status> {
    let confirm = confirm_in(request).map_err(|nonsense| Status::invalid_argument(nonsense.to_string()))?;
    let (reply, answer) = oneshot::channel();
    shared.asked.send(Asked::Confirm(confirm, reply)).await.map_err(|_| ends())?;
    let confirmed = answer.await.map_err(|_| ends())?;
    let coordinator_epoch = confirmed.map_or(0, |epoch| epoch.0);
    Ok(proto::ConfirmResponse { code: outcome_out(confirmed.map(drop)), coordinator_epoch })
}

fn ends() -> Status {
    Status::unavailable("this broker ends")
}

fn outcome_out(outcome: Result<(), ErrorCode>) -> i32 {
    outcome.map_or_else(|code| code.kafka().into(), |()| 0)
}

/// A code that is not known here is an error all the same.
fn outcome_in(code: i32) -> Result<(), ErrorCode> {
    let known = |known: &&ErrorCode| i32::from(known.kafka()) == code;
    match code {
        0 => Ok(()),
        _ => Err(ErrorCode::ALL.iter().find(known).copied().unwrap_or(ErrorCode::UnknownServerError)),
    }
}

fn call_out(call: MarkCall) -> proto::MarkRequest {
    let MarkCall { shard, coordinator, number, marks } = call;
    let marks = marks.into_iter().map(mark_out).collect();
    proto::MarkRequest { shard, coordinator_epoch: coordinator.0, number, marks }
}

fn call_in(call: proto::MarkRequest) -> Read<MarkCall> {
    let proto::MarkRequest { shard, coordinator_epoch, number, marks } = call;
    if marks.len() > MARKS_MAX {
        return Err(Nonsense("at most 10000 markers at once"));
    }
    let coordinator = CoordinatorEpoch(epoch(coordinator_epoch)?.0);
    let marks = marks.into_iter().map(|mark| mark_in(mark, coordinator)).collect::<Read<Vec<Mark>>>()?;
    Ok(MarkCall { shard, coordinator, number, marks })
}

fn mark_out(mark: Mark) -> proto::Mark {
    use proto::mark::Place;
    let Marker { producer, epoch, raised, end } = mark.marker;
    let (place, office) = match mark.place {
        MarkPlace::Partition(PartitionId { topic, index }, office) => {
            (Place::Partition(proto::PartitionRef { topic: topic_out(topic), partition: index }), office.0)
        }
        MarkPlace::Group(group, office) => (Place::Group(group), office),
    };
    proto::Mark {
        producer: producer.0,
        producer_epoch: epoch.0.into(),
        raised,
        commit: end.outcome == TxnOutcome::Commit,
        place: Some(place),
        office,
    }
}

fn mark_in(mark: proto::Mark, coordinator_epoch: CoordinatorEpoch) -> Read<Mark> {
    use proto::mark::Place;
    let place = match mark.place.ok_or(Nonsense("a marker says where it belongs"))? {
        Place::Partition(partition) => {
            MarkPlace::Partition(partition_in(&partition.topic, partition.partition)?, epoch(mark.office)?)
        }
        Place::Group(group) => MarkPlace::Group(group, mark.office),
    };
    let outcome = if mark.commit { TxnOutcome::Commit } else { TxnOutcome::Abort };
    let ProducerInstance { id: producer, epoch } = producer_in(mark.producer, mark.producer_epoch)?;
    let marker = Marker { producer, epoch, raised: mark.raised, end: EndMarker { outcome, coordinator_epoch } };
    Ok(Mark { marker, place })
}

fn producer_in(id: u64, epoch: u32) -> Read<ProducerInstance> {
    let epoch = u16::try_from(epoch).ok().filter(|epoch| i16::try_from(*epoch).is_ok());
    match (i64::try_from(id), epoch) {
        (Ok(_), Some(epoch)) => Ok(ProducerInstance { id: ProducerId(id), epoch: ProducerEpoch(epoch) }),
        _ => Err(Nonsense("producer ids stay below 2^63, and their epochs below 2^15")),
    }
}

fn confirm_out(confirm: &Confirm) -> proto::ConfirmRequest {
    let Confirm { id, producer, parts, add } = confirm;
    let partition = |id: &PartitionId| proto::PartitionRef { topic: topic_out(id.topic), partition: id.index };
    proto::ConfirmRequest {
        transactional_id: id.clone(),
        producer: producer.id.0,
        producer_epoch: producer.epoch.0.into(),
        partitions: parts.partitions.iter().map(partition).collect(),
        groups: parts.groups.clone(),
        add: *add,
    }
}

fn confirm_in(confirm: proto::ConfirmRequest) -> Read<Confirm> {
    let proto::ConfirmRequest { transactional_id: id, producer, producer_epoch, partitions, groups, add } = confirm;
    if id.len() > ID_BYTES_MAX {
        return Err(Nonsense("a transactional id has at most 4 KiB"));
    }
    let bytes: usize = groups.iter().map(String::len).sum();
    if partitions.len() + groups.len() > PARTS_MAX || bytes > RECORD_BYTES_MAX {
        return Err(Nonsense("more partitions and groups than a transaction has"));
    }
    let producer = producer_in(producer, producer_epoch)?;
    let partition = |at: proto::PartitionRef| partition_in(&at.topic, at.partition);
    let partitions = partitions.into_iter().map(partition).collect::<Read<Vec<PartitionId>>>()?;
    Ok(Confirm { id, producer, parts: Parts { partitions, groups }, add })
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::{LeaderEpoch, TopicId};

    fn call() -> MarkCall {
        let partition = PartitionId { topic: TopicId(7), index: 3 };
        let mark = |outcome, raised, place| {
            let end = EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(4) };
            Mark { marker: Marker { producer: ProducerId(9), epoch: ProducerEpoch(32_766), raised, end }, place }
        };
        let marks = vec![
            mark(TxnOutcome::Commit, true, MarkPlace::Partition(partition, LeaderEpoch(5))),
            mark(TxnOutcome::Abort, false, MarkPlace::Group("g".to_owned(), 6)),
        ];
        MarkCall { shard: 2, coordinator: CoordinatorEpoch(4), number: 77, marks }
    }

    #[test]
    fn what_brokers_say_of_transactions_reads_back() {
        assert_eq!(call_in(call_out(call())), Ok(call()));
        let parts =
            Parts { partitions: vec![PartitionId { topic: TopicId(7), index: 3 }], groups: vec!["g".to_owned()] };
        let producer = ProducerInstance { id: ProducerId(9), epoch: ProducerEpoch(2) };
        let confirm = Confirm { id: "t".to_owned(), producer, parts, add: true };
        assert_eq!(confirm_in(confirm_out(&confirm)), Ok(confirm));
        for outcome in [Ok(()), Err(ErrorCode::ProducerFenced), Err(ErrorCode::UnknownServerError)] {
            assert_eq!(outcome_in(outcome_out(outcome)), outcome);
        }
        assert_eq!(outcome_in(9999), Err(ErrorCode::UnknownServerError), "what a newer broker says is no success");
    }

    #[test]
    fn what_no_coordinator_says_is_refused() {
        let refused = |change: fn(&mut proto::MarkRequest)| {
            let mut request = call_out(call());
            change(&mut request);
            assert!(call_in(request).is_err());
        };
        refused(|request| request.marks[0].place = None);
        refused(|request| request.marks[0].producer_epoch = 1 << 15);
        refused(|request| request.marks[0].producer = 1 << 63);
        refused(|request| request.marks[0].office = 1 << 31);
        refused(|request| request.coordinator_epoch = 1 << 31);
        refused(|request| request.marks = vec![request.marks[1].clone(); MARKS_MAX + 1]);
    }
}
