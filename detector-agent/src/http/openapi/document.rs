//! The OpenAPI document: what there is to request, and the schemas of the answers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::{net::IpAddr, path::Path};

use detector_engine::diagnosis::Cause;
use detector_event::{SubjectState, schema};
use detector_testkit::golden;
use serde_json::{Map, Value, json};

use crate::http::{
    listed::{ANOMALY_PARAMETERS, CLAIM_PARAMETERS, CONFLICT_PARAMETERS, HISTORY_PARAMETERS},
    parameters::{MAX_LIMIT, Supported},
};

#[test]
fn document_is_generated_from_the_types() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    golden::check(&file, &text).unwrap();
}

#[test]
fn every_field_and_value_is_explained() {
    let schemas = schemas();
    let mut names = Vec::new();
    schemas
        .values()
        .for_each(|s| fields_and_values(s, &mut names));
    assert!(names.len() > 200, "{names:?}");
    let page = include_str!("../../../../docs/events.md");
    for name in names {
        // In a table, or in an example.
        let is_explained = page.contains(&format!("`{name}`"));
        let is_shown = page.contains(&format!("\"{name}\":"));
        assert!(is_explained || is_shown, "docs/events.md lacks {name}");
    }
    for cause in Cause::ALL {
        let row = format!("\n| `{}` | ", cause.name());
        assert!(page.contains(&row), "docs/events.md lacks {cause:?}");
    }
}

fn fields_and_values<'s>(schema: &'s Value, found: &mut Vec<&'s str>) {
    let properties = schema["properties"].as_object().into_iter().flatten();
    for (name, property) in properties {
        found.push(name);
        fields_and_values(property, found);
    }
    let values = schema["enum"].as_array().into_iter().flatten();
    found.extend(values.filter_map(Value::as_str));
    if let Some(items) = schema.get("items") {
        fields_and_values(items, found);
    }
}

fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "IP Conflict Detector",
            "version": "1",
            "description": "The read-only API of one node's agent. Fields and values are added; ignore those that you do not know. The stream of events is described in docs/events.md.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "security": [{}, {"token": []}],
        "paths": {
            "/api/v1/conflicts": list(
                "listConflicts",
                "Active conflicts, and those of the history that ended last.",
                CONFLICT_PARAMETERS,
                "ConflictList",
            ),
            "/api/v1/conflicts/{id}": one(
                "getConflict",
                "One conflict, active or in the history.",
                "OneConflict",
            ),
            "/api/v1/anomalies": list(
                "listAnomalies",
                "Active anomalies.",
                ANOMALY_PARAMETERS,
                "AnomalyList",
            ),
            "/api/v1/anomalies/{id}": one(
                "getAnomaly",
                "One anomaly, active or in the history.",
                "OneAnomaly",
            ),
            "/api/v1/claims": list(
                "listClaims",
                "Claims of pod devices.",
                CLAIM_PARAMETERS,
                "ClaimList",
            ),
            "/api/v1/history": list(
                "listHistory",
                "Conflicts and anomalies that ended, newest first.",
                HISTORY_PARAMETERS,
                "HistoryList",
            ),
            "/api/v1/events": stream(),
        },
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"token": {
                "type": "http",
                "scheme": "bearer",
                "description": "The token of --http-token-file, if one is configured.",
            }},
        },
    })
}

fn schemas() -> Map<String, Value> {
    let mut schemas = schema::schemas();
    // With `reasons=once` an index takes the place of the reason.
    for name in ["Anomaly", "Claim", "Claimant"] {
        schemas[name]["properties"]["pod_unknown_reason"] = json!({
            "type": "integer",
            "minimum": 0,
            "description": "With `reasons=once`: the index of the reason in `pod_unknown_reasons`.",
        });
    }
    schemas
}

fn list(id: &str, summary: &str, supported: Supported, schema: &str) -> Value {
    let parameters = supported.names.iter();
    let parameters = parameters.map(|name| query_parameter(name, supported.kinds));
    operation(id, summary, parameters.collect(), success(schema))
}

fn one(id: &str, summary: &str, schema: &str) -> Value {
    let parameter = json!({
        "name": "id",
        "in": "path",
        "required": true,
        "description": "The ID.",
        "schema": schema::inline::<schema::Id>(),
    });
    let mut operation = operation(id, summary, vec![parameter], success(schema));
    operation["get"]["responses"]["404"] = failure("There is none with this ID.");
    operation
}

fn stream() -> Value {
    let parameter = json!({
        "name": "Last-Event-ID",
        "in": "header",
        "description": "Continue after this event.",
        "schema": {"type": "string"},
    });
    let success = json!({
        "description": "The stream; each message without a name is a `ConflictEvent` or an `AnomalyEvent`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    });
    let summary = "Events as they happen, as server-sent events.";
    operation("streamEvents", summary, vec![parameter], success)
}

fn operation(id: &str, summary: &str, parameters: Vec<Value>, success: Value) -> Value {
    json!({"get": {
        "operationId": id,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": success,
            "400": failure("A query parameter is unknown, invalid or repeated; the error names it."),
            "401": failure("The token is missing or wrong."),
            "503": failure("The event loop did not answer, or the history cannot be read; see `Retry-After`."),
        },
    }})
}

fn success(schema: &str) -> Value {
    response("The answer.", schema)
}

fn failure(description: &str) -> Value {
    response(description, "Error")
}

fn response(description: &str, schema: &str) -> Value {
    let reference = format!("#/components/schemas/{schema}");
    json!({
        "description": description,
        "content": {"application/json": {"schema": {"$ref": reference}}},
    })
}

fn query_parameter(name: &str, kinds: &[&str]) -> Value {
    let text = json!({"type": "string"});
    let (description, schema) = match name {
        "state" => (
            "Only conflicts in this state.",
            schema::inline::<SubjectState>(),
        ),
        "kind" => (
            "Only of this kind.",
            json!({"type": "string", "enum": kinds}),
        ),
        "cause" => (
            "Only with this cause in `diagnosis`.",
            schema::inline::<schema::Name<Cause>>(),
        ),
        "since" => (
            "Only what ended at this time or later.",
            json!({"type": "string", "format": "date-time"}),
        ),
        "until" => (
            "Only what ended before this time.",
            json!({"type": "string", "format": "date-time"}),
        ),
        "namespace" => ("Only with a pod in this Kubernetes namespace.", text),
        "address" => ("Only about this address.", schema::inline::<IpAddr>()),
        "network" => (
            "Only conflicts in this network.",
            schema::inline::<schema::NetworkName>(),
        ),
        "limit" => (
            "The most items of a page; without it all are on one page.",
            json!({"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}),
        ),
        "cursor" => ("`next` of the page before; its content may change.", text),
        "reasons" => (
            "List each reason of an unknown pod once, in `pod_unknown_reasons`, instead of with each claimant.",
            json!({"type": "string", "enum": ["once"]}),
        ),
        other => panic!("`{other}` is not described"),
    };
    json!({"name": name, "in": "query", "description": description, "schema": schema})
}
