//! Files that cannot be read, that are not this agent's, or that cannot be written.

use super::*;

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
