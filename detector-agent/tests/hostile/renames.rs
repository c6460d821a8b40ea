//! A device that is renamed stays the same one, as the plugins that move a device first and name it
//! afterwards need.

use detector_testkit::{Agent, AgentCommand, DEADLINE, Event, Node, PodSpec, http::TestClient};

use crate::AGENT;

const ADDRESS: &str = "10.9.7.1";

#[test]
fn renamed_device_keeps_its_conflict_and_causes_no_resync() {
    let node = Node::new("rename").unwrap();
    let _pods = node
        .add_pods(
            &["vetha", "vethb"].map(|device| PodSpec::new(device).address(format!("{ADDRESS}/32"))),
        )
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let raised = agent.wait_raised(ADDRESS).unwrap();

    let mut name = "vetha".to_owned();
    for n in 1..=6 {
        let next = format!("c0ffee0{n}");
        node.ip_batch([
            // An old kernel renames no device that is up.
            format!("link set {name} down"),
            format!("link set {name} name {next}"),
            format!("link set {next} up"),
        ])
        .unwrap();
        name = next;
        let shown = |event: &Event| {
            let conflict = event.conflict();
            event.updates(ADDRESS)
                && conflict.is_some_and(|c| c.devices() == [name.as_str(), "vethb"])
        };
        let updated = agent.wait_event(DEADLINE, shown).unwrap();
        let conflict = updated.event.conflict().unwrap();
        assert_eq!(conflict.conflict_id, raised.conflict_id);
        let claimant = conflict.claimant(&name).unwrap();
        assert_eq!(claimant.evidence_kinds(), ["address"]);
    }

    let events = agent.events();
    assert!(events.iter().all(|e| !e.event.resolves(ADDRESS)));
    let client = TestClient::of_agent(&node);
    let metrics = client.get("/metrics").unwrap().body;
    let resyncs = metrics
        .lines()
        .filter(|line| line.starts_with("ipconflict_resyncs_total{"));
    let resyncs: Vec<_> = resyncs.collect();
    assert_eq!(
        resyncs,
        [r#"ipconflict_resyncs_total{reason="start"} 1"#],
        "no rename is a loss"
    );
}
