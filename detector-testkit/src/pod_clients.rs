//! Clients in a pod that take a server's connections without ever completing a request, as an attacker would.

use std::{
    io::{ErrorKind, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket,
        sockopt::SendTimeout,
    },
    time::TimeVal,
};

use crate::{FrameSender, MacAddress, Node, Pod, agent::DEADLINE};

/// Interval between two rounds over all connections.
const ROUND: Duration = Duration::from_millis(50);
/// Rounds in which every connection is opened again if the server closes all of them.
const ROUNDS_TO_REOPEN: usize = 20;

/// How long a connection may take to be established.
const CONNECT_TIMEOUT: TimeVal = TimeVal::new(1, 0);

/// What the clients do with their connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientBehaviour {
    /// Send nothing.
    Silent,
    /// Send the header of a request one byte at a time, without an end.
    SlowRequest,
    /// Begin a TLS handshake and do not continue.
    HalfTlsHandshake,
    /// Request this path again and again and never read.
    NeverRead(&'static str),
}

impl ClientBehaviour {
    fn first_bytes(self) -> Vec<u8> {
        match self {
            Self::Silent => Vec::new(),
            Self::SlowRequest => b"GET /healthz HTTP/1.1\r\nX: ".to_vec(),
            // The start of a ClientHello.
            Self::HalfTlsHandshake => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
            Self::NeverRead(path) => format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").into(),
        }
    }

    fn next_bytes(self) -> Vec<u8> {
        match self {
            Self::Silent | Self::HalfTlsHandshake => Vec::new(),
            Self::SlowRequest => b"a".to_vec(),
            Self::NeverRead(_) => self.first_bytes(),
        }
    }
}

/// Connections of a pod that are opened again whenever the server closes them, until this is dropped.
#[derive(Debug)]
pub struct PodClients {
    stop: Arc<AtomicBool>,
    open: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl PodClients {
    /// Opens `count` connections from the pod's addresses in turn; returns when each was tried once.
    ///
    /// # Errors
    /// The pod has no address of the server's family, or its namespace cannot be entered.
    pub fn start(
        pod: &Pod,
        server: SocketAddr,
        count: usize,
        behaviour: ClientBehaviour,
    ) -> Result<Self> {
        raise_descriptor_limit()?;
        let same_family = |address: &IpAddr| address.is_ipv4() == server.is_ipv4();
        let sources: Vec<_> = pod.addresses().into_iter().filter(same_family).collect();
        sources.first().context("the pod has no address")?;
        let stop = Arc::new(AtomicBool::new(false));
        let open = Arc::new(AtomicUsize::new(0));
        let (tried, all_tried) = mpsc::channel();
        let clients = Clients {
            connections: (0..count).map(|_| None).collect(),
            sources,
            server,
            behaviour,
        };
        let thread = pod.netns().spawn_in({
            let (stop, open) = (Arc::clone(&stop), Arc::clone(&open));
            move || clients.run(&stop, &open, &tried)
        })?;
        let clients = Self {
            stop,
            open,
            thread: Some(thread),
        };
        all_tried
            .recv_timeout(DEADLINE)
            .context("opening the connections")?;
        Ok(clients)
    }

    /// How many connections the server kept open in the last round.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for PodClients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

struct Clients {
    connections: Vec<Option<TcpStream>>,
    sources: Vec<IpAddr>,
    server: SocketAddr,
    behaviour: ClientBehaviour,
}

impl Clients {
    fn run(mut self, stop: &AtomicBool, open: &AtomicUsize, tried: &mpsc::Sender<()>) {
        let mut may_open = self.connections.len();
        while !stop.load(Ordering::Relaxed) {
            self.round(may_open);
            may_open = self.connections.len().div_ceil(ROUNDS_TO_REOPEN);
            open.store(self.connections.iter().flatten().count(), Ordering::Relaxed);
            // Only the first one is received.
            let _ = tried.send(());
            thread::sleep(ROUND);
        }
    }

    /// Continues every connection, and opens at most `may_open` of those that are closed.
    fn round(&mut self, mut may_open: usize) {
        let next_bytes = self.behaviour.next_bytes();
        for (number, connection) in self.connections.iter_mut().enumerate() {
            if let Some(stream) = connection {
                if is_open(stream) && !is_broken(stream.write(&next_bytes)) {
                    continue;
                }
                *connection = None;
            }
            let source = self.sources.get(number % self.sources.len().max(1));
            if let (1.., Some(source)) = (may_open, source) {
                may_open -= 1;
                *connection = connect_from(*source, self.server, self.behaviour);
            }
        }
    }
}

/// A new connection, or `None` if it is refused or the server's queue is full.
fn connect_from(
    source: IpAddr,
    server: SocketAddr,
    behaviour: ClientBehaviour,
) -> Option<TcpStream> {
    let family = match source {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()?;
    setsockopt(&socket, SendTimeout, &CONNECT_TIMEOUT).ok()?;
    let fd = socket.as_raw_fd();
    bind(fd, &SockaddrStorage::from(SocketAddr::new(source, 0))).ok()?;
    connect(fd, &SockaddrStorage::from(server)).ok()?;
    let mut stream = TcpStream::from(socket);
    stream.write_all(&behaviour.first_bytes()).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

/// Whether the server has not closed the connection. Unread data hides that, but then a write fails.
fn is_open(stream: &TcpStream) -> bool {
    let seen = stream.peek(&mut [0]);
    !matches!(seen, Ok(0)) && !is_broken(seen)
}

fn is_broken(outcome: std::io::Result<usize>) -> bool {
    let pending = [ErrorKind::WouldBlock, ErrorKind::NotConnected];
    outcome.is_err_and(|error| !pending.contains(&error.kind()))
}

/// Sends TCP handshakes that are never finished: SYNs from `count` ports of addresses that the node routes to the pod and
/// the pod does not have, so that nothing answers the SYN-ACKs. `node_mac` is the MAC of the pod device.
///
/// # Errors
/// A route cannot be added, or the device does not exist.
pub fn send_half_open(
    node: &Node,
    pod: &Pod,
    node_mac: MacAddress,
    server: SocketAddrV4,
    count: usize,
) -> Result<()> {
    let [_, _, c, d] = pod.ipv4()?.octets();
    let unassigned = Ipv4Addr::new(10, 200, c, d);
    let (device, gateway) = (pod.device(), pod.ipv4()?);
    node.ip(&format!(
        "route replace {unassigned}/32 via {gateway} dev {device} onlink"
    ))?;
    let frames: Vec<_> = (0..count)
        .map(|number| {
            let port = 1024 + u16::try_from(number % 60_000).unwrap_or_default();
            let from = SocketAddrV4::new(unassigned, port);
            syn_frame((pod.mac(), node_mac), from, server)
        })
        .collect();
    FrameSender::open(pod)?.send_all(&frames)
}

/// A SYN in an Ethernet frame with these source and destination addresses.
fn syn_frame(
    (source, destination): (MacAddress, MacAddress),
    from: SocketAddrV4,
    to: SocketAddrV4,
) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    // Sequence number, no acknowledgement, a header of five words, SYN, window, checksum, no urgent data.
    tcp.extend([
        0,
        0,
        0,
        1,
        0,
        0,
        0,
        0,
        5 << 4,
        1 << 1,
        0xff,
        0xff,
        0,
        0,
        0,
        0,
    ]);
    let mut pseudo_header = [from.ip().octets(), to.ip().octets()].concat();
    pseudo_header.extend([0, 6, 0, 20]);
    let sum = checksum([pseudo_header, tcp.clone()].concat());
    tcp.splice(16..18, sum);

    // Version, length, do not fragment, time to live, TCP, checksum.
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend(from.ip().octets());
    ip.extend(to.ip().octets());
    let sum = checksum(ip.clone());
    ip.splice(10..12, sum);

    let ethernet = [&destination.0[..], &source.0, &[0x08, 0x00]].concat();
    [ethernet, ip, tcp].concat()
}

/// RFC 1071, of an even number of bytes.
fn checksum(bytes: Vec<u8>) -> [u8; 2] {
    let words = bytes.chunks_exact(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = u16::try_from(sum).unwrap_or_default();
    (!sum).to_be_bytes()
}

/// The usual limit of this process would be reached before that of the server.
fn raise_descriptor_limit() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raising the limit of open files")
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn checksum_of_a_header_with_its_checksum_is_zero() {
        // The example of RFC 1071 section 3, with its sum.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(bytes.to_vec()), [0x22, 0x0d]);
        assert_eq!(checksum([&bytes[..], &[0x22, 0x0d]].concat()), [0, 0]);
    }
}
