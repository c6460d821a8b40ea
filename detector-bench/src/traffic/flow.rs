//! Traffic between two pods of a node, with both ends in one thread: no wake-up and no other processor is part of the time.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use detector_testkit::{DEADLINE, Node, Pod, PodSpec, wait_reachable};

use crate::statistics::percentile;

/// Host ends of the pods.
pub(super) const DEVICES: [&str; 2] = ["vethclient", "vethserver"];
/// The percentile of the batches of a slice that counts.
const FASTEST: f64 = 10.0;
/// UDP packets that are sent before they are received; they fit into the receive buffer.
const DATAGRAMS: usize = 16;
const DATAGRAM: [u8; 64] = [0; 64];
/// Bytes of one batch of a TCP stream.
const STREAM_BYTES: usize = 1 << 18;
const STREAM_BLOCK: usize = 64 * 1024;
/// Requests of one batch.
const REQUESTS: usize = 8;

/// A kind of traffic.
#[derive(Clone, Copy, Debug)]
pub(super) enum TrafficKind {
    Datagrams,
    Stream,
    Requests,
}

impl TrafficKind {
    pub(super) const ALL: [Self; 3] = [Self::Datagrams, Self::Stream, Self::Requests];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Datagrams => "UDP packets",
            Self::Stream => "TCP stream",
            Self::Requests => "TCP request and response",
        }
    }

    /// What takes the measured time.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Datagrams => "a packet",
            Self::Stream => "a KiB",
            Self::Requests => "a request",
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "small constants")]
    fn units_per_batch(self) -> f64 {
        match self {
            Self::Datagrams => DATAGRAMS as f64,
            Self::Stream => STREAM_BYTES as f64 / 1024.0,
            Self::Requests => REQUESTS as f64,
        }
    }
}

/// A node that routes between two pods, as with Calico.
pub(super) struct RoutedNode {
    pub(super) node: Node,
    client: Pod,
    server: Pod,
    address: Ipv4Addr,
}

impl RoutedNode {
    pub(super) fn new() -> Result<Self> {
        let node = Node::new("path")?;
        node.sysctl("net.ipv4.ip_forward", "1")?;
        let spec = |name: &str, host: u8| {
            PodSpec::new(name)
                .address(format!("10.70.0.{host}/32"))
                .host_route()
                .default_route()
                .proxy_arp()
        };
        let [client, server] = DEVICES;
        let client = node.add_pod(&spec(client, 1))?;
        let server = node.add_pod(&spec(server, 2))?;
        let address = Ipv4Addr::new(10, 70, 0, 2);
        wait_reachable(client.netns(), IpAddr::V4(address), DEADLINE)?;
        Ok(Self {
            node,
            client,
            server,
            address,
        })
    }
}

/// Both ends of traffic of one kind; idle between two measurements.
pub(super) struct Flow {
    kind: TrafficKind,
    ends: Ends,
    /// Batches of one slice.
    batches: usize,
}

enum Ends {
    Udp(UdpSocket, UdpSocket),
    Tcp(TcpStream, TcpStream),
}

impl Flow {
    /// Opens both ends, and finds how many batches take as long as `slice`.
    pub(super) fn open(node: &RoutedNode, kind: TrafficKind, slice: Duration) -> Result<Self> {
        let ends = match kind {
            TrafficKind::Datagrams => open_udp(node)?,
            TrafficKind::Stream | TrafficKind::Requests => open_tcp(node)?,
        };
        if let (TrafficKind::Stream, Ends::Tcp(client, server)) = (kind, &ends) {
            client.set_nonblocking(true)?;
            server.set_nonblocking(true)?;
        }
        let mut flow = Self {
            kind,
            ends,
            batches: 0,
        };
        let started = Instant::now();
        let mut batches = 0;
        // Longer than a slice, since the first batches are slower.
        while started.elapsed() < slice * 10 {
            flow.batch()?;
            batches += 1;
        }
        flow.batches = (batches / 10).max(10);
        Ok(flow)
    }

    /// Nanoseconds of one packet, KiB or request: the fastest tenth of the batches of a slice, without the first ones, which fill
    /// the caches again. A program costs every packet the same, while interrupts and other machines of the host only ever add time.
    pub(super) fn measure(&mut self) -> Result<f64> {
        for _ in 0..self.batches / 8 {
            self.batch()?;
        }
        let mut sample = Vec::with_capacity(self.batches);
        for _ in 0..self.batches {
            let started = Instant::now();
            self.batch()?;
            sample.push(started.elapsed().as_secs_f64() * 1e9);
        }
        Ok(percentile(&sample, FASTEST) / self.kind.units_per_batch())
    }

    fn batch(&mut self) -> Result<()> {
        match (&mut self.ends, self.kind) {
            (Ends::Udp(client, server), _) => send_datagrams(client, server),
            (Ends::Tcp(client, server), TrafficKind::Stream) => stream(client, server),
            (Ends::Tcp(client, server), _) => send_requests(client, server),
        }
    }
}

fn send_datagrams(client: &UdpSocket, server: &UdpSocket) -> Result<()> {
    for _ in 0..DATAGRAMS {
        client.send(&DATAGRAM).context("sending to the other pod")?;
    }
    let mut buffer = [0; 2048];
    for _ in 0..DATAGRAMS {
        server.recv(&mut buffer).context("a packet was lost")?;
    }
    Ok(())
}

/// Writes as much as fits, then reads what has arrived, until all bytes of the batch have been read.
fn stream(client: &mut TcpStream, server: &mut TcpStream) -> Result<()> {
    let block = [0; STREAM_BLOCK];
    let mut buffer = [0; STREAM_BLOCK];
    let (mut written, mut read) = (0, 0);
    let end = Instant::now() + DEADLINE;
    while read < STREAM_BYTES {
        ensure!(Instant::now() < end, "the TCP stream stalled");
        if let Some(rest @ 1..) = STREAM_BYTES.checked_sub(written) {
            let block = block.get(..rest.min(STREAM_BLOCK)).unwrap_or(&block);
            written += progress(client.write(block)).context("sending to the other pod")?;
        }
        read += progress(server.read(&mut buffer)).context("receiving from the other pod")?;
    }
    Ok(())
}

/// The number of bytes; 0 if none are possible now.
fn progress(result: std::io::Result<usize>) -> std::io::Result<usize> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        result => result,
    }
}

fn send_requests(client: &mut TcpStream, server: &mut TcpStream) -> Result<()> {
    let mut byte = [0];
    for _ in 0..REQUESTS {
        client.write_all(&byte).context("sending a request")?;
        server.read_exact(&mut byte).context("a lost request")?;
        server.write_all(&byte).context("sending a response")?;
        client.read_exact(&mut byte).context("a lost response")?;
    }
    Ok(())
}

fn open_udp(node: &RoutedNode) -> Result<Ends> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let server = node.server.netns().run_in(|| Ok(UdpSocket::bind(any)?))?;
    server.set_read_timeout(Some(DEADLINE))?;
    let client = node.client.netns().run_in(|| Ok(UdpSocket::bind(any)?))?;
    client.connect((node.address, server.local_addr()?.port()))?;
    Ok(Ends::Udp(client, server))
}

fn open_tcp(node: &RoutedNode) -> Result<Ends> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let listener = node.server.netns().run_in(|| Ok(TcpListener::bind(any)?))?;
    let target = SocketAddr::from((node.address, listener.local_addr()?.port()));
    let client = node.client.netns().run_in(|| {
        TcpStream::connect_timeout(&target, DEADLINE).context("connecting to the other pod")
    })?;
    let (server, _) = listener.accept()?;
    for end in [&client, &server] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(DEADLINE))?;
        end.set_write_timeout(Some(DEADLINE))?;
    }
    Ok(Ends::Tcp(client, server))
}
