//! Real `host-local` allocations against the live addresses of pods: drift is raised before an address
//! is handed out twice, and ordinary churn is no drift.

use std::{
    collections::BTreeSet,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use detector_testkit::{
    Agent, AgentCommand, Barrier, Cni, CniPod, DEADLINE, Node, ReceivedEvent,
    event::{ANOMALY_RAISED, ANOMALY_RESOLVED, Anomaly},
};
use tempfile::TempDir;

use crate::AGENT;

/// `run` that reads the CNI configuration in this directory.
fn command(conf: &TempDir) -> AgentCommand {
    AgentCommand::run(AGENT)
        .arg("--ipam=auto")
        .arg("--cni-conf-dir")
        .arg(conf.path())
}

fn configured(cni: &Cni) -> TempDir {
    let conf = tempfile::tempdir().unwrap();
    cni.write_config(conf.path()).unwrap();
    conf
}

/// Runs `step` for each item on several threads, as kubelet handles several pods concurrently.
fn run_concurrently<T: Send, R: Send>(items: Vec<T>, step: impl Fn(T) -> R + Sync) -> Vec<R> {
    let items = Mutex::new(items.into_iter());
    let next = || items.lock().unwrap().next();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    while let Some(item) = next() {
                        done.push(step(item));
                    }
                    done
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|w| w.join().unwrap())
            .collect()
    })
}

fn add(cni: &Cni, node: &Node, names: impl Iterator<Item = String>) -> Vec<CniPod> {
    run_concurrently(names.collect(), |name| cni.add_pod(node, &name).unwrap())
}

fn remove(cni: &Cni, node: &Node, pods: Vec<CniPod>) {
    run_concurrently(pods, |pod| cni.remove_pod(node, pod).unwrap());
}

fn of_kind<'e>(
    events: &'e [ReceivedEvent],
    event: &str,
    kind: &str,
) -> Vec<(&'e ReceivedEvent, Anomaly)> {
    events
        .iter()
        .filter(|received| received.event.kind == event)
        .filter_map(|received| Some((received, received.event.anomaly()?)))
        .filter(|(_, anomaly)| anomaly.kind == kind)
        .collect()
}

fn wait_for(agent: &Agent, event: &str, kind: &str, count: usize) -> Vec<ReceivedEvent> {
    agent
        .wait_until(DEADLINE, |events| {
            of_kind(events, event, kind).len() >= count
        })
        .unwrap()
}

#[test]
fn wiped_state_raises_every_live_address_until_recreated() {
    const PODS: usize = 100;
    let node = Node::new("drift").unwrap();
    let cni = Cni::ptp("kindnet", "10.244.2.0/24").unwrap();
    let conf = configured(&cni);
    let barrier = Barrier::prepare(&node).unwrap();
    let pods = add(&cni, &node, (0..PODS).map(|n| format!("old-{n}")));
    let agent = Agent::start_ready(&node, &command(&conf)).unwrap();
    let before = barrier.pass(&node, &agent).unwrap();
    assert!(before.is_empty(), "nothing is wrong yet: {before:#?}");

    let wiped = Instant::now();
    cni.wipe().unwrap();
    let events = wait_for(&agent, ANOMALY_RAISED, "ipam_drift", PODS);
    let raised = of_kind(&events, ANOMALY_RAISED, "ipam_drift");
    let last = raised
        .iter()
        .map(|(received, _)| received.at)
        .max()
        .unwrap();
    let took = last - wiped;
    println!("{PODS} anomalies {took:?} after the wipe began");
    assert!(took < Duration::from_secs(5), "{took:?}");

    let directory = cni.data_dir().join("kindnet").display().to_string();
    for pod in &pods {
        let address = pod.address().unwrap().to_string();
        let of_it: Vec<_> = raised
            .iter()
            .filter(|(_, a)| a.address == address)
            .collect();
        let [(_, anomaly)] = of_it[..] else {
            panic!("{address}: {of_it:#?}");
        };
        assert_eq!(anomaly.device.as_deref(), Some(pod.device().unwrap()));
        assert_eq!(anomaly.source.as_deref(), Some(directory.as_str()));
        assert_eq!(anomaly.ipam.as_deref(), Some("host-local"));
        assert!(anomaly.detail.contains(&directory), "{}", anomaly.detail);
    }

    remove(&cni, &node, pods);
    let new = add(&cni, &node, (0..PODS).map(|n| format!("new-{n}")));
    let events = wait_for(&agent, ANOMALY_RESOLVED, "ipam_drift", PODS);
    let ids = |event| -> BTreeSet<String> {
        of_kind(&events, event, "ipam_drift")
            .into_iter()
            .map(|(_, a)| a.anomaly_id)
            .collect()
    };
    assert_eq!(ids(ANOMALY_RAISED), ids(ANOMALY_RESOLVED));
    let after = barrier.pass(&node, &agent).unwrap();
    assert_eq!(of_kind(&after, ANOMALY_RAISED, "ipam_drift").len(), PODS);
    remove(&cni, &node, new);
}

#[test]
fn churn_of_five_hundred_pods_is_no_drift() {
    const PODS: usize = 500;
    let node = Node::new("ipamchurn").unwrap();
    let cni = Cni::ptp("kindnet", "10.244.0.0/22").unwrap();
    let conf = configured(&cni);
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &command(&conf)).unwrap();
    let began = Instant::now();
    run_concurrently((0..PODS).collect(), |n| {
        let pod = cni.add_pod(&node, &format!("p-{n}")).unwrap();
        cni.remove_pod(&node, pod).unwrap();
    });
    println!("{PODS} pods came and went in {:?}", began.elapsed());
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}
