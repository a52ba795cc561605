//! How client commands reach a cluster: the arguments they share, and the client made of them.

use crate::failure::{Doing, Failure};
use millpond_sdk::{Client, ClientConfig, Tls};
use std::path::{Path, PathBuf};

/// Where the cluster is.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionArgs {
    /// Brokers to ask first, by their gRPC port; one that answers is enough
    #[arg(long, visible_alias = "bootstrap-server", env = "MILLPOND_BOOTSTRAP", default_value = "127.0.0.1:7400")]
    #[arg(value_name = "HOST:PORT[,…]")]
    pub(crate) bootstrap: String,
    /// Speak TLS, and trust the authority in this PEM file
    #[arg(long, env = "MILLPOND_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Certificate to show to brokers that ask for one, in PEM
    #[arg(long, env = "MILLPOND_TLS_CERT", value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Key of that certificate, in PEM
    #[arg(long, env = "MILLPOND_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

impl ConnectionArgs {
    /// Connects to the first broker that answers.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        let mut config = ClientConfig::new(&self.bootstrap).map_err(|error| Failure::usage(error.to_string()))?;
        config.client_id = concat!("millpond-cli/", env!("CARGO_PKG_VERSION")).to_owned();
        config.tls = self.tls()?;
        Client::with_config(config).await.map_err(|error| match error.code {
            // Nobody is there, perhaps.
            None if error.retriable => {
                Failure::new(format!("{error}; is it running, and is --bootstrap its gRPC port?"))
            }
            _ => Failure::new(error.to_string()),
        })
    }

    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let Some(ca) = &self.tls_ca else { return Ok(None) };
        let identity = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        Ok(Some(Tls { ca: read(ca)?, identity }))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).doing(format!("cannot read `{}`", path.display()))
}
