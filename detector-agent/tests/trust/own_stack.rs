//! Pods whose network stack is a program, not the kernel's: no namespace shows their addresses.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    net::Ipv4Addr,
    os::fd::AsRawFd as _,
};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Event, Frame, MacAddress, Node, Pod, PodSpec, announce,
    event::Conflict, until,
};
use nix::libc;

use crate::AGENT;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 1);

/// The device of a virtual machine, and the machine's end of it.
pub(crate) struct Tap(File);

impl Tap {
    pub(crate) fn new(node: &Node, name: &str) -> Self {
        let file = node.run_in(|| {
            let file = OpenOptions::new()
                .write(true)
                .read(true)
                .open("/dev/net/tun")?;
            let mut request = libc::ifreq {
                ifr_name: [0; libc::IFNAMSIZ],
                ifr_ifru: libc::__c_anonymous_ifr_ifru {
                    ifru_flags: libc::c_short::try_from(libc::IFF_TAP | libc::IFF_NO_PI)?,
                },
            };
            for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
                *to = libc::c_char::try_from(from)?;
            }
            // SAFETY: `request` is an initialised `ifreq`, which TUNSETIFF reads and writes.
            let outcome = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) };
            nix::errno::Errno::result(outcome)?;
            Ok(file)
        });
        node.ip(&format!("link set {name} up")).unwrap();
        Self(file.unwrap())
    }

    fn announce(&mut self, address: Ipv4Addr) {
        let mac = MacAddress([2, 0, 0, 0, 9, 1]);
        self.send(&Frame::announcement(mac, address));
    }

    pub(crate) fn send(&mut self, frame: &Frame) {
        self.0.write_all(&frame.to_bytes()).unwrap();
    }
}

/// Two pods whose stacks are the kernel's: `vethb` has the address, `vethc` another one. The agent
/// expires claims after two seconds.
fn node_with_kernel_stacks(prefix: &str) -> (Node, [Pod; 2], Agent) {
    let node = Node::new(prefix).unwrap();
    let pods = node
        .add_pods(&[
            PodSpec::new("vethb").address(format!("{ADDRESS}/32")),
            PodSpec::new("vethc").address("10.9.8.9/32"),
        ])
        .unwrap();
    let command = AgentCommand::run(AGENT).arg("--claim-ttl=2s");
    let agent = Agent::start_ready(&node, &command).unwrap();
    (node, pods.try_into().unwrap(), agent)
}

/// The conflict once a frame that `pod` sends now is older than the TTL.
fn after_the_ttl(agent: &Agent, pod: &Pod) -> Conflict {
    announce(pod, ADDRESS).unwrap();
    let has_left = |conflict: &Conflict| {
        let claimant = conflict.claimant(pod.device());
        claimant.is_some_and(|c| c.left.as_deref() == Some("expired"))
    };
    let address = ADDRESS.to_string();
    let event = agent.wait_event(DEADLINE, |event| {
        event.updates(&address) && event.conflict().is_some_and(|c| has_left(&c))
    });
    event.unwrap().event.conflict().unwrap()
}

#[test]
fn address_taken_over_by_a_program_stays_a_claim() {
    let (node, [_holder, other], agent) = node_with_kernel_stacks("ownstack");
    let pod = node
        .add_pod(&PodSpec::new("vetha").address(format!("{ADDRESS}/32")))
        .unwrap();
    let address = ADDRESS.to_string();
    agent.wait_raised(&address).unwrap();
    // As gVisor does: from here on a program answers, with frames of its own.
    pod.remove_address(&format!("{ADDRESS}/32")).unwrap();
    let resolved = agent.wait_resolved(&address);
    let left = resolved.unwrap().event.conflict().unwrap();
    let left = left.claimant("vetha").unwrap().left.clone();
    assert_eq!(left.as_deref(), Some("address_removed"));
    node.wait_attached("vetha").unwrap();
    announce(&pod, ADDRESS).unwrap();
    let raised = |event: &Event| {
        let conflict = event.conflict();
        let claimant = conflict.as_ref().and_then(|c| c.claimant("vetha"));
        event.raises(&address) && claimant.is_some_and(|c| c.evidence_kinds() == ["arp"])
    };
    agent.wait_event(DEADLINE, raised).unwrap();

    let conflict = after_the_ttl(&agent, &other);
    let claimant = conflict.claimant("vetha").unwrap();
    assert_eq!(claimant.left, None);
    assert_eq!(claimant.evidence_kinds(), ["arp"]);

    pod.delete().unwrap();
    let resolved = agent.wait_event_after(2, DEADLINE, |event| event.resolves(&address));
    let conflict = resolved.unwrap().event.conflict().unwrap();
    let left = conflict.claimant("vetha").unwrap().left.as_deref();
    assert_eq!(left, Some("device_removed"));
}

#[test]
fn claim_of_a_virtual_machine_ends_with_its_tap() {
    let (node, [_holder, other], agent) = node_with_kernel_stacks("vmtap");
    let mut tap = Tap::new(&node, "tapvm1");
    let address = ADDRESS.to_string();
    // The agent attaches to the device some time after it appears.
    until(DEADLINE, "a conflict with the machine", || {
        tap.announce(ADDRESS);
        let events = agent.events();
        anyhow::ensure!(
            events.iter().any(|e| e.event.raises(&address)),
            "{events:#?}"
        );
        Ok(())
    })
    .unwrap();
    let conflict = after_the_ttl(&agent, &other);
    let claimant = conflict.claimant("tapvm1").unwrap();
    assert_eq!(claimant.left, None);
    assert_eq!(claimant.evidence_kinds(), ["arp"]);
    drop(tap);
    let resolved = agent.wait_resolved(&address);
    let conflict = resolved.unwrap().event.conflict().unwrap();
    let left = conflict.claimant("tapvm1").unwrap().left.as_deref();
    assert_eq!(left, Some("device_removed"));
}
