//! Named network namespaces that are removed when their value is dropped.
//!
//! Invariants: a name contains the id of the process that created it, so that a later run can remove leftovers of dead
//! processes; a namespace is removed on drop, even while a panic unwinds; a thread's namespace is changed only if the thread
//! ends afterwards.

mod leftovers;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::Write as _,
    net::{IpAddr, Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    ifaddrs::getifaddrs,
    mount::{MntFlags, MsFlags, mount, umount2},
    net::if_::{InterfaceFlags, if_nametoindex},
    sched::{CloneFlags, setns, unshare},
};

use crate::{agent::DEADLINE, command::run_command, wait::until};
pub use leftovers::remove_leftovers;

/// The directory of named namespaces, shared with iproute2 and CNI runtimes.
const DIRECTORY: &str = "/run/netns";
/// The start of every name created here; the process id follows.
const PREFIX: &str = "ipconflict-";

static COUNTER: AtomicU32 = AtomicU32::new(0);
static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static CLEAN_UP: Once = Once::new();

/// A network namespace under `/run/netns`, removed on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
    path: PathBuf,
}

impl Netns {
    /// Creates a namespace with loopback up. `prefix` labels it in the output of `ip netns`; the whole name is unique on the
    /// machine.
    ///
    /// # Errors
    /// The kernel refuses; `CAP_SYS_ADMIN` is required.
    pub fn new(prefix: &str) -> Result<Self> {
        let netns = Self::bare(prefix, true)?;
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// Creates a namespace with loopback down and, if `ipv6` is false, IPv6 disabled: then the kernel sends no frames of its
    /// own.
    ///
    /// # Errors
    /// As [`Netns::new`].
    pub fn bare(prefix: &str, ipv6: bool) -> Result<Self> {
        CLEAN_UP.call_once(remove_leftovers);
        let name = format!(
            "{PREFIX}{}-{}-{prefix}",
            std::process::id(),
            COUNTER.fetch_add(1, Ordering::Relaxed)
        );
        if name.len() > 255 || name.contains('/') {
            bail!("{prefix:?} is too long or contains a slash: not valid in a namespace name");
        }
        let path = Path::new(DIRECTORY).join(&name);
        let lock = prepare_directory()?;
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("creating {}", path.display()))?;
        // From here on, dropping the value removes the file.
        live_paths().insert(path.clone());
        let netns = Self { name, path };
        let target = &netns.path;
        on_new_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .context("creating a network namespace (requires root)")?;
            if !ipv6 {
                for device in ["all", "default"] {
                    write_sysctl(&format!("net.ipv6.conf.{device}.disable_ipv6"), "1")?;
                }
            }
            mount(
                Some("/proc/thread-self/ns/net"),
                target,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
            .with_context(|| format!("mounting the namespace on {}", target.display()))
        })?;
        drop(lock);
        Ok(netns)
    }

    /// The name, for `ip -n`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path, for `CNI_NETNS`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `body` on a new thread inside this namespace; processes that it spawns run there too.
    ///
    /// # Errors
    /// The namespace cannot be entered, or `body` fails.
    pub fn run_in<T: Send>(&self, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let namespace = File::open(&self.path)
            .with_context(|| format!("opening the namespace {}", self.path.display()))?;
        on_new_thread(|| {
            setns(&namespace, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("entering the namespace {}", self.name))?;
            body()
        })
    }

    /// Waits until a device is running (RFC 2863 `up`). After both ends of a veth pair are up, each drops frames silently, is
    /// no forwarding bridge port and has no IPv6 until the kernel's link watch worker has come to it (net/core/link_watch.c).
    ///
    /// # Errors
    /// The device does not exist, or is not running at the deadline.
    pub fn wait_running(&self, device: &str) -> Result<()> {
        self.run_in(|| {
            let what = format_args!("device {device} in {} to be running", self.name);
            until(DEADLINE, what, || {
                let entry = getifaddrs()
                    .context("listing devices")?
                    .find(|entry| entry.interface_name == device);
                match entry {
                    None => Ok(Err(anyhow!("no device {device} in {}", self.name))),
                    Some(entry) => {
                        let running = entry.flags.contains(InterfaceFlags::IFF_RUNNING);
                        ensure!(running, "one end of the veth pair is down");
                        Ok(Ok(()))
                    }
                }
            })?
        })
    }

    /// Waits until the kernel takes packets for one of its own addresses. It does so for an IPv6 address a moment after `ip address
    /// add` returns, even with `nodad`: a worker joins its group and adds its route (`addrconf_dad_work` in net/ipv6/addrconf.c).
    ///
    /// # Errors
    /// `ip` fails, or the address is not one of its own at the deadline.
    pub fn wait_local(&self, address: IpAddr) -> Result<()> {
        until(
            DEADLINE,
            format_args!("the local route of {address}"),
            || {
                let family = if address.is_ipv6() { "-6" } else { "-4" };
                let route = self.ip(&format!(
                    "{family} route show table local type local {address}"
                ))?;
                ensure!(!route.trim().is_empty(), "none");
                Ok(())
            },
        )
    }

    /// Starts a thread inside this namespace.
    ///
    /// # Errors
    /// The namespace does not exist, or the thread cannot enter it.
    pub(crate) fn spawn_in(
        &self,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<thread::JoinHandle<()>> {
        let namespace = File::open(&self.path)
            .with_context(|| format!("opening the namespace {}", self.path.display()))?;
        let (entered, outcome) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let result = setns(&namespace, CloneFlags::CLONE_NEWNET);
            // The receiver waits for it.
            let _ = entered.send(result);
            if result.is_ok() {
                body();
            }
        });
        let name = &self.name;
        outcome
            .recv()?
            .with_context(|| format!("entering the namespace {name}"))?;
        Ok(thread)
    }

    /// Connects to ports on the namespace's loopback, even after this value is dropped.
    pub(crate) fn loopback_connector(
        &self,
    ) -> Result<impl Fn(u16) -> Result<TcpStream> + Send + Sync + 'static> {
        let namespace = File::open(&self.path)
            .with_context(|| format!("opening the namespace {}", self.path.display()))?;
        Ok(move |port| {
            on_new_thread(|| {
                setns(&namespace, CloneFlags::CLONE_NEWNET).context("entering a namespace")?;
                let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
                connected.with_context(|| format!("connecting to port {port}"))
            })
        })
    }

    /// Runs a command in the namespace to completion and returns its stdout.
    ///
    /// # Errors
    /// The command cannot be started or exits with another code than 0; the error contains its output.
    pub fn exec<S: AsRef<OsStr> + Sync>(&self, argv: &[S]) -> Result<String> {
        let (program, args) = argv.split_first().context("an empty command")?;
        self.run_in(|| {
            let mut command = Command::new(program);
            command.args(args);
            run_command(command, None)
        })
    }

    /// Runs `ip -n NAME` with the whitespace-separated arguments in `line` and returns its stdout.
    ///
    /// # Errors
    /// As [`Netns::exec`].
    pub fn ip(&self, line: &str) -> Result<String> {
        let mut command = Command::new("ip");
        command
            .args(["-n", &self.name])
            .args(line.split_whitespace());
        run_command(command, None)
    }

    /// Runs all lines with one `ip -n NAME -batch -`: about 50 µs per line instead of a process each. Stops at the first
    /// error.
    ///
    /// # Errors
    /// As [`Netns::exec`]; the error contains the line that failed.
    pub fn ip_batch<S: AsRef<str>>(&self, lines: impl IntoIterator<Item = S>) -> Result<()> {
        let mut script = String::new();
        for line in lines {
            script.push_str(line.as_ref());
            script.push('\n');
        }
        if script.is_empty() {
            return Ok(());
        }
        let mut command = Command::new("ip");
        command.args(["-n", &self.name, "-batch", "-"]);
        run_command(command, Some(&script))
            .map(drop)
            .map_err(|error| match failed_line(&script, &format!("{error:#}")) {
                Some(line) => error.context(format!("the line was: {line}")),
                None => error,
            })
    }

    /// Sets a kernel parameter of the namespace, such as `net.ipv4.ip_forward`. A dot inside a device name is written as `/`,
    /// as for `sysctl`.
    ///
    /// # Errors
    /// The parameter does not exist or rejects the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        // `/proc/sys/net` shows the namespace of the thread that opens it.
        self.run_in(|| write_sysctl(key, value))
    }

    /// The interface index of a device in the namespace.
    ///
    /// # Errors
    /// The device does not exist.
    pub fn ifindex(&self, device: &str) -> Result<u32> {
        self.run_in(|| {
            if_nametoindex(device).with_context(|| format!("no device {device} in {}", self.name))
        })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        live_paths().remove(&self.path);
        if let Err(error) = remove(&self.path) {
            // `drop` cannot return an error; the next run removes it.
            let _ = writeln!(
                std::io::stderr(),
                "namespace {} was not removed: {error:#}",
                self.name
            );
        }
    }
}

/// Removes every namespace of this process: for a SIGINT handler, after which nothing is dropped.
///
/// # Errors
/// At least one cannot be removed; the others are removed nevertheless.
pub fn remove_all_namespaces() -> Result<()> {
    let mut outcome = Ok(());
    for path in std::mem::take(&mut *live_paths()) {
        outcome = remove(&path).and(outcome);
    }
    outcome
}

/// Runs `body` on a thread of its own, which may enter other namespaces because it ends afterwards.
pub(crate) fn on_new_thread<T: Send>(body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        scope
            .spawn(body)
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The line of the script that iproute2 reports as `Command failed -:7`.
fn failed_line<'a>(script: &'a str, message: &str) -> Option<&'a str> {
    let (_, rest) = message.split_once("Command failed -:")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    script
        .lines()
        .nth(digits.parse::<usize>().ok()?.checked_sub(1)?)
}

pub(crate) fn write_sysctl(key: &str, value: &str) -> Result<()> {
    let swapped: String = key
        .chars()
        .map(|character| match character {
            '.' => '/',
            '/' => '.',
            other => other,
        })
        .collect();
    let path = Path::new("/proc/sys").join(swapped);
    fs::write(&path, value).with_context(|| format!("writing {value:?} to {}", path.display()))
}

fn live_paths() -> std::sync::MutexGuard<'static, BTreeSet<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `/run/netns` a shared mount as iproute2 does, so that an unmount here propagates to copies of the mount in other
/// mount namespaces. The lock, which iproute2 takes too, keeps two processes from mounting it twice.
fn prepare_directory() -> Result<Flock<File>> {
    fs::create_dir_all(DIRECTORY).with_context(|| format!("creating {DIRECTORY}"))?;
    let lock = Flock::lock(File::open(DIRECTORY)?, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .with_context(|| format!("locking {DIRECTORY}"))?;
    let share = || {
        let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
        mount(None::<&str>, DIRECTORY, None::<&str>, flags, None::<&str>)
    };
    match share() {
        Err(Errno::EINVAL) => {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(
                Some(DIRECTORY),
                DIRECTORY,
                None::<&str>,
                flags,
                None::<&str>,
            )
            .with_context(|| format!("mounting {DIRECTORY} on itself"))?;
            share()
        }
        other => other,
    }
    .with_context(|| format!("making {DIRECTORY} a shared mount (requires root)"))?;
    Ok(lock)
}

fn remove(path: &Path) -> Result<()> {
    match umount2(path, MntFlags::MNT_DETACH) {
        // EINVAL: created but not mounted yet. ENOENT: removed by another process.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(errno) => return Err(errno).with_context(|| format!("unmounting {}", path.display())),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::failed_line;

    #[test]
    fn batch_error_names_its_line() {
        let script = "link set lo up\nlink set gone up\n";
        assert_eq!(
            failed_line(script, "Cannot find device \"gone\"\nCommand failed -:2"),
            Some("link set gone up")
        );
        assert_eq!(failed_line(script, "something else"), None);
    }
}
