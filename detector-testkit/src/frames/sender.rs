//! A socket that sends frames from inside a pod.

use std::{
    io::IoSlice,
    net::Ipv4Addr,
    os::fd::{AsRawFd as _, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    ifaddrs::getifaddrs,
    net::if_::InterfaceFlags,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, MultiHeaders, SockFlag, SockType, sendmmsg, sendto,
        socket,
    },
};

use super::Frame;
use crate::{
    agent::DEADLINE,
    netns::Netns,
    node::{POD_DEVICE, Pod},
};

/// A packet socket inside a pod. It stays usable from any thread, for as long as the device lives.
#[derive(Debug)]
pub struct FrameSender {
    socket: OwnedFd,
    device: LinkAddr,
}

impl FrameSender {
    /// Opens one on the pod's `eth0`.
    ///
    /// # Errors
    /// Where the device is gone.
    pub fn open(pod: &Pod) -> Result<Self> {
        Self::open_on(pod.netns(), POD_DEVICE)
    }

    /// Opens one on a device of a namespace, once the kernel lets frames out of it: for a moment after both ends of a veth are
    /// up, while a worker of the kernel has not looked yet, frames are dropped without a word.
    ///
    /// # Errors
    /// Where there is no such device, or it lets nothing out within the deadline.
    pub fn open_on(netns: &Netns, device: &str) -> Result<Self> {
        netns.run_in(|| {
            // Protocol 0: it never receives.
            let socket = socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                None,
            )
            .context("opening a packet socket")?;
            let until = Instant::now() + DEADLINE;
            loop {
                let (device, flags) = getifaddrs()
                    .context("listing devices")?
                    .filter(|entry| entry.interface_name == device)
                    .find_map(|entry| Some((entry.address?.as_link_addr().copied()?, entry.flags)))
                    .with_context(|| format!("no device {device} in {}", netns.name()))?;
                if flags.contains(InterfaceFlags::IFF_RUNNING) {
                    return Ok(Self { socket, device });
                }
                ensure!(
                    Instant::now() < until,
                    "a device in {} is not running: one of its ends is down",
                    netns.name()
                );
                thread::sleep(Duration::from_millis(1));
            }
        })
    }

    /// Sends a frame; when this returns, the other end of a veth has it.
    ///
    /// # Errors
    /// Where the kernel refuses: the device is down or gone.
    pub fn send(&self, frame: &Frame) -> Result<()> {
        self.send_bytes(&frame.to_bytes())
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// As [`FrameSender::send`].
    pub fn send_bytes(&self, bytes: &[u8]) -> Result<()> {
        let sent = sendto(
            self.socket.as_raw_fd(),
            bytes,
            &self.device,
            MsgFlags::empty(),
        )
        .context("sending a frame")?;
        ensure!(
            sent == bytes.len(),
            "the kernel took {sent} of {} bytes",
            bytes.len()
        );
        Ok(())
    }

    /// Sends many frames with few system calls.
    ///
    /// # Errors
    /// As [`FrameSender::send`]; those before the one that failed are sent.
    pub fn send_all<B: AsRef<[u8]>>(&self, frames: &[B]) -> Result<()> {
        let slices: Vec<_> = frames
            .iter()
            .map(|frame| [IoSlice::new(frame.as_ref())])
            .collect();
        let targets = vec![Some(self.device); frames.len()];
        let mut sent = 0;
        while sent < frames.len() {
            let left = frames.len() - sent;
            let mut headers = MultiHeaders::<LinkAddr>::preallocate(left, None);
            let fd = self.socket.as_raw_fd();
            let (slices, targets) = (&slices[sent..], &targets[sent..]);
            let taken = sendmmsg(fd, &mut headers, slices, targets, [], MsgFlags::empty())
                .context("sending frames")?
                .count();
            ensure!(taken > 0, "the kernel took none of {left} frames");
            sent += taken;
        }
        Ok(())
    }
}

/// Announces an address from a pod once, from a socket of its own.
///
/// # Errors
/// Where the pod's device is gone.
pub fn announce(pod: &Pod, address: Ipv4Addr) -> Result<()> {
    FrameSender::open(pod)?.send(&Frame::announcement(pod.mac(), address))
}
