//! The sockets: overruns, missing capabilities, forged messages.

use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result};
use detector_agent::observe::netlink::{
    ListenerOptions, NetlinkListener, NetlinkReader, OpenError, ReadError,
};
use detector_engine::Observation;
use detector_testkit::{Node, PodSpec};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::sys::socket::{NetlinkAddr, getsockname};

use super::{Observer, address, read, selector};

#[test]
fn an_overrun_is_reported_once_when_the_socket_is_empty() -> Result<()> {
    let node = Node::new("overrun")?;
    node.add_bridge("cni0", &[])?;
    let options = ListenerOptions {
        receive_buffer: 4_096,
        ..ListenerOptions::default()
    };
    let mut observer = Observer::open(&node, options)?;
    let add = |range: std::ops::Range<u8>| {
        node.ip_batch(range.map(|last| format!("address add 10.244.9.{last}/32 dev cni0")))
    };
    add(1..201)?;
    // One datagram per call: the loss is known from the first on, and must not be reported before the last.
    let mut calls = 0;
    while observer.drain(1)?.more {
        calls += 1;
        assert_eq!(observer.overruns, 0, "reported before the socket was empty");
        assert!(calls < 10_000, "the socket is never empty");
    }
    assert_eq!(observer.overruns, 1);
    assert!(calls > 1, "some messages were kept");
    assert!(observer.seen.len() < 200, "something was lost");
    // A snapshot started now contains what was lost.
    let found = read(&node, &selector())?.snapshot.host.len();
    assert!(found >= 200, "{found}");
    // From here on everything is received again, and the overrun is not reported a second time.
    add(201..202)?;
    observer.wait_for("an address after the overrun", |what| {
        matches!(what, Observation::HostAddress(_, assigned) if assigned.address == address("10.244.9.201"))
    })?;
    assert_eq!(observer.overruns, 1);
    Ok(())
}

/// Drops a capability of the calling thread.
fn drop_capability(number: u32) -> Result<()> {
    // capset(2), version 3: two sets of 32.
    let header = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: the kernel reads the header and writes two structs of three words, which is what `sets` has room for.
    let outcome =
        unsafe { nix::libc::syscall(nix::libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    nix::errno::Errno::result(outcome)?;
    // Effective, permitted and inheritable of the capabilities 0 to 31.
    sets[..2].iter_mut().for_each(|set| *set &= !(1 << number));
    // SAFETY: as above, and both are only read.
    let outcome =
        unsafe { nix::libc::syscall(nix::libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    nix::errno::Errno::result(outcome)?;
    Ok(())
}

const CAP_NET_BROADCAST: u32 = 11;
const CAP_NET_ADMIN: u32 = 12;

#[test]
fn a_missing_capability_is_named() -> Result<()> {
    let node = Node::new("capabilities")?;
    let _pod = node.add_pod(&PodSpec::new("vpa"))?;
    let open = |missing| {
        node.run_in(|| {
            drop_capability(missing)?;
            Ok(NetlinkListener::open(selector(), ListenerOptions::default()).err())
        })
    };
    for (missing, name) in [
        (CAP_NET_BROADCAST, "CAP_NET_BROADCAST"),
        (CAP_NET_ADMIN, "CAP_NET_ADMIN"),
    ] {
        let error = open(missing)?.context("the socket opened without the capability")?;
        assert!(
            matches!(error, OpenError::MissingCapability { capability, .. } if capability == name),
            "{error}"
        );
        assert!(error.to_string().contains(name), "{error}");
    }
    let error = node.run_in(|| {
        let mut reader = NetlinkReader::open()?;
        drop_capability(CAP_NET_ADMIN)?;
        Ok(reader.read_node(&selector()).err())
    })?;
    let error = error.context("the pod was read without the capability")?;
    assert!(
        matches!(
            error,
            ReadError::MissingCapability {
                capability: "CAP_NET_ADMIN",
                ..
            }
        ),
        "{error}"
    );
    Ok(())
}

#[test]
fn messages_of_other_processes_are_ignored() -> Result<()> {
    let node = Node::new("forged")?;
    node.add_bridge("cni0", &[])?;
    let bridge = node.ifindex("cni0")?;
    let mut observer = Observer::of(&node)?;
    let port = getsockname::<NetlinkAddr>(observer.listener.fd().as_raw_fd())?.pid();
    // RTM_DELLINK of the bridge: header, then ifinfomsg.
    let mut forged = [0_u8; 32];
    forged[..4].copy_from_slice(&32_u32.to_ne_bytes());
    forged[4..6].copy_from_slice(&17_u16.to_ne_bytes());
    forged[20..24].copy_from_slice(&bridge.to_ne_bytes());
    node.run_in(|| {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(socket.send_to(&forged, &SocketAddr::new(port, 0), 0)?)
    })?;
    node.ip("link set cni0 alias sent-later")?;
    observer.wait_for("the kernel's message after it", |what| {
        matches!(what, Observation::Link(link) if link.alias.as_deref() == Some("sent-later"))
    })?;
    let gone = Observation::LinkGone(bridge);
    assert!(
        observer
            .seen
            .iter()
            .all(|stamped| stamped.observation != gone)
    );
    assert_eq!(observer.undecodable, 1);
    Ok(())
}
