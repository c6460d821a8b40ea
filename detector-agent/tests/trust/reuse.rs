//! Address reuse: ptp frees an address before it removes the veth, so the old and the new pod may both
//! have it for a moment.

use std::{collections::BTreeMap, thread};

use detector_testkit::{
    Agent, AgentCommand, Barrier, Cni, DEADLINE, Node, conflicts_from_events,
    event::{RAISED, RESOLVED},
};

use crate::AGENT;

const CYCLES: usize = 500;

#[test]
fn five_hundred_reuses_by_the_ptp_plugin_leave_no_conflict() {
    let node = Node::new("reuse").unwrap();
    // Room for the gateway and one pod: the next pod gets the address of the previous one.
    let cni = Cni::ptp("kindnet", "10.244.2.0/30").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let mut old = cni.add_pod(&node, "p0").unwrap();
    for number in 1..=CYCLES {
        assert_eq!(old.address().unwrap().to_string(), "10.244.2.2");
        // The next pod waits for the address while the old one is being removed: the shortest possible
        // interval.
        old = thread::scope(|scope| {
            let leaving = scope.spawn(|| cni.remove_pod(&node, old));
            let next = cni.add_pod_when_free(&node, &format!("p{number}"), DEADLINE);
            leaving
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                .unwrap();
            next.unwrap()
        });
    }
    let events = barrier.pass(&node, &agent).unwrap();
    let mut life = BTreeMap::<String, Vec<&str>>::new();
    for received in &events {
        let conflict = received.event.conflict().unwrap();
        assert_eq!(conflict.address, "10.244.2.2", "{received:#?}");
        // By the kernel state both had the address: the event is correct.
        assert_eq!(conflict.claimants.len(), 2, "{received:#?}");
        let kind = received.event.kind.as_str();
        life.entry(conflict.conflict_id).or_default().push(kind);
    }
    println!(
        "{CYCLES} reuses, in {} of which both pods held the address for a moment",
        life.len()
    );
    for (id, kinds) in &life {
        assert_eq!(kinds.first(), Some(&RAISED), "{id}: {kinds:?}");
        assert_eq!(kinds.last(), Some(&RESOLVED), "{id}: {kinds:?}");
    }
    assert!(conflicts_from_events(&events).unwrap().is_empty());
    cni.remove_pod(&node, old).unwrap();
}
