//! A real containerd with its CRI plugin and real CNI plugins, in a node's network namespace and a mount namespace of its
//! own, so that nothing of it stays behind and several run side by side.
//!
//! `/run` and `/var/lib` are empty file systems in there: the CNI result cache, the pods' network namespaces and the
//! shims' sockets stand where the agent looks for them by default. An agent that is to see them is started with
//! [`Containerd::inside`].

mod place;

use std::{
    fs::{self, File},
    io::Write as _,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sched::{CloneFlags, setns, unshare},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    agent::AgentCommand,
    cri::{Client, PodSandboxConfig},
    netns::Netns,
    pause,
};
use place::{IMAGE, PROGRAM, config, end_processes, private_mounts, sweep};

/// containerd takes half a second to start, more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running containerd; stopped and cleaned up on drop.
#[derive(Debug)]
pub struct Containerd {
    directory: TempDir,
    /// The network namespace's file.
    netns: PathBuf,
    /// The mount namespace; open, it lives on while containerd is stopped.
    mounts: File,
    program: String,
    daemon: Option<Child>,
    client: Option<Client>,
    sandboxes: Vec<Sandbox>,
}

/// A pod that containerd runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Uid of the pod.
    pub uid: String,
}

impl Containerd {
    /// Starts one whose pods' network is set up by these plugins (a CNI `plugins` list). `host-local` keeps its state
    /// under [`Containerd::ipam_dir`].
    ///
    /// # Errors
    /// Where a package is missing, or it does not answer in time.
    pub fn start(node: &Netns, mut plugins: Value) -> Result<Self> {
        sweep();
        for program in ["containerd", "runc", "ctr"] {
            ensure!(
                Path::new("/usr/bin").join(program).exists()
                    || Path::new("/usr/sbin").join(program).exists(),
                "{program} is not there: install Debian's containerd and runc (cargo xtask setup does)"
            );
        }
        let directory = tempfile::Builder::new()
            .prefix("ipconflict-containerd-")
            .tempdir()
            .context("making a directory for containerd")?;
        let path = directory.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.rsplit('-').next())
            .unwrap_or_default()
            .to_lowercase();
        let program = format!("{PROGRAM}{}-{number}", std::process::id());
        for plugin in plugins.as_array_mut().into_iter().flatten() {
            if let Some(ipam) = plugin.get_mut("ipam").and_then(Value::as_object_mut) {
                let data = path.join("ipam").to_string_lossy().into_owned();
                ipam.insert("dataDir".to_owned(), data.into());
            }
        }
        let network = json!({"cniVersion": "0.3.1", "name": "testkit", "plugins": plugins});
        fs::create_dir(path.join("net.d"))?;
        fs::write(path.join("net.d/10-testkit.conflist"), network.to_string())?;
        fs::write(path.join("config.toml"), config(path))?;
        let image = pause::archive(path, IMAGE, &program)?;
        let mut containerd = Self {
            netns: node.path().to_owned(),
            mounts: private_mounts()?,
            directory,
            program,
            daemon: None,
            client: None,
            sandboxes: Vec::new(),
        };
        containerd.resume()?;
        let socket = containerd.socket();
        containerd.run_inside(|| {
            let mut import = Command::new("ctr");
            import
                .arg("-a")
                .arg(&socket)
                .args(["-n", "k8s.io", "images", "import"])
                .arg(&image);
            crate::netns::finish(import, None).context("importing the pause image")
        })?;
        Ok(containerd)
    }

    /// `ptp` with `host-local`, as kind's kindnetd sets it up.
    ///
    /// # Errors
    /// As [`Containerd::start`].
    pub fn ptp(node: &Netns, subnet: &str) -> Result<Self> {
        let plugins = json!([{"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam":
            {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": subnet}]]}}]);
        Self::start(node, plugins)
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("containerd.sock")
    }

    /// Where `host-local` keeps which address is whose.
    #[must_use]
    pub fn ipam_dir(&self) -> PathBuf {
        self.directory.path().join("ipam")
    }

    /// Deletes all IPAM state while pods run: what the incidents were made of.
    ///
    /// # Errors
    /// Where there is none.
    pub fn wipe_ipam(&self) -> Result<()> {
        fs::remove_dir_all(self.ipam_dir()).context("wiping the IPAM directory")
    }

    /// An agent that sees the mounts containerd works in.
    #[must_use]
    pub fn inside<S: Into<std::ffi::OsString>>(
        &self,
        binary: impl AsRef<Path>,
        args: impl IntoIterator<Item = S>,
    ) -> AgentCommand {
        let mounts = format!(
            "--mount=/proc/{}/fd/{}",
            std::process::id(),
            self.mounts.as_raw_fd()
        );
        let mut command = AgentCommand::new("nsenter", [mounts, "--".to_owned()]);
        command = command.arg(binary.as_ref());
        args.into_iter()
            .fold(command, |command, arg| command.arg(arg))
    }

    /// Makes pods, one after another, as kubelet does.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn run_pods<N: Into<String>>(
        &mut self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Vec<Sandbox>> {
        let client = self.client.as_ref().context("containerd is stopped")?;
        let mut made = Vec::new();
        for name in names {
            let name = name.into();
            let (namespace, uid) = ("default".to_owned(), format!("uid-{name}"));
            let id = client.run(&namespace, &name, &uid)?;
            let sandbox = Sandbox {
                id,
                namespace,
                name,
                uid,
            };
            self.sandboxes.push(sandbox.clone());
            made.push(sandbox);
        }
        Ok(made)
    }

    /// Stops and removes a pod, as kubelet does.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn remove_pod(&mut self, sandbox: &Sandbox) -> Result<()> {
        let client = self.client.as_ref().context("containerd is stopped")?;
        self.sandboxes.retain(|other| other != sandbox);
        client.remove(&sandbox.id)
    }

    /// What containerd says of a pod in its verbose status, JSON.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn info(&self, sandbox: &Sandbox) -> Result<Value> {
        let client = self.client.as_ref().context("containerd is stopped")?;
        serde_json::from_str(&client.info(&sandbox.id)?).context("the runtime's verbose status")
    }

    /// The files of the CNI result cache, by name.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn cni_cache(&self) -> Result<Vec<(String, String)>> {
        self.run_inside(|| {
            let mut files = Vec::new();
            for entry in fs::read_dir("/var/lib/cni/results").context("the CNI result cache")? {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                files.push((name.into_owned(), fs::read_to_string(&path)?));
            }
            Ok(files)
        })
    }

    /// Stops the daemon; its pods live on.
    ///
    /// # Errors
    /// Where it does not end.
    pub fn pause(&mut self) -> Result<()> {
        self.client = None;
        let Some(mut daemon) = self.daemon.take() else {
            return Ok(());
        };
        kill(Pid::from_raw(i32::try_from(daemon.id())?), Signal::SIGTERM)
            .context("stopping containerd")?;
        let until = Instant::now() + PATIENCE;
        while daemon
            .try_wait()
            .context("waiting for containerd")?
            .is_none()
        {
            if Instant::now() > until {
                daemon.kill().context("killing containerd")?;
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Starts the daemon (again) and waits until it answers.
    ///
    /// # Errors
    /// Where it does not within half a minute; the message holds its log.
    pub fn resume(&mut self) -> Result<()> {
        let path = self.directory.path();
        let log = File::options()
            .create(true)
            .append(true)
            .open(path.join("log"))?;
        let daemon = self.run_inside(|| {
            let mut command = Command::new("containerd");
            command
                .arg("--config")
                .arg(path.join("config.toml"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            command.spawn().context("starting containerd")
        })?;
        let daemon = self.daemon.insert(daemon);
        let socket = self.directory.path().join("containerd.sock");
        let until = Instant::now() + PATIENCE;
        loop {
            // It tells nobody that it is ready; asking is all there is.
            match Client::open(&socket) {
                Ok(client) => {
                    self.client = Some(client);
                    return Ok(());
                }
                Err(error) if Instant::now() > until || daemon.try_wait()?.is_some() => {
                    let log = fs::read_to_string(path.join("log")).unwrap_or_default();
                    let end: Vec<_> = log.lines().rev().take(20).collect();
                    bail!("containerd does not answer: {error:#}\n{}", end.join("\n"));
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Where all of it is kept.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn client(&self) -> Result<&Client> {
        self.client.as_ref().context("containerd is stopped")
    }

    /// A pod in the node's network, which no CNI plugin sees.
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

    pub(crate) fn run_inside<T: Send>(&self, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let netns = File::open(&self.netns).context("opening the node's namespace")?;
        let mounts = &self.mounts;
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                setns(&netns, CloneFlags::CLONE_NEWNET).context("entering the node")?;
                // A thread that shares its root with others may not change its mounts.
                unshare(CloneFlags::CLONE_FS).context("leaving the shared root")?;
                setns(mounts, CloneFlags::CLONE_NEWNS).context("entering the mounts")?;
                body()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn clean_up(&mut self) -> Result<()> {
        if self.client.is_none() && !self.sandboxes.is_empty() {
            self.resume()?;
        }
        let mut outcome = Ok(());
        if let Some(client) = &self.client {
            for sandbox in self.sandboxes.drain(..) {
                outcome = outcome.and(client.remove(&sandbox.id));
            }
        }
        self.pause().and(outcome)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if let Err(error) = self.clean_up() {
            // A drop cannot fail.
            let _ = writeln!(
                std::io::stderr(),
                "containerd was not cleaned up: {error:#}"
            );
            let shim = self.socket().display().to_string();
            end_processes(|words| {
                words.contains(&shim) || words.first() == Some(&format!("/{}", self.program))
            });
        }
    }
}
