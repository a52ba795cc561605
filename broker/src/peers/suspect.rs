//! Rule E1a: a broker whose port refuses connections has no process. When another broker sees the same, or when nobody is left who could
//! see it, its session is ended, and elections need not wait for its lease.

use super::caller::{CONNECT_PATIENCE, connect};
use super::{Link, Peer, Shared};
use millpond_log::{BrokerId, Incarnation};
use millpond_metadata::store::Outcome as Ended;
use millpond_proto::internal::ReachRequest;
use millpond_proto::internal::reach_response::Outcome;
use std::io;
use std::sync::Arc;
use tokio::time::timeout;

/// A broker whose port has refused a connection.
pub(super) struct Suspect {
    pub(super) peer: Peer,
    /// Whether this very incarnation was spoken with at that port.
    pub(super) has_spoken: bool,
}

/// What others know about a suspect.
enum Witness {
    /// It was refused too.
    Refused(BrokerId),
    /// One of them reaches it, or is out of reach itself: it cannot be said.
    Unsure,
    /// All others refuse connections themselves: nobody is left to be asked.
    Nobody,
}

/// Asks another live broker about a suspect, and ends the suspect's session if that one was refused too. Where all the others refuse
/// connections like the suspect, nobody can be asked; then it is enough that this very incarnation was spoken with before.
///
/// For all ports may be shut off from one broker alone, by its own fault, and a session that is ended for nothing costs elections. Whoever
/// was spoken with had the right address and the right secret, and takes a new incarnation when it registers again: so it is wronged at
/// most once for each stream that this broker could open.
pub(super) async fn ask(shared: Arc<Shared>, suspect: Suspect) {
    let Suspect { peer, has_spoken } = suspect;
    let broker = peer.rid.broker;
    let second = match witness(&shared, &peer).await {
        Witness::Refused(other) => Some(other),
        Witness::Nobody if has_spoken || shared.others(broker).is_empty() => None,
        Witness::Nobody | Witness::Unsure => {
            tracing::debug!(%broker, "nobody else can say whether the broker is gone");
            return;
        }
    };
    let Some(session) = shared.session.get() else { return };
    match shared.store.end_session(&session, broker, peer.inc).await {
        Ok(Ended::Committed { .. }) => {
            tracing::warn!(%broker, ?second, "a broker's port refuses connections: its session was ended");
        }
        // Somebody else was faster, or it is back.
        Ok(outcome) => tracing::debug!(%broker, ?outcome, "the session of a broker that is gone was not ended"),
        // It is asked again with the next attempt to connect.
        Err(error) => tracing::warn!(%broker, %error, "the session of a broker that is gone cannot be ended yet"),
    }
}

async fn witness(shared: &Shared, suspect: &Peer) -> Witness {
    let mut nobody = true;
    for other in shared.others(suspect.rid.broker) {
        match reach_through(shared, &other, suspect).await {
            Outcome::Refused => return Witness::Refused(other.peer.rid.broker),
            // A way that somebody else has is a fault of ours, not of that broker.
            Outcome::Reached => return Witness::Unsure,
            Outcome::Unspecified => {
                let itself = reach(shared, other.peer.rid.broker, other.peer.inc).await;
                nobody &= itself == Outcome::Refused;
            }
        }
    }
    if nobody { Witness::Nobody } else { Witness::Unsure }
}

impl Shared {
    /// The other brokers that are alive and can be called, but for one.
    fn others(&self, but: BrokerId) -> Vec<Link> {
        let known = self.known();
        known.values().filter(|link| link.peer.rid.broker != but && link.way.is_some()).cloned().collect()
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
