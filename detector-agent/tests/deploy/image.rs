//! The image, built from the real Dockerfile and run as the manifest says: these capabilities, this seccomp profile,
//! these mounts, in containerd.
//!
//! The base image cannot be fetched here: Debian 12's own libc and libgcc, which distroless packs, stand in for it; so
//! does the tests' agent for the released one.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use detector_testkit::{
    Container, ContainerSpec, Containerd, DEADLINE, HostMount, Node, Seccomp,
    browser::Browser,
    http::{Client, until},
};
use serde_yaml_ng::Value;

use crate::{
    manifests::build,
    tools::{deploy, root, scratch, stdout, updating},
};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
const IMAGE: &str = "localhost/ip-conflict-detector:test";
const BASE: &str = "localhost/ipconflict-base:test";
const NODE_IP: &str = "192.0.2.7";
const SUBNET: &str = "10.244.2.0/24";

fn buildah(command: &str) -> Command {
    let store = scratch().join("images");
    let mut buildah = Command::new("buildah");
    buildah
        .arg("--root")
        .arg(store.join("root"))
        .arg("--runroot")
        .arg(store.join("run"))
        .args(["--storage-driver", "vfs", command]);
    buildah
}

/// The image as an archive; built once.
fn archive() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // Of an earlier run; each leaves some hundred megabytes.
        let _ = fs::remove_dir_all(scratch().join("images"));
        let context = tempfile::tempdir().unwrap();
        let base = context.path().join("base");
        for library in libraries() {
            let to = base.join(library.strip_prefix("/").unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(&library, to).unwrap();
        }
        let dockerfile = context.path().join("Dockerfile.base");
        fs::write(&dockerfile, "FROM scratch\nCOPY . /\n").unwrap();
        let bud = ["--isolation", "chroot", "--pull-never", "--quiet"];
        stdout(
            buildah("bud")
                .args(bud)
                .args(["-t", BASE, "-f"])
                .arg(&dockerfile)
                .arg(&base),
        );
        let ready = context.path().join("ready");
        fs::create_dir(&ready).unwrap();
        stdout(
            Command::new("strip")
                .args(["--strip-debug", "-o"])
                .arg(ready.join("detector-agent"))
                .arg(AGENT),
        );
        stdout(
            buildah("bud")
                .args(bud)
                .args(["-t", IMAGE, "-f"])
                .arg(deploy("Dockerfile"))
                .args([
                    "--target",
                    "runtime",
                    "--build-arg",
                    "AGENT=ready",
                    "--build-arg",
                ])
                .arg(format!("BASE={BASE}"))
                .args(["--build-arg", "REVISION=abc123"])
                .arg(&ready),
        );
        let archive = scratch().join("agent.tar");
        let _ = fs::remove_file(&archive);
        stdout(
            buildah("push")
                .args(["--quiet", IMAGE])
                .arg(format!("oci-archive:{}:{IMAGE}", archive.display())),
        );
        archive
    })
}

/// What the agent is linked with, and its loader.
fn libraries() -> Vec<PathBuf> {
    let said = stdout(Command::new("ldd").arg(AGENT));
    let found: Vec<PathBuf> = said
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect();
    // What distroless has, and nothing more: a new library would break the image.
    let names: Vec<_> = found
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    let there = |name: &&str| {
        ["libc.so.6", "libgcc_s.so.1", "libm.so.6"].contains(name) || name.starts_with("ld-linux")
    };
    assert!(names.iter().all(there), "{names:?}");
    found
}

/// A node with containerd on it, and the image in it.
struct Cluster {
    node: Node,
    containerd: Containerd,
    spec: ContainerSpec,
    _files: tempfile::TempDir,
}

impl Cluster {
    fn new(name: &str, folder: &str) -> Self {
        let node = Node::new(name).unwrap();
        node.ip(&format!("address add {NODE_IP}/32 dev lo"))
            .unwrap();
        let containerd = Containerd::ptp(&node, SUBNET).unwrap();
        containerd.import(archive()).unwrap();
        let files = tempfile::tempdir().unwrap();
        let spec = spec(&containerd, files.path(), folder);
        containerd.prepare_mounts(&spec.mounts).unwrap();
        Self {
            node,
            containerd,
            spec,
            _files: files,
        }
    }

    fn client(&self) -> Client<'_> {
        Client::new(&self.node, format!("http://{NODE_IP}:9842"))
    }

    fn wait_ready(&self, agent: &Container) {
        until(DEADLINE, || {
            if let Some(code) = self.containerd.exit_code(agent)? {
                anyhow::bail!("exit code {code}");
            }
            let answer = self.client().get("/readyz")?;
            anyhow::ensure!(answer.status == 200, "{}", answer.body);
            Ok(())
        })
        .unwrap_or_else(|error| {
            panic!(
                "{error:#}\n{}",
                self.containerd.container_log(agent).unwrap()
            )
        });
    }

    fn wait_exit(&self, agent: &Container) -> (i32, String) {
        let code = until(DEADLINE, || {
            self.containerd
                .exit_code(agent)?
                .ok_or_else(|| anyhow::anyhow!("it runs"))
        })
        .unwrap_or_else(|error| {
            panic!(
                "{error:#}\n{}",
                self.containerd.container_log(agent).unwrap()
            )
        });
        (code, self.containerd.container_log(agent).unwrap())
    }
}

/// The container as kubelet would make it of the plain manifest. Only directories that are the machine's own are put
/// elsewhere.
fn spec(containerd: &Containerd, files: &Path, folder: &str) -> ContainerSpec {
    let documents = build(folder);
    let of_kind = |kind: &str| {
        let found = documents.iter().find(|document| document["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind}"))
    };
    let pod = &of_kind("DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let context = &container["securityContext"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let texts =
        |value: &Value| -> Vec<String> { value.as_sequence().unwrap().iter().map(text).collect() };
    assert_eq!(pod["hostNetwork"], true);
    let privileged = context["privileged"] == true;
    let (capabilities, seccomp) = if privileged {
        assert_eq!(context.get("capabilities"), None);
        (Vec::new(), Seccomp::Unconfined)
    } else {
        assert_eq!(texts(&context["capabilities"]["drop"]), ["ALL"]);
        assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
        (
            texts(&context["capabilities"]["add"]),
            Seccomp::RuntimeDefault,
        )
    };

    let mut env: Vec<(String, String)> = Vec::new();
    for variable in container["env"].as_sequence().unwrap() {
        let value = match variable.get("value") {
            Some(value) => env.iter().fold(text(value), |value, (name, set)| {
                value.replace(&format!("$({name})"), set)
            }),
            None => match text(&variable["valueFrom"]["fieldRef"]["fieldPath"]).as_str() {
                "spec.nodeName" => "worker-7".to_owned(),
                "status.hostIP" => NODE_IP.to_owned(),
                other => panic!("{other}"),
            },
        };
        env.push((text(&variable["name"]), value));
    }
    let volumes = pod["volumes"].as_sequence().unwrap();
    let mounts = container["volumeMounts"]
        .as_sequence()
        .unwrap()
        .iter()
        .map(|mount| {
            let volume = volumes
                .iter()
                .find(|volume| volume["name"] == mount["name"])
                .unwrap();
            let host = match volume.get("hostPath") {
                Some(host) => match text(&host["path"]).as_str() {
                    "/run/containerd" => containerd.directory().to_owned(),
                    "/etc/cni/net.d" => containerd.directory().join("net.d"),
                    path => PathBuf::from(path),
                },
                None => {
                    let map = of_kind("ConfigMap");
                    assert_eq!(volume["configMap"]["name"], map["metadata"]["name"]);
                    let file = files.join(text(&mount["subPath"]));
                    fs::write(&file, text(&map["data"][text(&mount["subPath"]).as_str()])).unwrap();
                    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
                    file
                }
            };
            HostMount {
                host,
                container: text(&mount["mountPath"]),
                read_only: mount.get("readOnly").is_some_and(|value| *value == true),
                host_to_container: mount
                    .get("mountPropagation")
                    .is_some_and(|value| value == "HostToContainer"),
            }
        })
        .collect();
    ContainerSpec {
        name: "agent".to_owned(),
        image: IMAGE.to_owned(),
        args: texts(&container["args"]),
        env,
        mounts,
        capabilities,
        privileged,
        user: context["runAsUser"].as_i64().unwrap(),
        group: context["runAsGroup"].as_i64().unwrap(),
        read_only_root: context["readOnlyRootFilesystem"] == true,
        no_new_privileges: context
            .get("allowPrivilegeEscalation")
            .is_some_and(|value| *value == false),
        seccomp,
    }
}

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
    let named = until(DEADLINE, || {
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
    until(DEADLINE, || {
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
    browser.look_like(1100, 460, false).unwrap();
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
    until(DEADLINE, || {
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
