//! Many certain conflicts at once, as after IPAM state was lost or a pod assigned itself the addresses of others: people
//! get one message for each of the first three groups of pods and a digest, programs get each conflict.

use std::{collections::BTreeSet, fs};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, ReceivedRequest, Receiver,
};

use crate::AGENT;

const VICTIMS: usize = 6;
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

#[test]
fn a_storm_is_three_messages_and_a_digest_for_people() {
    let node = Node::new("storm").unwrap();
    let names: Vec<_> = (1..=VICTIMS).map(|n| format!("veth{n}")).collect();
    let specs = names.iter().map(String::as_str).chain([OFFENDER]);
    let specs: Vec<_> = specs.map(PodSpec::new).collect();
    let mut pods = node.add_pods(&specs).unwrap();
    let offender = pods.pop().unwrap();
    for (victim, pod) in pods.iter().enumerate() {
        assign(pod, addresses(victim));
    }
    let (chat, hook) = node
        .run_in(|| Ok((Receiver::start()?, Receiver::start()?)))
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let text = format!(
        "status-page-url: 'https://ip.example.org/{{node}}/'\n\
         webhooks:\n- {{name: chat, format: slack, url: '{}'}}\n- {{name: hook, url: '{}'}}\n",
        chat.url(),
        hook.url()
    );
    fs::write(&config, text).unwrap();
    let command = AgentCommand::run(AGENT).arg("--config").arg(&config);
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    assign(&offender, (0..VICTIMS).flat_map(addresses));
    for address in (0..VICTIMS).flat_map(addresses) {
        let raised = agent.wait_raised(&address).unwrap();
        assert_eq!(raised.confidence, "certain");
    }
    let raised = chat
        .wait_until(DEADLINE, |posted| {
            findings(posted, "IP conflicts detected").len() >= 4
        })
        .unwrap();
    let mut raised = findings(&raised, "IP conflicts detected");
    raised.sort();
    let [first, second, third, rest] = &raised[..] else {
        panic!("{raised:?}");
    };
    let of_one_victim = |victim: usize| {
        let veth = &names[victim];
        format!(
            "IP conflicts detected*: {ADDRESSES} addresses are claimed by {veth} and {OFFENDER} on testkit"
        )
    };
    assert_eq!(
        [first, second, third],
        [0, 1, 2].map(of_one_victim).each_ref()
    );
    let more = (VICTIMS - 3) * ADDRESSES;
    let more = format!("IP conflicts detected*: {more} more addresses are claimed by several pods");
    assert!(rest.starts_with(&more), "{rest}");
    let body = chat.requests()[0].json().unwrap();
    let links = body["blocks"].to_string();
    assert!(
        links.contains("IPAddressConflict.md#duplicate|")
            && links.contains("https://ip.example.org/testkit/|"),
        "{links}"
    );

    node.ip(&format!("link delete {OFFENDER}")).unwrap();
    chat.wait_until(DEADLINE, |posted| {
        findings(posted, "IP conflicts resolved").len() == 4
    })
    .unwrap();
    agent.terminate(DEADLINE).unwrap();
    let updates = findings(&chat.requests(), "IP conflicts updated");
    assert_eq!(updates, [""; 0]);
    assert_eq!(chat.requests().len(), 8);

    let requests = hook.requests();
    let events: Vec<_> = requests.iter().map(|r| r.json().unwrap()).collect();
    for kind in ["raised", "resolved"] {
        let of_kind = events
            .iter()
            .filter(|event| event["type"] == format!("io.ipconflict.conflict.{kind}"));
        let subjects: BTreeSet<_> = of_kind.map(|event| event["subject"].to_string()).collect();
        assert_eq!(subjects.len(), VICTIMS * ADDRESSES, "{kind}");
    }
}
