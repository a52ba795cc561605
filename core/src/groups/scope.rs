//! What a decision about one group may look at and write to, besides the group itself.

use super::patterns::Patterns;
use super::settings::GroupTimes;
use super::step::{Answer, Change, GroupLimits, Now, Step, Token};
use super::timers::{Timer, Timers};
use super::topics::Topics;
use crate::records::groups::{Record, RecordKey, RecordPart};
use std::sync::Arc;

/// The surroundings of one group during one step.
pub(super) struct Scope<'a> {
    pub(super) now: Now,
    pub(super) limits: &'a GroupLimits,
    /// Of this group, if it is a consumer group.
    pub(super) times: GroupTimes,
    pub(super) topics: &'a Topics,
    pub(super) patterns: &'a mut Patterns,
    pub(super) timers: &'a mut Timers,
    pub(super) step: &'a mut Step,
    pub(super) group: &'a Arc<str>,
}

impl Scope<'_> {
    pub(super) fn put(&mut self, part: RecordPart, record: Record) {
        self.change(part, Some(record));
    }

    pub(super) fn delete(&mut self, part: RecordPart) {
        self.change(part, None);
    }

    fn change(&mut self, part: RecordPart, record: Option<Record>) {
        self.step.changes.push(Change { key: RecordKey { group: self.group.clone(), part }, record });
    }

    pub(super) fn answer(&mut self, token: Token, answer: Answer) {
        self.step.answers.push((token, answer));
    }

    /// Sets a timer so many milliseconds from now.
    pub(super) fn after(&mut self, timer: Timer, ms: u32) {
        self.timers.set(timer, self.now.steady_ms.saturating_add(ms.into()));
    }

    pub(super) fn session(&self, member: &Arc<str>) -> Timer {
        Timer::Session(self.group.clone(), member.clone())
    }
}
