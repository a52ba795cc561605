//! For how long brokers have been gone, as far as this one saw it: since it started, at most. A hint: no safety rests on it.

use millpond_core::controller::Limits;
use millpond_log::BrokerId;
use millpond_metadata::kv::Revision;
use std::collections::BTreeMap;
use std::time::Duration;

/// The brokers without a session, with the revision of their disk's record and since when that has been so.
#[derive(Debug, Default)]
pub(crate) struct Absences {
    since: BTreeMap<BrokerId, (Revision, Duration)>,
}

impl Absences {
    /// Notes who has no session at `now`, time since the machine started, by the revisions of their disks' records.
    ///
    /// A registration moves that record: who came and went between two looks has gone anew.
    pub(crate) fn note(&mut self, absent: impl IntoIterator<Item = (BrokerId, Revision)>, now: Duration) {
        let before = std::mem::take(&mut self.since);
        let since = |(broker, disk): (BrokerId, Revision)| {
            let still = before.get(&broker).filter(|(seen, _)| *seen == disk);
            (broker, (disk, still.map_or(now, |(_, since)| *since)))
        };
        self.since = absent.into_iter().map(since).collect();
    }

    /// Whether a broker has been gone for as long as it takes until its replicas are made anew on others. `disk` is the revision of its
    /// disk's record.
    pub(crate) fn is_long_gone(&self, broker: BrokerId, disk: Revision, now: Duration) -> bool {
        let long = Duration::from_millis(Limits::default().replace_after_ms);
        self.since.get(&broker).is_some_and(|(seen, since)| *seen == disk && now.saturating_sub(*since) >= long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_long_gone_ten_minutes_after_it_was_first_missed_and_never_sooner() {
        let (one, two) = (BrokerId(1), BrokerId(2));
        let at = |minutes: u64| Duration::from_secs(1_000 + 60 * minutes);
        let mut absences = Absences::default();
        assert!(!absences.is_long_gone(one, Revision(5), at(100)), "nobody has missed it yet");
        absences.note([(one, Revision(5))], at(0));
        absences.note([(one, Revision(5)), (two, Revision(6))], at(4));
        assert!(!absences.is_long_gone(one, Revision(5), at(9)));
        assert!(absences.is_long_gone(one, Revision(5), at(10)));
        assert!(!absences.is_long_gone(two, Revision(6), at(13)) && absences.is_long_gone(two, Revision(6), at(14)));
        // It registered and is gone again, which whoever looks at the records may know first.
        assert!(!absences.is_long_gone(one, Revision(9), at(10)));
        absences.note([(one, Revision(9)), (two, Revision(6))], at(10));
        assert!(!absences.is_long_gone(one, Revision(9), at(19)) && absences.is_long_gone(one, Revision(9), at(20)));
        // It is back.
        absences.note([(two, Revision(6))], at(20));
        assert!(!absences.is_long_gone(one, Revision(9), at(30)) && absences.is_long_gone(two, Revision(6), at(30)));
    }
}
