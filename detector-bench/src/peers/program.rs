//! The other programs as processes: how each is started so that it reports as soon as possible, and its output.

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
use detector_testkit::Netns;

use super::{
    BRIDGE,
    output_parsers::{
        Detection, TimedLine, parse_arpalert, parse_arpwatch, parse_bpftrace, parse_monitor,
        parse_tcpdump,
    },
};

/// The largest number of lines kept per program.
const MAX_LINES: usize = 500_000;

/// One of the other programs.
pub(super) struct PeerProgram {
    pub(super) name: &'static str,
    /// Finds conflicts in its output.
    parse: fn(&[TimedLine]) -> Vec<Detection>,
    lines: Arc<Mutex<Vec<TimedLine>>>,
    pub(super) state: PeerState,
}

pub(super) enum PeerState {
    Running(Child),
    /// It could not be started or has exited, with the reason.
    Failed(String),
}

impl PeerProgram {
    fn start(
        node: &Netns,
        name: &'static str,
        parse: fn(&[TimedLine]) -> Vec<Detection>,
        command: &mut Command,
    ) -> Self {
        let lines = Arc::<Mutex<Vec<TimedLine>>>::default();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let spawned = node.run_in(|| command.spawn().context("it cannot be started"));
        let state = match spawned {
            Ok(mut child) => {
                if let Some(stdout) = child.stdout.take() {
                    read_lines(stdout, &lines);
                }
                if let Some(stderr) = child.stderr.take() {
                    read_lines(stderr, &lines);
                }
                PeerState::Running(child)
            }
            Err(error) => PeerState::Failed(format!("{error:#}")),
        };
        Self {
            name,
            parse,
            lines,
            state,
        }
    }

    pub(super) fn lines(&self) -> Vec<TimedLine> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn detections(&self) -> Vec<Detection> {
        (self.parse)(&self.lines())
    }

    /// Checks whether it has exited; then its last line is part of the reason.
    pub(super) fn update_state(&mut self) {
        let PeerState::Running(child) = &mut self.state else {
            return;
        };
        if let Ok(Some(status)) = child.try_wait() {
            let text: Vec<_> = self
                .lines()
                .into_iter()
                .map(|(_, line)| line)
                .filter(|line| line.contains(char::is_alphanumeric))
                .collect();
            let last_line = text.last().cloned().unwrap_or_default();
            self.state = PeerState::Failed(format!("it exited with {status}: {last_line}"));
        }
    }
}

impl Drop for PeerProgram {
    fn drop(&mut self) {
        if let PeerState::Running(child) = &mut self.state {
            // Fails only if it has exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn read_lines(stream: impl Read + Send + 'static, lines: &Arc<Mutex<Vec<TimedLine>>>) {
    let lines = Arc::clone(lines);
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let at = Instant::now();
            let Ok(line) = line else { break };
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() < MAX_LINES {
                lines.push((at, String::from_utf8_lossy(&line).into_owned()));
            }
        }
    });
}

/// A program that can be started.
pub(super) struct PeerCommand {
    name: &'static str,
    parse: fn(&[TimedLine]) -> Vec<Detection>,
    command: Command,
}

impl PeerCommand {
    /// Starts it on the node.
    pub(super) fn start(mut self, node: &Netns) -> PeerProgram {
        PeerProgram::start(node, self.name, self.parse, &mut self.command)
    }
}

/// All programs; `files` is a directory for their files.
pub(super) fn all(files: &Path) -> Result<Vec<PeerCommand>> {
    let database = files.join("arp.dat");
    fs::write(&database, "").context("creating arpwatch's database")?;
    let config = files.join("arpalert.conf");
    fs::write(&config, arpalert_config(files)).context("writing arpalert's configuration")?;
    fs::write(files.join("empty"), "").context("creating arpalert's lists")?;
    // arpwatch resolves the name of every host before it reports it, which takes seconds without a name server.
    let names = files.join("nsswitch.conf");
    fs::write(&names, "hosts: files\n").context("writing arpwatch's nsswitch.conf")?;
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
    // Tracepoints are in tracefs, which is not mounted everywhere.
    let program = r#"tracepoint:neigh:neigh_update { printf("%s %r\n", ntop(args->primary_key4), buf(args->new_lladdr, 6)); }"#;
    let mut bpftrace = Command::new("unshare");
    bpftrace.args(["--mount", "sh", "-c"]).args([
        "mount -t tracefs tracefs /sys/kernel/tracing; mount -t debugfs debugfs /sys/kernel/debug; exec bpftrace -B line -e \"$0\"",
        program,
    ]);
    let peer = |name, parse, command| PeerCommand {
        name,
        parse,
        command,
    };
    Ok(vec![
        peer("arpwatch", parse_arpwatch, arpwatch),
        peer("arpalert", parse_arpalert, arpalert),
        peer("tcpdump -l", parse_tcpdump, tcpdump(&[])),
        peer(
            "tcpdump -l --immediate-mode",
            parse_tcpdump,
            tcpdump(&["--immediate-mode"]),
        ),
        peer("ip monitor all", parse_monitor, monitor),
        peer("bpftrace on neigh_update", parse_bpftrace, bpftrace),
    ])
}

/// Debian's configuration with all detections on, no rate limits, and the log on stdout.
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
