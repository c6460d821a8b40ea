//! Anomalies across a restart.

use super::*;
use crate::engine::Contested;

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
            first: vec![address(1)],
        }),
        overlap: None,
        raised_at: Timestamp(1),
        decided_at: Timestamp(2),
        reported_latency_us: Some(47),
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
