//! Which crate stands on which floor, and what it may depend on. A new edge is a decision: it is added here first.

use millpond_tests::tools::repository;
use std::collections::{BTreeMap, BTreeSet};

struct Crate {
    name: &'static str,
    floor: u8,
    may_use: &'static [&'static str],
}

const CRATES: &[Crate] = &[
    Crate { name: "log", floor: 0, may_use: &[] },
    Crate { name: "cache", floor: 0, may_use: &[] },
    Crate { name: "core", floor: 1, may_use: &["log"] },
    Crate { name: "proto", floor: 1, may_use: &["log"] },
    Crate { name: "metadata", floor: 2, may_use: &["log", "core"] },
    Crate { name: "sdk", floor: 2, may_use: &["log", "proto"] },
    Crate { name: "broker", floor: 3, may_use: &["log", "cache", "core", "proto", "metadata"] },
    Crate { name: "cli", floor: 4, may_use: &["log", "metadata", "sdk", "broker"] },
    Crate { name: "tests/sim", floor: 2, may_use: &["log", "core"] },
    Crate { name: "tests", floor: 4, may_use: &["log", "core", "proto", "metadata", "sdk", "broker"] },
    Crate { name: "tests/faults", floor: 5, may_use: &["log", "proto", "sdk", "tests"] },
    Crate { name: "bench", floor: 4, may_use: &["proto", "sdk"] },
];

/// Outside crates that only some of ours may use, tests aside: each is a thing that the floors keep out of the rest.
const RESERVED: &[(&str, &[&str])] = &[
    ("axum", &["broker"]),
    ("clap", &["cli"]),
    ("etcd-client", &["metadata"]),
    ("foyer", &["cache"]),
    ("kafka-protocol", &["broker", "tests"]),
    ("object_store", &["cache", "broker", "cli", "tests"]),
    ("rand", &["cache", "sdk", "broker", "cli", "tests", "tests/faults"]),
    ("redb", &["metadata"]),
    ("rustix", &["metadata", "broker", "cli", "tests", "bench", "tests/faults"]),
    ("socket2", &["sdk", "broker", "cli"]),
    ("tokio", &["cache", "metadata", "sdk", "broker", "cli", "tests", "bench", "tests/faults"]),
    ("tonic", &["proto", "metadata", "sdk", "broker", "cli", "tests", "bench", "tests/faults"]),
];

#[test]
fn every_listed_edge_goes_down() {
    let floors: BTreeMap<&str, u8> = CRATES.iter().map(|listed| (listed.name, listed.floor)).collect();
    for listed in CRATES {
        for used in listed.may_use {
            assert!(floors[used] < listed.floor, "`{}` is not above `{used}`", listed.name);
        }
    }
}

#[test]
fn workspace_members_are_the_listed_crates() {
    let manifest = manifest("Cargo.toml");
    let members = manifest["workspace"]["members"].as_array().expect("`members` is an array");
    let members: BTreeSet<&str> = members.iter().filter_map(toml::Value::as_str).collect();
    let listed: BTreeSet<&str> = CRATES.iter().map(|listed| listed.name).collect();
    assert_eq!(members, listed);
}

#[test]
fn crates_depend_only_as_listed() {
    for listed in CRATES {
        let manifest = manifest(&format!("{}/Cargo.toml", listed.name));
        for dependency in dependencies(&manifest, true) {
            let Some(ours) = dependency.strip_prefix("millpond-") else { continue };
            assert!(listed.may_use.contains(&ours), "`{}` may not depend on `{ours}`", listed.name);
        }
    }
}

#[test]
fn reserved_crates_stay_where_they_belong() {
    for listed in CRATES {
        let manifest = manifest(&format!("{}/Cargo.toml", listed.name));
        let used = dependencies(&manifest, false);
        for (reserved, users) in RESERVED {
            let strays = used.contains(*reserved) && !users.contains(&listed.name);
            assert!(!strays, "`{}` may not depend on `{reserved}`, which belongs to {users:?}", listed.name);
        }
    }
}

#[test]
fn dependencies_are_found_in_every_table() {
    let text = "
        [dependencies]
        a = '1'
        [dev-dependencies]
        b.workspace = true
        [build-dependencies]
        c = { path = 'x' }
        [target.'cfg(unix)'.dependencies]
        d = { package = 'real-d', version = '1' }
    ";
    let manifest = toml::from_str(text).expect("valid TOML");
    let names = |tests| dependencies(&manifest, tests).into_iter().collect::<Vec<String>>();
    assert_eq!(names(true), ["a", "b", "c", "real-d"]);
    assert_eq!(names(false), ["a", "c", "real-d"]);
}

fn manifest(path: &str) -> toml::Table {
    let text = std::fs::read_to_string(repository().join(path)).expect("a listed crate has a manifest");
    toml::from_str(&text).expect("a manifest is TOML")
}

/// Package names in the dependency tables of a manifest, those of its targets included; `tests` adds dev-dependencies.
fn dependencies(manifest: &toml::Table, tests: bool) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (key, value) in manifest {
        let Some(table) = value.as_table() else { continue };
        match key.as_str() {
            "dependencies" | "build-dependencies" => names.extend(table.iter().map(package)),
            "dev-dependencies" if tests => names.extend(table.iter().map(package)),
            "target" => {
                names.extend(table.values().filter_map(toml::Value::as_table).flat_map(|t| dependencies(t, tests)));
            }
            _ => {}
        }
    }
    names
}

fn package((key, value): (&String, &toml::Value)) -> String {
    value.get("package").and_then(toml::Value::as_str).unwrap_or(key).to_owned()
}
