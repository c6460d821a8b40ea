//! Tests of the metrics' text form.

#![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

use std::collections::BTreeSet;

use detector_engine::{
    AnomalyId, ConflictId, ConflictKind, Network,
    diagnosis::{Cause, CauseConfidence},
};
use detector_event::{Affected, DiagnosisData, SubjectState, Via, samples};

use super::*;

/// The metrics of the reference, each with its type.
fn documented() -> BTreeSet<(String, String)> {
    let page = include_str!("../../../docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split_once("` | "))
        // The other tables explain label values.
        .filter(|(name, _)| name.starts_with("ipconflict_") || name.starts_with("process_"))
        .map(|(name, rest)| (name.to_owned(), rest.split(' ').take(1).collect()))
        .collect()
}

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
fn raised_and_resolved_conflicts_and_anomalies_are_counted() {
    let metrics = Metrics::new();
    metrics.count_event(&samples::raised("10.0.0.1").into());
    metrics.count_event(&samples::event("2", Change::Updated, "a", "10.0.0.1").into());
    metrics.count_event(&samples::resolved("10.0.0.1").into());
    let drift = AnyEvent::from(samples::drift("10.0.0.1"));
    metrics.count_event(&drift);
    metrics.count_event(&drift.resolved_unseen("end".to_owned(), WallTime::now()));
    let text = metrics.encode(None).unwrap_or_default();
    for (what, kind) in [("conflicts", "duplicate"), ("anomalies", "ipam_drift")] {
        for change in ["raised", "resolved"] {
            let line = format!("ipconflict_{what}_{change}_total{{kind=\"{kind}\"}} 1\n");
            assert!(text.contains(&line), "{line} in\n{text}");
        }
    }
}

#[test]
fn only_the_first_diagnosis_of_what_this_run_raised_is_timed() {
    let metrics = Metrics::new();
    let diagnosis = DiagnosisData {
        cause: Cause::FramesOnly,
        confidence: CauseConfidence::Likely,
        since: None,
        summary: String::new(),
        evidence: Vec::new(),
        affected: Affected {
            addresses: 1,
            pods: 2,
        },
        repair: String::new(),
        ruled_out: Vec::new(),
        not_checked: Vec::new(),
    };
    let mut event = samples::raised("10.0.0.1");
    // Long ago.
    metrics.count_diagnosis(&event.clone().into(), &diagnosis, true);
    event.data.raised_at = WallTime::now();
    metrics.count_diagnosis(&event.clone().into(), &diagnosis, true);
    metrics.count_diagnosis(&event.into(), &diagnosis, false);
    let text = metrics.encode(None).unwrap();
    for line in [
        "ipconflict_diagnoses_total{cause=\"frames_only\",confidence=\"likely\"} 3\n",
        "ipconflict_diagnosis_seconds_count 1\n",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn without_detail_claimants_are_only_counted() {
    let metrics = Metrics::with_detail(false);
    let mut event = samples::raised("10.0.0.1");
    event.data.claimants_omitted = 3;
    metrics.count_event(&event.clone().into());
    metrics.count_event(&samples::drift("10.0.0.2").into());
    let text = metrics.encode(None).unwrap_or_default();
    let count = event.data.claimants.len() + 3;
    for line in [
        format!("ipconflict_conflict_info_overflow {count}\n"),
        "ipconflict_anomaly_info_overflow 1\n".to_owned(),
    ] {
        assert!(text.contains(&line), "{line} in\n{text}");
    }
    for label in ["address=", "device=", "namespace=", "pod="] {
        assert!(!text.contains(label), "{label} in\n{text}");
    }
}

#[test]
fn conflicts_of_a_sweep_are_marked_and_counted() {
    for detail in [true, false] {
        let metrics = Metrics::with_detail(detail);
        let has = |line: &str| metrics.encode(None).unwrap().contains(line);
        let mut event = samples::raised("10.0.0.1");
        metrics.count_event(&event.clone().into());
        assert!(has(
            "conflicts_swept{kind=\"duplicate\",scope=\"node\"} 0\n"
        ));
        assert_eq!(has("sweep=\"\""), detail);
        event.data.sweep = Some(AnomalyId(7));
        for _ in 0..2 {
            metrics.count_event(&event.clone().into());
        }
        assert!(has(
            "conflicts_swept{kind=\"duplicate\",scope=\"node\"} 1\n"
        ));
        assert_eq!(has("sweep=\"00000000000000000000000000000007\""), detail);
        event.data.kind = ConflictKind::Host;
        metrics.count_event(&event.clone().into());
        assert!(has(
            "conflicts_swept{kind=\"duplicate\",scope=\"node\"} 0\n"
        ));
        assert!(has("conflicts_swept{kind=\"host\",scope=\"node\"} 1\n"));
        event.data.state = SubjectState::Resolved;
        metrics.count_event(&event.into());
        assert!(has("conflicts_swept{kind=\"host\",scope=\"node\"} 0\n"));
    }
}

#[test]
fn receiver_of_the_traffic_gets_a_series_first() {
    let metrics = Metrics {
        conflict_info: one_series(),
        ..Metrics::new()
    };
    let mut event = samples::raised("10.0.0.1");
    event.data.traffic_goes_to = Some(event.data.claimants[1].device.clone());
    metrics.count_event(&event.clone().into());
    let labels = metrics.conflict_info.labels();
    assert_eq!(labels[0].device, event.data.claimants[1].device);
    assert_eq!(labels.len(), 1);
}

fn one_series<K: Copy + Eq + std::hash::Hash, L: Eq + std::hash::Hash>() -> InfoSeries<K, L> {
    let described = |name| MetricDescription { name, help: "" };
    InfoSeries::new(described("info"), described("overflow"), 1)
}

#[test]
fn active_anomaly_has_a_series_with_its_pod() {
    let metrics = Metrics::new();
    let mut event = samples::drift("10.0.0.1");
    event.data.pod = None;
    event.data.vlan = Some(7);
    metrics.count_event(&event.clone().into());
    // The pod becomes known.
    event.data.pod = samples::drift("10.0.0.1").data.pod;
    metrics.count_event(&event.clone().into());
    let labels = metrics.anomaly_info.labels();
    let pod = event.data.pod.clone().unwrap();
    assert_eq!(
        *labels[0],
        AnomalyInfo {
            address: event.data.address.into(),
            vlan: "7".to_owned(),
            kind: "ipam_drift",
            device: event.data.device.clone().unwrap(),
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            cause: "",
        }
    );
    assert_eq!(labels.len(), 1);
    event.data.diagnosis = Some(samples::diagnosis(Cause::IpamStateWiped, 9).into());
    metrics.count_event(&event.clone().into());
    let labels = metrics.anomaly_info.labels();
    let causes: Vec<_> = labels.iter().map(|info| info.cause).collect();
    assert_eq!(causes, ["ipam_state_wiped"]);
    event.data.state = SubjectState::Resolved;
    metrics.count_event(&event.into());
    assert!(metrics.anomaly_info.labels().is_empty());
}

#[test]
fn help_texts_are_sentences_of_one_style() {
    let text = metrics_with_every_family();
    let plain = to_prometheus_text(&text);
    let mut lines = plain.lines();
    let mut count = 0;
    while let Some(line) = lines.next() {
        let Some((name, help)) = (line.strip_prefix("# HELP ")).and_then(|l| l.split_once(' '))
        else {
            continue;
        };
        count += 1;
        let kind = lines.next().and_then(|l| l.rsplit(' ').next());
        let begins = match kind {
            Some("counter") => help.starts_with("Total "),
            _ if name.ends_with("_info") => help.starts_with("Always 1, "),
            _ => help.starts_with(|c: char| c.is_ascii_uppercase()),
        };
        let is_one_sentence = help.ends_with('.') && help.matches(['.', '\\']).count() == 1;
        assert!(begins && is_one_sentence, "{name} ({kind:?}): {help}");
    }
    assert_eq!(count, documented().len(), "{plain}");
}

/// A scrape with at least one series of each family.
fn metrics_with_every_family() -> String {
    let metrics = Metrics::new().with_collector(crate::sinks::AlertSeries::default());
    let kind = Kind::observation("arp");
    let reason = Reason::dropped("ring_full");
    metrics.observations.get_or_create(&kind).inc();
    for family in [&metrics.dropped, &metrics.rejected, &metrics.resyncs] {
        family.get_or_create(&reason).inc();
    }
    let lookup = Lookup::new(Via::Cri, "named");
    metrics.lookups.get_or_create(&lookup).inc();
    let request = FleetRequest::new("create", "ok");
    metrics.fleet_requests.get_or_create(&request).inc();
    metrics.count_deliveries("webhook", "delivered", 1);
    let unknown = Diagnosed::new(Cause::Unknown, CauseConfidence::Likely);
    metrics.diagnoses.get_or_create(&unknown).inc();
    metrics.set_queue("webhook", 1, 1);
    metrics.count_event(&samples::drift("10.0.0.2").into());
    let address = AddressLabels::new([10, 0, 0, 1].into(), &Network::Node, (None, None));
    metrics.conflict_info.set(
        ConflictId(1),
        std::iter::once(ConflictInfo {
            address: address.clone(),
            kind: "duplicate",
            device: "veth\"0\n".to_owned(),
            namespace: String::new(),
            pod: String::new(),
            sweep: String::new(),
            cause: "",
        }),
        0,
    );
    let mut claims = ClaimSeries::default();
    claims.add(ClaimInfo {
        address,
        namespace: "default".to_owned(),
        pod: "web".to_owned(),
    });
    metrics.encode(Some(claims)).unwrap()
}

#[test]
fn metrics_are_exactly_those_of_the_reference() {
    let text = metrics_with_every_family();
    let plain = to_prometheus_text(&text);
    let types = |text: &str| -> Vec<_> {
        let lines = text.lines().filter_map(|l| l.strip_prefix("# TYPE "));
        let types = lines.filter_map(|line| line.split_once(' '));
        types
            .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
            .collect()
    };
    let exposed = types(&text).into_iter().map(|(family, kind)| match &*kind {
        "counter" => (family + "_total", kind),
        "info" => (family + "_info", kind),
        _ => (family, kind),
    });
    assert_eq!(exposed.collect::<BTreeSet<_>>(), documented());
    let in_plain = documented()
        .into_iter()
        .map(|(name, kind)| (name, kind.replace("info", "gauge")));
    let types: BTreeSet<_> = types(&plain).into_iter().collect();
    assert_eq!(types, in_plain.collect());
    assert!(
        !plain.contains("# EOF") && !plain.contains("# UNIT"),
        "{plain}"
    );
    assert!(text.ends_with("# EOF\n"));
    assert!(text.contains(r#"device="veth\"0\n""#), "{text}");
}
