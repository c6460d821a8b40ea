//! A real containerd with its CRI plugin and real CNI plugins, in a node's network namespace and a private mount namespace, so
//! that nothing remains afterwards and several can run at once.
//!
//! `/run` and `/var/lib` are empty file systems in that mount namespace: the CNI result cache, the pods' network namespaces and
//! the shims' sockets are at their default paths. [`Containerd::agent_command`] starts an agent that sees them.

mod environment;

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use detector_cri::PodSandboxConfig;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    agent::AgentCommand, cni::PLUGIN_DIRECTORY, command::run_command, cri::CriClient,
    daemon::Daemon, mounts::PrivateMounts, netns::Netns, pause_image, wait::until,
};
use environment::{PROGRAM, config, kill_processes, private_mounts, remove_leftovers};

pub use environment::IMAGE as PAUSE_IMAGE;

/// How long containerd may take to start; it takes half a second on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The data directory of `host-local`, in a directory of its own as in `/var/lib/cni/networks`.
const IPAM_DIR: &str = "cni-state/networks";
/// The directory of network plugins.
const PLUGINS: &str = "plugins";

/// A running containerd; stopped and cleaned up on drop.
#[derive(Debug)]
pub struct Containerd {
    directory: TempDir,
    /// The path of the node's network namespace.
    netns: PathBuf,
    mounts: PrivateMounts,
    program: String,
    daemon: Option<Daemon>,
    client: Option<CriClient>,
    /// Those created by this value.
    sandboxes: Vec<Sandbox>,
    layout: Layout,
}

/// Where containerd's files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// In a directory of its own.
    Private,
    /// Also at the paths that they have on a node; a kubelet creates the pods.
    Node,
}

/// A pod that containerd runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// The sandbox id.
    pub id: String,
    /// The pod's Kubernetes namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
}

impl Containerd {
    /// Starts containerd with these CNI plugins (a `plugins` list). The data directory of `host-local` is
    /// [`Containerd::ipam_dir`], unless the list names one.
    ///
    /// # Errors
    /// A package is missing, or containerd does not respond in time.
    pub fn start(node: &Netns, plugins: Value) -> Result<Self> {
        Self::start_in(node, plugins, Layout::Private)
    }

    /// [`Containerd::start`] for a kubelet: the socket, the CNI configuration and the state of `host-local` are at the paths
    /// that they have on most nodes, inside [`Containerd::run_in`].
    pub(crate) fn start_for_kubelet(node: &Netns, plugins: Value) -> Result<Self> {
        Self::start_in(node, plugins, Layout::Node)
    }

    fn start_in(node: &Netns, mut plugins: Value, layout: Layout) -> Result<Self> {
        remove_leftovers();
        for program in ["containerd", "runc", "ctr"] {
            ensure!(
                Path::new("/usr/bin").join(program).exists()
                    || Path::new("/usr/sbin").join(program).exists(),
                "{program} does not exist: install the Debian packages containerd and runc (`cargo xtask setup` does)"
            );
        }
        let directory = crate::leftovers::directory("containerd")?;
        let path = directory.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.rsplit('-').next())
            .unwrap_or_default()
            .to_lowercase();
        let program = format!("{PROGRAM}{}-{number}", std::process::id());
        for plugin in plugins.as_array_mut().into_iter().flatten() {
            // Without it, in /var/lib/cni/networks.
            if layout == Layout::Private
                && let Some(ipam) = plugin.get_mut("ipam").and_then(Value::as_object_mut)
                && ipam.get("type").is_some_and(|kind| kind == "host-local")
            {
                let data = path.join(IPAM_DIR).to_string_lossy().into_owned();
                ipam.entry("dataDir").or_insert(data.into());
            }
        }
        let network = json!({"cniVersion": "0.3.1", "name": "testkit", "plugins": plugins});
        fs::create_dir(path.join(PLUGINS))?;
        for plugin in fs::read_dir(PLUGIN_DIRECTORY).context(PLUGIN_DIRECTORY)? {
            let plugin = plugin?;
            symlink(plugin.path(), path.join(PLUGINS).join(plugin.file_name()))?;
        }
        fs::create_dir(path.join("net.d"))?;
        fs::write(path.join("net.d/10-testkit.conflist"), network.to_string())?;
        fs::write(path.join("config.toml"), config(path))?;
        let image = pause_image::build_archive(path, PAUSE_IMAGE, &program)?;
        let mut containerd = Self {
            netns: node.path().to_owned(),
            mounts: private_mounts(match layout {
                Layout::Private => None,
                Layout::Node => Some(path),
            })?,
            directory,
            program,
            daemon: None,
            client: None,
            sandboxes: Vec::new(),
            layout,
        };
        containerd.start_daemon()?;
        let socket = containerd.socket();
        containerd.run_in(|| {
            let mut import = Command::new("ctr");
            import
                .arg("-a")
                .arg(&socket)
                .args(["-n", "k8s.io", "images", "import"])
                .arg(&image);
            run_command(import, None).context("importing the pause image")
        })?;
        Ok(containerd)
    }

    /// Starts containerd with `ptp` and `host-local`, configured as by kind's kindnetd.
    ///
    /// # Errors
    /// As [`Containerd::start`].
    pub fn ptp(node: &Netns, subnet: &str) -> Result<Self> {
        let plugins = json!([{"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam":
            {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": subnet}]]}}]);
        Self::start(node, plugins)
    }

    /// The CRI socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("containerd.sock")
    }

    /// The data directory of `host-local`.
    #[must_use]
    pub fn ipam_dir(&self) -> PathBuf {
        self.directory.path().join(IPAM_DIR)
    }

    /// Adds a network plugin, or replaces one: a program for the shell.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add_plugin(&self, name: &str, program: &str) -> Result<()> {
        let path = self.directory.path().join(PLUGINS).join(name);
        fs::write(&path, program)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Mounts an empty `/opt` with the directory of network plugins, so that it is as on a node whatever the machine has.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn mount_opt(&self) -> Result<()> {
        self.run_in(|| {
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "tmpfs", "/opt"]);
            run_command(mount, None)?;
            Ok(fs::create_dir_all("/opt/cni/bin")?)
        })
    }

    /// Deletes all IPAM state while pods run, as in the incidents.
    ///
    /// # Errors
    /// There is none.
    pub fn wipe_ipam(&self) -> Result<()> {
        fs::remove_dir_all(self.ipam_dir()).context("wiping the IPAM directory")
    }

    /// The command for an agent inside containerd's mount namespace.
    #[must_use]
    pub fn agent_command<S: Into<std::ffi::OsString>>(
        &self,
        binary: impl AsRef<Path>,
        args: impl IntoIterator<Item = S>,
    ) -> AgentCommand {
        let mounts = format!(
            "--mount=/proc/{}/fd/{}",
            std::process::id(),
            self.mounts.descriptor()
        );
        let mut command = AgentCommand::new("nsenter", [mounts, "--".to_owned()]);
        command = command.arg(binary.as_ref());
        args.into_iter()
            .fold(command, |command, arg| command.arg(arg))
    }

    /// Creates pods one after another, each in the namespace `default` or in that of its name: `kube-system/web`.
    ///
    /// # Errors
    /// The runtime fails.
    pub fn run_pods<N: Into<String>>(
        &mut self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Vec<Sandbox>> {
        let client = self.client.as_ref().context("containerd is stopped")?;
        let mut created = Vec::new();
        for name in names {
            let name = name.into();
            let (namespace, name) = name.split_once('/').unwrap_or(("default", &name));
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            let uid = format!("uid-{name}");
            let id = client.run(&namespace, &name, &uid)?;
            let sandbox = Sandbox {
                id,
                namespace,
                name,
                uid,
            };
            self.sandboxes.push(sandbox.clone());
            created.push(sandbox);
        }
        Ok(created)
    }

    /// Stops and removes a pod.
    ///
    /// # Errors
    /// The runtime fails.
    pub fn remove_pod(&mut self, sandbox: &Sandbox) -> Result<()> {
        let client = self.client.as_ref().context("containerd is stopped")?;
        self.sandboxes.retain(|other| other != sandbox);
        client.remove(&sandbox.id)
    }

    /// The runtime's verbose status of a pod.
    ///
    /// # Errors
    /// The runtime fails.
    pub fn info(&self, sandbox: &Sandbox) -> Result<Value> {
        let client = self.client.as_ref().context("containerd is stopped")?;
        serde_json::from_str(&client.info(&sandbox.id)?).context("the runtime's verbose status")
    }

    /// The files of the CNI result cache: name and content.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn cni_cache(&self) -> Result<Vec<(String, String)>> {
        self.run_in(|| {
            let mut files = Vec::new();
            for entry in fs::read_dir("/var/lib/cni/results").context("the CNI result cache")? {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                files.push((name.into_owned(), fs::read_to_string(&path)?));
            }
            Ok(files)
        })
    }

    /// Stops the daemon; its pods keep running.
    ///
    /// # Errors
    /// The daemon cannot be stopped.
    pub fn stop_daemon(&mut self) -> Result<()> {
        self.client = None;
        self.daemon
            .take()
            .map_or(Ok(()), |mut daemon| daemon.stop())
    }

    /// Starts the daemon, even after [`Containerd::stop_daemon`], and waits until it responds.
    ///
    /// # Errors
    /// The daemon exits or does not respond in time; the error contains the end of its log.
    pub fn start_daemon(&mut self) -> Result<()> {
        let path = self.directory.path();
        let mut command = Command::new("containerd");
        command.arg("--config").arg(path.join("config.toml"));
        let log = path.join("log");
        let daemon = self.run_in(|| Daemon::start(command, &log))?;
        let daemon = self.daemon.insert(daemon);
        let socket = path.join("containerd.sock");
        // It does not notify its readiness.
        let client = until(
            START_TIMEOUT,
            "containerd to respond",
            || match CriClient::open(&socket) {
                Err(_) if daemon.exit_status()?.is_some() => Ok(Err(anyhow!("containerd exited"))),
                other => other.map(Ok),
            },
        );
        self.client = Some(client.flatten().with_context(|| daemon.log_tail())?);
        Ok(())
    }

    /// The directory with all files of this containerd.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn client(&self) -> Result<&CriClient> {
        self.client.as_ref().context("containerd is stopped")
    }

    /// Runs a pod in the node's network, without CNI.
    pub(crate) fn run_node_pod(
        &mut self,
        name: &str,
        logs: &Path,
        privileged: bool,
    ) -> Result<(Sandbox, PodSandboxConfig)> {
        let uid = format!("uid-{name}-{}", self.sandboxes.len());
        let namespace = "ip-conflict-detector".to_owned();
        let (id, config) = self
            .client()?
            .run_on_node(&namespace, name, &uid, logs, privileged)?;
        let sandbox = Sandbox {
            id,
            namespace,
            name: name.to_owned(),
            uid,
        };
        self.sandboxes.push(sandbox.clone());
        Ok((sandbox, config))
    }

    /// Runs `body` in the node's network namespace and containerd's mount namespace.
    ///
    /// # Errors
    /// That of `body`, or the namespaces cannot be entered.
    pub fn run_in<T: Send>(&self, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.mounts.run_in_network(Some(&self.netns), body)
    }

    fn clean_up(&mut self) -> Result<()> {
        if self.client.is_none() && !self.sandboxes.is_empty() {
            self.start_daemon()?;
        }
        let mut outcome = Ok(());
        if let Some(client) = &self.client {
            let ids = match self.layout {
                Layout::Private => self.sandboxes.drain(..).map(|sandbox| sandbox.id).collect(),
                Layout::Node => client.list()?,
            };
            for id in ids {
                outcome = outcome.and(client.remove(&id));
            }
        }
        self.stop_daemon().and(outcome)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if let Err(error) = self.clean_up() {
            // `drop` cannot return an error.
            let _ = writeln!(
                std::io::stderr(),
                "containerd was not cleaned up: {error:#}"
            );
            let shim = self.socket().display().to_string();
            kill_processes(|arguments| {
                arguments.contains(&shim)
                    || arguments.first() == Some(&format!("/{}", self.program))
            });
        }
    }
}
