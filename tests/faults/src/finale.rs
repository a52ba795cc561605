//! How a run ends: everything is healed, the clients come to their end, and the logs are read: anew, from every replica, and out of
//! the bucket alone.

use crate::bucket::Gate;
use crate::clients::{self, TOPIC};
use crate::fleet::{PATIENCE, POLL, connect};
use crate::history::{Content, Logs};
use crate::pipeline;
use crate::stage::Stage;
use millpond_log::Batch;
use millpond_proto::MESSAGE_BYTES_MAX;
use millpond_proto::v1::log_client::LogClient;
use millpond_proto::v1::{FetchOneRequest, TopicRef};
use millpond_sdk::Admin;

/// Most bytes of one answer.
const FETCH_BYTES: u32 = 4 << 20;

/// Undoes whatever was done, and waits until everything is served and in sync again.
///
/// # Errors
/// It does not become so.
pub(crate) async fn heal(stage: &mut Stage) -> Result<(), String> {
    stage.tell("healing");
    stage.fleet.bucket.set(Gate::Open);
    stage.fleet.etcd.restart_all().await;
    for broker in 0..stage.fleet.size() {
        stage.fleet.network.mend(broker)?;
        stage.fleet.set_clock(broker, 0);
        if !stage.fleet.runs(broker) {
            stage.fleet.spawn(broker)?;
        } else if !stage.fleet.works(broker) {
            stage.fleet.resume(broker)?;
        }
    }
    stage.fleet.wait_until_ready().await?;
    stage.in_sync().await?;
    stage.served().await
}

/// Reads every partition anew, and lets the readers come to its end.
///
/// # Errors
/// It cannot be read.
pub(crate) async fn read(stage: &mut Stage) -> Result<Logs, String> {
    let logs = read_logs(stage).await?;
    let end = |log: &Vec<(u64, Content)>| log.last().map_or(0, |(offset, _)| offset + 1);
    let ends = logs.iter().map(|(partition, log)| (*partition, end(log))).collect();
    stage.stop_reading(&ends).await?;
    Ok(logs)
}

async fn read_logs(stage: &Stage) -> Result<Logs, String> {
    let client = stage.fleet.connect().await?;
    let mut logs = Logs::new();
    for partition in clients::partitions() {
        logs.insert(partition, clients::read_all(&client, partition, PATIENCE).await?);
    }
    Ok(logs)
}

/// Reads every partition from each of its replicas by itself, and says where two differ by a byte.
///
/// # Errors
/// One cannot be read, or is behind for long.
pub(crate) async fn compare_replicas(stage: &Stage, logs: &Logs) -> Result<Vec<String>, String> {
    let mut differences = Vec::new();
    for (partition, log) in logs {
        let end = log.last().map_or(0, |(offset, _)| offset + 1);
        let mut first: Option<Vec<u8>> = None;
        for broker in 0..stage.fleet.size() {
            let found = read_replica(&stage.fleet.grpc(broker), *partition, end)
                .await
                .map_err(|error| format!("partition {partition} at broker {broker}: {error}"))?;
            match &first {
                None => first = Some(found),
                Some(first) if *first != found => {
                    let at = first.iter().zip(&found).position(|(a, b)| a != b).unwrap_or(first.len().min(found.len()));
                    let lengths = (first.len(), found.len());
                    differences.push(format!(
                        "partition {partition}: brokers 0 and {broker} differ at byte {at} of {lengths:?}"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    Ok(differences)
}

/// All batches of a partition up to `end`, as this broker itself has them.
async fn read_replica(address: &str, partition: u16, end: u64) -> Result<Vec<u8>, String> {
    let client = LogClient::connect(format!("http://{address}")).await.map_err(|error| error.to_string())?;
    let mut client = client.max_decoding_message_size(MESSAGE_BYTES_MAX);
    let (mut bytes, mut offset) = (Vec::new(), 0);
    let mut last = String::new();
    let read = tokio::time::timeout(PATIENCE, async {
        let mut poll = tokio::time::interval(POLL);
        while offset < end {
            let request = FetchOneRequest {
                topic: Some(TopicRef::name(TOPIC)),
                partition: u32::from(partition),
                offset,
                bytes_max: FETCH_BYTES,
                bytes_min: 1,
                wait_ms_max: 500,
                ..FetchOneRequest::default()
            };
            match client.fetch_one(request).await {
                Ok(answer) => {
                    let found = answer.into_inner();
                    let mut batches = found.records.unwrap_or_default().into_bytes();
                    last = format!("it knows of no more than {}", found.high_watermark);
                    while let Some(batch) = Batch::take(&mut batches).map_err(|error| error.to_string())? {
                        batch.verify_crc().map_err(|error| format!("at {offset}: {error}"))?;
                        offset = batch.end_offset().0;
                        batch.put(&mut bytes);
                    }
                }
                Err(status) => {
                    last = status.to_string();
                    poll.tick().await;
                }
            }
        }
        Ok::<(), String>(())
    });
    match read.await {
        Ok(read) => read.map(|()| bytes),
        Err(_) => Err(format!("it stays at {offset} of {end}: {last}")),
    }
}

/// Uploads everything, takes every broker's disk away, and reads what the bucket alone gives back; says where it differs.
///
/// # Errors
/// It cannot be uploaded or read.
pub(crate) async fn restore(stage: &mut Stage, logs: &Logs) -> Result<Vec<String>, String> {
    stage.tell("restoring out of the bucket");
    let admin = Admin::new(&stage.fleet.connect().await?);
    let topics = pipeline::topics(stage);
    for topic in topics.keys() {
        admin.flush_topic(topic).await.map_err(|error| format!("the upload of `{topic}`: {error}"))?;
    }
    for broker in 0..stage.fleet.size() {
        stage.fleet.kill(broker);
        stage.fleet.wipe(broker)?;
    }
    // A broker judges what is lost when it starts, and the first to start knows the disks of the others as they were.
    for _ in 0..2 {
        for broker in 0..stage.fleet.size() {
            stage.fleet.kill(broker);
            stage.fleet.spawn(broker)?;
        }
        stage.fleet.wait_until_ready().await?;
    }
    let client = connect(&stage.fleet.bootstrap()).await?;
    let admin = Admin::new(&client);
    for (topic, partition) in topics.iter().flat_map(|(topic, count)| (0..*count).map(|index| (*topic, index))) {
        // The brokers find out one by one that nobody has a complete copy.
        let accepted = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(POLL);
            while let Err(error) = admin.accept_loss(topic, u32::from(partition)).await {
                stage.tell(&format!("{topic}:{partition}: {error}"));
                poll.tick().await;
            }
        });
        accepted.await.map_err(|_| format!("{topic}:{partition}: its loss is not accepted within {PATIENCE:?}"))?;
    }
    let mut differences = Vec::new();
    for (partition, log) in read_logs(stage).await? {
        if logs.get(&partition) != Some(&log) {
            let counts = (logs.get(&partition).map_or(0, Vec::len), log.len());
            differences.push(format!("partition {partition}: records before and after {counts:?}"));
        }
    }
    Ok(differences)
}
