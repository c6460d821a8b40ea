//! Restarts: with `--state-dir` an agent continues the open conflicts of the previous one, however that
//! one ended.

use std::{fs, net::Ipv4Addr, path::Path};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Netns, Node, Pod, PodSpec, PrivateMounts,
    ReceivedEvent, announce, conflicts_from_events,
    event::{Conflict, RAISED},
    http::TestClient,
    until,
};
use nix::mount::{MsFlags, mount};

use crate::AGENT;

pub(super) const ADDRESS: &str = "10.244.2.10";
const OTHER: &str = "10.244.2.11";

pub(super) fn command_with_state(directory: &Path) -> AgentCommand {
    AgentCommand::run(AGENT)
        .arg("--state-dir")
        .arg(directory)
        .env("RUST_LOG", "info,detector_agent::persist=debug")
}

/// Waits until this many open conflicts are stored on disk.
pub(super) fn wait_stored(agent: &Agent, open: usize) {
    agent
        .wait_log(DEADLINE, &format!("\"open\":{open}}}"))
        .unwrap();
}

fn two_pods(prefix: &str, address: &str) -> (Node, Vec<Pod>) {
    let node = Node::new(prefix).unwrap();
    let specs = ["vetha", "vethb"].map(|d| PodSpec::new(d).address(format!("{address}/32")));
    let pods = node.add_pods(&specs).unwrap();
    (node, pods)
}

fn wait_raised(agent: &Agent, address: &str) -> ReceivedEvent {
    agent
        .wait_event(DEADLINE, |event| event.raises(address))
        .unwrap()
}

pub(super) fn raised(agent: &Agent, address: &str) -> Conflict {
    agent.wait_raised(address).unwrap()
}

/// The textual `raised_at`, with microseconds.
fn raised_at(received: &ReceivedEvent) -> &str {
    received.event.data["raised_at"].as_str().unwrap()
}

/// The event lines of all runs, one run after the other.
fn together(runs: impl IntoIterator<Item = Vec<ReceivedEvent>>) -> Vec<ReceivedEvent> {
    runs.into_iter().flatten().collect()
}

#[test]
fn conflict_keeps_its_id_over_a_kill_and_is_not_raised_again() {
    let directory = tempfile::tempdir().unwrap();
    let (node, mut pods) = two_pods("restart", ADDRESS);
    let barrier = Barrier::prepare(&node).unwrap();
    let mut runs = Vec::new();
    let mut first = Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    let before = wait_raised(&first, ADDRESS);
    let conflict = before.event.conflict().unwrap();
    wait_stored(&first, 1);
    first.kill().unwrap();
    runs.push(first.events());

    let mut second = Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    barrier.pass(&node, &second).unwrap();
    runs.push(second.events());
    let events = together(runs.clone());
    assert_eq!(conflicts_from_events(&events).unwrap().len(), 1);
    let of_address = |r: &&ReceivedEvent| r.event.subject == ADDRESS && r.event.kind == RAISED;
    assert_eq!(events.iter().filter(of_address).count(), 1, "{events:#?}");

    // One claimant joins, then all but one leave.
    let joins = PodSpec::new("vethc").address(format!("{ADDRESS}/32"));
    let joined = node.add_pod(&joins).unwrap();
    let update = second
        .wait_event(DEADLINE, |event| {
            event
                .conflict()
                .is_some_and(|c| c.devices().contains(&"vethc"))
        })
        .unwrap();
    assert_eq!(raised_at(&update), raised_at(&before));
    let update = update.event.conflict().unwrap();
    assert_eq!(update.conflict_id, conflict.conflict_id);
    // The same after a clean shutdown.
    let (_, events) = second.terminate(DEADLINE).unwrap();
    runs.pop();
    runs.push(events);
    let third = Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    node.delete_pods(vec![joined, pods.pop().unwrap()]).unwrap();
    let resolved = third.wait_resolved(ADDRESS).unwrap();
    let resolved = resolved.event.conflict().unwrap();
    assert_eq!(resolved.conflict_id, conflict.conflict_id);
    runs.push(third.events());
    assert!(conflicts_from_events(&together(runs)).unwrap().is_empty());
}

#[test]
fn changes_during_downtime_are_resolved_and_raised() {
    let directory = tempfile::tempdir().unwrap();
    let (node, pods) = two_pods("meanwhile", ADDRESS);
    let mut first = Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    let before = wait_raised(&first, ADDRESS);
    let conflict = before.event.conflict().unwrap();
    wait_stored(&first, 1);
    first.kill().unwrap();

    pods[1].remove_address(&format!("{ADDRESS}/32")).unwrap();
    for pod in &pods {
        pod.add_address(&format!("{OTHER}/32")).unwrap();
    }
    let second = Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    let resolved = second.wait_resolved(ADDRESS).unwrap();
    assert_eq!(raised_at(&resolved), raised_at(&before));
    let resolved = resolved.event.conflict().unwrap();
    assert_eq!(resolved.conflict_id, conflict.conflict_id);
    let left = resolved.claimant("vethb").unwrap();
    assert_eq!(left.left.as_deref(), Some("address_removed"));
    let other = raised(&second, OTHER);
    assert_ne!(other.conflict_id, conflict.conflict_id);
    let events = together([first.events(), second.events()]);
    assert_eq!(conflicts_from_events(&events).unwrap().len(), 1);
}

#[test]
fn frame_evidence_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::new("heard").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let mut first = Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    let address: Ipv4Addr = ADDRESS.parse().unwrap();
    for pod in &pods {
        announce(pod, address).unwrap();
    }
    let conflict = raised(&first, ADDRESS);
    wait_stored(&first, 1);
    first.kill().unwrap();

    let second = Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    let events = barrier.pass(&node, &second).unwrap();
    assert!(events.is_empty(), "the conflict continues: {events:#?}");
    node.delete_pods(pods).unwrap();
    let resolved = second.wait_resolved(ADDRESS).unwrap();
    let resolved = resolved.event.conflict().unwrap();
    assert_eq!(resolved.conflict_id, conflict.conflict_id);
}

#[test]
fn without_a_state_directory_conflicts_get_new_ids() {
    let (node, _pods) = two_pods("stateless", ADDRESS);
    let mut first = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let before = raised(&first, ADDRESS);
    first.kill().unwrap();
    let second = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let after = raised(&second, ADDRESS);
    assert_ne!(before.conflict_id, after.conflict_id);
    assert!(!second.log().contains("state-dir"), "{}", second.log());
}

#[test]
fn damaged_state_file_is_put_aside() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("state.redb"), vec![7; 100_000]).unwrap();
    let (node, _pods) = two_pods("damaged", ADDRESS);
    let agent = Agent::start_ready(&node, &command_with_state(directory.path())).unwrap();
    raised(&agent, ADDRESS);
    wait_stored(&agent, 1);
    let log = agent.log();
    let errors: Vec<_> = log.lines().filter(|l| l.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{log}");
    assert!(errors[0].contains("was moved to"), "{log}");
    let aside = fs::read_dir(directory.path()).unwrap().flatten();
    let aside = aside.filter(|e| e.file_name().to_string_lossy().contains("damaged"));
    assert_eq!(aside.count(), 1);
}

/// A state directory on a small file system in a private mount namespace.
struct SmallDisk {
    mounts: PrivateMounts,
    directory: &'static Path,
}

impl SmallDisk {
    fn new(size: &str) -> Self {
        let mounts = PrivateMounts::new().unwrap();
        let directory = Path::new("/var/lib/ipconflict");
        mounts
            .run_in(None, || {
                fs::create_dir(directory)?;
                let options = format!("size={size}");
                let options = Some(options.as_str());
                mount(
                    Some("tmpfs"),
                    directory,
                    Some("tmpfs"),
                    MsFlags::empty(),
                    options,
                )?;
                Ok(())
            })
            .unwrap();
        Self { mounts, directory }
    }

    fn start(&self, node: &Node) -> Agent {
        let start = || Agent::start_ready(node, &command_with_state(self.directory));
        self.mounts.run_in(None, start).unwrap()
    }

    /// Fills the file system completely.
    fn fill(&self) {
        let fill = || {
            let mut file = fs::File::create(self.directory.join("fill"))?;
            let block = [0; 4096];
            while std::io::Write::write_all(&mut file, &block).is_ok() {}
            Ok(())
        };
        self.mounts.run_in(None, fill).unwrap();
    }

    fn make_room(&self) {
        let remove = || Ok(fs::remove_file(self.directory.join("fill"))?);
        self.mounts.run_in(None, remove).unwrap();
    }
}

/// Waits until this series is above zero: another thread counts, so the counter may follow the log
/// line with a delay.
fn wait_counted(netns: &Netns, series: &str) {
    let client = TestClient::of_agent(netns);
    until(DEADLINE, format_args!("{series} above zero"), || {
        let counted = client.metric::<u64>(series)?;
        ensure!(counted.is_some_and(|count| count > 0), "{counted:?}");
        Ok(())
    })
    .unwrap();
}

fn state_component(netns: &Netns) -> serde_json::Value {
    let answer = TestClient::of_agent(netns).get("/readyz").unwrap();
    let parts = answer.json().unwrap()["parts"].clone();
    let mut parts = parts.as_array().unwrap().iter();
    parts.find(|p| p["name"] == "state").unwrap().clone()
}

#[test]
fn full_disk_is_logged_and_counted_and_detection_continues() {
    let disk = SmallDisk::new("4m");
    let (node, pods) = two_pods("full", ADDRESS);
    let mut first = disk.start(&node);
    let conflict = raised(&first, ADDRESS);
    wait_stored(&first, 1);
    disk.fill();
    // Enough to outgrow the free space in the file.
    for number in 0..200 {
        for pod in &pods {
            pod.add_address(&format!("10.244.3.{number}/32")).unwrap();
        }
    }
    for number in 0..200 {
        raised(&first, &format!("10.244.3.{number}"));
    }
    let line = first
        .wait_log(DEADLINE, "cannot store open conflicts for the next run")
        .unwrap();
    assert!(line.contains("ERROR"), "{line}");
    assert_eq!(state_component(&node)["state"], "failed");
    wait_counted(
        &node,
        "ipconflict_deliveries_total{sink=\"state\",outcome=\"failed\"}",
    );
    disk.make_room();
    first
        .wait_log(DEADLINE, "are stored in --state-dir again")
        .unwrap();
    wait_stored(&first, 201);
    assert_eq!(state_component(&node)["state"], "works");
    first.kill().unwrap();
    let second = disk.start(&node);
    node.delete_pods(pods).unwrap();
    let resolved = second.wait_resolved(ADDRESS).unwrap();
    let resolved = resolved.event.conflict().unwrap();
    assert_eq!(resolved.conflict_id, conflict.conflict_id);
}

#[test]
fn unwritable_state_directory_is_logged_and_detection_continues() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let (node, _pods) = two_pods("unwritable", ADDRESS);
    let agent = Agent::start_ready(&node, &command_with_state(&file)).unwrap();
    raised(&agent, ADDRESS);
    let line = agent.wait_log(DEADLINE, "cannot store state in").unwrap();
    assert!(
        line.contains("check that --state-dir is a writable directory"),
        "{line}"
    );
    assert_eq!(state_component(&node)["state"], "failed");
    wait_counted(
        &node,
        "ipconflict_deliveries_total{sink=\"state\",outcome=\"dropped\"}",
    );
}
