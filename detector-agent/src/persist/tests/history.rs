//! What ended, in memory and on disk.

use std::{collections::HashSet, thread};

use detector_engine::diagnosis::Cause;
use detector_event::{AnyEvent, Event, SubjectId, WallTime, samples};

use super::{
    super::history::{HistoryBounds, HistorySink},
    *,
};
use crate::sinks::EventSink as _;

const BOUNDS: HistoryBounds = HistoryBounds {
    entries: 200,
    age: Duration::from_secs(24 * 60 * 60),
};

fn stored(directory: &Path, bounds: HistoryBounds) -> History {
    History::stored(Store::history_at(directory), bounds)
}

fn node(directory: &Path) -> TestNode {
    TestNode::with_history(Store::at(directory), stored(directory, BOUNDS))
}

impl TestNode {
    fn offer(&mut self, event: impl Into<AnyEvent>) {
        self.sink.as_mut().unwrap().on_event(&event.into());
    }

    /// The ids in the history, newest first, once the thread has read and written it.
    fn ended(&mut self) -> Vec<SubjectId> {
        self.end();
        ids(&self.history)
    }
}

fn ids(history: &History) -> Vec<SubjectId> {
    let entries = history.entries(&history.keys().unwrap()).unwrap();
    entries
        .iter()
        .map(|entry| entry.event.subject_id())
        .collect()
}

/// Raised for an address, and when it ended this many seconds ago.
fn conflict(number: u8, ago: u64) -> (Event, Event) {
    let address = address(number).to_string();
    let mut end = samples::resolved(&address);
    let now = WallTime::now().as_unix_nanos() / 1_000_000_000;
    let at = i64::try_from(now).unwrap() - i64::try_from(ago).unwrap();
    end.data.resolved_at = WallTime::from_unix_nanos(at * 1_000_000_000);
    (samples::raised(&address), end)
}

fn id(number: u8) -> SubjectId {
    conflict(number, 0).0.data.conflict_id.into()
}

#[test]
fn what_ended_is_there_after_a_restart_newest_first() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = node(directory.path());
    let oldest = conflict(1, 30);
    for (raised, end) in [oldest.clone(), conflict(2, 10), conflict(3, 20)] {
        first.offer(raised);
        first.offer(end);
    }
    drop(first);
    let mut second = node(directory.path());
    assert_eq!(second.ended(), [id(2), id(3), id(1)]);
    let recent = second.history.recent_conflicts();
    let recent: Vec<SubjectId> = recent.iter().map(|e| e.data.conflict_id.into()).collect();
    assert_eq!(recent, [id(2), id(3), id(1)]);
    let found = second.history.find(id(1)).unwrap().unwrap();
    assert_eq!(found, oldest.1.into());
    assert_eq!(second.history.find(id(9)).unwrap(), None);
}

#[test]
fn number_and_age_are_bounded_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = node(directory.path());
    for number in 0..=200 {
        // The highest number ended last.
        first.offer(conflict(number, 300 - u64::from(number)).1);
    }
    first.offer(conflict(210, 25 * 60 * 60).1);
    let ended = first.ended();
    assert_eq!(ended.len(), 200);
    assert_eq!((ended[0], ended[199]), (id(200), id(1)));
    drop(first);
    let smaller = HistoryBounds {
        entries: 150,
        age: Duration::from_secs(200),
    };
    let history = stored(directory.path(), smaller);
    let mut second = TestNode::with_history(Store::at(directory.path()), history);
    let ended = second.ended();
    assert!((95..=101).contains(&ended.len()), "{}", ended.len());
    assert_eq!(second.history.find(id(60)).unwrap(), None);
}

#[test]
fn in_memory_only_the_newest_of_each_kind_are_kept() {
    let history = Arc::new(History::default());
    let mut sink = HistorySink::in_memory(Arc::clone(&history));
    let mut drift = samples::drift("10.0.1.1");
    drift.data.state = conflict(0, 0).1.data.state;
    drift.data.resolved_at = conflict(0, 9_000).1.data.resolved_at;
    sink.on_event(&drift.into());
    for number in 0..200 {
        sink.on_event(&conflict(number, 300 - u64::from(number)).1.into());
    }
    let ended = ids(&history);
    assert_eq!(ended.len(), 51);
    assert_eq!((ended[0], ended[49]), (id(199), id(150)));
    assert_eq!(history.recent_conflicts().len(), 50);
}

#[test]
fn conflict_that_begins_again_leaves_the_history_until_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = node(directory.path());
    let (mut raised, end) = conflict(1, 30);
    first.offer(raised.clone());
    first.offer(end);
    first.offer(conflict(2, 20).1);
    raised.data.repeats = 1;
    first.offer(raised);
    assert_eq!(first.ended(), [id(2)]);
    drop(first);
    let mut second = node(directory.path());
    second.offer(conflict(1, 10).1);
    assert_eq!(second.ended(), [id(1), id(2)]);
}

#[test]
fn end_of_a_later_run_keeps_cause_and_pods() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = node(directory.path());
    let (mut raised, mut end) = conflict(1, 0);
    let pods = |event: &Event| {
        let claimants = event.data.claimants.iter();
        claimants.map(|c| c.pod.clone()).collect::<Vec<_>>()
    };
    let diagnosis = Arc::new(samples::diagnosis(Cause::IpamStateWiped, 1));
    raised.data.diagnosis = Some(Arc::clone(&diagnosis));
    first.offer(raised.clone());
    drop(first);
    let mut second = node(directory.path());
    // There, pods are not known yet.
    for claimant in &mut end.data.claimants {
        claimant.pod = None;
    }
    second.offer(end);
    drop(second);
    let history = stored(directory.path(), BOUNDS);
    let Some(AnyEvent::Conflict(found)) = history.find(id(1)).unwrap() else {
        unreachable!()
    };
    assert_eq!(found.data.diagnosis, Some(diagnosis));
    assert_eq!(pods(&found), pods(&raised));
}

/// Its record is gone, as after a reboot.
#[test]
fn what_ended_unseen_is_added_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = node(directory.path());
    first.observe_frames(1);
    first.changed(address(0));
    let open = first.engine.view().conflicts_of(address(0), clock::now())[0].id;
    let mut raised = samples::raised("10.0.0.0");
    raised.data.conflict_id = open;
    let diagnosis = Arc::new(samples::diagnosis(Cause::IpamStateWiped, 1));
    raised.data.diagnosis = Some(Arc::clone(&diagnosis));
    first.offer(raised);
    drop(first);
    // In the same boot it is still open.
    assert!(node(directory.path()).ended().is_empty());
    set(directory.path(), "world", "another boot");
    let mut third = node(directory.path());
    assert_eq!(third.ended(), [open.into()]);
    let Some(AnyEvent::Conflict(found)) = third.history.find(open.into()).unwrap() else {
        unreachable!()
    };
    assert_eq!(found.data.diagnosis, Some(diagnosis));
    assert!(found.data.is_resolved() && found.data.resolved_at.is_some());
}

#[test]
fn end_that_found_no_room_is_completed_by_a_full_list() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = node(directory.path());
    node.observe_frames(1);
    node.changed(address(0));
    let open = node.engine.view().conflicts_of(address(0), clock::now())[0].id;
    let mut raised = samples::raised("10.0.0.0");
    raised.data.conflict_id = open;
    node.offer(raised);
    // The engine knows of no conflict any more, and the event about its end was lost.
    node.engine = Engine::new(Settings::default());
    let (handle, engine) = node.handle();
    handle.request_full_list();
    handle.tick(engine, clock::now());
    assert_eq!(node.ended(), [open.into()]);
}

#[test]
fn conflicts_of_the_fleet_end_only_by_their_event() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = node(directory.path());
    let (mut raised, mut end) = conflict(1, 0);
    raised.data.scope = detector_engine::ConflictScope::Fleet;
    end.data.scope = raised.data.scope;
    first.offer(raised);
    drop(first);
    assert!(node(directory.path()).ended().is_empty());
    let mut third = node(directory.path());
    third.sink.as_mut().unwrap().on_remote_event(&end.into());
    assert_eq!(third.ended(), [id(1)]);
}

#[test]
fn damage_to_the_history_costs_nothing_that_is_open() {
    let directory = tempfile::tempdir().unwrap();
    store_two_conflicts(directory.path());
    let mut first = node(directory.path());
    first.offer(conflict(1, 10).1);
    drop(first);
    let path = directory.path().join("history.redb");
    let intact = std::fs::read(&path).unwrap();
    let mut lost = HashSet::new();
    for (number, piece) in intact.chunks(256).enumerate() {
        if piece.iter().all(|byte| *byte == 0) {
            continue;
        }
        let mut damaged = intact.clone();
        for byte in damaged.iter_mut().skip(number * 256).take(256) {
            *byte ^= 0x5a;
        }
        std::fs::write(&path, damaged).unwrap();
        let mut next = node(directory.path());
        assert_eq!(next.restored().len(), 2, "piece {number}");
        next.offer(conflict(2, 5).1);
        let ended = next.ended();
        assert_eq!(next.part().0, PartState::Works, "piece {number}");
        assert_eq!(ended[0], id(2), "piece {number}");
        lost.insert(ended.len() == 1);
    }
    assert!(lost.contains(&true));
}

#[test]
fn full_disk_is_shown_and_the_history_is_written_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.redb");
    let is_full = Arc::new(AtomicBool::new(true));
    let full = Arc::clone(&is_full);
    let open = move || {
        if full.load(Ordering::Relaxed) {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(redb::Error::Io(full).into());
        }
        let opened = store::builder().create(&path);
        opened.map_err(|error| redb::Error::from(error).into())
    };
    let history = History::stored(Store::new(true, Box::new(open)), BOUNDS);
    let mut node = TestNode::with_history(Store::at(directory.path()), history);
    node.offer(conflict(1, 10).1);
    let wait = |node: &TestNode, state| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while node.part().0 != state {
            assert!(Instant::now() < deadline, "{:?}", node.part());
            thread::sleep(Duration::from_millis(10));
        }
    };
    wait(&node, PartState::Degraded);
    is_full.store(false, Ordering::Relaxed);
    wait(&node, PartState::Works);
    drop(node);
    assert_eq!(ids(&stored(directory.path(), BOUNDS)), [id(1)]);
}

#[test]
fn event_that_is_too_large_is_counted_and_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = node(directory.path());
    let (_, mut end) = conflict(1, 10);
    let one = end.data.claimants[0].clone();
    end.data.claimants = vec![one; 5_000];
    node.offer(end);
    node.end();
    assert_eq!(node.delivered("failed"), 1);
    drop(node);
    assert_eq!(ids(&stored(directory.path(), BOUNDS)), []);
}

/// More than the queue takes while the disk is busy: nothing of it is stored before it is over.
#[test]
fn storm_that_is_over_before_it_is_stored_is_in_the_history() {
    const STORM: u16 = 3_000;
    let directory = tempfile::tempdir().unwrap();
    let bounds = HistoryBounds {
        entries: 10_000,
        ..BOUNDS
    };
    let store = Arc::new(Store::at(directory.path()));
    let history = stored(directory.path(), bounds);
    let mut node = TestNode::with_history(Arc::clone(&store), history);
    let database = store.database().unwrap();
    let busy = database.begin_write().unwrap();
    for number in 0..STORM {
        let [high, low] = number.to_be_bytes();
        let address = format!("10.1.{high}.{low}");
        let mut end = samples::resolved(&address);
        end.data.resolved_at = Some(WallTime::now());
        node.offer(samples::raised(&address));
        node.offer(end);
    }
    busy.abort().unwrap();
    drop(database);
    // A shutdown waits three seconds at most.
    let deadline = Instant::now() + Duration::from_secs(60);
    while node.pending() > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    let ended: HashSet<_> = node.ended().into_iter().collect();
    assert_eq!(ended.len(), usize::from(STORM));
    assert_eq!(node.delivered("dropped"), 0);
}
