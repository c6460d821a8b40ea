//! Faults and restarts of the API server.

use super::{events::of_reason, *};

/// The resource versions from which watches were requested.
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
fn broken_watch_resumes_from_the_bookmark_without_a_list() {
    let node = Node::new("kubebroken").unwrap();
    let api = KubeApi::start(&node).unwrap();
    let agent = agent(&node, &api);
    api.wait_requests(DEADLINE, |requests| watched_from(requests).len() == 1)
        .unwrap();
    let begun = watched_from(&api.requests())[0];
    api.send_bookmark();
    api.apply(pod(NODE, "kube-system", "coredns-abc", &[ADDRESS]));
    let _pods = devices(&node, &[WEB, DNS]);
    wait(&agent, |conflict| {
        conflict.claimant(DNS).is_some_and(|c| c.pod.is_some())
    });
    api.cut_watches();
    api.wait_requests(DEADLINE, |requests| watched_from(requests).len() == 2)
        .unwrap();
    assert!(watched_from(&api.requests())[1] > begun);
    api.apply(pod(NODE, "default", "web-0", &[ADDRESS]));
    wait(&agent, all_named);
    assert_eq!(lists(&api.requests()), 1);
}

#[test]
fn expired_resource_version_leads_to_a_new_list() {
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
fn refused_token_is_reported_until_accepted_again() {
    let node = Node::new("kube401").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.set_unauthorized(true);
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
    api.set_unauthorized(false);
    wait(&agent, all_named);
    agent
        .wait_log(DEADLINE, r#""pod source ready","via":"kube""#)
        .unwrap();
}

#[test]
fn hanging_server_delays_no_event_and_names_pods_later() {
    let node = Node::new("kubehang").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.set_hanging(true);
    both_pods(&api);
    let agent = agent(&node, &api);
    let _pods = devices(&node, &[WEB, DNS]);
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises(ADDRESS))
        .unwrap();
    assert!(!all_named(&raised.event.conflict().unwrap()));
    api.set_hanging(false);
    wait(&agent, all_named);
}

#[test]
fn slow_stream_is_read_to_its_end() {
    let node = Node::new("kubeslow").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.set_slow_watches();
    let agent = agent(&node, &api);
    let _pods = devices(&node, &[WEB, DNS]);
    both_pods(&api);
    wait(&agent, all_named);
}

#[test]
fn kube_off_or_auto_outside_a_cluster_contacts_nothing() {
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
fn server_absent_at_startup_is_used_when_it_appears() {
    let node = Node::new("kubeabsent").unwrap();
    let api = KubeApi::start_refusing(&node).unwrap();
    both_pods(&api);
    let agent = agent(&node, &api);
    agent.wait_log(DEADLINE, "refused the connection").unwrap();
    let _pods = devices(&node, &[WEB, DNS]);
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises(ADDRESS))
        .unwrap();
    assert!(!all_named(&raised.event.conflict().unwrap()));
    api.listen(&node).unwrap();
    wait(&agent, all_named);
    api.wait_events(DEADLINE, |events| {
        of_reason(events, "IPConflict").len() >= 2
    })
    .unwrap();
}

#[test]
fn replaced_token_is_read_again() {
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
    // Both the watch and the events use the new token.
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
fn endless_answer_is_cut_off() {
    let node = Node::new("kubeendless").unwrap();
    let api = KubeApi::start(&node).unwrap();
    api.set_endless_lists(true);
    both_pods(&api);
    let agent = agent(&node, &api);
    agent
        .wait_log(DEADLINE, "sent a response of more than")
        .unwrap();
    // 32 MiB per attempt plus socket buffers; attempts back off.
    let taken = api.endless_bytes_sent();
    assert!(taken < 200 << 20, "{taken}");
    let _pods = devices(&node, &[WEB, DNS]);
    agent.wait_raised(ADDRESS).unwrap();
    api.set_endless_lists(false);
    wait(&agent, all_named);
}
