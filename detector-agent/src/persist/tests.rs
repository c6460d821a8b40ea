#![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

use std::{
    net::IpAddr,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use redb::{ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::*;
use crate::{
    clock,
    engine::{
        AnomalyCause, AnomalyId, AnomalyKind, Engine, FrameClaim, FrameKind, Ipam, Link, LinkKind,
        Mac, Observation, PoolSource, Settings, Snapshot, SnapshotScope, SnapshotToken,
        TimedObservation, Timestamp, Vlan,
    },
    health::{Health, Role, State as PartState},
    persist::store::StoreError,
};

const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("state.about");

/// An engine with conflicts seen only in frames, and its persistence.
struct TestNode {
    engine: Engine,
    health: Health,
    metrics: Arc<Metrics>,
    running: Option<(PersistenceHandle, PersistenceThread)>,
    restored: Restored,
}

impl TestNode {
    fn new(store: Store) -> Self {
        let health = Health::default();
        let metrics = Arc::new(Metrics::new());
        let part = health.part(Role::Sink, "open conflicts");
        let refresh = Duration::from_secs(30);
        let (handle, thread, restored) = start(Arc::new(store), refresh, part, &metrics).unwrap();
        Self {
            engine: Engine::new(Settings::default()),
            health,
            metrics,
            running: Some((handle, thread)),
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
        for conflict in self.engine.conflicts_of(address, clock::now()) {
            handle.conflict_changed(&self.engine, &conflict);
        }
    }

    fn handle(&mut self) -> (&mut PersistenceHandle, &Engine) {
        (&mut self.running.as_mut().unwrap().0, &self.engine)
    }

    /// Shuts down: everything queued is written.
    fn end(&mut self) {
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
        let text = self.metrics.encode(None).unwrap();
        let series =
            format!("ipconflict_deliveries_total{{sink=\"state\",outcome=\"{outcome}\"}} ");
        let value = text.lines().find_map(|l| l.strip_prefix(series.as_str()));
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
fn records_of_another_boot_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    store_two_conflicts(directory.path());
    set(directory.path(), "world", "another boot");
    assert!(TestNode::at(directory.path()).restored().is_empty());
    // They stay dropped.
    assert!(TestNode::at(directory.path()).restored().is_empty());
}

#[test]
fn records_of_an_unknown_format_are_moved_aside() {
    let directory = tempfile::tempdir().unwrap();
    store_two_conflicts(directory.path());
    for _ in 0..2 {
        set(directory.path(), "format", "2000");
        let node = TestNode::at(directory.path());
        assert!(node.restored().is_empty());
        assert_eq!(node.part().0, PartState::Works);
    }
    let store = Store::in_directory(directory.path()).unwrap();
    let read = store.database().unwrap().begin_read().unwrap();
    let names = read.list_tables().unwrap();
    let names: Vec<_> = names
        .map(|t| redb::TableHandle::name(&t).to_owned())
        .collect();
    assert!(
        names.iter().any(|n| n == "state.conflicts-aside"),
        "{names:?}"
    );
}

#[test]
fn an_undecodable_record_does_not_affect_others() {
    const CONFLICTS: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("state.conflicts");
    let directory = tempfile::tempdir().unwrap();
    store_two_conflicts(directory.path());
    let store = Store::in_directory(directory.path()).unwrap();
    let write = store.database().unwrap().begin_write().unwrap();
    {
        let mut table = write.open_table(CONFLICTS).unwrap();
        let (id, record) = {
            let (id, record) = table.first().unwrap().unwrap();
            (id.value(), record.value().to_vec())
        };
        table.insert(id, &record[..record.len() / 2]).unwrap();
        // Another one under a wrong id.
        table.insert(7, record.as_slice()).unwrap();
    }
    write.commit().unwrap();
    drop(store);
    assert_eq!(TestNode::at(directory.path()).restored().len(), 1);
}

#[test]
fn a_hanging_store_delays_nothing_and_gets_all_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let (resume, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let open = move || {
        // The disk does not answer until the test lets it.
        let _ = wait.lock().unwrap().recv();
        let opened = store::builder().create(&path);
        opened.map_err(|source| StoreError::Open {
            path: path.clone(),
            source: Box::new(source),
        })
    };
    let before = Instant::now();
    let mut node = TestNode::new(Store::new(true, Box::new(open)));
    assert!(
        before.elapsed() >= START,
        "the start waits, but not forever"
    );
    assert_eq!(node.part().0, PartState::Failed);
    node.observe_frames(1);
    for _ in 0..=QUEUE {
        node.changed(address(0));
    }
    assert_eq!(node.delivered("dropped"), 1);
    drop(resume);
    let deadline = Instant::now() + Duration::from_secs(20);
    while node.delivered("delivered") < QUEUE as u64 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let (handle, engine) = node.handle();
    handle.tick(engine, clock::now());
    node.end();
    assert_eq!(
        node.delivered("delivered"),
        QUEUE as u64 + 3,
        "the full list"
    );
    let detail = node.part();
    assert_eq!(
        detail,
        (PartState::Works, "1 open conflict stored".to_owned())
    );
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

#[test]
fn conflicts_are_stored_again_after_any_damage_to_the_file() {
    const PIECE: usize = 256;
    let directory = tempfile::tempdir().unwrap();
    store_two_conflicts(directory.path());
    let path = directory.path().join("state.redb");
    let intact = std::fs::read(&path).unwrap();
    let mut put_aside = 0;
    for (number, piece) in intact.chunks(PIECE).enumerate() {
        if piece.iter().all(|byte| *byte == 0) {
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut damaged = intact.clone();
        for byte in damaged.iter_mut().skip(number * PIECE).take(PIECE) {
            *byte ^= 0x5a;
        }
        std::fs::write(directory.path().join("state.redb"), damaged).unwrap();
        let mut node = TestNode::at(directory.path());
        let restored = node.restored().len();
        assert!(restored == 0 || restored == 2, "piece {number}");
        put_aside += usize::from(restored == 0);
        node.observe_frames(1);
        let (handle, engine) = node.handle();
        handle.request_full_list();
        handle.tick(engine, clock::now());
        node.end();
        assert_eq!(
            node.part(),
            (PartState::Works, "1 open conflict stored".to_owned()),
            "piece {number}"
        );
    }
    assert!(put_aside > 0);
}

fn anomaly(id: u128) -> Anomaly {
    Anomaly {
        id: AnomalyId(id),
        kind: AnomalyKind::IpamLeak,
        cause: AnomalyCause::NoLiveOwner,
        address: address(1),
        vlan: Vlan::default(),
        holder: None,
        also_on: vec!["veth1".to_owned()],
        source: Some(Arc::new(PoolSource {
            ipam: Ipam::HostLocal,
            network: "cbr0".to_owned(),
            place: "/var/lib/cni/networks/cbr0".to_owned(),
        })),
        owner: Some("container".into()),
        detail: "detail".to_owned(),
        raised_at: Timestamp(1),
        decided_at: Timestamp(2),
        resolved_at: None,
        resolve_reason: None,
    }
}

#[test]
fn open_anomalies_are_restored() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = TestNode::at(directory.path());
    node.engine.restore_anomalies(vec![anomaly(1), anomaly(2)]);
    let (handle, engine) = node.handle();
    handle.anomalies_changed();
    handle.flush_anomalies(engine);
    node.end();
    let mut restored = TestNode::at(directory.path()).restored.anomalies.clone();
    restored.sort_by_key(|anomaly| anomaly.id);
    assert_eq!(restored, [anomaly(1), anomaly(2)]);
}

#[test]
fn a_lost_list_of_anomalies_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken = Arc::clone(&is_broken);
    let open = move || {
        if broken.load(Ordering::Relaxed) {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(redb::Error::Io(full).into());
        }
        let opened = store::builder().create(path.join("state.redb"));
        opened.map_err(|error| redb::Error::from(error).into())
    };
    let mut node = TestNode::new(Store::new(true, Box::new(open)));
    node.engine.restore_anomalies(vec![anomaly(1)]);
    let (handle, engine) = node.handle();
    handle.anomalies_changed();
    handle.tick(engine, clock::now());
    is_broken.store(false, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(20);
    while node.part().0 != PartState::Works {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
        let (handle, engine) = node.handle();
        handle.tick(engine, clock::now());
    }
    node.end();
    let node = TestNode::at(directory.path());
    assert_eq!(node.restored.anomalies, [anomaly(1)]);
}
