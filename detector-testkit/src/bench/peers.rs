//! Who else sees a conflict, and after how long: the programs that Debian has, on the same frames at the same time.
//!
//! All pods are ports of one bridge and everybody else listens on the bridge, where both claims come by: behind a veth
//! each, as with `ptp` or Calico, a program that watches one device sees one claimant only. The kernel is told to learn
//! from announcements (`arp_accept`), which it does not by default and without which its neighbour table says nothing.
//! `tcpdump`, `ip monitor` and `bpftrace` do not look for conflicts; what would compare their lines is this process, which costs less
//! than any script. Times are taken when a line is read.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader, Read},
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{
    Figure, Goal,
    statistics::{median, percentile},
};
use crate::{
    agent::{Agent, AgentCommand, DEADLINE},
    frames::{Frame, FrameSender},
    netns::Netns,
    node::{Node, Pod, PodSpec},
};

const GROUP: &str = "Against other programs";
const BRIDGE: &str = "br0";
const PAIRS: u32 = 20;
/// How long the others may take to come up.
const WARM_UP: Duration = Duration::from_secs(10);
/// How long what was seen may take to be told, after the last frame.
const LATE: Duration = Duration::from_secs(4);
/// Lines kept of one program.
const LINES: usize = 500_000;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many conflicts.
    pub conflicts: u32,
    /// Rest after each frame.
    pub rest: Duration,
}

/// A line and when it was read.
type Line = (Instant, String);
/// When which address was told to be in conflict.
type Seen = (Instant, Ipv4Addr);

/// One of the others.
struct Peer {
    name: &'static str,
    /// Finds conflicts in what it wrote.
    interpret: fn(&[Line]) -> Vec<Seen>,
    lines: Arc<Mutex<Vec<Line>>>,
    state: State,
}

enum State {
    Running(Child),
    /// Could not be started, and why.
    Absent(String),
}

impl Peer {
    fn start(
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

    fn lines(&self) -> Vec<Line> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn seen(&self) -> Vec<Seen> {
        (self.interpret)(&self.lines())
    }

    /// Has it ended? Then its last words are the reason.
    fn check(&mut self) {
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

/// Measures the agent and the others.
///
/// # Errors
/// Where a namespace cannot be made, or the agent misses a conflict.
pub fn run(agent: &Path, options: Options) -> Result<Vec<Figure>> {
    let node = Node::new("peers")?;
    node.add_bridge(BRIDGE, &["10.255.255.254/8"])?;
    node.sysctl(&format!("net.ipv4.conf.{BRIDGE}.arp_accept"), "1")?;
    let specs: Vec<_> = (0..PAIRS * 2)
        .map(|number| PodSpec::new(format!("veth{number}")).master(BRIDGE))
        .collect();
    let pods = node.add_pods(&specs)?;
    let senders = pods
        .iter()
        .map(FrameSender::open)
        .collect::<Result<Vec<_>>>()?;
    let files = tempfile::tempdir().context("a directory for files of the others")?;
    let agent = Agent::start_ready(&node, &AgentCommand::run(agent))?;
    let mut peers = start(&node, files.path())?;
    warm_up(&pods, &senders, &mut peers)?;

    let mut ours = Vec::new();
    let mut conflicts: HashMap<Ipv4Addr, Instant> = HashMap::new();
    let pairs = pods.chunks(2).zip(senders.chunks(2));
    for (number, (pods, senders)) in (0..options.conflicts).zip(pairs.cycle()) {
        let ([first, second], [first_sender, second_sender]) = (pods, senders) else {
            continue;
        };
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 99, 0, 1)) + number);
        first_sender.send(&Frame::announcement(first.mac(), address))?;
        thread::sleep(options.rest);
        let frame = Frame::announcement(second.mac(), address).to_bytes();
        let subject = address.to_string();
        let count = agent.count();
        let sent = Instant::now();
        second_sender.send_bytes(&frame)?;
        let received = agent
            .wait_event_after(count, DEADLINE, |event| event.raises(&subject))
            .with_context(|| format!("conflict {number} on {address}"))?;
        ours.push(received.at.saturating_duration_since(sent).as_secs_f64() * 1e6);
        conflicts.insert(address, sent);
        thread::sleep(options.rest);
    }
    thread::sleep(LATE);

    let total = conflicts.len();
    let our_median = median(&ours);
    let mut figures = vec![figure("this agent", &ours, total)];
    for peer in &mut peers {
        peer.check();
        if let State::Absent(why) = &peer.state {
            figures.push(Figure::absent(
                GROUP,
                peer.name,
                format!("did not take part: {why}"),
            ));
            continue;
        }
        let mut latency: HashMap<Ipv4Addr, f64> = HashMap::new();
        for (at, address) in peer.seen() {
            if let Some(sent) = conflicts.get(&address)
                && let Some(took) = at.checked_duration_since(*sent)
            {
                latency.entry(address).or_insert(took.as_secs_f64() * 1e6);
            }
        }
        let sample: Vec<f64> = latency.into_values().collect();
        if sample.is_empty() {
            let last = peer.lines().pop().map(|(_, line)| line).unwrap_or_default();
            figures.push(Figure::absent(
                GROUP,
                peer.name,
                format!("ran and saw none of {total} conflicts; its last line: {last:?}"),
            ));
            continue;
        }
        figures.push(figure(peer.name, &sample, total));
        figures.push(
            Figure::new(
                GROUP,
                format!("{}, p50 as a multiple of the agent's", peer.name),
                median(&sample) / our_median,
                "×",
            )
            .goal(Goal::AtLeast(1.0)),
        );
    }
    Ok(figures)
}

fn figure(name: &str, sample: &[f64], total: usize) -> Figure {
    Figure::new(GROUP, format!("{name}, p50"), median(sample), "µs").note(format!(
        "saw {} of {total}; p99 {:.0} µs, max {:.0} µs",
        sample.len(),
        percentile(sample, 99.0),
        percentile(sample, 100.0)
    ))
}

fn start(node: &Netns, files: &Path) -> Result<Vec<Peer>> {
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

/// Conflicts on other addresses until each of the others saw one, or has had its time.
fn warm_up(pods: &[Pod], senders: &[FrameSender], peers: &mut [Peer]) -> Result<()> {
    let ([first, second, ..], [first_sender, second_sender, ..]) = (pods, senders) else {
        anyhow::bail!("there are no pods");
    };
    let until = Instant::now() + WARM_UP;
    for number in 1.. {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 98, 0, 0)) + number);
        first_sender.send(&Frame::announcement(first.mac(), address))?;
        thread::sleep(Duration::from_millis(100));
        second_sender.send(&Frame::announcement(second.mac(), address))?;
        thread::sleep(Duration::from_millis(100));
        for peer in peers.iter_mut() {
            peer.check();
        }
        let waiting = peers
            .iter()
            .any(|peer| matches!(peer.state, State::Running(_)) && peer.seen().is_empty());
        if !waiting || Instant::now() > until {
            break;
        }
    }
    Ok(())
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

/// A report of several lines; only one of a change has an old station.
fn arpwatch_says(lines: &[Line]) -> Vec<Seen> {
    let mut address = None;
    let mut seen = Vec::new();
    for (at, line) in lines {
        if let Some((_, rest)) = line.split_once("ip address:") {
            address = rest.trim().parse().ok();
        } else if line.contains("old ethernet address:")
            && let Some(address) = address
        {
            seen.push((*at, address));
        }
    }
    seen
}

fn arpalert_says(lines: &[Line]) -> Vec<Seen> {
    lines
        .iter()
        .filter(|(_, line)| line.contains("type=mac_change"))
        .filter_map(|(at, line)| {
            let (_, rest) = line.split_once("ip=")?;
            let address = rest.split([',', ' ']).next()?.parse().ok()?;
            Some((*at, address))
        })
        .collect()
}

/// `TIME STATION > …, ethertype ARP (0x0806), length 42: Request who-has A tell B, length 28`.
fn tcpdump_says(lines: &[Line]) -> Vec<Seen> {
    changes(lines, |line| {
        let station = line.split(' ').nth(1)?;
        let (_, rest) = line.split_once(" tell ")?;
        Some((rest.split(',').next()?, station))
    })
}

/// `[NEIGH]ADDRESS dev br0 lladdr STATION STALE`, with or without the label.
fn monitor_says(lines: &[Line]) -> Vec<Seen> {
    changes(lines, |line| {
        let line = line.strip_prefix("[NEIGH]").unwrap_or(line);
        let (_, rest) = line.split_once(" lladdr ")?;
        Some((line.split(' ').next()?, rest.split(' ').next()?))
    })
}

fn bpftrace_says(lines: &[Line]) -> Vec<Seen> {
    changes(lines, |line| {
        let (address, station) = line.split_once(' ')?;
        // No station is given where an entry only changes its state.
        (station.starts_with("\\x") && !station.starts_with("\\x00\\x00\\x00"))
            .then_some((address, station))
    })
}

/// What a script would do: an address that comes with another station than before is in conflict.
fn changes<'a>(lines: &'a [Line], parse: fn(&'a str) -> Option<(&'a str, &'a str)>) -> Vec<Seen> {
    let mut stations: HashMap<Ipv4Addr, &str> = HashMap::new();
    let mut seen = Vec::new();
    for (at, line) in lines {
        let Some((address, station)) = parse(line) else {
            continue;
        };
        let Ok(IpAddr::V4(address)) = address.parse() else {
            continue;
        };
        if stations
            .insert(address, station)
            .is_some_and(|before| !before.eq_ignore_ascii_case(station))
        {
            seen.push((*at, address));
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{Line, arpalert_says, arpwatch_says, bpftrace_says, monitor_says, tcpdump_says};

    fn lines(text: &str) -> Vec<Line> {
        let now = Instant::now();
        text.lines().map(|line| (now, line.to_owned())).collect()
    }

    #[test]
    fn a_change_is_found_in_what_each_program_writes() {
        let arpwatch = "From: arpwatch\n ip address: 10.1.1.1\n ethernet address: 02:00:00:00:00:02\n old ethernet address: 02:00:00:00:00:01";
        assert_eq!(arpwatch_says(&lines(arpwatch)).len(), 1);
        let arpalert = "Nov 21 arpalert: seq=3, mac=02:00:00:00:00:02, ip=10.1.1.1, reference=02:00:00:00:00:01, type=mac_change, dev=br0";
        assert_eq!(arpalert_says(&lines(arpalert)).len(), 1);
        let frame = |mac| {
            format!(
                "05:00:00.000001 02:00:00:00:00:0{mac} > ff:ff:ff:ff:ff:ff, ethertype ARP (0x0806), length 42: Request who-has 10.1.1.1 tell 10.1.1.1, length 28\n"
            )
        };
        assert_eq!(tcpdump_says(&lines(&(frame(1) + &frame(2)))).len(), 1);
        assert_eq!(tcpdump_says(&lines(&(frame(1) + &frame(1)))).len(), 0);
        let monitor = "[NEIGH]10.1.1.1 dev br0 lladdr 02:00:00:00:00:01 STALE\n10.1.1.1 dev br0 lladdr 02:00:00:00:00:02 STALE";
        assert_eq!(monitor_says(&lines(monitor)).len(), 1);
        let bpftrace = r"10.1.1.1 \x02\x00\x00\x00\x00\x01
10.1.1.1 \x00\x00\x00\x00\x00\x00
10.1.1.1 \x02\x00\x00\x00\x00\x02";
        assert_eq!(bpftrace_says(&lines(bpftrace)).len(), 1);
    }
}
