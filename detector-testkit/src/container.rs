//! A container of a pod in the node's network, set up as kubelet sets it up: what a DaemonSet's pod is.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount};

use crate::{
    containerd::{Containerd, Sandbox},
    cri::{
        Capability, ContainerConfig, ContainerId, ContainerMetadata, ContainerStatusRequest,
        ContainerStatusResponse, CreateContainerRequest, ExecSyncRequest, ExecSyncResponse,
        ImageSpec, Int64Value, KeyValue, LinuxContainerConfig, LinuxContainerSecurityContext,
        Mount, NODE_NETWORK, NamespaceOption, Nothing, SecurityProfile, StopContainerRequest,
    },
};

/// What kubelet masks in a container that is not privileged.
const MASKED: [&str; 9] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/scsi",
    "/sys/firmware",
];
/// What it makes read-only.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
/// `CONTAINER_EXITED`.
const EXITED: i32 = 2;

/// Which system calls a container may make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// The runtime's own profile.
    #[default]
    RuntimeDefault,
    /// Any.
    Unconfined,
    /// Those of this file.
    Localhost(PathBuf),
}

/// A directory or file of the node in a container.
#[derive(Clone, Debug)]
pub struct HostMount {
    /// There.
    pub host: PathBuf,
    /// Here.
    pub container: String,
    /// Not to be written.
    pub read_only: bool,
    /// What is mounted there later appears here.
    pub host_to_container: bool,
}

/// A container as a pod's manifest describes it.
#[derive(Clone, Debug, Default)]
pub struct ContainerSpec {
    /// Its name.
    pub name: String,
    /// Its image, imported before.
    pub image: String,
    /// Arguments of the image's entry point.
    pub args: Vec<String>,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// What it sees of the node.
    pub mounts: Vec<HostMount>,
    /// Capabilities it has besides none.
    pub capabilities: Vec<String>,
    /// Everything is allowed.
    pub privileged: bool,
    /// Its user.
    pub user: i64,
    /// Its group.
    pub group: i64,
    /// Its own files cannot be written.
    pub read_only_root: bool,
    /// No program it starts gains privileges.
    pub no_new_privileges: bool,
    /// Which system calls it may make.
    pub seccomp: Seccomp,
}

/// A container that runs, or ran.
#[derive(Clone, Debug)]
pub struct Container {
    id: String,
    sandbox: Sandbox,
    log: PathBuf,
}

impl Containerd {
    /// Takes an image from an archive (OCI or docker).
    ///
    /// # Errors
    /// What the runtime says.
    pub fn import(&self, archive: &Path) -> Result<()> {
        let socket = self.socket();
        self.run_inside(|| {
            let mut import = Command::new("ctr");
            import
                .arg("-a")
                .arg(&socket)
                .args(["-n", "k8s.io", "images", "import", "--all-platforms"])
                .arg(archive);
            crate::netns::finish(import, None)
                .map(drop)
                .context("importing an image")
        })
    }

    /// Makes its mounts shared, as on a node, where something mounted later is to appear in a container; and the directories that a manifest's `DirectoryOrCreate` asks for.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn prepare_mounts(&self, mounts: &[HostMount]) -> Result<()> {
        self.run_inside(|| {
            // Among themselves only: they were cut off from the machine's.
            let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
            mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
                .context("making the mounts shared")?;
            for mount in mounts {
                if !mount.host.exists() {
                    ensure!(
                        mount.host.starts_with("/run") || mount.host.starts_with("/var/lib"),
                        "{} would be made on the machine itself",
                        mount.host.display()
                    );
                    fs::create_dir_all(&mount.host)?;
                }
            }
            Ok(())
        })
    }

    /// Runs a container in a pod of its own in the node's network.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn run_container(&mut self, spec: &ContainerSpec) -> Result<Container> {
        let logs = self.directory().join("logs");
        fs::create_dir_all(&logs)?;
        let (sandbox, config) = self.run_node_pod(&spec.name, &logs, spec.privileged)?;
        let log = format!("{}.log", sandbox.id);
        let request = CreateContainerRequest {
            sandbox_id: sandbox.id.clone(),
            config: Some(container_config(spec, log.clone())),
            sandbox_config: Some(config),
        };
        let made: ContainerId = self.client()?.call("CreateContainer", request)?;
        let started = ContainerId {
            id: made.id.clone(),
        };
        let _: Nothing = self.client()?.call("StartContainer", started)?;
        Ok(Container {
            id: made.id,
            sandbox,
            log: logs.join(log),
        })
    }

    /// Its exit code, once it has ended.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn exit_code(&self, container: &Container) -> Result<Option<i32>> {
        let status = self.status(container)?.status;
        let status = status.context("the runtime tells no status")?;
        Ok((status.state == EXITED).then_some(status.exit_code))
    }

    /// The id of its first process, as the machine sees it.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn container_pid(&self, container: &Container) -> Result<u32> {
        let answer = self.status(container)?;
        let info = answer.info.get("info").context("no verbose status")?;
        let info: serde_json::Value = serde_json::from_str(info)?;
        let pid = info["pid"].as_u64().context("no process")?;
        Ok(u32::try_from(pid)?)
    }

    fn status(&self, container: &Container) -> Result<ContainerStatusResponse> {
        let request = ContainerStatusRequest {
            id: container.id.clone(),
            verbose: true,
        };
        self.client()?.call("ContainerStatus", request)
    }

    /// Runs a command in it to its end: exit code and stdout.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn exec(&self, container: &Container, command: &[&str]) -> Result<(i32, String)> {
        let request = ExecSyncRequest {
            id: container.id.clone(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            timeout: 20,
        };
        let answer: ExecSyncResponse = self.client()?.call("ExecSync", request)?;
        let text = String::from_utf8_lossy(&answer.stdout).into_owned();
        Ok((answer.exit_code, text))
    }

    /// What it wrote to stdout and stderr, without the runtime's prefixes.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn container_log(&self, container: &Container) -> Result<String> {
        let text = fs::read_to_string(&container.log).context("the container's log")?;
        // <time> stdout F <line>
        let lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
        Ok(lines.fold(String::new(), |text, line| text + line + "\n"))
    }

    /// SIGTERM, and SIGKILL after the grace period, as kubelet does it; gives the exit code.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn stop_container(&self, container: &Container, grace_seconds: i64) -> Result<i32> {
        let request = StopContainerRequest {
            id: container.id.clone(),
            timeout: grace_seconds,
        };
        let _: Nothing = self.client()?.call("StopContainer", request)?;
        self.exit_code(container)?.context("it still runs")
    }

    /// Stops and removes it with its pod.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn remove_container(&mut self, container: &Container) -> Result<()> {
        self.remove_pod(&container.sandbox)
    }
}

fn container_config(spec: &ContainerSpec, log: String) -> ContainerConfig {
    let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
    let (kind, file) = match &spec.seccomp {
        Seccomp::RuntimeDefault => (0, String::new()),
        Seccomp::Unconfined => (1, String::new()),
        Seccomp::Localhost(file) => (2, file.display().to_string()),
    };
    let unmasked = spec.privileged;
    let security = LinuxContainerSecurityContext {
        capabilities: (!spec.privileged).then(|| Capability {
            add: spec.capabilities.clone(),
            drop: vec!["ALL".to_owned()],
        }),
        privileged: spec.privileged,
        namespaces: Some(NamespaceOption {
            network: NODE_NETWORK,
            pid: 1,
        }),
        run_as_user: Some(Int64Value { value: spec.user }),
        read_only_root: spec.read_only_root,
        no_new_privileges: spec.no_new_privileges,
        run_as_group: Some(Int64Value { value: spec.group }),
        masked_paths: if unmasked { Vec::new() } else { texts(&MASKED) },
        read_only_paths: if unmasked {
            Vec::new()
        } else {
            texts(&READ_ONLY)
        },
        seccomp: Some(SecurityProfile { kind, file }),
    };
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: spec.name.clone(),
        }),
        image: Some(ImageSpec {
            image: spec.image.clone(),
        }),
        args: spec.args.clone(),
        env: spec
            .env
            .iter()
            .map(|(key, value)| KeyValue {
                key: key.clone(),
                value: value.clone(),
            })
            .collect(),
        mounts: spec
            .mounts
            .iter()
            .map(|mount| Mount {
                container_path: mount.container.clone(),
                host_path: mount.host.display().to_string(),
                read_only: mount.read_only,
                propagation: i32::from(mount.host_to_container),
            })
            .collect(),
        log_path: log,
        linux: Some(LinuxContainerConfig {
            security_context: Some(security),
        }),
    }
}
