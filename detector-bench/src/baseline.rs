//! The lower bound of the detection latency: a frame from a pod wakes a thread on the node, which only writes as many bytes as an
//! event line to a pipe, whose reader takes the time. Two wake-ups, as with an agent.

use std::{
    io::{self, Read as _, Write as _},
    net::Ipv4Addr,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use detector_testkit::{DEADLINE, Frame, FrameSender, Node, PodSpec};
use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket,
        sockopt::ReceiveTimeout,
    },
    sys::time::TimeVal,
};

/// Approximate length of the event line of a conflict with two claimants, bytes.
const LINE_LENGTH: usize = 1500;
/// The EtherType of ARP.
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
/// The thread on the node ends after this many seconds without a frame.
const RECEIVE_TIMEOUT: i64 = 5;

/// Measures `frames` frames with a pause before each; returns the microseconds from just before a frame was sent until its line was
/// read.
///
/// # Errors
/// A namespace cannot be created, or a frame is lost.
pub fn run(frames: u32, pause: Duration) -> Result<Vec<f64>> {
    let node = Node::new("floor")?;
    let pod = node.add_pod(&PodSpec::new("vethfloor"))?;
    let sender = FrameSender::open(&pod)?;
    let socket = node.run_in(|| listen(pod.device()))?;
    let (mut reader, mut writer) = io::pipe().context("creating a pipe")?;
    // Ends when the pipe is closed, or soon after the last frame.
    thread::spawn(move || {
        let mut frame = [0; 2048];
        loop {
            match recv(socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                // The socket also receives what the node's kernel sends (IPv6).
                Ok(_) if frame.get(12..14) != Some(&ETHERTYPE_ARP) => {}
                Ok(_) => {
                    if writer.write_all(&[b'x'; LINE_LENGTH]).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    });
    let (line_times, received_line_times) = mpsc::channel();
    thread::spawn(move || {
        let mut line = [0; LINE_LENGTH];
        while reader.read_exact(&mut line).is_ok() && line_times.send(Instant::now()).is_ok() {}
    });
    let mut sample = Vec::new();
    for number in 0..frames {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 97, 0, 0)) + number);
        let frame = Frame::announcement(pod.mac(), address).to_bytes();
        thread::sleep(pause);
        let sent = Instant::now();
        sender.send_bytes(&frame)?;
        let at = received_line_times
            .recv_timeout(DEADLINE)
            .context("a frame was lost")?;
        sample.push(at.saturating_duration_since(sent).as_secs_f64() * 1e6);
    }
    Ok(sample)
}

fn listen(device: &str) -> Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::EthAll,
    )
    .context("opening a packet socket")?;
    let address = getifaddrs()
        .context("listing devices")?
        .filter(|entry| entry.interface_name == device)
        .find_map(|entry| entry.address?.as_link_addr().copied())
        .with_context(|| format!("no device {device}"))?;
    bind(socket.as_raw_fd(), &address).context("binding the socket to a device")?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(RECEIVE_TIMEOUT, 0))
        .context("setting the receive timeout")?;
    Ok(socket)
}
