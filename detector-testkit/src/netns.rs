//! Named network namespaces that go away with the value that holds them.
//!
//! Invariants: a name holds the id of the process that made it, so that a later run can tell which leftovers are
//! nobody's any more; a namespace is removed on drop, also while a panic unwinds; nothing here changes the namespace of
//! a thread that lives on.

mod leftovers;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    mount::{MntFlags, MsFlags, mount, umount2},
    net::if_::if_nametoindex,
    sched::{CloneFlags, setns, unshare},
};

pub use leftovers::sweep_leftovers;

/// Where iproute2 and CNI runtimes keep named namespaces.
const DIRECTORY: &str = "/run/netns";
/// Every name of ours begins so; the process id follows.
const PREFIX: &str = "ipconflict-";

static COUNTER: AtomicU32 = AtomicU32::new(0);
static LIVING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static SWEEP: Once = Once::new();

/// A network namespace under `/run/netns`, removed on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
    path: PathBuf,
}

impl Netns {
    /// Makes a namespace with loopback up. `prefix` is for the reader of `ip netns`; the name is unique on the machine.
    ///
    /// # Errors
    /// Where the kernel refuses: it takes `CAP_SYS_ADMIN`.
    pub fn new(prefix: &str) -> Result<Self> {
        let netns = Self::bare(prefix, true)?;
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// The same with loopback still down, and with IPv6 off in it where `ipv6` is false: such a namespace sends nothing
    /// by itself.
    ///
    /// # Errors
    /// As [`Netns::new`].
    pub fn bare(prefix: &str, ipv6: bool) -> Result<Self> {
        SWEEP.call_once(sweep_leftovers);
        let name = format!(
            "{PREFIX}{}-{}-{prefix}",
            std::process::id(),
            COUNTER.fetch_add(1, Ordering::Relaxed)
        );
        if name.len() > 255 || name.contains('/') {
            bail!("{prefix:?} does not fit into the name of a namespace");
        }
        let path = Path::new(DIRECTORY).join(&name);
        let lock = prepare_directory()?;
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("creating {}", path.display()))?;
        // From here on the value removes the file, whatever happens.
        living().insert(path.clone());
        let netns = Self { name, path };
        let target = &netns.path;
        thread::scope(|scope| {
            scope
                .spawn(move || {
                    unshare(CloneFlags::CLONE_NEWNET)
                        .context("making a network namespace (is this root?)")?;
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
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        drop(lock);
        Ok(netns)
    }

    /// Its name, as `ip -n` takes it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its path, as `CNI_NETNS` takes it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `body` on a thread of its own that stands in this namespace; processes it spawns stand there too.
    ///
    /// # Errors
    /// Where the namespace cannot be entered, and the body's own.
    pub fn run_in<T: Send>(&self, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let namespace = File::open(&self.path)
            .with_context(|| format!("opening the namespace {}", self.path.display()))?;
        thread::scope(|scope| {
            scope
                .spawn(move || {
                    setns(&namespace, CloneFlags::CLONE_NEWNET)
                        .with_context(|| format!("entering the namespace {}", self.name))?;
                    body()
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a command in the namespace to its end; gives what it wrote to stdout.
    ///
    /// # Errors
    /// Where it cannot be started or does not exit with 0; the message holds its stderr.
    pub fn exec<S: AsRef<OsStr> + Sync>(&self, argv: &[S]) -> Result<String> {
        let (program, args) = argv.split_first().context("an empty command")?;
        self.run_in(|| {
            let mut command = Command::new(program);
            command.args(args);
            finish(command, None)
        })
    }

    /// `ip -n NAME` with the words of `line`; gives what it wrote to stdout.
    ///
    /// # Errors
    /// As [`Netns::exec`].
    pub fn ip(&self, line: &str) -> Result<String> {
        let mut command = Command::new("ip");
        command
            .args(["-n", &self.name])
            .args(line.split_whitespace());
        finish(command, None)
    }

    /// One `ip -n NAME -batch -` for all lines: some 50 µs a line instead of a process each. Stops at the first error.
    ///
    /// # Errors
    /// As [`Netns::exec`]; the message holds the line that failed.
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
        finish(command, Some(&script)).map(drop).map_err(|error| {
            match failed_line(&script, &format!("{error:#}")) {
                Some(line) => error.context(format!("the line was: {line}")),
                None => error,
            }
        })
    }

    /// Sets a kernel parameter of the namespace, named with dots: `net.ipv4.ip_forward`. In a device's name a dot is
    /// written as `/`, as `sysctl` has it.
    ///
    /// # Errors
    /// Where the parameter is not there or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        // `/proc/sys/net` shows the namespace of the thread that looks.
        self.run_in(|| write_sysctl(key, value))
    }

    /// The index of a device in the namespace.
    ///
    /// # Errors
    /// Where there is no such device.
    pub fn ifindex(&self, device: &str) -> Result<u32> {
        self.run_in(|| {
            if_nametoindex(device).with_context(|| format!("no device {device} in {}", self.name))
        })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        living().remove(&self.path);
        if let Err(error) = remove(&self.path) {
            // A drop cannot fail; the next run's sweep tries again.
            let _ = writeln!(
                std::io::stderr(),
                "the namespace {} stays behind: {error:#}",
                self.name
            );
        }
    }
}

/// Removes every namespace that this process still holds: for a handler of Ctrl-C, where nothing is dropped any more.
///
/// # Errors
/// The last failure; the others are tried all the same.
pub fn remove_living_namespaces() -> Result<()> {
    let mut outcome = Ok(());
    for path in std::mem::take(&mut *living()) {
        outcome = remove(&path).and(outcome);
    }
    outcome
}

/// Runs a command to its end with `input` on stdin; gives its stdout.
pub(crate) fn finish(mut command: Command, input: Option<&str>) -> Result<String> {
    let shown = format!("{command:?}");
    command.stdin(if input.is_some() {
        Stdio::piped()
    } else {
        Stdio::null()
    });
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {shown}"))?;
    // The commands used here read all their input before they write more than a pipe holds.
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take())
        && let Err(error) = stdin.write_all(input.as_bytes())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        return Err(error).with_context(|| format!("writing to {shown}"));
    }
    let output = child
        .wait_with_output()
        .with_context(|| format!("waiting for {shown}"))?;
    if !output.status.success() {
        bail!(
            "{shown}: {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim(),
            String::from_utf8_lossy(&output.stdout).trim(),
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The script's line that iproute2 names in `Command failed -:7`.
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

fn living() -> std::sync::MutexGuard<'static, BTreeSet<PathBuf>> {
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `/run/netns` a shared mount as iproute2 does, so that a namespace removed here is not kept alive by a copy of
/// the mount elsewhere. The lock, which iproute2 takes too, keeps two processes from mounting it twice.
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
    .with_context(|| format!("making {DIRECTORY} a shared mount (is this root?)"))?;
    Ok(lock)
}

fn remove(path: &Path) -> Result<()> {
    match umount2(path, MntFlags::MNT_DETACH) {
        // EINVAL: made, not yet mounted. ENOENT: someone else removed it.
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
    fn a_batch_error_names_its_line() {
        let script = "link set lo up\nlink set gone up\n";
        assert_eq!(
            failed_line(script, "Cannot find device \"gone\"\nCommand failed -:2"),
            Some("link set gone up")
        );
        assert_eq!(failed_line(script, "something else"), None);
    }
}
