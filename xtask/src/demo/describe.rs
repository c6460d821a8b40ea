//! Text form of a conflict event, for the demo.

use std::{fmt::Write as _, time::Duration};

use detector_testkit::event::{Claimant, Conflict, Evidence};

/// Describes a conflict in several lines: claimants with their evidence, the receiver of the
/// traffic, and the latency.
///
/// `elapsed` is the time from starting the command that caused the event to receiving the event.
pub(super) fn describe_conflict(conflict: &Conflict, elapsed: Duration) -> String {
    let mut lines = vec![headline(conflict)];
    let width = conflict
        .claimants
        .iter()
        .map(|claimant| claimant.device.len())
        .max()
        .unwrap_or(0);
    lines.extend(
        conflict
            .claimants
            .iter()
            .map(|claimant| describe_claimant(claimant, width)),
    );
    if conflict.state == "active" {
        let receiver = conflict.traffic_goes_to.as_deref();
        let receiver = receiver.unwrap_or("unknown (the node has no route to the address)");
        lines.push(format!("traffic goes to: {receiver}"));
    }
    lines.push(describe_latency(conflict, elapsed));
    lines.join("\n  ")
}

fn headline(conflict: &Conflict) -> String {
    if conflict.state == "resolved" {
        return format!("RESOLVED  {}", conflict.address);
    }
    format!(
        "CONFLICT  {} is claimed by {} devices ({}, {})",
        conflict.address,
        conflict.claimants.len(),
        conflict.kind,
        conflict.confidence
    )
}

fn describe_claimant(claimant: &Claimant, width: usize) -> String {
    let mut text = format!("{:width$}", claimant.device);
    if let Some(mac) = &claimant.mac {
        let _ = write!(text, "  {mac}");
    }
    let evidence: Vec<_> = claimant.evidence.iter().map(describe_evidence).collect();
    let _ = write!(text, "  evidence: {}", evidence.join(", "));
    if let Some(reason) = &claimant.left {
        let _ = write!(text, "  left: {}", reason.replace('_', " "));
    }
    text
}

fn describe_evidence(evidence: &Evidence) -> String {
    let kind = match evidence.kind.as_str() {
        "address" => "address in the pod's namespace",
        "arp" => "ARP frame",
        "ndp" => "NDP message",
        "neighbour" => "the node's neighbour entry",
        "source" => "source address of packets",
        other => other,
    };
    match &evidence.detail {
        Some(detail) => format!("{kind} ({detail})"),
        None => kind.to_owned(),
    }
}

fn describe_latency(conflict: &Conflict, elapsed: Duration) -> String {
    let total = format!(
        "{:.1} ms after the `ip` command was started",
        elapsed.as_secs_f64() * 1e3
    );
    match conflict.latency_us {
        Some(latency) => format!("detected {latency:.0} µs after the kernel event, {total}"),
        None => format!("detected {total}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimant(device: &str, left: Option<&str>) -> Claimant {
        Claimant {
            node: "n".to_owned(),
            device: device.to_owned(),
            ifindex: 3,
            mac: Some("02:00:00:00:00:01".to_owned()),
            master: None,
            since: None,
            since_unknown_because: None,
            newest: false,
            newest_by: None,
            rightful: None,
            allocated: None,
            left: left.map(str::to_owned),
            pod: None,
            pod_unknown_because: None,
            evidence: vec![
                Evidence {
                    kind: "address".to_owned(),
                    first_seen: None,
                    mac: None,
                    detail: None,
                },
                Evidence {
                    kind: "neighbour".to_owned(),
                    first_seen: None,
                    mac: None,
                    detail: Some("PERMANENT".to_owned()),
                },
            ],
        }
    }

    fn duplicate(state: &str, claimants: Vec<Claimant>) -> Conflict {
        Conflict {
            scope: "node".to_owned(),
            conflict_id: "c".to_owned(),
            node: "n".to_owned(),
            network: "node".to_owned(),
            address: "10.244.2.10".to_owned(),
            vlan: None,
            kind: "duplicate".to_owned(),
            confidence: "certain".to_owned(),
            state: state.to_owned(),
            resolved_at: None,
            duration_seconds: None,
            changed: Vec::new(),
            latency_us: Some(37.0),
            traffic_goes_to: Some("veth1".to_owned()),
            sweep: None,
            diagnosis: None,
            timeline: Vec::new(),
            claimants,
            guidance: None,
        }
    }

    #[test]
    fn active_conflict_shows_evidence_receiver_and_latency() {
        let claimants = vec![claimant("veth1", None), claimant("vethsecond", None)];
        let text = describe_conflict(&duplicate("active", claimants), Duration::from_micros(2540));
        assert_eq!(
            text,
            "CONFLICT  10.244.2.10 is claimed by 2 devices (duplicate, certain)\n  \
             veth1       02:00:00:00:00:01  evidence: address in the pod's namespace, the node's neighbour entry (PERMANENT)\n  \
             vethsecond  02:00:00:00:00:01  evidence: address in the pod's namespace, the node's neighbour entry (PERMANENT)\n  \
             traffic goes to: veth1\n  \
             detected 37 µs after the kernel event, 2.5 ms after the `ip` command was started"
        );
    }

    #[test]
    fn resolved_conflict_shows_who_left_and_why() {
        let claimants = vec![
            claimant("veth1", None),
            claimant("veth2", Some("device_removed")),
        ];
        let text = describe_conflict(&duplicate("resolved", claimants), Duration::from_millis(1));
        assert!(text.starts_with("RESOLVED  10.244.2.10\n"), "{text}");
        assert!(
            text.contains("(PERMANENT)  left: device removed\n"),
            "{text}"
        );
        assert!(!text.contains("traffic goes to"), "{text}");
    }

    #[test]
    fn unknown_receiver_is_shown_as_unknown() {
        let mut conflict = duplicate("active", vec![claimant("veth1", None)]);
        conflict.traffic_goes_to = None;
        let text = describe_conflict(&conflict, Duration::from_millis(1));
        assert!(text.contains("traffic goes to: unknown"), "{text}");
    }
}
