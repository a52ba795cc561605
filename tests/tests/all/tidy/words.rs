//! How files open, how long they are, and what may not be written in them.

use super::source::{Source, sources};

/// Most lines of a file that ship, its own tests not counted. A longer file holds more than one decision.
const LINES_MAX: usize = 700;

/// Most lines of the head that says what a module owns. The root of a library may hold a guide for its users.
const HEAD_LINES_MAX: usize = 6;

/// Stubs, notes to self, tests that do not run, and sleeps in place of synchronisation. Cut in two, or this file would match.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("todo", "!("), "write it, or leave it out"),
    (concat!("unimplemented", "!("), "write it, or leave it out"),
    (concat!("FIX", "ME"), "mend it"),
    (concat!("#[ig", "nore"), "a test runs, or says SKIPPED and why"),
    (concat!("thread::", "sleep"), "wait for the thing itself"),
];

/// The modules that may read the clock: they hand time to everybody else. Each line names a file that does.
const CLOCKS: &[&str] = &[
    "bench/src/backlog.rs",
    "bench/src/bare.rs",
    "broker/benches/wal.rs",
    "broker/src/clock.rs",
    "metadata/src/clock.rs",
    "sdk/src/clock.rs",
];

#[test]
fn files_open_by_saying_what_they_own() {
    complain(|source| {
        let head = source.text.lines().take_while(|line| line.starts_with("//!")).count();
        let root = ["/lib.rs", "/main.rs"].iter().any(|end| source.path.ends_with(end));
        match head {
            0 => vec!["line 1: open with `//!`: what the file owns and what it must never do".to_owned()],
            _ if head > HEAD_LINES_MAX && !root => vec![format!("the head has {head} lines, at most {HEAD_LINES_MAX}")],
            _ => Vec::new(),
        }
    });
}

#[test]
fn files_are_short_enough_to_proofread() {
    complain(|source| {
        let lines = source.shipped().lines().count();
        if source.is_test() || lines <= LINES_MAX { Vec::new() } else { vec![format!("{lines} lines; split it")] }
    });
}

#[test]
fn forbidden_words_do_not_occur() {
    complain(|source| forbidden(&source.text));
}

#[test]
fn only_the_listed_modules_read_the_clock() {
    let name = concat!("clippy::disallowed", "_methods");
    complain(|source| {
        let exempt = source.text.contains(name);
        match (exempt, CLOCKS.contains(&source.path.as_str())) {
            (true, false) => vec![format!("allows `{name}` and is not listed; take the time as an argument")],
            (false, true) => vec!["listed as a clock, but does not read one".to_owned()],
            _ => Vec::new(),
        }
    });
    let known: Vec<String> = sources().into_iter().map(|source| source.path).collect();
    for clock in CLOCKS {
        assert!(known.iter().any(|path| path == clock), "`{clock}` is listed as a clock and does not exist");
    }
}

#[test]
fn forbidden_words_are_found_with_their_line() {
    let found = forbidden(concat!("//! x\nfn f() {\n    todo", "!()\n}\n"));
    assert_eq!(found, [concat!("line 3: `todo", "!(`: write it, or leave it out")]);
    assert!(forbidden("fn todo() {}").is_empty());
}

fn forbidden(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for (word, advice) in FORBIDDEN.iter().filter(|(word, _)| line.contains(word)) {
            found.push(format!("line {number}: `{word}`: {advice}"));
        }
    }
    found
}

/// Fails with all that `check` says about any file.
fn complain(check: impl Fn(&Source) -> Vec<String>) {
    let mut complaints = Vec::new();
    for source in sources() {
        complaints.extend(check(&source).into_iter().map(|complaint| format!("{}: {complaint}", source.path)));
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}
