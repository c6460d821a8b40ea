//! Runs every input of the corpus through its target, without a fuzzer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use detector_fuzz::TARGETS;

/// Maximum size of the corpus, which is part of every clone.
const MAX_BYTES: u64 = 1 << 20;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn every_target_accepts_its_corpus() {
    let mut failed = Vec::new();
    for target in TARGETS {
        let folder = corpus().join(target.name);
        for name in names(&folder) {
            let input = fs::read(folder.join(&name)).unwrap();
            if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
                failed.push(format!("{}/{name}", target.name));
            }
        }
    }
    assert!(
        failed.is_empty(),
        "these inputs break something: {failed:?}"
    );
}

#[test]
fn targets_and_corpora_match() {
    let targets: BTreeSet<String> = TARGETS
        .iter()
        .map(|target| target.name.to_owned())
        .collect();
    assert_eq!(targets, names(&corpus()));
    for target in &targets {
        assert!(!names(&corpus().join(target)).is_empty(), "{target}");
    }
}

#[test]
fn corpus_is_small() {
    let mut bytes = 0;
    for target in TARGETS {
        let folder = corpus().join(target.name);
        for name in names(&folder) {
            bytes += fs::metadata(folder.join(name)).unwrap().len();
        }
    }
    assert!(bytes < MAX_BYTES, "the corpus has {bytes} bytes");
}
