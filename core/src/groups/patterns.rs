//! Subscriptions by regular expression: checks expressions once, and finds the topics that match them once for each image.
//!
//! RE2's semantics, as Kafka's: no back-references, matching in linear time, and a name matches as a whole.

use super::topics::Topics;
use millpond_log::TopicId;
use regex::{Regex, RegexBuilder};
use std::collections::{BTreeMap, BTreeSet};

/// Largest compiled expression, in bytes. What people write for topic names compiles to a few hundred.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Longest expression, in bytes: a few topic names of the greatest length.
const PATTERN_BYTES_MAX: usize = 1024;

/// Expressions that are remembered. Groups share few; above it, all are compiled again as they are met.
const PATTERNS_MAX: usize = 1000;

/// Expressions that were met.
#[derive(Clone, Debug, Default)]
pub(super) struct Patterns {
    known: BTreeMap<String, Pattern>,
}

#[derive(Clone, Debug)]
struct Pattern {
    regex: Regex,
    /// The version of the image that `topics` is of; 0 before the first.
    version: u64,
    topics: BTreeSet<TopicId>,
}

impl Patterns {
    /// Whether the expression can be read.
    pub(super) fn check(&mut self, pattern: &str) -> bool {
        self.known(pattern).is_some()
    }

    /// The topics whose whole name matches. None match an expression that cannot be read.
    pub(super) fn matching(&mut self, pattern: &str, topics: &Topics) -> BTreeSet<TopicId> {
        let Some(known) = self.known(pattern) else { return BTreeSet::new() };
        if known.version != topics.version() {
            let matching = topics.names().filter(|(name, _)| known.regex.is_match(name.as_str()));
            known.topics = matching.map(|(_, id)| id).collect();
            known.version = topics.version();
        }
        known.topics.clone()
    }

    fn known(&mut self, pattern: &str) -> Option<&mut Pattern> {
        if !self.known.contains_key(pattern) {
            let regex = compile(pattern)?;
            if self.known.len() >= PATTERNS_MAX {
                self.known.clear();
            }
            self.known.insert(pattern.to_owned(), Pattern { regex, version: 0, topics: BTreeSet::new() });
        }
        self.known.get_mut(pattern)
    }
}

/// An expression that has to match the whole of a name: RE2's syntax, in linear time and bounded size.
#[derive(Clone, Debug)]
pub struct Expression(Regex);

impl Expression {
    /// Reads it; `None` if it cannot be read, or is too large.
    #[must_use]
    pub fn new(pattern: &str) -> Option<Expression> {
        compile(pattern).map(Expression)
    }

    /// Whether it matches all of `name`.
    #[must_use]
    pub fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

fn compile(pattern: &str) -> Option<Regex> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return None;
    }
    let pattern = unquoted(pattern);
    // The group keeps alternatives together; the expression has to be one by itself, or it could close the group early.
    RegexBuilder::new(&pattern).size_limit(COMPILED_BYTES_MAX).build().ok()?;
    RegexBuilder::new(&format!("^(?:{pattern})$")).size_limit(COMPILED_BYTES_MAX).build().ok()
}

/// Spells out `\Q…\E`, RE2's quotation, which Java's clients write for literal names.
fn unquoted(pattern: &str) -> String {
    let mut plain = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = split_quote(rest) {
        let (quoted, after) = after.split_once("\\E").unwrap_or((after, ""));
        plain.push_str(before);
        plain.push_str(&regex::escape(quoted));
        rest = after;
    }
    plain + rest
}

/// What is before and after the first `\Q` whose backslash is not escaped itself.
fn split_quote(pattern: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    loop {
        let at = from + pattern.get(from..)?.find('\\')?;
        match pattern.as_bytes().get(at + 1)? {
            b'Q' => return Some((&pattern[..at], &pattern[at + 2..])),
            // The escaped character may be one of several bytes; only the backslash itself can hide a quotation.
            b'\\' => from = at + 2,
            _ => from = at + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::topics::Topic;

    fn topics(version: u64, names: &[&str]) -> Topics {
        let topic = |name: &&str| Topic { name: name.parse().expect("a topic name"), racks: vec![BTreeSet::new()] };
        Topics::new(version, (0..).map(TopicId).zip(names.iter().map(topic)).collect())
    }

    #[test]
    fn whole_names_match() {
        let image = topics(1, &["ev-a", "ev-b", "xev-a", "ev-", "a.b", "axb"]);
        let check = |pattern: &str, expected: &[&str]| {
            let found = Patterns::default().matching(pattern, &image);
            let names: Vec<&str> = found.iter().filter_map(|id| Some(image.get(*id)?.name.as_str())).collect();
            assert_eq!(names, expected, "{pattern}");
        };
        check("ev-.+", &["ev-a", "ev-b"]);
        check("^ev-.*$", &["ev-a", "ev-b", "ev-"]);
        check("ev", &[]);
        check("ev-a|ev-b", &["ev-a", "ev-b"]);
        check("a.b", &["a.b", "axb"]);
        check(r"\Qa.b\E", &["a.b"]);
        check(r"\Qa.b", &["a.b"]);
        check(r"\Qa.\E.|ev\-a", &["ev-a", "a.b"]);
        check(r"(?i)EV-A", &["ev-a"]);
        check(r"\\Qa", &[]);
    }

    #[test]
    fn what_is_not_re2_is_refused() {
        let mut patterns = Patterns::default();
        let long = "a".repeat(PATTERN_BYTES_MAX + 1);
        for wrong in ["(", "a)(b", "*", r"(a)\1", "(?=a)", "((a{100}){100}){100}", long.as_str()] {
            assert!(!patterns.check(wrong), "{wrong}");
        }
        assert!(patterns.check("") && patterns.check(".*"));
    }

    #[test]
    fn a_new_image_is_searched_anew() {
        let mut patterns = Patterns::default();
        assert_eq!(patterns.matching("a.*", &topics(1, &["a"])).len(), 1);
        assert_eq!(patterns.matching("a.*", &topics(2, &["a", "ab", "b"])).len(), 2);
    }
}
