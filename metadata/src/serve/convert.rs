//! etcd's terms in ours, and our answers in its. Refuses what etcd refuses before it looks at a key. Asks nobody anything.

use super::status::{self, absent, invalid};
use crate::kv::{
    Compare, Event, Interval, KeyValue, LeaseId, Range, Revision, TXN_BYTES_MAX, TXN_OPS_MAX, Txn, WatchBatch, Write,
};
use bytes::Bytes;
use etcd_client::EventType;
use etcd_client::proto::{
    PbCompare, PbCompareTarget, PbDeleteRequest, PbEvent, PbKeyValue, PbPutRequest, PbRangeRequest, PbTargetUnion,
    PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp,
};
use std::collections::BTreeSet;
use tonic::Status;

/// `Compare.result`: equal.
const EQUAL: i32 = 0;
/// `Compare.result`: less.
const LESS: i32 = 2;

/// A read, with what etcd's answer may leave out.
pub(super) struct Read {
    pub(super) range: Range,
    /// `None` is the newest.
    pub(super) revision: Option<Revision>,
    pub(super) count_only: bool,
    pub(super) keys_only: bool,
}

/// How etcd writes an interval: no end is the key alone, and the byte 0 is the end of all keys.
pub(super) fn interval(key: Vec<u8>, range_end: Vec<u8>) -> Interval {
    let start = Bytes::from(key);
    match range_end.as_slice() {
        [] => Interval::key(&start),
        [0] => Interval { start, end: None },
        _ => Interval { start, end: Some(range_end.into()) },
    }
}

pub(super) fn read(request: PbRangeRequest) -> Result<Read, Status> {
    if request.key.is_empty() {
        return Err(invalid(status::EMPTY_KEY));
    }
    let sorted = request.sort_order != 0 || request.sort_target != 0;
    let bounded =
        [request.min_mod_revision, request.max_mod_revision, request.min_create_revision, request.max_create_revision];
    if sorted || bounded != [0; 4] {
        return Err(absent("ranges that are sorted, or filtered by revision"));
    }
    let limit = usize::try_from(request.limit).ok().filter(|&limit| limit > 0).unwrap_or(usize::MAX);
    Ok(Read {
        range: Range { keys: interval(request.key, request.range_end), limit },
        revision: Some(unsigned(request.revision)).filter(|&revision| revision > Revision::ABSENT),
        count_only: request.count_only,
        keys_only: request.keys_only,
    })
}

pub(super) fn put(request: PbPutRequest) -> Result<Write, Status> {
    if request.key.is_empty() {
        return Err(invalid(status::EMPTY_KEY));
    }
    if request.prev_kv || request.ignore_value || request.ignore_lease {
        return Err(absent("puts that look at the value before"));
    }
    let lease = Some(request.lease).filter(|&lease| lease != 0).map(lease_id);
    Ok(Write::Put { key: request.key.into(), value: request.value.into(), lease })
}

pub(super) fn delete(request: PbDeleteRequest) -> Result<Write, Status> {
    if request.key.is_empty() {
        return Err(invalid(status::EMPTY_KEY));
    }
    if request.prev_kv {
        return Err(absent("deletions that return what was there"));
    }
    Ok(Write::Delete(interval(request.key, request.range_end)))
}

/// A transaction, checked in etcd's order.
pub(super) fn txn(request: PbTxnRequest) -> Result<Txn, Status> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    if ops > TXN_OPS_MAX {
        return Err(invalid(status::TOO_MANY_OPS));
    }
    let txn = Txn {
        compares: request.compare.into_iter().map(compare).collect::<Result<_, Status>>()?,
        then: request.success.into_iter().map(write).collect::<Result<_, Status>>()?,
        or_else: request.failure.into_iter().map(else_read).collect::<Result<_, Status>>()?,
    };
    if changes_a_key_twice(&txn.then) {
        return Err(invalid(status::DUPLICATE_KEY));
    }
    if txn.size() > TXN_BYTES_MAX {
        return Err(invalid(status::TOO_LARGE));
    }
    Ok(txn)
}

fn compare(theirs: PbCompare) -> Result<Compare, Status> {
    if theirs.key.is_empty() {
        return Err(invalid(status::EMPTY_KEY));
    }
    if !theirs.range_end.is_empty() {
        return Err(absent("comparisons of ranges"));
    }
    let key = Bytes::from(theirs.key);
    let target = PbCompareTarget::try_from(theirs.target).ok();
    // What is not set counts as 0, or as no bytes, as everywhere in etcd's encoding.
    let number = match &theirs.target_union {
        Some(PbTargetUnion::ModRevision(is) | PbTargetUnion::CreateRevision(is) | PbTargetUnion::Version(is)) => *is,
        _ => 0,
    };
    let value = match theirs.target_union {
        Some(PbTargetUnion::Value(value)) => value.into(),
        _ => Bytes::new(),
    };
    Ok(match (target, theirs.result) {
        (Some(PbCompareTarget::Mod), EQUAL) => Compare::ModRevision { key, is: unsigned(number) },
        (Some(PbCompareTarget::Create), EQUAL) => Compare::CreateRevision { key, is: unsigned(number) },
        (Some(PbCompareTarget::Value), EQUAL) => Compare::Value { key, is: value },
        (Some(PbCompareTarget::Value), LESS) => Compare::ValueBelow { key, bound: value },
        // Versions are not counted, but a key that is not there has none.
        (Some(PbCompareTarget::Version), EQUAL) if number == 0 => Compare::absent(key),
        _ => return Err(absent("comparisons but of equal revisions and of equal or lesser values")),
    })
}

fn write(op: PbTxnRequestOp) -> Result<Write, Status> {
    match op.request {
        Some(PbTxnOpRequest::RequestPut(request)) => put(request),
        Some(PbTxnOpRequest::RequestDeleteRange(request)) => delete(request),
        _ => Err(absent("transactions that read or nest where they succeed")),
    }
}

fn else_read(op: PbTxnRequestOp) -> Result<Range, Status> {
    let Some(PbTxnOpRequest::RequestRange(request)) = op.request else {
        return Err(absent("transactions that change something where they fail"));
    };
    match read(request)? {
        Read { range, revision: None, count_only: false, keys_only: false } => Ok(range),
        _ => Err(absent("reads of old revisions, or of less than keys and values, in transactions")),
    }
}

fn changes_a_key_twice(writes: &[Write]) -> bool {
    let mut put = BTreeSet::new();
    let twice = writes.iter().any(|write| matches!(write, Write::Put { key, .. } if !put.insert(key)));
    let deletes = |write: &Write| match write {
        Write::Delete(keys) => put.iter().any(|key| keys.contains(key)),
        Write::Put { .. } => false,
    };
    twice || writes.iter().any(deletes)
}

/// Keys have no version: nothing counts how often one was written.
pub(super) fn key_value(kv: KeyValue) -> PbKeyValue {
    PbKeyValue {
        create_revision: signed(kv.create_revision),
        mod_revision: signed(kv.mod_revision),
        version: 0,
        lease: kv.lease.map_or(0, |lease| lease.0.cast_signed()),
        key: kv.key.into(),
        value: kv.value.into(),
    }
}

pub(super) fn events(batch: WatchBatch) -> impl Iterator<Item = PbEvent> {
    batch.events.into_iter().map(|event| match event {
        Event::Put(kv) => PbEvent { r#type: EventType::Put.into(), kv: Some(key_value(kv)), prev_kv: None },
        Event::Delete { key, mod_revision } => {
            let gone = PbKeyValue { key: key.into(), mod_revision: signed(mod_revision), ..PbKeyValue::default() };
            PbEvent { r#type: EventType::Delete.into(), kv: Some(gone), prev_kv: None }
        }
    })
}

pub(super) fn lease_id(theirs: i64) -> LeaseId {
    LeaseId(theirs.cast_unsigned())
}

/// etcd counts in 63 bits, and so does the embedded store by the time that it has counted so far.
pub(super) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn put_op(key: &str) -> PbTxnRequestOp {
        let put = PbPutRequest { key: key.into(), ..PbPutRequest::default() };
        PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestPut(put)) }
    }

    fn delete_op(key: &str, range_end: &str) -> PbTxnRequestOp {
        let delete = PbDeleteRequest { key: key.into(), range_end: range_end.into(), prev_kv: false };
        PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestDeleteRange(delete)) }
    }

    fn refusal(request: PbTxnRequest) -> (Code, String) {
        let status = txn(request).map(drop).expect_err("it is refused");
        (status.code(), status.message().to_owned())
    }

    #[test]
    fn intervals_are_etcds() {
        let check = |key: &str, range_end: &[u8], inside: &[&str], outside: &[&str]| {
            let interval = interval(key.into(), range_end.to_vec());
            assert!(inside.iter().all(|key| interval.contains(key.as_bytes())), "{key} {range_end:?}");
            assert!(!outside.iter().any(|key| interval.contains(key.as_bytes())), "{key} {range_end:?}");
        };
        check("b", b"", &["b"], &["a", "b\0", "c"]);
        check("b", b"\0", &["b", "b\0", "c", "\u{ff}"], &["a"]);
        check("b", b"d", &["b", "c"], &["a", "d"]);
        check("b", b"a", &[], &["a", "b"]);
    }

    #[test]
    fn transactions_are_refused_in_etcds_words() {
        let success = |success| PbTxnRequest { success, ..PbTxnRequest::default() };
        let invalid = |said: &str| (Code::InvalidArgument, said.to_owned());
        assert_eq!(refusal(success(vec![put_op("a"); TXN_OPS_MAX + 1])), invalid(status::TOO_MANY_OPS));
        assert_eq!(refusal(success(vec![put_op("")])), invalid(status::EMPTY_KEY));
        assert_eq!(refusal(success(vec![put_op("a"), put_op("a")])), invalid(status::DUPLICATE_KEY));
        assert_eq!(refusal(success(vec![put_op("b"), delete_op("a", "c")])), invalid(status::DUPLICATE_KEY));
        assert!(txn(success(vec![put_op("c"), delete_op("a", "c"), delete_op("a", "b")])).is_ok());
        let large = PbPutRequest { key: b"k".to_vec(), value: vec![0; TXN_BYTES_MAX], ..PbPutRequest::default() };
        let large = PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestPut(large)) };
        assert_eq!(refusal(success(vec![large])), invalid(status::TOO_LARGE));
        let compare = PbCompare { result: EQUAL, target: PbCompareTarget::Mod.into(), ..PbCompare::default() };
        assert_eq!(
            refusal(PbTxnRequest { compare: vec![compare], ..PbTxnRequest::default() }),
            invalid(status::EMPTY_KEY)
        );
        let failure = vec![put_op("a")];
        assert_eq!(refusal(PbTxnRequest { failure, ..PbTxnRequest::default() }).0, Code::Unimplemented);
        assert_eq!(refusal(success(vec![PbTxnRequestOp { request: None }])).0, Code::Unimplemented);
    }

    #[test]
    fn comparisons_that_the_store_cannot_make_are_refused() {
        let made = |target: PbCompareTarget, result, target_union| {
            compare(PbCompare {
                result,
                target: target.into(),
                key: b"k".to_vec(),
                target_union,
                range_end: Vec::new(),
            })
            .ok()
        };
        let key = Bytes::from_static(b"k");
        let version = |version| Some(PbTargetUnion::Version(version));
        assert_eq!(made(PbCompareTarget::Version, EQUAL, version(0)), Some(Compare::absent(key.clone())));
        assert_eq!(made(PbCompareTarget::Version, EQUAL, version(1)), None);
        assert_eq!(made(PbCompareTarget::Mod, EQUAL, None), Some(Compare::absent(key)));
        assert_eq!(made(PbCompareTarget::Mod, LESS, Some(PbTargetUnion::ModRevision(9))), None);
        assert_eq!(made(PbCompareTarget::Lease, EQUAL, Some(PbTargetUnion::Lease(0))), None);
    }
}
