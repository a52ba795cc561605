//! Between the messages of `millpond.v1` and the types of `log`. One place, so that client and server cannot differ.

use crate::v1;
use millpond_log::{ErrorCode, TopicId};
use tonic::Code;

impl v1::TopicRef {
    /// A topic by its name.
    pub fn name(name: impl Into<String>) -> v1::TopicRef {
        v1::TopicRef { topic: Some(v1::topic_ref::Topic::Name(name.into())) }
    }

    /// A topic by its id.
    #[must_use]
    pub fn id(id: TopicId) -> v1::TopicRef {
        v1::TopicRef { topic: Some(v1::topic_ref::Topic::Id(id.to_string())) }
    }
}

/// The gRPC status code that goes with an error.
#[must_use]
pub fn grpc_code(code: ErrorCode) -> Code {
    use ErrorCode as E;
    match code {
        E::UnknownServerError => Code::Internal,
        E::OffsetOutOfRange => Code::OutOfRange,
        E::UnknownTopicOrPartition
        | E::UnknownTopicId
        | E::GroupIdNotFound
        | E::UnknownMemberId
        | E::TransactionalIdNotFound => Code::NotFound,
        E::LeaderNotAvailable
        | E::NotLeaderOrFollower
        | E::NotController
        | E::CoordinatorLoadInProgress
        | E::CoordinatorNotAvailable
        | E::NotCoordinator
        | E::UnstableOffsetCommit
        | E::NotEnoughReplicas
        | E::KafkaStorageError
        | E::OffsetNotAvailable
        | E::PreferredLeaderNotAvailable
        | E::EligibleLeadersNotAvailable => Code::Unavailable,
        E::RequestTimedOut => Code::DeadlineExceeded,
        // What was begun has to end first, or be given up.
        E::ConcurrentTransactions | E::TransactionAbortable | E::OperationNotAttempted => Code::Aborted,
        E::TopicAuthorizationFailed => Code::PermissionDenied,
        E::TopicAlreadyExists => Code::AlreadyExists,
        E::UnsupportedVersion => Code::Unimplemented,
        E::ThrottlingQuotaExceeded | E::GroupMaxSizeReached => Code::ResourceExhausted,
        E::OutOfOrderSequenceNumber
        | E::DuplicateSequenceNumber
        | E::InvalidProducerEpoch
        | E::UnknownProducerId
        | E::InvalidTxnState
        | E::InvalidProducerIdMapping
        | E::ProducerFenced
        | E::TransactionCoordinatorFenced
        | E::FencedLeaderEpoch
        | E::UnknownLeaderEpoch
        | E::IllegalGeneration
        | E::RebalanceInProgress
        | E::NonEmptyGroup
        | E::MemberIdRequired
        | E::FencedInstanceId
        | E::GroupSubscribedToTopic
        | E::PolicyViolation
        | E::ElectionNotNeeded
        | E::NoReassignmentInProgress
        | E::FencedMemberEpoch
        | E::UnreleasedInstanceId
        | E::StaleMemberEpoch => Code::FailedPrecondition,
        E::CorruptMessage
        | E::MessageTooLarge
        | E::InvalidTopic
        | E::InvalidRequiredAcks
        | E::InvalidTimestamp
        | E::InvalidTransactionTimeout
        | E::InvalidPartitions
        | E::InvalidReplicationFactor
        | E::InvalidReplicaAssignment
        | E::InvalidConfig
        | E::InvalidRequest
        | E::UnsupportedForMessageFormat
        | E::UnsupportedCompressionType
        | E::InvalidRecord
        | E::OffsetMetadataTooLarge
        | E::InconsistentGroupProtocol
        | E::InvalidGroupId
        | E::InvalidSessionTimeout
        | E::UnsupportedAssignor
        | E::InvalidRegularExpression => Code::InvalidArgument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_status_that_is_one() {
        for code in ErrorCode::ALL {
            assert_ne!(grpc_code(*code), Code::Ok, "{code:?}");
        }
    }
}
