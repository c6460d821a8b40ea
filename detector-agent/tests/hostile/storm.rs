//! Many certain conflicts at once, as after IPAM state was lost or a pod assigned itself the addresses of others: people
//! get one message and one incident, and their ends; programs get each conflict.

use std::{collections::BTreeSet, fs};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, ReceivedRequest, Receiver,
};

use serde_json::Value;

use crate::AGENT;

const VICTIMS: usize = 20;
/// Addresses of each victim.
const ADDRESSES: usize = 10;
const OFFENDER: &str = "vethbad";

fn addresses(victim: usize) -> impl Iterator<Item = String> {
    (1..=ADDRESSES).map(move |n| format!("10.244.{victim}.{n}"))
}

fn assign(pod: &Pod, addresses: impl Iterator<Item = String>) {
    let lines = addresses.map(|address| format!("address add {address}/32 dev eth0"));
    pod.netns().ip_batch(lines).unwrap();
}

/// The first lines of chat messages: `IP conflicts detected*: …`.
fn findings(requests: &[ReceivedRequest], heading: &str) -> Vec<String> {
    let text = |request: &ReceivedRequest| {
        let text = request.json().ok()?["text"].as_str()?.to_owned();
        let finding = text.lines().next()?.split_once('*')?.1.to_owned();
        finding.starts_with(heading).then_some(finding)
    };
    requests.iter().filter_map(text).collect()
}

fn actions(requests: &[ReceivedRequest]) -> Vec<(String, String)> {
    let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    let events = requests.iter().map(|request| request.json().unwrap());
    events
        .map(|event| (text(&event, "event_action"), text(&event, "dedup_key")))
        .collect()
}

#[test]
fn two_hundred_conflicts_are_one_message_and_one_incident_for_people() {
    let node = Node::new("storm").unwrap();
    let names: Vec<_> = (1..=VICTIMS).map(|n| format!("veth{n}")).collect();
    let specs = names.iter().map(String::as_str).chain([OFFENDER]);
    let specs: Vec<_> = specs.map(PodSpec::new).collect();
    let mut pods = node.add_pods(&specs).unwrap();
    let offender = pods.pop().unwrap();
    for (victim, pod) in pods.iter().enumerate() {
        assign(pod, addresses(victim));
    }
    let [chat, pager, hook] = [(); 3].map(|()| node.run_in(Receiver::start).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("key"), "R0UT1NG").unwrap();
    let text = format!(
        "status-page-url: 'https://ip.example.org/{{node}}/'\n\
         webhooks:\n- {{name: chat, format: slack, url: '{}'}}\n\
         - {{name: pager, format: pagerduty, routing-key-file: '{}', url: '{}'}}\n\
         - {{name: hook, url: '{}'}}\n",
        chat.url(),
        path("key").display(),
        pager.url(),
        hook.url()
    );
    fs::write(path("config.yaml"), &text).unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--config")
        .arg(path("config.yaml"));
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    assign(&offender, (0..VICTIMS).flat_map(addresses));
    for address in (0..VICTIMS).flat_map(addresses) {
        let raised = agent.wait_raised(&address).unwrap();
        assert_eq!(raised.confidence, "certain");
    }
    let raised = chat
        .wait_until(DEADLINE, |posted| !posted.is_empty())
        .unwrap();
    let all = VICTIMS * ADDRESSES;
    assert_eq!(
        findings(&raised, "IP conflicts detected"),
        [format!(
            "IP conflicts detected*: {all} addresses are in conflict on testkit"
        )]
    );
    let body = raised[0].json().unwrap();
    let lines = body["blocks"][1]["text"]["text"].as_str().unwrap();
    let lines: Vec<_> = lines.lines().collect();
    assert_eq!(lines.len(), 11, "{lines:?}");
    for line in &lines[..10] {
        let (_, claimants) = line.split_once("addresses are claimed by").unwrap();
        assert!(claimants.contains(OFFENDER), "{line}");
    }
    let omitted = all - 10 * ADDRESSES;
    assert!(
        lines[10].contains(&format!("and {omitted} more")),
        "{lines:?}"
    );
    let links = body["blocks"].to_string();
    assert!(
        links.contains("IPAddressConflict.md#duplicate|")
            && links.contains("https://ip.example.org/testkit/|"),
        "{links}"
    );
    pager
        .wait_until(DEADLINE, |posted| !posted.is_empty())
        .unwrap();

    node.ip(&format!("link delete {OFFENDER}")).unwrap();
    let is_over = |posted: &[ReceivedRequest]| posted.len() >= 2;
    chat.wait_until(DEADLINE, is_over).unwrap();
    pager.wait_until(DEADLINE, is_over).unwrap();
    agent.terminate(DEADLINE).unwrap();
    assert_eq!(
        findings(&chat.requests(), "IP conflicts resolved"),
        [format!(
            "IP conflicts resolved*: {all} addresses are no longer in conflict on testkit"
        )]
    );
    assert_eq!(chat.requests().len(), 2);
    let actions = actions(&pager.requests());
    let [(trigger, opened), (resolve, resolved)] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!((trigger.as_str(), resolve.as_str()), ("trigger", "resolve"));
    assert_eq!(opened, resolved);

    let requests = hook.requests();
    let events: Vec<_> = requests.iter().map(|r| r.json().unwrap()).collect();
    for kind in ["raised", "resolved"] {
        let of_kind = events
            .iter()
            .filter(|event| event["type"] == format!("io.ipconflict.conflict.{kind}"));
        let subjects: BTreeSet<_> = of_kind.map(|event| event["subject"].to_string()).collect();
        assert_eq!(subjects.len(), all, "{kind}");
    }
}
