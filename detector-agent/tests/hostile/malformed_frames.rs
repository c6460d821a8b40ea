//! Malformed frames and frames of any content, at full speed: they are counted, and nothing else changes.

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, MacAddress, Node, PodSpec, http::TestClient,
    until,
};

use crate::AGENT;

const FRAMES: usize = 20_000;

/// ARP and NDP frames that are cut off or have random bytes, the same ones in each run.
fn frames() -> Vec<Vec<u8>> {
    let mac = MacAddress([2, 0, 0, 0, 0, 0x0a]);
    let whole = [
        Frame::announcement(mac, [10, 9, 9, 1].into()).to_bytes(),
        Frame::solicitation(mac, "fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()).to_bytes(),
    ];
    let mut random = fastrand::Rng::with_seed(18);
    let frame = |n: usize| {
        let mut frame = whole[n % whole.len()].clone();
        let at = random.usize(14..frame.len());
        if n.is_multiple_of(4) {
            frame.truncate(at);
        } else {
            // The operation, the lengths, the types: never a valid claim of another address.
            frame[at] ^= random.u8(1..);
            frame[16] ^= 0xff;
        }
        frame
    };
    (0..FRAMES).map(frame).collect()
}

#[test]
fn malformed_frames_are_counted_and_hide_nothing() {
    let node = Node::new("malformed").unwrap();
    let spec = |device| PodSpec::new(device).ipv6();
    let pods = node
        .add_pods(&["vetha", "vethb", "vethbad"].map(spec))
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let sender = FrameSender::open(&pods[2]).unwrap();
    sender.send_all(&frames()).unwrap();
    for pod in &pods[..2] {
        pod.add_address("10.9.9.9/32").unwrap();
    }
    let conflict = agent.wait_raised("10.9.9.9").unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    let client = TestClient::of_agent(&node);
    until(DEADLINE, "the frames to be counted", || {
        let metrics = client.get("/metrics")?.body;
        let counts = metrics.lines().filter_map(|line| {
            let sample = line.strip_prefix("ipconflict_frames_rejected_total{")?;
            sample.split(' ').next_back()?.parse::<u64>().ok()
        });
        let rejected: u64 = counts.sum();
        anyhow::ensure!(rejected >= FRAMES as u64 / 2, "{rejected}");
        Ok(())
    })
    .unwrap();
    assert!(agent.events().iter().all(|e| !e.event.raises("10.9.9.1")));
}
