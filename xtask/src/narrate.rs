//! A conflict in words, for the person who watches the demo.

use std::{fmt::Write as _, time::Duration};

use detector_testkit::event::{Claimant, Conflict, Evidence};

/// Several lines: what, who on what evidence, who receives the traffic, how fast.
///
/// `elapsed` runs from the command that made the difference to the moment the event was read.
pub(crate) fn conflict(conflict: &Conflict, elapsed: Duration) -> String {
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
            .map(|claimant| self::claimant(claimant, width)),
    );
    if conflict.state == "active" {
        let receiver = conflict.traffic_goes_to.as_deref();
        let receiver = receiver.unwrap_or("unknown: the node has no route to it");
        lines.push(format!("traffic goes to: {receiver}"));
    }
    lines.push(speed(conflict, elapsed));
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

fn claimant(claimant: &Claimant, width: usize) -> String {
    let mut text = format!("{:width$}", claimant.device);
    if let Some(mac) = &claimant.mac {
        let _ = write!(text, "  {mac}");
    }
    let evidence: Vec<_> = claimant.evidence.iter().map(evidence).collect();
    let _ = write!(text, "  by {}", evidence.join(", "));
    if let Some(reason) = &claimant.left {
        let _ = write!(text, "  left: {}", reason.replace('_', " "));
    }
    text
}

fn evidence(evidence: &Evidence) -> String {
    let words = match evidence.kind.as_str() {
        "address" => "an address in its namespace",
        "arp" => "an ARP frame",
        "ndp" => "a neighbour discovery frame",
        "neighbour" => "the node's neighbour entry",
        "source" => "packets sent with it",
        other => other,
    };
    match &evidence.detail {
        Some(detail) => format!("{words} ({detail})"),
        None => words.to_owned(),
    }
}

fn speed(conflict: &Conflict, elapsed: Duration) -> String {
    let whole = format!(
        "{:.1} ms after the command was started",
        elapsed.as_secs_f64() * 1e3
    );
    match conflict.latency_us {
        Some(latency) => format!("told {latency:.0} µs after the kernel said so, {whole}"),
        None => format!("told {whole}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimant(device: &str, left: Option<&str>) -> Claimant {
        Claimant {
            device: device.to_owned(),
            ifindex: 3,
            mac: Some("02:00:00:00:00:01".to_owned()),
            master: None,
            left: left.map(str::to_owned),
            pod: None,
            pod_unknown_because: None,
            evidence: vec![
                Evidence {
                    kind: "address".to_owned(),
                    mac: None,
                    detail: None,
                },
                Evidence {
                    kind: "neighbour".to_owned(),
                    mac: None,
                    detail: Some("PERMANENT".to_owned()),
                },
            ],
        }
    }

    fn duplicate(state: &str, claimants: Vec<Claimant>) -> Conflict {
        Conflict {
            conflict_id: "c".to_owned(),
            node: "n".to_owned(),
            address: "10.244.2.10".to_owned(),
            vlan: None,
            kind: "duplicate".to_owned(),
            confidence: "certain".to_owned(),
            state: state.to_owned(),
            resolved_at: None,
            latency_us: Some(37.0),
            traffic_goes_to: Some("veth1".to_owned()),
            claimants,
        }
    }

    #[test]
    fn an_active_conflict_says_who_on_what_evidence_who_receives_and_how_fast() {
        let both = vec![claimant("veth1", None), claimant("vethsecond", None)];
        let text = conflict(&duplicate("active", both), Duration::from_micros(2540));
        assert_eq!(
            text,
            "CONFLICT  10.244.2.10 is claimed by 2 devices (duplicate, certain)\n  \
             veth1       02:00:00:00:00:01  by an address in its namespace, the node's neighbour entry (PERMANENT)\n  \
             vethsecond  02:00:00:00:00:01  by an address in its namespace, the node's neighbour entry (PERMANENT)\n  \
             traffic goes to: veth1\n  \
             told 37 µs after the kernel said so, 2.5 ms after the command was started"
        );
    }

    #[test]
    fn a_resolved_conflict_says_who_left_and_why() {
        let both = vec![
            claimant("veth1", None),
            claimant("veth2", Some("device_removed")),
        ];
        let text = conflict(&duplicate("resolved", both), Duration::from_millis(1));
        assert!(text.starts_with("RESOLVED  10.244.2.10\n"), "{text}");
        assert!(
            text.contains("(PERMANENT)  left: device removed\n"),
            "{text}"
        );
        assert!(!text.contains("traffic goes to"), "{text}");
    }

    #[test]
    fn traffic_that_goes_nowhere_known_is_said_so() {
        let mut nowhere = duplicate("active", vec![claimant("veth1", None)]);
        nowhere.traffic_goes_to = None;
        let text = conflict(&nowhere, Duration::from_millis(1));
        assert!(text.contains("traffic goes to: unknown"), "{text}");
    }
}
