//! Full disks, gaps, minimum durations, added and removed sinks.

use std::{sync::Arc, time::Duration};

use detector_event::{AnyEvent, Change, WallTime, samples};

use super::{
    super::{CAPACITY, Outbox, OutboxBounds, SinkSpec},
    world::{ALL, Simulation, health, sinks, store_on},
};
use crate::{
    metrics::Metrics,
    persist::store::Store,
    sinks::{EventSink as _, filter::Filter},
};

#[test]
fn a_full_disk_delays_events_and_loses_none() {
    let mut simulation = Simulation::new(1, OutboxBounds::default());
    simulation.start().unwrap();
    let conflict = simulation.raise();
    assert!(simulation.store());
    simulation.deliver(10, 0);
    simulation.disk.set_full(true);
    simulation.update(&conflict);
    simulation.resolve(&conflict);
    for _ in 0..3 {
        assert!(!simulation.store());
    }
    assert!(simulation.counted("outbox", "store_failed") >= 3);
    assert_eq!(
        simulation.seen[ALL][&samples::subject_id(&conflict)].len(),
        1
    );
    simulation.disk.set_full(false);
    assert!(simulation.store());
    simulation.finish();
    simulation.check_order();
    simulation.check_complete();
}

#[test]
fn a_failed_commit_is_applied_exactly_once() {
    // Every place in the commit where the disk may fill up; then there is room again.
    let mut at = 0;
    loop {
        let mut simulation = Simulation::new(2, OutboxBounds::default());
        simulation.start().unwrap();
        let conflict = simulation.raise();
        assert!(simulation.store());
        simulation.deliver(10, 0);
        simulation.update(&conflict);
        let before = simulation.disk.operations();
        simulation.disk.crash_at(before + at);
        let done = simulation.store();
        if done {
            assert!(at > 3, "only {at} operations");
            break;
        }
        // Not a crash: everything written is there.
        simulation.disk.come_back();
        assert!(simulation.store());
        simulation.finish();
        simulation.check_order();
        simulation.check_complete();
        let updates = simulation.seen[ALL][&samples::subject_id(&conflict)]
            .iter()
            .filter(|s| s.change == Change::Updated)
            .count();
        assert_eq!(updates, 1, "the update was stored twice, failing at {at}");
        at += 1;
    }
}

#[test]
fn a_full_channel_is_counted_and_repaired_by_a_catch_up() {
    let mut simulation = Simulation::new(3, OutboxBounds::default());
    simulation.start().unwrap();
    let ended = simulation.raise();
    assert!(simulation.store());
    let mut sink = simulation.run().outbox.sink();
    assert!(!sink.is_behind());
    let event = samples::event("x", Change::Updated, &ended, "10.0.0.1").into();
    for _ in 0..CAPACITY {
        sink.on_event(&event);
    }
    // There is no room for either event.
    simulation.resolve(&ended);
    let begun = simulation.raise();
    assert_eq!(simulation.counted("outbox", "dropped"), 2);
    assert!(!sink.is_behind(), "there is no room yet");
    while !simulation.store() {}
    assert!(sink.is_behind());
    let now = samples::event("y", Change::Updated, &begun, "10.0.0.1");
    sink.catch_up(&[now.into()]);
    assert!(!sink.is_behind());
    simulation.finish();
    simulation.check_order();
    let seen = &simulation.seen[ALL];
    assert_eq!(
        seen[&samples::subject_id(&ended)].last().unwrap().change,
        Change::Resolved
    );
    assert_eq!(seen[&samples::subject_id(&begun)][0].id, "y");
    assert_eq!(seen[&samples::subject_id(&begun)][0].change, Change::Raised);
}

#[test]
fn a_conflict_is_delivered_once_it_has_lasted_long_enough() {
    let store = Arc::new(Store::in_memory());
    let metrics = Arc::new(Metrics::new());
    let patient = SinkSpec {
        name: "patient".to_owned(),
        filter: Filter {
            min_duration: Duration::from_millis(300),
            ..Filter::default()
        },
        window: None,
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
    let mut send = |id: &str, change: Change, conflict: &str| {
        let mut event = samples::event(id, change, conflict, "10.0.0.1");
        event.data.raised_at = raised_at;
        sink.on_event(&event.into());
    };
    send("1", Change::Raised, "short");
    send("2", Change::Resolved, "short");
    send("3", Change::Raised, "long");
    send("4", Change::Updated, "long");
    worker.turn(Some(Duration::ZERO));
    assert_eq!(outbox.sink_queues()[0].pending(), 0);
    assert_eq!(worker.due.len(), 1, "a conflict that ended does not wait");
    let begun = std::time::Instant::now();
    while outbox.sink_queues()[0].pending() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        worker.turn(Some(Duration::from_millis(20)));
    }
    let job = outbox.sink_queues()[0]
        .take(tokio::time::Instant::now())
        .unwrap();
    let event = job.members[0].event.clone().unwrap();
    assert_eq!(event.subject_id(), samples::subject_id("long"));
    assert_eq!(event.change(), Change::Raised);
    assert_eq!(event.id(), "4", "it has the newest state");
}

#[test]
fn a_new_sink_gets_what_is_active_and_a_removed_one_leaves_none() {
    let directory = tempfile::tempdir().unwrap();
    let metrics = Arc::new(Metrics::new());
    let spec = |name: &str| SinkSpec {
        name: name.to_owned(),
        filter: Filter::default(),
        window: None,
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
        outbox.sink().on_event(&event);
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
    assert!(outbox.sink().is_behind(), "it requests what is active");
    outbox.sink().catch_up(&[event]);
    worker.turn(Some(Duration::ZERO));
    assert_eq!(outbox.sink_queues()[0].pending(), 1);
}

#[test]
fn an_outbox_on_a_full_disk_starts_once_there_is_room() {
    let disk = super::disk::Disk::default();
    disk.set_full(true);
    let store = store_on(&disk);
    let metrics = Arc::new(Metrics::new());
    let (outbox, mut worker) =
        Outbox::assemble(&store, sinks(), OutboxBounds::default(), &metrics, health());
    outbox.sink().on_event(&samples::raised("10.0.0.1").into());
    worker.turn(Some(Duration::ZERO));
    assert_eq!(outbox.sink_queues()[ALL].pending(), 0);
    disk.set_full(false);
    worker.turn(Some(Duration::ZERO));
    assert_eq!(outbox.sink_queues()[ALL].pending(), 1);
}

#[test]
fn earlier_events_are_sent_after_a_failed_read_at_the_start() {
    let mut simulation = Simulation::new(5, OutboxBounds::default());
    simulation.start().unwrap();
    let conflict = simulation.raise();
    assert!(simulation.store());
    simulation.die();
    simulation.disk.set_full(true);
    assert!(simulation.start().is_err());
    simulation.disk.set_full(false);
    simulation.start().unwrap();
    simulation.resolve(&conflict);
    simulation.finish();
    simulation.check_order();
    simulation.check_complete();
}

#[test]
fn an_error_of_another_writer_does_not_repeat_deliveries() {
    let mut simulation = Simulation::new(6, OutboxBounds::default());
    simulation.start().unwrap();
    let conflict = simulation.raise();
    assert!(simulation.store());
    simulation.deliver(10, 0);
    // The removal is committed but not synced, as nothing follows it.
    assert!(simulation.store());
    let store = Arc::clone(&simulation.run().worker.store);
    simulation.disk.set_full(true);
    let database = store.database().unwrap();
    store.failed(database);
    drop(store);
    simulation.disk.set_full(false);
    simulation.update(&conflict);
    assert!(simulation.store());
    simulation.deliver(10, 0);
    assert!(simulation.store());
    simulation.die();
    simulation.start().unwrap();
    simulation.resolve(&conflict);
    simulation.finish();
    simulation.check_order();
    simulation.check_complete();
}
