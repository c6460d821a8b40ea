//! Traffic control by netlink: `clsact` and the filters on its ingress side, by interface index.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

use detector_engine::IfIndex;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption},
};
use nix::{
    errno::Errno,
    libc::{self, RTM_NEWQDISC, RTM_NEWTFILTER, TCA_CHAIN, TCA_KIND, TCA_OPTIONS},
};

use crate::observe::netlink::{
    OpenError, RawMessage, RequestError, RequestSocket, Undecodable, for_each_attribute, text,
};

/// `ETH_P_ALL` in network order, as in `tcm_info`.
pub(super) const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();
/// Size of `struct tcmsg`.
pub(super) const HEADER: usize = 20;
/// include/uapi/linux/pkt_cls.h; missing in libc.
const TCA_BPF_NAME: u16 = 7;
/// The ingress side of `clsact`.
pub(super) const INGRESS: TcHandle = TcHandle {
    major: u16::MAX,
    minor: TcHandle::MIN_INGRESS,
};
const CLSACT: &str = "clsact";
const BPF: &str = "bpf";
/// Timeout of a response. The kernel handles a request synchronously once it has the lock, so this passes only if it is stuck.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum TcError {
    /// The kernel refused it.
    #[error("the kernel refused: {0}")]
    Refused(Errno),
    /// The request could not be sent, or the response not be read.
    #[error("netlink request failed: {0}")]
    System(#[from] io::Error),
    /// The state changed during every attempt to list it.
    #[error("listing was interrupted by changes too often")]
    Interrupted,
    /// There is no socket.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl From<RequestError> for TcError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Refused(errno) => Self::Refused(errno),
            RequestError::Interrupted => Self::Interrupted,
            RequestError::Open(error) => Self::Open(error),
            RequestError::System(error) => Self::System(error),
        }
    }
}

impl TcError {
    /// The error with which the kernel refused.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused(errno) => Some(*errno),
            Self::System(_) | Self::Interrupted | Self::Open(_) => None,
        }
    }
}

/// Where a filter is among those of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The lowest number runs first.
    pub(super) priority: u16,
    /// Its identity within the priority.
    pub(super) handle: u32,
}

/// What a device had when a filter was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddedFilter {
    /// No `clsact`, so it is the only filter.
    Only,
    /// `clsact`, and maybe filters.
    AmongOthers,
}

/// A filter as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TcFilter {
    pub(super) place: Place,
    /// The protocol it matches, in network order.
    pub(super) protocol: u16,
    /// Its kind: `bpf`, `u32`, …
    pub(super) kind: String,
    /// The program's name, for `bpf`.
    pub(super) name: Option<String>,
}

impl TcFilter {
    /// Whether a filter of ours can share its priority.
    pub(super) fn is_for_any_bpf(&self) -> bool {
        self.kind == BPF && self.protocol == ALL_PROTOCOLS
    }

    /// Whether it is the program with this name and matches all protocols.
    pub(super) fn is_named(&self, program: &str) -> bool {
        self.name.as_deref() == Some(program) && self.is_for_any_bpf()
    }
}

/// A netlink socket for traffic control, in the network namespace it was opened in.
#[derive(Debug)]
pub(super) struct Tc {
    socket: RequestSocket,
}

impl Tc {
    pub(super) fn open() -> Result<Self, TcError> {
        Ok(Self {
            socket: RequestSocket::open(TIMEOUT)?,
        })
    }

    /// The socket's port, which the kernel's notifications of its changes carry.
    pub(super) fn port_number(&self) -> u32 {
        self.socket.port_number()
    }

    /// Adds a program on the ingress side, and before it `clsact`, unless the device has `clsact` or `ingress` already. It is
    /// never removed: an empty one costs nothing, and between a plugin's `tc qdisc replace` and `tc filter add` it looks
    /// unused.
    pub(super) fn add_filter(
        &mut self,
        ifindex: IfIndex,
        place: Place,
        name: &str,
        program: BorrowedFd<'_>,
    ) -> Result<AddedFilter, TcError> {
        let fd = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
        let mut message = filter_at(ifindex, place);
        message.attributes.push(TcAttribute::Options(vec![
            TcOption::Bpf(TcFilterBpfOption::ProgFd(fd)),
            TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
            TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
        ]));
        let requests = [
            RouteNetlinkMessage::NewQueueDiscipline(clsact_of(ifindex)),
            RouteNetlinkMessage::NewTrafficFilter(message),
        ];
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        match self.socket.change_both(requests, flags)? {
            [Ok(()), Ok(())] => Ok(AddedFilter::Only),
            [Err(_), Ok(())] => Ok(AddedFilter::AmongOthers),
            [_, Err(errno)] => Err(TcError::Refused(errno)),
        }
    }

    /// Removes one filter of ours.
    pub(super) fn remove_filter(&mut self, ifindex: IfIndex, place: Place) -> Result<(), TcError> {
        let request = RouteNetlinkMessage::DelTrafficFilter(filter_at(ifindex, place));
        Ok(self.socket.change(request, 0)?)
    }

    /// The filters on the ingress side, in the order in which they run. Those in other chains than the first are left out:
    /// they run only if a filter of the first one jumps to them.
    pub(super) fn ingress_filters(&mut self, ifindex: IfIndex) -> Result<Vec<TcFilter>, TcError> {
        let request = RouteNetlinkMessage::GetTrafficFilter(message(ifindex, INGRESS));
        let filters = self
            .socket
            .dump(request, |filters: &mut Vec<TcFilter>, message| {
                let filter = filter(message);
                let is_ok = filter.is_ok();
                filters.extend(filter.ok().flatten());
                is_ok
            })?;
        Ok(filters)
    }

    /// The devices that have `clsact` or the older `ingress`.
    pub(super) fn devices_with_ingress(&mut self) -> Result<Vec<IfIndex>, TcError> {
        let request = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        let devices = self
            .socket
            .dump(request, |devices: &mut Vec<IfIndex>, message| {
                if message.kind != RTM_NEWQDISC {
                    return true;
                }
                let Ok(header) = TcHeader::parse(message.payload) else {
                    return false;
                };
                if header.parent == TcHandle::CLSACT {
                    devices.extend(IfIndex::try_from(header.index));
                }
                true
            })?;
        Ok(devices)
    }
}

fn clsact_of(ifindex: IfIndex) -> TcMessage {
    let mut message = message(ifindex, TcHandle::CLSACT);
    message.header.handle = TcHandle {
        major: u16::MAX,
        minor: 0,
    };
    message
        .attributes
        .push(TcAttribute::Kind(CLSACT.to_owned()));
    message
}

fn filter_at(ifindex: IfIndex, place: Place) -> TcMessage {
    let mut message = message(ifindex, INGRESS);
    message.header.handle = place.handle.into();
    message.header.info = u32::from(place.priority) << 16 | u32::from(ALL_PROTOCOLS);
    message.attributes.push(TcAttribute::Kind(BPF.to_owned()));
    message
}

fn message(ifindex: IfIndex, parent: TcHandle) -> TcMessage {
    let mut message = TcMessage::default();
    message.header.index = i32::try_from(ifindex).unwrap_or(i32::MAX);
    message.header.parent = parent;
    message
}

/// Parses `RTM_NEWTFILTER`; `None` for other messages, for the one without a handle that the kernel lists for each priority
/// before its filters, and for filters outside the first chain.
fn filter(message: RawMessage<'_>) -> Result<Option<TcFilter>, Undecodable> {
    if message.kind != RTM_NEWTFILTER {
        return Ok(None);
    }
    let header = TcHeader::parse(message.payload)?;
    let handle = u32::from(header.handle);
    if handle == 0 {
        return Ok(None);
    }
    let mut kind = String::new();
    let mut name = None;
    let mut is_in_first_chain = true;
    let attributes = message.payload.get(HEADER..).unwrap_or_default();
    for_each_attribute(attributes, |attribute, value| {
        match attribute {
            TCA_KIND => kind = text(value),
            TCA_CHAIN => is_in_first_chain = value.iter().all(|byte| *byte == 0),
            // Options of other kinds have other numbers; they are only read once the kind is known.
            TCA_OPTIONS if kind == BPF => {
                for_each_attribute(value, |option, value| {
                    if option == TCA_BPF_NAME {
                        name = Some(text(value));
                    }
                    Ok(())
                })?;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(is_in_first_chain.then_some(TcFilter {
        place: Place {
            priority: (header.info >> 16) as u16,
            handle,
        },
        protocol: (header.info & 0xffff) as u16,
        kind,
        name,
    }))
}
