//! The short list of errors a client of the log can meet, by Kafka's names and numbers. Both doors and the SDK share it.

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $retriable:literal;)*) => {
        /// What went wrong, in Kafka's vocabulary. The message beside it says what to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorCode { $($(#[$doc])* $variant,)* }

        impl ErrorCode {
            /// Every code, in order of number.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$variant,)*];

            /// Kafka's number on the wire.
            #[must_use]
            pub fn kafka(self) -> i16 { match self { $(ErrorCode::$variant => $code,)* } }

            /// Kafka's name, such as `OFFSET_OUT_OF_RANGE`; the `reason` of the gRPC `ErrorInfo`.
            #[must_use]
            pub fn name(self) -> &'static str { match self { $(ErrorCode::$variant => $name,)* } }

            /// Whether the same request may succeed later, unchanged.
            #[must_use]
            pub fn retriable(self) -> bool { match self { $(ErrorCode::$variant => $retriable,)* } }

            /// The code of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<ErrorCode> {
                ErrorCode::ALL.iter().copied().find(|code| code.name() == name)
            }
        }
    };
}

codes! {
    /// A fault of the server itself.
    UnknownServerError = -1, "UNKNOWN_SERVER_ERROR", false;
    /// The offset is outside `[log start, end]`; proven by rule F3.
    OffsetOutOfRange = 1, "OFFSET_OUT_OF_RANGE", false;
    /// Checksum mismatch in what the client sent.
    CorruptMessage = 2, "CORRUPT_MESSAGE", true;
    /// No such topic or partition.
    UnknownTopicOrPartition = 3, "UNKNOWN_TOPIC_OR_PARTITION", true;
    /// The partition has no leader yet.
    LeaderNotAvailable = 5, "LEADER_NOT_AVAILABLE", true;
    /// This broker does not lead the partition.
    NotLeaderOrFollower = 6, "NOT_LEADER_OR_FOLLOWER", true;
    /// The deadline passed before the commit; it may have been written.
    RequestTimedOut = 7, "REQUEST_TIMED_OUT", true;
    /// The batch is larger than `max.message.bytes`.
    MessageTooLarge = 10, "MESSAGE_TOO_LARGE", false;
    /// The metadata beside a committed offset is too long.
    OffsetMetadataTooLarge = 12, "OFFSET_METADATA_TOO_LARGE", false;
    /// The state of this group or transaction is being read.
    CoordinatorLoadInProgress = 14, "COORDINATOR_LOAD_IN_PROGRESS", true;
    /// Nobody keeps the state of this group or transaction now.
    CoordinatorNotAvailable = 15, "COORDINATOR_NOT_AVAILABLE", true;
    /// Another broker keeps the state of this group or transaction.
    NotCoordinator = 16, "NOT_COORDINATOR", true;
    /// The topic name breaks the name rules.
    InvalidTopic = 17, "INVALID_TOPIC_EXCEPTION", false;
    /// Fewer in-sync replicas than `min.insync.replicas`, or no room in the WAL.
    NotEnoughReplicas = 19, "NOT_ENOUGH_REPLICAS", true;
    /// Acks other than 0, 1 and -1.
    InvalidRequiredAcks = 21, "INVALID_REQUIRED_ACKS", false;
    /// The generation is not the group's.
    IllegalGeneration = 22, "ILLEGAL_GENERATION", false;
    /// The member and its group have no protocol in common.
    InconsistentGroupProtocol = 23, "INCONSISTENT_GROUP_PROTOCOL", false;
    /// The group's name is empty.
    InvalidGroupId = 24, "INVALID_GROUP_ID", false;
    /// The group has no such member.
    UnknownMemberId = 25, "UNKNOWN_MEMBER_ID", false;
    /// A session timeout outside what groups accept.
    InvalidSessionTimeout = 26, "INVALID_SESSION_TIMEOUT", false;
    /// The group is being rebalanced: join again.
    RebalanceInProgress = 27, "REBALANCE_IN_PROGRESS", false;
    /// The client may not do this.
    TopicAuthorizationFailed = 29, "TOPIC_AUTHORIZATION_FAILED", false;
    /// A timestamp outside what the topic accepts.
    InvalidTimestamp = 32, "INVALID_TIMESTAMP", false;
    /// Unsupported version of an API.
    UnsupportedVersion = 35, "UNSUPPORTED_VERSION", false;
    /// The topic exists already.
    TopicAlreadyExists = 36, "TOPIC_ALREADY_EXISTS", false;
    /// A partition count the topic cannot have.
    InvalidPartitions = 37, "INVALID_PARTITIONS", false;
    /// A replication factor the cluster cannot give.
    InvalidReplicationFactor = 38, "INVALID_REPLICATION_FACTOR", false;
    /// Replicas that a partition cannot have.
    InvalidReplicaAssignment = 39, "INVALID_REPLICA_ASSIGNMENT", false;
    /// A setting with an unknown name or a bad value.
    InvalidConfig = 40, "INVALID_CONFIG", false;
    /// Another broker decides this.
    NotController = 41, "NOT_CONTROLLER", true;
    /// A request that contradicts itself.
    InvalidRequest = 42, "INVALID_REQUEST", false;
    /// The record format predates batch v2.
    UnsupportedForMessageFormat = 43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", false;
    /// The topic's settings forbid it.
    PolicyViolation = 44, "POLICY_VIOLATION", false;
    /// A gap in a producer's sequence numbers.
    OutOfOrderSequenceNumber = 45, "OUT_OF_ORDER_SEQUENCE_NUMBER", false;
    /// A retry older than the remembered batches.
    DuplicateSequenceNumber = 46, "DUPLICATE_SEQUENCE_NUMBER", false;
    /// A newer instance of this producer exists.
    InvalidProducerEpoch = 47, "INVALID_PRODUCER_EPOCH", false;
    /// The transaction is not in a state for that.
    InvalidTxnState = 48, "INVALID_TXN_STATE", false;
    /// The producer id is not the one that this transactional id stands for.
    InvalidProducerIdMapping = 49, "INVALID_PRODUCER_ID_MAPPING", false;
    /// A transaction timeout that is not above 0, or above what the cluster allows.
    InvalidTransactionTimeout = 50, "INVALID_TRANSACTION_TIMEOUT", false;
    /// The transaction before is still being ended.
    ConcurrentTransactions = 51, "CONCURRENT_TRANSACTIONS", true;
    /// A marker of a coordinator that is one no more.
    TransactionCoordinatorFenced = 52, "TRANSACTION_COORDINATOR_FENCED", false;
    /// Something else in the same request was refused, and nothing of it was done.
    OperationNotAttempted = 55, "OPERATION_NOT_ATTEMPTED", false;
    /// Stored data cannot be read or written now.
    KafkaStorageError = 56, "KAFKA_STORAGE_ERROR", true;
    /// The producer id is unknown here.
    UnknownProducerId = 59, "UNKNOWN_PRODUCER_ID", true;
    /// The group has members.
    NonEmptyGroup = 68, "NON_EMPTY_GROUP", false;
    /// No group has this name.
    GroupIdNotFound = 69, "GROUP_ID_NOT_FOUND", false;
    /// The request's leader epoch is older than the leader's.
    FencedLeaderEpoch = 74, "FENCED_LEADER_EPOCH", true;
    /// The request's leader epoch is newer than the leader's.
    UnknownLeaderEpoch = 75, "UNKNOWN_LEADER_EPOCH", true;
    /// A codec this version of the API does not carry.
    UnsupportedCompressionType = 76, "UNSUPPORTED_COMPRESSION_TYPE", false;
    /// The leader cannot prove the answer yet (rules R11, F3).
    OffsetNotAvailable = 78, "OFFSET_NOT_AVAILABLE", true;
    /// Join again, with the member id of the answer.
    MemberIdRequired = 79, "MEMBER_ID_REQUIRED", false;
    /// The preferred replica cannot lead now.
    PreferredLeaderNotAvailable = 80, "PREFERRED_LEADER_NOT_AVAILABLE", true;
    /// The group has as many members as a group may have.
    GroupMaxSizeReached = 81, "GROUP_MAX_SIZE_REACHED", false;
    /// Another member has taken this static identity.
    FencedInstanceId = 82, "FENCED_INSTANCE_ID", false;
    /// No replica that may lead is alive.
    EligibleLeadersNotAvailable = 83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", true;
    /// Whoever is to lead leads.
    ElectionNotNeeded = 84, "ELECTION_NOT_NEEDED", false;
    /// The partition is not being moved.
    NoReassignmentInProgress = 85, "NO_REASSIGNMENT_IN_PROGRESS", false;
    /// Members of the group are subscribed to the topic.
    GroupSubscribedToTopic = 86, "GROUP_SUBSCRIBED_TO_TOPIC", false;
    /// The batch or one of its records is malformed.
    InvalidRecord = 87, "INVALID_RECORD", false;
    /// An open transaction has offsets for the partition.
    UnstableOffsetCommit = 88, "UNSTABLE_OFFSET_COMMIT", true;
    /// Too much is in flight; wait as long as the answer says.
    ThrottlingQuotaExceeded = 89, "THROTTLING_QUOTA_EXCEEDED", true;
    /// A newer instance has taken the transactional id over.
    ProducerFenced = 90, "PRODUCER_FENCED", false;
    /// No topic has this id.
    UnknownTopicId = 100, "UNKNOWN_TOPIC_ID", true;
    /// Nothing is known of this transactional id.
    TransactionalIdNotFound = 105, "TRANSACTIONAL_ID_NOT_FOUND", false;
    /// The member is not in this epoch: it gives up its partitions and joins again.
    FencedMemberEpoch = 110, "FENCED_MEMBER_EPOCH", false;
    /// The static identity is held by a member that has not left.
    UnreleasedInstanceId = 111, "UNRELEASED_INSTANCE_ID", false;
    /// No assignor has this name.
    UnsupportedAssignor = 112, "UNSUPPORTED_ASSIGNOR", false;
    /// The member has another epoch by now: heartbeat, then try again.
    StaleMemberEpoch = 113, "STALE_MEMBER_EPOCH", false;
    /// The transaction can only be aborted; what comes after it is not concerned.
    TransactionAbortable = 120, "TRANSACTION_ABORTABLE", false;
    /// The regular expression cannot be read.
    InvalidRegularExpression = 128, "INVALID_REGULAR_EXPRESSION", false;
}
