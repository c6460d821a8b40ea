//! What the tests read from the agent's endpoints.

use anyhow::ensure;
use detector_testkit::{DEADLINE, Node, http::TestClient, until};

/// The value of a series in the agent's metrics; 0 if it has none.
pub(crate) fn metric(node: &Node, series: &str) -> anyhow::Result<u64> {
    let metrics = TestClient::new(node, "http://127.0.0.1:9842")
        .get("/metrics")?
        .body;
    let mut lines = metrics.lines().filter_map(|line| line.strip_prefix(series));
    Ok(lines.next().map_or(Ok(0), |value| value.trim().parse())?)
}

/// Waits until the agent has this many claims of an address.
pub(crate) fn wait_claims(node: &Node, address: &str, count: usize) {
    let client = TestClient::new(node, "http://127.0.0.1:9842");
    let path = format!("/api/v1/claims?address={address}");
    until(DEADLINE, "the claims of the address", || {
        let claims = client.get(&path)?.json()?;
        let claims = claims["claims"].as_array().map(Vec::len);
        ensure!(claims == Some(count), "{claims:?}");
        Ok(())
    })
    .unwrap();
}
