//! Restarts: with `--state-dir` an agent goes on with what the one before it left open, however that one ended.

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

const ADDRESS: &str = "10.244.2.10";
const OTHER: &str = "10.244.2.11";

fn keeping(directory: &Path) -> AgentCommand {
    AgentCommand::run(AGENT)
        .arg("--state-dir")
        .arg(directory)
        .env("RUST_LOG", "info,detector_agent::persist=debug")
}

/// The store has that many open conflicts; they are on the disk then.
fn wait_kept(agent: &Agent, open: usize) {
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

fn raised(agent: &Agent, address: &str) -> Conflict {
    wait_raised(agent, address).event.conflict().unwrap()
}

/// As it is written, to the microsecond.
fn raised_at(received: &ReceivedEvent) -> &str {
    received.event.data["raised_at"].as_str().unwrap()
}

/// The event lines of one run after the other, as a reader has them.
fn together(runs: impl IntoIterator<Item = Vec<ReceivedEvent>>) -> Vec<ReceivedEvent> {
    runs.into_iter().flatten().collect()
}

#[test]
fn a_killed_agents_conflict_keeps_its_id_and_is_not_raised_again() {
    let directory = tempfile::tempdir().unwrap();
    let (node, mut pods) = two_pods("restart", ADDRESS);
    let barrier = Barrier::prepare(&node).unwrap();
    let mut runs = Vec::new();
    let mut first = Agent::start_ready(&node, &keeping(directory.path())).unwrap();
    let before = wait_raised(&first, ADDRESS);
    let conflict = before.event.conflict().unwrap();
    wait_kept(&first, 1);
    first.kill().unwrap();
    runs.push(first.events());

    let mut second = Agent::start_ready(&node, &keeping(directory.path())).unwrap();
    barrier.pass(&node, &second).unwrap();
    runs.push(second.events());
    let said = together(runs.clone());
    assert_eq!(conflicts_from_events(&said).unwrap().len(), 1);
    let of_address = |r: &&ReceivedEvent| r.event.subject == ADDRESS && r.event.kind == RAISED;
    assert_eq!(said.iter().filter(of_address).count(), 1, "{said:#?}");

    // One joins, then all but one leave.
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
    // Also where the agent ends in good order.
    let (_, events) = second.terminate(DEADLINE).unwrap();
    runs.pop();
    runs.push(events);
    let third = Agent::start_ready(&node, &keeping(directory.path())).unwrap();
    node.delete_pods(vec![joined, pods.pop().unwrap()]).unwrap();
    let resolved = third
        .wait_event(DEADLINE, |event| event.resolves(ADDRESS))
        .unwrap();
    let resolved = resolved.event.conflict().unwrap();
    assert_eq!(resolved.conflict_id, conflict.conflict_id);
    runs.push(third.events());
    assert!(conflicts_from_events(&together(runs)).unwrap().is_empty());
}

#[test]
fn what_ended_while_the_agent_was_down_is_resolved_and_what_began_is_raised() {
    let directory = tempfile::tempdir().unwrap();
    let (node, pods) = two_pods("meanwhile", ADDRESS);
    let mut first = Agent::start_ready(&node, &keeping(directory.path())).unwrap();
    let before = wait_raised(&first, ADDRESS);
    let conflict = before.event.conflict().unwrap();
    wait_kept(&first, 1);
    first.kill().unwrap();

    pods[1].remove_address(&format!("{ADDRESS}/32")).unwrap();
    for pod in &pods {
        pod.add_address(&format!("{OTHER}/32")).unwrap();
    }
    let second = Agent::start_ready(&node, &keeping(directory.path())).unwrap();
    let resolved = second
        .wait_event(DEADLINE, |event| event.resolves(ADDRESS))
        .unwrap();
    assert_eq!(raised_at(&resolved), raised_at(&before));
    let resolved = resolved.event.conflict().unwrap();
    assert_eq!(resolved.conflict_id, conflict.conflict_id);
    let left = resolved.claimant("vethb").unwrap();
    assert_eq!(left.left.as_deref(), Some("address_removed"));
    let other = raised(&second, OTHER);
    assert_ne!(other.conflict_id, conflict.conflict_id);
    let said = together([first.events(), second.events()]);
    assert_eq!(conflicts_from_events(&said).unwrap().len(), 1);
}

#[test]
fn what_only_frames_told_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::new("heard").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let mut first = Agent::start_ready(&node, &keeping(directory.path())).unwrap();
    let address: Ipv4Addr = ADDRESS.parse().unwrap();
    for pod in &pods {
        announce(pod, address).unwrap();
    }
    let conflict = raised(&first, ADDRESS);
    wait_kept(&first, 1);
    first.kill().unwrap();

    let second = Agent::start_ready(&node, &keeping(directory.path())).unwrap();
    let said = barrier.pass(&node, &second).unwrap();
    assert!(said.is_empty(), "it goes on: {said:#?}");
    node.delete_pods(pods).unwrap();
    let resolved = second
        .wait_event(DEADLINE, |event| event.resolves(ADDRESS))
        .unwrap();
    let resolved = resolved.event.conflict().unwrap();
    assert_eq!(resolved.conflict_id, conflict.conflict_id);
}

#[test]
fn without_a_state_directory_every_agent_begins_anew() {
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
fn a_damaged_file_is_put_aside_and_the_agent_begins_anew() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("state.redb"), vec![7; 100_000]).unwrap();
    let (node, _pods) = two_pods("damaged", ADDRESS);
    let agent = Agent::start_ready(&node, &keeping(directory.path())).unwrap();
    raised(&agent, ADDRESS);
    wait_kept(&agent, 1);
    let log = agent.log();
    let says: Vec<_> = log.lines().filter(|l| l.contains("ERROR")).collect();
    assert_eq!(says.len(), 1, "{log}");
    assert!(says[0].contains("was put aside as"), "{log}");
    let aside = fs::read_dir(directory.path()).unwrap().flatten();
    let aside = aside.filter(|e| e.file_name().to_string_lossy().contains("damaged"));
    assert_eq!(aside.count(), 1);
}

/// A state directory on a small file system that nobody else sees.
struct Small {
    mounts: PrivateMounts,
    directory: &'static Path,
}

impl Small {
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
        let start = || Agent::start_ready(node, &keeping(self.directory));
        self.mounts.run_in(None, start).unwrap()
    }

    /// Leaves no room for another byte.
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

/// Waits until this series is above zero: what is counted on another thread may come a moment after what it logs.
fn wait_counted(netns: &Netns, series: &str) {
    let client = TestClient::new(netns, "http://127.0.0.1:9842");
    until(DEADLINE, format_args!("{series} above zero"), || {
        let response = client.get("/metrics")?;
        let mut values = response.body.lines().filter_map(|l| l.strip_prefix(series));
        ensure!(values.any(|value| value.trim() != "0"), "{}", response.body);
        Ok(())
    })
    .unwrap();
}

fn part(netns: &Netns) -> serde_json::Value {
    let answer = TestClient::new(netns, "http://127.0.0.1:9842")
        .get("/readyz")
        .unwrap();
    let parts = answer.json().unwrap()["parts"].clone();
    let mut parts = parts.as_array().unwrap().iter();
    parts
        .find(|p| p["name"] == "open conflicts")
        .unwrap()
        .clone()
}

#[test]
fn a_full_disk_is_told_and_counted_and_detection_goes_on_until_there_is_room() {
    let disk = Small::new("4m");
    let (node, pods) = two_pods("full", ADDRESS);
    let mut first = disk.start(&node);
    let conflict = raised(&first, ADDRESS);
    wait_kept(&first, 1);
    disk.fill();
    // Enough to outgrow what the file has room for.
    for number in 0..200 {
        for pod in &pods {
            pod.add_address(&format!("10.244.3.{number}/32")).unwrap();
        }
    }
    for number in 0..200 {
        raised(&first, &format!("10.244.3.{number}"));
    }
    let told = first
        .wait_log(DEADLINE, "cannot store open conflicts for the next run")
        .unwrap();
    assert!(told.contains("ERROR"), "{told}");
    assert_eq!(part(&node)["state"], "failed");
    wait_counted(
        &node,
        "ipconflict_deliveries_total{sink=\"state\",outcome=\"failed\"}",
    );
    disk.make_room();
    first
        .wait_log(DEADLINE, "are stored in --state-dir again")
        .unwrap();
    wait_kept(&first, 201);
    assert_eq!(part(&node)["state"], "works");
    first.kill().unwrap();
    let second = disk.start(&node);
    node.delete_pods(pods).unwrap();
    let resolved = second
        .wait_event(DEADLINE, |event| event.resolves(ADDRESS))
        .unwrap();
    let resolved = resolved.event.conflict().unwrap();
    assert_eq!(resolved.conflict_id, conflict.conflict_id);
}

#[test]
fn a_directory_that_cannot_be_written_is_told_and_detection_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let (node, _pods) = two_pods("unwritable", ADDRESS);
    let agent = Agent::start_ready(&node, &keeping(&file)).unwrap();
    raised(&agent, ADDRESS);
    let told = agent.wait_log(DEADLINE, "cannot keep state in").unwrap();
    assert!(
        told.contains("check that --state-dir is a directory"),
        "{told}"
    );
    assert_eq!(part(&node)["state"], "failed");
    wait_counted(
        &node,
        "ipconflict_deliveries_total{sink=\"state\",outcome=\"dropped\"}",
    );
}
