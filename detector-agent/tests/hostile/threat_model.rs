//! The threat model in `docs/security.md` and these tests belong together.

use std::{collections::BTreeSet, env, process::Command};

const DOCUMENT: &str = include_str!("../../../docs/security.md");
const HEADING: &str = "## What a hostile pod can do";

#[test]
fn each_row_of_the_threat_model_names_tests_of_this_binary() {
    let listed = Command::new(env::current_exe().unwrap())
        .arg("--list")
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let tests: BTreeSet<_> = listed
        .lines()
        .filter_map(|l| l.strip_suffix(": test"))
        .collect();
    let (_, table) = DOCUMENT.split_once(HEADING).unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(2);
    let mut count = 0;
    for row in rows {
        count += 1;
        let named = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for test in named.split(", ") {
            let test = test.trim_matches('`');
            assert!(tests.contains(test), "{test} is no test: {row}");
        }
    }
    assert!(count > 10, "{count} rows");
}
