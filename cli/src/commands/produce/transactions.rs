//! `produce --transactional-id`: lines in transactions, of which readers of committed records see all or nothing. What is not committed when
//! the input fails, or when the process is asked to end, is aborted.

use super::{End, Reading, Sent, at_line};
use crate::commands::deliveries::Deliveries;
use crate::failure::Failure;
use crate::units;
use millpond_sdk::{Client, ErrorCode, ProducerConfig, TransactionalConfig, TransactionalProducer};
use std::num::NonZeroU64;
use std::time::Duration;
use tokio::time::Instant;

/// Arguments about transactions.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TransactionArgs {
    /// Write in transactions, under this id: readers of committed records see all of one or nothing
    #[arg(long, value_name = "ID", conflicts_with = "no_idempotence")]
    transactional_id: Option<String>,
    /// Commit after so many records; without it all of the input is one transaction
    #[arg(long, value_name = "N", requires = "transactional_id")]
    transaction_records: Option<NonZeroU64>,
    /// How long a transaction may be under way before the cluster aborts it; at most 15 minutes
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "1m", requires = "transactional_id")]
    transaction_timeout: Duration,
}

/// What is wanted of transactions.
pub(super) struct How {
    id: String,
    /// Most records of one.
    records: Option<NonZeroU64>,
    timeout: Duration,
    /// How long the end of one may be asked for again.
    ends_within: Duration,
}

impl TransactionArgs {
    /// What is wanted, if transactions are.
    pub(super) fn within(self, ends_within: Duration) -> Option<How> {
        let TransactionArgs { transactional_id, transaction_records: records, transaction_timeout: timeout } = self;
        Some(How { id: transactional_id?, records, timeout, ends_within })
    }
}

/// A producer of transactions, and the one that is open.
pub(super) struct Transactions {
    producer: TransactionalProducer,
    how: How,
    reading: Reading,
    open: Option<Open>,
    sent: Sent,
}

/// The transaction that is open.
#[derive(Default)]
struct Open {
    records: u64,
    deliveries: Deliveries,
    /// Its commit was asked for, and it is not known what became of that.
    in_doubt: bool,
}

impl Transactions {
    /// Becomes the producer of the transactional id; whoever was is fenced.
    pub(super) async fn begin(
        client: &Client,
        how: How,
        producer: ProducerConfig,
        reading: Reading,
    ) -> Result<Transactions, Failure> {
        let config = TransactionalConfig { timeout: how.timeout, producer, ..TransactionalConfig::new(&how.id) };
        let producer = TransactionalProducer::new(client, config).await.map_err(|error| match error.code {
            Some(ErrorCode::InvalidConfig | ErrorCode::InvalidTransactionTimeout) => Failure::usage(error.to_string()),
            _ => Failure::new(error.to_string()),
        })?;
        Ok(Transactions { producer, how, reading, open: None, sent: Sent { records: 0, transactions: Some(0) } })
    }

    pub(super) async fn send(&mut self, number: u64, line: &[u8]) -> Result<(), Failure> {
        let record = self.reading.record(number, line)?;
        if self.open.is_none() {
            self.producer.begin().map_err(|error| at_line(number, error))?;
        }
        let open = self.open.get_or_insert_default();
        let delivery = self.producer.send(record).await.map_err(|error| at_line(number, error))?;
        open.records += 1;
        open.deliveries.add(delivery);
        open.deliveries.look()?;
        if self.how.records.is_some_and(|most| open.records >= most.get()) {
            self.commit().await?;
        }
        Ok(())
    }

    pub(super) async fn finish(mut self, end: End) -> Result<Sent, Failure> {
        let why = match end {
            End::Input => match self.commit().await {
                Ok(()) => return Ok(self.sent),
                Err(failure) => failure,
            },
            // All that was read is committed.
            End::Asked if self.open.is_none() => return Ok(self.sent),
            End::Asked => Failure::new("interrupted"),
            End::Failed(failure) => failure,
        };
        let left = self.abort().await;
        let Sent { records, transactions } = self.sent;
        Err(Failure::new(format!(
            "{why}; {records} records in {} transactions were committed{left}",
            transactions.unwrap_or_default()
        )))
    }

    async fn commit(&mut self) -> Result<(), Failure> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let deadline = Instant::now() + self.how.ends_within;
        loop {
            match self.producer.commit().await {
                Ok(()) => break,
                Err(error) if error.retriable && Instant::now() < deadline => {}
                Err(error) => {
                    open.in_doubt = error.retriable || error.maybe_done;
                    return Err(Failure::new(error.to_string()));
                }
            }
        }
        self.sent.records += open.records;
        self.sent.transactions = self.sent.transactions.map(|count| count + 1);
        self.open = None;
        Ok(())
    }

    /// Aborts what is open. Tells what became of it, as the end of a sentence.
    async fn abort(&mut self) -> String {
        let Some(Open { records, in_doubt, .. }) = self.open.take() else { return String::new() };
        if in_doubt {
            return format!(", and it is not known whether {records} more were");
        }
        let deadline = Instant::now() + self.how.ends_within;
        loop {
            match self.producer.abort().await {
                Ok(()) => return format!(", and {records} were aborted"),
                // Another instance, or the coordinator, has aborted it.
                Err(error) if error.needs_new_producer() => return format!(", and {records} were aborted"),
                Err(error) if error.retriable && Instant::now() < deadline => {}
                Err(_) => return format!(", and {records} will be aborted by their timeout"),
            }
        }
    }
}
