//! Addresses that pods have and cannot use (`docs/detection-rules.md`, 14).

use super::*;

const SHARED: &str = "2001:db8::1";
const GRACE: Duration = Duration::from_secs(5);

impl Node {
    /// Duplicate address detection fails, or an address that failed is added again.
    fn detected(&mut self, ifindex: IfIndex, dad_failed: bool) {
        let info = AssignedAddress {
            dad_failed,
            ..assigned(SHARED)
        };
        self.observe(Observation::PodAddress(peer(ifindex), info));
    }

    /// What happened to anomalies since effects were last taken.
    fn unusable(&mut self) -> Vec<String> {
        let effects = std::mem::take(&mut self.effects).into_iter();
        let text = |effect| match effect {
            Effect::Anomaly(AnomalyEffect::Raised(a)) => Some(format!(
                "raised {} {} on {}",
                a.kind.name(),
                a.address,
                a.holder.map(|holder| holder.device).unwrap_or_default()
            )),
            Effect::Anomaly(AnomalyEffect::Resolved(a)) => Some(format!(
                "resolved {}",
                a.resolve_reason.map_or("", ResolveReason::name)
            )),
            _ => None,
        };
        effects.filter_map(text).collect()
    }
}

/// Two pods get the address; detection fails at the second.
fn failed() -> Node {
    let mut node = Node::new();
    node.resync(snapshot(&[(1, &[SHARED]), (2, &["2001:db8::2"])]));
    node.address(2, SHARED);
    node.detected(2, true);
    node.wait(GRACE * 2);
    assert_eq!(node.unusable(), [""; 0], "in conflict");
    node
}

#[test]
fn address_that_stays_failed_after_a_conflict_is_unusable() {
    let mut node = failed();
    node.address_gone(1, SHARED);
    assert_eq!(node.unusable(), [""; 0]);
    node.wait(GRACE);
    assert_eq!(
        node.unusable(),
        ["raised address_unusable 2001:db8::1 on veth2"]
    );
    assert_eq!(
        node.engine
            .view()
            .open_anomalies(AnomalyKind::AddressUnusable),
        1
    );
    node.wait_secs(600);
    assert_eq!(node.unusable(), [""; 0]);
    node.detected(2, false);
    assert_eq!(node.unusable(), ["resolved usable"]);
}

#[test]
fn unusable_address_ends_with_the_address_or_a_conflict() {
    let ends: [NodeCase; 3] = [
        ("resolved address_gone", |node| node.address_gone(2, SHARED)),
        ("resolved address_gone", |node| node.remove_link(2)),
        ("resolved in_conflict", |node| node.address(1, SHARED)),
    ];
    for (resolved, end) in ends {
        let mut node = failed();
        node.address_gone(1, SHARED);
        node.wait(GRACE);
        node.unusable();
        end(&mut node);
        assert_eq!(node.unusable(), [resolved]);
    }
}

#[test]
fn address_that_fails_without_a_conflict_is_unusable() {
    let mut node = Node::new();
    node.resync(snapshot(&[(1, &[SHARED])]));
    node.detected(1, true);
    node.wait(GRACE / 2);
    assert_eq!(node.unusable(), [""; 0]);
    node.wait(GRACE);
    assert_eq!(
        node.unusable(),
        ["raised address_unusable 2001:db8::1 on veth1"]
    );
}
