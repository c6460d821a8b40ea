//! The image, built from the real Dockerfile and run in containerd with the capabilities, seccomp profile
//! and mounts of the manifest.
//!
//! The agent is the test build, which is not static as a release is: its libraries are the base image.

mod cluster;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use detector_testkit::{DEADLINE, browser::Browser, golden::is_updating, http::TestClient, until};

use crate::tools::{deploy, documents, python, render, root, scratch, stdout};
use cluster::{Cluster, IMAGE, NODE_IP, image};

#[test]
fn dockerfile_has_no_finding() {
    let findings = stdout(python("hadolint").arg(deploy("Dockerfile")));
    assert_eq!(findings, "");
}

#[test]
fn image_has_labels_a_read_only_agent_and_no_shell() {
    let buildah = |command| image().buildah(command);
    let inspected = stdout(buildah("inspect").args(["--type", "image", IMAGE]));
    let described: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    let config = &described["OCIv1"]["config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"][0], "/usr/local/bin/detector-agent");
    assert_eq!(config["Cmd"][0], "run");
    let labels = &config["Labels"];
    for (label, value) in [
        ("title", "ip-conflict-detector"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", "abc123"),
    ] {
        assert_eq!(labels[format!("org.opencontainers.image.{label}")], value);
    }
    for label in ["source", "licenses", "description", "documentation"] {
        assert!(
            labels[format!("org.opencontainers.image.{label}")].is_string(),
            "{label}"
        );
    }
    let container = stdout(buildah("from").args(["--pull-never", IMAGE]));
    let mounted = stdout(buildah("mount").arg(container.trim()));
    let agent = Path::new(mounted.trim()).join("usr/local/bin/detector-agent");
    let about = fs::metadata(&agent).unwrap();
    assert_eq!(about.permissions().mode() & 0o7777, 0o555);
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&about), 65532);
    assert!(!Path::new(mounted.trim()).join("bin/sh").exists());
    let certificates = Path::new(mounted.trim()).join("etc/ssl/certs/ca-certificates.crt");
    assert!(
        fs::read_to_string(certificates)
            .unwrap()
            .contains("BEGIN CERTIFICATE")
    );
    stdout(buildah("rm").arg(container.trim()));
}

#[test]
fn manifest_container_names_a_conflict_of_two_sandboxes() {
    let mut cluster = Cluster::new("image", &[]);
    let agent = cluster.run_agent();
    cluster.wait_ready(&agent);
    let pid = cluster.containerd.container_pid(&agent).unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    // Bits 11 (NET_BROADCAST), 12 (NET_ADMIN), 38 (PERFMON) and 39 (BPF), and no others.
    let capabilities = format!("{:016x}", 1_u64 << 11 | 1 << 12 | 1 << 38 | 1 << 39);
    for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
        assert_eq!(field(set), capabilities, "{set}");
    }
    assert_eq!(field("Seccomp:"), "2", "a filter of system calls");
    assert_eq!(field("NoNewPrivs:"), "1");
    let mounts = fs::read_to_string(format!("/proc/{pid}/mounts")).unwrap();
    let root = mounts
        .lines()
        .find(|line| line.split(' ').nth(1) == Some("/"));
    let options = root.and_then(|line| line.split(' ').nth(3)).unwrap();
    assert!(options.split(',').any(|option| option == "ro"), "{options}");
    let old = cluster
        .containerd
        .run_pods(["web-7d9fc8b6f4-x2k4q"])
        .unwrap();
    cluster.containerd.wipe_ipam().unwrap();
    let new = cluster
        .containerd
        .run_pods(["checkout-5c6b8d7f9-mz8tn"])
        .unwrap();
    let named = cluster.wait(&agent, "both pods to be named", || {
        let answer = cluster.client().get("/api/v1/conflicts")?.body;
        let named = [&old[0], &new[0]]
            .iter()
            .all(|pod| answer.contains(&format!("\"{}\"", pod.uid)));
        anyhow::ensure!(named, "{answer}");
        Ok(answer)
    });
    assert!(named.contains("10.244.2.2"), "{named}");
    // The event is on stdout, for the log collector.
    until(DEADLINE, "a raised conflict in the log", || {
        let log = cluster.containerd.container_log(&agent)?;
        anyhow::ensure!(log.contains("io.ipconflict.conflict.raised"), "{log}");
        Ok(())
    })
    .unwrap();
    // The node's address serves Prometheus, and nothing else.
    let exposed = TestClient::new(&cluster.node, format!("http://{NODE_IP}:9842"));
    for (path, status) in [("/metrics", 200), ("/readyz", 200), ("/", 404)] {
        assert_eq!(exposed.get(path).unwrap().status, status, "{path}");
    }
    // The command from the chart's notes.
    let check = ["/usr/local/bin/detector-agent", "check"];
    let (code, output) = cluster.containerd.exec(&agent, &check).unwrap();
    assert_eq!(code, 1, "{output}");
    assert!(
        output.starts_with("1 IP address conflict: 10.244.2.2"),
        "{output}"
    );
    assert!(!output.contains("pod unknown"), "{output}");
    take_screenshot(&cluster);
    // After kubelet's SIGTERM nothing is left on the devices.
    let code = cluster.containerd.stop_container(&agent, 30).unwrap();
    let log = cluster.containerd.container_log(&agent).unwrap();
    assert_eq!(code, 0, "{log}");
    for line in cluster
        .node
        .ip("-oneline link show type veth")
        .unwrap()
        .lines()
    {
        let device = line.split([':', '@']).nth(1).unwrap().trim();
        assert_eq!(cluster.node.filters(device).unwrap(), [""; 0], "{device}");
    }
    cluster.containerd.remove_container(&agent).unwrap();
}

/// Takes the README's screenshot of the status page.
fn take_screenshot(cluster: &Cluster) {
    let browser = Browser::start(&cluster.node, 9842).unwrap();
    browser.emulate_screen(1100, 460, false).unwrap();
    browser.open("http://127.0.0.1:9842/").unwrap();
    for pod in ["web-7d9fc8b6f4-x2k4q", "checkout-5c6b8d7f9-mz8tn"] {
        browser
            .wait(&format!("document.body.innerText.includes({pod:?})"))
            .unwrap();
    }
    let file = scratch().join("status-page.png");
    browser.screenshot(&file).unwrap();
    if is_updating() {
        fs::copy(&file, root().join("docs/images/status-page.png")).unwrap();
    }
}

/// kubelet gives an IPv6 address no brackets in `$(NODE_IP)`.
#[test]
fn address_of_an_ipv6_node_is_served() {
    let mut cluster = Cluster::new("imagev6", &[]);
    let address = "fd00:7::7";
    let node = &cluster.node;
    node.ip(&format!("address add {address}/128 dev lo nodad"))
        .unwrap();
    let spec = &mut cluster.spec;
    for (_, value) in &mut spec.env {
        *value = value.replace(NODE_IP, address);
    }
    // As with the chart's `listen.address: $(NODE_IP)`, which is the node's only address here.
    let listen = format!("{address}:9842");
    for (name, value) in [
        ("IPCONFLICT_LISTEN", listen.clone()),
        ("IPCONFLICT_METRICS_LISTEN", format!("{address}:9843")),
    ] {
        spec.env.retain(|(known, _)| known != name);
        spec.env.push((name.to_owned(), value));
    }
    let agent = cluster.run_agent();
    let probe = TestClient::new(&cluster.node, format!("http://[{address}]:9843"));
    cluster.wait_ready_at(&agent, &probe);
    let check = ["/usr/local/bin/detector-agent", "check", "--readiness"];
    let (code, output) = cluster.containerd.exec(&agent, &check).unwrap();
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("is ready"), "{output}");
    cluster.containerd.remove_container(&agent).unwrap();
}

/// `kubectl exec … check` needs neither the certificate nor the token: it asks at the socket.
#[test]
fn check_in_the_container_works_with_tls_and_a_token() {
    let values = "{listen: {tlsSecret: agent-tls, tokenSecret: {name: agent-token}}}";
    let documents: Vec<_> = render(values)
        .unwrap()
        .values()
        .flat_map(|text| documents(text))
        .collect();
    let names = ["127.0.0.1", "ip-conflict-detector"].map(str::to_owned);
    let certificate = rcgen::generate_simple_self_signed(names).unwrap();
    let chain = certificate.cert.pem();
    let mut cluster = Cluster::of(
        "imagetls",
        &documents,
        &[
            ("agent-tls", "tls.crt", &chain),
            ("agent-tls", "ca.crt", &chain),
            (
                "agent-tls",
                "tls.key",
                &certificate.signing_key.serialize_pem(),
            ),
            ("agent-token", "token", "a-token-of-the-agent"),
        ],
    );
    let agent = cluster.run_agent();
    let agent_binary = "/usr/local/bin/detector-agent";
    cluster.wait(&agent, "the agent to be ready", || {
        let check = [agent_binary, "check", "--readiness"];
        let (code, output) = cluster.containerd.exec(&agent, &check)?;
        anyhow::ensure!(code == 0, "{code}: {output}");
        Ok(())
    });
    let check = [agent_binary, "check", "--allow-no-devices"];
    let (code, output) = cluster.containerd.exec(&agent, &check).unwrap();
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("source: the agent on"), "{output}");
    cluster.containerd.remove_container(&agent).unwrap();
}

/// Every capability is necessary: without it the agent exits at once with one sentence that names it.
#[test]
fn missing_capability_of_the_container_is_named() {
    let mut cluster = Cluster::new("imagecaps", &[]);
    let full_spec = cluster.spec.clone();
    for missing in &full_spec.capabilities {
        cluster.spec = full_spec.clone();
        cluster.spec.capabilities.retain(|known| known != missing);
        cluster.spec.name = format!("no-{}", missing.to_lowercase().replace('_', "-"));
        let agent = cluster.run_agent();
        let (code, log) = cluster.wait_exit(&agent);
        assert_eq!(code, 2, "{missing}: {log}");
        let sentence = log
            .lines()
            .find(|line| line.starts_with("detector-agent: "));
        let names_it = sentence.is_some_and(|line| line.contains(&format!("CAP_{missing}")));
        assert!(names_it, "{missing}: {log}");
        cluster.containerd.remove_container(&agent).unwrap();
    }
}

/// The root file system is read-only, so the directory of the lock has to be mounted.
#[test]
fn missing_mount_for_the_lock_is_named_with_the_remedy() {
    let mut cluster = Cluster::new("imagelock", &[]);
    let directory = "/run/ip-conflict-detector";
    (cluster.spec.mounts).retain(|mount| mount.container != directory);
    let agent = cluster.run_agent();
    let (code, log) = cluster.wait_exit(&agent);
    assert_eq!(code, 2, "{log}");
    assert!(
        log.contains(directory) && log.contains("--run-dir"),
        "{log}"
    );
    cluster.containerd.remove_container(&agent).unwrap();
}

/// The reduced set in docs/security.md: without kernel programs the agent needs no capability to load
/// them.
#[test]
fn no_ebpf_needs_two_capabilities_and_names_pods_by_cni_cache() {
    let mut cluster = Cluster::new("imagefew", &[]);
    let spec = &mut cluster.spec;
    spec.capabilities
        .retain(|capability| !["BPF", "PERFMON"].contains(&capability.as_str()));
    spec.env.push(("IPCONFLICT_NO_EBPF".into(), "true".into()));
    // As with the chart's `runtime.mountSocket: false`.
    spec.mounts
        .retain(|mount| mount.container != "/run/containerd");
    spec.env
        .push(("IPCONFLICT_CRI_ENDPOINT".into(), "off".into()));
    let agent = cluster.run_agent();
    cluster.wait_ready(&agent);
    cluster.containerd.run_pods(["old"]).unwrap();
    cluster.containerd.wipe_ipam().unwrap();
    cluster.containerd.run_pods(["new"]).unwrap();
    cluster.wait(&agent, "both pods to be named", || {
        let answer = cluster.client().get("/api/v1/conflicts")?.body;
        let named = answer.matches("cni-cache").count() == 2;
        anyhow::ensure!(named && answer.contains("10.244.2.2"), "{answer}");
        Ok(())
    });
    cluster.containerd.remove_container(&agent).unwrap();
}

#[test]
fn privileged_component_runs() {
    let mut cluster = Cluster::new("imagepriv", &["privileged"]);
    assert!(cluster.spec.privileged);
    let agent = cluster.run_agent();
    cluster.wait_ready(&agent);
    cluster.containerd.remove_container(&agent).unwrap();
}
