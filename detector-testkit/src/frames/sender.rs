//! A socket that sends frames from inside a pod.

use std::{
    io::IoSlice,
    net::Ipv4Addr,
    os::fd::{AsRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, MultiHeaders, SockFlag, SockType, sendmmsg, sendto,
        socket,
    },
};

use super::Frame;
use crate::{
    netns::Netns,
    node::{POD_DEVICE, Pod},
};

/// A packet socket inside a pod, usable from any thread while the device exists.
#[derive(Debug)]
pub struct FrameSender {
    socket: OwnedFd,
    device: LinkAddr,
}

impl FrameSender {
    /// Opens a socket on the pod's `eth0`.
    ///
    /// # Errors
    /// The device does not exist.
    pub fn open(pod: &Pod) -> Result<Self> {
        Self::open_on(pod.netns(), POD_DEVICE)
    }

    /// Opens a socket on a device of a namespace and waits until the device is running.
    ///
    /// # Errors
    /// The device does not exist, or is not running at the deadline.
    pub fn open_on(netns: &Netns, device: &str) -> Result<Self> {
        netns.wait_running(device)?;
        netns.run_in(|| {
            // Protocol 0: it never receives.
            let socket = socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                None,
            )
            .context("opening a packet socket")?;
            let address = getifaddrs()
                .context("listing devices")?
                .filter(|entry| entry.interface_name == device)
                .find_map(|entry| entry.address?.as_link_addr().copied());
            let device =
                address.with_context(|| format!("no device {device} in {}", netns.name()))?;
            Ok(Self { socket, device })
        })
    }

    /// Sends a frame; when this returns, the other end of a veth pair has received it.
    ///
    /// # Errors
    /// The device is down or does not exist.
    pub fn send(&self, frame: &Frame) -> Result<()> {
        self.send_bytes(&frame.to_bytes())
    }

    /// Sends an encoded frame.
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
            "the kernel accepted {sent} of {} bytes",
            bytes.len()
        );
        Ok(())
    }

    /// Sends many frames with few system calls.
    ///
    /// # Errors
    /// As [`FrameSender::send`]; the frames before the failed one are sent.
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
            let accepted = sendmmsg(fd, &mut headers, slices, targets, [], MsgFlags::empty())
                .context("sending frames")?
                .count();
            ensure!(accepted > 0, "the kernel accepted none of {left} frames");
            sent += accepted;
        }
        Ok(())
    }
}

/// Sends one ARP announcement of an address from a pod.
///
/// # Errors
/// The pod's device does not exist.
pub fn announce(pod: &Pod, address: Ipv4Addr) -> Result<()> {
    FrameSender::open(pod)?.send(&Frame::announcement(pod.mac(), address))
}
