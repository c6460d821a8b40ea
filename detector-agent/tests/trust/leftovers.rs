//! Filters left by a killed agent and programs of other tools on the same devices: the agent removes
//! its own, keeps the others', and sees frames next to them.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::ensure;
use aya::programs::{SchedClassifier, TcAttachType};
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, until,
};
use nix::libc;

use crate::AGENT;

pub(super) fn command(attach: &str) -> AgentCommand {
    AgentCommand::run(AGENT).arg("--attach").arg(attach)
}

pub(super) fn filters(node: &Node, device: &str) -> Vec<String> {
    node.filters(device).unwrap()
}

pub(super) fn is_ours(filter: &str) -> bool {
    filter.contains("ipconflict_arp_ndp")
}

fn ours(filters: &[String]) -> usize {
    filters.iter().filter(|filter| is_ours(filter)).count()
}

/// Adds another tool's filter: classic BPF that accepts every frame, so that filters behind it see nothing.
fn add_foreign_filter(node: &Node, device: &str) -> Vec<String> {
    let code = "1,6 0 0 4294967295,";
    let words = ["tc", "qdisc", "add", "dev", device, "clsact"];
    node.exec(&words).unwrap();
    let words = [
        "tc", "filter", "add", "dev", device, "ingress", "protocol", "all",
    ];
    let rest = ["prio", "7", "bpf", "bytecode", code];
    node.exec(&[&words[..], &rest[..]].concat()).unwrap();
    filters(node, device)
}

/// The ids of the programs on a device's TCX ingress, in the order they run.
pub(super) fn tcx_program_ids(node: &Node, device: &str) -> Vec<u32> {
    node.run_in(|| Ok(SchedClassifier::query_tcx(device, TcAttachType::Ingress)?))
        .unwrap()
        .1
        .iter()
        .map(aya::programs::ProgramInfo::id)
        .collect()
}

/// Another tool's TCX program, which accepts every frame and ends the chain: clsact filters see
/// nothing.
struct ForeignTcx {
    _program: OwnedFd,
    _link: OwnedFd,
}

impl ForeignTcx {
    fn attach(node: &Node, device: &str) -> Self {
        const BPF_PROG_LOAD: libc::c_long = 5;
        const BPF_LINK_CREATE: libc::c_long = 28;
        const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
        const BPF_TCX_INGRESS: u32 = 46;
        // r0 = 0 (TCX_PASS); exit.
        let instructions: [u64; 2] = [0xb7, 0x95];
        let license = c"GPL";
        let pair = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
        let mut load = [0u64; 8];
        load[0] = pair(BPF_PROG_TYPE_SCHED_CLS, 2);
        load[1] = instructions.as_ptr().expose_provenance() as u64;
        load[2] = license.as_ptr().expose_provenance() as u64;
        let program = bpf(BPF_PROG_LOAD, &load);
        let ifindex = node.ifindex(device).unwrap();
        let number = u32::try_from(program.as_raw_fd()).unwrap();
        let create = [pair(number, ifindex), pair(BPF_TCX_INGRESS, 0), 0, 0];
        let link = node.run_in(|| Ok(bpf(BPF_LINK_CREATE, &create))).unwrap();
        Self {
            _program: program,
            _link: link,
        }
    }
}

/// Calls bpf(2) for a command that returns a file descriptor.
fn bpf(command: libc::c_long, attributes: &[u64]) -> OwnedFd {
    // SAFETY: the length matches the attributes, and the caller keeps the pointed-to data alive.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_ptr(),
            size_of_val(attributes),
        )
    };
    let error = io::Error::last_os_error();
    assert!(descriptor >= 0, "bpf({command}): {error}");
    // SAFETY: the kernel just returned this descriptor, and no other code owns it.
    unsafe { OwnedFd::from_raw_fd(i32::try_from(descriptor).unwrap()) }
}

/// Polls until the agent has changed a device, which it reports nowhere.
pub(super) fn wait_for(is_done: impl Fn() -> bool) {
    until(DEADLINE, "the agent to change the device", || {
        ensure!(is_done());
        Ok(())
    })
    .unwrap();
}

pub(super) fn two_pods(prefix: &str) -> (Node, Vec<Pod>, Barrier) {
    let node = Node::new(prefix).unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    (node, pods, barrier)
}

/// Makes a conflict that only frames show, and waits until it is raised.
pub(super) fn assert_frames_are_seen(pods: &[Pod], agent: &Agent, last: u8) {
    for pod in pods {
        let frame = Frame::announcement(pod.mac(), [10, 244, 2, last].into());
        FrameSender::open(pod).unwrap().send(&frame).unwrap();
    }
    let subject = format!("10.244.2.{last}");
    agent.wait_raised(&subject).unwrap();
}

#[test]
fn foreign_programs_survive_kill_restart_and_cleanup() {
    let (node, pods, _barrier) = two_pods("foreign");
    let foreign = add_foreign_filter(&node, "vetha");
    assert_eq!(foreign.len(), 1);
    let tcx = ForeignTcx::attach(&node, "vethb");
    let foreign_ids = tcx_program_ids(&node, "vethb");
    assert_eq!(foreign_ids.len(), 1);

    let mut killed = Agent::start_ready(&node, &command("tc")).unwrap();
    let with_ours = filters(&node, "vetha");
    assert_eq!((with_ours.len(), ours(&with_ours)), (2, 1), "{with_ours:?}");
    killed.kill().unwrap();
    assert_eq!(
        ours(&filters(&node, "vetha")),
        1,
        "a killed agent leaves its filter"
    );
    assert_eq!(
        ours(&filters(&node, "vethb")),
        1,
        "a killed agent leaves its filter"
    );

    let mut next = Agent::start_ready(&node, &command("auto")).unwrap();
    assert_eq!(
        ours(&filters(&node, "vetha")),
        1,
        "the old filter is replaced"
    );
    assert_eq!(
        ours(&filters(&node, "vethb")),
        0,
        "it is attached by TCX there"
    );
    let ids = tcx_program_ids(&node, "vethb");
    assert_eq!(
        (ids.len(), ids.last()),
        (2, foreign_ids.last()),
        "runs first"
    );
    assert_frames_are_seen(&pods, &next, 10);
    next.kill().unwrap();
    assert_eq!(
        tcx_program_ids(&node, "vethb"),
        foreign_ids,
        "the link is released with its agent"
    );

    let outcome = AgentCommand::new(AGENT, ["cleanup"])
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert_eq!(outcome.code().unwrap(), 0, "{outcome:?}");
    assert_eq!(filters(&node, "vetha"), foreign);
    assert_eq!(ours(&filters(&node, "vethb")), 0);
    assert_eq!(tcx_program_ids(&node, "vethb"), foreign_ids);
    drop(tcx);
}

#[test]
fn foreign_programs_survive_a_clean_shutdown() {
    let (node, pods, _barrier) = two_pods("order");
    let foreign = add_foreign_filter(&node, "vetha");
    let _tcx = ForeignTcx::attach(&node, "vethb");
    let foreign_ids = tcx_program_ids(&node, "vethb");
    let mut agent = Agent::start_ready(&node, &command("auto")).unwrap();
    assert_frames_are_seen(&pods, &agent, 10);
    agent.terminate(DEADLINE).unwrap();
    assert_eq!(filters(&node, "vetha"), foreign);
    assert_eq!(tcx_program_ids(&node, "vethb"), foreign_ids);
}

/// As Cilium: its program ends the chain, so a filter behind it would see nothing.
#[test]
fn auto_sees_frames_next_to_a_chain_ending_program() {
    let (node, pods, _barrier) = two_pods("auto");
    let _foreign = ["vetha", "vethb"].map(|device| ForeignTcx::attach(&node, device));
    let agent = Agent::start_ready(&node, &command("auto")).unwrap();
    for device in ["vetha", "vethb"] {
        assert_eq!(tcx_program_ids(&node, device).len(), 2);
        assert_eq!(filters(&node, device), Vec::<String>::new());
    }
    assert_frames_are_seen(&pods, &agent, 10);
}

/// As Cilium on a new pod: its program is attached some time after the device appears, and so after
/// our filter.
#[test]
fn auto_moves_ahead_of_a_later_chain_ending_program() {
    let (node, pods, _barrier) = two_pods("later");
    let agent = Agent::start_ready(&node, &command("auto")).unwrap();
    let _foreign = ["vetha", "vethb"].map(|device| ForeignTcx::attach(&node, device));
    wait_for(|| {
        ["vetha", "vethb"]
            .iter()
            .all(|device| tcx_program_ids(&node, device).len() == 2)
    });
    assert_frames_are_seen(&pods, &agent, 10);
}

#[test]
fn filter_removed_by_others_is_reattached() {
    let (node, pods, _barrier) = two_pods("removed");
    let agent = Agent::start_ready(&node, &command("tc")).unwrap();
    let with_its_clsact = ["tc", "qdisc", "del", "dev", "vetha", "clsact"];
    let by_itself = ["tc", "filter", "del", "dev", "vethb", "ingress"];
    for removed in [&with_its_clsact[..], &by_itself] {
        node.exec(removed).unwrap();
    }
    wait_for(|| {
        ["vetha", "vethb"]
            .iter()
            .all(|device| ours(&filters(&node, device)) == 1)
    });
    assert_frames_are_seen(&pods, &agent, 10);
}

#[test]
fn auto_uses_clsact_without_other_tcx_programs() {
    let (node, pods, _barrier) = two_pods("plain");
    let agent = Agent::start_ready(&node, &command("auto")).unwrap();
    for device in ["vetha", "vethb"] {
        assert_eq!(tcx_program_ids(&node, device), Vec::<u32>::new());
        assert_eq!(ours(&filters(&node, device)), 1);
    }
    assert_frames_are_seen(&pods, &agent, 10);
}

#[test]
fn tcx_sees_frames_and_detaches_when_the_agent_dies() {
    let (node, pods, barrier) = two_pods("tcx");
    let mut agent = Agent::start_ready(&node, &command("tcx")).unwrap();
    for device in ["vetha", "vethb"] {
        assert_eq!(tcx_program_ids(&node, device).len(), 1);
        assert_eq!(filters(&node, device), Vec::<String>::new());
    }
    assert_frames_are_seen(&pods, &agent, 10);
    // Devices added later are attached too.
    let later = ["vethc", "vethd"].map(PodSpec::new);
    let later = node.add_pods(&later).unwrap();
    assert_eq!(barrier.pass(&node, &agent).unwrap().len(), 1);
    wait_for(|| {
        ["vethc", "vethd"]
            .iter()
            .all(|device| tcx_program_ids(&node, device).len() == 1)
    });
    assert_frames_are_seen(&later, &agent, 11);
    agent.kill().unwrap();
    for device in ["vetha", "vethb", "vethc", "vethd"] {
        assert_eq!(tcx_program_ids(&node, device), Vec::<u32>::new());
    }
}
