#![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

use std::{
    net::IpAddr,
    path::Path,
    time::{Duration, Instant},
};

use redb::{ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::*;
use crate::{
    clock,
    engine::{
        Engine, FrameClaim, FrameKind, Link, LinkKind, Mac, Observation, Settings, Snapshot,
        SnapshotScope, SnapshotToken, TimedObservation, Vlan,
    },
    health::{Health, Role, State as PartState},
    persist::store::StoreError,
};

const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("state.about");

/// An engine with conflicts that were only heard, and what keeps them.
struct Site {
    engine: Engine,
    health: Health,
    metrics: Arc<Metrics>,
    started: Option<Started>,
}

impl Site {
    fn new(store: Store) -> Self {
        let health = Health::default();
        let metrics = Arc::new(Metrics::new());
        let part = health.part(Role::Sink, "open conflicts");
        let refresh = Duration::from_secs(30);
        let started = State::start(Arc::new(store), refresh, part, &metrics).unwrap();
        Self {
            engine: Engine::new(Settings::default()),
            health,
            metrics,
            started: Some(started),
        }
    }

    fn at(directory: &Path) -> Self {
        Self::new(Store::at(directory))
    }

    /// Conflicts on so many addresses.
    fn heard(&mut self, addresses: u8) {
        let mut effects = Vec::new();
        let mut tell = |what| {
            let at = clock::now();
            self.engine.step(
                at,
                TimedObservation {
                    at,
                    observation: what,
                },
                &mut effects,
            );
        };
        let links: Vec<_> = (1..=2).map(device).collect();
        tell(Observation::SnapshotStarted(SnapshotToken(1)));
        let snapshot = Snapshot {
            links,
            ..Snapshot::default()
        };
        tell(Observation::Snapshot(
            SnapshotToken(1),
            SnapshotScope::Node,
            Box::new(snapshot),
        ));
        for (number, ifindex) in (0..addresses).flat_map(|n| [(n, 1), (n, 2)]) {
            let mac = Mac([2, 0, 0, 0, 0, u8::try_from(ifindex).unwrap()]);
            tell(Observation::Frame(FrameClaim {
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
        let keeper = &mut self.started.as_mut().unwrap().keeper;
        for conflict in self.engine.conflicts_of(address, clock::now()) {
            keeper.changed(&self.engine, &conflict);
        }
    }

    fn keeper(&mut self) -> (&mut Keeper, &Engine) {
        (&mut self.started.as_mut().unwrap().keeper, &self.engine)
    }

    /// Ends in good order: all that was offered is written.
    fn end(&mut self) {
        if let Some(started) = self.started.take() {
            drop(started.keeper);
            started.state.finish();
        }
    }

    fn kept(&self) -> Vec<IpAddr> {
        let kept = &self.started.as_ref().unwrap().kept;
        let mut kept: Vec<_> = kept.iter().map(|k| k.conflict.address).collect();
        kept.sort_unstable();
        kept
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

impl Drop for Site {
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

/// Another agent left two conflicts open in `directory`.
fn two_kept(directory: &Path) {
    let mut site = Site::at(directory);
    site.heard(2);
    for number in 0..2 {
        site.changed(address(number));
    }
    site.end();
}

fn set(directory: &Path, key: &str, value: &str) {
    let store = Store::in_directory(directory).unwrap();
    let write = store.database().unwrap().begin_write().unwrap();
    write.open_table(ABOUT).unwrap().insert(key, value).unwrap();
    write.commit().unwrap();
}

#[test]
fn what_was_open_is_handed_to_the_next_agent() {
    let directory = tempfile::tempdir().unwrap();
    two_kept(directory.path());
    let site = Site::at(directory.path());
    assert_eq!(site.kept(), [address(0), address(1)]);
}

#[test]
fn what_is_over_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    two_kept(directory.path());
    let mut site = Site::at(directory.path());
    let over = site.started.as_ref().unwrap().kept[0].conflict.clone();
    let (keeper, engine) = site.keeper();
    keeper.changed(engine, &over);
    site.end();
    assert_eq!(Site::at(directory.path()).kept().len(), 1);
}

#[test]
fn a_whole_list_replaces_what_was_kept() {
    let directory = tempfile::tempdir().unwrap();
    two_kept(directory.path());
    let mut site = Site::at(directory.path());
    site.heard(1);
    let (keeper, engine) = site.keeper();
    keeper.tell_all();
    keeper.tick(engine, clock::now());
    site.end();
    assert_eq!(Site::at(directory.path()).kept(), [address(0)]);
}

#[test]
fn records_of_another_boot_mean_nothing() {
    let directory = tempfile::tempdir().unwrap();
    two_kept(directory.path());
    set(directory.path(), "world", "another boot");
    assert!(Site::at(directory.path()).kept().is_empty());
    // Nor do they come back.
    assert!(Site::at(directory.path()).kept().is_empty());
}

#[test]
fn records_of_an_unknown_format_are_put_aside() {
    let directory = tempfile::tempdir().unwrap();
    two_kept(directory.path());
    for _ in 0..2 {
        set(directory.path(), "format", "2000");
        let site = Site::at(directory.path());
        assert!(site.kept().is_empty());
        assert_eq!(site.part().0, PartState::Works);
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
fn a_record_that_cannot_be_read_costs_only_itself() {
    const CONFLICTS: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("state.conflicts");
    let directory = tempfile::tempdir().unwrap();
    two_kept(directory.path());
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
    assert_eq!(Site::at(directory.path()).kept().len(), 1);
}

#[test]
fn a_store_that_hangs_makes_nobody_wait_and_gets_everything_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let open = move || {
        // The disk does not answer until the test says so.
        let _ = wait.lock().unwrap().recv();
        let opened = store::builder().create(&path);
        opened.map_err(|source| StoreError::Open {
            path: path.clone(),
            source: Box::new(source),
        })
    };
    let before = Instant::now();
    let mut site = Site::new(Store::new(true, Box::new(open)));
    assert!(
        before.elapsed() >= START,
        "the start waits, but not for ever"
    );
    assert_eq!(site.part().0, PartState::Failed);
    site.heard(1);
    for _ in 0..=QUEUE {
        site.changed(address(0));
    }
    assert_eq!(site.delivered("dropped"), 1);
    drop(go_on);
    let until = Instant::now() + Duration::from_secs(20);
    while site.delivered("delivered") < QUEUE as u64 {
        assert!(Instant::now() < until);
        thread::yield_now();
    }
    let (keeper, engine) = site.keeper();
    keeper.tick(engine, clock::now());
    site.end();
    assert_eq!(
        site.delivered("delivered"),
        QUEUE as u64 + 3,
        "the whole list"
    );
    let detail = site.part();
    assert_eq!(
        detail,
        (PartState::Works, "1 open conflict is kept".to_owned())
    );
}

#[test]
fn what_only_frames_told_is_kept_anew_as_time_passes() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Site::at(directory.path());
    site.heard(1);
    let (keeper, engine) = site.keeper();
    let now = clock::now();
    keeper.tick(engine, now);
    keeper.tick(engine, now + Duration::from_secs(29));
    keeper.tick(engine, now + Duration::from_secs(30));
    site.end();
    assert_eq!(site.delivered("delivered"), 2);
}

#[test]
fn no_damage_to_the_file_keeps_the_next_agent_from_keeping_conflicts() {
    const PIECE: usize = 256;
    let directory = tempfile::tempdir().unwrap();
    two_kept(directory.path());
    let path = directory.path().join("state.redb");
    let whole = std::fs::read(&path).unwrap();
    let mut put_aside = 0;
    for (number, piece) in whole.chunks(PIECE).enumerate() {
        if piece.iter().all(|byte| *byte == 0) {
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut damaged = whole.clone();
        for byte in damaged.iter_mut().skip(number * PIECE).take(PIECE) {
            *byte ^= 0x5a;
        }
        std::fs::write(directory.path().join("state.redb"), damaged).unwrap();
        let mut site = Site::at(directory.path());
        let kept = site.kept().len();
        assert!(kept == 0 || kept == 2, "piece {number}");
        put_aside += usize::from(kept == 0);
        site.heard(1);
        let (keeper, engine) = site.keeper();
        keeper.tell_all();
        keeper.tick(engine, clock::now());
        site.end();
        assert_eq!(
            site.part(),
            (PartState::Works, "1 open conflict is kept".to_owned()),
            "piece {number}"
        );
    }
    assert!(put_aside > 0);
}
