//! The Rust files of the checkout, and the part of each that ships.

use millpond_tests::tools::repository;
use std::path::{Path, PathBuf};

/// One Rust file.
pub(super) struct Source {
    /// Its path from the repository's root, with `/`.
    pub(super) path: String,
    /// All of it.
    pub(super) text: String,
}

impl Source {
    /// The text before the file's own tests, by convention its last item.
    pub(super) fn shipped(&self) -> &str {
        match self.text.find("\n#[cfg(test)]\nmod ") {
            Some(tests) => &self.text[..=tests],
            None => &self.text,
        }
    }

    /// Whether the whole file is tests.
    pub(super) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches"))
    }
}

/// Every Rust file of the checkout, by path.
pub(super) fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    walk(repository(), &mut paths);
    paths.sort();
    assert!(paths.len() > 9, "the walk finds each crate's root at least, not only {paths:?}");
    paths
        .into_iter()
        .map(|path| Source {
            text: std::fs::read_to_string(&path).expect("a source file is readable UTF-8"),
            path: relative(&path),
        })
        .collect()
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the checkout is readable") {
        let path = entry.expect("the checkout is readable").path();
        let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "millpond-data" {
                walk(&path, paths);
            }
        } else if name.ends_with(".rs") {
            paths.push(path);
        }
    }
}

fn relative(path: &Path) -> String {
    let inside = path.strip_prefix(repository()).expect("the walk stays inside the repository");
    inside.to_string_lossy().replace('\\', "/")
}
