//! What is attached to the pods' devices while traffic is measured: nothing, an empty program, or the agent's program, on the
//! ingress side of `clsact` as the agent attaches by default, or on TCX as with `--attach tcx`.
//!
//! The agent's program is the one that a running agent has loaded, with that agent's maps and settings. It is attached here instead
//! of by that agent, which is in another network namespace, because this takes less than a millisecond.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf,
    programs::{
        LinkOrder, ProgramInfo, SchedClassifier, TcAttachType, loaded_programs,
        tc::{NlOptions, SchedClassifierLinkId, TcAttachOptions, qdisc_add_clsact},
    },
};
use detector_testkit::Netns;
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcHandle, TcMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::net::if_::if_nametoindex;
use serde_json::Value;

/// The program in the object of the empty one.
const EMPTY_PROGRAM: &str = "ipconflict_empty";

/// What is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// No program, and no `clsact`.
    Nothing,
    /// A program that lets every packet pass.
    Empty,
    /// The agent's.
    Agent,
}

/// Where programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// A filter on `clsact`, which is added for it.
    Clsact,
    /// TCX, since Linux 6.6.
    Tcx,
}

/// Changes what is attached to some devices of this thread's network namespace.
pub(super) struct Arms<'d> {
    devices: &'d [&'d str],
    /// Owns the empty program.
    empty: Ebpf,
    agent: SchedClassifier,
    arm: Arm,
    /// Of `arm`.
    hook: Hook,
    links: Vec<SchedClassifierLinkId>,
    netlink: Socket,
}

impl<'d> Arms<'d> {
    /// Loads the empty program; attaches nothing yet.
    pub(super) fn new(
        devices: &'d [&'d str],
        empty_object: &Path,
        agent: ProgramInfo,
    ) -> Result<Self> {
        let object = fs::read(empty_object).with_context(|| {
            format!(
                "reading {}, which `cargo xtask build` builds",
                empty_object.display()
            )
        })?;
        let mut empty = Ebpf::load(&object).context("loading the empty program")?;
        classifier(&mut empty)?.load()?;
        let mut netlink = Socket::new(NETLINK_ROUTE).context("opening a netlink socket")?;
        netlink.bind_auto().context("binding a netlink socket")?;
        Ok(Self {
            devices,
            empty,
            agent: SchedClassifier::from_program_info(agent, "ipconflict_arp_ndp".into())?,
            arm: Arm::Nothing,
            hook: Hook::Clsact,
            links: Vec::new(),
            netlink,
        })
    }

    /// Detaches what is attached and attaches that of `arm` to `hook`, even if it is the same.
    pub(super) fn switch(&mut self, arm: Arm, hook: Hook) -> Result<()> {
        let before = match self.arm {
            Arm::Nothing => None,
            Arm::Empty => Some(classifier(&mut self.empty)?),
            Arm::Agent => Some(&mut self.agent),
        };
        if let Some(program) = before {
            for link in self.links.drain(..) {
                program.detach(link).context("detaching a program")?;
            }
            if self.hook == Hook::Clsact {
                for device in self.devices {
                    remove_clsact(&self.netlink, device)?;
                }
            }
        }
        (self.arm, self.hook) = (arm, hook);
        let program = match arm {
            Arm::Nothing => return Ok(()),
            Arm::Empty => classifier(&mut self.empty)?,
            Arm::Agent => &mut self.agent,
        };
        for device in self.devices {
            let options = match hook {
                Hook::Clsact => {
                    qdisc_add_clsact(device)
                        .with_context(|| format!("adding clsact to {device}"))?;
                    TcAttachOptions::Netlink(NlOptions {
                        priority: 1,
                        handle: 1.into(),
                        ..NlOptions::default()
                    })
                }
                Hook::Tcx => TcAttachOptions::TcxOrder(LinkOrder::first()),
            };
            let link = program
                .attach_with_options(device, TcAttachType::Ingress, options)
                .with_context(|| format!("attaching a program to {device}"))?;
            self.links.push(link);
        }
        Ok(())
    }
}

fn classifier(object: &mut Ebpf) -> Result<&mut SchedClassifier> {
    let program = object
        .program_mut(EMPTY_PROGRAM)
        .context("the object has no empty program")?;
    Ok(program.try_into()?)
}

/// The program that the agent on this node has attached to a device by `clsact`.
pub(super) fn attached_program(node: &Netns, device: &str) -> Result<ProgramInfo> {
    let filters = node.exec(&["tc", "-j", "filter", "show", "dev", device, "ingress"])?;
    let filters: Value = serde_json::from_str(&filters).context("the output of tc")?;
    let id = filters
        .as_array()
        .into_iter()
        .flatten()
        .find_map(|filter| filter.pointer("/options/prog/id")?.as_u64())
        .with_context(|| format!("no program on {device}: {filters}"))?;
    loaded_programs()
        .filter_map(Result::ok)
        .find(|program| u64::from(program.id()) == id)
        .with_context(|| format!("program {id} is not loaded"))
}

/// Removes `clsact` from a device of this thread's network namespace.
pub(super) fn remove_clsact(socket: &Socket, device: &str) -> Result<()> {
    let mut message = TcMessage::default();
    message.header.index = i32::try_from(if_nametoindex(device)?)?;
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle {
        major: u16::MAX,
        minor: 0,
    };
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::DelQueueDiscipline(message));
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    request.finalize();
    let mut buffer = vec![0; request.buffer_len()];
    request.serialize(&mut buffer);
    socket
        .send_to(&buffer, &SocketAddr::new(0, 0), 0)
        .context("sending a netlink request")?;
    let (response, _) = socket.recv_from_full().context("no netlink response")?;
    let response = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&response)
        .context("the netlink response")?;
    if let NetlinkPayload::Error(error) = response.payload {
        ensure!(
            error.code.is_none(),
            "removing clsact from {device}: {}",
            error.to_io()
        );
    }
    Ok(())
}
