//! Produce: one batch for each of some partitions; each succeeds or fails alone (case P1).

use super::leaders::{LeaderIdAndEpoch, Leaders, NodeEndpoint};
use super::refused::RefusedHere;
use super::throttle::throttle_ms;
use super::transactions::told;
use super::wire::{requests, responses};
use crate::Broker;
use crate::api::{Acks, ApiError, InTransaction, ProduceRequest as BrokerRequest, Produced, TopicRef};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use millpond_log::ErrorCode;
use millpond_log::batch::ProducerWrite;
use millpond_log::codec::Codec;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// First version that is served. Older ones are advertised all the same, since librdkafka up to 2.8 switches compression off
/// when version 0 is missing from the list (case A3); they are answered with `UNSUPPORTED_VERSION`.
const VERSION_MIN: i16 = 3;

/// First version of clients that leave it to the brokers to add partitions to a transaction (KIP-890).
const ADDS_SINCE: i16 = 12;

/// First version whose clients know `TRANSACTION_ABORTABLE`.
const ABORTABLE_SINCE: i16 = 11;

/// First version whose clients may compress by zstd: a consumer that is as old could not read it.
const ZSTD_SINCE: i16 = 7;

/// First version that is told the leader with an error.
const LEADERS_SINCE: i16 = 10;

/// Records that spoil a batch, each by itself, of which a client is told why in words; the others have those of the partition.
const RECORDS_WORDED_MAX: usize = 100;

requests! {
    /// Batches to append.
    ProduceRequest {
        transactional_id: Option<String> => 3..,
        acks: i16 => ..,
        timeout_ms: i32 => ..,
        topics: Vec<ProduceTopic> => ..,
    }
    /// One topic.
    ProduceTopic {
        name: String => ..,
        partitions: Vec<ProducePartition> => ..,
    }
    /// One partition's batch.
    ProducePartition {
        index: i32 => ..,
        records: Option<Bytes> => ..,
    }
}

responses! {
    /// What became of each batch.
    ProduceResponse {
        topics: Vec<ProducedTopic> => ..,
        throttle_time_ms: i32 => 1..,
        ;
        node_endpoints: Vec<NodeEndpoint> => 10.. as 0,
    }
    /// One topic.
    ProducedTopic {
        name: String => ..,
        partitions: Vec<ProducedPartition> => ..,
    }
    /// One partition.
    ProducedPartition {
        index: i32 => ..,
        error_code: i16 => ..,
        base_offset: i64 = -1 => ..,
        log_append_time_ms: i64 = -1 => 2..,
        log_start_offset: i64 = -1 => 5..,
        record_errors: Vec<RecordError> => 8..,
        error_message: Option<String> => 8..,
        ;
        current_leader: LeaderIdAndEpoch => 10.. as 0,
    }
    /// A record that spoils its batch by itself: the client may send those that are not named without it (KIP-467).
    RecordError {
        batch_index: i32 => ..,
        batch_index_error_message: Option<String> => ..,
    }
}

/// What a produce has of the connection that it came by.
#[derive(Clone, Copy)]
pub(super) struct Connection<'a> {
    /// Cancelled once nothing more is read of it.
    pub(super) hung_up: &'a CancellationToken,
    pub(super) refused: &'a RefusedHere,
}

/// Puts every batch in the queue of its partition, in the order of the request, and returns what waits for their commits. They share a frame of
/// `frame_bytes`.
///
/// `None` of that future means that nothing is to be sent: the client asked for no acknowledgement and all went well. An
/// error means the same request failed, which such a client learns by the loss of its connection (case P8).
pub(super) async fn begin(
    broker: &Broker,
    listener: &Arc<str>,
    Connection { hung_up, refused }: Connection<'_>,
    version: i16,
    frame_bytes: usize,
    request: ProduceRequest,
) -> BoxFuture<'static, Result<Option<ProduceResponse>, ApiError>> {
    let listener = Arc::clone(listener);
    let terms = terms(version, &request);
    let silent = request.acks == 0;
    let epoch_per_transaction = version >= ADDS_SINCE;
    let transaction = request.transactional_id.clone().map(|id| {
        let (id, hung_up) = (id.into(), hung_up.clone());
        InTransaction { id, epoch_per_transaction, hung_up }
    });
    let mut timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let name = Arc::new(topic.name);
        let mut waits = Vec::with_capacity(topic.partitions.len());
        for ProducePartition { index, records } in topic.partitions {
            let write = records.as_deref().and_then(ProducerWrite::of_unchecked);
            let wait = match &terms {
                Ok(_) if version < ZSTD_SINCE && is_zstd(records.as_ref()) => Err(too_old_for_zstd()),
                Ok(acks) => {
                    let behind = write.and_then(|write| refused.before(&name, index, write));
                    let batch = Arrived { records, frame_bytes, behind };
                    admit(broker, &name, index, batch, transaction.clone(), *acks, timeout).await
                }
                Err(refused) => Err(refused.clone()),
            };
            // The client's patience is for the whole request: once memory stayed full for all of it, the rest does not wait.
            if wait.as_ref().is_err_and(|error| error.code == ErrorCode::RequestTimedOut) {
                timeout = Duration::ZERO;
            }
            if let Err(error) = &wait {
                refused.note(&name, index, write, error);
            }
            let (name, refused) = (Arc::clone(&name), refused.clone());
            waits.push(async move {
                let result = match wait {
                    Ok(committed) => committed.await,
                    Err(error) => Err(error),
                };
                match &result {
                    Ok(_) => refused.forget(&name, index, write),
                    Err(error) => refused.note(&name, index, write, error),
                }
                (index, result)
            });
        }
        topics.push(async move {
            let settled = join_all(waits).await;
            (Arc::unwrap_or_clone(name), settled)
        });
    }
    async move {
        let settled = join_all(topics).await;
        if silent {
            let failed =
                settled.into_iter().flat_map(|(_, partitions)| partitions).find_map(|(_, result)| result.err());
            return failed.map_or(Ok(None), Err);
        }
        Ok(Some(answer(version, &listener, settled)))
    }
    .boxed()
}

/// What holds for the whole request: how it is to be acknowledged, or why none of it is taken.
fn terms(version: i16, request: &ProduceRequest) -> Result<Acks, ApiError> {
    if version < VERSION_MIN {
        let message = "Produce below version 3 carries formats older than record batch v2; use a newer client";
        return Err(ApiError::new(ErrorCode::UnsupportedVersion, message));
    }
    match request.acks {
        0 => Ok(Acks::None),
        1 => Ok(Acks::Leader),
        -1 => Ok(Acks::All),
        other => Err(ApiError::new(ErrorCode::InvalidRequiredAcks, format!("acks={other}; use 0, 1 or -1 (all)"))),
    }
}

/// Whether a batch says that it is compressed by zstd. What it says else is for the broker to judge.
fn is_zstd(records: Option<&Bytes>) -> bool {
    /// Where the low byte of the attributes stands in a batch, and the codec in it.
    const ATTRIBUTES_AT: usize = 22;
    const CODEC_BITS: u8 = 0b111;
    let attributes = records.and_then(|records| records.get(ATTRIBUTES_AT));
    attributes.is_some_and(|attributes| Codec::from_bits((attributes & CODEC_BITS).into()) == Some(Codec::Zstd))
}

fn too_old_for_zstd() -> ApiError {
    let message = "zstd needs Produce version 7 or later; use a newer client or another codec";
    ApiError::new(ErrorCode::UnsupportedCompressionType, message)
}

/// A batch as it came.
struct Arrived {
    records: Option<Bytes>,
    frame_bytes: usize,
    /// Base sequence of one before it that was refused.
    behind: Option<i32>,
}

async fn admit(
    broker: &Broker,
    topic: &str,
    index: i32,
    Arrived { records, frame_bytes, behind }: Arrived,
    transaction: Option<InTransaction>,
    acks: Acks,
    timeout: Duration,
) -> Result<impl Future<Output = Result<Produced, ApiError>> + Send + use<>, ApiError> {
    let partition = u32::try_from(index)
        .map_err(|_| ApiError::new(ErrorCode::UnknownTopicOrPartition, format!("there is no partition {index}")))?;
    let topic = TopicRef::Name(topic.to_owned());
    // Null is no batch; what is exactly one is the broker's to judge.
    let records = records.unwrap_or_default();
    let request =
        BrokerRequest { topic, partition, records, arrived_bytes: frame_bytes, behind, transaction, acks, timeout };
    broker.produce(request).await
}

type Settled = Vec<(String, Vec<(i32, Result<Produced, ApiError>)>)>;

fn answer(version: i16, listener: &str, settled: Settled) -> ProduceResponse {
    let results = settled.iter().flat_map(|(_, partitions)| partitions);
    let throttle_time_ms = throttle_ms(results.filter_map(|(_, result)| result.as_ref().err()));
    let mut leaders = Leaders::since(LEADERS_SINCE, version, listener);
    let topic = |(name, partitions): (String, Vec<_>)| {
        let partitions =
            partitions.into_iter().map(|(index, result)| produced(version, index, result, &mut leaders)).collect();
        ProducedTopic { name, partitions }
    };
    let topics = settled.into_iter().map(topic).collect();
    ProduceResponse { topics, throttle_time_ms, node_endpoints: leaders.endpoints() }
}

/// All of them: a client takes those that are not named for good ones, which it may send again.
fn record_errors(error: &ApiError) -> Vec<RecordError> {
    let of = |(at, record): (usize, &u32)| RecordError {
        batch_index: record.cast_signed(),
        batch_index_error_message: (at < RECORDS_WORDED_MAX).then(|| error.message.clone()),
    };
    error.records.iter().enumerate().map(of).collect()
}

fn produced(
    version: i16,
    index: i32,
    result: Result<Produced, ApiError>,
    leaders: &mut Leaders<'_>,
) -> ProducedPartition {
    match result {
        Ok(produced) => ProducedPartition {
            index,
            base_offset: produced.base_offset.0.cast_signed(),
            log_append_time_ms: produced.append_time.map_or(-1, |time| time.0),
            log_start_offset: produced.log_start.0.cast_signed(),
            ..Default::default()
        },
        Err(error) => ProducedPartition {
            index,
            error_code: told(error.code, version, 0, ABORTABLE_SINCE).kafka(),
            current_leader: leaders.name(&error),
            record_errors: record_errors(&error),
            error_message: Some(error.message),
            ..Default::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case A3's other half: who is too old to know zstd is not served it, and does not write it.
    #[test]
    fn batches_say_by_their_attributes_that_they_are_zstd() {
        let check = |attributes: [u8; 2], expected| {
            let batch: Bytes = [&[0; 21][..], &attributes, &[0; 38]].concat().into();
            assert_eq!(is_zstd(Some(&batch)), expected, "{attributes:?}");
        };
        check([0, 4], true);
        check([0, 0x14], true);
        check([0, 0], false);
        check([4, 3], false);
        check([0, 5], false);
        assert!(!is_zstd(None) && !is_zstd(Some(&Bytes::from_static(&[4; 22]))));
    }

    #[test]
    fn every_record_that_spoils_its_batch_is_named_and_the_first_of_them_in_words() {
        let named = |records: Vec<u32>| {
            let errors = record_errors(&ApiError { records, ..ApiError::new(ErrorCode::InvalidRecord, "no key") });
            let of = |error: RecordError| (error.batch_index, error.batch_index_error_message);
            errors.into_iter().map(of).collect::<Vec<(i32, Option<String>)>>()
        };
        let words = || Some("no key".to_owned());
        assert_eq!(named(vec![]), []);
        assert_eq!(named(vec![0, 3]), [(0, words()), (3, words())]);
        let many = named((0..1000).collect());
        assert_eq!((many[99].clone(), many[100].clone(), many.len()), ((99, words()), (100, None), 1000));
    }
}
