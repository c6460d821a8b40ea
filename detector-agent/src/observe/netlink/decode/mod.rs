//! From a message's payload to what the engine needs, one file per message type.
//!
//! Attributes are picked by number rather than parsed into the netlink crates' typed lists: a link message carries some
//! sixty attributes; the engine needs seven, and one attribute that a newer kernel writes differently must not
//! cost the entire message.
//!
//! Invariant: no input panics; see [`Undecodable`].

pub(super) mod address;
pub(super) mod link;
pub(super) mod namespace_id;
pub(super) mod neighbour;
pub(super) mod pod_interface;
pub(super) mod route;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use detector_engine::{IfIndex, Mac};
use nix::libc;

use super::wire::Undecodable;

// Address families, in the width that netlink headers have for them.
pub(super) const AF_BRIDGE: u8 = libc::AF_BRIDGE as u8;
const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;
const AF_UNSPEC: u8 = libc::AF_UNSPEC as u8;

/// An interface index; the kernel's are signed and positive.
fn if_index(value: u32) -> Result<IfIndex, Undecodable> {
    if value == 0 || i32::try_from(value).is_err() {
        return Err(Undecodable("an interface index is not positive"));
    }
    Ok(value)
}

/// An address of a family, from an attribute's value of exactly its size.
fn ip_address(family: u8, value: &[u8]) -> Result<IpAddr, Undecodable> {
    let wrong = |_| Undecodable("an address has the wrong size for its family");
    match family {
        AF_INET => Ok(Ipv4Addr::from(<[u8; 4]>::try_from(value).map_err(wrong)?).into()),
        AF_INET6 => Ok(Ipv6Addr::from(<[u8; 16]>::try_from(value).map_err(wrong)?).into()),
        _ => Err(Undecodable("an address of neither IPv4 nor IPv6")),
    }
}

/// A prefix length, not longer than the address.
fn prefix_len(family: u8, value: u8) -> Result<u8, Undecodable> {
    let most = if family == AF_INET { 32 } else { 128 };
    if value > most {
        return Err(Undecodable("a prefix is longer than its address"));
    }
    Ok(value)
}

/// A six-byte hardware address. Other links (tunnels: 4 or 16 bytes, InfiniBand: 20) have none that ARP or NDP on a pod
/// device could carry.
fn mac(value: &[u8]) -> Option<Mac> {
    <[u8; 6]>::try_from(value).ok().map(Mac)
}
