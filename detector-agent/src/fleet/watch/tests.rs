//! The watch at a simulated server.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use detector_fleet::Request;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::*;
use crate::kube_client::simulated::{Failure, SimulatedApi};

const CONFLICTS: &str = "/apis/ipconflict.io/v1alpha1/ipconflicts";
const MINUTE: Duration = Duration::from_secs(60);

fn server() -> SimulatedApi {
    let api = SimulatedApi::default();
    api.install(CONFLICTS);
    api
}

/// The watch of node `a`.
fn watching(api: &SimulatedApi) -> ConflictWatch {
    let kube = KubeClient::simulated(api);
    let registry = Arc::new(Registry::new(kube.clone(), "a".to_owned()));
    ConflictWatch::new(kube, registry, "a".to_owned())
}

fn spec(address: &str, nodes: [&str; 2]) -> Value {
    json!({
        "address": address,
        "conflictId": "00000000000000000000000000000007",
        "kind": "duplicate",
        "scope": "fleet",
        "state": "Suspected",
        "confidence": "observed",
        "claimants": nodes.map(|node| json!({"node": node, "bootId": "x"})),
    })
}

fn object(name: &str, spec: &Value) -> DynamicObject {
    let metadata = json!({"name": name, "uid": name, "resourceVersion": "5"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

/// What is reported within a minute: the names of conflicts, and of those that are gone.
async fn names(watch: &mut ConflictWatch) -> Vec<String> {
    let mut names = Vec::new();
    let following = async {
        loop {
            names.push(match watch.next().await {
                WatchUpdate::Changed(conflict) => name(&conflict),
                WatchUpdate::Deleted(conflict) => format!("-{}", name(&conflict)),
                WatchUpdate::Failed(..) => "Failed".to_owned(),
                other => format!("{other:?}"),
            });
        }
    };
    // It continues.
    timeout(MINUTE, following).await.unwrap_err();
    names
}

/// What a conflict between these nodes is labelled with.
fn labels(nodes: &[&str]) -> Value {
    let nodes = nodes.iter().map(|node| (node_label(node), json!("")));
    let scope = (SCOPE_LABEL.to_owned(), json!("fleet"));
    let labels: serde_json::Map<_, _> = nodes.chain([scope]).collect();
    labels.into()
}

fn name(conflict: &WatchedConflict) -> String {
    match conflict {
        WatchedConflict::Fleet(stored) => stored.spec.address.object_name(),
        WatchedConflict::Local(name, _) => name.clone(),
    }
}

/// Creates so many conflicts between these nodes that a list of them is longer than a response may be. Returns how many.
fn fill(api: &SimulatedApi, nodes: [&str; 2]) -> usize {
    let (mut size, mut count) = (0, 0);
    while size <= MAX_BODY + MAX_BODY / 2 {
        let address = format!("10.1.{}.{}", count >> 8, count & 0xff);
        let mut spec = spec(&address, nodes);
        spec["pods"] = "p".repeat(1024).into();
        size += spec.to_string().len();
        api.apply_labelled(CONFLICTS, &address, &spec, &labels(&nodes));
        count += 1;
    }
    count
}

#[tokio::test(start_paused = true)]
async fn storm_elsewhere_is_not_read() {
    let api = server();
    assert!(fill(&api, ["b", "c"]) > 2_000);
    let between = |name: &str, nodes: [&str; 2]| {
        api.apply_labelled(CONFLICTS, name, &spec(name, nodes), &labels(&nodes));
    };
    between("10.9.0.1", ["b", "a"]);
    let mut watch = watching(&api);
    let changes = async {
        sleep(Duration::from_secs(1)).await;
        // What happens there meanwhile is not sent either, until it names this node, and while it does.
        between("10.1.0.1", ["b", "c"]);
        between("10.1.0.2", ["b", "a"]);
        between("10.1.0.2", ["b", "c"]);
    };
    let (seen, ()) = tokio::join!(names(&mut watch), changes);
    assert_eq!(
        seen,
        ["ListBegan", "10.9.0.1", "Listed", "10.1.0.2", "-10.1.0.2"]
    );
}

#[tokio::test(start_paused = true)]
async fn list_that_is_too_long_is_read_in_pages() {
    let api = server();
    let count = fill(&api, ["b", "a"]);
    let mut watch = watching(&api);
    let seen = names(&mut watch).await;
    let mut last = seen.rsplit(|name| name == "ListBegan");
    assert_eq!(last.next().unwrap().len(), count + 1);
    assert_eq!(seen.last().unwrap(), "Listed");
    let limit = format!("limit={PAGE}&");
    let in_pages = api.requests();
    let in_pages = in_pages.iter().filter(|(_, what)| what.contains(&limit));
    assert!(in_pages.count() >= count / PAGE as usize);
    assert_eq!(
        watch.watch.page_size(),
        None,
        "the next list comes from the watch cache"
    );
}

#[tokio::test(start_paused = true)]
async fn pages_shrink_until_they_fit() {
    let api = server();
    for number in 0..8 {
        let address = format!("10.0.0.{number}");
        let mut spec = spec(&address, ["b", "a"]);
        // As large as etcd takes.
        spec["more"] = "x".repeat(1_500_000).into();
        api.apply_labelled(CONFLICTS, &address, &spec, &labels(&["b", "a"]));
    }
    let seen = names(&mut watching(&api)).await;
    let last: Vec<_> = seen
        .rsplit(|name| name == "ListBegan")
        .next()
        .unwrap()
        .to_vec();
    assert_eq!(last.len(), 9, "{last:?}");
    assert_eq!(last[8], "Listed");
}

#[tokio::test(start_paused = true)]
async fn objects_without_labels_are_labelled_if_they_name_this_node() {
    let api = server();
    let mut within = spec("10.0.0.3", ["a", "a"]);
    within["scope"] = "node".into();
    api.apply(CONFLICTS, "10.0.0.1", &spec("10.0.0.1", ["b", "a"]));
    api.apply(CONFLICTS, "10.0.0.2", &spec("10.0.0.2", ["b", "c"]));
    api.apply(CONFLICTS, "10.0.0.3-00000007", &within);
    let seen = names(&mut watching(&api)).await;
    assert_eq!(
        seen,
        ["ListBegan", "10.0.0.1", "10.0.0.3-00000007", "Listed"]
    );
    let labels_of = |name: &str| api.object(CONFLICTS, name).unwrap()["metadata"]["labels"].clone();
    assert_eq!(labels_of("10.0.0.1"), labels(&["b", "a"]));
    assert_eq!(labels_of("10.0.0.2"), Value::Null);
    assert_eq!(labels_of("10.0.0.3-00000007")[SCOPE_LABEL], "node");
}

#[test]
fn only_conflicts_that_name_this_node_are_passed_on() {
    let watch = watching(&server());
    let right = spec("10.0.0.1", ["a", "b"]);
    let mut within = spec("10.0.0.1", ["b", "b"]);
    within["scope"] = "node".into();
    let skipped = [
        object("10.0.0.2", &right),
        object("10.0.0.1", &spec("10.0.0.1", ["b", "c"])),
        object("10.0.0.1", &within),
        object("10.0.0.1", &json!({})),
    ];
    for object in skipped {
        assert!(watch.reader.apply(Event::Apply(object.clone())).is_none());
        assert!(watch.reader.apply(Event::Delete(object)).is_none());
    }
    let changed = watch.reader.apply(Event::Apply(object("10.0.0.1", &right)));
    assert!(matches!(changed, Some(WatchUpdate::Changed(_))));
    let deleted = watch
        .reader
        .apply(Event::Delete(object("10.0.0.1", &right)));
    assert!(matches!(deleted, Some(WatchUpdate::Deleted(_))));
}

#[tokio::test(start_paused = true)]
async fn owners_of_a_watched_conflict_own_what_is_written_later() {
    let api = server();
    let watch = watching(&api);
    let right = spec("10.0.0.1", ["b", "a"]);
    let mut watched = object("10.0.0.1", &right);
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "uid-of-b"}]);
    watched.metadata.owner_references = serde_json::from_value(owner).unwrap();
    watch.reader.apply(Event::Apply(watched));
    let conflict = serde_json::from_value(right).unwrap();
    let request = Request::CreateConflict(conflict);
    watch.reader.registry.execute("10.0.0.1", &request).await;
    let written = api.object(CONFLICTS, "10.0.0.1").unwrap();
    assert_eq!(written["metadata"]["ownerReferences"][0]["uid"], "uid-of-b");
}

#[tokio::test(start_paused = true)]
async fn list_that_fails_is_tried_again() {
    for (code, seen) in [
        (401, vec!["Failed", "ListBegan", "Listed"]),
        (500, vec!["Failed", "ListBegan", "Listed"]),
        // It has expired, which is no error.
        (410, vec!["ListBegan", "Listed"]),
    ] {
        let api = server();
        api.fail_next(Failure {
            code: Some(code),
            retry_after: None,
            takes_effect: false,
        });
        assert_eq!(names(&mut watching(&api)).await, seen, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn lists_that_keep_failing_are_tried_less_and_less_often() {
    let api = server();
    api.set_down(true);
    let kube = KubeClient::simulated(&api);
    let registry = Arc::new(Registry::new(kube.clone(), "a".to_owned()));
    let (updates, received) = mpsc::channel(1_000);
    let node = "a".to_owned();
    tokio::spawn(watch_own_node(
        kube.clone(),
        Arc::clone(&registry),
        node.clone(),
        updates.clone(),
    ));
    tokio::spawn(watch_conflicts(kube, registry, node, updates));
    sleep(10 * MINUTE).await;
    let attempts = api.requests().len();
    assert!((40..=100).contains(&attempts), "{attempts}");
    drop(received);
}

#[tokio::test(start_paused = true)]
async fn conflicts_that_are_not_installed_are_looked_for_every_three_minutes() {
    let api = SimulatedApi::default();
    let mut watch = watching(&api);
    assert_eq!(names(&mut watch).await, ["Failed"]);
    api.install(CONFLICTS);
    let mut seen = names(&mut watch).await;
    seen.extend(names(&mut watch).await);
    assert_eq!(seen, ["ListBegan", "Listed"]);
}

#[tokio::test(start_paused = true)]
async fn watch_that_is_resumed_works_again() {
    let api = server();
    let mut watch = watching(&api);
    assert_eq!(names(&mut watch).await, ["ListBegan", "Listed"]);
    api.set_down(true);
    let failed = names(&mut watch).await;
    assert!(failed.len() >= 5 && failed.iter().all(|what| what == "Failed"));
    api.set_down(false);
    assert_eq!(names(&mut watch).await, ["Works(Watch)"]);
}

/// What the watch of the own Node reports.
fn own_node(update: WatchUpdate) -> Option<Vec<String>> {
    match update {
        WatchUpdate::OwnNode(node) => node.map(|node| node.pod_cidrs),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn own_node_is_followed_from_before_it_exists_until_it_is_gone() {
    const NODES: &str = "/api/v1/nodes";
    let api = server();
    api.install(NODES);
    let registry = Registry::new(KubeClient::simulated(&api), "a".to_owned());
    let (updates, mut received) = mpsc::channel(100);
    let watching = tokio::spawn(watch_own_node(
        KubeClient::simulated(&api),
        Arc::new(registry),
        "a".to_owned(),
        updates,
    ));
    assert_eq!(own_node(received.recv().await.unwrap()), None);
    api.apply(NODES, "b", &json!({"podCIDRs": ["10.244.2.0/24"]}));
    api.apply(NODES, "a", &json!({}));
    assert_eq!(own_node(received.recv().await.unwrap()), Some(Vec::new()));
    api.apply(NODES, "a", &json!({"podCIDRs": ["10.244.1.0/24"]}));
    let ranges = own_node(received.recv().await.unwrap());
    assert_eq!(ranges, Some(vec!["10.244.1.0/24".to_owned()]));
    api.delete(NODES, "a");
    assert_eq!(own_node(received.recv().await.unwrap()), None);
    let requests = api.requests();
    let is_of_own = |what: &str| what.contains("fieldSelector=metadata.name%3Da&");
    assert!(
        requests.iter().all(|(_, what)| is_of_own(what)),
        "{requests:?}"
    );
    watching.abort();
}
