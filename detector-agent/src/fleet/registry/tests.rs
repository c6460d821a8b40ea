#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use detector_engine::{Confidence, ConflictId, ConflictKind, ConflictScope, Network};
use detector_fleet::objects::{ConflictClaimant, ConflictState, Party};
use serde_json::json;

use super::*;
use crate::kube_client::simulated::{Failure, SimulatedApi};

const CLAIMS: &str = "/apis/ipconflict.io/v1alpha1/ipclaims";
const CONFLICTS: &str = "/apis/ipconflict.io/v1alpha1/ipconflicts";

/// A server with the custom resources, and the nodes `a` and `b`.
fn server() -> SimulatedApi {
    let api = SimulatedApi::default();
    api.install(CLAIMS);
    api.install(CONFLICTS);
    for node in ["a", "b"] {
        api.apply(NODES, node, &json!({"podCIDRs": ["10.244.1.0/24"]}));
    }
    api
}

async fn registry(api: &SimulatedApi, node: &str) -> Registry {
    let registry = Registry::new(KubeClient::simulated(api), node.to_owned());
    registry.learn_node(&uid(api, node));
    registry
}

/// The name of the object of [`address`].
const ADDRESS: &str = "10.244.1.5";

fn address() -> detector_fleet::Subject {
    ADDRESS.parse().unwrap()
}

fn party(node: &str) -> Party {
    Party {
        node: node.to_owned(),
        boot_id: format!("boot-{node}"),
        ..Party::default()
    }
}

fn claim(node: &str) -> ClaimSpec {
    ClaimSpec {
        address: address(),
        party: party(node),
    }
}

fn conflict(nodes: &[&str]) -> ConflictSpec {
    let claimants = nodes.iter().map(|node| ConflictClaimant {
        party: party(node),
        ..ConflictClaimant::default()
    });
    ConflictSpec {
        address: address(),
        conflict_id: ConflictId(7),
        kind: ConflictKind::Duplicate,
        scope: ConflictScope::Fleet,
        network: Network::default(),
        state: ConflictState::Suspected,
        confidence: Confidence::Certain,
        raised_at: None,
        resolved_at: None,
        nodes: String::new(),
        pods: String::new(),
        cause: None,
        claimants: claimants.collect(),
    }
}

async fn outcome(registry: &Registry, request: Request) -> Outcome {
    registry.execute(ADDRESS, &request).await.outcome
}

async fn stored_claim(registry: &Registry, request: Request) -> Stored<ClaimSpec> {
    match outcome(registry, request).await {
        Outcome::Claim(stored) => stored,
        other => panic!("{other:?}"),
    }
}

async fn stored_conflict(registry: &Registry, request: Request) -> Stored<ConflictSpec> {
    match outcome(registry, request).await {
        Outcome::Conflict(stored) => stored,
        other => panic!("{other:?}"),
    }
}

fn owners(api: &SimulatedApi, path: &str) -> Vec<String> {
    let object = api.object(path, "10.244.1.5").unwrap();
    let owners = object["metadata"]["ownerReferences"].as_array();
    let owner = |owner: &serde_json::Value| {
        assert_eq!(
            (&owner["kind"], &owner["apiVersion"]),
            (&json!("Node"), &json!("v1"))
        );
        format!(
            "{} {}",
            owner["name"].as_str().unwrap(),
            owner["uid"].as_str().unwrap()
        )
    };
    owners.into_iter().flatten().map(owner).collect()
}

fn uid(api: &SimulatedApi, node: &str) -> String {
    let node = api.object(NODES, node).unwrap();
    node["metadata"]["uid"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn second_claim_of_an_address_already_exists() {
    let api = server();
    let (a, b) = (registry(&api, "a").await, registry(&api, "b").await);
    let created = stored_claim(&a, Request::CreateClaim(claim("a"))).await;
    assert_eq!(created.spec, claim("a"));
    let second = outcome(&b, Request::CreateClaim(claim("b"))).await;
    assert_eq!(second, Outcome::AlreadyExists);
    let read = stored_claim(&b, Request::GetClaim).await;
    assert_eq!(read, created);
    // Taken over, the former holder can neither replace nor delete it.
    let taken = stored_claim(&b, Request::ReplaceClaim(read.version, claim("b"))).await;
    let outdated = Request::ReplaceClaim(created.version.clone(), claim("a"));
    assert_eq!(outcome(&a, outdated).await, Outcome::Outdated);
    let outdated = Request::DeleteClaim(created.version);
    assert_eq!(outcome(&a, outdated).await, Outcome::Outdated);
    assert_eq!(stored_claim(&a, Request::GetClaim).await, taken);
    let version = taken.version;
    assert_eq!(
        outcome(&b, Request::DeleteClaim(version.clone())).await,
        Outcome::Deleted
    );
    assert_eq!(
        outcome(&b, Request::DeleteClaim(version.clone())).await,
        Outcome::NotFound
    );
    assert_eq!(outcome(&a, Request::GetClaim).await, Outcome::NotFound);
    // The address was claimed again: what was read before is of no use.
    stored_claim(&a, Request::CreateClaim(claim("a"))).await;
    let outdated = Request::ReplaceClaim(version, claim("b"));
    assert_eq!(outcome(&b, outdated).await, Outcome::Outdated);
}

#[tokio::test]
async fn objects_are_owned_by_the_nodes_of_their_claimants() {
    let api = server();
    let (a, b) = (registry(&api, "a").await, registry(&api, "b").await);
    let (uid_a, uid_b) = (uid(&api, "a"), uid(&api, "b"));
    stored_claim(&a, Request::CreateClaim(claim("a"))).await;
    assert_eq!(owners(&api, CLAIMS), [format!("a {uid_a}")]);
    // The holder's uid is known from its claim.
    let created = stored_conflict(&b, Request::CreateConflict(conflict(&["a"]))).await;
    assert_eq!(
        owners(&api, CONFLICTS),
        [] as [&str; 0],
        "b has not read the claim yet"
    );
    let held = stored_claim(&b, Request::GetClaim).await;
    let replace = Request::ReplaceConflict(created.version, conflict(&["a", "b"]));
    let replaced = stored_conflict(&b, replace).await;
    assert_eq!(
        owners(&api, CONFLICTS),
        [format!("a {uid_a}"), format!("b {uid_b}")]
    );
    // A claimant that left keeps nothing alive.
    let mut left = conflict(&["a", "b"]);
    left.claimants[0].left = Some(detector_engine::LeaveReason::AddressRemoved);
    stored_conflict(&b, Request::ReplaceConflict(replaced.version, left)).await;
    assert_eq!(owners(&api, CONFLICTS), [format!("b {uid_b}")]);
    stored_claim(&b, Request::ReplaceClaim(held.version, claim("b"))).await;
    assert_eq!(owners(&api, CLAIMS), [format!("b {uid_b}")]);
}

#[tokio::test]
async fn node_is_read_with_boot_and_readiness() {
    let api = server();
    let registry = registry(&api, "a").await;
    for (node, ready) in [("ready", "True"), ("silent", "Unknown")] {
        let status = json!({"nodeInfo": {"bootID": "x", "architecture": "", "containerRuntimeVersion": "",
            "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
            "operatingSystem": "", "osImage": "", "systemUUID": ""},
            "conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": ready}]});
        api.apply_status(NODES, node, &status);
        let Outcome::Node(found) = outcome(&registry, Request::GetNode(node.to_owned())).await
        else {
            panic!("no node");
        };
        assert_eq!((&*found.boot_id, found.is_ready), ("x", ready == "True"));
        assert_eq!(found.uid, uid(&api, node));
    }
    let gone = outcome(&registry, Request::GetNode("gone".to_owned())).await;
    assert_eq!(gone, Outcome::NotFound);
}

#[tokio::test]
async fn answers_that_say_later_are_failures_and_others_refusals() {
    let api = server();
    let registry = registry(&api, "a").await;
    let answer = async |code, retry_after| {
        api.fail_next(Failure {
            code,
            retry_after,
            takes_effect: false,
        });
        registry.execute(ADDRESS, &Request::GetClaim).await
    };
    for code in [Some(429), Some(500), Some(503), Some(504), None] {
        let answer = answer(code, None).await;
        assert_eq!(answer.outcome, Outcome::Failed, "{code:?}");
    }
    let later = answer(Some(429), Some(7)).await.problem;
    let Some(Problem::Away { retry_after, .. }) = later else {
        panic!("{later:?}");
    };
    assert_eq!(retry_after, Some(Duration::from_secs(7)));
    // It was away: it may not have read its roles yet.
    assert_eq!(answer(Some(403), None).await.outcome, Outcome::Failed);
    assert_eq!(
        outcome(&registry, Request::GetClaim).await,
        Outcome::NotFound
    );
    for code in [400, 403, 405, 413, 422] {
        let answer = answer(Some(code), None).await;
        assert_eq!(answer.outcome, Outcome::Rejected, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_denies_for_long_means_it() {
    let api = server();
    let registry = Registry::new(KubeClient::simulated(&api), "a".to_owned());
    let denied = Failure {
        code: Some(403),
        retry_after: None,
        takes_effect: false,
    };
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        api.fail_next(denied);
        outcomes.push(outcome(&registry, Request::GetClaim).await);
        tokio::time::advance(STARTING / 2).await;
    }
    use Outcome::{Failed, Rejected};
    assert_eq!(outcomes, [Failed, Failed, Rejected, Rejected]);
}

#[tokio::test]
async fn rotated_token_costs_no_answer() {
    let api = server();
    let registry = registry(&api, "a").await;
    let unauthorized = Failure {
        code: Some(401),
        retry_after: None,
        takes_effect: false,
    };
    api.fail_next(unauthorized);
    stored_claim(&registry, Request::CreateClaim(claim("a"))).await;
    for _ in 0..2 {
        api.fail_next(unauthorized);
    }
    assert_eq!(outcome(&registry, Request::GetClaim).await, Outcome::Failed);
}

#[tokio::test]
async fn missing_resources_are_no_missing_objects() {
    let api = server();
    let registry = registry(&api, "a").await;
    api.uninstall(CLAIMS);
    for request in [Request::GetClaim, Request::CreateClaim(claim("a"))] {
        let answer = registry.execute(ADDRESS, &request).await;
        assert_eq!(answer.outcome, Outcome::Failed, "{request:?}");
        assert_eq!(answer.problem, Some(Problem::NoSuchResource));
    }
    assert_eq!(
        outcome(&registry, Request::GetConflict).await,
        Outcome::NotFound
    );
}

#[tokio::test]
async fn object_that_cannot_be_read_is_refused() {
    let api = server();
    let registry = registry(&api, "a").await;
    api.apply(CLAIMS, "10.244.1.5", &json!({"address": "nonsense"}));
    assert_eq!(
        outcome(&registry, Request::GetClaim).await,
        Outcome::Rejected
    );
}

#[test]
fn object_without_a_uid_or_a_resource_version_has_no_version() {
    let metadata = |uid: Option<&str>, resource_version: Option<&str>| ::kube::core::ObjectMeta {
        uid: uid.map(str::to_owned),
        resource_version: resource_version.map(str::to_owned),
        ..::kube::core::ObjectMeta::default()
    };
    assert!(version(&metadata(Some("1"), Some("2"))).is_some());
    assert_eq!(version(&metadata(Some("1"), None)), None);
    assert_eq!(version(&metadata(None, Some("2"))), None);
}
