//! Consumer groups at the Kafka door, over a raw socket and with real clients. Case numbers are the catalogue's.

mod clients;
mod members;
mod offsets;

use super::wire::{Connection, Served, name, text};
use bytes::Bytes;
use kafka_protocol::messages as kafka;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::protocol::StrBytes;

const NOT_COORDINATOR: i16 = 16;
const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const ILLEGAL_GENERATION: i16 = 22;
const INVALID_GROUP_ID: i16 = 24;
const UNKNOWN_MEMBER_ID: i16 = 25;
const REBALANCE_IN_PROGRESS: i16 = 27;
const MEMBER_ID_REQUIRED: i16 = 79;
const FENCED_INSTANCE_ID: i16 = 82;

/// Shorter sessions no group accepts.
const SESSION_MS: i32 = 6_000;

fn group(name: &str) -> kafka::GroupId {
    text(name).into()
}

/// A join, in words that versions 5 and up understand.
fn joining(of: &str, member: &str, instance: Option<&str>) -> kafka::JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata(Bytes::from_static(b"x"));
    kafka::JoinGroupRequest::default()
        .with_group_id(group(of))
        .with_session_timeout_ms(SESSION_MS)
        .with_rebalance_timeout_ms(300_000)
        .with_member_id(text(member))
        .with_group_instance_id(instance.map(text))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

fn beating(of: &str, member: &str, instance: Option<&str>, generation: i32) -> kafka::HeartbeatRequest {
    kafka::HeartbeatRequest::default()
        .with_group_id(group(of))
        .with_member_id(text(member))
        .with_group_instance_id(instance.map(text))
        .with_generation_id(generation)
}

/// A member that has a connection of its own, as clients do.
struct Member {
    connection: Connection,
    group: &'static str,
    instance: Option<&'static str>,
    id: String,
    generation: i32,
    leads: bool,
    members: Vec<String>,
}

impl Member {
    async fn new(served: &Served, group: &'static str, instance: Option<&'static str>) -> Member {
        let connection = served.connect().await;
        Member { connection, group, instance, id: String::new(), generation: -1, leads: false, members: Vec::new() }
    }

    /// Joins until it is part of a generation.
    async fn join(&mut self) {
        loop {
            let request = joining(self.group, &self.id, self.instance);
            let joined = self.connection.call(9, &request).await;
            self.id = joined.member_id.to_string();
            if joined.error_code == MEMBER_ID_REQUIRED {
                continue;
            }
            assert_eq!(joined.error_code, 0, "{joined:?}");
            self.generation = joined.generation_id;
            self.leads = joined.leader == joined.member_id;
            self.members = joined.members.iter().map(|member| member.member_id.to_string()).collect();
            assert_eq!(self.leads, !self.members.is_empty(), "only the leader is told of all");
            return;
        }
    }

    /// Fetches what it was given. The leader gives each member its own id.
    async fn sync(&mut self) -> kafka::SyncGroupResponse {
        let given = |id: &String| {
            let bytes = Bytes::copy_from_slice(id.as_bytes());
            SyncGroupRequestAssignment::default().with_member_id(text(id)).with_assignment(bytes)
        };
        let request = kafka::SyncGroupRequest::default()
            .with_group_id(group(self.group))
            .with_generation_id(self.generation)
            .with_member_id(text(&self.id))
            .with_group_instance_id(self.instance.map(text))
            .with_protocol_type(Some(text("consumer")))
            .with_protocol_name(Some(text("range")))
            .with_assignments(self.members.iter().map(given).collect());
        self.connection.call(5, &request).await
    }

    /// Is given its own id, unless it had another when it was assigned.
    async fn settle(&mut self) {
        self.join().await;
        let synced = self.sync().await;
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, self.id.as_bytes()));
        assert_eq!(synced.protocol_name.as_deref(), Some("range"));
    }

    async fn beat(&mut self) -> i16 {
        let request = beating(self.group, &self.id, self.instance, self.generation);
        self.connection.call(4, &request).await.error_code
    }

    /// Leaves, and says what became of it.
    async fn leave(&mut self) -> i16 {
        let member = kafka::leave_group_request::MemberIdentity::default()
            .with_member_id(text(&self.id))
            .with_reason(Some(text("the test is over")));
        let request = kafka::LeaveGroupRequest::default().with_group_id(group(self.group)).with_members(vec![member]);
        let left = self.connection.call(5, &request).await;
        assert_eq!(left.error_code, 0);
        left.members[0].error_code
    }
}

/// Waits until this broker coordinates the group.
async fn coordinated(connection: &mut Connection, of: &str) -> kafka::find_coordinator_response::Coordinator {
    let request = kafka::FindCoordinatorRequest::default().with_coordinator_keys(vec![text(of)]);
    loop {
        let found = connection.call(6, &request).await.coordinators.remove(0);
        match found.error_code {
            0 => return found,
            COORDINATOR_NOT_AVAILABLE => tokio::task::yield_now().await,
            code => panic!("{code}: {found:?}"),
        }
    }
}

/// A broker that coordinates the group.
async fn serving(of: &str) -> Served {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    coordinated(&mut connection, of).await;
    // It may still be reading the shard back.
    let request = kafka::OffsetFetchRequest::default().with_group_id(group(of)).with_topics(None);
    while matches!(connection.call(7, &request).await.error_code, COORDINATOR_LOAD_IN_PROGRESS | NOT_COORDINATOR) {
        tokio::task::yield_now().await;
    }
    served
}
