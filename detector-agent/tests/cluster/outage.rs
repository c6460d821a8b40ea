//! What the agent does without the API server.

use detector_testkit::cluster::ClusterOptions;

use crate::installation::Installation;

#[test]
fn conflict_is_raised_while_the_api_server_is_away_and_events_follow() {
    let mut it = Installation::prepare(&ClusterOptions::default());
    it.helm("install", &[]);
    let address = it.run_pod("web");
    let other = it.run_pod("checkout");
    assert_ne!(address, other);
    // Both are known before the outage.
    it.wait_soon("both pods to be watched", || {
        let claims = it.api().get("/api/v1/claims")?.body;
        for pod in ["web", "checkout"] {
            anyhow::ensure!(claims.contains(&format!("\"{pod}\"")), "{claims}");
        }
        Ok(())
    });
    it.cluster.stop_api_server().unwrap();
    it.cluster
        .kubectl(&["get", "--raw", "/readyz"])
        .expect_err("the API server is away");
    let add = format!("address add {address} dev eth0");
    it.node().pod_ip_batch(&other, [add]).unwrap();
    it.wait_conflict(&address, &["checkout", "web"]);
    it.cluster.start_api_server().unwrap();
    it.wait_event("web", &address, "default/checkout");
    it.wait_event("checkout", &address, "default/web");
}
