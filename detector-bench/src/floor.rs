//! The lower bound of the detection latency: a thread that only passes the frame on. A frame from a pod wakes it, it writes an event
//! line to a pipe, and the reader of an agent's lines takes the time: two wake-ups, as with an agent.
//!
//! It waits for the frames of all pairs' second pods with one epoll, since that is what a single thread needs for many devices.

use std::{
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use detector_testkit::{DEADLINE, EventLines, Node, event::RAISED};
use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        socket::{
            AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, socket,
        },
    },
};
use serde_json::{Value, json};

use super::pod_pairs::PodPairs;

/// The EtherType of ARP.
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
/// How often the thread checks whether to stop, milliseconds.
const STOP_INTERVAL: u16 = 1000;

/// The thread and the reader of its lines.
#[derive(Debug)]
pub(super) struct PassThrough {
    lines: EventLines,
    stop: Arc<AtomicBool>,
}

impl PassThrough {
    /// Starts the thread on the node of these pairs.
    ///
    /// # Errors
    /// A packet socket or the pipe cannot be opened.
    pub(super) fn start(node: &Node, pairs: &PodPairs) -> Result<Self> {
        let names: Vec<&str> = pairs.second_devices().collect();
        let sockets = node.run_in(|| listen(&names))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("creating an epoll")?;
        for (number, socket) in (0_u64..).zip(&sockets) {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, number);
            epoll.add(socket, event).context("adding to the epoll")?;
        }
        let (reader, mut writer) = io::pipe().context("creating a pipe")?;
        let line = format!("{}\n", example_event());
        let stop = Arc::<AtomicBool>::default();
        let should_stop = Arc::clone(&stop);
        thread::spawn(move || {
            let mut events = [EpollEvent::empty(); 16];
            let mut frame = [0; 2048];
            while !should_stop.load(Ordering::Relaxed) {
                let count = match epoll.wait(&mut events, STOP_INTERVAL) {
                    Err(Errno::EINTR) => 0,
                    Err(_) => return,
                    Ok(count) => count,
                };
                for event in events.iter().take(count) {
                    let number = usize::try_from(event.data()).unwrap_or(usize::MAX);
                    let Some(socket) = sockets.get(number) else {
                        continue;
                    };
                    let received = recv(socket.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT);
                    // The sockets also receive what the node's kernel sends (IPv6).
                    let is_arp = frame.get(12..14) == Some(&ETHERTYPE_ARP);
                    if received.is_ok() && is_arp && writer.write_all(line.as_bytes()).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Self {
            lines: EventLines::read(reader),
            stop,
        })
    }

    /// Sends both announcements as for an agent; returns the microseconds from just before the second one was sent until its line
    /// was read.
    ///
    /// # Errors
    /// A frame is lost.
    pub(super) fn pass_on(&self, pairs: &PodPairs, number: u32, pause: Duration) -> Result<f64> {
        let count = self.lines.event_count();
        let wait = |_: &str| self.lines.wait_event_after(count, DEADLINE);
        let (_, sent, received) = pairs.cause(number, pause, || (), wait)?;
        Ok(received.at.saturating_duration_since(sent).as_secs_f64() * 1e6)
    }
}

impl Drop for PassThrough {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A packet socket for each device.
fn listen(devices: &[&str]) -> Result<Vec<OwnedFd>> {
    let addresses: Vec<(String, LinkAddr)> = getifaddrs()
        .context("listing devices")?
        .filter_map(|entry| Some((entry.interface_name, *entry.address?.as_link_addr()?)))
        .collect();
    devices
        .iter()
        .map(|device| {
            let (_, address) = addresses
                .iter()
                .find(|(name, _)| name == device)
                .with_context(|| format!("no device {device}"))?;
            let socket = socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::EthAll,
            )
            .context("opening a packet socket")?;
            bind(socket.as_raw_fd(), address).context("binding the socket to a device")?;
            Ok(socket)
        })
        .collect()
}

/// An event as the agent writes it about two pods without names.
fn example_event() -> Value {
    let time = "2026-11-21T01:35:46.744639Z";
    let claimant = |number: u32| {
        let mac = format!("02:1c:00:00:00:0{number}");
        json!({
            "node": "testkit", "device": format!("vethbench{number}"), "ifindex": number, "mac": mac, "master": null,
            "since": time, "pod": null, "pod_unknown_because": "no source of pod names is in use",
            "evidence": [{"kind": "arp", "first_seen": time, "last_seen": time, "mac": mac, "detail": null}],
        })
    };
    json!({
        "specversion": "1.0", "id": "616f32ed39ba9095-1", "source": "ip-conflict-detector/testkit", "type": RAISED,
        "subject": "10.99.0.1", "time": time, "datacontenttype": "application/json",
        "data": {
            "conflict_id": "cb1267f1e467c39c031555607c079bd6", "node": "testkit", "cluster": null, "address": "10.99.0.1",
            "network": "node", "vlan": null, "kind": "duplicate", "severity": "critical", "scope": "node", "confidence": "observed", "state": "active",
            "raised_at": time, "updated_at": time, "resolved_at": null, "latency_us": 50, "traffic_goes_to": null,
            "claimants": [claimant(1), claimant(2)], "diagnosis": null, "timeline": [],
            "guidance": {
                "next_step": "Only ARP, NDP or the neighbour table shows the claim of vethbench2: check whether that pod is meant to answer for it (a VIP, a proxy); otherwise delete it.",
                "runbook_url": "https://github.com/ipconflict/ip-conflict-detector/blob/main/docs/runbooks/IPAddressConflict.md#duplicate",
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use detector_testkit::contract::violations;

    use super::example_event;

    #[test]
    fn line_has_the_contract_and_the_length_of_an_event() {
        let event = example_event();
        assert!(violations(&event).is_empty(), "{:?}", violations(&event));
        let length = event.to_string().len();
        assert!((1300..1700).contains(&length), "{length}");
    }
}
