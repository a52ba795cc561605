//! Our terms in etcd's, and its answers in ours. Asks nobody anything.

use crate::kv::{
    Compare, Event, Interval, KeyValue, LeaseId, Range, Ranged, Revision, Txn, TxnOutcome, WatchBatch, Write,
};
use bytes::Bytes;
use etcd_client::{
    CompareOp, DeleteOptions, EventType, GetOptions, GetResponse, PutOptions, ResponseHeader, TxnOp, TxnOpResponse,
    TxnResponse, WatchOptions, WatchResponse,
};

/// How etcd writes an interval: a first key, and where it ends.
enum End {
    /// The first key alone.
    Alone,
    /// Before this key.
    Before(Vec<u8>),
    /// After every key.
    Open,
}

/// No key is empty, so that the byte 0 comes before all of them.
fn bounds(keys: &Interval) -> (Vec<u8>, End) {
    let start = if keys.start.is_empty() { vec![0] } else { keys.start.to_vec() };
    let end = match &keys.end {
        None => End::Open,
        Some(end) if end.len() == start.len() + 1 && end.starts_with(&start) && end.ends_with(&[0]) => End::Alone,
        Some(end) => End::Before(end.to_vec()),
    };
    (start, end)
}

/// Key and options of a read of at most `limit` keys.
pub(super) fn read(keys: &Interval, limit: usize) -> (Vec<u8>, GetOptions) {
    let (start, end) = bounds(keys);
    let options = GetOptions::new().with_limit(i64::try_from(limit).unwrap_or(i64::MAX));
    let options = match end {
        End::Alone => options,
        End::Before(end) => options.with_range(end),
        End::Open => options.with_from_key(),
    };
    (start, options)
}

/// Key and options of a watch.
pub(super) fn watch(keys: &Interval, from: Revision) -> (Vec<u8>, WatchOptions) {
    let (start, end) = bounds(keys);
    let options = WatchOptions::new().with_start_revision(signed(from)).with_progress_notify();
    let options = match end {
        End::Alone => options,
        End::Before(end) => options.with_range(end),
        End::Open => options.with_from_key(),
    };
    (start, options)
}

pub(super) fn txn(txn: &Txn) -> etcd_client::Txn {
    etcd_client::Txn::new()
        .when(txn.compares.iter().map(compare).collect::<Vec<_>>())
        .and_then(txn.then.iter().map(write).collect::<Vec<_>>())
        .or_else(txn.or_else.iter().map(else_read).collect::<Vec<_>>())
}

fn compare(compare: &Compare) -> etcd_client::Compare {
    use etcd_client::Compare as Theirs;
    let key = compare.key().to_vec();
    match compare {
        Compare::ModRevision { is, .. } => Theirs::mod_revision(key, CompareOp::Equal, signed(*is)),
        Compare::CreateRevision { is, .. } => Theirs::create_revision(key, CompareOp::Equal, signed(*is)),
        Compare::Value { is, .. } => Theirs::value(key, CompareOp::Equal, is.to_vec()),
        Compare::ValueBelow { bound, .. } => Theirs::value(key, CompareOp::Less, bound.to_vec()),
    }
}

fn write(write: &Write) -> TxnOp {
    match write {
        Write::Put { key, value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease_id(lease)));
            TxnOp::put(key.to_vec(), value.to_vec(), options)
        }
        Write::Delete(keys) => {
            let (start, end) = bounds(keys);
            let options = match end {
                End::Alone => None,
                End::Before(end) => Some(DeleteOptions::new().with_range(end)),
                End::Open => Some(DeleteOptions::new().with_from_key()),
            };
            TxnOp::delete(start, options)
        }
    }
}

fn else_read(range: &Range) -> TxnOp {
    let (start, options) = read(&range.keys, range.limit);
    TxnOp::get(start, Some(options))
}

pub(super) fn outcome(answer: &TxnResponse) -> TxnOutcome {
    let revision = revision(answer.header());
    let answers = answer.op_responses();
    if answer.succeeded() {
        let deleted = answers.iter().map(|op| match op {
            TxnOpResponse::Delete(deleted) => u64::try_from(deleted.deleted()).unwrap_or(0),
            _ => 0,
        });
        return TxnOutcome::Succeeded { revision, deleted: deleted.sum() };
    }
    let found = answers.into_iter().filter_map(|op| match op {
        TxnOpResponse::Get(got) => Some(ranged(got, revision)),
        _ => None,
    });
    TxnOutcome::Failed { revision, found: found.collect() }
}

/// What a read found, at a revision that the caller knows.
pub(super) fn ranged(mut answer: GetResponse, revision: Revision) -> Ranged {
    let more = answer.more();
    Ranged { revision, found: answer.take_kvs().into_iter().map(key_value).collect(), more }
}

fn key_value(theirs: etcd_client::KeyValue) -> KeyValue {
    let lease = Some(theirs.lease()).filter(|lease| *lease != 0).map(|lease| LeaseId(lease.cast_unsigned()));
    let (create_revision, mod_revision) = (unsigned(theirs.create_revision()), unsigned(theirs.mod_revision()));
    let (key, value) = theirs.into_key_value();
    KeyValue { key: key.into(), value: value.into(), create_revision, mod_revision, lease }
}

/// The events at `from` or later; older ones were handed out before (rule Z2). `None` if there are none.
///
/// The batch reaches as far as its last event and no further: etcd's header may be ahead of what it has sent. etcd never
/// splits a revision unless it is asked to.
pub(super) fn batch(answer: &WatchResponse, from: Revision) -> Option<WatchBatch> {
    let events: Vec<Event> =
        answer.events().iter().filter_map(event).filter(|event| event.mod_revision() >= from).collect();
    let revision = events.last()?.mod_revision();
    Some(WatchBatch { revision, events })
}

fn event(theirs: &etcd_client::Event) -> Option<Event> {
    let kv = theirs.kv()?;
    Some(match theirs.event_type() {
        EventType::Put => Event::Put(key_value(kv.clone())),
        EventType::Delete => {
            Event::Delete { key: Bytes::copy_from_slice(kv.key()), mod_revision: unsigned(kv.mod_revision()) }
        }
    })
}

/// The store's revision when it answered.
pub(super) fn revision(header: Option<&ResponseHeader>) -> Revision {
    header.map_or(Revision::ABSENT, |header| unsigned(header.revision()))
}

/// The store's identity. No etcd is cluster 0: an embedded store that has none says so.
pub(super) fn cluster(header: &ResponseHeader) -> Option<u64> {
    Some(header.cluster_id()).filter(|&id| id != 0)
}

pub(super) fn lease_id(lease: LeaseId) -> i64 {
    lease.0.cast_signed()
}

/// etcd counts revisions from 1 in 63 bits.
pub(super) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}
