//! Connecting to brokers of which one says nothing, as one that is stopped.

use crate::scripted::Scripted;
use futures::FutureExt;
use millpond_sdk::{Client, ClientConfig};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::timeout;

/// It is not waited for as long as a request may take, nor is it asked what else it speaks, while another one answers.
#[tokio::test]
async fn a_broker_that_says_nothing_is_left_for_the_next_one() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let broker = Scripted::start(1).await;
    let bootstrap = format!("{},{}", silent.local_addr().expect("it is bound"), broker.address);
    let mut config = ClientConfig::new(&bootstrap).expect("two addresses");
    (config.request_timeout, config.api_timeout) = (Duration::from_secs(3_600), Duration::from_secs(7_200));
    let connected = timeout(Duration::from_secs(60), Client::with_config(config)).await.expect("in time");
    connected.expect("the second one answers");
    silent.accept().await.expect("it is asked first");
    assert!(silent.accept().now_or_never().is_none(), "once");
}
