#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
    mpsc,
};

use super::*;
use crate::persist::store::builder;

fn memory(subject: &str) -> Memory {
    Memory {
        subject: subject.parse().unwrap(),
        reported: None,
    }
}

async fn settled(journal: &mut Journal) {
    while !journal.is_settled() {
        journal.progress().await;
    }
}

async fn subjects(store: &Arc<Store>, node: &str) -> Vec<String> {
    let (_, memories) = Journal::open(Some(Arc::clone(store)), node).await;
    memories.iter().map(|m| m.subject.to_string()).collect()
}

#[tokio::test]
async fn what_is_remembered_is_on_disk_before_a_request_is_sent() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::at(directory.path()));
    let (mut journal, memories) = Journal::open(Some(Arc::clone(&store)), "n1").await;
    assert!(memories.is_empty() && journal.is_settled());
    for subject in ["10.0.0.1", "10.0.0.2", "10.0.0.0/24"] {
        journal.remember(&memory(subject));
    }
    assert!(!journal.is_settled());
    settled(&mut journal).await;
    drop(store);
    drop(journal);
    let store = Arc::new(Store::at(directory.path()));
    assert_eq!(
        subjects(&store, "n1").await,
        ["10.0.0.0/24", "10.0.0.1", "10.0.0.2"]
    );
    let (mut journal, _) = Journal::open(Some(Arc::clone(&store)), "n1").await;
    journal.forget("10.0.0.1".parse().unwrap());
    assert!(journal.is_settled(), "no request waits for it");
    journal.finish().await;
    assert_eq!(subjects(&store, "n1").await, ["10.0.0.0/24", "10.0.0.2"]);
    assert!(subjects(&store, "another-node").await.is_empty());
}

#[tokio::test]
async fn without_state_dir_nothing_waits() {
    let (mut journal, memories) = Journal::open(None, "n1").await;
    assert!(memories.is_empty());
    journal.remember(&memory("10.0.0.1"));
    assert!(journal.is_settled());
    journal.finish().await;
}

#[tokio::test]
async fn records_that_cannot_be_decoded_are_ignored() {
    let store = Arc::new(Store::in_memory());
    let (mut journal, _) = Journal::open(Some(Arc::clone(&store)), "n1").await;
    journal.remember(&memory("10.0.0.1"));
    journal.change("10.0.0.2".parse().unwrap(), Some(b"{}".to_vec()));
    journal.change("10.0.0.3".parse().unwrap(), Some(b"\xff".to_vec()));
    journal.finish().await;
    assert_eq!(subjects(&store, "n1").await, ["10.0.0.1"]);
}

#[tokio::test]
async fn records_of_another_format_are_dropped() {
    let store = Arc::new(Store::in_memory());
    let (mut journal, _) = Journal::open(Some(Arc::clone(&store)), "n1").await;
    journal.remember(&memory("10.0.0.1"));
    journal.finish().await;
    records::set_format(&store, "2");
    assert!(subjects(&store, "n1").await.is_empty());
    journal.remember(&memory("10.0.0.2"));
    journal.finish().await;
    assert_eq!(subjects(&store, "n1").await, ["10.0.0.2"]);
}

/// A store that cannot be opened while `fails`.
fn failing_store(fails: &Arc<AtomicBool>) -> Arc<Store> {
    let fails = Arc::clone(fails);
    let open = move || {
        if fails.load(Ordering::Relaxed) {
            Store::in_directory(std::path::Path::new("/dev/null/none"))?;
        }
        let database = builder().create_with_backend(redb::backends::InMemoryBackend::new());
        Ok(database.unwrap())
    };
    Arc::new(Store::new(true, Box::new(open)))
}

#[tokio::test(start_paused = true)]
async fn disk_that_fails_delays_no_request_and_is_caught_up_with() {
    let fails = Arc::new(AtomicBool::new(true));
    let store = failing_store(&fails);
    let (mut journal, _) = Journal::open(Some(Arc::clone(&store)), "n1").await;
    journal.remember(&memory("10.0.0.1"));
    assert!(journal.is_settled());
    journal.progress().await;
    journal.remember(&memory("10.0.0.2"));
    fails.store(false, Ordering::Relaxed);
    while journal.is_failing {
        journal.progress().await;
    }
    assert_eq!(subjects(&store, "n1").await, ["10.0.0.1", "10.0.0.2"]);
    journal.remember(&memory("10.0.0.3"));
    assert!(!journal.is_settled());
}

#[tokio::test]
async fn disk_that_hangs_delays_requests_only_for_a_while() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(Some(released));
    let open = move || {
        if let Some(released) = released.lock().unwrap().take() {
            // Ends when the test does.
            let _ = released.recv();
        }
        let database = builder().create_with_backend(redb::backends::InMemoryBackend::new());
        Ok(database.unwrap())
    };
    let store = Arc::new(Store::new(true, Box::new(open)));
    let mut journal = Journal::new(Some(Arc::clone(&store)), "n1");
    journal.remember(&memory("10.0.0.1"));
    assert!(!journal.is_settled());
    settled(&mut journal).await;
    assert!(journal.write.is_some(), "it still hangs");
    journal.remember(&memory("10.0.0.2"));
    assert!(journal.is_settled());
    drop(release);
    journal.finish().await;
    assert_eq!(subjects(&store, "n1").await, ["10.0.0.1", "10.0.0.2"]);
}

/// Begins a write that ends as `ends`.
fn begin(
    journal: &mut Journal,
    ends: impl Future<Output = Result<(), StoreError>> + Send + 'static,
) {
    (journal.is_urgent, journal.due) = (false, None);
    journal.write = Some(Write {
        task: tokio::spawn(ends),
        changes: Arc::new(std::mem::take(&mut journal.changes)),
        deadline: Instant::now() + WRITE_DEADLINE,
    });
}

#[tokio::test(start_paused = true)]
async fn write_that_failed_is_repeated_without_further_changes() {
    let fails = Arc::new(AtomicBool::new(true));
    let store = failing_store(&fails);
    let (mut journal, _) = Journal::open(Some(Arc::clone(&store)), "n1").await;
    journal.is_failing = false;
    journal.remember(&memory("10.0.0.1"));
    journal.progress().await;
    assert!(journal.is_failing);
    fails.store(false, Ordering::Relaxed);
    let repeated = async {
        while journal.is_failing {
            journal.progress().await;
        }
    };
    timeout(2 * RETRY, repeated).await.unwrap();
    assert_eq!(subjects(&store, "n1").await, ["10.0.0.1"]);
}

#[tokio::test(start_paused = true)]
async fn later_change_takes_precedence_over_a_write_that_failed() {
    let fails = Arc::new(AtomicBool::new(false));
    let store = failing_store(&fails);
    let (mut journal, _) = Journal::open(Some(Arc::clone(&store)), "n1").await;
    for subject in ["10.0.0.1", "10.0.0.2"] {
        journal.remember(&memory(subject));
    }
    // The write is under way when the first one is forgotten.
    begin(&mut journal, async {
        let full = std::io::Error::other("full");
        Err(StoreError::from(redb::Error::Io(full)))
    });
    journal.forget("10.0.0.1".parse().unwrap());
    journal.progress().await;
    assert!(journal.is_failing);
    while journal.is_failing {
        journal.progress().await;
    }
    assert_eq!(subjects(&store, "n1").await, ["10.0.0.2"]);
}

#[tokio::test(start_paused = true)]
async fn requests_do_not_wait_for_another_attempt() {
    let store = Arc::new(Store::in_memory());
    let (mut journal, _) = Journal::open(Some(store), "n1").await;
    journal.remember(&memory("10.0.0.1"));
    begin(&mut journal, std::future::pending());
    assert!(!journal.is_settled());
    journal.is_failing = true;
    assert!(journal.is_settled());
}

#[tokio::test(start_paused = true)]
async fn end_writes_at_once_and_waits_for_what_is_being_written() {
    let store = Arc::new(Store::in_memory());
    let (mut journal, _) = Journal::open(Some(Arc::clone(&store)), "n1").await;
    journal.remember(&memory("10.0.0.1"));
    journal.finish().await;
    let start = Instant::now();
    journal.forget("10.0.0.1".parse().unwrap());
    journal.finish().await;
    assert!(start.elapsed() < LAZY);
    assert!(subjects(&store, "n1").await.is_empty());
    let is_written = Arc::new(AtomicBool::new(false));
    let written = Arc::clone(&is_written);
    begin(&mut journal, async move {
        tokio::time::sleep(WRITE_DEADLINE / 2).await;
        written.store(true, Ordering::Relaxed);
        Ok(())
    });
    journal.finish().await;
    assert!(is_written.load(Ordering::Relaxed));
}
