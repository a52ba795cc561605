//! Settings of a producer, and what contradicts itself in them.

use crate::backoff::Backoff;
use crate::error::Error;
use millpond_log::ErrorCode;
use millpond_log::codec::Codec;
use millpond_log::limits::BATCH_BYTES_MAX;
use std::time::Duration;

/// When a record counts as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acks {
    /// When it was handed to the connection. Nothing is known of it afterwards.
    None,
    /// When the leader has it on disk.
    Leader,
    /// When every in-sync replica has it on disk.
    #[default]
    All,
}

/// How a producer behaves. Names and meanings are Kafka's.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// When a record counts as written. `acks`.
    pub acks: Acks,
    /// How batches are compressed. `compression.type`.
    pub compression: Codec,
    /// How long a batch waits for more records. `linger.ms`.
    pub linger: Duration,
    /// Size at which a batch is closed, in bytes before compression. A larger record makes a batch of its own. `batch.size`.
    pub batch_bytes: usize,
    /// Most bytes of records held, waiting and in flight. `buffer.memory`.
    pub buffer_memory: usize,
    /// How long `send` waits for memory or for the topic. `max.block.ms`.
    pub max_block: Duration,
    /// Whether retries are recognised by the broker, so that each record is written once and in order. `None`: with
    /// `Acks::All` only, which it needs. `enable.idempotence`.
    pub idempotence: Option<bool>,
    /// Most batches of one partition in flight. With idempotence 1 to 5; without it, more than 1 may reorder records when
    /// one is tried again. `max.in.flight.requests.per.connection`, here by partition.
    pub max_in_flight: usize,
    /// How long a record may take from `send` until it is written, with retries. `delivery.timeout.ms`.
    pub delivery_timeout: Duration,
    /// How long the broker may take to commit one batch, and the connection to bring the answer. `request.timeout.ms`.
    pub request_timeout: Duration,
    /// Pauses between tries.
    pub retry_backoff: Backoff,
}

impl Default for ProducerConfig {
    fn default() -> ProducerConfig {
        ProducerConfig {
            acks: Acks::All,
            compression: Codec::None,
            linger: Duration::from_millis(5),
            // A quarter of the largest default batch: large enough that per-batch cost vanishes, small enough to fill in a linger.
            batch_bytes: 256 << 10,
            buffer_memory: 32 << 20,
            max_block: Duration::from_secs(60),
            idempotence: None,
            max_in_flight: IN_FLIGHT_IDEMPOTENT_MAX,
            delivery_timeout: Duration::from_secs(120),
            request_timeout: Duration::from_secs(30),
            retry_backoff: Backoff::default(),
        }
    }
}

/// Most batches an idempotent producer may have in flight for a partition: as many as brokers remember.
const IN_FLIGHT_IDEMPOTENT_MAX: usize = millpond_log::limits::PRODUCER_BATCHES_REMEMBERED;

impl ProducerConfig {
    /// Whether batches carry a producer id and sequence.
    pub(super) fn idempotent(&self) -> bool {
        self.idempotence.unwrap_or(self.acks == Acks::All)
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        let refuse = |message: &str| Err(Error::new(ErrorCode::InvalidConfig, message));
        if self.idempotent() && self.acks != Acks::All {
            return refuse("idempotence needs acks=all; turn it off or wait for all replicas");
        }
        if self.max_in_flight == 0 || (self.idempotent() && self.max_in_flight > IN_FLIGHT_IDEMPOTENT_MAX) {
            return refuse("max_in_flight must be 1 to 5 with idempotence, and at least 1 without");
        }
        if self.batch_bytes > BATCH_BYTES_MAX as usize {
            return refuse("batch_bytes is larger than any batch a broker takes");
        }
        if self.buffer_memory == 0 || self.buffer_memory > u32::MAX as usize {
            return refuse("buffer_memory must be 1 byte to 4 GiB");
        }
        if self.delivery_timeout < self.linger + self.request_timeout {
            return refuse("delivery_timeout must be at least linger and request_timeout together");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let check = |change: fn(&mut ProducerConfig), valid: bool| {
            let mut config = ProducerConfig::default();
            change(&mut config);
            assert_eq!(config.validate().is_ok(), valid, "{config:?}");
        };
        check(|_| (), true);
        check(|config| config.acks = Acks::None, true);
        check(|config| (config.acks, config.idempotence) = (Acks::Leader, Some(true)), false);
        check(|config| config.max_in_flight = 6, false);
        check(|config| (config.max_in_flight, config.idempotence) = (6, Some(false)), true);
        check(|config| config.max_in_flight = 0, false);
        check(|config| config.delivery_timeout = Duration::from_secs(30), false);
        check(|config| config.buffer_memory = 0, false);
    }

    #[test]
    fn idempotence_follows_acks_unless_told() {
        let config = |acks, idempotence| ProducerConfig { acks, idempotence, ..ProducerConfig::default() };
        assert!(config(Acks::All, None).idempotent());
        assert!(!config(Acks::Leader, None).idempotent());
        assert!(!config(Acks::All, Some(false)).idempotent());
    }
}
