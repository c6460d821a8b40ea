//! Which pool's books a live address has to stand in.

use std::sync::Arc;

use super::{
    anomalies::{books, node},
    *,
};
use crate::engine::anomaly::{Completeness, Coverage, PoolId, PoolSource};

/// Whether 10.9.0.2 on veth1 is missed by deleted books of 10.0.0.0/24 that cover this too.
fn missed(coverage: Coverage) -> bool {
    let mut node = node();
    node.address(1, "10.9.0.2");
    node.now.0 += MS;
    let mut pool = books(&node, &[], Completeness::Deleted);
    pool.coverage = Coverage {
        ranges: pool.coverage.ranges,
        ..coverage
    };
    node.books(pool);
    !node.told_of_anomalies().is_empty()
}

#[test]
fn books_have_to_know_their_ranges_their_devices_and_what_they_once_held() {
    let prefixes = |name: &str| Coverage {
        device_prefixes: vec![name.to_owned()],
        ..Coverage::default()
    };
    let previously_allocated = |address| Coverage {
        previously_allocated: [ip(address)].into(),
        ..Coverage::default()
    };
    assert!(!missed(Coverage::default()));
    assert!(missed(prefixes("veth")));
    assert!(!missed(prefixes("eni")));
    assert!(missed(previously_allocated("10.9.0.2")));
    assert!(!missed(previously_allocated("10.9.0.3")));
}

#[test]
fn of_several_pools_the_one_that_once_held_the_address_is_told() {
    for (held_it, told) in [([false, false], 1), ([true, false], 1), ([false, true], 2)] {
        let mut node = node();
        node.now.0 += MS;
        for (id, held_it) in (1..).zip(held_it) {
            let mut pool = books(&node, &["10.0.0.2"], Completeness::Complete);
            pool.id = PoolId(id);
            node.books(pool.clone());
            pool.source = Arc::new(PoolSource {
                place: id.to_string(),
                ..PoolSource::clone(&pool.source)
            });
            pool.coverage.previously_allocated =
                held_it.then(|| ip("10.0.0.2")).into_iter().collect();
            pool.allocated.clear();
            pool.completeness = Completeness::Deleted;
            pool.read_at.0 += 2 * MS;
            node.books(pool);
        }
        node.address(1, "10.0.0.2");
        node.now.0 += 2 * MS;
        node.frame(1, "10.0.0.2");
        let open = node.engine.anomalies();
        assert_eq!(open.len(), 1);
        assert_eq!(open[0].source.as_ref().unwrap().place, told.to_string());
    }
}
