//! Ordinary pods, pods that move, and a pod that claims what is not its own.

use std::{
    env,
    time::{Duration, Instant},
};

use anyhow::ensure;
use detector_testkit::cluster::PAUSE_IMAGE;

use super::{
    NONE, alerts::Alerts, api, claims, delete_pods, give_next, manifest, metric, names, node_name,
    object, run_pod_with, two_nodes, wait_holder, wait_longer, wait_registered,
};
use crate::installation::Installation;

/// The addresses of the steps.
const MOVED: &str = "10.244.1.50";
const HELD: [&str; 3] = ["10.244.1.60", "10.244.1.61", "10.244.1.62"];
const HOSTILE: &str = "10.244.1.70";
const MARKER: &str = "10.244.1.90";
/// What the hostile pod assigns to itself in addition: addresses that no other pod has.
const FOREIGN: usize = 1000;
/// How many of them its agent may look up.
const MAX_LOOKUPS: f64 = 64.0;
/// How long ordinary pods are replaced, and how many each node has at a time.
const CHURN: Duration = Duration::from_secs(30);
const PODS: usize = 6;
/// Sets how many pods there are at least.
const LEAST_PODS: &str = "CHURN_PODS";
/// In this round, the agents are replaced as well.
const ROLLOUT: usize = 2;

#[test]
fn pods_that_come_go_and_move_raise_nothing_and_a_hostile_one_only_its_own() {
    let it = two_nodes();
    let alerts = Alerts::start(&it.cluster);
    // A busy machine may take long to remove a pod, which keeps its address until then.
    alerts.install(&it, &["fleet.handover=90s"]);
    it.note("installed");
    ordinary_pods_leave_nothing(&it);
    pod_of_a_stateful_set_moves_with_its_address(&it);
    alerts.assert_raised(&it, &[]);
    hostile_pod_takes_no_claim(&it, &alerts);
    alerts.assert_raised(&it, &[HELD.as_slice(), &[MARKER]].concat());
}

/// The pods of a round start while those of the one before end. Both nodes go through one range, at a distance, so that each
/// gives out addresses that the other one had before.
fn ordinary_pods_leave_nothing(it: &Installation) {
    for node in [0, 1] {
        give_next(it, node, &format!("10.244.1.{}", 100 + 50 * node));
    }
    let least: usize = env::var(LEAST_PODS).map_or(0, |pods| pods.parse().unwrap());
    let began = Instant::now();
    let (mut round, mut before) = (0, Vec::new());
    while round <= ROLLOUT || began.elapsed() < CHURN || 2 * PODS * round < least {
        let (mut manifests, mut pods) = (String::new(), Vec::new());
        for (node, number) in (0..PODS).flat_map(|number| [(0, number), (1, number)]) {
            let pod = format!("pod-{round}-{node}-{number}");
            manifests += &manifest(&pod, node_name(it, node));
            pods.push(pod);
        }
        it.cluster.apply(&manifests).unwrap();
        if round > 0 {
            delete_pods(it, &before.join(" "));
        }
        if round == ROLLOUT {
            it.restart_agents();
        }
        let ready = "wait --for=condition=Ready --timeout=120s pod";
        it.kubectl(&format!("{ready} {}", pods.join(" ")));
        wait_registered(it, &[0, 1], &pods);
        (round, before) = (round + 1, pods);
    }
    delete_pods(it, &before.join(" "));
    wait_registered(it, &[0, 1], NONE);
    let pods = 2 * PODS * round;
    it.note(format!(
        "{pods} pods came, had a claim and went in {:?}",
        began.elapsed()
    ));
}

/// First as the controller does it, then while both nodes have the pod: its node is cut off, and it is deleted by force.
fn pod_of_a_stateful_set_moves_with_its_address(it: &Installation) {
    let run_on = |node: usize| {
        give_next(it, node, MOVED);
        it.cluster
            .apply(&stateful_set("db", node_name(it, node)))
            .unwrap();
    };
    run_on(0);
    wait_holder(it, MOVED, 0, "db-0");
    run_on(1);
    wait_holder(it, MOVED, 1, "db-0");
    it.note("a pod of a StatefulSet has moved");
    it.cluster.cut_off(1).unwrap();
    run_on(0);
    it.kubectl("delete pod db-0 --force --grace-period=0");
    wait_longer(it, "the overlap", || object(it, "ipconflict", MOVED));
    it.cluster.reconnect(1).unwrap();
    wait_holder(it, MOVED, 0, "db-0");
    wait_registered(it, &[0, 1], &["db-0"]);
    it.note("it has moved from a node that was cut off");
}

fn stateful_set(name: &str, node: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: {name}}}
spec:
  serviceName: {name}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      nodeName: {node}
      containers: [{{name: {name}, image: {PAUSE_IMAGE}, imagePullPolicy: Never}}]
"
    )
}

fn hostile_pod_takes_no_claim(it: &Installation, alerts: &Alerts) {
    for (number, address) in HELD.iter().enumerate() {
        run_pod_with(it, &format!("held-{number}"), 0, address);
    }
    run_pod_with(it, "hostile", 1, HOSTILE);
    let pods = ["db-0", "held-0", "held-1", "held-2", "hostile"];
    wait_registered(it, &[0, 1], &pods);
    let before = claims(it).unwrap();
    let series = r#"ipconflict_fleet_requests_total{verb="get",outcome="not_found"}"#;
    // There is no series before the first.
    let lookups_before = metric(it, 1, series).unwrap_or_default();
    let node = &it.cluster.nodes()[1];
    let add = |address: &str| format!("address add {address}/32 dev eth0");
    node.pod_ip_batch(HOSTILE, HELD.map(add)).unwrap();
    for (number, address) in HELD.iter().enumerate() {
        let raised = alerts.wait_raised(it, address);
        let claimants = raised.data["claimants"].as_array().unwrap();
        let pods: Vec<_> = claimants.iter().map(|c| c["pod"]["name"].clone()).collect();
        assert_eq!(pods, [format!("held-{number}").as_str(), "hostile"]);
    }
    let foreign = (0..FOREIGN).map(|n| add(&format!("10.77.{}.{}", n / 250, n % 250 + 1)));
    node.pod_ip_batch(HOSTILE, foreign).unwrap();
    wait_longer(it, "the agent to know all addresses", || {
        let known = metric(it, 1, "ipconflict_claims")?;
        ensure!(known >= (FOREIGN + HELD.len() + 1) as f64, "{known}");
        Ok(())
    });
    // The other pods of the node are compared as before.
    alerts.pass_marker(it, MARKER);
    let lookups = metric(it, 1, series).unwrap() - lookups_before;
    assert!((1.0..=MAX_LOOKUPS).contains(&lookups), "{lookups}");
    assert_eq!(claims(it).unwrap(), before);
    assert_eq!(names(it, "ipconflicts").unwrap().len(), HELD.len());
    let conflict = object(it, "ipconflict", HELD[0]).unwrap();
    assert_eq!(conflict["spec"]["claimants"][0]["pod"], "held-0");
    let open = api(it, 1).get("/api/v1/conflicts?state=active").unwrap();
    let open = open.json().unwrap()["conflicts"].as_array().unwrap().len();
    assert_eq!(open, HELD.len());
    it.note(format!(
        "of {FOREIGN} foreign addresses, {lookups} were looked up"
    ));
}
