//! Checks an event against its schema in `docs/openapi.json`, and what holds between its fields beyond that.

use std::sync::LazyLock;

use anyhow::Result;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::event::UPDATED;

/// Those of events about conflicts and about anomalies.
static VALIDATORS: LazyLock<Result<[Validator; 2]>> = LazyLock::new(|| {
    let document = serde_json::from_str(include_str!("../../docs/openapi.json"))?;
    let of = |name| validator(&document, &format!("#/components/schemas/{name}"));
    Ok([of("ConflictEvent")?, of("AnomalyEvent")?])
});

/// A validator for one of the schemas of an OpenAPI document, to which a field that the schema does not name is an error.
///
/// # Errors
/// The schema is invalid.
pub fn validator(document: &Value, reference: &str) -> Result<Validator> {
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": reference,
        "components": {"schemas": document["components"]["schemas"]},
    });
    refuse_unknown_fields(&mut schema);
    let options = jsonschema::options().should_validate_formats(true);
    Ok(options.build(&schema)?)
}

fn refuse_unknown_fields(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.contains_key("properties") {
                object.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            object.values_mut().for_each(refuse_unknown_fields);
        }
        Value::Array(items) => items.iter_mut().for_each(refuse_unknown_fields),
        _ => {}
    }
}

/// Differences of a value from a schema, each with the path of the field.
#[must_use]
pub fn differences(validator: &Validator, value: &Value) -> Vec<String> {
    let errors = validator.iter_errors(value);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// The violations of the event contract in an event; empty if there are none.
#[must_use]
pub fn violations(event: &Value) -> Vec<String> {
    let [conflict, anomaly] = match &*VALIDATORS {
        Ok(validators) => validators,
        Err(error) => return vec![format!("{error:#}")],
    };
    let kind = event["type"].as_str().unwrap_or_default();
    let is_conflict = kind.starts_with("io.ipconflict.conflict.");
    let mut found = differences(if is_conflict { conflict } else { anomaly }, event);
    empty_texts(event, "", &mut found);

    let data = &event["data"];
    let is_resolved = kind.ends_with(".resolved");
    let mut expect = |holds: bool, what: &str| {
        if !holds {
            found.push(format!("expected {what}"));
        }
    };
    let source = event["source"].as_str().unwrap_or_default();
    expect(source.starts_with("ip-conflict-detector/"), "a source");
    expect(event["subject"] == data["address"], "its subject");
    let state = if is_resolved { "resolved" } else { "active" };
    expect(data["state"] == state, "the state of its type");
    for field in ["resolved_at", "duration_seconds"] {
        let only = format!("{field} if it is resolved, and only then");
        expect(data[field].is_null() != is_resolved, &only);
    }
    let only = "guidance unless it is resolved, and only then";
    expect(data["guidance"].is_null() == is_resolved, only);
    let is_unchanged = data["changed"].is_null();
    expect(is_unchanged || kind == UPDATED, "changed in updates only");
    let timeline = data["timeline"].as_array();
    let is_sorted = |t: &Vec<Value>| t.is_sorted_by_key(|entry| entry["at"].as_str());
    expect(timeline.is_some_and(is_sorted), "a sorted timeline");
    if is_conflict {
        let latency = data["latency_us"].as_u64().unwrap_or_default();
        // Hundreds of conflicts found by one snapshot take a busy machine more than a second.
        expect((1..100_000_000).contains(&latency), "a latency");
        let mut present = 0;
        for claimant in data["claimants"].as_array().into_iter().flatten() {
            present += usize::from(claimant["left"].is_null());
            expect(claimant["ifindex"] != 0, "an index");
            let is_set = |field| !claimant[field].is_null();
            let since = is_set("since") != is_set("since_unknown_because");
            expect(since, "a beginning, or why it is unknown");
            let newest = claimant["newest"] == true;
            expect(newest == is_set("newest_by"), "newest with newest_by");
            let is_known = is_set("pod") || is_set("pod_unknown_because");
            expect(is_known, "a pod, or why it is unknown");
            expect(claimant["evidence"] != json!([]), "evidence");
        }
        let is_duplicate = data["kind"] == "duplicate";
        // An allowed address may be claimed by several devices when it no longer moves.
        let is_over = present < 2 || data["kind"] == "flapping";
        let fits = if is_resolved { is_over } else { present > 1 };
        let concerned = is_resolved || is_duplicate;
        expect(fits || !concerned, "claimants that fit the state");
    } else {
        let is_set = |field: &str| !data[field].is_null();
        let is_known = is_set("pod") || is_set("pod_unknown_because");
        expect(!is_set("device") || is_known, "a pod, or why it is unknown");
    }
    found
}

/// A text is null or absent rather than empty, except the value of a label.
fn empty_texts(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.is_empty() => found.push(format!("{path}: empty")),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                empty_texts(item, &format!("{path}/{index}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields.iter().filter(|(name, _)| *name != "labels") {
                empty_texts(field, &format!("{path}/{name}"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::violations;
    use crate::event::{Event, RAISED};

    const AT: &str = "2026-03-21T09:10:11.123456Z";

    fn raised() -> Value {
        let claimant = |device: &str| {
            json!({"node": "n", "device": device, "ifindex": 12, "mac": "aa:bb:cc:dd:ee:ff", "master": null,
            "since": AT, "pod": null, "pod_unknown_because": "no runtime", "evidence": [{"kind": "neighbour",
                "first_seen": AT, "last_seen": AT, "mac": "aa:bb:cc:dd:ee:ff", "detail": "PERMANENT"}]})
        };
        json!({"specversion": "1.0", "id": "1", "source": "ip-conflict-detector/n", "type": RAISED,
            "subject": "10.244.2.10", "time": AT, "datacontenttype": "application/json",
            "data": {"conflict_id": "0".repeat(32), "node": "n", "cluster": null, "address": "10.244.2.10",
                "network": "node", "vlan": null, "kind": "duplicate", "severity": "critical", "scope": "node", "confidence": "certain",
                "state": "active", "raised_at": AT, "updated_at": AT, "resolved_at": null, "latency_us": 37,
                "diagnosis": null, "timeline": [], "traffic_goes_to": null,
                "claimants": [claimant("vetha"), claimant("vethb")],
                "guidance": {"next_step": "Delete it.", "runbook_url": "https://example.org/"}}})
    }

    #[test]
    fn valid_event_has_no_violations_and_deserializes() {
        let line = raised();
        assert_eq!(violations(&line), [""; 0]);
        let event: Event = serde_json::from_value(line).unwrap();
        assert!(event.raises("10.244.2.10"));
        let conflict = event.conflict().unwrap();
        assert_eq!(conflict.devices(), ["vetha", "vethb"]);
        let claimant = conflict.claimant("vetha").unwrap();
        assert_eq!(claimant.evidence_kinds(), ["neighbour"]);
    }

    #[test]
    fn each_violation_is_named() {
        for (parent, field, value, named) in [
            ("", "time", json!("2026-03-21T09:10:11Z"), "/time"),
            ("", "subject", json!("10.0.0.1"), "its subject"),
            ("", "source", json!("ip-conflict-detector"), "source"),
            ("/data", "latency_us", json!(0), "latency"),
            ("/data", "kind", json!("double"), "/data/kind"),
            ("/data", "state", json!("resolved"), "state"),
            ("/data", "resolved_at", json!(AT), "resolved_at"),
            ("/data", "duration_seconds", json!(1), "duration_seconds"),
            ("/data", "guidance", Value::Null, "guidance"),
            ("/data", "changed", json!(["pod"]), "changed"),
            ("/data", "timeline", Value::Null, "timeline"),
            ("/data", "claimants", json!([]), "claimants that fit"),
            ("/data", "colour", json!("red"), "colour"),
            ("/data/claimants/1", "mac", json!("nonsense"), "/1/mac"),
            ("/data/claimants/1", "newest", json!(true), "newest"),
            ("/data/claimants/1", "since", Value::Null, "beginning"),
            ("/data/claimants/1", "evidence", json!([]), "evidence"),
            ("/data/claimants/1", "device", json!(""), "/1/device"),
            (
                "/data/claimants/1",
                "pod_unknown_because",
                Value::Null,
                "a pod",
            ),
        ] {
            let mut line = raised();
            line.pointer_mut(parent).unwrap()[field] = value;
            let found = violations(&line);
            let is_named = found.iter().any(|text| text.contains(named));
            assert!(is_named, "{field}: {found:?}");
        }
        let mut line = raised();
        line["data"].as_object_mut().unwrap().remove("vlan");
        let found = violations(&line);
        assert!(found[0].contains("\"vlan\""), "{found:?}");
    }
}
