//! No cycles among the modules of a crate: of two siblings at most one may reach the other, however deep their files lie.
//! A parent and its own children may name each other. Reads `crate::` and `super::` paths, through re-exports; not macros.

use super::source::{Source, sources};
use std::collections::{BTreeMap, BTreeSet};

/// A module by its path inside its crate; the root is empty.
type Module = Vec<String>;

/// Who names whom. Only edges between children of one parent.
type Graph = BTreeMap<Module, BTreeSet<Module>>;

#[test]
fn modules_have_no_cycles() {
    let mut crates: BTreeMap<String, Vec<(Module, String)>> = BTreeMap::new();
    for source in sources().iter().filter(|source| !source.is_test()) {
        if let Some((owner, module)) = module_of(source) {
            crates.entry(owner).or_default().push((module, code(source.shipped())));
        }
    }
    let mut circles = Vec::new();
    for (owner, files) in crates {
        if let Some(cycle) = cycle(&graph(&files)) {
            let names: Vec<String> = cycle.iter().map(|module| module.join("::")).collect();
            circles.push(format!("{owner}: {}", names.join(" -> ")));
        }
    }
    assert!(circles.is_empty(), "modules name each other in a circle:\n{}", circles.join("\n"));
}

#[test]
fn cycles_are_found() {
    check(&[("a", "use crate::b::X;"), ("b", "use crate::c;"), ("c", "")], false);
    check(&[("a", "use crate::b::X;"), ("b", "fn f() { crate::a::g() }")], true);
    check(&[("a", "use super::b;"), ("b", "use crate::{c, a::X};"), ("c", "")], true);
    // Through a re-export of the root.
    check(&[("", "pub use b::{Y, Z};"), ("a", "use crate::Y;"), ("b", "use crate::a::X;")], true);
    // A parent and its child are one thing; two children of different parents tie the parents together.
    check(&[("a", "use self::x::X;"), ("a::x", "use super::Y; use crate::a::Z;")], false);
    check(&[("a", ""), ("a::x", "use crate::b::y::Y;"), ("b", ""), ("b::y", "use crate::a::Z;")], true);
    // Comments name what they like.
    check(&[("a", "use crate::b;"), ("b", "/// Like [`crate::a::X`].\nfn f() {}")], false);
}

fn check(files: &[(&str, &str)], cyclic: bool) {
    let files: Vec<(Module, String)> = files.iter().map(|(path, text)| (parse(path), code(text))).collect();
    assert_eq!(cycle(&graph(&files)).is_some(), cyclic, "{files:?}");
}

fn parse(path: &str) -> Module {
    path.split("::").filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

/// The crate and the module of a file under `src/`.
fn module_of(source: &Source) -> Option<(String, Module)> {
    let (owner, file) = source.path.split_once("/src/")?;
    let mut module = parse(&file.strip_suffix(".rs")?.replace('/', "::"));
    if module.last().is_some_and(|last| matches!(last.as_str(), "lib" | "main" | "mod")) {
        module.pop();
    }
    Some((owner.to_owned(), module))
}

/// The text without line comments.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<&str>>().join("\n")
}

fn graph(files: &[(Module, String)]) -> Graph {
    let modules: BTreeSet<&Module> = files.iter().map(|(module, _)| module).collect();
    let exports = exports(files);
    let mut graph = Graph::new();
    for (from, text) in files {
        for mut path in paths(from, text) {
            if let [name] = path.as_slice()
                && let Some(home) = exports.get(name)
            {
                path.clone_from(home);
            }
            while !modules.contains(&path) {
                // The last segment is an item of the module, or the root, which is always there.
                if path.pop().is_none() {
                    break;
                }
            }
            let shared = from.iter().zip(&path).take_while(|(a, b)| a == b).count();
            if shared < from.len() && shared < path.len() {
                graph.entry(from[..=shared].to_vec()).or_default().insert(path[..=shared].to_vec());
            }
        }
    }
    graph
}

/// Names that the crate's root re-exports, and from where.
fn exports(files: &[(Module, String)]) -> BTreeMap<String, Module> {
    let mut exports = BTreeMap::new();
    for (_, text) in files.iter().filter(|(module, _)| module.is_empty()) {
        for (at, start) in text.match_indices("pub use ") {
            let mut homes = Vec::new();
            tree(&text[at + start.len()..], &Vec::new(), &mut homes);
            for home in homes {
                if let Some(name) = home.last() {
                    exports.insert(name.clone(), home.clone());
                }
            }
        }
    }
    exports
}

/// Every path of `text` that starts with `crate` or `super`, from the crate's root.
fn paths(from: &Module, text: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for (at, start) in text.match_indices("crate::") {
        if !text[..at].ends_with(is_word) {
            tree(&text[at + start.len()..], &Vec::new(), &mut found);
        }
    }
    for (at, start) in text.match_indices("super::") {
        // A later `super::` of one path is read with its first.
        if text[..at].ends_with(is_word) || text[..at].ends_with("super::") {
            continue;
        }
        let mut base = from.clone();
        base.pop();
        let mut rest = &text[at + start.len()..];
        while let Some(further) = rest.strip_prefix("super::") {
            base.pop();
            rest = further;
        }
        tree(rest, &base, &mut found);
    }
    found
}

/// Reads one use tree, such as `a::{b, c::D}`, and returns what follows it.
fn tree<'a>(text: &'a str, base: &Module, found: &mut Vec<Module>) -> &'a str {
    let mut path = base.clone();
    let mut rest = text.trim_start();
    loop {
        if let Some(mut inner) = rest.strip_prefix('{') {
            loop {
                inner = tree(inner, &path, found).trim_start();
                match inner.strip_prefix(',') {
                    Some(next) => inner = next,
                    None => return inner.strip_prefix('}').unwrap_or(inner),
                }
            }
        }
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        if end > 0 && &rest[..end] != "self" {
            path.push(rest[..end].to_owned());
        }
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(next) => rest = next,
            None => break,
        }
    }
    let renamed = rest.trim_start().strip_prefix("as ").map(|name| name.trim_start_matches(|c| is_word(c) || c == ' '));
    found.push(path);
    renamed.unwrap_or(rest)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Some path through the graph that ends where it began.
fn cycle(graph: &Graph) -> Option<Vec<Module>> {
    let mut done = BTreeSet::new();
    graph.keys().find_map(|start| visit(graph, start, &mut Vec::new(), &mut done))
}

fn visit(graph: &Graph, at: &Module, trail: &mut Vec<Module>, done: &mut BTreeSet<Module>) -> Option<Vec<Module>> {
    if let Some(first) = trail.iter().position(|passed| passed == at) {
        let mut cycle = trail[first..].to_vec();
        cycle.push(at.clone());
        return Some(cycle);
    }
    if !done.insert(at.clone()) {
        return None;
    }
    trail.push(at.clone());
    let found = graph.get(at).into_iter().flatten().find_map(|next| visit(graph, next, trail, done));
    trail.pop();
    found
}
