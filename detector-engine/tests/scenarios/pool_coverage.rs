//! Which pool has to contain a live address.

use std::sync::Arc;

use super::*;
use crate::anomaly_fixtures::*;

/// Whether 10.9.0.2 on veth1 is drift for a deleted pool of 10.0.0.0/24 that also covers this.
fn is_drift(coverage: Coverage) -> bool {
    let mut node = synced_node();
    node.address(1, "10.9.0.2");
    node.tick();
    let mut pool = host_local_pool(node.now, &[], Completeness::Deleted);
    pool.coverage = Coverage {
        ranges: pool.coverage.ranges,
        ..coverage
    };
    node.update_pool(pool);
    !node.anomaly_events().is_empty()
}

#[test]
fn pool_covers_ranges_devices_and_former_allocations() {
    let prefixes = |name: &str| Coverage {
        device_prefixes: vec![name.to_owned()],
        ..Coverage::default()
    };
    let previously_allocated = |address| Coverage {
        previously_allocated: [ip(address)].into(),
        ..Coverage::default()
    };
    for (case, coverage, expected) in [
        ("range only", Coverage::default(), false),
        ("prefix of the device", prefixes("veth"), true),
        ("prefix of other devices", prefixes("eni"), false),
        ("held the address", previously_allocated("10.9.0.2"), true),
        ("held another", previously_allocated("10.9.0.3"), false),
    ] {
        assert_eq!(is_drift(coverage), expected, "{case}");
    }
}

#[test]
fn drift_names_the_pool_that_once_held_the_address() {
    for (previously_allocated, expected) in
        [([false, false], 1), ([true, false], 1), ([false, true], 2)]
    {
        let mut node = synced_node();
        node.tick();
        for (id, previously_allocated) in (1..).zip(previously_allocated) {
            let mut pool = host_local_pool(node.now, &["10.0.0.2"], Completeness::Complete);
            pool.id = PoolId(id);
            node.update_pool(pool.clone());
            pool.source = Arc::new(PoolSource {
                place: id.to_string(),
                ..PoolSource::clone(&pool.source)
            });
            pool.coverage.previously_allocated = previously_allocated
                .then(|| ip("10.0.0.2"))
                .into_iter()
                .collect();
            pool.allocated.clear();
            pool.completeness = Completeness::Deleted;
            pool.read_at.0 += 2 * MS;
            node.update_pool(pool);
        }
        node.address(1, "10.0.0.2");
        node.now.0 += 2 * MS;
        node.frame(1, "10.0.0.2");
        let open = node.engine.view().anomalies();
        assert_eq!(open.len(), 1, "pool {expected}");
        assert_eq!(
            open[0].source.as_ref().unwrap().place,
            expected.to_string(),
            "pool {expected}"
        );
    }
}
