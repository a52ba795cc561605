//! Topics whose creation or deletion somebody began, and whether he still gets on with it. Whoever asks hands in the whole of what is
//! unfinished each time; nothing here is needed for safety.

use millpond_log::TopicId;
use std::collections::BTreeMap;

/// How far a topic is: it changes with every step of its creation or deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The revision of the topic's record.
    pub revision: u64,
    /// Records of its partitions that are there.
    pub partitions: usize,
}

/// What is unfinished, as it was when it was last seen to change.
#[derive(Clone, Debug, Default)]
pub struct Unfinished {
    since: BTreeMap<TopicId, (Progress, u64)>,
}

impl Unfinished {
    /// The topics of `found` that stand still for `after_ms`. Each is told once in such a time.
    pub fn due(
        &mut self,
        now_ms: u64,
        after_ms: u64,
        found: impl IntoIterator<Item = (TopicId, Progress)>,
    ) -> Vec<TopicId> {
        let mut due = Vec::new();
        let before = std::mem::take(&mut self.since);
        for (topic, progress) in found {
            let mut since = match before.get(&topic) {
                Some((seen, since)) if *seen == progress => *since,
                _ => now_ms,
            };
            if now_ms.saturating_sub(since) >= after_ms {
                due.push(topic);
                since = now_ms;
            }
            self.since.insert(topic, (progress, since));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_still_is_due_once_in_a_while_and_what_gets_on_is_not() {
        let mut unfinished = Unfinished::default();
        let mut due = |now_ms, found: &[(u128, usize)]| {
            let found =
                found.iter().map(|(id, partitions)| (TopicId(*id), Progress { revision: 5, partitions: *partitions }));
            unfinished.due(now_ms, 100, found).iter().map(|id| id.0).collect::<Vec<u128>>()
        };
        assert_eq!(due(1_000, &[(1, 0), (2, 0)]), [0; 0], "seen for the first time");
        assert_eq!(due(1_099, &[(1, 0), (2, 7)]), [0; 0]);
        assert_eq!(due(1_100, &[(1, 0), (2, 7)]), [1]);
        assert_eq!(due(1_101, &[(1, 0), (2, 7)]), [0; 0], "it was told of 1 just now");
        assert_eq!(due(1_199, &[(1, 0), (2, 7)]), [2]);
        assert_eq!(due(1_200, &[(1, 0)]), [1]);
        assert_eq!(due(1_400, &[(2, 7)]), [0; 0], "2 was finished, or is another beginning");
    }
}
