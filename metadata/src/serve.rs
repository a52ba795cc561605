//! An embedded store served by etcd's own v3 API, as far as our client of etcd asks for it: the metadata of a fleet on one
//! machine. On loopback only, since it knows no users. What it does not have it refuses as unimplemented; it never pretends.

mod convert;
mod kv;
mod lease;
mod maintenance;
mod session;
mod status;
mod watch;

use crate::embedded::Embedded;
use crate::kv::{Revision, TXN_BYTES_MAX};
use etcd_client::proto::{PbKvServer, PbLeaseServer, PbMaintenanceServer, PbResponseHeader, PbWatchServer};
use std::io;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// Largest message that is read: etcd allows half a MiB for what surrounds a request.
const MESSAGE_BYTES_MAX: usize = TXN_BYTES_MAX + (512 << 10);

/// The one member's id. Any number but 0, which is no member.
const MEMBER: u64 = 1;

/// The one term of a store whose leader never changes.
const TERM: u64 = 1;

/// Serves the store until `stop`, then ends all streams and returns when every connection has ended.
///
/// # Errors
/// The address is not on loopback, or the listener fails.
pub async fn serve(store: Embedded, listener: TcpListener, stop: CancellationToken) -> io::Result<()> {
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{address} is not on loopback")));
    }
    let door = Door { store, stop: stop.clone() };
    let kv = PbKvServer::new(door.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let watch = PbWatchServer::new(door.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let lease = PbLeaseServer::new(door.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let maintenance = PbMaintenanceServer::new(door);
    let server = Server::builder().add_service(kv).add_service(watch).add_service(lease).add_service(maintenance);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    server.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await.map_err(io::Error::other)
}

/// What every service answers from.
#[derive(Clone)]
struct Door {
    store: Embedded,
    stop: CancellationToken,
}

impl Door {
    /// The header of an answer at `revision`.
    fn header(&self, revision: Revision) -> PbResponseHeader {
        PbResponseHeader {
            cluster_id: self.store.identity().unwrap_or(0),
            member_id: MEMBER,
            revision: convert::signed(revision),
            raft_term: TERM,
        }
    }

    /// The header of an answer that came now. No older than what anybody was told before they asked (rule K7).
    fn header_now(&self) -> PbResponseHeader {
        self.header(self.store.newest())
    }
}
