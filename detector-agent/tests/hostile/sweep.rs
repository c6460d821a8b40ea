//! A pod that claims the addresses of many others is one finding, and a receiver of notifications gets it once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, Receiver,
    http::TestClient, until,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{AGENT, metrics::wait_claims};

const VICTIMS: usize = 60;
const OFFENDER: &str = "vethbad";
const RAISED: &str = "io.ipconflict.conflict.raised";
const RESOLVED: &str = "io.ipconflict.conflict.resolved";
const SWEEP_RAISED: &str = "io.ipconflict.anomaly.raised";
const SWEEP_RESOLVED: &str = "io.ipconflict.anomaly.resolved";

fn address(victim: usize) -> String {
    format!("10.244.3.{victim}")
}

/// A node with the victims and the offender, a webhook receiver, and the configuration of the agent.
struct Site {
    node: Node,
    victims: Vec<Pod>,
    offender: Pod,
    hook: Receiver,
    directory: TempDir,
}

impl Site {
    fn new(prefix: &str) -> Self {
        let node = Node::new(prefix).unwrap();
        let specs: Vec<_> = (1..=VICTIMS)
            .map(|n| PodSpec::new(format!("veth{n}")).address(format!("{}/32", address(n))))
            .chain([PodSpec::new(OFFENDER).address("10.244.3.250/32")])
            .collect();
        let mut victims = node.add_pods(&specs).unwrap();
        let offender = victims.pop().unwrap();
        let hook = node.run_in(Receiver::start).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let config = format!(
            "state-dir: {}\nwebhooks:\n- {{name: hook, url: '{}'}}\n",
            directory.path().join("state").display(),
            hook.url()
        );
        fs::write(directory.path().join("config.yaml"), config).unwrap();
        Self {
            node,
            victims,
            offender,
            hook,
            directory,
        }
    }

    fn start_agent(&self) -> Agent {
        let config: &Path = &self.directory.path().join("config.yaml");
        let command = AgentCommand::run(AGENT).arg("--config").arg(config);
        Agent::start_ready(&self.node, &command).unwrap()
    }

    /// The offender claims the address of every victim; returns once each is in conflict.
    fn sweep(&self, agent: &Agent) {
        self.claim_all();
        for victim in 1..=VICTIMS {
            agent.wait_raised(&address(victim)).unwrap();
        }
    }

    fn claim_all(&self) {
        let claim = |victim| {
            let address = address(victim).parse().unwrap();
            Frame::gratuitous_reply(self.offender.mac(), address).to_bytes()
        };
        let frames: Vec<_> = (1..=VICTIMS).map(claim).collect();
        let sender = FrameSender::open(&self.offender).unwrap();
        sender.send_all(&frames).unwrap();
    }

    fn get(&self, path: &str, list: &str) -> Vec<Value> {
        let client = TestClient::of_agent(&self.node);
        let answer = client.get(path).unwrap().json().unwrap();
        answer[list].as_array().unwrap().clone()
    }

    /// What the receiver got: for each conflict or anomaly its types of event, in order.
    fn received(&self) -> BTreeMap<String, Vec<String>> {
        let mut received: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for request in self.hook.requests() {
            let event = request.json().unwrap();
            // A receiver may get an event again, after SIGKILL for example.
            if !seen.insert(event["id"].as_str().unwrap().to_owned()) {
                continue;
            }
            let data = &event["data"];
            let id = data["conflict_id"].as_str().or(data["anomaly_id"].as_str());
            let kind = event["type"].as_str().unwrap().to_owned();
            received
                .entry(id.unwrap().to_owned())
                .or_default()
                .push(kind);
        }
        received
    }

    fn wait_received(&self, kind: &str) -> Value {
        let is_it = |event: &Value| event["type"] == kind;
        until(DEADLINE, format_args!("{kind} at the webhook"), || {
            let requests = self.hook.requests();
            let mut events = requests.iter().filter_map(|request| request.json().ok());
            events.find(is_it).ok_or_else(|| anyhow::anyhow!("not yet"))
        })
        .unwrap()
    }

    /// The receiver got the sweep and the first three conflicts, each from its raise to its end.
    fn assert_one_finding_and_three_conflicts(&self) {
        let received = self.received();
        let ends = |first: &str, last: &str| {
            let is_complete = |kinds: &&Vec<String>| {
                let count = |kind| kinds.iter().filter(|k| *k == kind).count();
                kinds.first().is_some_and(|kind| kind == first)
                    && kinds.last().is_some_and(|kind| kind == last)
                    && (count(first), count(last)) == (1, 1)
            };
            received.values().filter(is_complete).count()
        };
        assert_eq!(ends(SWEEP_RAISED, SWEEP_RESOLVED), 1, "{received:?}");
        assert_eq!(ends(RAISED, RESOLVED), 3, "{received:?}");
        assert_eq!(received.len(), 4, "{received:?}");
    }
}

#[test]
fn sixty_victims_are_one_finding() {
    let site = Site::new("sweep");
    let mut agent = site.start_agent();
    site.sweep(&agent);

    let raised = site.wait_received(SWEEP_RAISED);
    let sweep = &raised["data"];
    assert_eq!(sweep["kind"], "address_sweep");
    assert_eq!(sweep["device"], OFFENDER);
    assert_eq!(sweep["contested"], 4, "as soon as it is one");

    let anomalies = site.get("/api/v1/anomalies", "anomalies");
    let [listed] = anomalies.as_slice() else {
        panic!("{anomalies:?}");
    };
    assert_eq!(listed["anomaly_id"], sweep["anomaly_id"]);
    assert_eq!(listed["contested"], VICTIMS);
    assert_eq!(listed["addresses"].as_array().unwrap().len(), 16);
    let conflicts = site.get("/api/v1/conflicts", "conflicts");
    assert_eq!(conflicts.len(), VICTIMS, "every victim stays visible");
    let is_part = |conflict: &Value| conflict["sweep"] == sweep["anomaly_id"];
    assert!(conflicts.iter().all(is_part), "{conflicts:?}");

    let client = TestClient::of_agent(&site.node);
    let metrics = client.get("/metrics").unwrap().body;
    for line in [
        r#"ipconflict_anomalies_active{kind="address_sweep"} 1"#.to_owned(),
        format!(r#"ipconflict_conflicts_active{{kind="duplicate",scope="node"}} {VICTIMS}"#),
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }

    site.node.ip(&format!("link delete {OFFENDER}")).unwrap();
    let resolved = site.wait_received(SWEEP_RESOLVED);
    assert_eq!(resolved["data"]["resolved_because"], "device_gone");
    assert_eq!(resolved["data"]["contested"], VICTIMS);
    // It sends what is queued first.
    agent.terminate(DEADLINE).unwrap();
    site.assert_one_finding_and_three_conflicts();
}

#[test]
fn a_victim_whose_conflict_becomes_certain_is_notified() {
    let site = Site::new("swcert");
    let agent = site.start_agent();
    site.sweep(&agent);
    site.wait_received(SWEEP_RAISED);
    let victim = address(VICTIMS);
    site.offender.add_address(&format!("{victim}/32")).unwrap();
    until(DEADLINE, "the certain conflict at the webhook", || {
        let requests = site.hook.requests();
        let mut events = requests.iter().filter_map(|request| request.json().ok());
        let about = events.find(|e| e["subject"] == victim.as_str());
        let event = about.ok_or_else(|| anyhow::anyhow!("not yet"))?;
        assert_eq!(event["type"], RAISED);
        assert_eq!(event["data"]["confidence"], "certain");
        assert!(event["data"]["sweep"].is_null());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_sweep_that_goes_on_over_a_restart_is_one_finding() {
    let site = Site::new("swrestart");
    let mut agent = site.start_agent();
    site.sweep(&agent);
    site.wait_received(SWEEP_RAISED);
    agent.terminate(DEADLINE).unwrap();
    let mut agent = site.start_agent();
    site.claim_all();
    for victim in 1..=VICTIMS {
        wait_claims(&site.node, &address(victim), 2);
    }
    site.node.ip(&format!("link delete {OFFENDER}")).unwrap();
    site.wait_received(SWEEP_RESOLVED);
    agent.terminate(DEADLINE).unwrap();
    site.assert_one_finding_and_three_conflicts();
}

#[test]
fn a_sweep_that_ends_while_the_agent_is_down_is_resolved_once() {
    let site = Site::new("swdown");
    let mut agent = site.start_agent();
    site.sweep(&agent);
    site.wait_received(SWEEP_RAISED);
    agent.kill().unwrap();
    assert!(!site.victims.is_empty(), "they stay");
    site.node.ip(&format!("link delete {OFFENDER}")).unwrap();
    let mut agent = site.start_agent();
    site.wait_received(SWEEP_RESOLVED);
    until(DEADLINE, "the ends of the first three", || {
        let requests = site.hook.requests();
        let events = requests.iter().filter_map(|request| request.json().ok());
        let ends = events.filter(|event| event["type"] == RESOLVED);
        let ended: BTreeSet<_> = ends.map(|event| event["subject"].to_string()).collect();
        anyhow::ensure!(ended.len() == 3, "{ended:?}");
        Ok(())
    })
    .unwrap();
    agent.terminate(DEADLINE).unwrap();
    site.assert_one_finding_and_three_conflicts();
}
