//! What Kafka's own assignors write into the opaque bytes of the classic protocol: subscriptions and assignments of consumers.
//!
//! Big-endian, as Kafka's `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`. Reading never panics, and allocates no more
//! than the bytes at hand back.

use std::collections::{BTreeMap, BTreeSet};

/// The protocol type of consumers.
pub(super) const CONSUMER: &str = "consumer";

/// Newest version that is written and read in full; what newer ones add is behind it.
const VERSION_MAX: i16 = 3;

/// Partitions by the name of their topic.
pub(super) type ByName = BTreeMap<String, BTreeSet<u32>>;

/// What a consumer tells its assignor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subscription {
    pub(super) version: i16,
    pub(super) topics: BTreeSet<String>,
    /// What it owns, from version 1 on.
    pub(super) owned: ByName,
    /// From version 3 on.
    pub(super) rack: Option<String>,
}

impl Subscription {
    pub(super) fn read(bytes: &[u8]) -> Option<Subscription> {
        let mut fields = Fields(bytes);
        let version = fields.i16().filter(|version| *version >= 0)?;
        let mut subscription = Subscription { version, ..Subscription::default() };
        for _ in 0..fields.count()? {
            subscription.topics.insert(fields.text()?);
        }
        fields.skip_bytes()?;
        if version >= 1 {
            subscription.owned = fields.by_name()?;
        }
        if version >= 2 {
            // The generation in which it owned that. The coordinator keeps its own account.
            fields.i32()?;
        }
        if version >= 3 {
            subscription.rack = fields.nullable_text()?;
        }
        Some(subscription)
    }
}

/// Reads an assignment. No bytes at all are none.
pub(super) fn read_assignment(bytes: &[u8]) -> Option<ByName> {
    if bytes.is_empty() {
        return Some(ByName::new());
    }
    let mut fields = Fields(bytes);
    fields.i16().filter(|version| *version >= 0)?;
    fields.by_name()
}

/// Writes an assignment for a consumer that wrote its subscription in `version`.
pub(super) fn write_assignment(assignment: &ByName, version: i16) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(version.clamp(0, VERSION_MAX).to_be_bytes());
    put_count(&mut out, assignment.len());
    for (topic, partitions) in assignment {
        let len = i16::try_from(topic.len()).expect("names of topics have 249 bytes at most");
        out.extend(len.to_be_bytes());
        out.extend(topic.as_bytes());
        put_count(&mut out, partitions.len());
        for partition in partitions {
            out.extend(partition.to_be_bytes());
        }
    }
    // No user data.
    out.extend((-1i32).to_be_bytes());
    out
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend(i32::try_from(count).expect("counted in 31 bits").to_be_bytes());
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn i16(&mut self) -> Option<i16> {
        self.take(2)?.try_into().ok().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take(4)?.try_into().ok().map(i32::from_be_bytes)
    }

    /// The length of a list; null is an empty one.
    fn count(&mut self) -> Option<usize> {
        let count = self.i32()?;
        if count == -1 { Some(0) } else { usize::try_from(count).ok() }
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.i16()?).ok()?;
        std::str::from_utf8(self.take(len)?).ok().map(str::to_owned)
    }

    fn nullable_text(&mut self) -> Option<Option<String>> {
        if self.0.starts_with(&(-1i16).to_be_bytes()) {
            self.take(2)?;
            return Some(None);
        }
        self.text().map(Some)
    }

    fn skip_bytes(&mut self) -> Option<()> {
        let len = self.count()?;
        self.take(len).map(|_| ())
    }

    fn by_name(&mut self) -> Option<ByName> {
        let mut named = ByName::new();
        for _ in 0..self.count()? {
            let topic = self.text()?;
            let partitions: &mut BTreeSet<u32> = named.entry(topic).or_default();
            for _ in 0..self.count()? {
                partitions.insert(u32::try_from(self.i32()?).ok()?);
            }
        }
        Some(named)
    }
}

/// Writes what a consumer of `version` tells its assignor; for tests, which stand in for consumers.
#[cfg(test)]
pub(super) fn write_subscription(subscription: &Subscription) -> Vec<u8> {
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend(i16::try_from(text.len()).expect("short").to_be_bytes());
        out.extend(text.as_bytes());
    };
    let mut out = Vec::new();
    out.extend(subscription.version.to_be_bytes());
    put_count(&mut out, subscription.topics.len());
    for topic in &subscription.topics {
        text(&mut out, topic);
    }
    out.extend((-1i32).to_be_bytes());
    if subscription.version >= 1 {
        let assignment = write_assignment(&subscription.owned, 0);
        out.extend(&assignment[2..assignment.len() - 4]);
    }
    if subscription.version >= 2 {
        out.extend(7i32.to_be_bytes());
    }
    if subscription.version >= 3 {
        match &subscription.rack {
            Some(rack) => text(&mut out, rack),
            None => out.extend((-1i16).to_be_bytes()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn by_name() -> impl Strategy<Value = ByName> {
        prop::collection::btree_map("[a-z]{1,6}", prop::collection::btree_set(0..1000u32, 0..5), 0..4)
    }

    proptest! {
        #[test]
        fn subscriptions_and_assignments_read_back(
            version in 0..4i16,
            topics in prop::collection::btree_set("[a-z]{1,6}", 0..4),
            named in by_name(),
            rack: Option<u8>,
        ) {
            let owned = if version >= 1 { named.clone() } else { ByName::new() };
            let rack = rack.filter(|_| version >= 3).map(|rack| format!("r{rack}"));
            let subscription = Subscription { version, topics, owned, rack };
            prop_assert_eq!(Subscription::read(&write_subscription(&subscription)), Some(subscription));
            prop_assert_eq!(read_assignment(&write_assignment(&named, version)), Some(named));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, cut: prop::sample::Index, named in by_name()) {
            let whole = write_assignment(&named, 1);
            let _ = (Subscription::read(&bytes), read_assignment(&bytes));
            let cut = &whole[..cut.index(whole.len())];
            let _ = (Subscription::read(cut), read_assignment(cut));
        }
    }

    /// Bytes as Kafka's Java client writes them.
    #[test]
    fn the_layout_is_kafkas() {
        let bytes = [0, 1, 0, 0, 0, 1, 0, 1, b't', 255, 255, 255, 255, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 5];
        let read = Subscription::read(&bytes).expect("a subscription");
        assert_eq!((read.version, read.topics), (1, ["t".to_owned()].into()));
        assert_eq!(read.owned, [("t".to_owned(), [5].into())].into());
        let written = write_assignment(&[("t".to_owned(), [5].into())].into(), 1);
        assert_eq!(written, [0, 1, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 5, 255, 255, 255, 255]);
        let claims = [0, 0, 127, 255, 255, 255];
        assert_eq!((Subscription::read(&claims), read_assignment(&claims)), (None, None));
    }
}
