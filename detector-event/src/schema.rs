//! JSON schemas of events and answers, derived from their types. `docs/openapi.json` is made of them.

use std::{borrow::Cow, marker::PhantomData};

use detector_engine::EvidenceKind;
use schemars::{
    JsonSchema, Schema, SchemaGenerator,
    generate::SchemaSettings,
    json_schema,
    transform::{RecursiveTransform, Transform as _},
};
use serde_json::{Map, Value, json};

use crate::{
    AnomalyEvent, ContractName, Event, WallTime,
    answers::{
        AnomalyList, ClaimList, ConflictList, ErrorAnswer, HistoryList, OneAnomaly, OneConflict,
    },
};

/// The ID of a conflict or an anomaly.
pub struct Id;

/// Where an address has to be unique.
pub struct NetworkName;

/// A MAC address.
pub struct MacAddress;

/// The names of an enum's values.
pub struct Name<T>(PhantomData<T>);

/// The kinds of evidence, with one that is reserved.
pub struct EvidenceName;

macro_rules! inline_schemas {
    ($($type:ident$(<$parameter:ident: $bound:ident>)?: $schema:expr;)+) => {$(
        impl$(<$parameter: $bound>)? JsonSchema for $type$(<$parameter>)? {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )+};
}

inline_schemas! {
    Id: json_schema!({"type": "string", "pattern": "^[0-9a-f]{32}$"});
    NetworkName: json_schema!({
        "type": "string",
        "description": "`node`, or `vrf:`, `bridge:`, `cni:` or `link:` with a name.",
        "pattern": "^(node|(vrf|bridge|cni|link):.*)$",
    });
    MacAddress: json_schema!({"type": "string", "pattern": "^([0-9a-f]{2}:){5}[0-9a-f]{2}$"});
    WallTime: json_schema!({
        "type": "string",
        "format": "date-time",
        "pattern": "^[0-9-]{10}T[0-9:]{8}\\.[0-9]{6}Z$",
    });
    Name<T: ContractName>: json_schema!({"type": "string", "enum": names::<T>()});
    EvidenceName: {
        let mut names = names::<EvidenceKind>();
        names.push("source");
        json_schema!({"type": "string", "enum": names})
    };
}

fn names<T: ContractName>() -> Vec<&'static str> {
    T::ALL.iter().map(|value| value.contract_name()).collect()
}

/// The schemas of all events and answers by name, which refer to each other below `#/components/schemas`.
#[must_use]
pub fn schemas() -> Map<String, Value> {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    let mut generator = settings.into_generator();
    generator.subschema_for::<Event>();
    generator.subschema_for::<AnomalyEvent>();
    generator.subschema_for::<ConflictList>();
    generator.subschema_for::<AnomalyList>();
    generator.subschema_for::<ClaimList>();
    generator.subschema_for::<HistoryList>();
    generator.subschema_for::<OneConflict>();
    generator.subschema_for::<OneAnomaly>();
    generator.subschema_for::<ErrorAnswer>();
    let mut schemas = generator.take_definitions(true);
    for schema in schemas.values_mut() {
        if let Ok(schema) = schema.try_into() {
            RecursiveTransform(simplify).transform(schema);
        }
    }
    schemas
}

/// The schema of a type that is no component of its own.
#[must_use]
pub fn inline<T: JsonSchema>() -> Value {
    let mut schema = T::json_schema(&mut SchemaGenerator::default());
    RecursiveTransform(simplify).transform(&mut schema);
    schema.to_value()
}

/// Says the same in the words of OpenAPI and JSON Schema alone.
fn simplify(schema: &mut Schema) {
    schema.remove("default");
    match schema.get("format").and_then(Value::as_str) {
        Some("ip") => {
            schema.remove("format");
            let formats = json!([{"format": "ipv4"}, {"format": "ipv6"}]);
            schema.insert("anyOf".to_owned(), formats);
        }
        Some(format) if format.contains("int") || format == "double" => {
            schema.remove("format");
        }
        _ => {}
    }
    // The values of an enum, each with its documentation.
    let values = schema.get("oneOf").and_then(Value::as_array);
    let values = values.map(|values| values.iter().map(|value| value.get("const").cloned()));
    if let Some(values) = values.and_then(|values| values.collect::<Option<Value>>()) {
        schema.remove("oneOf");
        schema.insert("enum".to_owned(), values);
        schema.insert("type".to_owned(), "string".into());
    }
    let required = schema.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| {
        required
            .as_array()
            .is_some_and(|r| r.contains(&name.into()))
    };
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        if let (false, Value::Object(property)) = (is_required(name), property) {
            exclude_null(property);
        }
    }
}

/// What may be absent is never null.
fn exclude_null(property: &mut Map<String, Value>) {
    let alternatives = |list: &Value| match list.as_array().map(Vec::as_slice) {
        Some([only, null]) if null == "null" || null["type"] == "null" => Some(only.clone()),
        _ => None,
    };
    if let Some(only) = property.get("type").and_then(alternatives) {
        property.insert("type".to_owned(), only);
    }
    if let Some(Value::Object(only)) = property.get("anyOf").and_then(alternatives) {
        property.remove("anyOf");
        property.extend(only);
    }
    if let Some(Value::Array(values)) = property.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
}
