//! What the agent does without the API server.

use std::fs;

use anyhow::{Context as _, Result};
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
    add_address(&it, &other, &address).unwrap();
    it.wait_conflict(&address, &["checkout", "web"]);
    it.cluster.start_api_server().unwrap();
    it.wait_event("web", &address, "default/checkout");
    it.wait_event("checkout", &address, "default/web");
}

/// Adds an address to the pod that has `pod_address`.
fn add_address(it: &Installation, pod_address: &str, address: &str) -> Result<()> {
    it.node().run_in(|| {
        for entry in fs::read_dir("/run/netns")? {
            let path = entry?.path();
            let ip = |args: &[&str]| {
                let mut command = std::process::Command::new("nsenter");
                command
                    .arg(format!("--net={}", path.display()))
                    .arg("ip")
                    .args(args);
                let output = command.output()?;
                anyhow::ensure!(output.status.success(), "{output:?}");
                Ok(String::from_utf8(output.stdout)?)
            };
            let addresses = ip(&["-o", "address", "show", "dev", "eth0"])?;
            if addresses.contains(&format!(" {pod_address}/")) {
                return ip(&["address", "add", address, "dev", "eth0"]).map(drop);
            }
        }
        None.context("no pod has this address")
    })
}
