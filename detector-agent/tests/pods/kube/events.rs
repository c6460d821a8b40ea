//! The Kubernetes events posted on pods and on the node.

use detector_testkit::{DEADLINE, KubeApi, Node, http::TestClient, kube_api::pod, until};
use k8s_openapi::api::{core::v1::ObjectReference, events::v1::Event as ApiEvent};
use serde_json::{Value, json};

use super::*;

/// Checks an event as the API server does besides the schema (`ValidateEventCreate`), and for what `kubectl` shows.
fn check(event: &Value) -> ApiEvent {
    let typed: ApiEvent = serde_json::from_value(event.clone()).unwrap();
    assert!(typed.event_time.is_some(), "{event}");
    for (text, limit) in [
        (&typed.reporting_controller, 128),
        (&typed.reporting_instance, 128),
        (&typed.action, 128),
        (&typed.reason, 128),
        (&typed.note, 1024),
        (&typed.metadata.name, 253),
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
    let object = typed.regarding.as_ref().unwrap();
    match object.kind.as_deref() {
        Some("Pod") => assert_eq!(object.namespace, typed.metadata.namespace, "{event}"),
        Some("Node") => {
            assert_eq!(object.namespace, None, "{event}");
            let namespace = typed.metadata.namespace.as_deref();
            assert_eq!(namespace, Some("default"), "{event}");
        }
        other => panic!("{other:?} in {event}"),
    }
    assert!(object.uid.is_some() && object.name.is_some(), "{event}");
    typed
}

/// The name of the object of an event.
fn object(event: &ApiEvent) -> &str {
    let object = event.regarding.as_ref();
    object.and_then(|object| object.name.as_deref()).unwrap()
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
            let message = event.note.unwrap();
            assert!(
                message.contains(ADDRESS) && !message.contains("unknown"),
                "{message}"
            );
            let name = |pod: ObjectReference| pod.name.unwrap();
            (event.regarding.map(name), event.related.map(name))
        })
        .collect();
    regarding.sort();
    let own = |name: &str| name.to_owned();
    assert_eq!(
        regarding,
        [
            (Some(own("coredns-abc")), Some(own("web-0"))),
            (Some(own("web-0")), Some(own("coredns-abc")))
        ]
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
        let event = ["POST", "PATCH"].iter().any(|method| {
            let path =
                request.strip_prefix(&format!("{method} /apis/events.k8s.io/v1/namespaces/"));
            path.is_some_and(|path| path.contains("/events"))
        });
        assert!(own_pods || event, "{request}");
    }
}

/// A real server denies everything for some seconds after its start.
#[test]
fn denial_of_a_starting_server_loses_no_event() {
    let node = Node::new("kubedenied").unwrap();
    let api = KubeApi::start(&node).unwrap();
    both_pods(&api);
    api.deny_events(3);
    let _agent = agent(&node, &api);
    let _pods = devices(&node, &[WEB, DNS]);
    let is_posted = |events: &[Value]| of_reason(events, "IPConflict").len() == 2;
    api.wait_events(DEADLINE, is_posted).unwrap();
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

/// The names of the objects of these events, sorted.
fn objects(events: &[ApiEvent]) -> Vec<&str> {
    let mut names: Vec<_> = events.iter().map(object).collect();
    names.sort_unstable();
    names
}

#[test]
fn unknown_pods_are_reported_on_the_node() {
    let node = Node::new("kubenode").unwrap();
    let api = KubeApi::start(&node).unwrap();
    let agent = agent(&node, &api);
    let mut pods = devices(&node, &[WEB, DNS]);
    let posted = api
        .wait_events(DEADLINE, |events| {
            !of_reason(events, "IPConflict").is_empty()
        })
        .unwrap();
    let posted = of_reason(&posted, "IPConflict");
    assert_eq!(objects(&posted), [NODE]);
    let message = posted[0].note.as_ref().unwrap();
    assert_eq!(message.matches("an unknown pod").count(), 2, "{message}");
    let named = |events: &[Value], wanted: &str, text: &str| {
        of_reason(events, "IPConflict")
            .iter()
            .any(|event| object(event) == wanted && event.note.as_ref().unwrap().contains(text))
    };
    // One name comes late: its pod gets an event, which waits for no other name any more.
    api.apply(pod(NODE, "default", "web-0", &[ADDRESS]));
    let unknown = format!("an unknown pod on {DNS}");
    api.wait_events(DEADLINE, |events| named(events, "web-0", &unknown))
        .unwrap();
    // So does the other.
    api.apply(pod(NODE, "kube-system", "coredns-abc", &[ADDRESS]));
    wait(&agent, all_named);
    api.wait_events(DEADLINE, |events| {
        named(events, "coredns-abc", "default/web-0")
    })
    .unwrap();
    pods.pop().unwrap().delete().unwrap();
    let posted = api
        .wait_events(DEADLINE, |events| {
            of_reason(events, "IPConflictResolved").len() == 3
        })
        .unwrap();
    let resolved = of_reason(&posted, "IPConflictResolved");
    assert_eq!(objects(&resolved), ["coredns-abc", NODE, "web-0"]);
    let posted = api.requests();
    let posted = posted.iter().filter(|request| !request.starts_with("GET "));
    assert!(posted.clone().all(|request| request.starts_with("POST ")));
    assert_eq!(posted.count(), 6);
}

#[test]
fn restart_repeats_no_event() {
    let node = Node::new("kuberestart").unwrap();
    let api = KubeApi::start(&node).unwrap();
    both_pods(&api);
    let state = tempfile::tempdir().unwrap();
    let start = || {
        let command = command(&api, "on").arg("--state-dir").arg(state.path());
        Agent::start_ready(&node, &command).unwrap()
    };
    let mut agent = start();
    let mut pods = devices(&node, &[WEB, DNS]);
    api.wait_events(DEADLINE, |events| {
        of_reason(events, "IPConflict").len() == 2
    })
    .unwrap();
    agent.terminate(DEADLINE).unwrap();
    let _agent = start();
    let client = TestClient::of_agent(&node);
    until(DEADLINE, "both pods to be named", || {
        let list = client.get("/api/v1/conflicts")?.json()?;
        let names = |position: usize| &list["conflicts"][0]["claimants"][position]["pod"]["name"];
        anyhow::ensure!(names(0).is_string() && names(1).is_string(), "{list}");
        Ok(())
    })
    .unwrap();
    // Their end is posted although another agent posted their beginning.
    pods.pop().unwrap().delete().unwrap();
    let posted = api
        .wait_events(DEADLINE, |events| {
            of_reason(events, "IPConflictResolved").len() == 2
        })
        .unwrap();
    assert_eq!(of_reason(&posted, "IPConflict").len(), 2);
}
