//! A gRPC server before a broker's door. It passes calls on, and holds one on demand.

use futures::future::BoxFuture;
use millpond_proto::v1::admin_server::AdminServer;
use millpond_proto::v1::groups_server::GroupsServer;
use millpond_proto::v1::log_server::LogServer;
use millpond_proto::v1::transactions_server::TransactionsServer;
use std::convert::Infallible;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

/// Which call is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The next request of this method, before the broker hears of it.
    Request(&'static str),
    /// The next answer of this method.
    Answer(&'static str),
}

/// A gate. It ends, and its calls with it, when dropped.
pub struct Gate {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    server: AbortHandle,
}

#[derive(Default)]
struct State {
    /// What is held once it comes.
    hold: Option<Hold>,
    /// A call is held.
    is_held: bool,
}

impl Gate {
    /// Listens on a free port and passes calls on to the broker whose door is, or will be, at this port on loopback.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn start(upstream: u16) -> Gate {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let upstream = Endpoint::from_shared(format!("http://127.0.0.1:{upstream}")).expect("an address");
        let upstream = upstream.connect_lazy();
        let state = Arc::new(watch::Sender::default());
        let server = Server::builder()
            .add_service(Passing::<LogServer<()>>::new(&upstream, &state))
            .add_service(Passing::<GroupsServer<()>>::new(&upstream, &state))
            .add_service(Passing::<TransactionsServer<()>>::new(&upstream, &state))
            .add_service(Passing::<AdminServer<()>>::new(&upstream, &state))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
        Gate { address, state, server: tokio::spawn(server).abort_handle() }
    }

    /// `host:port` of it.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Holds the next such call; those after it pass.
    pub fn hold(&self, hold: Hold) {
        self.state.send_modify(|state| state.hold = Some(hold));
    }

    /// Returns once the call is held.
    pub async fn holds(&self) {
        let mut state = self.state.subscribe();
        drop(state.wait_for(|state| state.is_held).await.expect("the gate lives"));
    }

    /// What is held goes on.
    pub fn pass(&self) {
        self.state.send_replace(State::default());
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A service of the broker.
struct Passing<S> {
    upstream: Channel,
    state: Arc<watch::Sender<State>>,
    of: PhantomData<fn() -> S>,
}

impl<S> Passing<S> {
    fn new(upstream: &Channel, state: &Arc<watch::Sender<State>>) -> Passing<S> {
        Passing { upstream: upstream.clone(), state: Arc::clone(state), of: PhantomData }
    }
}

impl<S> Clone for Passing<S> {
    fn clone(&self) -> Passing<S> {
        Passing::new(&self.upstream, &self.state)
    }
}

impl<S: NamedService> NamedService for Passing<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Passing<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Passing { mut upstream, state, .. } = self.clone();
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        Box::pin(async move {
            waits_if_held(&state, |hold| matches!(hold, Hold::Request(name) if name == method)).await;
            let answered = match poll_fn(|context| upstream.poll_ready(context)).await {
                Ok(()) => upstream.call(request).await,
                Err(error) => Err(error),
            };
            waits_if_held(&state, |hold| matches!(hold, Hold::Answer(name) if name == method)).await;
            Ok(answered.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http()))
        })
    }
}

/// Waits if the call is the one to be held.
async fn waits_if_held(state: &watch::Sender<State>, is_it: impl Fn(Hold) -> bool) {
    let is_held = state.send_if_modified(|state| {
        let is_held = state.hold.is_some_and(&is_it);
        if is_held {
            *state = State { hold: None, is_held };
        }
        is_held
    });
    if is_held {
        drop(state.subscribe().wait_for(|state| !state.is_held).await);
    }
}
