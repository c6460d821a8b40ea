//! Full disks, gaps, filters that let a conflict pass late, sinks that come and go.

use std::{sync::Arc, time::Duration};

use super::{
    super::{CAPACITY, Outbox, OutboxBounds, SinkSpec},
    world::{ALL, World, health, sinks, store_on},
};
use crate::{
    clock::WallTime,
    event::{AnyEvent, Change, samples},
    metrics::Metrics,
    persist::store::Store,
    sinks::{EventSink as _, filter::Filter},
};

#[test]
fn a_full_disk_holds_events_back_and_loses_none() {
    let mut world = World::new(1, OutboxBounds::default());
    world.start().unwrap();
    let conflict = world.raise();
    assert!(world.store());
    world.deliver(10, 0);
    world.disk.set_full(true);
    world.update(&conflict);
    world.resolve(&conflict);
    for _ in 0..3 {
        assert!(!world.store());
    }
    assert!(world.counted("outbox", "store_failed") >= 3);
    assert_eq!(world.seen[ALL][&samples::subject_id(&conflict)].len(), 1);
    world.disk.set_full(false);
    assert!(world.store());
    world.finish();
    world.check_order();
    world.check_complete();
}

#[test]
fn a_commit_that_failed_is_done_once_whether_it_reached_the_disk_or_not() {
    // Every place in the commit where the disk may fill up; then there is room again.
    let mut at = 0;
    loop {
        let mut world = World::new(2, OutboxBounds::default());
        world.start().unwrap();
        let conflict = world.raise();
        assert!(world.store());
        world.deliver(10, 0);
        world.update(&conflict);
        let before = world.disk.operations();
        world.disk.crash_at(before + at);
        let done = world.store();
        if done {
            assert!(at > 3, "only {at} operations");
            break;
        }
        // Not a crash after all: what was written is there.
        world.disk.come_back();
        assert!(world.store());
        world.finish();
        world.check_order();
        world.check_complete();
        let updates = world.seen[ALL][&samples::subject_id(&conflict)]
            .iter()
            .filter(|s| s.change == Change::Updated)
            .count();
        assert_eq!(updates, 1, "the update was stored twice, failing at {at}");
        at += 1;
    }
}

#[test]
fn what_the_channel_has_no_room_for_is_counted_and_healed_by_what_is_active() {
    let mut world = World::new(3, OutboxBounds::default());
    world.start().unwrap();
    let ended = world.raise();
    assert!(world.store());
    let mut sink = world.run().outbox.sink();
    assert!(!sink.is_behind());
    let event = samples::event("x", Change::Updated, &ended, "10.0.0.1").into();
    for _ in 0..CAPACITY {
        sink.offer(&event);
    }
    // Neither the end of the one nor the beginning of the other finds room.
    world.resolve(&ended);
    let begun = world.raise();
    assert_eq!(world.counted("outbox", "dropped"), 2);
    assert!(!sink.is_behind(), "there is no room yet");
    while !world.store() {}
    assert!(sink.is_behind());
    let now = samples::event("y", Change::Updated, &begun, "10.0.0.1");
    sink.catch_up(&[now.into()]);
    assert!(!sink.is_behind());
    world.finish();
    world.check_order();
    let seen = &world.seen[ALL];
    assert_eq!(
        seen[&samples::subject_id(&ended)].last().unwrap().change,
        Change::Resolved
    );
    assert_eq!(seen[&samples::subject_id(&begun)][0].id, "y");
    assert_eq!(seen[&samples::subject_id(&begun)][0].change, Change::Raised);
}

#[test]
fn a_conflict_that_lasts_too_short_is_not_told_and_a_longer_one_is_once_it_is_due() {
    let store = Arc::new(Store::in_memory());
    let metrics = Arc::new(Metrics::new());
    let patient = SinkSpec {
        name: "patient".to_owned(),
        filter: Filter {
            min_duration: Duration::from_millis(300),
            ..Filter::default()
        },
    };
    let (outbox, mut worker) = Outbox::assemble(
        &store,
        vec![patient],
        OutboxBounds::default(),
        &metrics,
        health(),
    );
    let mut sink = outbox.sink();
    let raised_at = WallTime::now();
    let mut offer = |id: &str, change: Change, conflict: &str| {
        let mut event = samples::event(id, change, conflict, "10.0.0.1");
        event.data.raised_at = raised_at;
        sink.offer(&event.into());
    };
    offer("1", Change::Raised, "short");
    offer("2", Change::Resolved, "short");
    offer("3", Change::Raised, "long");
    offer("4", Change::Updated, "long");
    worker.turn(Some(Duration::ZERO));
    assert_eq!(outbox.sink_queues()[0].pending(), 0);
    let begun = std::time::Instant::now();
    while outbox.sink_queues()[0].pending() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        worker.turn(Some(Duration::from_millis(20)));
    }
    let job = outbox.sink_queues()[0]
        .take(tokio::time::Instant::now())
        .unwrap();
    let event = job.event.unwrap();
    assert_eq!(event.subject_id(), samples::subject_id("long"));
    assert_eq!(event.change(), Change::Raised);
    assert_eq!(event.id(), "4", "it tells the newest state");
}

#[test]
fn a_sink_that_is_new_hears_of_what_is_active_and_one_that_is_gone_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let metrics = Arc::new(Metrics::new());
    let spec = |name: &str| SinkSpec {
        name: name.to_owned(),
        filter: Filter::default(),
    };
    let event = AnyEvent::from(samples::raised("10.0.0.1"));
    {
        let store = Arc::new(Store::in_directory(directory.path()).unwrap());
        let (outbox, mut worker) = Outbox::assemble(
            &store,
            vec![spec("old")],
            OutboxBounds::default(),
            &metrics,
            health(),
        );
        outbox.sink().offer(&event);
        worker.turn(Some(Duration::ZERO));
        assert_eq!(outbox.sink_queues()[0].pending(), 1);
    }
    let store = Arc::new(Store::in_directory(directory.path()).unwrap());
    let (outbox, mut worker) = Outbox::assemble(
        &store,
        vec![spec("new")],
        OutboxBounds::default(),
        &metrics,
        health(),
    );
    assert_eq!(outbox.sink_queues()[0].pending(), 0);
    assert!(outbox.sink().is_behind(), "it asks for what is active");
    outbox.sink().catch_up(&[event]);
    worker.turn(Some(Duration::ZERO));
    assert_eq!(outbox.sink_queues()[0].pending(), 1);
}

#[test]
fn an_outbox_that_finds_no_room_at_its_start_begins_when_there_is_some() {
    let disk = super::disk::Disk::default();
    disk.set_full(true);
    let store = store_on(&disk);
    let metrics = Arc::new(Metrics::new());
    let (outbox, mut worker) =
        Outbox::assemble(&store, sinks(), OutboxBounds::default(), &metrics, health());
    outbox.sink().offer(&samples::raised("10.0.0.1").into());
    worker.turn(Some(Duration::ZERO));
    assert_eq!(outbox.sink_queues()[ALL].pending(), 0);
    disk.set_full(false);
    worker.turn(Some(Duration::ZERO));
    assert_eq!(outbox.sink_queues()[ALL].pending(), 1);
}

#[test]
fn what_earlier_runs_left_is_sent_also_where_it_could_not_be_read_at_the_start() {
    let mut world = World::new(5, OutboxBounds::default());
    world.start().unwrap();
    let conflict = world.raise();
    assert!(world.store());
    world.die();
    world.disk.set_full(true);
    assert!(world.start().is_err());
    world.disk.set_full(false);
    world.start().unwrap();
    world.resolve(&conflict);
    world.finish();
    world.check_order();
    world.check_complete();
}

#[test]
fn another_writers_error_does_not_bring_back_what_was_delivered() {
    let mut world = World::new(6, OutboxBounds::default());
    world.start().unwrap();
    let conflict = world.raise();
    assert!(world.store());
    world.deliver(10, 0);
    // The removal is committed, and not synced: nothing follows it.
    assert!(world.store());
    let store = Arc::clone(&world.run().worker.store);
    world.disk.set_full(true);
    let database = store.database().unwrap();
    store.failed(database);
    drop(store);
    world.disk.set_full(false);
    world.update(&conflict);
    assert!(world.store());
    world.deliver(10, 0);
    assert!(world.store());
    world.die();
    world.start().unwrap();
    world.resolve(&conflict);
    world.finish();
    world.check_order();
    world.check_complete();
}
