//! Checks an event against the contract in `docs/events.md`, field by field.

use serde_json::Value;

use crate::event::{ANOMALY_RAISED, ANOMALY_RESOLVED, ANOMALY_UPDATED, RAISED, RESOLVED, UPDATED};

/// The causes of a diagnosis.
const CAUSES: [&str; 22] = [
    "ipam_state_wiped",
    "ipam_state_not_persistent",
    "node_reset",
    "released_in_use",
    "allocated_twice",
    "shared_handle",
    "block_recreated",
    "ipam_daemon_forgot",
    "datastore_restored",
    "two_allocators",
    "not_from_ipam",
    "frames_only",
    "sandbox_gone",
    "pod_cidr_twice",
    "node_address_in_range",
    "shared_on_purpose",
    "reverse_path_filter",
    "no_proxy_arp",
    "no_route",
    "route_of_deleted_pod",
    "route_of_other_pod",
    "unknown",
];

/// The violations of the event contract in an event, each with the path of the field; empty if there are none.
#[must_use]
pub fn violations(event: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = FieldCheck {
        at: String::new(),
        value: event,
        found: &mut found,
    };
    check.field("specversion", |field| field.one_of(&["1.0"]));
    check.field("id", non_empty);
    check.field("source", |field| {
        field.text(
            |text| text.starts_with("ip-conflict-detector/"),
            "ip-conflict-detector/…",
        )
    });
    check.field("type", |field| {
        field.one_of(&[
            RAISED,
            UPDATED,
            RESOLVED,
            ANOMALY_RAISED,
            ANOMALY_UPDATED,
            ANOMALY_RESOLVED,
        ])
    });
    check.field("subject", address);
    check.field("time", time);
    check.field("datacontenttype", |field| {
        field.one_of(&["application/json"])
    });
    let kind = event
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let is_conflict = kind.starts_with("io.ipconflict.conflict.");
    check.field("data", |data| {
        if is_conflict {
            conflict(data, kind == RESOLVED);
            changed(data, kind == UPDATED);
        } else {
            anomaly(data, kind == ANOMALY_RESOLVED);
        }
    });
    if event.get("subject") != event.pointer("/data/address") {
        found.push("subject is not data.address".to_owned());
    }
    found
}

fn conflict(data: &mut FieldCheck<'_>, resolved: bool) {
    data.field("conflict_id", non_empty);
    data.field("node", non_empty);
    data.field("cluster", null_or_non_empty);
    data.field("address", address);
    data.field("network", |field| {
        field.text(
            |text| {
                let kinds = ["vrf:", "bridge:", "cni:", "link:"];
                let is_name = |kind| text.strip_prefix(kind).is_some_and(|name| !name.is_empty());
                text == "node" || kinds.into_iter().any(is_name)
            },
            "the name of a network",
        )
    });
    data.field("vlan", |vlan| {
        if !vlan.value.is_null()
            && !vlan.value.is_u64()
            && !vlan.value.is_string()
            && !vlan.value.is_object()
        {
            vlan.report("a VLAN or null");
        }
    });
    data.field("kind", |field| {
        field.one_of(&["duplicate", "host", "flapping"])
    });
    data.field("scope", |field| field.one_of(&["node", "fleet"]));
    data.field("confidence", |field| field.one_of(&["certain", "observed"]));
    data.field("state", |field| {
        field.one_of(&[if resolved { "resolved" } else { "active" }])
    });
    data.field("raised_at", time);
    data.field("updated_at", time);
    data.field("resolved_at", |field| {
        if resolved {
            time(field);
        } else if !field.value.is_null() {
            field.report("null while active");
        }
    });
    duration(data, resolved);
    diagnosis(data);
    guidance(data, resolved);
    // A duration and not a time: hundreds of conflicts found by one snapshot take a busy machine more than a second.
    data.field("latency_us", |field| {
        if !field
            .value
            .as_f64()
            .is_some_and(|latency| latency > 0.0 && latency < 1e8)
        {
            field.report("between 0 and 100000000, both excluded");
        }
    });
    data.field("traffic_goes_to", |field| field.or_null(non_empty));
    let mut present = 0;
    data.list("claimants", |claimant| {
        let left = claimant
            .value
            .get("left")
            .is_some_and(|left| !left.is_null());
        present += usize::from(!left);
        claimant.field("node", non_empty);
        claimant.field("device", non_empty);
        claimant.field("ifindex", |field| {
            if field.value.as_u64().is_none_or(|index| index == 0) {
                field.report("a positive number");
            }
        });
        claimant.field("mac", |field| field.or_null(mac));
        claimant.field("master", |field| field.or_null(non_empty));
        since(claimant);
        newest(claimant);
        for record in ["rightful", "allocated"] {
            if is_set(claimant, record) {
                claimant.field(record, |field| {
                    if !field.value.is_boolean() {
                        field.report("a boolean");
                    }
                });
            }
        }
        claimant.field("pod", |field| field.or_null(pod));
        claimant.field("pod_unknown_because", |field| field.or_null(non_empty));
        if claimant.value.get("pod").is_some_and(Value::is_null)
            && claimant
                .value
                .get("pod_unknown_because")
                .is_some_and(Value::is_null)
        {
            claimant.report("a pod, or the reason why it is unknown");
        }
        if left {
            claimant.field("left", |field| {
                field.one_of(&["device_removed", "address_removed", "expired"])
            });
        }
        claimant.list("evidence", |evidence| {
            evidence.field("kind", |field| {
                field.one_of(&["address", "arp", "ndp", "neighbour", "source"])
            });
            evidence.field("first_seen", |field| field.or_null(time));
            evidence.field("last_seen", time);
            evidence.field("mac", |field| field.or_null(mac));
            evidence.field("detail", |field| field.or_null(non_empty));
        });
    });
    let kind = data.value.get("kind").and_then(Value::as_str);
    // An allowed address may be claimed by several devices when it no longer moves.
    if resolved && kind != Some("flapping") && present > 1 {
        data.report(&format!(
            "fewer than two claimants present when resolved, not {present}"
        ));
    }
    if !resolved && kind == Some("duplicate") && present < 2 {
        data.report(&format!(
            "two claimants or more in an active duplicate, not {present}"
        ));
    }
}

fn is_set(field: &FieldCheck<'_>, name: &str) -> bool {
    field.value.get(name).is_some_and(|value| !value.is_null())
}

/// Only a resolving event has a duration.
fn duration(data: &mut FieldCheck<'_>, resolved: bool) {
    if resolved {
        data.field("duration_seconds", |field| {
            if field.value.as_f64().is_none_or(|seconds| seconds < 0.0) {
                field.report("a number of seconds");
            }
        });
    } else if is_set(data, "duration_seconds") {
        data.report("no duration while active");
    }
}

/// Something active has a next step and a runbook.
fn guidance(data: &mut FieldCheck<'_>, resolved: bool) {
    if !resolved {
        data.field("guidance", |guidance| {
            guidance.field("next_step", non_empty);
            guidance.field("runbook_url", |field| {
                field.text(|text| text.starts_with("https://"), "an https URL")
            });
        });
    } else if is_set(data, "guidance") {
        data.report("no guidance once it is resolved");
    }
}

/// Why it was found, and what happened around it.
fn diagnosis(data: &mut FieldCheck<'_>) {
    data.field("diagnosis", |field| {
        field.or_null(|diagnosis| {
            diagnosis.only(&[
                "cause",
                "confidence",
                "since",
                "summary",
                "evidence",
                "affected",
                "repair",
                "ruled_out",
                "not_checked",
            ]);
            diagnosis.field("cause", |field| field.one_of(&CAUSES));
            diagnosis.field("confidence", |field| field.one_of(&["proven", "likely"]));
            diagnosis.field("since", |field| field.or_null(time));
            diagnosis.field("summary", non_empty);
            diagnosis.list_or_empty("evidence", |evidence| {
                evidence.only(&["fact", "source", "at"]);
                evidence.field("fact", non_empty);
                evidence.field("source", non_empty);
                evidence.field("at", |field| field.or_null(time));
            });
            diagnosis.field("affected", |affected| {
                affected.only(&["addresses", "pods"]);
                affected.field("addresses", count);
                affected.field("pods", count);
            });
            diagnosis.field("repair", non_empty);
            diagnosis.list_or_empty("ruled_out", |field| field.one_of(&CAUSES));
            diagnosis.list_or_empty("not_checked", |not_checked| {
                not_checked.only(&["what", "because"]);
                not_checked.field("what", non_empty);
                not_checked.field("because", non_empty);
            });
        });
    });
    data.list_or_empty("timeline", |entry| {
        entry.only(&["at", "what", "source"]);
        entry.field("at", time);
        entry.field("what", non_empty);
        entry.field("source", non_empty);
    });
    let timeline = data.value.get("timeline").and_then(Value::as_array);
    let times = timeline.into_iter().flatten();
    let times: Vec<_> = times.map(|entry| entry["at"].as_str()).collect();
    if !times.is_sorted() || times.len() > 32 {
        data.report("at most 32 entries of the timeline, oldest first");
    }
}

/// Only an updating event names what changed.
fn changed(data: &mut FieldCheck<'_>, updated: bool) {
    if updated && is_set(data, "changed") {
        data.list("changed", |field| {
            field.one_of(&[
                "kind",
                "confidence",
                "traffic_goes_to",
                "claimants",
                "evidence",
                "pod",
                "newest",
                "rightful",
                "sweep",
                "diagnosis",
            ])
        });
    } else if is_set(data, "changed") {
        data.report("nothing changed, except in an update");
    }
}

/// The time, or the reason why it is unknown.
fn since(claimant: &mut FieldCheck<'_>) {
    claimant.field("since", |field| field.or_null(time));
    if is_set(claimant, "since") == is_set(claimant, "since_unknown_because") {
        claimant.report("either the time since when, or the reason why it is unknown");
    }
}

fn newest(claimant: &mut FieldCheck<'_>) {
    if claimant.value.get("newest") == Some(&Value::Bool(true)) {
        claimant.field("newest_by", |field| {
            field.one_of(&["first_sight", "sandbox", "pod"])
        });
    } else if is_set(claimant, "newest") || is_set(claimant, "newest_by") {
        claimant.report("newest true with its source, or neither");
    }
}

fn anomaly(data: &mut FieldCheck<'_>, resolved: bool) {
    data.field("anomaly_id", non_empty);
    data.field("node", non_empty);
    data.field("cluster", null_or_non_empty);
    data.field("address", address);
    data.field("kind", |field| {
        field.one_of(&[
            "ipam_drift",
            "ipam_leak",
            "gateway_unresolved",
            "route_astray",
            "address_sweep",
            "pod_cidr_overlap",
            "rogue_router",
            "mac_duplicate",
            "mac_moved",
            "address_unusable",
        ])
    });
    data.field("cause", non_empty);
    data.field("detail", non_empty);
    data.field("state", |field| {
        field.one_of(&[if resolved { "resolved" } else { "active" }])
    });
    data.field("raised_at", time);
    data.field("resolved_at", |field| {
        if resolved {
            time(field);
        } else if !field.value.is_null() {
            field.report("null while active");
        }
    });
    duration(data, resolved);
    diagnosis(data);
    guidance(data, resolved);
    for name in ["device", "ipam", "network", "source", "owner"] {
        data.field(name, |field| field.or_null(non_empty));
    }
    data.field("pod", |field| field.or_null(pod));
    let value = |name| data.value.get(name).is_some_and(|v| !v.is_null());
    if value("device") && !value("pod") && !value("pod_unknown_because") {
        data.report("a pod, or the reason why it is unknown");
    }
}

fn pod(pod: &mut FieldCheck<'_>) {
    for name in ["namespace", "name"] {
        pod.field(name, non_empty);
    }
    for name in ["uid", "container_id"] {
        pod.field(name, |field| field.or_null(non_empty));
    }
    pod.field("via", |field| {
        field.one_of(&["cri", "cni-cache", "name-hash", "kube"])
    });
}

/// A value, its path, and the violations found so far.
struct FieldCheck<'a> {
    at: String,
    value: &'a Value,
    found: &'a mut Vec<String>,
}

impl FieldCheck<'_> {
    fn report(&mut self, wanted: &str) {
        let at = if self.at.is_empty() {
            "the event"
        } else {
            &self.at
        };
        self.found
            .push(format!("{at}: expected {wanted}, found {}", self.value));
    }

    fn field(&mut self, name: &str, check: impl FnOnce(&mut FieldCheck<'_>)) {
        let at = if self.at.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.at)
        };
        match self.value.get(name) {
            Some(value) => check(&mut FieldCheck {
                at,
                value,
                found: self.found,
            }),
            None => self.found.push(format!("{at}: missing")),
        }
    }

    fn list(&mut self, name: &str, check: impl FnMut(&mut FieldCheck<'_>)) {
        self.list_or_empty(name, check);
        let is_empty = |list: &Value| list.as_array().is_some_and(Vec::is_empty);
        if self.value.get(name).is_some_and(is_empty) {
            self.field(name, |list| list.report("a non-empty list"));
        }
    }

    fn list_or_empty(&mut self, name: &str, mut check: impl FnMut(&mut FieldCheck<'_>)) {
        self.field(name, |list| match list.value.as_array() {
            Some(items) => {
                for (index, value) in items.iter().enumerate() {
                    check(&mut FieldCheck {
                        at: format!("{}[{index}]", list.at),
                        value,
                        found: list.found,
                    });
                }
            }
            None => list.report("a list"),
        });
    }

    /// An object may have these fields alone.
    fn only(&mut self, names: &[&str]) {
        let fields = self.value.as_object().into_iter().flatten();
        let others = fields.filter(|(name, _)| !names.contains(&name.as_str()));
        for (name, _) in others {
            self.found
                .push(format!("{}.{name}: unknown field", self.at));
        }
    }

    fn or_null(&mut self, check: impl FnOnce(&mut FieldCheck<'_>)) {
        if !self.value.is_null() {
            check(self);
        }
    }

    fn text(&mut self, is_valid: impl FnOnce(&str) -> bool, wanted: &str) {
        if !self.value.as_str().is_some_and(is_valid) {
            self.report(wanted);
        }
    }

    fn one_of(&mut self, allowed: &[&str]) {
        self.text(
            |text| allowed.contains(&text),
            &format!("one of {allowed:?}"),
        );
    }
}

fn non_empty(field: &mut FieldCheck<'_>) {
    field.text(|text| !text.is_empty(), "a non-empty string");
}

fn count(field: &mut FieldCheck<'_>) {
    if !field.value.is_u64() {
        field.report("a count");
    }
}

fn null_or_non_empty(field: &mut FieldCheck<'_>) {
    if !field.value.is_null() {
        non_empty(field);
    }
}

fn address(field: &mut FieldCheck<'_>) {
    field.text(
        |text| text.parse::<std::net::IpAddr>().is_ok(),
        "an address",
    );
}

fn mac(field: &mut FieldCheck<'_>) {
    field.text(
        |text| text.parse::<crate::mac::MacAddress>().is_ok(),
        "a MAC address",
    );
}

/// A timestamp like `2026-03-21T09:10:11.123456Z`.
fn time(field: &mut FieldCheck<'_>) {
    let is_valid = |text: &str| {
        let shape: String = text
            .chars()
            .map(|letter| if letter.is_ascii_digit() { '0' } else { letter })
            .collect();
        shape == "0000-00-00T00:00:00.000000Z"
    };
    field.text(is_valid, "a UTC timestamp with microseconds");
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::violations;
    use crate::event::{Event, RAISED};

    fn claimant(device: &str) -> Value {
        json!({"node": "n", "device": device, "ifindex": 12, "mac": "aa:bb:cc:dd:ee:ff", "master": null,
            "since": "2026-03-21T09:10:11.123456Z", "pod": null, "pod_unknown_because": "no runtime",
            "evidence": [{"kind": "neighbour", "first_seen": "2026-03-21T09:10:11.123456Z",
                "last_seen": "2026-03-21T09:10:11.123456Z", "mac": "aa:bb:cc:dd:ee:ff", "detail": "PERMANENT"}]})
    }

    fn raised() -> Value {
        json!({"specversion": "1.0", "id": "1", "source": "ip-conflict-detector/n", "type": RAISED,
            "subject": "10.244.2.10", "time": "2026-03-21T09:10:11.123456Z", "datacontenttype": "application/json",
            "data": {"conflict_id": "c", "node": "n", "cluster": null, "address": "10.244.2.10", "network": "node", "vlan": null, "kind": "duplicate", "scope": "node",
                "confidence": "certain", "state": "active", "raised_at": "2026-03-21T09:10:11.123456Z",
                "updated_at": "2026-03-21T09:10:11.123456Z", "resolved_at": null, "latency_us": 37,
                "diagnosis": null, "timeline": [], "traffic_goes_to": null, "claimants": [claimant("vetha"), claimant("vethb")],
                "guidance": {"next_step": "Delete it.", "runbook_url": "https://example.org/"}}})
    }

    #[test]
    fn valid_event_has_no_violations_and_deserializes() {
        let line = raised();
        assert_eq!(violations(&line), Vec::<String>::new());
        let event: Event = serde_json::from_value(line).unwrap();
        assert!(event.raises("10.244.2.10"));
        let conflict = event.conflict().unwrap();
        assert_eq!(conflict.devices(), ["vetha", "vethb"]);
        assert_eq!(
            conflict.claimant("vetha").unwrap().evidence_kinds(),
            ["neighbour"]
        );
    }

    #[test]
    fn violation_names_the_path() {
        for (path, value, reported) in [
            ("/time", json!("2026-03-21T09:10:11Z"), "time"),
            ("/data/latency_us", json!(0), "data.latency_us"),
            ("/data/kind", json!("double"), "data.kind"),
            (
                "/data/resolved_at",
                json!("2026-03-21T09:10:11.123456Z"),
                "data.resolved_at",
            ),
            (
                "/data/claimants/1/mac",
                json!("nonsense"),
                "data.claimants[1].mac",
            ),
            (
                "/data/claimants/0/evidence",
                json!([]),
                "data.claimants[0].evidence",
            ),
            (
                "/data/claimants/0/pod_unknown_because",
                Value::Null,
                "data.claimants[0]",
            ),
            ("/subject", json!("10.0.0.1"), "subject"),
        ] {
            let mut line = raised();
            *line.pointer_mut(path).unwrap() = value;
            let found = violations(&line);
            assert_eq!(found.len(), 1, "{path}: {found:?}");
            assert!(
                found.iter().all(|text| text.starts_with(reported)),
                "{path}: {found:?}"
            );
        }
    }

    #[test]
    fn diagnosis_has_the_fields_of_the_contract_alone() {
        let at = "2026-03-21T09:10:11.123456Z";
        let mut line = raised();
        line["data"]["diagnosis"] = json!({"cause": "ipam_state_wiped", "confidence": "proven", "since": at,
            "summary": "The reservations were deleted.", "evidence": [{"fact": "created", "source": "file:/run", "at": null}],
            "affected": {"addresses": 10, "pods": 10}, "repair": "Recreate the pods.", "ruled_out": ["not_from_ipam"],
            "not_checked": [{"what": "the log", "because": "it is not mounted"}]});
        line["data"]["timeline"] = json!([{"at": at, "what": "sandbox created", "source": "cri"}]);
        assert_eq!(violations(&line), Vec::<String>::new());
        for (path, value, reported) in [
            ("/data/timeline", Value::Null, "data.timeline: expected"),
            (
                "/data/diagnosis/cause",
                json!("a guess"),
                "data.diagnosis.cause: ",
            ),
            (
                "/data/diagnosis/affected/pods",
                json!(-1),
                "data.diagnosis.affected.pods: ",
            ),
            (
                "/data/diagnosis/evidence/0/why",
                json!("?"),
                "data.diagnosis.evidence[0].why: unknown",
            ),
        ] {
            let mut line = line.clone();
            let (parent, name) = path.rsplit_once('/').unwrap();
            let parent = line.pointer_mut(parent).unwrap();
            parent
                .as_object_mut()
                .unwrap()
                .insert(name.to_owned(), value);
            let found = violations(&line);
            assert!(
                matches!(&found[..], [one] if one.starts_with(reported)),
                "{path}: {found:?}"
            );
        }
    }

    #[test]
    fn missing_field_is_named() {
        let mut line = raised();
        line.pointer_mut("/data")
            .unwrap()
            .as_object_mut()
            .unwrap()
            .remove("vlan");
        assert_eq!(violations(&line), ["data.vlan: missing"]);
    }
}
