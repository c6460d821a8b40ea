//! The Kubernetes events posted on pods.

use detector_testkit::{DEADLINE, KubeApi, Node, kube_api::pod};
use k8s_openapi::api::events::v1::Event as ApiEvent;
use serde_json::{Value, json};

use super::*;

/// Checks an event as the API server does besides the schema (`ValidateEventCreate` of
/// `events.k8s.io/v1`).
fn check(event: &Value) -> ApiEvent {
    let typed: ApiEvent = serde_json::from_value(event.clone()).unwrap();
    assert!(typed.event_time.is_some(), "{event}");
    for (text, limit) in [
        (&typed.reporting_controller, 128),
        (&typed.reporting_instance, 128),
        (&typed.action, 128),
        (&typed.reason, 128),
        (&typed.note, 1024),
    ] {
        let length = text.as_ref().map_or(0, String::len);
        assert!((1..=limit).contains(&length), "{event}");
    }
    assert!(
        typed.reporting_controller.as_ref().unwrap().contains('/'),
        "{event}"
    );
    assert!(
        matches!(typed.type_.as_deref(), Some("Normal" | "Warning")),
        "{event}"
    );
    let regarding = typed.regarding.as_ref().unwrap();
    assert_eq!(regarding.namespace, typed.metadata.namespace, "{event}");
    assert_eq!(regarding.kind.as_deref(), Some("Pod"), "{event}");
    assert!(
        regarding.uid.is_some() && regarding.name.is_some(),
        "{event}"
    );
    typed
}

/// The posted events with this reason, each checked.
pub(super) fn of_reason(events: &[Value], reason: &str) -> Vec<ApiEvent> {
    let found = events.iter().filter(|event| event["reason"] == reason);
    found.map(check).collect()
}

#[test]
fn both_pods_are_fully_named_and_get_their_own_events() {
    let node = Node::new("kube").unwrap();
    let api = KubeApi::start(&node).unwrap();
    let mut web = pod(NODE, "default", "web-0", &[ADDRESS]);
    web["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web",
        "uid": "uid-web", "controller": true}]);
    web["metadata"]["deletionTimestamp"] = "2026-03-21T09:20:11Z".into();
    api.apply(web);
    api.apply(pod(NODE, "kube-system", "coredns-abc", &[ADDRESS]));
    let agent = agent(&node, &api);
    let mut pods = devices(&node, &[WEB, DNS]);
    let conflict = wait(&agent, all_named);
    let web = conflict.claimant(WEB).unwrap().pod.clone().unwrap();
    assert_eq!(web["namespace"], "default");
    assert_eq!(web["name"], "web-0");
    assert_eq!(web["uid"], "uid-web-0");
    assert_eq!(web["via"], "kube");
    assert_eq!(web["labels"]["app"], "web-0");
    assert_eq!(web["owner"], json!({"kind": "StatefulSet", "name": "web"}));
    assert_eq!(web["terminating"], true);
    let dns = conflict.claimant(DNS).unwrap().pod.clone().unwrap();
    assert_eq!((dns.get("owner"), dns.get("terminating")), (None, None));

    let posted = api
        .wait_events(DEADLINE, |events| {
            of_reason(events, "IPConflict").len() == 2
        })
        .unwrap();
    let mut regarding: Vec<_> = of_reason(&posted, "IPConflict")
        .into_iter()
        .map(|event| {
            assert_eq!(event.type_.as_deref(), Some("Warning"));
            assert!(event.note.unwrap().contains(ADDRESS));
            let name = |pod: Option<k8s_openapi::api::core::v1::ObjectReference>| pod?.name;
            (name(event.regarding).unwrap(), name(event.related))
        })
        .collect();
    regarding.sort();
    assert_eq!(regarding[0].0, "coredns-abc");
    assert_eq!(regarding[1].0, "web-0");
    // The first may have been posted before the other pod was known.
    assert!(
        regarding.iter().any(|(_, related)| related.is_some()),
        "{regarding:?}"
    );

    pods.pop().unwrap().delete().unwrap();
    let posted = api
        .wait_events(DEADLINE, |events| {
            of_reason(events, "IPConflictResolved").len() == 2
        })
        .unwrap();
    for event in of_reason(&posted, "IPConflictResolved") {
        assert_eq!(event.type_.as_deref(), Some("Normal"));
    }
    // Every request is one that the role grants.
    for request in api.requests() {
        let own_pods = request.starts_with("GET /api/v1/pods?")
            && request.contains("fieldSelector=spec.nodeName%3Dtestkit");
        let event = request.starts_with("POST /apis/events.k8s.io/v1/namespaces/")
            || request.starts_with("PATCH /apis/events.k8s.io/v1/namespaces/");
        assert!(own_pods || event, "{request}");
    }
}

#[test]
fn recurring_conflict_is_counted_in_the_existing_event() {
    let node = Node::new("kubeseries").unwrap();
    let api = KubeApi::start(&node).unwrap();
    both_pods(&api);
    let agent = agent(&node, &api);
    // Both pods are known before the conflict, so each event names the other pod at once.
    agent
        .wait_log(DEADLINE, r#""pod source ready","via":"kube""#)
        .unwrap();
    let mut pods = devices(&node, &[WEB, DNS]);
    api.wait_events(DEADLINE, |events| {
        of_reason(events, "IPConflict").len() == 2
    })
    .unwrap();
    pods.pop().unwrap().delete().unwrap();
    api.wait_events(DEADLINE, |events| {
        of_reason(events, "IPConflictResolved").len() == 2
    })
    .unwrap();
    let _again = devices(&node, &[DNS]);
    let posted = api
        .wait_events(DEADLINE, |events| {
            of_reason(events, "IPConflict").len() == 4
        })
        .unwrap();
    let posted = of_reason(&posted, "IPConflict");
    for again in &posted[2..] {
        let first = posted
            .iter()
            .find(|first| first.regarding == again.regarding)
            .unwrap();
        assert_eq!(first.metadata.name, again.metadata.name);
        assert_eq!(again.series.as_ref().unwrap().count, 2);
    }
    let patches = api.requests();
    let patches = patches.iter().filter(|line| line.starts_with("PATCH "));
    assert_eq!(patches.count(), 2);
}
