//! Many certain conflicts at once, as after IPAM state was lost or a pod assigned itself the addresses of others: people
//! get the first three and a digest, programs get each.

use std::{collections::BTreeSet, fs};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, ReceivedRequest, Receiver,
};

use crate::AGENT;

const ADDRESSES: usize = 40;

fn addresses() -> impl Iterator<Item = String> {
    (1..=ADDRESSES).map(|n| format!("10.244.4.{n}"))
}

fn assign_all(pod: &Pod) {
    let lines = addresses().map(|address| format!("address add {address}/32 dev eth0"));
    pod.netns().ip_batch(lines).unwrap();
}

/// The headlines of chat messages, without the part that differs.
fn headlines(requests: &[ReceivedRequest]) -> Vec<String> {
    let text = |request: &ReceivedRequest| {
        let text = request.json().ok()?["text"].as_str()?.to_owned();
        let (_, rest) = text.split_once('*')?;
        Some(rest.split_once('*')?.0.to_owned())
    };
    requests.iter().filter_map(text).collect()
}

fn count(headlines: &[String], wanted: &str) -> usize {
    headlines.iter().filter(|text| *text == wanted).count()
}

#[test]
fn a_storm_is_three_messages_and_a_digest_for_people() {
    let node = Node::new("storm").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    assign_all(&pods[0]);
    let (chat, hook) = node
        .run_in(|| Ok((Receiver::start()?, Receiver::start()?)))
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let text = format!(
        "webhooks:\n- {{name: chat, format: slack, url: '{}'}}\n- {{name: hook, url: '{}'}}\n",
        chat.url(),
        hook.url()
    );
    fs::write(&config, text).unwrap();
    let command = AgentCommand::run(AGENT).arg("--config").arg(&config);
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    assign_all(&pods[1]);
    for address in addresses() {
        let raised = agent.wait_raised(&address).unwrap();
        assert_eq!(raised.confidence, "certain");
    }
    let has_digest =
        |posted: &[ReceivedRequest]| count(&headlines(posted), "IP conflicts detected") == 1;
    chat.wait_until(DEADLINE, has_digest).unwrap();
    assert_eq!(
        count(&headlines(&chat.requests()), "IP conflict detected"),
        3
    );
    let requests = chat.requests();
    let mut bodies = requests.iter().map(|request| request.json().unwrap());
    let digest = bodies.find(|body| body["text"].to_string().contains("IP conflicts"));
    let digest = digest.unwrap();
    let rest = format!("{} more addresses are claimed", ADDRESSES - 3);
    assert!(digest["text"].as_str().unwrap().contains(&rest), "{digest}");

    node.ip("link delete vethb").unwrap();
    let is_over = |posted: &[ReceivedRequest]| {
        let headlines = headlines(posted);
        count(&headlines, "IP conflicts resolved") == 1
            && count(&headlines, "IP conflict resolved") == 3
    };
    chat.wait_until(DEADLINE, is_over).unwrap();
    agent.terminate(DEADLINE).unwrap();
    let updates = |text: &String| text.ends_with("updated");
    let mut headlines = headlines(&chat.requests());
    headlines.retain(|text| !updates(text));
    assert_eq!(headlines.len(), 8, "{headlines:?}");

    let requests = hook.requests();
    let events: Vec<_> = requests.iter().map(|r| r.json().unwrap()).collect();
    for kind in ["raised", "resolved"] {
        let of_kind = events
            .iter()
            .filter(|event| event["type"] == format!("io.ipconflict.conflict.{kind}"));
        let subjects: BTreeSet<_> = of_kind.map(|event| event["subject"].to_string()).collect();
        assert_eq!(subjects.len(), ADDRESSES, "{kind}");
    }
}
