//! What the tests read from the agent's endpoints.

use anyhow::{Context as _, ensure};
use detector_testkit::{DEADLINE, Node, http::TestClient, until};

/// The value of a series in the agent's metrics; 0 if it has none.
pub(crate) fn metric(node: &Node, series: &str) -> anyhow::Result<u64> {
    let metrics = TestClient::new(node, "http://127.0.0.1:9842")
        .get("/metrics")?
        .body;
    let mut lines = metrics.lines().filter_map(|line| line.strip_prefix(series));
    Ok(lines.next().map_or(Ok(0), |value| value.trim().parse())?)
}

/// How many claims of an address the agent has.
pub(crate) fn claims(node: &Node, address: &str) -> anyhow::Result<usize> {
    let path = format!("/api/v1/claims?address={address}");
    let answer = TestClient::new(node, "http://127.0.0.1:9842").get(&path)?;
    let claims = answer.json()?["claims"].as_array().map(Vec::len);
    claims.context("no list of claims")
}

/// Waits until the agent has this many claims of an address.
pub(crate) fn wait_claims(node: &Node, address: &str, count: usize) {
    until(DEADLINE, "the claims of the address", || {
        let claims = claims(node, address)?;
        ensure!(claims == count, "{claims}");
        Ok(())
    })
    .unwrap();
}
