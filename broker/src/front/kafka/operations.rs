//! What a client may do with a topic, a group or the cluster, as a set of bits by Kafka's numbers of operations (KIP-430).
//!
//! Who reaches this door may do everything, so each set is that of all operations there are on such a thing.

/// Kafka's "nobody asked".
pub(super) const UNKNOWN: i32 = i32::MIN;

const READ: i32 = 1 << 3;
const WRITE: i32 = 1 << 4;
const CREATE: i32 = 1 << 5;
const DELETE: i32 = 1 << 6;
const ALTER: i32 = 1 << 7;
const DESCRIBE: i32 = 1 << 8;
const CLUSTER_ACTION: i32 = 1 << 9;
const DESCRIBE_CONFIGS: i32 = 1 << 10;
const ALTER_CONFIGS: i32 = 1 << 11;
const IDEMPOTENT_WRITE: i32 = 1 << 12;

pub(super) const TOPIC: i32 = READ | WRITE | CREATE | DELETE | ALTER | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS;
pub(super) const GROUP: i32 = READ | DELETE | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS;
pub(super) const CLUSTER: i32 =
    CREATE | ALTER | DESCRIBE | CLUSTER_ACTION | DESCRIBE_CONFIGS | ALTER_CONFIGS | IDEMPOTENT_WRITE;

/// The set, if the client asked for it.
pub(super) fn told(asked: bool, operations: i32) -> i32 {
    if asked { operations } else { UNKNOWN }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that Kafka 4.3 answers where it has no authorizer.
    #[test]
    fn all_operations_are_told_to_who_asks() {
        assert_eq!([TOPIC, GROUP, CLUSTER].map(|all| told(true, all)), [3576, 3400, 8096]);
        assert_eq!(told(false, TOPIC), i32::MIN);
    }
}
