//! The safety rules and the code keep their promise to each other: what the code names exists, and the table of
//! `docs/safety.md` points at files that name the rule.

use super::source::sources;
use millpond_tests::tools::repository;
use std::collections::BTreeSet;

#[test]
fn rules_named_in_the_code_are_defined() {
    let defined = defined(&safety());
    assert!(defined.contains("W3a") && defined.contains("S24") && defined.contains("E1a"), "{defined:?}");
    let mut unknown = Vec::new();
    for source in sources() {
        let named = named(&source.text);
        unknown.extend(named.difference(&defined).map(|rule| format!("{}: rule {rule}", source.path)));
    }
    assert!(unknown.is_empty(), "not in docs/safety.md:\n{}", unknown.join("\n"));
}

#[test]
fn the_table_of_rules_points_at_code_that_names_them() {
    let sources = sources();
    for (rules, files) in table(&safety()) {
        for file in &files {
            let source = sources.iter().find(|source| &source.path == file);
            let source = source.unwrap_or_else(|| panic!("docs/safety.md: `{file}` does not exist"));
            let named = named(&source.text);
            assert!(rules.iter().all(|rule| named.contains(rule)), "`{file}` names {named:?}, not all of {rules:?}");
        }
    }
}

#[test]
fn rules_are_read_off_prose() {
    let read = |text: &str| named(text).into_iter().collect::<Vec<String>>();
    assert_eq!(read("// Rule W3a: sync first (rules W1, B4 and K2)."), ["B4", "K2", "W1", "W3a"]);
    assert_eq!(read("rules W1 to W8; see V01"), ["W1", "W8"]);
    assert!(read("the rule of thumb, B2").is_empty());
    let page = "- **W3a** x\n**E1a:** y\n| S3b* | z |\n| L1 | w |\n| W1, R8 | ack before fsync | 20 / 24 | S5 |\n";
    assert_eq!(defined(page).into_iter().collect::<Vec<String>>(), ["E1a", "L1", "S3b", "W3a"]);
    let page =
        "## Where each rule lives\n| Rule | Upheld in | Shown by |\n|---|---|---|\n| W1, W2 | `a/b.rs` | `c.rs` |\n";
    let row = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<String>>();
    assert_eq!(table(page), [(row(&["W1", "W2"]), row(&["a/b.rs", "c.rs"]))]);
}

fn safety() -> String {
    std::fs::read_to_string(repository().join("docs/safety.md")).expect("the rules are in the checkout")
}

/// Rules that the page defines: in bold at the start of a paragraph, or alone in the first cell of a table's row.
fn defined(page: &str) -> BTreeSet<String> {
    let bold = page.split("**").skip(1).step_by(2).map(|bold| bold.trim_end_matches(':'));
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    bold.chain(cells.map(|cell| cell.trim_end_matches('*'))).filter(|word| is_rule(word)).map(str::to_owned).collect()
}

/// Rules named after the word "rule" or "rules", up to the first word that is neither a rule nor joins two.
fn named(text: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    let mut listing = false;
    for word in text.split_whitespace().filter(|word| !matches!(*word, "//" | "///" | "//!")) {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        if matches!(bare, "rule" | "rules" | "Rule" | "Rules") {
            listing = true;
        } else if listing && is_rule(bare) {
            named.insert(bare.to_owned());
            // A full stop, colon or bracket ends the list.
            listing = word.ends_with(bare) || word.ends_with(',');
        } else if !matches!(bare, "and" | "to" | "or") {
            listing = false;
        }
    }
    named
}

/// One capital letter, a number, and at most one small letter.
fn is_rule(word: &str) -> bool {
    let Some(rest) = word.strip_prefix(|c: char| c.is_ascii_uppercase()) else { return false };
    let number = rest.strip_suffix(|c: char| c.is_ascii_lowercase()).unwrap_or(rest);
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The rows of the page's last table: rules, and the files that uphold or show them.
fn table(page: &str) -> Vec<(Vec<String>, Vec<String>)> {
    let (_, section) = page.split_once("## Where each rule lives").expect("the page has its table");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).skip(1);
    rows.map(|(rules, files)| {
        let rules = rules.split(", ").map(str::to_owned).collect();
        (rules, files.split('`').skip(1).step_by(2).map(str::to_owned).collect())
    })
    .collect()
}
