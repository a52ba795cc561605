//! Opens the listeners of a broker, with the certificates that some of them show. It serves nobody.

use crate::config::{Config, KafkaListener, Listener};
use crate::front::kafka::Entrance;
use crate::start_error::StartError;
use crate::tls::{Certificates, Handshake, Protocol, Rereader};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// A listener that is open.
pub(crate) struct Open {
    pub(crate) listener: TcpListener,
    /// What clients are told to dial.
    pub(crate) address: String,
    /// Its handshake, if it speaks TLS.
    pub(crate) tls: Option<Handshake>,
}

/// All listeners of a broker.
pub(crate) struct Listeners {
    pub(crate) grpc: Open,
    /// By name, in the order of the settings.
    pub(crate) kafka: Vec<(String, Open)>,
    pub(crate) http: Open,
    /// Only with a secret: without one there is nothing that could be answered there.
    pub(crate) internal: Option<Open>,
    /// Reads certificates again, if there are some.
    pub(crate) rereader: Option<Rereader>,
}

impl Listeners {
    /// Opens all of them.
    ///
    /// # Errors
    /// A port is taken, or the certificates cannot be used.
    pub(crate) async fn open(config: &Config) -> Result<Listeners, StartError> {
        let loaded = config.tls.as_ref().map(Certificates::load).transpose();
        let (certificates, rereader) = loaded.map_err(|error| StartError::Tls(error.to_string()))?.unzip();
        let open = async |door, listener: &Listener, protocol| {
            let tls = match (&certificates, listener.tls) {
                (_, false) => None,
                (Some(certificates), true) => Some(certificates.door(protocol)),
                (None, true) => {
                    let address = listener.bind;
                    let message = format!("{door} at {address} is to speak TLS, and there is no certificate");
                    return Err(StartError::Tls(message));
                }
            };
            let opened = listen(door, listener.bind).await?;
            let address = advertised(listener, &opened);
            Ok::<Open, StartError>(Open { listener: opened, address, tls })
        };
        let grpc = open("gRPC", &config.grpc, Protocol::Grpc).await?;
        let mut kafka = Vec::with_capacity(config.kafka.len());
        for KafkaListener { name, listener } in &config.kafka {
            kafka.push((name.clone(), open("Kafka", listener, Protocol::Kafka).await?));
        }
        let http = open("HTTP", &config.http, Protocol::Http).await?;
        let internal = match &config.cluster_secret {
            Some(_) => {
                let opened = listen("internal", config.internal.bind).await?;
                let address = advertised(&config.internal, &opened);
                Some(Open { listener: opened, address, tls: None })
            }
            None => None,
        };
        Ok(Listeners { grpc, kafka, http, internal, rereader })
    }

    /// Address of the Kafka listener that is shown of the broker.
    pub(crate) fn first_kafka(&self) -> String {
        self.kafka.first().map(|(_, open)| open.address.clone()).unwrap_or_default()
    }

    /// Addresses of the Kafka listeners that have names.
    pub(crate) fn named_kafka(&self) -> BTreeMap<String, String> {
        let named = self.kafka.iter().filter(|(name, _)| name != KafkaListener::DEFAULT);
        named.map(|(name, open)| (name.clone(), open.address.clone())).collect()
    }
}

impl Open {
    /// For the Kafka door.
    pub(crate) fn entrance(self, name: &str) -> Entrance {
        Entrance { listener: self.listener, name: name.into(), tls: self.tls }
    }
}

async fn listen(door: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|source| StartError::Listen { door, address, source })
}

fn advertised(listener: &Listener, bound: &TcpListener) -> String {
    let local = || bound.local_addr().map_or_else(|_| listener.bind.to_string(), |address| address.to_string());
    listener.advertise.clone().unwrap_or_else(local)
}
