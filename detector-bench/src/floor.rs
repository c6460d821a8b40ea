//! What the kernel alone takes for the way of an event: a frame from a pod wakes a thread on the node, which does nothing but
//! write as many bytes as an event line has to a pipe, whose reader looks at the clock. Two wake-ups, as with an agent.

use std::{
    io::{self, Read as _, Write as _},
    net::Ipv4Addr,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket,
        sockopt::ReceiveTimeout,
    },
    sys::time::TimeVal,
};

use detector_testkit::{
    agent::DEADLINE,
    frames::{Frame, FrameSender},
    node::{Node, PodSpec},
};

/// About an event of two claimants.
const LINE: usize = 1500;
/// The Ethernet type.
const ARP: [u8; 2] = [0x08, 0x06];
/// The thread on the node ends where no frame comes for so many seconds.
const PATIENCE: i64 = 5;

/// Microseconds from before a frame is sent to its line read, for each of `frames`.
///
/// # Errors
/// Where a namespace cannot be made, or a frame does not come.
pub fn run(frames: u32, rest: Duration) -> Result<Vec<f64>> {
    let node = Node::new("floor")?;
    let pod = node.add_pod(&PodSpec::new("vethfloor"))?;
    let sender = FrameSender::open(&pod)?;
    let socket = node.run_in(|| listen(pod.device()))?;
    let (mut reader, mut writer) = io::pipe().context("a pipe")?;
    // Ends with the pipe, or soon after the last frame.
    thread::spawn(move || {
        let mut frame = [0; 2048];
        loop {
            match recv(socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                // The node's own kernel sends now and then (IPv6), which this socket hears too.
                Ok(_) if frame.get(12..14) != Some(&ARP) => {}
                Ok(_) => {
                    if writer.write_all(&[b'x'; LINE]).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    });
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut line = [0; LINE];
        while reader.read_exact(&mut line).is_ok() && tell.send(Instant::now()).is_ok() {}
    });
    let mut sample = Vec::new();
    for number in 0..frames {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 97, 0, 0)) + number);
        let frame = Frame::announcement(pod.mac(), address).to_bytes();
        thread::sleep(rest);
        let sent = Instant::now();
        sender.send_bytes(&frame)?;
        let at = told
            .recv_timeout(DEADLINE)
            .context("a frame did not come through")?;
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
    bind(socket.as_raw_fd(), &address).context("listening on a device")?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(PATIENCE, 0))
        .context("a deadline for listening")?;
    Ok(socket)
}
