//! The other programs as processes: how each is started so that it tells as soon as it can, and what it wrote.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result};

use super::{
    BRIDGE,
    words::{Line, Seen, arpalert_says, arpwatch_says, bpftrace_says, monitor_says, tcpdump_says},
};
use detector_testkit::netns::Netns;

/// Lines kept of one program.
const LINES: usize = 500_000;

/// One of the others.
pub(super) struct Peer {
    pub(super) name: &'static str,
    /// Finds conflicts in what it wrote.
    interpret: fn(&[Line]) -> Vec<Seen>,
    lines: Arc<Mutex<Vec<Line>>>,
    pub(super) state: State,
}

pub(super) enum State {
    Running(Child),
    /// Could not be started, and why.
    Absent(String),
}

impl Peer {
    pub(super) fn start(
        node: &Netns,
        name: &'static str,
        interpret: fn(&[Line]) -> Vec<Seen>,
        command: &mut Command,
    ) -> Self {
        let lines = Arc::<Mutex<Vec<Line>>>::default();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let spawned = node.run_in(|| command.spawn().context("it cannot be started"));
        let state = match spawned {
            Ok(mut child) => {
                if let Some(stdout) = child.stdout.take() {
                    read(stdout, &lines);
                }
                if let Some(stderr) = child.stderr.take() {
                    read(stderr, &lines);
                }
                State::Running(child)
            }
            Err(error) => State::Absent(format!("{error:#}")),
        };
        Self {
            name,
            interpret,
            lines,
            state,
        }
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        (self.interpret)(&self.lines())
    }

    /// Has it ended? Then its last words are the reason.
    pub(super) fn check(&mut self) {
        let State::Running(child) = &mut self.state else {
            return;
        };
        if let Ok(Some(status)) = child.try_wait() {
            let last: Vec<_> = self
                .lines()
                .into_iter()
                .map(|(_, line)| line)
                .filter(|line| line.contains(char::is_alphanumeric))
                .collect();
            let words = last.last().cloned().unwrap_or_default();
            self.state = State::Absent(format!("it ended with {status}: {words}"));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let State::Running(child) = &mut self.state {
            // Fails only where it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn read(stream: impl Read + Send + 'static, lines: &Arc<Mutex<Vec<Line>>>) {
    let lines = Arc::clone(lines);
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let at = Instant::now();
            let Ok(line) = line else { break };
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() < LINES {
                lines.push((at, String::from_utf8_lossy(&line).into_owned()));
            }
        }
    });
}

/// Starts all of them; `files` is a directory for what they want to have on the disk.
pub(super) fn start(node: &Netns, files: &Path) -> Result<Vec<Peer>> {
    let database = files.join("arp.dat");
    fs::write(&database, "").context("arpwatch's database")?;
    let config = files.join("arpalert.conf");
    fs::write(&config, arpalert_config(files)).context("arpalert's configuration")?;
    fs::write(files.join("empty"), "").context("arpalert's lists")?;
    // It looks up the name of every station before it reports it: without a name server that takes seconds.
    let names = files.join("nsswitch.conf");
    fs::write(&names, "hosts: files\n").context("arpwatch's name service")?;
    let mut arpwatch = Command::new("unshare");
    arpwatch
        .args(["--mount", "sh", "-c"])
        .arg("mount --bind \"$0\" /etc/nsswitch.conf; exec arpwatch \"$@\"")
        .arg(&names)
        .args(["-d", "-N", "-a", "-i", BRIDGE, "-f"])
        .arg(&database);
    let mut arpalert = Command::new("arpalert");
    arpalert.args(["-F", "-i", BRIDGE, "-f"]).arg(&config);
    let tcpdump = |more: &[&str]| {
        let mut tcpdump = Command::new("tcpdump");
        tcpdump
            .args(["-l", "-n", "-e", "-i", BRIDGE])
            .args(more)
            .arg("arp");
        tcpdump
    };
    let mut monitor = Command::new("ip");
    monitor.args(["monitor", "all"]);
    // Tracepoints stand in tracefs, which is not mounted everywhere.
    let program = r#"tracepoint:neigh:neigh_update { printf("%s %r\n", ntop(args->primary_key4), buf(args->new_lladdr, 6)); }"#;
    let mut bpftrace = Command::new("unshare");
    bpftrace.args(["--mount", "sh", "-c"]).args([
        "mount -t tracefs tracefs /sys/kernel/tracing; mount -t debugfs debugfs /sys/kernel/debug; exec bpftrace -B line -e \"$0\"",
        program,
    ]);
    Ok(vec![
        Peer::start(node, "arpwatch", arpwatch_says, &mut arpwatch),
        Peer::start(node, "arpalert", arpalert_says, &mut arpalert),
        Peer::start(node, "tcpdump -l", tcpdump_says, &mut tcpdump(&[])),
        Peer::start(
            node,
            "tcpdump -l --immediate-mode",
            tcpdump_says,
            &mut tcpdump(&["--immediate-mode"]),
        ),
        Peer::start(node, "ip monitor all", monitor_says, &mut monitor),
        Peer::start(
            node,
            "bpftrace on neigh_update",
            bpftrace_says,
            &mut bpftrace,
        ),
    ])
}

/// As Debian's, with everything on, no limits on what is told, and the log on stdout.
fn arpalert_config(files: &Path) -> String {
    let file = |name: &str| files.join(name).display().to_string();
    format!(
        "user = root\n\
         maclist file = \"{empty}\"\nmaclist alert file = \"{empty}\"\n\
         maclist leases file = \"{leases}\"\nlock file = \"{lock}\"\nmac vendor file = \"{empty}\"\n\
         use syslog = false\nlog level = 6\ndaemon = false\numask = 177\n\
         catch only arp = true\ndump inter = 3600\nmax entry = 1000000\nmax request = 1000000\n\
         anti flood interval = 0\nanti flood global = 1000000\n\
         ignore me = true\nignore self test = false\n\
         log ip change = true\nlog mac change = true\nlog new address = true\nlog new mac address = true\n",
        empty = file("empty"),
        leases = file("leases"),
        lock = file("pid"),
    )
}
