//! Which pod, by the Kubernetes API alone: its list and watch in good and bad days, and the events posted on the pods.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, KubeApi, Node, Pod, PodSpec, event::Conflict, kube_api::pod,
};
use k8s_openapi::api::events::v1::Event as ApiEvent;
use serde_json::{Value, json};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
const NODE: &str = "testkit";
const ADDRESS: &str = "10.244.2.10";
/// Calico's names for the devices of `default/web-0` and `kube-system/coredns-abc`.
const WEB: &str = "cali0d7763386da";
const DNS: &str = "cali3d5d6ab04b5";

fn agent(node: &Node, api: &KubeApi) -> Agent {
    agent_with(node, api, "on")
}

fn agent_with(node: &Node, api: &KubeApi, kube: &str) -> Agent {
    let command = AgentCommand::run(AGENT)
        .arg("--cri-endpoint=off")
        .arg("--cni-cache-dir=off")
        .arg(format!("--kube={kube}"))
        .arg("--pod-labels=app")
        .env("KUBECONFIG", api.kubeconfig());
    Agent::start_ready(node, &command).unwrap()
}

fn both_pods(api: &KubeApi) {
    api.apply(pod(NODE, "default", "web-0", &[ADDRESS]));
    api.apply(pod(NODE, "kube-system", "coredns-abc", &[ADDRESS]));
}

fn devices(node: &Node, names: &[&str]) -> Vec<Pod> {
    let specs: Vec<_> = names
        .iter()
        .map(|name| PodSpec::new(*name).address(format!("{ADDRESS}/24")))
        .collect();
    node.add_pods(&specs).unwrap()
}

fn wait(agent: &Agent, wanted: impl Fn(&Conflict) -> bool) -> Conflict {
    let received = agent.wait_event(DEADLINE, |event| {
        event.conflict().is_some_and(|conflict| wanted(&conflict))
    });
    received.unwrap().event.conflict().unwrap()
}

fn all_named(conflict: &Conflict) -> bool {
    conflict
        .claimants
        .iter()
        .all(|claimant| claimant.pod.is_some())
}

/// What the API server checks of an event (`ValidateEventCreate` of `events.k8s.io/v1`), besides its schema.
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

fn of_reason(events: &[Value], reason: &str) -> Vec<ApiEvent> {
    let found = events.iter().filter(|event| event["reason"] == reason);
    found.map(check).collect()
}

#[test]
fn both_pods_are_named_completely_and_told_by_events_of_their_own() {
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
    let mut told: Vec<_> = of_reason(&posted, "IPConflict")
        .into_iter()
        .map(|event| {
            assert_eq!(event.type_.as_deref(), Some("Warning"));
            assert!(event.note.unwrap().contains(ADDRESS));
            let name = |pod: Option<k8s_openapi::api::core::v1::ObjectReference>| pod?.name;
            (name(event.regarding).unwrap(), name(event.related))
        })
        .collect();
    told.sort();
    assert_eq!(told[0].0, "coredns-abc");
    assert_eq!(told[1].0, "web-0");
    // The first may have been told before the other pod was known.
    assert!(
        told.iter().any(|(_, related)| related.is_some()),
        "{told:?}"
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
    // Nothing was asked for that the role does not grant.
    for request in api.requests() {
        let own_pods = request.starts_with("GET /api/v1/pods?")
            && request.contains("fieldSelector=spec.nodeName%3Dtestkit");
        let event = request.starts_with("POST /apis/events.k8s.io/v1/namespaces/")
            || request.starts_with("PATCH /apis/events.k8s.io/v1/namespaces/");
        assert!(own_pods || event, "{request}");
    }
}

#[test]
fn a_pod_that_the_api_tells_of_after_its_device_is_told_in_an_update() {
    let node = Node::new("kubelate").unwrap();
    let api = KubeApi::start(&node).unwrap();
    let agent = agent(&node, &api);
    let _pods = devices(&node, &[WEB, DNS]);
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises(ADDRESS))
        .unwrap();
    let raised = raised.event.conflict().unwrap();
    assert!(!all_named(&raised), "{raised:?}");
    both_pods(&api);
    assert_eq!(wait(&agent, all_named).conflict_id, raised.conflict_id);
}

#[test]
fn pods_of_other_nodes_are_not_looked_at() {
    let node = Node::new("kubeother").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.apply(pod("another", "default", "web-0", &[ADDRESS]));
    let agent = agent(&node, &api);
    let _pods = devices(&node, &[WEB, DNS]);
    api.apply(pod(NODE, "kube-system", "coredns-abc", &[ADDRESS]));
    let conflict = wait(&agent, |conflict| {
        conflict
            .claimant(DNS)
            .is_some_and(|claimant| claimant.pod.is_some())
    });
    assert_eq!(conflict.claimant(WEB).unwrap().pod, None);
}

/// The version of the newest watch that was asked for.
fn watched_from(requests: &[String]) -> Vec<u64> {
    let watches = requests
        .iter()
        .filter(|request| request.contains("watch=true"));
    watches
        .filter_map(|request| {
            request
                .split("resourceVersion=")
                .nth(1)?
                .split('&')
                .next()?
                .parse()
                .ok()
        })
        .collect()
}

fn lists(requests: &[String]) -> usize {
    let listed =
        |request: &&String| request.contains("/api/v1/pods?") && !request.contains("watch=");
    requests.iter().filter(listed).count()
}

#[test]
fn a_broken_watch_is_resumed_where_a_bookmark_left_it_without_a_new_list() {
    let node = Node::new("kubebroken").unwrap();
    let api = KubeApi::start(&node).unwrap();
    let agent = agent(&node, &api);
    api.wait_requests(DEADLINE, |requests| watched_from(requests).len() == 1)
        .unwrap();
    let begun = watched_from(&api.requests())[0];
    api.bookmark();
    api.apply(pod(NODE, "kube-system", "coredns-abc", &[ADDRESS]));
    let _pods = devices(&node, &[WEB, DNS]);
    wait(&agent, |conflict| {
        conflict.claimant(DNS).is_some_and(|c| c.pod.is_some())
    });
    api.break_streams();
    api.wait_requests(DEADLINE, |requests| watched_from(requests).len() == 2)
        .unwrap();
    assert!(watched_from(&api.requests())[1] > begun);
    api.apply(pod(NODE, "default", "web-0", &[ADDRESS]));
    wait(&agent, all_named);
    assert_eq!(lists(&api.requests()), 1);
}

#[test]
fn a_version_that_is_too_old_leads_to_a_new_list() {
    let node = Node::new("kubegone").unwrap();
    let api = KubeApi::start(&node).unwrap();
    let agent = agent(&node, &api);
    api.wait_requests(DEADLINE, |requests| watched_from(requests).len() == 1)
        .unwrap();
    api.compact();
    api.wait_requests(DEADLINE, |requests| lists(requests) == 2)
        .unwrap();
    both_pods(&api);
    let _pods = devices(&node, &[WEB, DNS]);
    wait(&agent, all_named);
}

#[test]
fn a_refused_token_is_said_and_forgotten_when_it_is_taken_again() {
    let node = Node::new("kube401").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.unauthorized(true);
    both_pods(&api);
    let agent = agent(&node, &api);
    agent.wait_log(DEADLINE, "(401)").unwrap();
    let _pods = devices(&node, &[WEB, DNS]);
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises(ADDRESS))
        .unwrap();
    let because = raised.event.conflict().unwrap().claimants[0]
        .pod_unknown_because
        .clone();
    assert!(because.as_ref().unwrap().contains("(401)"), "{because:?}");
    api.unauthorized(false);
    wait(&agent, all_named);
    agent.wait_log(DEADLINE, "kube names pods").unwrap();
}

#[test]
fn a_server_that_hangs_delays_no_event_and_names_the_pods_when_it_answers() {
    let node = Node::new("kubehang").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.hang(true);
    both_pods(&api);
    let agent = agent(&node, &api);
    let _pods = devices(&node, &[WEB, DNS]);
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises(ADDRESS))
        .unwrap();
    assert!(!all_named(&raised.event.conflict().unwrap()));
    api.hang(false);
    wait(&agent, all_named);
}

#[test]
fn a_slow_stream_is_read_to_its_end() {
    let node = Node::new("kubeslow").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.slow();
    let agent = agent(&node, &api);
    let _pods = devices(&node, &[WEB, DNS]);
    both_pods(&api);
    wait(&agent, all_named);
}

#[test]
fn without_names_that_tell_the_address_names_a_pod_where_only_one_has_it() {
    let node = Node::new("kubeaddress").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.apply(pod(NODE, "default", "one", &[ADDRESS, "fd00::1"]));
    api.apply(pod(NODE, "default", "two", &[ADDRESS, "fd00::2"]));
    let agent = agent(&node, &api);
    let specs = [("veth1", "fd00::1"), ("veth2", "fd00::2")].map(|(device, ipv6)| {
        PodSpec::new(device)
            .address(format!("{ADDRESS}/24"))
            .address(format!("{ipv6}/64"))
    });
    let _pods = node.add_pods(&specs).unwrap();
    let conflict = wait(&agent, all_named);
    for (device, name) in [("veth1", "one"), ("veth2", "two")] {
        let pod = conflict.claimant(device).unwrap().pod.clone().unwrap();
        assert_eq!((&pod["name"], &pod["via"]), (&name.into(), &"kube".into()));
    }
}

#[test]
fn check_asks_the_api_once() {
    let node = Node::new("kubecheck").unwrap();
    let api = KubeApi::start(&node).unwrap();
    both_pods(&api);
    let _pods = devices(&node, &[WEB, DNS]);
    let args = [
        "check",
        "--format=json",
        "--node-name=testkit",
        "--cri-endpoint=off",
        "--cni-cache-dir=off",
        "--kube=on",
    ];
    let outcome = AgentCommand::new(AGENT, args)
        .env("KUBECONFIG", api.kubeconfig())
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert_eq!(outcome.code().unwrap(), 1, "{outcome:?}");
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let conflict: Conflict = serde_json::from_value(document["conflicts"][0].clone()).unwrap();
    assert!(all_named(&conflict), "{conflict:?}");
    assert_eq!(api.requests().len(), 1, "{:?}", api.requests());
}

#[test]
fn with_kube_off_nothing_is_contacted_nor_by_auto_outside_a_cluster() {
    for kube in ["off", "auto"] {
        let node = Node::new(&format!("kube{kube}")).unwrap();
        let api = KubeApi::start(&node).unwrap();
        both_pods(&api);
        let agent = agent_with(&node, &api, kube);
        let _pods = devices(&node, &[WEB, DNS]);
        let raised = agent
            .wait_event(DEADLINE, |event| event.raises(ADDRESS))
            .unwrap();
        for claimant in raised.event.conflict().unwrap().claimants {
            let because = claimant.pod_unknown_because.unwrap();
            assert!(because.contains("kube is off"), "{because}");
        }
        assert_eq!(api.connections(), 0);
    }
}

#[test]
fn a_server_that_is_absent_at_the_start_is_found_when_it_appears() {
    let node = Node::new("kubeabsent").unwrap();
    let api = KubeApi::absent(&node).unwrap();
    both_pods(&api);
    let agent = agent(&node, &api);
    agent.wait_log(DEADLINE, "nobody listens at").unwrap();
    let _pods = devices(&node, &[WEB, DNS]);
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises(ADDRESS))
        .unwrap();
    assert!(!all_named(&raised.event.conflict().unwrap()));
    api.appear(&node).unwrap();
    wait(&agent, all_named);
    api.wait_events(DEADLINE, |events| {
        of_reason(events, "IPConflict").len() == 2
    })
    .unwrap();
}

#[test]
fn a_token_that_was_replaced_is_read_again() {
    let node = Node::new("kubetoken").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.apply(pod(NODE, "default", "web-0", &[ADDRESS]));
    api.apply(pod(NODE, "kube-system", "coredns-abc", &[ADDRESS]));
    let agent = agent(&node, &api);
    let mut pods = devices(&node, &[WEB, DNS]);
    api.wait_events(DEADLINE, |events| {
        of_reason(events, "IPConflict").len() == 2
    })
    .unwrap();
    api.replace_token("token-2").unwrap();
    // Both the watch and the events go on with the new one.
    pods.pop().unwrap().delete().unwrap();
    api.wait_events(DEADLINE, |events| {
        of_reason(events, "IPConflictResolved").len() == 2
    })
    .unwrap();
    api.wait_requests(DEADLINE, |requests| {
        watched_from(requests).len() >= 2 && lists(requests) >= 2
    })
    .unwrap();
    agent.wait_log(DEADLINE, "(401)").unwrap();
}

#[test]
fn an_answer_without_end_is_cut_off_and_costs_nothing_else() {
    let node = Node::new("kubeendless").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.endless(true);
    both_pods(&api);
    let agent = agent(&node, &api);
    agent.wait_log(DEADLINE, "in one answer").unwrap();
    let _pods = devices(&node, &[WEB, DNS]);
    agent
        .wait_event(DEADLINE, |event| event.raises(ADDRESS))
        .unwrap();
    api.endless(false);
    wait(&agent, all_named);
}

#[test]
fn an_address_that_is_handed_on_takes_the_earlier_pods_name_off_the_device() {
    let node = Node::new("kubehanded").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.apply(pod(NODE, "default", "old", &[ADDRESS, "fd00::1"]));
    api.apply(pod(NODE, "default", "two", &[ADDRESS, "fd00::2"]));
    let agent = agent(&node, &api);
    let specs = [("veth1", "fd00::1"), ("veth2", "fd00::2")].map(|(device, ipv6)| {
        PodSpec::new(device)
            .address(format!("{ADDRESS}/24"))
            .address(format!("{ipv6}/64"))
    });
    let _pods = node.add_pods(&specs).unwrap();
    wait(&agent, all_named);
    // The API told late that the pod has another address and that its own is another pod's by now.
    api.apply(pod(NODE, "default", "new", &[ADDRESS, "fd00::1"]));
    api.apply(pod(NODE, "default", "old", &["10.244.2.77", "fd00::77"]));
    let corrected = wait(&agent, |conflict| {
        let first = conflict.claimant("veth1").and_then(|c| c.pod.as_ref());
        first.is_some_and(|pod| pod["name"] == "new")
    });
    let second = corrected.claimant("veth2").unwrap().pod.clone().unwrap();
    assert_eq!(second["name"], "two");
}

#[test]
fn a_better_source_names_the_pod_and_the_api_adds_what_it_knows_of_it() {
    let node = Node::new("kubeboth").unwrap();
    let api = KubeApi::start(&node).unwrap();
    both_pods(&api);
    let cache = tempfile::tempdir().unwrap();
    let entry = json!({"kind": "cniCacheV1", "containerId": "cid-web-0", "config": "e30=", "ifName": "eth0",
        "networkName": "calico", "netns": "/gone",
        "cniArgs": [["K8S_POD_NAMESPACE", "default"], ["K8S_POD_NAME", "web-0"], ["K8S_POD_UID", "uid-web-0"]],
        "result": {"cniVersion": "0.3.1", "interfaces": [{"name": WEB}, {"name": "eth0", "sandbox": "/gone"}]}});
    std::fs::write(cache.path().join("calico-1-eth0"), entry.to_string()).unwrap();
    let _pods = devices(&node, &[WEB, DNS]);
    // `check` waits for every source, in whatever order they answer.
    let args = [
        "check",
        "--format=json",
        "--node-name=testkit",
        "--cri-endpoint=off",
        "--kube=on",
        "--pod-labels=app",
        "--cni-cache-dir",
    ];
    let outcome = AgentCommand::new(AGENT, args)
        .arg(cache.path())
        .env("KUBECONFIG", api.kubeconfig())
        .run_to_end(&node, DEADLINE)
        .unwrap();
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let conflict: Conflict = serde_json::from_value(document["conflicts"][0].clone()).unwrap();
    let pod = |device| conflict.claimant(device).unwrap().pod.clone().unwrap();
    let (web, dns) = (pod(WEB), pod(DNS));
    assert_eq!(
        (&web["via"], &dns["via"]),
        (&"cni-cache".into(), &"kube".into())
    );
    assert_eq!(web["container_id"], "cid-web-0");
    assert_eq!(web["labels"]["app"], "web-0");
}

#[test]
fn the_same_conflict_again_is_counted_in_the_event_that_is_there() {
    let node = Node::new("kubeseries").unwrap();
    let api = KubeApi::start(&node).unwrap();
    both_pods(&api);
    let agent = agent(&node, &api);
    // Both pods are known before there is a conflict, so each is told of the other at once.
    agent.wait_log(DEADLINE, "kube names pods").unwrap();
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
