//! Every fuzz target is built, has seeds, is run by `fuzz/run`, and is replayed by an ordinary test.

use super::source::sources;
use millpond_tests::tools::repository;
use std::collections::BTreeSet;

#[test]
fn fuzz_targets_are_listed_seeded_and_replayed() {
    let targets = names("fuzz/fuzz_targets", ".rs");
    assert!(targets.len() >= 15, "{targets:?}");
    assert_eq!(names("fuzz/corpus-seeds", ""), targets, "each target has its seeds");
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).expect("a file of the checkout");
    let manifest: toml::Table = toml::from_str(&read("fuzz/Cargo.toml")).expect("a manifest is TOML");
    let bins = manifest["bin"].as_array().expect("the targets").iter();
    let listed: BTreeSet<String> = bins.filter_map(|bin| Some(bin.get("name")?.as_str()?.to_owned())).collect();
    assert_eq!(listed, targets, "fuzz/Cargo.toml lists each target");
    let run = read("fuzz/run");
    let sources = sources();
    for target in &targets {
        assert!(run.split([' ', '\n', '(', ')']).any(|word| word == target), "fuzz/run runs `{target}`");
        let text = read(&format!("fuzz/fuzz_targets/{target}.rs"));
        let property = text.split_once("::properties::").and_then(|(_, rest)| rest.split_once(')'));
        let (property, _) = property.expect("a target is one property");
        let replay = format!("check(\"{target}\", &{property}_seeds(), {property})");
        assert!(sources.iter().any(|source| source.text.contains(&replay)), "no test says `{replay}`");
    }
}

/// What lies in a folder of the checkout, without its ending.
fn names(folder: &str, ending: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(repository().join(folder)).expect("a folder of the checkout");
    entries
        .filter_map(|entry| {
            let name = entry.expect("a readable entry").file_name().to_string_lossy().into_owned();
            name.strip_suffix(ending).map(str::to_owned)
        })
        .collect()
}
