//! A pod whose stack is a program (gVisor, a virtual machine): no namespace shows what it has, so
//! others try to have what it is silent about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, KubeApi, MacAddress, NaFlags, Node, Pod,
    PodSpec, event::Conflict, kube_api::pod, until,
};

use crate::{AGENT, metrics::claims};

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

/// Only the API names pods, and the addresses are all that it knows of them. The pod that took the
/// address of one whose namespace shows none is not that one.
#[test]
fn pod_with_a_programs_address_does_not_take_its_name() {
    const NODE: &str = "testkit";
    for is_early in [true, false] {
        let node = Node::new("takename").unwrap();
        let api = KubeApi::start(&node).unwrap();
        api.apply(pod(NODE, "shop", "program", &[&ADDRESS.to_string()]));
        api.apply(pod(NODE, "shop", "attacker", &["10.9.8.66"]));
        let program = node.add_pod(&PodSpec::new("vethprogram")).unwrap();
        let attacker = PodSpec::new("vethattacker").address("10.9.8.66/32");
        let attacker = node.add_pod(&attacker).unwrap();
        let take = || {
            attacker.add_address(&format!("{ADDRESS}/32")).unwrap();
            attacker.remove_address("10.9.8.66/32").unwrap();
        };
        if is_early {
            take();
        }
        let command = AgentCommand::run(AGENT)
            .arg("--cri-endpoint=off")
            .arg("--cni-cache-dir=off")
            .arg("--kube=on")
            .env("KUBECONFIG", api.kubeconfig());
        let agent = Agent::start_ready(&node, &command).unwrap();
        if !is_early {
            take();
        }
        announce(&program, program.mac(), ADDRESS.into());
        let conflict = agent.wait_raised(&ADDRESS.to_string()).unwrap();
        assert_eq!(conflict.devices(), ["vethattacker", "vethprogram"]);
        // Which pod the attacker is has been decided.
        until(DEADLINE, "the attacker to stay without a name", || {
            let claims = claims(&node, &ADDRESS.to_string())?;
            let attacker = claims.iter().find(|c| c["device"] == "vethattacker");
            let why = attacker.and_then(|c| c["pod_unknown_because"].as_str());
            let is_decided = why.is_some_and(|why| why.contains("may have taken it"));
            ensure!(is_decided, "{attacker:#?}");
            Ok(())
        })
        .unwrap();
        // A third claimant: whatever is known of the names by then is in the update.
        let third = PodSpec::new("veththird").address(format!("{ADDRESS}/32"));
        let _third = node.add_pod(&third).unwrap();
        let address = ADDRESS.to_string();
        let updated = agent.wait_event(DEADLINE, |event| {
            let conflict = event.conflict();
            let joined = conflict.is_some_and(|c| c.claimant("veththird").is_some());
            event.updates(&address) && joined
        });
        updated.unwrap();
        for received in agent.events() {
            let conflict = received.event.conflict().unwrap();
            // Frames are all that the program can show.
            let step = conflict.guidance.as_ref().map(|g| g.next_step.as_str());
            assert!(
                !step.unwrap_or_default().contains("vethprogram"),
                "{step:?}"
            );
            for claimant in &conflict.claimants {
                let pod = claimant.pod.as_ref().map(|pod| pod["name"].to_string());
                assert_ne!(pod.as_deref(), Some("\"program\""), "{conflict:#?}");
            }
        }
    }
}

/// The agent remembers no uncontested claim in frames, so that after its restart it knows the attacker alone until
/// the silent pod sends a frame. Neither of them counts as the newest, even after another restart.
#[test]
fn program_silent_over_a_restart_is_neither_newest_nor_blamed() {
    const DEVICES: [&str; 2] = ["vethattacker", "vethsilent"];
    let is_newest = |conflict: &Conflict, device| conflict.claimant(device).unwrap().newest;
    let own: &[&str] = &["10.9.8.66/32", "fd00::66/128"];
    for (is_killed, attacker_has) in [(false, &[][..]), (true, &[]), (true, own)] {
        let node = Node::new("silentrestart").unwrap();
        let silent = node.add_pod(&PodSpec::new("vethsilent")).unwrap();
        let spec = attacker_has
            .iter()
            .fold(PodSpec::new("vethattacker"), |spec, own| spec.address(*own));
        let attacker = node.add_pod(&spec).unwrap();
        let state = tempfile::tempdir().unwrap();
        let command = AgentCommand::run(AGENT)
            .arg("--state-dir")
            .arg(state.path());
        let addresses = [IpAddr::from(ADDRESS), ADDRESS6.into()];
        let mut agent = Agent::start_ready(&node, &command).unwrap();
        for address in addresses {
            announce(&silent, silent.mac(), address);
        }
        if is_killed {
            agent.kill().unwrap();
        } else {
            agent.terminate(DEADLINE).unwrap();
        }
        for address in addresses {
            announce(&attacker, silent.mac(), address);
        }

        let mut agent = Agent::start_ready(&node, &command).unwrap();
        for address in addresses {
            announce(&attacker, silent.mac(), address);
            announce(&silent, silent.mac(), address);
            let conflict = agent.wait_raised(&address.to_string()).unwrap();
            assert_eq!(conflict.devices(), DEVICES);
            for device in DEVICES {
                assert!(!is_newest(&conflict, device), "{conflict:#?}");
            }
            let step = conflict.guidance.unwrap().next_step;
            assert!(!step.contains("vethsilent"), "{step}");
            let is_attacker_named = step.contains("vethattacker");
            assert_eq!(is_attacker_named, !attacker_has.is_empty(), "{step}");
        }

        agent.terminate(DEADLINE).unwrap();
        let agent = Agent::start_ready(&node, &command).unwrap();
        for (address, prefix) in addresses.into_iter().zip([32, 128]) {
            // A third claimant: the update has all of them.
            let third =
                PodSpec::new(format!("veth{prefix}")).address(format!("{address}/{prefix}"));
            let _third = node.add_pod(&third).unwrap();
            let text = address.to_string();
            let updated = agent.wait_event(DEADLINE, |event| {
                let conflict = event.conflict();
                conflict.is_some_and(|c| c.address == text && c.claimants.len() == 3)
            });
            let conflict = updated.unwrap().event.conflict().unwrap();
            for device in DEVICES {
                assert!(!is_newest(&conflict, device), "{conflict:#?}");
            }
        }
    }
}
