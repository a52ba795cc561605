//! Reads what the pipeline wrote, and what its group has committed, as they are now.

use super::check::{Origin, Outputs, Txn};
use super::{GROUP, SINK, SINK_PARTITIONS, group_coordinator};
use crate::clients::{TOPIC, partitions};
use crate::fleet::{PATIENCE, POLL};
use crate::payload::{self, RecordId};
use crate::stage::Stage;
use millpond_proto::v1::groups_client::GroupsClient;
use millpond_proto::v1::{FetchOffsetsRequest, GroupPartition};
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, ConsumerRecord, IsolationLevel, Offset, OffsetSpec, StartAt,
    TopicPartition,
};
use std::collections::BTreeMap;

/// Waits until no transaction is open in the output: readers of committed records come as far as all others.
///
/// # Errors
/// One stays open.
pub(crate) async fn wait_until_settled(client: &Client) -> Result<(), String> {
    let mut last = String::new();
    let settled = tokio::time::timeout(PATIENCE, async {
        let mut poll = tokio::time::interval(POLL);
        for partition in 0..SINK_PARTITIONS {
            loop {
                poll.tick().await;
                match ends(client, partition).await {
                    Ok((stable, end)) if stable == end => break,
                    Ok((stable, end)) => last = format!("partition {partition}: stable up to {stable} of {end}"),
                    Err(error) => last = format!("partition {partition}: {error}"),
                }
            }
        }
    });
    settled.await.map_err(|_| format!("a transaction is still open after {PATIENCE:?}: {last}"))
}

/// The last stable offset and the high watermark, read in this order.
async fn ends(client: &Client, partition: u16) -> Result<(u64, u64), String> {
    let stable = end(client, partition, IsolationLevel::ReadCommitted).await?;
    Ok((stable, end(client, partition, IsolationLevel::ReadUncommitted).await?))
}

async fn end(client: &Client, partition: u16, isolation: IsolationLevel) -> Result<u64, String> {
    let admin = Admin::new(client);
    let found = admin.list_offset_seen_by(isolation, SINK, u32::from(partition), OffsetSpec::Latest).await;
    Ok(found.map_err(|error| error.to_string())?.ok_or("it has no end")?.offset.0)
}

/// The output as a reader of this isolation sees it, from its start to its end, read anew.
///
/// # Errors
/// It cannot be read.
pub(crate) async fn read(client: &Client, isolation: IsolationLevel) -> Result<Outputs, String> {
    let mut outputs = Outputs::new();
    for partition in 0..SINK_PARTITIONS {
        let read = tokio::time::timeout(PATIENCE, read_partition(client, isolation, partition)).await;
        let read = read.unwrap_or_else(|_| Err(format!("it is not read within {PATIENCE:?}")));
        outputs.insert(partition, read.map_err(|error| format!("output {partition}, {isolation:?}: {error}"))?);
    }
    Ok(outputs)
}

async fn read_partition(
    client: &Client,
    isolation: IsolationLevel,
    partition: u16,
) -> Result<Vec<(u64, Option<Origin>)>, String> {
    let at = TopicPartition::new(SINK, u32::from(partition));
    let end = Offset(ends(client, partition).await?.0);
    let mut consumer = Consumer::new(client, ConsumerConfig { isolation, ..ConsumerConfig::default() });
    consumer.assign([(at.clone(), StartAt::Earliest)]).await.map_err(|error| error.to_string())?;
    let mut log = Vec::new();
    while consumer.position(&at).is_some_and(|position| position < end) {
        let records = consumer.poll(POLL * 10).await.map_err(|error| error.to_string())?;
        log.extend(records.iter().map(|record| (record.offset.0, origin(record))));
    }
    Ok(log)
}

/// What an output says of itself; `None` if no worker wrote it so.
fn origin(record: &ConsumerRecord) -> Option<Origin> {
    let label = record.headers.iter().find(|header| header.name == "txn")?.value.as_deref()?;
    let (made, id) = read_value(record.value.as_deref()?)?;
    (record.key.as_deref() == Some(&payload::key(id))).then_some(Origin {
        partition: made.0,
        offset: made.1,
        id,
        txn: read_label(label)?,
    })
}

/// The place of the input, and the input.
fn read_value(bytes: &[u8]) -> Option<((u16, u64), RecordId)> {
    let mut parts = bytes.splitn(3, |byte| *byte == b'/');
    let mut number = || std::str::from_utf8(parts.next()?).ok();
    let place = (number()?.parse().ok()?, number()?.parse().ok()?);
    Some((place, payload::read(parts.next()?)?))
}

fn read_label(bytes: &[u8]) -> Option<Txn> {
    let mut parts = std::str::from_utf8(bytes).ok()?.split('/');
    let mut next = || parts.next();
    Some(Txn { worker: next()?.parse().ok()?, life: next()?.parse().ok()?, number: next()?.parse().ok()? })
}

/// What the group has committed, by the input's partition, once no transaction has any pending.
///
/// # Errors
/// The coordinator does not tell, or a transaction stays open.
pub(crate) async fn offsets(stage: &Stage) -> Result<BTreeMap<u16, u64>, String> {
    let mut last = String::new();
    let told = tokio::time::timeout(PATIENCE, async {
        let mut poll = tokio::time::interval(POLL);
        loop {
            poll.tick().await;
            match offsets_now(stage).await {
                Ok(offsets) => return offsets,
                Err(error) => last = error,
            }
        }
    });
    told.await.map_err(|_| format!("the group's offsets are not told within {PATIENCE:?}: {last}"))
}

/// The same, now or not at all.
pub(crate) async fn offsets_now(stage: &Stage) -> Result<BTreeMap<u16, u64>, String> {
    let topics = stage.fleet.topics().await?;
    let topic = topics.iter().find(|topic| topic.name == TOPIC).ok_or("the topic of inputs is gone")?;
    let wanted = |partition| GroupPartition { topic_id: topic.id.to_string(), partition: u32::from(partition) };
    let request = FetchOffsetsRequest {
        group: GROUP.to_owned(),
        partitions: partitions().map(wanted).collect(),
        require_stable: true,
        ..FetchOffsetsRequest::default()
    };
    let coordinator = group_coordinator(stage).await?;
    let groups = GroupsClient::connect(format!("http://{}", stage.fleet.grpc(coordinator))).await;
    let answer = groups.map_err(|error| error.to_string())?.fetch_offsets(request).await;
    let mut offsets = BTreeMap::new();
    for found in answer.map_err(|status| status.to_string())?.into_inner().offsets {
        if !found.error.is_empty() {
            return Err(found.error);
        }
        let partition = found.partition.ok_or("an offset of no partition")?.partition;
        let partition = u16::try_from(partition).map_err(|error| error.to_string())?;
        offsets.insert(partition, found.offset.unwrap_or_default());
    }
    Ok(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_labels_name_their_input_and_transaction() {
        let id = RecordId { writer: 10, partition: 2, number: 5 };
        let value = [b"2/1234/".as_slice(), &payload::value(id)].concat();
        assert_eq!(read_value(&value), Some(((2, 1234), id)));
        assert_eq!(read_value(&value[..value.len() - 1]), None);
        assert_eq!(read_value(b"2/1234"), None);
        assert_eq!(read_value(&payload::value(id)), None);
        assert_eq!(read_label(b"1/20/300"), Some(Txn { worker: 1, life: 20, number: 300 }));
        assert_eq!(read_label(b"1/20"), None);
    }
}
