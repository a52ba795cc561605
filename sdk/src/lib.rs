//! The Rust client of Millpond: producer, consumer and admin over the gRPC API.
//!
//! Names and defaults are those that users of Kafka's clients know. A [`Client`] holds the connections and what is known
//! of the cluster; [`Producer`], [`Consumer`], [`GroupConsumer`] and [`Admin`] are made from it.
//!
//! ```no_run
//! # async fn example() -> Result<(), millpond_sdk::Error> {
//! use millpond_sdk::{Client, Producer, ProducerConfig, ProducerRecord};
//!
//! let client = Client::connect("127.0.0.1:7400").await?;
//! let producer = Producer::new(&client, ProducerConfig::default())?;
//! let delivery = producer.send(ProducerRecord::new("flights").key("N14228").value("departed")).await?;
//! println!("written at offset {:?}", delivery.await?.offset);
//! producer.close().await;
//! # Ok(())
//! # }
//! ```

mod admin;
mod backoff;
mod client;
mod clock;
mod connection;
mod consumer;
mod coordinator;
mod dedup;
mod description;
mod error;
mod group;
mod groups;
mod isolation;
mod leader;
mod metadata;
mod producer;
mod record;
pub mod retries;
mod shards;
mod transactional;
mod transactions;
mod worker;

pub use admin::{Admin, NewTopic, OffsetSpec};
pub use backoff::Backoff;
pub use client::{Client, ClientConfig};
pub use connection::Tls;
pub use consumer::{Consumer, ConsumerConfig, OffsetReset, ReadFrom, StartAt};
pub use dedup::Deduplicator;
pub use description::{
    AcceptedLoss, BrokerDescription, ClusterDescription, FoundOffset, LastKnown, LostBroker, PartitionDescription,
    PartitionLoss, PartitionStatus, TopicDescription,
};
pub use error::Error;
pub use group::{Assigned, Committer, GroupConfig, GroupConsumer, RebalanceListener, Revoked, Subscription};
pub use groups::{GroupDescription, GroupKind, GroupMember, ListedGroup, OffsetToCommit, PartitionLag};
pub use isolation::IsolationLevel;
pub use millpond_log::batch::{Header, TimestampType};
pub use millpond_log::codec::Codec;
pub use millpond_log::{BrokerId, ErrorCode, LeaderEpoch, Offset, TimestampMs, TopicId};
pub use producer::{Acks, Delivery, Producer, ProducerConfig, murmur2};
pub use record::{CommitOffset, ConsumerRecord, ProducerRecord, RecordMetadata, TopicPartition};
pub use transactional::{OffsetsOf, TransactionalConfig, TransactionalProducer};
pub use transactions::{HangingTransaction, OpenIn, OpenTransaction, TransactionDescription, TransactionPartition};
pub use worker::{Worker, WorkerConfig, WorkerError};
