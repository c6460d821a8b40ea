//! Agents, nodes and servers that fail while one address is on two nodes.

use anyhow::{Context as _, ensure};
use detector_testkit::Event;
use serde_json::Value;

use super::{
    NONE, alerts::Alerts, api, claims, conflicts, delete_pods, fleet_conflict, give_next,
    kill_agent, names, node_name, object, run_pod_with, two_nodes, wait_holder, wait_longer,
    wait_registered, wait_restarted,
};
use crate::installation::Installation;

/// The addresses of the steps.
const KILLED: &str = "10.244.1.50";
const CUT_OFF: &str = "10.244.1.60";
const MARKER: &str = "10.244.1.90";

#[test]
fn one_alert_outlives_killed_agents_a_node_cut_off_and_a_crashed_api_server() {
    let mut it = two_nodes();
    let alerts = Alerts::start(&it.cluster);
    alerts.install(&it, &[]);
    it.note("installed");
    conflict_outlives_killed_agents(&it, &alerts);
    node_cut_off_is_named_and_confirms_afterwards(&it, &alerts);
    registry_follows_after_a_crash(&mut it);
    alerts.pass_marker(&it, MARKER);
    alerts.assert_raised(&it, &[KILLED, CUT_OFF, MARKER]);
    addresses_of_a_deleted_node_are_free(&it);
    alerts.assert_raised(&it, &[KILLED, CUT_OFF, MARKER]);
}

fn conflict_outlives_killed_agents(it: &Installation, alerts: &Alerts) {
    run_pod_with(it, "web", 0, KILLED);
    wait_holder(it, KILLED, 0, "web");
    // The holder's agent, before the conflict.
    let holder = kill_agent(it, 0);
    give_next(it, 1, KILLED);
    super::create_pod_on(it, "checkout", node_name(it, 1));
    // The contender's agent, before or after it has reported.
    wait_longer(it, "the conflict", || object(it, "ipconflict", KILLED));
    let contender = kill_agent(it, 1);
    let raised = alerts.wait_raised(it, KILLED);
    // The holder's agent has answered, and was not taken for a silent one.
    assert_eq!(raised.data["confidence"], "certain", "{raised:?}");
    wait_restarted(it, 0, holder);
    wait_restarted(it, 1, contender);
    is_shown_by_both(it, &raised);
    it.note("raised, and shown by both agents after a restart");
    // Kubelet lets the second restart of an agent wait, and the holder's pod goes meanwhile.
    let [holder, contender] = [0, 1].map(|node| kill_agent(it, node));
    delete_pods(it, "web");
    wait_restarted(it, 0, holder);
    wait_restarted(it, 1, contender);
    alerts.wait_resolved(it, id(&raised));
    wait_holder(it, KILLED, 1, "checkout");
    delete_pods(it, "checkout");
    wait_registered(it, &[0, 1], NONE);
    alerts.assert_raised(it, &[KILLED]);
    it.note("resolved after both agents were killed again");
}

fn id(event: &Event) -> &str {
    event.data["conflict_id"].as_str().unwrap()
}

/// Both agents show the conflict under the id of its alert.
fn is_shown_by_both(it: &Installation, raised: &Event) {
    for node in [0, 1] {
        wait_longer(it, "the conflict on each node", || {
            let shown = fleet_conflict(it, node)?;
            ensure!(shown["conflict_id"] == id(raised), "{shown}");
            ensure!(shown["raised_at"] == raised.data["raised_at"], "{shown}");
            Ok(())
        });
    }
}

fn node_cut_off_is_named_and_confirms_afterwards(it: &Installation, alerts: &Alerts) {
    run_pod_with(it, "shop", 0, CUT_OFF);
    run_pod_with(it, "moved", 0, "10.244.1.62");
    for (pod, address) in [("shop", CUT_OFF), ("moved", "10.244.1.62")] {
        wait_holder(it, address, 0, pod);
    }
    it.cluster.cut_off(0).unwrap();
    run_pod_with(it, "cart", 1, CUT_OFF);
    // Meanwhile, the other pod gets another address.
    it.cluster.nodes()[0].kill_sandbox("moved").unwrap();
    let raised = alerts.wait_raised(it, CUT_OFF);
    assert_eq!(raised.data["confidence"], "observed", "{raised:?}");
    let reason = raised.data["claimants"][0]["evidence"][0]["detail"].as_str();
    let expected = format!("the agent of node {} does not answer", node_name(it, 0));
    assert!(
        reason.is_some_and(|r| r.starts_with(&expected)),
        "{raised:?}"
    );
    it.note("the node that was cut off is named");
    it.cluster.reconnect(0).unwrap();
    let confirmed = alerts.wait(it, "the confirmation", |event| {
        event.updates(CUT_OFF) && event.data["confidence"] == "certain"
    });
    assert_eq!(id(&confirmed), id(&raised));
    is_shown_by_both(it, &raised);
    it.note("confirmed by the node that was cut off");
    it.restart_agents();
    is_shown_by_both(it, &raised);
    alerts.assert_raised(it, &[KILLED, CUT_OFF]);
    it.note("shown by the agents that replaced the others");
    delete_pods(it, "cart");
    alerts.wait_resolved(it, id(&raised));
    wait_holder(it, CUT_OFF, 0, "shop");
    wait_registered(it, &[0, 1], &["shop", "moved"]);
    delete_pods(it, "shop moved");
    alerts.assert_raised(it, &[KILLED, CUT_OFF]);
}

/// Pods come and go while the API server and etcd are away, for which kubelet replaces sandboxes by itself, and while etcd alone
/// is.
fn registry_follows_after_a_crash(it: &mut Installation) {
    let pod = |node: usize, number: usize| format!("churn-{node}-{number}");
    for node in [0, 1] {
        give_next(it, node, &format!("10.244.1.{}", 100 + 50 * node));
    }
    let list = |numbers: std::ops::Range<usize>| {
        let pods = numbers.flat_map(|number| [0, 1].map(|node| (node, number)));
        let pods =
            pods.map(|(node, number)| super::manifest(&pod(node, number), node_name(it, node)));
        pods.collect::<String>()
    };
    let wait_pods = |it: &Installation, numbers: std::ops::Range<usize>| {
        let pods = numbers.flat_map(|number| [pod(0, number), pod(1, number)]);
        wait_registered(it, &[0, 1], &pods.collect::<Vec<_>>());
    };
    let lists = [0..3, 3..5, 5..6].map(list);
    it.cluster.apply(&lists[0]).unwrap();
    wait_pods(it, 0..3);
    it.cluster.apply(&lists[1]).unwrap();
    delete_pods(it, "churn-0-0 churn-1-0");
    it.cluster.crash_api_server().unwrap();
    for node in [0, 1] {
        it.cluster.nodes()[node]
            .kill_sandbox(&pod(node, 1))
            .unwrap();
        wait_longer(it, "the agents to notice the crash", || {
            let ready = api(it, node).get("/readyz")?.json()?;
            let parts = ready["parts"].as_array().context("no parts")?;
            let is_away = |part: &Value| part["role"] == "fleet" && part["state"] == "failed";
            ensure!(parts.iter().any(is_away), "{ready}");
            Ok(())
        });
    }
    it.note("the agents have noticed the crash");
    it.cluster.start_api_server().unwrap();
    it.note("the API server is back");
    wait_pods(it, 1..5);
    it.note("registered what has changed during the crash");
    it.cluster.apply(&lists[2]).unwrap();
    delete_pods(it, "churn-0-1 churn-1-1");
    it.cluster.restart_etcd().unwrap();
    wait_pods(it, 2..6);
    it.note("registered what has changed while etcd was restarted");
}

/// The node itself does not know: it is cut off, and its pod keeps running.
fn addresses_of_a_deleted_node_are_free(it: &Installation) {
    let held = claims(it).unwrap();
    let mut routes = held.values().map(|claim| &claim.route);
    let (address, ..) = routes.find(|r| r.1 == node_name(it, 0)).unwrap();
    it.cluster.cut_off(0).unwrap();
    it.kubectl(&format!("delete node {}", node_name(it, 0)));
    run_pod_with(it, "successor", 1, address);
    wait_holder(it, address, 1, "successor");
    wait_longer(it, "the claims of the deleted node to be removed", || {
        let left = claims(it)?;
        ensure!(
            left.values().all(|c| c.route.1 == node_name(it, 1)),
            "{left:?}"
        );
        Ok(())
    });
    let pods = [
        "churn-1-2",
        "churn-1-3",
        "churn-1-4",
        "churn-1-5",
        "successor",
    ];
    wait_registered(it, &[1], &pods);
    let still_there = api(it, 0).get(&format!("/api/v1/claims?address={address}"));
    let still_there = still_there.unwrap().json().unwrap();
    assert_eq!(still_there["claims"].as_array().unwrap().len(), 1);
    assert!(conflicts(it, 1).unwrap().is_empty());
    assert!(names(it, "ipconflicts").unwrap().is_empty());
    it.note("another node has an address of the deleted one");
}
