//! ListGroups: the groups that this broker coordinates. Clients ask every broker.

use super::super::wire::{requests, responses};
use crate::Broker;
use millpond_core::groups::{GroupState, Listed};
use millpond_log::ErrorCode;

requests! {
    /// Which groups; all, where a list is empty.
    ListGroupsRequest {
        states: Vec<String> => 4..,
        kinds: Vec<String> => 5..,
    }
}

responses! {
    /// The groups.
    ListGroupsResponse {
        throttle_time_ms: i32 => 1..,
        error_code: i16 => ..,
        groups: Vec<ListedGroup> => ..,
    }
    /// One group.
    ListedGroup {
        group: String => ..,
        protocol_type: String => ..,
        state: String => 4..,
        kind: String => 5..,
    }
}

/// Lists the groups of this broker that are asked for, by name.
pub(in crate::front::kafka) async fn list(broker: &Broker, request: ListGroupsRequest) -> ListGroupsResponse {
    match broker.counted("ListGroups", broker.list_groups_here().await) {
        Ok(groups) => ListGroupsResponse { groups: chosen(&request, &groups.found), ..Default::default() },
        Err(error) => ListGroupsResponse { error_code: told(error.code).kafka(), ..Default::default() },
    }
}

/// A shard that moved while it was asked: clients come back for what is not available, and take the other code for a fault.
fn told(code: ErrorCode) -> ErrorCode {
    if code == ErrorCode::NotCoordinator { ErrorCode::CoordinatorNotAvailable } else { code }
}

fn chosen(request: &ListGroupsRequest, groups: &[Listed]) -> Vec<ListedGroup> {
    let listed = |group: &Listed| ListedGroup {
        group: group.group.to_string(),
        protocol_type: group.protocol_type.clone(),
        state: state(group.state).to_owned(),
        kind: if group.consumer { "consumer" } else { "classic" }.to_owned(),
    };
    // Kafka compares without regard to case; a word that it does not know chooses nothing.
    let among = |words: &[String], word: &str| {
        words.is_empty() || words.iter().any(|known| known.trim().eq_ignore_ascii_case(word))
    };
    let chosen = |group: &ListedGroup| among(&request.states, &group.state) && among(&request.kinds, &group.kind);
    groups.iter().map(listed).filter(chosen).collect()
}

/// Kafka's word.
pub(super) fn state(state: GroupState) -> &'static str {
    match state {
        GroupState::Empty => "Empty",
        GroupState::Assigning => "Assigning",
        GroupState::Reconciling => "Reconciling",
        GroupState::Stable => "Stable",
        GroupState::PreparingRebalance => "PreparingRebalance",
        GroupState::CompletingRebalance => "CompletingRebalance",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_moves_is_worth_another_try() {
        assert_eq!(told(ErrorCode::NotCoordinator), ErrorCode::CoordinatorNotAvailable);
        assert_eq!(told(ErrorCode::CoordinatorLoadInProgress), ErrorCode::CoordinatorLoadInProgress);
    }

    #[test]
    fn groups_are_chosen_by_state_and_by_kind() {
        let group = |name: &str, state, consumer| Listed {
            group: name.into(),
            state,
            consumer,
            protocol_type: "consumer".to_owned(),
        };
        let groups = [
            group("a", GroupState::Stable, true),
            group("b", GroupState::Empty, false),
            group("c", GroupState::PreparingRebalance, false),
        ];
        let check = |states: &[&str], kinds: &[&str], expected: &[&str]| {
            let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
            let request = ListGroupsRequest { states: words(states), kinds: words(kinds) };
            let found: Vec<String> = chosen(&request, &groups).into_iter().map(|group| group.group).collect();
            assert_eq!(found, expected, "{states:?} {kinds:?}");
        };
        check(&[], &[], &["a", "b", "c"]);
        check(&["stable", "PREPARINGREBALANCE"], &[], &["a", "c"]);
        check(&[], &["Consumer"], &["a"]);
        check(&["Empty"], &["classic"], &["b"]);
        check(&["Empty"], &["consumer"], &[]);
        check(&["Dead"], &[], &[]);
        check(&[], &["share"], &[]);
    }
}
