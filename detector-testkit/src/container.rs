//! Containers of pods in the node's network, configured as by kubelet, like those of a DaemonSet.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use detector_cri::{
    Capability, ContainerConfig, ContainerId, ContainerMetadata, ContainerStatusRequest,
    ContainerStatusResponse, CreateContainerRequest, Empty, ExecSyncRequest, ExecSyncResponse,
    ImageSpec, Int64Value, KeyValue, LinuxContainerConfig, LinuxContainerSecurityContext, Mount,
    NODE_NETWORK, NamespaceOption, SecurityProfile, StopContainerRequest,
};
use nix::mount::{MsFlags, mount};

use crate::containerd::{Containerd, Sandbox};

/// Paths that kubelet masks in an unprivileged container.
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
/// Paths that kubelet makes read-only in an unprivileged container.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
/// `ContainerState.CONTAINER_EXITED`.
const EXITED: i32 = 2;

/// The seccomp profile of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// The runtime's default profile.
    #[default]
    RuntimeDefault,
    /// No restriction.
    Unconfined,
    /// The profile in this file.
    Localhost(PathBuf),
}

/// A directory or file of the node that is mounted in a container.
#[derive(Clone, Debug)]
pub struct HostMount {
    /// The path on the node.
    pub host: PathBuf,
    /// The path in the container.
    pub container: String,
    /// Mounted read-only.
    pub read_only: bool,
    /// Later mounts on the node propagate to the container.
    pub host_to_container: bool,
}

/// A container as a pod's manifest describes it.
#[derive(Clone, Debug, Default)]
pub struct ContainerSpec {
    /// The container name.
    pub name: String,
    /// The image, which must have been imported.
    pub image: String,
    /// Arguments of the image's entry point.
    pub args: Vec<String>,
    /// The environment variables.
    pub env: Vec<(String, String)>,
    /// The mounts from the node.
    pub mounts: Vec<HostMount>,
    /// Capabilities added after dropping all.
    pub capabilities: Vec<String>,
    /// Runs privileged.
    pub privileged: bool,
    /// The user id.
    pub user: i64,
    /// The group id.
    pub group: i64,
    /// Mounts the root file system read-only.
    pub read_only_root: bool,
    /// Sets `no_new_privs`.
    pub no_new_privileges: bool,
    /// The seccomp profile.
    pub seccomp: Seccomp,
}

/// A container that runs or has exited.
#[derive(Clone, Debug)]
pub struct Container {
    id: String,
    sandbox: Sandbox,
    log: PathBuf,
}

impl Containerd {
    /// Imports an image from an archive (OCI or Docker).
    ///
    /// # Errors
    /// The runtime fails.
    pub fn import(&self, archive: &Path) -> Result<()> {
        self.import_with(&[], archive)
    }

    /// Imports an image from an archive, also under another name than it has there.
    ///
    /// # Errors
    /// The runtime fails.
    pub fn import_as(&self, archive: &Path, name: &str) -> Result<()> {
        self.import_with(&["--index-name", name], archive)
    }

    fn import_with(&self, options: &[&str], archive: &Path) -> Result<()> {
        let socket = self.socket();
        self.run_in(|| {
            let mut import = Command::new("ctr");
            import
                .arg("-a")
                .arg(&socket)
                .args(["-n", "k8s.io", "images", "import", "--all-platforms"])
                .args(options)
                .arg(archive);
            crate::command::run_command(import, None)
                .map(drop)
                .context("importing an image")
        })
    }

    /// Makes containerd's mounts shared, as on a node, so that later mounts propagate to containers; and creates missing host
    /// directories, as for `DirectoryOrCreate` in a manifest.
    ///
    /// # Errors
    /// The kernel refuses, or a directory would be created outside containerd's private file systems.
    pub fn prepare_mounts(&self, mounts: &[HostMount]) -> Result<()> {
        self.run_in(|| {
            // Shared only with the containers: private_mounts() cut the tree off from the machine's.
            let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
            mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
                .context("making the mounts shared")?;
            for mount in mounts {
                if !mount.host.exists() {
                    ensure!(
                        mount.host.starts_with("/run") || mount.host.starts_with("/var/lib"),
                        "{} would be created on the machine itself",
                        mount.host.display()
                    );
                    fs::create_dir_all(&mount.host)?;
                }
            }
            Ok(())
        })
    }

    /// Runs a container in a new pod in the node's network.
    ///
    /// # Errors
    /// The runtime fails.
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
        let created: ContainerId = self.client()?.call("CreateContainer", request)?;
        let started = ContainerId {
            id: created.id.clone(),
        };
        let _: Empty = self.client()?.call("StartContainer", started)?;
        Ok(Container {
            id: created.id,
            sandbox,
            log: logs.join(log),
        })
    }

    /// The exit code; `None` while it runs.
    ///
    /// # Errors
    /// The runtime fails.
    pub fn exit_code(&self, container: &Container) -> Result<Option<i32>> {
        let status = self.status(container)?.status;
        let status = status.context("the response contains no status")?;
        Ok((status.state == EXITED).then_some(status.exit_code))
    }

    /// The id of its first process in the machine's pid namespace.
    ///
    /// # Errors
    /// The runtime fails.
    pub fn container_pid(&self, container: &Container) -> Result<u32> {
        let response = self.status(container)?;
        let info = response.info.get("info").context("no verbose status")?;
        let info: serde_json::Value = serde_json::from_str(info)?;
        let pid = info["pid"]
            .as_u64()
            .context("no pid in the verbose status")?;
        Ok(u32::try_from(pid)?)
    }

    fn status(&self, container: &Container) -> Result<ContainerStatusResponse> {
        let request = ContainerStatusRequest {
            id: container.id.clone(),
            verbose: true,
        };
        self.client()?.call("ContainerStatus", request)
    }

    /// Runs a command in it to completion; returns exit code and stdout.
    ///
    /// # Errors
    /// The runtime fails.
    pub fn exec(&self, container: &Container, command: &[&str]) -> Result<(i32, String)> {
        let request = ExecSyncRequest {
            id: container.id.clone(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            timeout: 20,
        };
        let response: ExecSyncResponse = self.client()?.call("ExecSync", request)?;
        let text = String::from_utf8_lossy(&response.stdout).into_owned();
        Ok((response.exit_code, text))
    }

    /// Its stdout and stderr, without the runtime's line prefixes.
    ///
    /// # Errors
    /// The log file cannot be read.
    pub fn container_log(&self, container: &Container) -> Result<String> {
        let text = fs::read_to_string(&container.log).context("the container's log")?;
        // <time> stdout F <line>
        let lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
        Ok(lines.fold(String::new(), |text, line| text + line + "\n"))
    }

    /// Sends SIGTERM, and SIGKILL after the grace period, as kubelet does; returns the exit code.
    ///
    /// # Errors
    /// The runtime fails.
    pub fn stop_container(&self, container: &Container, grace_seconds: i64) -> Result<i32> {
        let request = StopContainerRequest {
            id: container.id.clone(),
            timeout: grace_seconds,
        };
        let _: Empty = self.client()?.call("StopContainer", request)?;
        self.exit_code(container)?.context("it still runs")
    }

    /// Stops and removes the container and its pod.
    ///
    /// # Errors
    /// The runtime fails.
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
    let privileged = spec.privileged;
    let security = LinuxContainerSecurityContext {
        capabilities: (!privileged).then(|| Capability {
            add: spec.capabilities.clone(),
            drop: vec!["ALL".to_owned()],
        }),
        privileged,
        namespaces: Some(NamespaceOption {
            network: NODE_NETWORK,
            pid: 1,
        }),
        run_as_user: Some(Int64Value { value: spec.user }),
        read_only_root: spec.read_only_root,
        no_new_privileges: spec.no_new_privileges,
        run_as_group: Some(Int64Value { value: spec.group }),
        masked_paths: if privileged {
            Vec::new()
        } else {
            texts(&MASKED)
        },
        read_only_paths: if privileged {
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
