//! The image, built once for all tests, and a node on which containerd runs it as in the manifest.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use detector_testkit::{
    Container, ContainerSpec, Containerd, DEADLINE, HostMount, Node, Seccomp, http::TestClient,
    image::AgentImage, until,
};
use serde_yaml_ng::Value;

use crate::{
    AGENT,
    manifests::build,
    tools::{root, scratch},
};

pub(super) const IMAGE: &str = "localhost/ip-conflict-detector:test";
pub(super) const NODE_IP: &str = "192.0.2.7";
pub(super) const SUBNET: &str = "10.244.2.0/24";

/// The image, built on first use.
pub(super) fn image() -> &'static AgentImage {
    static BUILT: OnceLock<AgentImage> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = scratch().join("image");
        // Left by an earlier run; each takes some hundred megabytes.
        let _ = fs::remove_dir_all(&directory);
        AgentImage::build(&directory, root(), Path::new(AGENT), IMAGE, "abc123").unwrap()
    })
}

/// A node that runs containerd with the image loaded.
pub(super) struct Cluster {
    pub(super) node: Node,
    pub(super) containerd: Containerd,
    pub(super) spec: ContainerSpec,
    pub(super) _files: tempfile::TempDir,
}

impl Cluster {
    pub(super) fn new(name: &str, components: &[&str]) -> Self {
        Self::of(name, &build(components), &[])
    }

    /// With objects of the chart, and Secrets as `(name, key, content)`.
    pub(super) fn of(name: &str, documents: &[Value], secrets: &[(&str, &str, &str)]) -> Self {
        let node = Node::new(name).unwrap();
        node.ip(&format!("address add {NODE_IP}/32 dev lo"))
            .unwrap();
        let containerd = Containerd::ptp(&node, SUBNET).unwrap();
        containerd.import(&image().archive()).unwrap();
        let files = tempfile::tempdir().unwrap();
        for (secret, key, content) in secrets {
            let folder = files.path().join(secret);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(key), content).unwrap();
        }
        let spec = spec(&containerd, files.path(), documents);
        containerd.prepare_mounts(&spec.mounts).unwrap();
        Self {
            node,
            containerd,
            spec,
            _files: files,
        }
    }

    pub(super) fn client(&self) -> TestClient<'_> {
        TestClient::of_agent(&self.node)
    }

    /// Runs the container of the objects.
    pub(super) fn run_agent(&mut self) -> Container {
        self.containerd.run_container(&self.spec).unwrap()
    }

    /// Waits for `attempt`; a failure shows the container's log.
    pub(super) fn wait<T>(
        &self,
        agent: &Container,
        what: &str,
        attempt: impl FnMut() -> anyhow::Result<T>,
    ) -> T {
        until(DEADLINE, what, attempt).unwrap_or_else(|error| {
            let log = self.containerd.container_log(agent).unwrap();
            panic!("{error:#}\n{log}")
        })
    }

    pub(super) fn wait_ready(&self, agent: &Container) {
        self.wait_ready_at(agent, &self.client());
    }

    pub(super) fn wait_ready_at(&self, agent: &Container, client: &TestClient<'_>) {
        self.wait(agent, "the agent to be ready", || {
            if let Some(code) = self.containerd.exit_code(agent)? {
                anyhow::bail!("exit code {code}");
            }
            let answer = client.get("/readyz")?;
            anyhow::ensure!(answer.status == 200, "{}", answer.body);
            Ok(())
        });
    }

    pub(super) fn wait_exit(&self, agent: &Container) -> (i32, String) {
        let code = self.wait(agent, "the container to exit", || {
            let code = self.containerd.exit_code(agent)?;
            code.ok_or_else(|| anyhow::anyhow!("it runs"))
        });
        (code, self.containerd.container_log(agent).unwrap())
    }
}

/// The container as kubelet would create it from the objects, except that host directories are
/// replaced by others. `files` has a directory for each Secret.
fn spec(containerd: &Containerd, files: &Path, documents: &[Value]) -> ContainerSpec {
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
                None if volume.get("secret").is_some() => {
                    files.join(text(&volume["secret"]["secretName"]))
                }
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
