//! The image, built from the real Dockerfile and run as the manifest says: these capabilities, this seccomp profile,
//! these mounts, in containerd.
//!
//! The base image cannot be fetched here: Debian 12's own libc and libgcc, which distroless packs, stand in for it; so
//! does the tests' agent for the released one.

mod cluster;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use detector_testkit::{ContainerSpec, DEADLINE, browser::Browser, until};

use crate::tools::{root, scratch, stdout, updating};
use cluster::{Cluster, IMAGE, NODE_IP, archive, buildah};

#[test]
fn the_image_says_what_it_is_and_holds_the_agent_and_nothing_to_change_it_with() {
    archive();
    let said = stdout(buildah("inspect").args(["--type", "image", IMAGE]));
    let image: serde_json::Value = serde_json::from_str(&said).unwrap();
    let config = &image["OCIv1"]["config"];
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
    stdout(buildah("rm").arg(container.trim()));
}

#[test]
fn from_the_image_as_the_manifest_runs_it_a_conflict_of_two_sandboxes_is_named() {
    let mut cluster = Cluster::new("image", "base");
    let spec = cluster.spec.clone();
    let agent = cluster.containerd.run_container(&spec).unwrap();
    cluster.wait_ready(&agent);
    let pid = cluster.containerd.container_pid(&agent).unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    // NET_BROADCAST 11, NET_ADMIN 12, PERFMON 38, BPF 39, and that is all it can ever have.
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
    let named = until(DEADLINE, "both pods to be named", || {
        let answer = cluster.client().get("/api/v1/conflicts")?.body;
        let named = [&old[0], &new[0]]
            .iter()
            .all(|pod| answer.contains(&format!("\"{}\"", pod.uid)));
        anyhow::ensure!(named, "{answer}");
        Ok(answer)
    })
    .unwrap_or_else(|error| {
        panic!(
            "{error:#}\n{}",
            cluster.containerd.container_log(&agent).unwrap()
        )
    });
    assert!(named.contains("10.244.2.2"), "{named}");
    // The event is on stdout, for the log collector.
    until(DEADLINE, "a raised conflict in the log", || {
        let log = cluster.containerd.container_log(&agent)?;
        anyhow::ensure!(log.contains("io.ipconflict.conflict.raised"), "{log}");
        Ok(())
    })
    .unwrap();
    // What the notes of the chart tell a person to type.
    let check = ["/usr/local/bin/detector-agent", "check"];
    let (code, said) = cluster.containerd.exec(&agent, &check).unwrap();
    assert_eq!(code, 1, "{said}");
    assert!(
        said.starts_with("1 IP address conflict: 10.244.2.2"),
        "{said}"
    );
    assert!(!said.contains("pod unknown"), "{said}");
    picture(&cluster);
    // kubelet's SIGTERM is enough, and leaves nothing on the devices.
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
        let show = ["tc", "filter", "show", "dev", device, "ingress"];
        assert_eq!(cluster.node.exec(&show).unwrap(), "", "{device}");
    }
    cluster.containerd.remove_container(&agent).unwrap();
}

/// The README's picture: the status page of this moment.
fn picture(cluster: &Cluster) {
    let browser = Browser::start(&cluster.node).unwrap();
    browser.emulate_screen(1100, 460, false).unwrap();
    browser.open(&format!("http://{NODE_IP}:9842/")).unwrap();
    for pod in ["web-7d9fc8b6f4-x2k4q", "checkout-5c6b8d7f9-mz8tn"] {
        browser
            .wait(&format!("document.body.innerText.includes({pod:?})"))
            .unwrap();
    }
    let file = scratch().join("status-page.png");
    browser.screenshot(&file).unwrap();
    if updating() {
        fs::copy(&file, root().join("docs/images/status-page.png")).unwrap();
    }
}

/// Each capability is there for a reason: without it the agent ends at once, with one sentence that names it.
#[test]
fn without_any_one_of_its_capabilities_it_says_which_one_is_missing() {
    let mut cluster = Cluster::new("imagecaps", "base");
    let whole = cluster.spec.clone();
    for missing in &whole.capabilities {
        let spec = ContainerSpec {
            capabilities: whole
                .capabilities
                .iter()
                .filter(|capability| *capability != missing)
                .cloned()
                .collect(),
            name: format!("no-{}", missing.to_lowercase().replace('_', "-")),
            ..whole.clone()
        };
        let agent = cluster.containerd.run_container(&spec).unwrap();
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

/// What docs/security.md says is left of it: without the kernel programs it needs no right to load any.
#[test]
fn without_kernel_programs_two_capabilities_do_and_the_cni_cache_names_the_pods() {
    let mut cluster = Cluster::new("imagefew", "base");
    let mut spec = cluster.spec.clone();
    spec.capabilities
        .retain(|capability| !["BPF", "PERFMON"].contains(&capability.as_str()));
    spec.env.push(("IPCONFLICT_NO_EBPF".into(), "true".into()));
    // As with the chart's `runtime.mountSocket: false`.
    spec.mounts
        .retain(|mount| mount.container != "/run/containerd");
    spec.env
        .push(("IPCONFLICT_CRI_ENDPOINT".into(), "off".into()));
    let agent = cluster.containerd.run_container(&spec).unwrap();
    cluster.wait_ready(&agent);
    cluster.containerd.run_pods(["old"]).unwrap();
    cluster.containerd.wipe_ipam().unwrap();
    cluster.containerd.run_pods(["new"]).unwrap();
    until(DEADLINE, "both pods to be named", || {
        let answer = cluster.client().get("/api/v1/conflicts")?.body;
        let named = answer.matches("cni-cache").count() == 2;
        anyhow::ensure!(named && answer.contains("10.244.2.2"), "{answer}");
        Ok(())
    })
    .unwrap();
    cluster.containerd.remove_container(&agent).unwrap();
}

#[test]
fn the_privileged_overlay_runs_as_well() {
    let mut cluster = Cluster::new("imagepriv", "overlays/privileged");
    let spec = cluster.spec.clone();
    assert!(spec.privileged);
    let agent = cluster.containerd.run_container(&spec).unwrap();
    cluster.wait_ready(&agent);
    cluster.containerd.remove_container(&agent).unwrap();
}
