//! Fixtures of the anomaly tests: IPAM pools, a node after its first snapshot, unanswered probes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::*;

/// An allocation with this owner.
pub(super) fn allocation_to(owner: &str) -> Allocation {
    Allocation {
        owner: Some(owner.into()),
        ..Allocation::default()
    }
}

/// A pool of 10.0.0.0/24 with these allocations, read at `read_at`.
pub(super) fn host_local_pool(
    read_at: Timestamp,
    allocated: &[&str],
    completeness: Completeness,
) -> Pool {
    Pool {
        id: PoolId(1),
        source: Arc::new(PoolSource {
            ipam: Ipam::HostLocal,
            network: "net".to_owned(),
            place: "/data/net".to_owned(),
        }),
        coverage: Coverage {
            ranges: vec![ip("10.0.0.0")..=ip("10.0.0.255")],
            ..Coverage::default()
        },
        completeness,
        allocated: allocated
            .iter()
            .map(|address| (ip(address), allocation_to("any")))
            .collect::<BTreeMap<_, _>>(),
        can_detect_leaks: true,
        record_delay: Duration::ZERO,
        read_at,
        parts: None,
    }
}

impl Node {
    /// Reads [`host_local_pool`] now.
    pub(super) fn read_pool(&mut self, allocated: &[&str], completeness: Completeness) {
        self.update_pool(host_local_pool(self.now, allocated, completeness));
    }

    pub(super) fn update_pool(&mut self, pool: Pool) {
        let update = PoolUpdate::Read(Arc::new(pool), ChangedAddresses::All);
        self.engine
            .step(self.now, update.observed(self.now), &mut self.effects);
    }

    /// The anomaly events and pool requests since effects were last taken.
    pub(super) fn anomaly_events(&mut self) -> Vec<String> {
        let effects = std::mem::take(&mut self.effects);
        let text = |effect| match effect {
            Effect::Anomaly(AnomalyEffect::Raised(a)) => {
                Some(format!("raised {} {}", a.kind.name(), a.address))
            }
            Effect::Anomaly(AnomalyEffect::Updated(a)) => {
                Some(format!("updated {} {}", a.kind.name(), a.address))
            }
            Effect::Anomaly(AnomalyEffect::Resolved(a)) => Some(format!(
                "resolved {} {} {}",
                a.kind.name(),
                a.address,
                a.resolve_reason.unwrap().name()
            )),
            Effect::Anomaly(AnomalyEffect::ReadPool(_)) => Some("read pool".to_owned()),
            _ => None,
        };
        effects.into_iter().filter_map(text).collect()
    }

    /// The anomaly events and pool requests since effects were last taken are these.
    #[track_caller]
    pub(super) fn expect_anomalies<const N: usize>(&mut self, events: [&str; N]) {
        assert_eq!(self.anomaly_events(), events);
    }

    /// One pod with 10.0.0.2 and 10.0.0.3 after a first snapshot, with these bounds.
    pub(super) fn with_two_addresses(bounds: Bounds) -> Self {
        let mut node = Self::with_bounds(bounds);
        node.pod(1);
        node.take_first_snapshot();
        node.pod(1);
        node.address(1, "10.0.0.2");
        node.address(1, "10.0.0.3");
        node
    }

    /// The first snapshot: two pods, each with an address that is in no pool.
    pub(super) fn take_first_snapshot(&mut self) {
        let links = (1..=2).map(pod).collect();
        let snapshot = Snapshot {
            links,
            pods: (1..=2)
                .map(|ifindex| PodAddresses {
                    peer: peer(ifindex),
                    mac: None,
                    addresses: Some(vec![assigned(&format!("10.7.0.{ifindex}"))]),
                    is_truncated: false,
                    internal: Vec::new(),
                    is_missing_internal: false,
                })
                .collect(),
            ..Snapshot::default()
        };
        self.observe(Observation::SnapshotStarted(SnapshotToken(77)));
        self.observe(Observation::Snapshot(
            SnapshotToken(77),
            SnapshotScope::Node,
            Box::new(snapshot),
        ));
        self.effects.clear();
    }
}

/// Two pods after a first snapshot.
pub(super) fn synced_node() -> Node {
    let mut node = Node::with_pods(2);
    node.take_first_snapshot();
    node
}

/// Three unanswered probes of the pod for `target`.
pub(super) fn unanswered_probe(ifindex: IfIndex, target: &str) -> Observation {
    Observation::UnansweredProbe(UnansweredProbe {
        ifindex,
        target: ip(target),
        sender: ip("10.0.0.2"),
        vlan: Vlan::default(),
        count: 3,
    })
}
