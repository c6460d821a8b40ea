//! Route-netlink sockets, and receiving with the control message that carries the sender's namespace.

use std::{
    io::{self, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

use detector_engine::NsId;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::{
    cmsg_space,
    errno::Errno,
    libc,
    sys::{
        socket::{ControlMessageOwned, MsgFlags, NetlinkAddr, recvmsg, setsockopt, sockopt},
        time::{TimeVal, TimeValLike},
    },
};

use super::decode::AF_BRIDGE;

/// Size of the largest datagram, in bytes: the kernel builds dumps in pieces of at most 32 KiB, and a notification about a
/// link is smaller than that.
pub(in crate::observe) const MAX_DATAGRAM: usize = 64 * 1024;

/// Offsets of the type in `nlmsghdr`, and of the family in a neighbour message with its header.
const MESSAGE_TYPE_OFFSET: u32 = 4;
const FAMILY_OFFSET: u32 = 16;

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A capability is missing.
    #[error("{purpose} needs {capability}: run as root, or grant it to the agent")]
    MissingCapability {
        /// The capability's name.
        capability: &'static str,
        /// What it is needed for.
        purpose: &'static str,
    },
    /// The kernel is too old.
    #[error("the kernel does not support {purpose}; Linux 4.20 or newer is required")]
    OldKernel {
        /// What the kernel does not support.
        purpose: &'static str,
    },
    /// The system refused.
    #[error("{purpose} failed: {source}")]
    System {
        /// What was attempted.
        purpose: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    fn system(purpose: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOPROTOOPT) => Self::OldKernel { purpose },
            _ => Self::System { purpose, source },
        }
    }

    fn privileged(
        purpose: &'static str,
        capability: &'static str,
        source: impl Into<io::Error>,
    ) -> Self {
        let source = source.into();
        if source.kind() == io::ErrorKind::PermissionDenied {
            return Self::MissingCapability {
                capability,
                purpose,
            };
        }
        Self::system(purpose, source)
    }
}

/// A route-netlink socket.
#[derive(Debug)]
pub(in crate::observe) struct RouteSocket {
    socket: Socket,
    port: u32,
    control: Vec<u8>,
}

/// A datagram that was received into the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::observe) struct DatagramInfo {
    /// Bytes in the buffer.
    pub(in crate::observe) length: usize,
    /// The sender's namespace, on a socket that receives from all of them; `None` for the socket's own.
    pub(super) nsid: Option<NsId>,
    /// The datagram was longer than the buffer, or its control message was lost.
    pub(in crate::observe) truncated: bool,
    /// Sent by the kernel, not by another process.
    pub(in crate::observe) from_kernel: bool,
}

impl RouteSocket {
    fn new() -> Result<Self, OpenError> {
        let open = |error| OpenError::system("opening a netlink socket", error);
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(open)?;
        let address = socket.bind_auto().map_err(open)?;
        Ok(Self {
            socket,
            port: address.port_number(),
            control: cmsg_space!(i32),
        })
    }

    /// A socket for requests: blocking for up to `patience`, and with strict checking, so that the kernel refuses attributes
    /// it does not understand instead of ignoring them.
    pub(super) fn for_requests(patience: Duration) -> Result<Self, OpenError> {
        let this = Self::new()?;
        let purpose = "strict checking of netlink requests";
        this.socket
            .set_netlink_get_strict_chk(true)
            .map_err(|error| OpenError::system(purpose, error))?;
        let patience =
            TimeVal::milliseconds(i64::try_from(patience.as_millis()).unwrap_or(i64::MAX));
        setsockopt(&this.socket, sockopt::ReceiveTimeout, &patience)
            .map_err(|error| OpenError::system("limiting the wait for netlink answers", error))?;
        Ok(this)
    }

    /// A non-blocking socket that receives the notifications of `groups`, with a receive buffer of `receive_buffer` bytes,
    /// or of the system's default size. (The kernel counts its own overhead into it, about 800 bytes a message, and doubles
    /// the figure.)
    pub(in crate::observe) fn for_notifications(
        groups: &[u32],
        receive_buffer: Option<usize>,
    ) -> Result<Self, OpenError> {
        let this = Self::new()?;
        if let Some(receive_buffer) = receive_buffer {
            let purpose = "setting the size of a netlink receive buffer";
            setsockopt(&this.socket, sockopt::RcvBufForce, &receive_buffer)
                .map_err(|error| OpenError::privileged(purpose, "CAP_NET_ADMIN", error))?;
        }
        for group in groups {
            match this.socket.add_membership(*group) {
                // Before Linux 5.3 there are no next-hop objects.
                Err(error)
                    if *group == libc::RTNLGRP_NEXTHOP
                        && error.raw_os_error() == Some(libc::EINVAL) => {}
                joined => joined.map_err(|error| {
                    OpenError::system("joining a netlink multicast group", error)
                })?,
            }
        }
        this.socket
            .set_non_blocking(true)
            .map_err(|error| OpenError::system("making a netlink socket non-blocking", error))?;
        Ok(this)
    }

    /// Makes a socket receive notifications from every namespace that has an id in its own.
    pub(super) fn receive_from_all_namespaces(&self) -> Result<(), OpenError> {
        self.socket
            .set_listen_all_namespaces(true)
            .map_err(|error| {
                OpenError::privileged(
                    "receiving address changes inside pods",
                    "CAP_NET_BROADCAST",
                    error,
                )
            })
    }

    /// Makes the kernel drop IPv4 and IPv6 neighbour messages before they take room in the receive buffer: a pod that sends
    /// ARP from invented addresses causes two messages with each frame. Forwarding entries of bridges are still received.
    pub(super) fn exclude_ip_neighbours(&self) -> Result<(), OpenError> {
        attach_filter(&self.socket, &only_forwarding_neighbours())
            .map_err(|error| OpenError::system("filtering netlink messages", error))
    }

    /// Receives every neighbour message again.
    pub(super) fn include_ip_neighbours(&self) -> Result<(), OpenError> {
        // The kernel replaces the filter; detaching it would be an error on a socket without one.
        attach_filter(&self.socket, &[ACCEPT])
            .map_err(|error| OpenError::system("filtering netlink messages", error))
    }

    /// The port that the kernel gave to the socket.
    pub(super) fn port_number(&self) -> u32 {
        self.port
    }

    pub(super) fn send(&self, request: &[u8]) -> io::Result<()> {
        // A netlink datagram goes out whole or not at all.
        self.socket
            .send_to(request, &SocketAddr::new(0, 0), 0)
            .map(drop)
    }

    /// Receives one datagram.
    pub(in crate::observe) fn receive(&mut self, buffer: &mut [u8]) -> Result<DatagramInfo, Errno> {
        let mut slices = [IoSliceMut::new(buffer)];
        let message = recvmsg::<NetlinkAddr>(
            self.socket.as_raw_fd(),
            &mut slices,
            Some(&mut self.control),
            MsgFlags::empty(),
        )?;
        let mut truncated = message.flags.contains(MsgFlags::MSG_TRUNC);
        let mut nsid = None;
        match message.cmsgs() {
            Ok(controls) => {
                for control in controls {
                    if let ControlMessageOwned::Unknown(control) = control
                        && control.cmsg_header.cmsg_level == libc::SOL_NETLINK
                        && control.cmsg_header.cmsg_type == libc::NETLINK_LISTEN_ALL_NSID
                    {
                        nsid = control
                            .data_bytes
                            .as_slice()
                            .try_into()
                            .ok()
                            .map(NsId::from_ne_bytes);
                    }
                }
            }
            Err(_) => truncated = true,
        }
        Ok(DatagramInfo {
            length: message.bytes,
            nsid,
            truncated,
            from_kernel: message.address.is_some_and(|sender| sender.pid() == 0),
        })
    }
}

/// Ends a classic BPF program, accepting the message.
const ACCEPT: libc::sock_filter = libc::sock_filter {
    // BPF_RET | BPF_K
    code: 0x06,
    jt: 0,
    jf: 0,
    k: u32::MAX,
};

/// A classic BPF program that accepts everything except neighbour messages of families other than `AF_BRIDGE`.
fn only_forwarding_neighbours() -> [libc::sock_filter; 7] {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter {
        // Opcodes fit into one byte.
        code: u16::try_from(code).unwrap_or_default(),
        jt,
        jf,
        k,
    };
    // The filter loads in network byte order; the header is in the host's.
    let kind = |kind: u16| u32::from(kind.to_be());
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    [
        instruction(
            libc::BPF_LD | libc::BPF_H | libc::BPF_ABS,
            0,
            0,
            MESSAGE_TYPE_OFFSET,
        ),
        instruction(is, 1, 0, kind(libc::RTM_NEWNEIGH)),
        instruction(is, 0, 2, kind(libc::RTM_DELNEIGH)),
        instruction(
            libc::BPF_LD | libc::BPF_B | libc::BPF_ABS,
            0,
            0,
            FAMILY_OFFSET,
        ),
        instruction(is, 0, 1, u32::from(AF_BRIDGE)),
        ACCEPT,
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
}

fn attach_filter(socket: &Socket, program: &[libc::sock_filter]) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?,
        filter: program.as_ptr().cast_mut(),
    };
    let length = libc::socklen_t::try_from(size_of_val(&program)).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the option's value is a `sock_fprog` of the given length, and its `filter` points to `len` instructions,
    // which the kernel copies and does not write to.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    Errno::result(outcome).map(drop)
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use super::RouteSocket;

    /// A dump of `RTM_GETLINK`, in a namespace that has at least loopback.
    const LIST_LINKS: [u8; 32] = {
        let mut request = [0; 32];
        request[0] = 32;
        request[4] = 18;
        (request[6], request[7]) = (1, 3);
        request
    };

    #[test]
    fn a_datagram_longer_than_the_buffer_is_truncated() {
        let mut socket = RouteSocket::for_requests(Duration::from_secs(10)).unwrap();
        socket.send(&LIST_LINKS).unwrap();
        let received = socket.receive(&mut [0; 20]).unwrap();
        assert!(received.truncated && received.from_kernel);
        assert_eq!((received.length, received.nsid), (20, None));
    }

    #[test]
    fn receiving_times_out() {
        let mut socket = RouteSocket::for_requests(Duration::from_millis(1)).unwrap();
        let outcome = socket.receive(&mut [0; 20]);
        assert_eq!(outcome, Err(nix::errno::Errno::EAGAIN));
    }
}
