//! Pod lookup with a real containerd (CRI plugin, runc) and the real `ptp` and `host-local`, whose state
//! is wiped while pods run.

use std::collections::{BTreeMap, BTreeSet};

use detector_agent::pods::{CniCache, Cri, CriSetting, PodSource};
use detector_testkit::{
    Agent, AgentCommand, Containerd, DEADLINE, Node, RUN_ARGS, ReceivedEvent, containerd::Sandbox,
    event::Conflict,
};

use crate::AGENT;

const SUBNET: &str = "10.244.2.0/24";

/// `run` with containerd's own socket and this CNI cache.
fn agent(containerd: &Containerd, cache: &str) -> AgentCommand {
    containerd
        .agent_command(AGENT, RUN_ARGS)
        .arg("--cni-cache-dir")
        .arg(cache)
        .arg("--cri-endpoint")
        .arg(containerd.socket())
}

/// The latest conflict of each address.
fn conflicts(events: &[ReceivedEvent]) -> BTreeMap<String, Conflict> {
    events
        .iter()
        .filter_map(|received| received.event.conflict())
        .map(|conflict| (conflict.address.clone(), conflict))
        .collect()
}

fn all_named(events: &[ReceivedEvent], addresses: usize, via: &str) -> bool {
    let conflicts = conflicts(events);
    conflicts.len() == addresses
        && conflicts
            .values()
            .flat_map(|conflict| &conflict.claimants)
            .all(|claimant| claimant.pod.as_ref().is_some_and(|pod| pod["via"] == via))
}

fn wipe_and_run_again(containerd: &mut Containerd) -> Vec<Sandbox> {
    let mut pods = containerd
        .run_pods((1..=5).map(|n| format!("old-{n}")))
        .unwrap();
    containerd.wipe_ipam().unwrap();
    pods.extend(
        containerd
            .run_pods((1..=5).map(|n| format!("new-{n}")))
            .unwrap(),
    );
    pods
}

/// The pods of these conflicts: namespace, name, uid and sandbox id.
fn named(conflicts: &BTreeMap<String, Conflict>) -> BTreeSet<[String; 4]> {
    conflicts
        .values()
        .flat_map(|conflict| &conflict.claimants)
        .map(|claimant| {
            let pod = claimant.pod.as_ref().unwrap();
            ["namespace", "name", "uid", "container_id"]
                .map(|field| pod[field].as_str().unwrap_or_default().to_owned())
        })
        .collect()
}

fn expected(pods: &[Sandbox]) -> BTreeSet<[String; 4]> {
    pods.iter()
        .cloned()
        .map(|pod| [pod.namespace, pod.name, pod.uid, pod.id])
        .collect()
}

#[test]
fn all_ten_claimants_are_named_with_namespace_name_and_uid() {
    let node = Node::new("containerd").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let agent = Agent::start_ready(&node, &agent(&containerd, "off")).unwrap();
    let pods = wipe_and_run_again(&mut containerd);
    let events = agent
        .wait_until(DEADLINE, |events| all_named(events, 5, "cri"))
        .unwrap();
    let conflicts = conflicts(&events);
    assert_eq!(named(&conflicts), expected(&pods));
}

/// By sandbox, the addresses that a source knows as those of the pod's primary interface.
fn primary_addresses(source: &mut impl PodSource) -> BTreeMap<String, Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let snapshot = runtime.block_on(async {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        source.snapshot(deadline).await.unwrap()
    });
    let records = snapshot.records.into_iter();
    records
        .filter(|record| !record.addresses.is_empty())
        .map(|record| {
            let addresses = record.addresses.iter().map(ToString::to_string);
            (record.pod.container_id.unwrap(), addresses.collect())
        })
        .collect()
}

#[test]
fn runtime_and_cache_know_the_primary_addresses() {
    let node = Node::new("containerdprimary").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let pods = containerd.run_pods(["web-1", "web-2"]).unwrap();
    let expected: BTreeMap<_, _> = pods
        .iter()
        .map(|pod| {
            let info = containerd.info(pod).unwrap();
            let address = &info["cniResult"]["Interfaces"]["eth0"]["IPConfigs"][0]["IP"];
            (pod.id.clone(), vec![address.as_str().unwrap().to_owned()])
        })
        .collect();
    assert_eq!(expected.len(), 2);
    let mut cri = Cri::new(&CriSetting::At(containerd.socket())).unwrap();
    assert_eq!(primary_addresses(&mut cri), expected);
    let cache = tempfile::tempdir().unwrap();
    for (name, content) in containerd.cni_cache().unwrap() {
        std::fs::write(cache.path().join(name), content).unwrap();
    }
    let mut cache = CniCache::new(cache.path().to_owned());
    assert_eq!(primary_addresses(&mut cache), expected);
}

#[test]
fn check_names_the_pods_of_a_running_node() {
    let node = Node::new("containerdcheck").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let pods = wipe_and_run_again(&mut containerd);
    let outcome = containerd
        .agent_command(AGENT, ["check", "--format", "json", "--cri-endpoint"])
        .arg(containerd.socket())
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert_eq!(outcome.code().unwrap(), 1, "{outcome:?}");
    let document: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let found: Vec<Conflict> = serde_json::from_value(document["conflicts"].clone()).unwrap();
    let found = found.into_iter().map(|c| (c.address.clone(), c)).collect();
    assert_eq!(named(&found), expected(&pods));
}

#[test]
fn cni_cache_names_all_pods_without_the_runtime() {
    let node = Node::new("containerdcache").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let command = containerd
        .agent_command(AGENT, RUN_ARGS)
        .arg("--cri-endpoint=off");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let pods = wipe_and_run_again(&mut containerd);
    let events = agent
        .wait_until(DEADLINE, |events| all_named(events, 5, "cni-cache"))
        .unwrap();
    assert_eq!(named(&conflicts(&events)), expected(&pods));
}

/// The runtime is stopped before the agent starts and started again after the conflict.
#[test]
fn pods_are_named_when_the_runtime_is_back() {
    let node = Node::new("containerdlate").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let pods = wipe_and_run_again(&mut containerd);
    containerd.stop_daemon().unwrap();
    let agent = Agent::start_ready(&node, &agent(&containerd, "off")).unwrap();
    let raised = agent
        .wait_until(DEADLINE, |events| conflicts(events).len() == 5)
        .unwrap();
    for claimant in conflicts(&raised)
        .into_values()
        .flat_map(|conflict| conflict.claimants)
    {
        assert!(claimant.pod_unknown_because.is_some(), "{claimant:?}");
    }
    agent.wait_log(DEADLINE, "does not exist").unwrap();
    containerd.start_daemon().unwrap();
    let events = agent
        .wait_until(DEADLINE, |events| all_named(events, 5, "cri"))
        .unwrap();
    assert_eq!(named(&conflicts(&events)), expected(&pods));
}

/// The agent starts after both conflicts began, so only the runtime knows which pod came later.
#[test]
fn newest_claimant_is_known_by_its_sandbox() {
    let node = Node::new("containerdnewest").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let _pods = wipe_and_run_again(&mut containerd);
    let agent = Agent::start_ready(&node, &agent(&containerd, "off")).unwrap();
    let is_known = |conflict: &Conflict| conflict.claimants.iter().any(|c| c.newest);
    let events = agent
        .wait_until(DEADLINE, |events| {
            conflicts(events).values().filter(|c| is_known(c)).count() == 5
        })
        .unwrap();
    for conflict in conflicts(&events).values() {
        for claimant in &conflict.claimants {
            let name = claimant.pod.as_ref().unwrap()["name"].as_str().unwrap();
            let is_new = name.starts_with("new-");
            let expected = (is_new, is_new.then_some("sandbox"));
            let newest = (claimant.newest, claimant.newest_by.as_deref());
            assert_eq!(newest, expected, "{conflict:?}");
        }
    }
}

/// The runtime is stopped while the agent runs: known pods stay known, and resolved events name them.
#[test]
fn stopped_runtime_does_not_remove_known_pods() {
    let node = Node::new("containerdstop").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let agent = Agent::start_ready(&node, &agent(&containerd, "off")).unwrap();
    let old = containerd.run_pods(["old"]).unwrap();
    containerd.wipe_ipam().unwrap();
    let new = containerd.run_pods(["new"]).unwrap();
    let both = expected(&[old, new].concat());
    let events = agent
        .wait_until(DEADLINE, |events| all_named(events, 1, "cri"))
        .unwrap();
    let named_conflicts = conflicts(&events);
    assert_eq!(named(&named_conflicts), both);
    containerd.stop_daemon().unwrap();
    let (address, conflict) = named_conflicts.first_key_value().unwrap();
    let device = conflict.claimants.last().unwrap().device.clone();
    node.ip(&format!("link delete {device}")).unwrap();
    let resolved = agent
        .wait_event(DEADLINE, |event| event.resolves(address))
        .unwrap();
    let resolved = [(address.clone(), resolved.event.conflict().unwrap())].into();
    assert_eq!(named(&resolved), both);
    // A conflict of a device that appears while the runtime is stopped is raised as well.
    let before = agent.event_count();
    let spec = detector_testkit::PodSpec::new("vethlate").address(format!("{address}/24"));
    let _late = node.add_pods(&[spec]).unwrap();
    let raised = agent
        .wait_event_after(before, DEADLINE, |event| event.raises(address))
        .unwrap();
    let conflict = raised.event.conflict().unwrap();
    assert!(
        conflict
            .claimant("vethlate")
            .unwrap()
            .pod_unknown_because
            .is_some(),
        "{conflict:?}"
    );
}
