//! Anomalies across a restart.

use detector_engine::Contested;

use super::*;

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
        contested: Some(Contested {
            count: 5,
            diverted: 2,
            kept: 3,
            first: vec![address(1)],
        }),
        overlap: None,
        raised_at: Timestamp(1),
        decided_at: Timestamp(2),
        reported_latency_us: Some(47),
        reported_diagnosis: 11,
        resolved_at: None,
        resolve_reason: None,
    }
}

/// Each change is queued at once: the next run knows it even if this one is killed before its next tick.
#[test]
fn open_anomalies_are_restored() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = TestNode::at(directory.path());
    let (handle, _) = node.handle();
    for id in 1..=3 {
        handle.anomaly_changed(anomaly(id));
    }
    handle.anomaly_changed(Anomaly {
        resolved_at: Some(Timestamp(3)),
        ..anomaly(3)
    });
    node.end();
    let mut restored = TestNode::at(directory.path()).restored.anomalies.clone();
    restored.sort_by_key(|anomaly| anomaly.id);
    assert_eq!(restored, [anomaly(1), anomaly(2)]);
}

#[test]
fn lost_changes_of_anomalies_are_repaired_by_a_full_list() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let is_broken = Arc::new(AtomicBool::new(false));
    let broken = Arc::clone(&is_broken);
    let open = move || {
        if broken.load(Ordering::Relaxed) {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(redb::Error::Io(full).into());
        }
        let opened = store::builder().create(path.join("state.redb"));
        opened.map_err(|error| redb::Error::from(error).into())
    };
    // Stored by an earlier run, and resolved meanwhile.
    let mut earlier = TestNode::at(directory.path());
    earlier.handle().0.anomaly_changed(anomaly(9));
    earlier.end();
    is_broken.store(true, Ordering::Relaxed);
    let mut node = TestNode::new(Store::new(true, Box::new(open)));
    // More than are listed in one tick.
    let open: Vec<_> = (10..800).map(anomaly).collect();
    node.engine.restore(Vec::new(), open.clone());
    node.handle().0.anomaly_changed(anomaly(10));
    is_broken.store(false, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut ticks_after_repair = 0;
    while ticks_after_repair < 8 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
        let (handle, engine) = node.handle();
        handle.tick(engine, clock::now());
        ticks_after_repair += usize::from(node.part().0 == PartState::Works);
    }
    node.end();
    let mut restored = TestNode::at(directory.path()).restored.anomalies.clone();
    restored.sort_by_key(|anomaly| anomaly.id);
    assert!(restored == open, "{} of {}", restored.len(), open.len());
}
