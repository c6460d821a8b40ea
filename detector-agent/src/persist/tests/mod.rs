//! What is open survives a restart.
#![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

mod anomalies;
mod damage;
mod history;

use std::{
    net::IpAddr,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use detector_engine::{
    AnomalyCause, AnomalyId, AnomalyKind, Engine, FrameClaim, FrameKind, Ipam, Link, LinkKind, Mac,
    Observation, PoolSource, Settings, Snapshot, SnapshotScope, SnapshotToken, TimedObservation,
    Timestamp, Vlan,
};
use detector_event::{Role, State as PartState};
use redb::{ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::*;
use crate::{health::Health, persist::store::StoreError, process::clock};

const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("state.about");

/// An engine with conflicts seen only in frames, and its persistence.
struct TestNode {
    engine: Engine,
    health: Health,
    metrics: Arc<Metrics>,
    running: Option<(PersistenceHandle, PersistenceThread)>,
    sink: Option<HistorySink>,
    history: Arc<History>,
    restored: Restored,
}

impl TestNode {
    fn new(store: Store) -> Self {
        Self::with_history(store, History::default())
    }

    fn with_history(store: impl Into<Arc<Store>>, history: History) -> Self {
        let history = Arc::new(history);
        let health = Health::default();
        let metrics = Arc::new(Metrics::new());
        let part = health.part(Role::Sink, "state");
        let refresh = Duration::from_secs(30);
        let (persistence, thread) =
            start(store.into(), Arc::clone(&history), refresh, part, &metrics).unwrap();
        let Persistence {
            handle,
            sink,
            restored,
        } = persistence;
        Self {
            engine: Engine::new(Settings::default()),
            health,
            metrics,
            running: Some((handle, thread)),
            sink: Some(sink),
            history,
            restored,
        }
    }

    fn at(directory: &Path) -> Self {
        Self::new(Store::at(directory))
    }

    /// Conflicts on this many addresses.
    fn observe_frames(&mut self, addresses: u8) {
        let mut effects = Vec::new();
        let mut step = |observation| {
            let at = clock::now();
            self.engine
                .step(at, TimedObservation { at, observation }, &mut effects);
        };
        let links: Vec<_> = (1..=2).map(device).collect();
        step(Observation::SnapshotStarted(SnapshotToken(1)));
        let snapshot = Snapshot {
            links,
            ..Snapshot::default()
        };
        step(Observation::Snapshot(
            SnapshotToken(1),
            SnapshotScope::Node,
            Box::new(snapshot),
        ));
        for (number, ifindex) in (0..addresses).flat_map(|n| [(n, 1), (n, 2)]) {
            let mac = Mac([2, 0, 0, 0, 0, u8::try_from(ifindex).unwrap()]);
            step(Observation::Frame(FrameClaim {
                ifindex,
                address: address(number),
                mac,
                ether_source: mac,
                vlan: Vlan::default(),
                kind: FrameKind::Arp,
                tentative: false,
            }));
        }
    }

    fn changed(&mut self, address: IpAddr) {
        let (handle, _) = self.running.as_mut().unwrap();
        for conflict in self.engine.view().conflicts_of(address, clock::now()) {
            handle.conflict_changed(&self.engine, &conflict);
        }
    }

    fn handle(&mut self) -> (&mut PersistenceHandle, &Engine) {
        (&mut self.running.as_mut().unwrap().0, &self.engine)
    }

    /// Shuts down: everything queued is written.
    fn end(&mut self) {
        self.sink = None;
        if let Some((handle, thread)) = self.running.take() {
            drop(handle);
            thread.finish();
        }
    }

    fn restored(&self) -> Vec<IpAddr> {
        let conflicts = self.restored.conflicts.iter();
        let mut addresses: Vec<_> = conflicts.map(|record| record.conflict.address).collect();
        addresses.sort_unstable();
        addresses
    }

    fn part(&self) -> (PartState, String) {
        let part = self.health.report().remove(0);
        (part.state, part.detail)
    }

    fn delivered(&self, outcome: &str) -> u64 {
        self.metric(&format!(
            "ipconflict_deliveries_total{{sink=\"state\",outcome=\"{outcome}\"}} "
        ))
    }

    /// What waits to be taken from the queue.
    fn pending(&self) -> u64 {
        self.metric("ipconflict_outbox_pending{sink=\"state\"} ")
    }

    fn metric(&self, series: &str) -> u64 {
        let text = self.metrics.encode(None).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series));
        value.unwrap().parse().unwrap()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.end();
    }
}

fn address(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

fn device(ifindex: u32) -> Link {
    Link {
        ifindex,
        name: format!("veth{ifindex}"),
        alias: None,
        kind: LinkKind::Pod,
        mac: None,
        master: None,
        peer: None,
        up: true,
        is_tap: false,
        running: true,
        vlan_filtering: None,
    }
}

/// An earlier agent leaves two conflicts open in `directory`.
fn store_two_conflicts(directory: &Path) {
    let mut node = TestNode::at(directory);
    node.observe_frames(2);
    for number in 0..2 {
        node.changed(address(number));
    }
    node.end();
}

fn set(directory: &Path, key: &str, value: &str) {
    let store = Store::in_directory(directory).unwrap();
    let write = store.database().unwrap().begin_write().unwrap();
    write.open_table(ABOUT).unwrap().insert(key, value).unwrap();
    write.commit().unwrap();
}

#[test]
fn open_conflicts_are_restored() {
    let directory = tempfile::tempdir().unwrap();
    store_two_conflicts(directory.path());
    let node = TestNode::at(directory.path());
    assert_eq!(node.restored(), [address(0), address(1)]);
}

#[test]
fn resolved_conflicts_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    store_two_conflicts(directory.path());
    let mut node = TestNode::at(directory.path());
    let over = node.restored.conflicts[0].conflict.clone();
    let (handle, engine) = node.handle();
    handle.conflict_changed(engine, &over);
    node.end();
    assert_eq!(TestNode::at(directory.path()).restored().len(), 1);
}

#[test]
fn a_full_list_replaces_the_stored_conflicts() {
    let directory = tempfile::tempdir().unwrap();
    store_two_conflicts(directory.path());
    let mut node = TestNode::at(directory.path());
    node.observe_frames(1);
    let (handle, engine) = node.handle();
    handle.request_full_list();
    handle.tick(engine, clock::now());
    node.end();
    assert_eq!(TestNode::at(directory.path()).restored(), [address(0)]);
}

#[test]
fn evidence_from_frames_is_refreshed_periodically() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = TestNode::at(directory.path());
    node.observe_frames(1);
    let (handle, engine) = node.handle();
    let now = clock::now();
    handle.tick(engine, now);
    handle.tick(engine, now + Duration::from_secs(29));
    handle.tick(engine, now + Duration::from_secs(30));
    node.end();
    assert_eq!(node.delivered("delivered"), 2);
}
