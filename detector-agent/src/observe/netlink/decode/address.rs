//! `RTM_NEWADDR` and `RTM_DELADDR`.

use std::net::IpAddr;

use detector_engine::{AssignedAddress, IfIndex, NsId};
use netlink_packet_core::{parse_i32, parse_u32};
use netlink_packet_route::address::AddressHeader;
use nix::libc::{
    IFA_ADDRESS, IFA_F_DADFAILED, IFA_F_MANAGETEMPADDR, IFA_F_NODAD, IFA_F_PERMANENT,
    IFA_F_TEMPORARY, IFA_F_TENTATIVE, IFA_FLAGS, IFA_LOCAL,
};

use super::{AF_INET, AF_INET6, if_index, ip_address, prefix_len};
use crate::observe::netlink::wire::{Undecodable, for_each_attribute};

/// Size of `struct ifaddrmsg`.
const HEADER: usize = 8;
/// include/uapi/linux/if_addr.h; missing in libc.
const IFA_TARGET_NETNSID: u16 = 10;

/// An address on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct LinkAddress {
    pub(in super::super) ifindex: IfIndex,
    pub(in super::super) address: AssignedAddress,
    /// The namespace that a dump was requested for, as the kernel repeats it.
    pub(in super::super) target: Option<NsId>,
}

impl LinkAddress {
    /// Whether this can be an address of the node: any except loopback's.
    pub(in super::super) fn is_node_address(&self) -> bool {
        !self.address.address.is_loopback()
    }

    /// Whether this can be an address that a pod claims: not a loopback address, not multicast, not unspecified. Its scope does
    /// not matter: Linux answers ARP for every local address (`arp_process` in net/ipv4/arp.c).
    pub(in super::super) fn is_pod_address(&self) -> bool {
        let address = self.address.address;
        !(address.is_loopback() || address.is_multicast() || address.is_unspecified())
    }
}

/// The kernel marks an address that it formed from an advertised prefix as the source of temporary ones
/// (`addrconf_prefix_rcv_add_addr` in net/ipv6/addrconf.c), or as temporary (RFC 8981), and never as permanent. The flag for
/// temporary ones is that for secondary ones of IPv4.
fn is_autoconfigured(family: u8, flags: u32) -> bool {
    family == AF_INET6
        && flags & IFA_F_PERMANENT == 0
        && flags & (IFA_F_MANAGETEMPADDR | IFA_F_TEMPORARY) != 0
}

/// Parses either message; `None` for families other than IPv4 and IPv6.
pub(in super::super) fn link_address(payload: &[u8]) -> Result<Option<LinkAddress>, Undecodable> {
    let header = AddressHeader::parse(payload)?;
    let family = u8::from(header.family);
    if !matches!(family, AF_INET | AF_INET6) {
        return Ok(None);
    }
    let mut address: Option<IpAddr> = None;
    let mut local: Option<IpAddr> = None;
    let mut flags = u32::from(header.flags.bits());
    let mut target = None;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            IFA_ADDRESS => address = Some(ip_address(family, value)?),
            IFA_LOCAL => local = Some(ip_address(family, value)?),
            // The header holds only the low eight flags.
            IFA_FLAGS => flags = parse_u32(value)?,
            IFA_TARGET_NETNSID => target = Some(parse_i32(value)?),
            _ => {}
        }
        Ok(())
    })?;
    // On a point-to-point link IFA_ADDRESS is the other end's.
    let other_end = address.filter(|address| local.is_some_and(|local| local != *address));
    let address = local
        .or(address)
        .ok_or(Undecodable("an address message without an address"))?;
    Ok(Some(LinkAddress {
        ifindex: if_index(header.index)?,
        address: AssignedAddress {
            address,
            prefix_len: prefix_len(family, header.prefix_len)?,
            other_end,
            tentative: flags & IFA_F_TENTATIVE != 0,
            dad_failed: flags & IFA_F_DADFAILED != 0,
            no_dad: flags & IFA_F_NODAD != 0,
            autoconfigured: is_autoconfigured(family, flags),
        },
        target,
    }))
}
