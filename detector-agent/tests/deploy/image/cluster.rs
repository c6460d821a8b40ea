//! The image, built once for all tests, and a node on which containerd runs it as in the manifest.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use detector_testkit::{
    Container, ContainerSpec, Containerd, DEADLINE, HostMount, Node, Seccomp, http::TestClient,
    until,
};
use serde_yaml_ng::Value;

use crate::{
    AGENT,
    manifests::build,
    tools::{deploy, scratch, stdout},
};

pub(super) const IMAGE: &str = "localhost/ip-conflict-detector:test";
pub(super) const BASE: &str = "localhost/ipconflict-base:test";
pub(super) const NODE_IP: &str = "192.0.2.7";
pub(super) const SUBNET: &str = "10.244.2.0/24";

pub(super) fn buildah(command: &str) -> Command {
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

/// The image as an archive, built on first use.
pub(super) fn archive() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // Left by an earlier run; each takes some hundred megabytes.
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

/// The shared libraries of the agent, and its loader.
pub(super) fn libraries() -> Vec<PathBuf> {
    let linked = stdout(Command::new("ldd").arg(AGENT));
    let found: Vec<PathBuf> = linked
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect();
    // Only what distroless has: another library would break the image.
    let names: Vec<_> = found
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    let is_in_distroless = |name: &&str| {
        ["libc.so.6", "libgcc_s.so.1", "libm.so.6"].contains(name) || name.starts_with("ld-linux")
    };
    assert!(names.iter().all(is_in_distroless), "{names:?}");
    found
}

/// A node that runs containerd with the image loaded.
pub(super) struct Cluster {
    pub(super) node: Node,
    pub(super) containerd: Containerd,
    pub(super) spec: ContainerSpec,
    pub(super) _files: tempfile::TempDir,
}

impl Cluster {
    pub(super) fn new(name: &str, folder: &str) -> Self {
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

    pub(super) fn client(&self) -> TestClient<'_> {
        TestClient::new(&self.node, "http://127.0.0.1:9842")
    }

    pub(super) fn wait_ready(&self, agent: &Container) {
        until(DEADLINE, "the agent to be ready", || {
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

    pub(super) fn wait_exit(&self, agent: &Container) -> (i32, String) {
        let code = until(DEADLINE, "the container to exit", || {
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

/// The container as kubelet would create it from the plain manifest, except that host directories are
/// replaced by others.
pub(super) fn spec(containerd: &Containerd, files: &Path, folder: &str) -> ContainerSpec {
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
    let mut mounts: Vec<HostMount> = container["volumeMounts"]
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
    // The chart's `ipam.hostLocalDirectories`. Its parent is mounted, because a mount keeps showing a
    // directory that was deleted and created again as deleted.
    let ipam = containerd.ipam_dir();
    fs::create_dir_all(&ipam).unwrap();
    let state = ipam.parent().unwrap();
    mounts.push(HostMount {
        host: state.to_owned(),
        container: state.display().to_string(),
        read_only: true,
        host_to_container: false,
    });
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
