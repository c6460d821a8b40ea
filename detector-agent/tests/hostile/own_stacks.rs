//! A pod whose stack is a program (gVisor, a virtual machine): no namespace shows what it has, so
//! others try to have what it is silent about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, MacAddress, NaFlags, Node, Pod, PodSpec,
};

use crate::AGENT;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 1);
const ADDRESS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

fn announce(pod: &Pod, mac: MacAddress, address: IpAddr) {
    let frame = match address {
        IpAddr::V4(address) => Frame::announcement(mac, address),
        IpAddr::V6(address) => Frame::advertisement(mac, address, Some(mac), NaFlags::OVERRIDE),
    };
    FrameSender::open(pod).unwrap().send(&frame).unwrap();
}

/// The attacker's namespace has no address either, so that it looks like the machine's new place.
#[test]
fn silent_program_is_not_superseded() {
    let node = Node::new("supersede").unwrap();
    let pods = node
        .add_pods(&[
            PodSpec::new("vethsilent"),
            PodSpec::new("vethattacker"),
            PodSpec::new("vethkernel")
                .address("10.9.8.9/32")
                .address("fd00::9/128"),
        ])
        .unwrap();
    let [silent, attacker, kernel] = &pods[..] else {
        panic!("{pods:?}");
    };
    let command = AgentCommand::run(AGENT).arg("--claim-ttl=2s");
    let agent = Agent::start_ready(&node, &command).unwrap();
    for address in [IpAddr::from(ADDRESS), ADDRESS6.into()] {
        let text = address.to_string();
        announce(silent, silent.mac(), address);
        // A later claim that expires: from then on, so would the silent pod's.
        announce(kernel, kernel.mac(), address);
        agent.wait_raised(&text).unwrap();
        agent
            .wait_event(DEADLINE, |event| event.resolves(&text))
            .unwrap();
        let before = agent.event_count();

        announce(attacker, silent.mac(), address);
        let raised = agent.wait_event_after(before, DEADLINE, |event| event.raises(&text));
        let conflict = raised.unwrap().event.conflict().unwrap();
        let devices: Vec<_> = conflict.claimants.iter().map(|c| &*c.device).collect();
        assert_eq!(devices, ["vethsilent", "vethattacker"]);
    }
}
