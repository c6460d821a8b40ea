//! The watch at a simulated server.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::ops::Range;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::{
    fleet::protocol::Request,
    kube_client::simulated::{Failure, SimulatedApi},
};

const CONFLICTS: &str = "/apis/ipconflict.io/v1alpha1/ipconflicts";
const MINUTE: Duration = Duration::from_secs(60);

fn server() -> SimulatedApi {
    let api = SimulatedApi::default();
    api.install(CONFLICTS);
    api
}

/// The watch of node `a`, and what it reports.
fn watching(api: &SimulatedApi) -> (ConflictWatch, mpsc::Receiver<WatchUpdate>) {
    let (updates, received) = mpsc::channel(100);
    let watch = ConflictWatch {
        registry: Arc::new(Registry::new(KubeClient::simulated(api), "a".to_owned())),
        node: "a".to_owned(),
        updates,
        listed: ListedConflicts::default(),
        delay: DoublingDelay::new(FIRST_DELAY, LONGEST_DELAY),
        random: fastrand::Rng::with_seed(7),
    };
    (watch, received)
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

/// The addresses 10.0.x.y of these numbers, as a list has them.
fn others(numbers: Range<usize>) -> impl Iterator<Item = Event<DynamicObject>> {
    numbers.map(|n| {
        let address = format!("10.0.{}.{}", n >> 8, n & 0xff);
        Event::InitApply(object(&address, &spec(&address, ["b", "c"])))
    })
}

fn listed(update: Option<WatchUpdate>) -> Vec<String> {
    let Some(WatchUpdate::Listed(conflicts)) = update else {
        return vec![format!("{update:?}")];
    };
    let names = conflicts.fleet.iter().map(|c| c.spec.address.object_name());
    names.collect()
}

/// Follows for a minute; `true` if a new client was needed before.
async fn follow(watch: &mut ConflictWatch, api: &SimulatedApi) -> bool {
    timeout(MINUTE, watch.follow(api.client())).await.is_ok()
}

#[test]
fn list_is_bounded_but_for_conflicts_of_this_node() {
    let (mut watch, _received) = watching(&server());
    watch.apply(Event::Init);
    for event in others(0..LISTED + 5) {
        assert!(watch.apply(event).is_none());
    }
    let own = object("10.9.0.1", &spec("10.9.0.1", ["b", "a"]));
    watch.apply(Event::InitApply(own));
    let listed = listed(watch.apply(Event::InitDone));
    assert_eq!(listed.len(), LISTED + 1);
    assert_eq!(listed.last().unwrap(), "10.9.0.1");
}

#[test]
fn list_that_was_cut_off_begins_anew() {
    let (mut watch, _received) = watching(&server());
    for events in [others(0..2), others(2..3)] {
        watch.apply(Event::Init);
        for event in events {
            watch.apply(event);
        }
    }
    assert_eq!(listed(watch.apply(Event::InitDone)), ["10.0.0.2"]);
}

#[test]
fn conflicts_within_this_node_are_listed_apart_and_bounded() {
    let (mut watch, _received) = watching(&server());
    let mut within = spec("10.0.0.1", ["a", "a"]);
    within["scope"] = "node".into();
    watch.apply(Event::Init);
    watch.apply(Event::InitApply(object(
        "10.0.0.2",
        &spec("10.0.0.2", ["b", "c"]),
    )));
    for number in 0..LISTED + 5 {
        watch.apply(Event::InitApply(object(&format!("a-{number}"), &within)));
    }
    let Some(WatchUpdate::Listed(listed)) = watch.apply(Event::InitDone) else {
        panic!("no list");
    };
    assert_eq!((listed.fleet.len(), listed.local.len()), (1, LISTED));
    assert_eq!(listed.local[0].0, "a-0");
}

#[test]
fn conflict_within_another_node_or_under_another_name_is_skipped() {
    let (mut watch, _received) = watching(&server());
    let right = spec("10.0.0.1", ["a", "b"]);
    let mut within = spec("10.0.0.1", ["b", "b"]);
    within["scope"] = "node".into();
    let skipped = [
        object("10.0.0.2", &right),
        object("10.0.0.1", &within),
        object("10.0.0.1", &json!({})),
    ];
    for object in skipped {
        assert!(watch.apply(Event::Apply(object.clone())).is_none());
        assert!(watch.apply(Event::Delete(object)).is_none());
    }
    let changed = watch.apply(Event::Apply(object("10.0.0.1", &right)));
    assert!(matches!(changed, Some(WatchUpdate::Changed(_))));
    let deleted = watch.apply(Event::Delete(object("10.0.0.1", &right)));
    assert!(matches!(deleted, Some(WatchUpdate::Deleted(_))));
}

#[tokio::test(start_paused = true)]
async fn owners_of_a_watched_conflict_own_what_is_written_later() {
    let api = server();
    let (mut watch, _received) = watching(&api);
    let right = spec("10.0.0.1", ["b", "c"]);
    let mut watched = object("10.0.0.1", &right);
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "uid-of-b"}]);
    watched.metadata.owner_references = serde_json::from_value(owner).unwrap();
    watch.apply(Event::Apply(watched));
    let conflict = serde_json::from_value(right).unwrap();
    let request = Request::CreateConflict(conflict);
    watch.registry.execute("10.0.0.1", &request).await;
    let written = api.object(CONFLICTS, "10.0.0.1").unwrap();
    assert_eq!(written["metadata"]["ownerReferences"][0]["uid"], "uid-of-b");
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_need_a_new_client_and_nothing_else_does() {
    let api = server();
    let (mut watch, mut received) = watching(&api);
    assert!(!follow(&mut watch, &api).await);
    assert!(matches!(
        received.recv().await,
        Some(WatchUpdate::Listed(_))
    ));
    for code in [401, 500] {
        let failure = Failure {
            code: Some(code),
            retry_after: None,
            takes_effect: false,
        };
        api.fail_next(failure);
        assert_eq!(follow(&mut watch, &api).await, code == 401);
        assert!(matches!(
            received.recv().await,
            Some(WatchUpdate::Failed(_))
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn expired_list_is_no_error() {
    let api = server();
    let (mut watch, mut received) = watching(&api);
    api.fail_next(Failure {
        code: Some(410),
        retry_after: None,
        takes_effect: false,
    });
    follow(&mut watch, &api).await;
    assert!(matches!(
        received.recv().await,
        Some(WatchUpdate::Listed(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn delay_begins_anew_once_the_watch_works() {
    let api = server();
    let (mut watch, _received) = watching(&api);
    for _ in 0..20 {
        watch.delay.advance();
    }
    follow(&mut watch, &api).await;
    assert_eq!(watch.delay.current(), FIRST_DELAY);
}
