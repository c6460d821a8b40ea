//! The schemas of the registry's objects: exactly the fields that the agent writes, each bounded.

use detector_engine::{
    Confidence, ConflictId, ConflictKind, EvidenceKind, LeaveReason, Mac, Network,
};
use detector_event::{ContractName, WallTime};
use detector_fleet::{
    objects::{
        ClaimSpec, ConflictCause, ConflictClaimant, ConflictSpec, ConflictState, GROUP, MAX_CAUSE,
        MAX_CLAIMANTS, MAX_COLUMN, MAX_REASON, MAX_REPAIR, Party, VERSION,
    },
    samples,
};
use serde_json::{Value, json};

use crate::tools::{documents, read};

/// The file of `IPClaim` and that of `IPConflict`.
const FILES: [&str; 2] = ["ipclaims", "ipconflicts"];

fn definition(file: &str) -> Value {
    let text = read(format!("deploy/crds/{file}.yaml"));
    serde_json::to_value(&documents(&text)[0]).unwrap()
}

/// The schema of the objects.
fn schema(file: &str) -> Value {
    definition(file)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn spec_schema(file: &str) -> Value {
    schema(file)["properties"]["spec"].clone()
}

/// With every field.
fn party() -> Party {
    Party {
        node: "worker-1.example.com".to_owned(),
        boot_id: "3f6f0d3c-9d3c-4f7c-8a53-6a1a8b2f7c11".to_owned(),
        device: "vethab12cd34".to_owned(),
        ifindex: u32::MAX,
        mac: Some(Mac([0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff])),
        namespace: "shop".to_owned(),
        pod: "web-1".to_owned(),
        pod_uid: "0f9a4f0e-7a30-4a34-9a3d-0c7a5f6f2f10".to_owned(),
        container_id: "0123456789abcdef".repeat(4),
        evidence: Some(EvidenceKind::Neighbour),
        source: "podCIDR".to_owned(),
    }
}

fn claim() -> ClaimSpec {
    ClaimSpec {
        address: "fd00:10:244:1::5".parse().unwrap(),
        party: party(),
    }
}

/// With every field.
fn conflict() -> ConflictSpec {
    ConflictSpec {
        address: "10.244.1.0/24".parse().unwrap(),
        conflict_id: ConflictId(7),
        kind: ConflictKind::Duplicate,
        scope: serde_json::from_value(json!("fleet")).unwrap(),
        network: Network::Vrf("blue".to_owned()),
        state: ConflictState::Active,
        confidence: Confidence::Certain,
        raised_at: Some(WallTime::now()),
        resolved_at: Some(WallTime::now()),
        nodes: "worker-1, worker-2".to_owned(),
        pods: "shop/web-1, shop/web-2".to_owned(),
        cause: Some(samples::cause().into()),
        claimants: vec![ConflictClaimant {
            party: party(),
            asked: u32::MAX,
            confirmed: 1,
            active: true,
            terminating: true,
            rightful: Some(false),
            unconfirmed_because: Some("its node is not ready".to_owned()),
            left: Some(LeaveReason::DeviceRemoved),
        }],
    }
}

fn object(kind: &str, spec: impl serde::Serialize) -> Value {
    json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind,
        "metadata": {"name": "10.244.1.5", "ownerReferences": []}, "spec": spec})
}

/// Whether each value is valid. The schema is strict: a field that it does not name would be dropped by the API server.
fn validate(file: &str, values: &[Value]) -> Vec<bool> {
    let mut schema = schema(file);
    let spec = &mut schema["properties"]["spec"];
    spec["additionalProperties"] = json!(false);
    let claimant = spec.pointer_mut("/properties/claimants/items");
    if let Some(claimant) = claimant {
        claimant["additionalProperties"] = json!(false);
    }
    if let Some(cause) = spec.pointer_mut("/properties/cause") {
        cause["additionalProperties"] = json!(false);
    }
    let status = schema.pointer_mut("/properties/status");
    if let Some(status) = status {
        status["additionalProperties"] = json!(false);
        status["properties"]["conditions"]["items"]["additionalProperties"] = json!(false);
    }
    let validator = jsonschema::draft4::new(&schema).unwrap();
    values.iter().map(|v| validator.is_valid(v)).collect()
}

#[test]
fn claim_and_claimant_have_the_same_properties() {
    let claim = spec_schema("ipclaims")["properties"].clone();
    let claimant = &spec_schema("ipconflicts")["properties"]["claimants"]["items"]["properties"];
    for (name, property) in claim.as_object().unwrap() {
        let same = name == "address" || claimant[name] == *property;
        assert!(same, "{name} differs between claim and claimant");
    }
}

#[test]
fn what_the_agent_writes_is_valid() {
    let bare = Party {
        node: "worker-1".to_owned(),
        ..Party::default()
    };
    let claims = [
        object("IPClaim", claim()),
        object(
            "IPClaim",
            ClaimSpec {
                party: bare.clone(),
                ..claim()
            },
        ),
    ];
    assert_eq!(validate("ipclaims", &claims), [true, true]);
    let claimant = ConflictClaimant {
        party: bare,
        ..ConflictClaimant::default()
    };
    let full = ConflictSpec {
        claimants: vec![claimant; MAX_CLAIMANTS],
        nodes: "n".repeat(MAX_COLUMN),
        pods: "p".repeat(MAX_COLUMN),
        raised_at: None,
        resolved_at: None,
        ..conflict()
    };
    let mut over = conflict();
    over.state = ConflictState::Resolved;
    over.claimants[0].unconfirmed_because = Some("r".repeat(MAX_REASON));
    over.cause = Some(Box::new(ConflictCause {
        node: "node-a".to_owned(),
        name: "n".repeat(MAX_CAUSE),
        confidence: "c".repeat(MAX_CAUSE),
        since: WallTime::from_unix_nanos(1),
        summary: "s".repeat(MAX_REASON),
        repair: "r".repeat(MAX_REPAIR),
    }));
    let unknown = ConflictSpec {
        cause: None,
        ..conflict()
    };
    let conflicts = [conflict(), full, over, unknown].map(|spec| {
        let status = serde_json::to_value(spec.status()).unwrap();
        let mut object = object("IPConflict", spec);
        object["status"] = status;
        object
    });
    assert_eq!(validate("ipconflicts", &conflicts), [true; 4]);
}

#[test]
fn enumerations_are_the_names_of_the_code() {
    fn names<T: ContractName>() -> Value {
        T::ALL.iter().map(|value| value.contract_name()).collect()
    }
    let conflict = spec_schema("ipconflicts")["properties"].clone();
    let claimant = &conflict["claimants"]["items"]["properties"];
    for (property, expected) in [
        (&conflict["kind"], names::<ConflictKind>()),
        (&conflict["confidence"], names::<Confidence>()),
        (&conflict["scope"], json!(["node", "fleet"])),
        (
            &conflict["state"],
            json!([
                ConflictState::Suspected,
                ConflictState::Active,
                ConflictState::Resolved
            ]),
        ),
        (&claimant["evidence"], names::<EvidenceKind>()),
        (&claimant["left"], names::<LeaveReason>()),
    ] {
        assert_eq!(property["enum"], expected);
    }
}

/// The most characters of a value with this schema, keys and punctuation left out. Fails if there is no bound.
fn most_characters(schema: &Value, path: &str) -> u64 {
    match schema["type"].as_str().unwrap() {
        "object" => {
            let properties = schema["properties"].as_object().unwrap();
            let each = properties.iter();
            each.map(|(key, inner)| most_characters(inner, &format!("{path}.{key}")))
                .sum()
        }
        "array" => {
            let most = schema["maxItems"].as_u64();
            let most = most.unwrap_or_else(|| panic!("{path} has no maxItems"));
            most * most_characters(&schema["items"], path)
        }
        "string" if schema["enum"].is_array() => 16,
        "string" => {
            let is_free = schema["pattern"].is_null() && schema["format"].is_null();
            assert!(!is_free, "{path} may have any characters");
            let most = schema["maxLength"].as_u64();
            most.unwrap_or_else(|| panic!("{path} has no maxLength"))
        }
        "integer" => {
            assert_eq!(schema["maximum"], u32::MAX, "{path}");
            10
        }
        "boolean" => 5,
        other => panic!("{path} is of type {other}"),
    }
}

/// An agent on a node that others control must not be able to fill etcd with few objects.
#[test]
fn every_property_is_bounded() {
    let status = schema("ipconflicts")["properties"]["status"].clone();
    assert!(most_characters(&status, "status") < 4_096);
    let most = FILES.map(|file| most_characters(&spec_schema(file), file));
    assert!(most[0] < 2_048 && most[1] < 128 * 1024, "{most:?}");
    let conflict = spec_schema("ipconflicts")["properties"].clone();
    let claimants = &conflict["claimants"];
    assert_eq!(claimants["maxItems"], MAX_CLAIMANTS);
    let reason = &claimants["items"]["properties"]["unconfirmedBecause"];
    assert_eq!(reason["maxLength"], MAX_REASON);
    for (part, most) in [
        ("name", MAX_CAUSE),
        ("confidence", MAX_CAUSE),
        ("summary", MAX_REASON),
        ("repair", MAX_REPAIR),
    ] {
        let part = &conflict["cause"]["properties"][part];
        assert_eq!(part["maxLength"], most);
    }
    for column in ["nodes", "pods"] {
        assert_eq!(conflict[column]["maxLength"], MAX_COLUMN);
    }
    let mut wrong = Vec::new();
    for (field, value) in [
        ("address", json!("10.244.1.5 ")),
        ("node", json!("")),
        ("node", json!("n".repeat(254))),
        ("device", json!("veth\u{1b}[2J")),
        ("pod", json!("web\n1")),
        ("ifindex", json!(-1)),
        ("mac", json!("aa:bb")),
        ("evidence", json!("hearsay")),
        ("colour", json!("red")),
    ] {
        let mut object = object("IPClaim", claim());
        object["spec"][field] = value;
        wrong.push(object);
    }
    let results = validate("ipclaims", &wrong);
    assert!(results.iter().all(|is_valid| !is_valid), "{results:?}");
    let mut many = conflict_with_claimants(MAX_CLAIMANTS + 1);
    many["metadata"]["name"] = json!("10.244.1.0-24");
    assert_eq!(validate("ipconflicts", &[many]), [false]);
}

fn conflict_with_claimants(count: usize) -> Value {
    let mut spec = conflict();
    spec.claimants = vec![spec.claimants[0].clone(); count];
    object("IPConflict", spec)
}

#[test]
fn names_are_those_of_the_contract() {
    let claim = ("IPClaim", "ipc", "Address Node Namespace Pod Device Age");
    let conflict = (
        "IPConflict",
        "ipconflict",
        "Address Kind State Nodes Pods Age",
    );
    for (file, (kind, short, columns)) in FILES.into_iter().zip([claim, conflict]) {
        let definition = definition(file);
        assert_eq!(definition["metadata"]["name"], format!("{file}.{GROUP}"));
        let spec = &definition["spec"];
        let version = &spec["versions"][0];
        assert_eq!(
            json!([spec["group"], spec["scope"], version["name"]]),
            json!([GROUP, "Cluster", VERSION])
        );
        // `kubectl get ipconflict` would list a category of that name, and so every claim.
        assert_eq!(
            spec["names"],
            json!({"kind": kind, "listKind": format!("{kind}List"), "plural": file, "singular": kind.to_lowercase(),
                "shortNames": [short], "categories": ["ip-conflict-detector"]})
        );
        let found = version["additionalPrinterColumns"].as_array().unwrap();
        let found: Vec<_> = found.iter().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(found.join(" "), columns);
    }
}
