//! The metadata store over real etcd servers: the waist's suite, faults of etcd and of the network, secrets, and a broker on it.

mod broker;
mod control;
mod faults;
mod refusals;
mod suites;

use bytes::Bytes;
use millpond_metadata::etcd::{Etcd, EtcdOptions};
use millpond_metadata::kv::{Compare, Interval, Kv, KvError, LeaseId, Range, Revision, Txn, TxnOutcome, Write};
use millpond_tests::etcd::EtcdCluster;
use millpond_tests::tools::{Tool, skip};

/// The versions of etcd that everything has to work with.
const VERSIONS: [Tool; 2] = [Tool::EtcdOfDistribution, Tool::EtcdPinned];

/// A cluster, or a line that says why the test cannot run.
async fn cluster(test: &str, tool: Tool, size: usize) -> Option<EtcdCluster> {
    EtcdCluster::start(tool, size).await.map_err(|why| skip(test, &why)).ok()
}

async fn connect(url: &str) -> Etcd {
    Etcd::connect(options(url)).await.expect("etcd is up")
}

fn options(url: &str) -> EtcdOptions {
    EtcdOptions::parse(url, "/test").expect("a valid URL")
}

fn key(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(k: &str, value: &str) -> Write {
    Write::put(key(k), value.to_owned())
}

fn put_leased(k: &str, lease: LeaseId) -> Write {
    Write::Put { key: key(k), value: key("leased"), lease: Some(lease) }
}

async fn write(kv: &dyn Kv, then: Vec<Write>) -> Revision {
    match kv.txn(Txn { then, ..Txn::default() }).await {
        Ok(TxnOutcome::Succeeded { revision, .. }) => revision,
        other => panic!("an unconditional write ended with {other:?}"),
    }
}

async fn get(kv: &dyn Kv, k: &str) -> Option<(String, Revision)> {
    let found = kv.range(Range::key(&key(k))).await.expect("etcd is up").found.pop()?;
    Some((String::from_utf8(found.value.to_vec()).expect("text"), found.mod_revision))
}

fn under(prefix: &str) -> Interval {
    Interval::prefix(key(prefix))
}

/// Puts `value` if the key was last written at `seen`; reads it else.
fn put_if(k: &str, seen: Revision, value: &str) -> Txn {
    Txn {
        compares: vec![Compare::ModRevision { key: key(k), is: seen }],
        then: vec![put(k, value)],
        or_else: vec![Range::key(&key(k))],
    }
}

/// Sends the same transaction until the key moves (rule K5). `value` is nobody else's: finding it says whose the key is.
async fn settle(kv: &dyn Kv, k: &str, seen: Revision, value: &str) -> bool {
    loop {
        match kv.txn(put_if(k, seen, value)).await {
            Ok(TxnOutcome::Succeeded { .. }) => return true,
            Ok(TxnOutcome::Failed { found, .. }) => {
                let now = found.into_iter().flat_map(|ranged| ranged.found).next();
                return now.is_some_and(|now| now.value == value);
            }
            Err(KvError::Unknown(_) | KvError::Unavailable(_)) => {}
            Err(error) => panic!("a transaction was refused: {error}"),
        }
    }
}
