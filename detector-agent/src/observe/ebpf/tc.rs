//! Traffic control by netlink: `clsact` and the filters on its ingress side, by interface index.

use std::{io, os::fd::AsRawFd, os::fd::BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::{
    errno::Errno,
    sys::{
        socket::{setsockopt, sockopt},
        time::{TimeVal, TimeValLike},
    },
};

use crate::engine::IfIndex;

/// `ETH_P_ALL` in network order, as in `tcm_info`.
const ALL_PROTOCOLS: u16 = 0x0003_u16.to_be();
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
/// The handle of our filters, far from those that the kernel and other tools count up from 1, so that no `tc filter
/// replace … handle 1` of others replaces ours.
pub(super) const HANDLE: u32 = 0x4950_4344;
/// Timeout of a response. The kernel handles a request synchronously once it has the lock, so this passes only if it is stuck.
const TIMEOUT_SECONDS: i64 = 30;
/// Maximum size of a datagram from the kernel.
const DATAGRAM: usize = 64 * 1024;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum TcError {
    /// The kernel refused it.
    #[error("the kernel refused: {0}")]
    Refused(Errno),
    /// The request could not be sent, or the response not be read.
    #[error("netlink request failed: {0}")]
    System(#[from] io::Error),
}

impl TcError {
    /// The error with which the kernel refused.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused(errno) => Some(*errno),
            Self::System(_) => None,
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
        self.kind == "bpf" && self.protocol == ALL_PROTOCOLS
    }

    /// Whether it is the program with this name and matches all protocols.
    pub(super) fn is_named(&self, program: &str) -> bool {
        self.name.as_deref() == Some(program) && self.is_for_any_bpf()
    }
}

/// A netlink socket for traffic control, in the network namespace it was opened in.
#[derive(Debug)]
pub(super) struct Tc {
    socket: Socket,
    buffer: Box<[u8]>,
    sequence: u32,
}

impl Tc {
    pub(super) fn open() -> Result<Self, TcError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        setsockopt(
            &socket,
            sockopt::ReceiveTimeout,
            &TimeVal::seconds(TIMEOUT_SECONDS),
        )
        .map_err(io::Error::from)?;
        Ok(Self {
            socket,
            buffer: vec![0; DATAGRAM].into_boxed_slice(),
            sequence: 0,
        })
    }

    /// Adds `clsact` to a device; `false` if the device has `clsact` or `ingress` already.
    pub(super) fn add_clsact(&mut self, ifindex: IfIndex) -> Result<bool, TcError> {
        let mut message = message(ifindex, TcHandle::CLSACT);
        message.header.handle = TcHandle {
            major: u16::MAX,
            minor: 0,
        };
        message
            .attributes
            .push(TcAttribute::Kind(CLSACT.to_owned()));
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        match self.request(
            RouteNetlinkMessage::NewQueueDiscipline(message),
            flags,
            |_| {},
        ) {
            Ok(()) => Ok(true),
            Err(TcError::Refused(Errno::EEXIST)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes `clsact` with all its filters.
    pub(super) fn remove_clsact(&mut self, ifindex: IfIndex) -> Result<(), TcError> {
        let mut message = message(ifindex, TcHandle::CLSACT);
        message.header.handle = TcHandle {
            major: u16::MAX,
            minor: 0,
        };
        message
            .attributes
            .push(TcAttribute::Kind(CLSACT.to_owned()));
        self.request(
            RouteNetlinkMessage::DelQueueDiscipline(message),
            NLM_F_REQUEST | NLM_F_ACK,
            |_| {},
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
            TcAttribute::Kind("bpf".to_owned()),
            TcAttribute::Options(vec![
                TcOption::Bpf(TcFilterBpfOption::ProgFd(fd)),
                TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
                TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
            ]),
        ];
        let mut chosen = None;
        // The echo contains the priority that the kernel chose.
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ECHO;
        self.request(
            RouteNetlinkMessage::NewTrafficFilter(message),
            flags,
            |response| {
                if let RouteNetlinkMessage::NewTrafficFilter(made) = response {
                    chosen = Some(priority_of(&made.header));
                }
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
        message.attributes.push(TcAttribute::Kind("bpf".to_owned()));
        self.request(
            RouteNetlinkMessage::DelTrafficFilter(message),
            NLM_F_REQUEST | NLM_F_ACK,
            |_| {},
        )
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
        let mut devices = Vec::new();
        let request = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        self.request(request, NLM_F_REQUEST | NLM_F_DUMP, |response| {
            if let RouteNetlinkMessage::NewQueueDiscipline(found) = response
                && found.header.parent == TcHandle::CLSACT
                && let Ok(ifindex) = IfIndex::try_from(found.header.index)
            {
                devices.push(ifindex);
            }
        })?;
        Ok(devices)
    }

    fn filters(&mut self, ifindex: IfIndex, parent: TcHandle) -> Result<Vec<TcFilter>, TcError> {
        let mut filters = Vec::new();
        let request = RouteNetlinkMessage::GetTrafficFilter(message(ifindex, parent));
        self.request(request, NLM_F_REQUEST | NLM_F_DUMP, |response| {
            if let RouteNetlinkMessage::NewTrafficFilter(found) = response {
                filters.extend(filter(&found));
            }
        })?;
        Ok(filters)
    }

    /// Sends a request and reads the response to its end.
    fn request(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<(), TcError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = NetlinkMessage::from(request);
        request.header.flags = flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        let kernel = SocketAddr::new(0, 0);
        self.socket.send_to(&bytes, &kernel, 0)?;
        loop {
            let (length, sender) = match self.socket.recv_from(&mut &mut self.buffer[..], 0) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if sender.port_number() != 0 {
                continue;
            }
            let mut rest = self.buffer.get(..length).unwrap_or_default();
            while let Some(next) = rest.first_chunk().copied().map(u32::from_ne_bytes) {
                let length = (next as usize).max(16);
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest);
                // Messages start at multiples of four bytes.
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                let Ok(message) = message else {
                    // A filter of a kind that the library cannot parse is not ours.
                    continue;
                };
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => {
                        return match error.raw_code() {
                            0 => Ok(()),
                            code => Err(TcError::Refused(Errno::from_raw(code.saturating_neg()))),
                        };
                    }
                    NetlinkPayload::InnerMessage(response) => each(response),
                    _ => {}
                }
            }
        }
    }
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

fn filter(message: &TcMessage) -> Option<TcFilter> {
    let handle =
        u32::from(message.header.handle.major) << 16 | u32::from(message.header.handle.minor);
    // Each priority is listed once without a handle, before its filters.
    if handle == 0 {
        return None;
    }
    let mut found = TcFilter {
        ifindex: IfIndex::try_from(message.header.index).ok()?,
        priority: priority_of(&message.header),
        handle,
        protocol: (message.header.info & 0xffff) as u16,
        kind: String::new(),
        name: None,
    };
    for attribute in &message.attributes {
        match attribute {
            TcAttribute::Kind(kind) => found.kind.clone_from(kind),
            TcAttribute::Options(options) => {
                for option in options {
                    if let TcOption::Bpf(TcFilterBpfOption::ProgName(name)) = option {
                        found.name = Some(name.clone());
                    }
                }
            }
            _ => {}
        }
    }
    Some(found)
}
