//! Which records of transactions a reader sees.

use millpond_proto::v1;

/// Which records a consumer sees. Kafka's `isolation.level`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsolationLevel {
    /// All that is committed to the log.
    #[default]
    ReadUncommitted,
    /// Without records of transactions that are open or were aborted.
    ReadCommitted,
}

impl IsolationLevel {
    pub(crate) fn on_the_wire(self) -> v1::Isolation {
        match self {
            IsolationLevel::ReadUncommitted => v1::Isolation::ReadUncommitted,
            IsolationLevel::ReadCommitted => v1::Isolation::ReadCommitted,
        }
    }
}
