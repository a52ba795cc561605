//! Rule E1a: a broker whose port refuses connections has no process. When another broker sees the same, its session is ended, and
//! elections need not wait for its lease.

use super::caller::{CONNECT_PATIENCE, connect};
use super::{Link, Peer, Shared};
use millpond_log::{BrokerId, Incarnation};
use millpond_metadata::store::Outcome as Ended;
use millpond_proto::internal::ReachRequest;
use millpond_proto::internal::reach_response::Outcome;
use std::io;
use std::sync::Arc;
use tokio::time::timeout;

/// Asks another live broker about `suspect`, whose port has refused a connection, and ends its session if that one was refused too,
/// or if there is nobody else.
pub(super) async fn ask(shared: Arc<Shared>, suspect: Peer) {
    let others: Vec<Link> = {
        let known = shared.known();
        known
            .values()
            .filter(|link| link.peer.rid.broker != suspect.rid.broker && link.way.is_some())
            .cloned()
            .collect()
    };
    let broker = suspect.rid.broker;
    let mut second = None;
    for other in &others {
        match reach_through(&shared, other, &suspect).await {
            Outcome::Refused => {
                second = Some(other.peer.rid.broker);
                break;
            }
            // A way that somebody else has is a fault of ours, not of that broker.
            Outcome::Reached => return,
            Outcome::Unspecified => {}
        }
    }
    if second.is_none() && !others.is_empty() {
        tracing::debug!(%broker, "nobody else can say whether the broker is gone");
        return;
    }
    let Some(session) = shared.session.get() else { return };
    match shared.store.end_session(&session, broker, suspect.inc).await {
        Ok(Ended::Committed { .. }) => {
            tracing::warn!(%broker, ?second, "a broker's port refuses connections: its session was ended");
        }
        // Somebody else was faster, or it is back.
        Ok(outcome) => tracing::debug!(%broker, ?outcome, "the session of a broker that is gone was not ended"),
        // It is asked again with the next attempt to connect.
        Err(error) => tracing::warn!(%broker, %error, "the session of a broker that is gone cannot be ended yet"),
    }
}

async fn reach_through(shared: &Shared, other: &Link, suspect: &Peer) -> Outcome {
    let asked = async {
        let caller = shared.caller(other).await?;
        let request = ReachRequest { broker: suspect.rid.broker.0, incarnation: suspect.inc.0 };
        caller.client().reach(caller.request(request)).await.ok()
    };
    let answer = timeout(CONNECT_PATIENCE * 2, asked).await.ok().flatten();
    answer.map_or(Outcome::Unspecified, |answer| answer.into_inner().outcome())
}

/// Whether a broker's port takes connections, as seen from here. Only brokers that are known are dialled.
pub(super) async fn reach(shared: &Shared, broker: BrokerId, inc: Incarnation) -> Outcome {
    let known = shared.known().get(&broker).map(|link| link.peer.clone());
    let Some(address) = known.filter(|peer| peer.inc == inc).and_then(|peer| peer.address) else {
        return Outcome::Unspecified;
    };
    match connect(&address).await {
        Ok(_) => Outcome::Reached,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Outcome::Refused,
        Err(_) => Outcome::Unspecified,
    }
}
