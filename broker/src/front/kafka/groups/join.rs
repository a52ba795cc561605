//! JoinGroup and SyncGroup: classic members gather, and fetch what their leader gave them. Both may wait for others.

use super::super::wire::{requests, responses};
use super::{ask, code, named};
use crate::Broker;
use bytes::Bytes;
use millpond_core::groups::{self, Answer, ClassicHeartbeat, JoinRefused, Joined, Synced};
use millpond_core::records::groups::{Client, Protocol};
use millpond_log::ErrorCode;
use std::sync::Arc;

/// First version in which a member without an id is told to come back with one (KIP-394).
const KNOWN_ID_SINCE: i16 = 4;

/// First version in which no protocol may be null instead of empty.
const NULL_PROTOCOL_SINCE: i16 = 7;

/// First version in which a static leader may be told to skip the assignment (KIP-814).
const SKIP_SINCE: i16 = 9;

/// First version of SyncGroup that has to name the protocol (KIP-559).
const PROTOCOL_SINCE: i16 = 5;

const NO_GENERATION: i32 = -1;

requests! {
    /// A member joins.
    JoinGroupRequest {
        group: String => ..,
        session_timeout_ms: i32 => ..,
        rebalance_timeout_ms: i32 = -1 => 1..,
        member: String => ..,
        instance: Option<String> => 5..,
        protocol_type: String => ..,
        protocols: Vec<JoinProtocol> => ..,
        reason: Option<String> => 8..,
    }
    /// An assignor, and what it is told.
    JoinProtocol {
        name: String => ..,
        metadata: Option<Bytes> => ..,
    }
    /// A member fetches its assignment; the leader brings all of them.
    SyncGroupRequest {
        group: String => ..,
        generation: i32 => ..,
        member: String => ..,
        instance: Option<String> => 3..,
        protocol_type: Option<String> => 5..,
        protocol: Option<String> => 5..,
        assignments: Vec<SyncAssignment> => ..,
    }
    /// What the leader gives one member.
    SyncAssignment {
        member: String => ..,
        assignment: Option<Bytes> => ..,
    }
}

responses! {
    /// The generation that the member is part of, or why it is not.
    JoinGroupResponse {
        throttle_time_ms: i32 => 2..,
        error_code: i16 => ..,
        generation: i32 = NO_GENERATION => ..,
        protocol_type: Option<String> => 7..,
        protocol: Option<String> => ..,
        leader: String => ..,
        skip_assignment: bool => 9..,
        member: String => ..,
        members: Vec<JoinedMember> => ..,
    }
    /// A member, for the leader.
    JoinedMember {
        member: String => ..,
        instance: Option<String> => 5..,
        metadata: Bytes => ..,
    }
    /// What the member owns.
    SyncGroupResponse {
        throttle_time_ms: i32 => 1..,
        error_code: i16 => ..,
        protocol_type: Option<String> => 5..,
        protocol: Option<String> => 5..,
        assignment: Bytes => ..,
    }
}

/// Joins, and waits until all have joined.
pub(in crate::front::kafka) async fn join(
    broker: &Broker,
    version: i16,
    client: Client,
    request: JoinGroupRequest,
) -> JoinGroupResponse {
    tracing::debug!(group = request.group, reason = request.reason, "a member joins");
    let (group, said) = (request.group.clone(), Arc::<str>::from(request.member.as_str()));
    let read = |answer| match answer {
        Answer::Join(joined) => Some(Ok(joined)),
        _ => None,
    };
    let joined = match named(&group) {
        Ok(group) => {
            let joining = groups::Request::Join(to_join(version, client, request));
            ask(broker, "JoinGroup", group, joining, read).await
        }
        Err(code) => Err(code),
    };
    joined_response(version, joined.unwrap_or_else(|code| Err(JoinRefused { code, member: said })))
}

fn to_join(version: i16, client: Client, request: JoinGroupRequest) -> groups::Join {
    let JoinGroupRequest { group, session_timeout_ms, rebalance_timeout_ms, member, instance, .. } = request;
    let session_timeout_ms = u32::try_from(session_timeout_ms).unwrap_or(0);
    let fresh = format!("{}-{}", instance.as_deref().unwrap_or(&client.id), uuid::Uuid::new_v4());
    let protocol = |JoinProtocol { name, metadata }| Protocol { name, metadata: metadata.unwrap_or_default().into() };
    groups::Join {
        group: group.as_str().into(),
        member: member.as_str().into(),
        fresh: fresh.as_str().into(),
        instance,
        client,
        session_timeout_ms,
        // Version 0 has one timeout for both.
        rebalance_timeout_ms: u32::try_from(rebalance_timeout_ms).unwrap_or(session_timeout_ms),
        protocol_type: request.protocol_type,
        protocols: request.protocols.into_iter().map(protocol).collect(),
        known_id_required: version >= KNOWN_ID_SINCE,
        may_skip_assignment: version >= SKIP_SINCE,
    }
}

fn joined_response(version: i16, joined: Result<Joined, JoinRefused>) -> JoinGroupResponse {
    let no_protocol = (version < NULL_PROTOCOL_SINCE).then(String::new);
    match joined {
        Ok(joined) => JoinGroupResponse {
            generation: joined.generation,
            protocol_type: joined.protocol_type,
            protocol: joined.protocol.or(no_protocol),
            leader: joined.leader.as_deref().unwrap_or_default().to_owned(),
            skip_assignment: joined.skip_assignment,
            member: joined.member.to_string(),
            members: joined.members.into_iter().map(joined_member).collect(),
            ..Default::default()
        },
        Err(JoinRefused { code, member }) => JoinGroupResponse {
            error_code: code.kafka(),
            protocol: no_protocol,
            member: member.to_string(),
            ..Default::default()
        },
    }
}

fn joined_member(member: groups::JoinedMember) -> JoinedMember {
    let groups::JoinedMember { id, instance, metadata } = member;
    JoinedMember { member: id.to_string(), instance, metadata: metadata.into() }
}

/// Fetches what the member was given, and waits until the leader has brought it.
pub(in crate::front::kafka) async fn sync(
    broker: &Broker,
    version: i16,
    request: SyncGroupRequest,
) -> SyncGroupResponse {
    let read = |answer| match answer {
        Answer::Sync(synced) => Some(synced),
        _ => None,
    };
    let synced = match to_sync(version, request) {
        Ok(sync) => {
            let group = Arc::clone(&sync.who.group);
            ask(broker, "SyncGroup", &group, groups::Request::Sync(sync), read).await
        }
        Err(code) => Err(code),
    };
    let synced = synced.map_err(told);
    let error_code = code(&synced);
    match synced {
        Ok(Synced { protocol_type, protocol, assignment }) => {
            SyncGroupResponse { protocol_type, protocol, assignment: assignment.into(), ..Default::default() }
        }
        Err(_) => SyncGroupResponse { error_code, ..Default::default() },
    }
}

/// As Kafka's coordinator has it: clients know no group that is being read back between joining and this, and one that rebalances they do.
fn told(code: ErrorCode) -> ErrorCode {
    if code == ErrorCode::CoordinatorLoadInProgress { ErrorCode::RebalanceInProgress } else { code }
}

fn to_sync(version: i16, request: SyncGroupRequest) -> Result<groups::SyncGroup, ErrorCode> {
    let SyncGroupRequest { group, generation, member, instance, protocol_type, protocol, assignments } = request;
    named(&group)?;
    if version >= PROTOCOL_SINCE && (protocol_type.is_none() || protocol.is_none()) {
        return Err(ErrorCode::InconsistentGroupProtocol);
    }
    let assignment = |SyncAssignment { member, assignment }| {
        let given: Vec<u8> = assignment.unwrap_or_default().into();
        (member.as_str().into(), given)
    };
    let (group, member) = (group.as_str().into(), member.as_str().into());
    Ok(groups::SyncGroup {
        who: ClassicHeartbeat { group, member, instance, generation },
        protocol_type,
        protocol,
        assignments: assignments.into_iter().map(assignment).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(instance: Option<&str>, rebalance_timeout_ms: i32) -> JoinGroupRequest {
        JoinGroupRequest {
            group: "g".to_owned(),
            session_timeout_ms: 7_000,
            rebalance_timeout_ms,
            instance: instance.map(str::to_owned),
            ..Default::default()
        }
    }

    fn client() -> Client {
        Client { id: "app".to_owned(), host: "10.0.0.1".to_owned() }
    }

    #[test]
    fn a_fresh_id_names_its_client_and_is_used_once() {
        let of = |instance| to_join(9, client(), asked(instance, 1)).fresh;
        assert!(of(None).starts_with("app-") && of(Some("static")).starts_with("static-"));
        assert_ne!(of(None), of(None));
    }

    #[test]
    fn what_a_version_can_say_decides_what_is_asked_of_members() {
        for version in 0..=9 {
            let join = to_join(version, client(), asked(None, if version == 0 { -1 } else { 9_000 }));
            assert_eq!(join.rebalance_timeout_ms, if version == 0 { 7_000 } else { 9_000 }, "version {version}");
            assert_eq!((join.known_id_required, join.may_skip_assignment), (version >= 4, version >= 9));
            assert_eq!(join.client, client());
        }
        let silent = JoinGroupRequest { session_timeout_ms: -1, ..asked(None, -1) };
        assert_eq!(to_join(9, client(), silent).session_timeout_ms, 0, "which no group accepts");
    }

    #[test]
    fn a_refused_member_is_told_its_id_and_no_protocol() {
        for version in 0..=9 {
            let refused = JoinRefused { code: ErrorCode::MemberIdRequired, member: "app-1".into() };
            let answer = joined_response(version, Err(refused));
            assert_eq!((answer.error_code, answer.generation, answer.member.as_str()), (79, -1, "app-1"));
            assert_eq!(answer.protocol.as_deref(), if version < 7 { Some("") } else { None }, "version {version}");
        }
    }

    #[test]
    fn a_sync_at_a_group_that_is_being_read_back_has_the_member_join_again() {
        assert_eq!(told(ErrorCode::CoordinatorLoadInProgress), ErrorCode::RebalanceInProgress);
        for code in [ErrorCode::NotCoordinator, ErrorCode::UnknownMemberId, ErrorCode::IllegalGeneration] {
            assert_eq!(told(code), code);
        }
    }

    #[test]
    fn a_sync_that_has_to_name_its_protocol_and_does_not_is_refused() {
        let sync = |version, protocol: Option<&str>| {
            let (protocol_type, protocol) = (protocol.map(str::to_owned), protocol.map(str::to_owned));
            let request = SyncGroupRequest { group: "g".to_owned(), protocol_type, protocol, ..Default::default() };
            to_sync(version, request).map(|_| ())
        };
        assert_eq!(sync(4, None), Ok(()));
        assert_eq!(sync(5, None), Err(ErrorCode::InconsistentGroupProtocol));
        assert_eq!(sync(5, Some("range")), Ok(()));
        assert_eq!(to_sync(4, SyncGroupRequest::default()).map(|_| ()), Err(ErrorCode::InvalidGroupId));
    }
}
