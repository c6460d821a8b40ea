//! Conflicts of one address in two networks are distinguishable wherever conflicts are shown.

use std::collections::BTreeSet;

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, PodSpec, event::RESOLVED, http::TestClient, until,
};
use serde_json::Value;

use crate::AGENT;

/// Link-local, so unique only on its bridge.
const ADDRESS: &str = "169.254.7.7";

/// The values of `network` in a list of the API.
fn networks(client: &TestClient<'_>, path: &str, list: &str) -> anyhow::Result<Vec<String>> {
    let answer = client.get(path)?.json()?;
    let items = answer[list].as_array().into_iter().flatten();
    let network = |item: &Value| item["network"].as_str().map(str::to_owned);
    Ok(items
        .filter_map(network)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect())
}

#[test]
fn conflicts_of_one_address_on_two_bridges_are_told_apart() {
    let node = Node::new("networks").unwrap();
    let command = AgentCommand::run(AGENT).arg("--export-claims");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let mut pods = Vec::new();
    for (bridge, devices) in [("br0", ["vetha", "vethb"]), ("br1", ["vethc", "vethd"])] {
        node.add_bridge(bridge, &[]).unwrap();
        for device in devices {
            let spec = PodSpec::new(device).master(bridge);
            pods.push(
                node.add_pod(&spec.address(format!("{ADDRESS}/16")))
                    .unwrap(),
            );
        }
    }
    let both = ["bridge:br0", "bridge:br1"];
    for network in both {
        agent
            .wait_event(DEADLINE, |event| {
                event.raises(ADDRESS) && event.data["network"] == network
            })
            .unwrap();
        agent
            .wait_log(DEADLINE, &format!("IP conflict on {ADDRESS} ({network}): "))
            .unwrap();
    }
    let client = TestClient::of_agent(&node);
    assert_eq!(
        networks(&client, "/api/v1/conflicts", "conflicts").unwrap(),
        both
    );
    let claims = format!("/api/v1/claims?address={ADDRESS}");
    assert_eq!(networks(&client, &claims, "claims").unwrap(), both);
    let metrics = client.get("/metrics").unwrap().body;
    for network in both {
        let labels = format!(r#"{{address="{ADDRESS}",network="{network}",vlan="","#);
        let count = |name| metrics.matches(&format!("{name}{labels}")).count();
        let counts = (
            count("ipconflict_conflict_info"),
            count("ipconflict_claim_info"),
        );
        assert_eq!(counts, (2, 1), "{metrics}");
    }

    pods.pop().unwrap().delete().unwrap();
    let resolved = agent
        .wait_event(DEADLINE, |event| event.kind == RESOLVED)
        .unwrap();
    assert_eq!(resolved.event.data["network"], both[1]);
    until(DEADLINE, "the conflict on the other bridge alone", || {
        let left = networks(&client, "/api/v1/conflicts", "conflicts")?;
        ensure!(left == [both[0]], "{left:?}");
        let metrics = client.get("/metrics")?.body;
        let count = |network| {
            let series =
                format!(r#"ipconflict_conflict_info{{address="{ADDRESS}",network="{network}""#);
            metrics.matches(&series).count()
        };
        ensure!(both.map(count) == [2, 0], "{metrics}");
        Ok(())
    })
    .unwrap();
}
