//! The next step of a conflict is carried out on the layout that it is for, with the real plugins; afterwards nothing is reported.

use std::collections::BTreeMap;

use detector_testkit::{
    Agent, AgentCommand, Barrier, Cni, DEADLINE, Node, ReceivedEvent,
    event::{ANOMALY_RESOLVED, Conflict, RESOLVED},
};

use crate::AGENT;

/// What the events leave open, by id.
fn open(events: &[ReceivedEvent]) -> BTreeMap<String, String> {
    let mut open = BTreeMap::new();
    for received in events {
        let data = &received.event.data;
        let id = data["conflict_id"].as_str().or(data["anomaly_id"].as_str());
        let id = id.unwrap().to_owned();
        if [RESOLVED, ANOMALY_RESOLVED].contains(&received.event.kind.as_str()) {
            open.remove(&id);
        } else {
            open.insert(id, data.to_string());
        }
    }
    open
}

/// The new pod gets the address of the old one, because the allocations were wiped; both are recreated as the next step says.
fn recreate_both_after_a_wipe(cni: &Cni, prefix: &str) {
    let node = Node::new(prefix).unwrap();
    let (conf, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    cni.write_config(conf.path()).unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--ipam=auto")
        .arg("--cni-conf-dir")
        .arg(conf.path())
        .arg("--cni-cache-dir")
        .arg(cache.path());
    let add = |name: &str| {
        let pod = cni.add_pod(&node, name).unwrap();
        cni.cache_result(cache.path(), &pod).unwrap();
        pod
    };
    let old = add("old");
    let agent = Agent::start_ready(&node, &command).unwrap();
    cni.wipe().unwrap();
    let new = add("new");
    assert_eq!(old.address().unwrap(), new.address().unwrap());

    let names_new_as_owner = |conflict: &Conflict| {
        let device = new.device().unwrap();
        let newest = conflict.claimant(device);
        newest.is_some_and(|c| c.newest && c.allocated == Some(true))
    };
    let event = agent.wait_event(DEADLINE, |event| {
        event.conflict().is_some_and(|c| names_new_as_owner(&c))
    });
    let conflict = event.unwrap().event.conflict().unwrap();
    let rightful: Vec<_> = conflict.claimants.iter().map(|c| c.rightful).collect();
    assert_eq!(rightful, [Some(true); 2], "{conflict:?}");
    let step = conflict.guidance.unwrap().next_step;
    let (first, then) = step.split_once("and then recreate").unwrap();
    assert!(first.contains("kubectl cordon"), "{step}");
    assert!(first.contains("delete default/new ("), "{step}");
    assert!(then.contains("default/old ("), "{step}");

    cni.remove_pod(&node, new).unwrap();
    cni.remove_pod(&node, old).unwrap();
    let recreated = add("old-again");
    let address = recreated.address().unwrap();
    assert_eq!(cni.allocated_addresses().unwrap(), [address]);
    let route = node.ip(&format!("-4 route get {address}")).unwrap();
    let way = [recreated.device().unwrap(), "dev cni0"];
    assert!(way.iter().any(|device| route.contains(device)), "{route}");
    agent
        .wait_until(DEADLINE, |events| open(events).is_empty())
        .unwrap();
    barrier.pass(&node, &agent).unwrap();
    let ours: Vec<_> = agent
        .events()
        .into_iter()
        .filter(|received| !received.event.subject.starts_with("198.18."))
        .collect();
    assert!(open(&ours).is_empty(), "{:#?}", open(&ours));
}

#[test]
fn next_step_after_a_wipe_leaves_nothing_with_ptp() {
    let cni = Cni::ptp("kindnet", "10.244.2.0/24").unwrap();
    recreate_both_after_a_wipe(&cni, "adviceptp");
}

#[test]
fn next_step_after_a_wipe_leaves_nothing_with_bridge() {
    let cni = Cni::bridge("cbr0", "cni0", "10.244.3.0/24").unwrap();
    recreate_both_after_a_wipe(&cni, "advicebr");
}
