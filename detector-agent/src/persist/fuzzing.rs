//! A store that holds anything at all; see [`crate::fuzzing`]. What stands in an open conflict's record has a target of its
//! own beside the engine, which goes on with it.

use redb::Database;

use super::{
    Change,
    anomalies::Kept,
    records::{self, ABOUT, CONFLICTS, FORMAT},
};
use crate::{
    engine::{
        Anomaly, Engine, Observation, OpenConflict, Settings, SnapshotScope, SnapshotToken,
        TimedObservation, Timestamp,
    },
    persist::store::{Store, StoreError},
};

/// Where this agent is.
const WORLD: &str = "here";

/// Reads the open anomalies and goes on with them on a node that has nothing.
pub fn open_anomalies(bytes: &[u8]) {
    let Ok(kept) = serde_json::from_slice::<Vec<Kept>>(bytes) else {
        return;
    };
    let held: Vec<Anomaly> = kept.into_iter().filter_map(Kept::anomaly).collect();
    for anomaly in &held {
        let again = serde_json::to_vec(&Kept::of(anomaly.clone()))
            .ok()
            .and_then(|text| serde_json::from_slice::<Kept>(&text).ok())
            .and_then(Kept::anomaly);
        assert_eq!(
            again.as_ref(),
            Some(anomaly),
            "a record does not survive being written"
        );
    }
    let mut engine = Engine::new(Settings::default());
    let held_before = held.len();
    engine.restore_anomalies(held);
    assert_eq!(engine.anomalies().len(), held_before);
    let mut effects = Vec::new();
    let told = [
        Observation::SnapshotStarted(SnapshotToken(1)),
        Observation::Snapshot(SnapshotToken(1), SnapshotScope::Node, Box::default()),
    ];
    for (time, what) in (1..).zip(told) {
        let at = Timestamp(time);
        engine.step(
            at,
            TimedObservation {
                at,
                observation: what,
            },
            &mut effects,
        );
    }
    engine.expire(Timestamp(u64::MAX), &mut effects);
}

/// Prepares a store of which the first three lines are format, world and clock, and the rest a record.
pub fn state_records(bytes: &[u8]) {
    let mut parts = bytes.splitn(4, |byte| *byte == b'\n');
    let mut word = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
    let (Some(format), Some(world), Some(clock)) = (word(), word(), word()) else {
        return;
    };
    let record = parts.next().unwrap_or_default();
    let store = Store::in_memory();
    let went = store
        .database()
        .and_then(|database| prepare(&database, [format, world, clock], record));
    assert!(went.is_ok(), "a store in memory fails: {went:?}");
}

fn prepare(
    database: &Database,
    [format, world, clock]: [&str; 3],
    record: &[u8],
) -> Result<(), StoreError> {
    let id = serde_json::from_slice::<OpenConflict>(record).map(|record| record.conflict.id.0);
    let write = database.begin_write()?;
    {
        let mut about = write.open_table(ABOUT)?;
        about.insert("format", format)?;
        about.insert("world", world)?;
        about.insert("clock", clock)?;
        let mut conflicts = write.open_table(CONFLICTS)?;
        conflicts.insert(id.as_ref().copied().unwrap_or(0), record)?;
    }
    let kept = records::prepare(&write, WORLD)?;
    let ours = format == FORMAT && world == WORLD;
    assert_eq!(kept.len(), usize::from(ours && id.is_ok()));
    // Prepared once, it is this agent's.
    let again = records::prepare(&write, WORLD)?;
    assert_eq!(again, kept);
    let all = kept
        .into_iter()
        .map(|record| Change::Keep(Box::new(record)));
    let changes: Vec<_> = [Change::Begin]
        .into_iter()
        .chain(all)
        .chain([Change::End])
        .collect();
    let open = records::write(&write, &changes, &mut None)?;
    assert_eq!(open, again.len() as u64);
    write.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;

    #[test]
    fn the_first_inputs_are_understood() {
        let list = include_bytes!("../../../fuzz/corpus/open_anomalies/one-of-each");
        let kept: Vec<Kept> = serde_json::from_slice(list).unwrap();
        assert_eq!(kept.into_iter().filter_map(Kept::anomaly).count(), 4);
        let ours = include_str!("../../../fuzz/corpus/state_records/ours");
        let record = ours.lines().last().unwrap();
        serde_json::from_str::<OpenConflict>(record).unwrap();
        assert!(ours.starts_with(FORMAT));
    }
}
