//! Tests of the metrics' text form.

use super::*;
use crate::{
    engine::{ConflictId, Network},
    event::samples,
};

/// The names in a scrape, each with its type.
const CONTRACT: &[(&str, &str)] = &[
    ("ipconflict_build_info", "info"),
    ("ipconflict_conflicts_active", "gauge"),
    ("ipconflict_conflicts_raised_total", "counter"),
    ("ipconflict_conflict_info", "gauge"),
    ("ipconflict_conflict_info_overflow", "gauge"),
    ("ipconflict_detection_latency_seconds", "histogram"),
    ("ipconflict_claims", "gauge"),
    ("ipconflict_claimed_addresses_overflow", "gauge"),
    ("ipconflict_devices_attached", "gauge"),
    ("ipconflict_devices_preempted", "gauge"),
    ("ipconflict_observations_total", "counter"),
    ("ipconflict_observations_dropped_total", "counter"),
    ("ipconflict_frames_rejected_total", "counter"),
    ("ipconflict_kernel_log_suppressed_total", "counter"),
    ("ipconflict_resyncs_total", "counter"),
    ("ipconflict_anomalies_active", "gauge"),
    ("ipconflict_pod_lookups_total", "counter"),
    ("ipconflict_deliveries_total", "counter"),
    ("ipconflict_outbox_pending", "gauge"),
    ("ipconflict_outbox_parked", "gauge"),
    ("ipconflict_claim_info", "gauge"),
    ("process_cpu_seconds_total", "counter"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_virtual_memory_bytes", "gauge"),
    ("process_start_time_seconds", "gauge"),
    ("process_open_fds", "gauge"),
    ("process_max_fds", "gauge"),
];

#[test]
fn claimants_that_a_conflict_does_not_list_are_counted() {
    let metrics = Metrics::new();
    let mut event = samples::raised("10.0.0.1");
    event.data.claimants_omitted = 3;
    let overflow = |expected: &str| {
        let text = metrics.encode(None).unwrap_or_default();
        let line = format!("ipconflict_conflict_info_overflow {expected}\n");
        assert!(text.contains(&line), "{line} in\n{text}");
    };
    metrics.count_event(&event.clone().into());
    overflow("3");
    event.data.claimants_omitted = 0;
    metrics.count_event(&event.into());
    overflow("0");
}

#[test]
fn without_detail_claimants_are_only_counted() {
    let metrics = Metrics::with_detail(false);
    let mut event = samples::raised("10.0.0.1");
    event.data.claimants_omitted = 3;
    metrics.count_event(&event.clone().into());
    let text = metrics.encode(None).unwrap_or_default();
    let count = event.data.claimants.len() + 3;
    let line = format!("ipconflict_conflict_info_overflow {count}\n");
    assert!(text.contains(&line), "{line} in\n{text}");
    for label in ["address=", "device=", "namespace=", "pod="] {
        assert!(!text.contains(label), "{label} in\n{text}");
    }
}

#[test]
fn receiver_of_the_traffic_gets_a_series_first() {
    let metrics = Metrics {
        conflict_info: ConflictInfoSeries::new(1),
        ..Metrics::new()
    };
    let mut event = samples::raised("10.0.0.1");
    event.data.traffic_goes_to = Some(event.data.claimants[1].device.clone());
    metrics.count_event(&event.clone().into());
    let shown = metrics.conflict_info.devices();
    assert_eq!(shown, [event.data.claimants[1].device.as_str()]);
}

#[test]
fn every_metric_has_its_documented_name_and_type() {
    let metrics = Metrics::new();
    let kind = Kind { kind: "duplicate" };
    let reason = Reason {
        reason: "ring_full",
    };
    metrics.observations.get_or_create(&kind).inc();
    metrics.anomalies.get_or_create(&kind).set(1);
    for family in [&metrics.dropped, &metrics.rejected, &metrics.resyncs] {
        family.get_or_create(&reason).inc();
    }
    let lookup = Lookup {
        via: "cri",
        outcome: "found",
    };
    metrics.lookups.get_or_create(&lookup).inc();
    let sink = "webhook".to_owned();
    let delivery = Delivery {
        sink: sink.clone(),
        outcome: "delivered",
    };
    metrics.deliveries.get_or_create(&delivery).inc();
    metrics.show_queue(&sink, 1, 1);
    let address = AddressLabels::new([10, 0, 0, 1].into(), &Network::Node, (None, None));
    metrics.conflict_info.set(
        ConflictId(1),
        std::iter::once(ConflictInfo {
            address: address.clone(),
            kind: "duplicate",
            device: "veth\"0\n".to_owned(),
            namespace: String::new(),
            pod: String::new(),
        }),
        0,
    );
    let mut claims = ClaimSeries::default();
    claims.add(ClaimInfo {
        address,
        namespace: "default".to_owned(),
        pod: "web".to_owned(),
    });
    let text = metrics.encode(Some(claims)).unwrap_or_default();
    for (name, kind) in CONTRACT {
        let sample = |line: &str| {
            let rest = line.strip_prefix(name).unwrap_or_default();
            let rest = if *kind == "histogram" {
                rest.strip_prefix("_bucket").unwrap_or_default()
            } else {
                rest
            };
            rest.starts_with([' ', '{'])
        };
        assert!(text.lines().any(sample), "{name} is missing in\n{text}");
        let family = name
            .strip_suffix(if *kind == "info" { "_info" } else { "_total" })
            .unwrap_or(name);
        let declared = format!("# TYPE {family} {kind}");
        assert!(text.lines().any(|l| l == declared), "{declared} in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    assert!(text.contains(r#"device="veth\"0\n""#), "{text}");
}
