//! Fuzz target for persisted conflicts; see [`crate::fuzzing`].

use crate::{
    Engine, Link, LinkKind, Observation, OpenConflict, Settings, Snapshot, SnapshotScope,
    SnapshotToken, TimedObservation, Timestamp,
};

/// Parses a persisted conflict and restores it on a node whose links have the names and indices of
/// the record.
pub fn open_conflicts(bytes: &[u8]) {
    let Ok(record) = serde_json::from_slice::<OpenConflict>(bytes) else {
        return;
    };
    let written = serde_json::to_vec(&record).unwrap_or_default();
    assert_eq!(
        serde_json::from_slice(&written).ok().as_ref(),
        Some(&record),
        "a record does not survive being written"
    );
    let links: Vec<Link> = record
        .frames
        .iter()
        .map(|frame| (&frame.device, frame.peer))
        .chain(record.former.iter().map(|former| (&former.bridge, None)))
        .take(16)
        .map(|(name, peer)| Link {
            ifindex: name.ifindex,
            name: name.name.clone(),
            peer,
            alias: None,
            kind: LinkKind::Pod,
            mac: None,
            master: None,
            up: true,
            is_tap: false,
            running: true,
            vlan_filtering: None,
        })
        .collect();
    let mut engine = Engine::new(Settings::default());
    engine.restore(vec![record], Vec::new());
    let mut effects = Vec::new();
    let snapshot = Snapshot {
        links,
        ..Snapshot::default()
    };
    let observations = [
        Observation::SnapshotStarted(SnapshotToken(1)),
        Observation::Snapshot(SnapshotToken(1), SnapshotScope::Node, Box::new(snapshot)),
    ];
    for (time, observation) in (1..).zip(observations) {
        let at = Timestamp(time);
        engine.step(at, TimedObservation { at, observation }, &mut effects);
    }
    let _ = engine.view().open_records(Timestamp(3));
    engine.step(
        Timestamp(u64::MAX),
        TimedObservation::new(Timestamp(u64::MAX), Observation::DeadlineReached),
        &mut effects,
    );
}
