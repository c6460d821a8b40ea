//! A rollback: the state that a newer version of the agent left in `--state-dir`.

use std::path::Path;

use detector_testkit::{Agent, Node, PodSpec, http::TestClient};
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::restart::{ADDRESS, command_with_state, raised, wait_stored};

const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("state.about");
const CONFLICTS: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("state.conflicts");
const CONFLICTS_ASIDE: TableDefinition<'_, u128, &[u8]> =
    TableDefinition::new("state.conflicts-aside");
const ANOMALIES_ASIDE: TableDefinition<'_, &str, &str> =
    TableDefinition::new("state.anomalies-aside");
/// Of the newer version, with values of another type than now.
const ANOMALIES: TableDefinition<'_, &str, &str> = TableDefinition::new("state.open-anomalies");
/// Of the newer version alone.
const ADDED: TableDefinition<'_, &str, u64> = TableDefinition::new("state.added");

const RECORD: &[u8] = br#"{"v":2,"claimants":[]}"#;

fn open(directory: &Path) -> Database {
    Database::open(directory.join("state.redb")).unwrap()
}

/// Makes the state what a version with another format could have written; returns the id of its conflict.
fn rewrite_in_newer_format(directory: &Path) -> u128 {
    let database = open(directory);
    let write = database.begin_write().unwrap();
    let id = {
        let mut conflicts = write.open_table(CONFLICTS).unwrap();
        let id = conflicts.first().unwrap().unwrap().0.value();
        conflicts.insert(id, RECORD).unwrap();
        id
    };
    write.delete_table(ANOMALIES).unwrap();
    for (table, value) in [(ANOMALIES, "{}"), (ABOUT, "2000")] {
        let mut table = write.open_table(table).unwrap();
        table.insert("format", value).unwrap();
    }
    write.open_table(ADDED).unwrap().insert("row", 7).unwrap();
    write.commit().unwrap();
    id
}

#[test]
fn state_of_a_newer_version_is_kept_aside_and_detection_continues() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::new("newer").unwrap();
    let specs = ["vetha", "vethb"].map(|d| PodSpec::new(d).address(format!("{ADDRESS}/32")));
    let pods = node.add_pods(&specs).unwrap();
    let start = || Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    let mut newer = start();
    raised(&newer, ADDRESS);
    wait_stored(&newer, 1);
    newer.kill().unwrap();
    let id = rewrite_in_newer_format(directory.path());

    let mut older = start();
    let conflict = raised(&older, ADDRESS);
    wait_stored(&older, 1);
    let ready = TestClient::of_agent(&node);
    let ready = ready.get("/readyz").unwrap().json().unwrap();
    let parts = ready["parts"].as_array().unwrap();
    let state = parts.iter().find(|part| part["name"] == "state").unwrap();
    assert_eq!(state["state"], "works", "{ready}");
    let log = older.log();
    let warnings: Vec<_> = log
        .lines()
        .filter(|line| line.contains("state-dir") && !line.contains("\"INFO\""))
        .collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("has format 2000"), "{log}");
    older.kill().unwrap();

    // What the newer version wrote is still there.
    let database = open(directory.path());
    let read = database.begin_read().unwrap();
    let conflicts = read.open_table(CONFLICTS_ASIDE).unwrap();
    assert_eq!(conflicts.get(id).unwrap().unwrap().value(), RECORD);
    let anomalies = read.open_table(ANOMALIES_ASIDE).unwrap();
    assert_eq!(anomalies.get("format").unwrap().unwrap().value(), "{}");
    let added = read.open_table(ADDED).unwrap();
    assert_eq!(added.get("row").unwrap().unwrap().value(), 7);
    drop((conflicts, anomalies, added, read, database));

    // The older version continues its own state.
    let next = start();
    node.delete_pods(pods).unwrap();
    let resolved = next.wait_resolved(ADDRESS).unwrap();
    let resolved = resolved.event.conflict().unwrap();
    assert_eq!(resolved.conflict_id, conflict.conflict_id);
}
