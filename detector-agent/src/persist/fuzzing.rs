//! Fuzz entry points: a store with arbitrary records; see [`crate::fuzzing`]. The content of an open conflict's record has
//! a target of its own beside the engine, which restores it.

use detector_engine::{
    Engine, Observation, OpenConflict, Settings, SnapshotScope, SnapshotToken, TimedObservation,
    Timestamp,
};
use redb::Database;

use super::{
    WriteRequest, anomalies,
    conflicts::{self, ABOUT, CONFLICTS, FORMAT},
};
use crate::persist::store::{Store, StoreError};

/// The boot and network namespace.
const WORLD: &str = "here";

/// Decodes open anomalies and restores them on a node that has nothing.
pub fn open_anomalies(bytes: &[u8]) {
    let restored: Vec<_> = records(bytes)
        .iter()
        .filter_map(|record| anomalies::decode(record))
        .collect();
    for anomaly in &restored {
        let again = anomalies::decode(&anomalies::encode(anomaly));
        assert_eq!(
            again.as_ref(),
            Some(anomaly),
            "a record changes when it is stored"
        );
    }
    let mut engine = Engine::new(Settings::default());
    let count = restored.len();
    engine.restore(Vec::new(), restored);
    assert_eq!(engine.view().anomalies().len(), count);
    let mut effects = Vec::new();
    let observations = [
        Observation::SnapshotStarted(SnapshotToken(1)),
        Observation::Snapshot(SnapshotToken(1), SnapshotScope::Node, Box::default()),
    ];
    for (time, what) in (1..).zip(observations) {
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
    engine.step(
        Timestamp(u64::MAX),
        TimedObservation::new(Timestamp(u64::MAX), Observation::DeadlineReached),
        &mut effects,
    );
}

/// The records in a JSON list.
fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let list = serde_json::from_slice::<Vec<serde_json::Value>>(bytes);
    let records = list.unwrap_or_default().into_iter();
    records
        .map(|record| record.to_string().into_bytes())
        .collect()
}

/// Prepares a store; the first three lines are format, world and clock, the rest is a record.
pub fn state_records(bytes: &[u8]) {
    let mut parts = bytes.splitn(4, |byte| *byte == b'\n');
    let mut line = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
    let (Some(format), Some(world), Some(clock)) = (line(), line(), line()) else {
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
        let mut table = write.open_table(CONFLICTS)?;
        table.insert(id.as_ref().copied().unwrap_or(0), record)?;
    }
    let restored = conflicts::prepare(&write, WORLD)?;
    let ours = format == FORMAT && world == WORLD;
    assert_eq!(restored.len(), usize::from(ours && id.is_ok()));
    // Once prepared, the records belong to this agent.
    let again = conflicts::prepare(&write, WORLD)?;
    assert_eq!(again, restored);
    let all = restored
        .into_iter()
        .map(|record| WriteRequest::PutConflict(Box::new(record)));
    let batch: Vec<_> = [WriteRequest::BeginFullList]
        .into_iter()
        .chain(all)
        .chain([WriteRequest::EndFullList])
        .collect();
    let open = conflicts::write(&write, &batch, &mut None)?;
    assert_eq!(open, again.len() as u64);
    write.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;

    #[test]
    fn the_seed_corpus_is_decoded() {
        let list = include_bytes!("../../../fuzz/corpus/open_anomalies/one-of-each");
        let records = records(list);
        let restored = records.iter().filter_map(|r| anomalies::decode(r));
        assert_eq!((records.len(), restored.count()), (5, 5));
        let ours = include_str!("../../../fuzz/corpus/state_records/ours");
        let record = ours.lines().last().unwrap();
        serde_json::from_str::<OpenConflict>(record).unwrap();
        assert!(ours.starts_with(FORMAT));
    }
}
