//! Heartbeat and LeaveGroup: classic members live, and leave.

use super::super::wire::{requests, responses};
use super::{ask, code, named};
use crate::Broker;
use millpond_core::groups::{self, Answer};
use millpond_log::ErrorCode;

/// First version of LeaveGroup with a list of members (KIP-345).
const MEMBERS_SINCE: i16 = 3;

requests! {
    /// A member lives.
    HeartbeatRequest {
        group: String => ..,
        generation: i32 => ..,
        member: String => ..,
        instance: Option<String> => 3..,
    }
    /// Members leave.
    LeaveGroupRequest {
        group: String => ..,
        member: String => ..=2,
        members: Vec<LeavingMember> => 3..,
    }
    /// A member, by its id or by its static identity.
    LeavingMember {
        member: String => ..,
        instance: Option<String> => ..,
        reason: Option<String> => 5..,
    }
}

responses! {
    /// Whether it is to join again.
    HeartbeatResponse {
        throttle_time_ms: i32 => 1..,
        error_code: i16 => ..,
    }
    /// Who left.
    LeaveGroupResponse {
        throttle_time_ms: i32 => 1..,
        error_code: i16 => ..,
        members: Vec<LeftMember> => 3..,
    }
    /// One of them.
    LeftMember {
        member: String => ..,
        instance: Option<String> => ..,
        error_code: i16 => ..,
    }
}

/// Renews the member's session.
pub(in crate::front::kafka) async fn heartbeat(broker: &Broker, request: HeartbeatRequest) -> HeartbeatResponse {
    let HeartbeatRequest { group, generation, member, instance } = request;
    let read = |answer| match answer {
        Answer::ClassicHeartbeat(lives) => Some(lives),
        _ => None,
    };
    let lives = match named(&group) {
        Ok(group) => {
            let (member, name) = (member.as_str().into(), group.into());
            let who = groups::ClassicHeartbeat { group: name, member, instance, generation };
            ask(broker, "Heartbeat", group, groups::Request::ClassicHeartbeat(who), read).await
        }
        Err(code) => Err(code),
    };
    HeartbeatResponse { error_code: code(&told(lives)), ..Default::default() }
}

/// As Kafka's coordinator has it: who beats while the group is being read back lives. Sessions begin anew when it has been.
fn told(lives: Result<(), ErrorCode>) -> Result<(), ErrorCode> {
    if lives == Err(ErrorCode::CoordinatorLoadInProgress) { Ok(()) } else { lives }
}

/// Takes members out of their group, each by itself.
pub(in crate::front::kafka) async fn leave(
    broker: &Broker,
    version: i16,
    request: LeaveGroupRequest,
) -> LeaveGroupResponse {
    let LeaveGroupRequest { group, member, members } = request;
    let members = match version >= MEMBERS_SINCE {
        true => members,
        false => vec![LeavingMember { member, ..Default::default() }],
    };
    let left = match named(&group) {
        Ok(group) => take_out(broker, group, &members).await,
        Err(code) => Err(code),
    };
    left_response(version, members, left)
}

async fn take_out(
    broker: &Broker,
    group: &str,
    members: &[LeavingMember],
) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
    let read = |answer| match answer {
        Answer::Leave(left) => Some(left),
        _ => None,
    };
    let member = |member: &LeavingMember| {
        tracing::debug!(group, member = member.member, reason = member.reason, "a member leaves");
        (member.member.as_str().into(), member.instance.clone())
    };
    let leave = groups::Leave { group: group.into(), members: members.iter().map(member).collect() };
    ask(broker, "LeaveGroup", group, groups::Request::Leave(leave), read).await
}

fn left_response(
    version: i16,
    members: Vec<LeavingMember>,
    left: Result<Vec<Result<(), ErrorCode>>, ErrorCode>,
) -> LeaveGroupResponse {
    // A group that is not there has none of these members: that is wrong with each, not with the request.
    let left = match left {
        Err(ErrorCode::UnknownMemberId) => Ok(vec![Err(ErrorCode::UnknownMemberId); members.len()]),
        left => left,
    };
    let error_code = code(&left);
    let left = left.unwrap_or_default();
    if version < MEMBERS_SINCE {
        // One member, whose error is the answer's.
        let error_code = left.first().map_or(error_code, code);
        return LeaveGroupResponse { error_code, ..Default::default() };
    }
    let member = |(LeavingMember { member, instance, .. }, left): (LeavingMember, &Result<(), ErrorCode>)| LeftMember {
        member,
        instance,
        error_code: code(left),
    };
    LeaveGroupResponse {
        error_code,
        members: members.into_iter().zip(&left).map(member).collect(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_of_a_group_that_is_being_read_back_lives() {
        assert_eq!(told(Err(ErrorCode::CoordinatorLoadInProgress)), Ok(()));
        for lives in [Ok(()), Err(ErrorCode::NotCoordinator), Err(ErrorCode::RebalanceInProgress)] {
            assert_eq!(told(lives), lives);
        }
    }

    #[test]
    fn the_error_of_a_single_member_is_that_of_the_answer() {
        let member = || LeavingMember { member: "m".to_owned(), ..Default::default() };
        let unknown = || Ok(vec![Err(ErrorCode::UnknownMemberId)]);
        let answer = left_response(2, vec![member()], unknown());
        assert_eq!((answer.error_code, answer.members.len()), (25, 0));
        let answer = left_response(3, vec![member()], unknown());
        assert_eq!((answer.error_code, answer.members[0].error_code), (0, 25));
        let answer = left_response(3, vec![member(), member()], Err(ErrorCode::UnknownMemberId));
        let told: Vec<i16> = answer.members.iter().map(|member| member.error_code).collect();
        assert_eq!((answer.error_code, told), (0, vec![25, 25]));
        assert_eq!(left_response(2, vec![member()], Err(ErrorCode::UnknownMemberId)).error_code, 25);
        for version in [2, 3] {
            let answer = left_response(version, vec![member()], Err(ErrorCode::NotCoordinator));
            assert_eq!((answer.error_code, answer.members.len()), (16, 0));
            assert_eq!(left_response(version, vec![member()], Ok(vec![Ok(())])).error_code, 0);
        }
    }
}
