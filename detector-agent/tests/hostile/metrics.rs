//! What the tests read from the agent's endpoints.

use anyhow::{Context as _, ensure};
use detector_testkit::{DEADLINE, Node, Pod, PodSpec, http::TestClient, until};
use serde_json::Value;

/// The value of a series in the agent's metrics; 0 if it has none.
pub(crate) fn metric(node: &Node, series: &str) -> anyhow::Result<u64> {
    let client = TestClient::of_agent(node);
    Ok(client.metric(series)?.unwrap_or(0))
}

/// The agent's claims of an address. The node's own is not among them.
pub(crate) fn claims(node: &Node, address: &str) -> anyhow::Result<Vec<Value>> {
    let path = format!("/api/v1/claims?address={address}");
    let answer = TestClient::of_agent(node).get(&path)?.json()?;
    let claims = answer["claims"].as_array().context("no list of claims")?;
    Ok(claims.clone())
}

/// The devices with a claim of an address, in the order of their names.
pub(crate) fn claiming_devices(node: &Node, address: &str) -> anyhow::Result<Vec<String>> {
    let claims = claims(node, address)?;
    let device = |claim: &Value| claim["device"].as_str().unwrap_or_default().to_owned();
    let mut devices: Vec<_> = claims.iter().map(device).collect();
    devices.sort();
    Ok(devices)
}

/// Waits until the agent has this many claims of an address.
pub(crate) fn wait_claims(node: &Node, address: &str, count: usize) {
    until(DEADLINE, "the claims of the address", || {
        let claiming = claiming_devices(node, address)?;
        ensure!(claiming.len() == count, "{claiming:?}");
        Ok(())
    })
    .unwrap();
}

/// Waits until the kernel has the addresses that the agent has claims of. The node has `devices` so far, and one more
/// afterwards: the thread that writes the table of claimed addresses attaches to that one next.
pub(crate) fn wait_table(node: &Node, devices: u64) -> Pod {
    let last = PodSpec::new(format!("vethlast{devices}"));
    let last = node.add_pod(&last).unwrap();
    until(DEADLINE, "the last device to be attached", || {
        let attached = metric(node, "ipconflict_devices_attached")?;
        ensure!(attached == devices + 1, "{attached}");
        Ok(())
    })
    .unwrap();
    last
}
