//! Traffic control by netlink: `clsact` and the filters on its ingress side, by interface index.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption},
};
use nix::{
    errno::Errno,
    libc::{self, RTM_NEWQDISC, RTM_NEWTFILTER, TCA_KIND, TCA_OPTIONS},
};

use crate::{
    engine::IfIndex,
    observe::netlink::{
        OpenError, RawMessage, RequestError, RequestSocket, Undecodable, for_each_attribute, text,
    },
};

/// `ETH_P_ALL` in network order, as in `tcm_info`.
const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();
/// Size of `struct tcmsg`.
pub(super) const HEADER: usize = 20;
/// include/uapi/linux/pkt_cls.h; missing in libc.
const TCA_BPF_NAME: u16 = 7;
/// The ingress side of `clsact`.
pub(super) const INGRESS: TcHandle = TcHandle {
    major: u16::MAX,
    minor: TcHandle::MIN_INGRESS,
};
/// The egress side of `clsact`.
const EGRESS: TcHandle = TcHandle {
    major: u16::MAX,
    minor: TcHandle::MIN_EGRESS,
};
const CLSACT: &str = "clsact";
const BPF: &str = "bpf";
/// The handle of our filters, far from those that the kernel and other tools count up from 1, so that no `tc filter
/// replace … handle 1` of others replaces ours.
pub(super) const HANDLE: u32 = 0x4950_4344;
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

/// A filter as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TcFilter {
    /// The device.
    pub(super) ifindex: IfIndex,
    /// Its priority; the lowest number runs first.
    pub(super) priority: u16,
    /// Its identity within the priority.
    pub(super) handle: u32,
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

    /// Adds `clsact` to a device; `false` if the device has `clsact` or `ingress` already.
    pub(super) fn add_clsact(&mut self, ifindex: IfIndex) -> Result<bool, TcError> {
        let request = RouteNetlinkMessage::NewQueueDiscipline(clsact_of(ifindex));
        match self.change(request, NLM_F_CREATE | NLM_F_EXCL) {
            Ok(()) => Ok(true),
            Err(TcError::Refused(Errno::EEXIST)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes `clsact` with all its filters.
    pub(super) fn remove_clsact(&mut self, ifindex: IfIndex) -> Result<(), TcError> {
        self.change(
            RouteNetlinkMessage::DelQueueDiscipline(clsact_of(ifindex)),
            0,
        )
    }

    /// Adds a program on the ingress side with this priority, or, if it is zero, one that the kernel chooses. Returns the
    /// priority.
    pub(super) fn add_filter(
        &mut self,
        ifindex: IfIndex,
        priority: u16,
        name: &str,
        program: BorrowedFd<'_>,
    ) -> Result<u16, TcError> {
        let mut message = message(ifindex, INGRESS);
        message.header.handle = HANDLE.into();
        message.header.info = info(priority, ALL_PROTOCOLS);
        let fd = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
        message.attributes = vec![
            TcAttribute::Kind(BPF.to_owned()),
            TcAttribute::Options(vec![
                TcOption::Bpf(TcFilterBpfOption::ProgFd(fd)),
                TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
                TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
            ]),
        ];
        // The echo contains the priority that the kernel chose.
        let chosen = self.socket.change(
            RouteNetlinkMessage::NewTrafficFilter(message),
            NLM_F_CREATE | NLM_F_EXCL | NLM_F_ECHO,
            |chosen, message| {
                if message.kind != RTM_NEWTFILTER {
                    return true;
                }
                let header = TcHeader::parse(message.payload);
                *chosen = header.as_ref().ok().map(priority_of);
                header.is_ok()
            },
        )?;
        chosen.ok_or_else(|| io::Error::other("the response has no filter priority").into())
    }

    /// Removes one filter of ours.
    pub(super) fn remove_filter(
        &mut self,
        ifindex: IfIndex,
        priority: u16,
        handle: u32,
    ) -> Result<(), TcError> {
        let mut message = message(ifindex, INGRESS);
        message.header.handle = handle.into();
        message.header.info = info(priority, ALL_PROTOCOLS);
        message.attributes.push(TcAttribute::Kind(BPF.to_owned()));
        self.change(RouteNetlinkMessage::DelTrafficFilter(message), 0)
    }

    /// The filters on the ingress side, in the order in which they run.
    pub(super) fn ingress_filters(&mut self, ifindex: IfIndex) -> Result<Vec<TcFilter>, TcError> {
        self.filters(ifindex, INGRESS)
    }

    /// Whether a device's `clsact` has no filters on either side.
    pub(super) fn is_clsact_empty(&mut self, ifindex: IfIndex) -> Result<bool, TcError> {
        Ok(self.filters(ifindex, INGRESS)?.is_empty() && self.filters(ifindex, EGRESS)?.is_empty())
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

    fn filters(&mut self, ifindex: IfIndex, parent: TcHandle) -> Result<Vec<TcFilter>, TcError> {
        let request = RouteNetlinkMessage::GetTrafficFilter(message(ifindex, parent));
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

    fn change(&mut self, request: RouteNetlinkMessage, flags: u16) -> Result<(), TcError> {
        Ok(self.socket.change(request, flags, |(), _| true)?)
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

fn message(ifindex: IfIndex, parent: TcHandle) -> TcMessage {
    let mut message = TcMessage::default();
    message.header.index = i32::try_from(ifindex).unwrap_or(i32::MAX);
    message.header.parent = parent;
    message
}

fn info(priority: u16, protocol: u16) -> u32 {
    u32::from(priority) << 16 | u32::from(protocol)
}

fn priority_of(header: &TcHeader) -> u16 {
    (header.info >> 16) as u16
}

/// Parses `RTM_NEWTFILTER`; `None` for other messages, and for the one without a handle that the kernel lists for each
/// priority before its filters.
fn filter(message: RawMessage<'_>) -> Result<Option<TcFilter>, Undecodable> {
    if message.kind != RTM_NEWTFILTER {
        return Ok(None);
    }
    let header = TcHeader::parse(message.payload)?;
    let handle = u32::from(header.handle);
    let Ok(ifindex) = IfIndex::try_from(header.index) else {
        return Ok(None);
    };
    if handle == 0 {
        return Ok(None);
    }
    let mut kind = String::new();
    let mut name = None;
    let attributes = message.payload.get(HEADER..).unwrap_or_default();
    for_each_attribute(attributes, |attribute, value| {
        match attribute {
            TCA_KIND => kind = text(value),
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
    Ok(Some(TcFilter {
        ifindex,
        priority: priority_of(&header),
        handle,
        protocol: (header.info & 0xffff) as u16,
        kind,
        name,
    }))
}
