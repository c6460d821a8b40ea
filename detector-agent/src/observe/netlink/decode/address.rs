//! `RTM_NEWADDR` and `RTM_DELADDR`.

use std::net::IpAddr;

use netlink_packet_core::{parse_i32, parse_u32};
use netlink_packet_route::address::AddressHeader;

use super::{AF_INET, AF_INET6, Undecodable, attributes, if_index, ip_address, prefix_len};
use crate::engine::{AssignedAddress, IfIndex, NsId};

/// `struct ifaddrmsg`.
const HEADER: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_TARGET_NETNSID: u16 = 10;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
/// From this scope on (`RT_SCOPE_HOST`, `RT_SCOPE_NOWHERE`) an address means nothing outside its own namespace.
const RT_SCOPE_HOST: u8 = 254;

/// An address on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct OnLink {
    pub(in super::super) ifindex: IfIndex,
    pub(in super::super) address: AssignedAddress,
    /// The namespace a dump was asked for, as the kernel repeats it.
    pub(in super::super) target: Option<NsId>,
    host_scope: bool,
}

impl OnLink {
    /// Whether this can be an address of the node: every one but loopback's.
    pub(in super::super) fn of_host(&self) -> bool {
        !self.address.address.is_loopback()
    }

    /// Whether this can be an address that a pod claims: not loopback's, not of host scope, not multicast, not
    /// unspecified.
    pub(in super::super) fn of_pod(&self) -> bool {
        let address = self.address.address;
        !(self.host_scope
            || address.is_loopback()
            || address.is_multicast()
            || address.is_unspecified())
    }
}

/// Reads either message; `None` for families other than IPv4 and IPv6.
pub(in super::super) fn on_link(payload: &[u8]) -> Result<Option<OnLink>, Undecodable> {
    let header = AddressHeader::parse(payload)?;
    let family = u8::from(header.family);
    if !matches!(family, AF_INET | AF_INET6) {
        return Ok(None);
    }
    let mut address: Option<IpAddr> = None;
    let mut local: Option<IpAddr> = None;
    let mut flags = u32::from(header.flags.bits());
    let mut target = None;
    attributes(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            IFA_ADDRESS => address = Some(ip_address(family, value)?),
            IFA_LOCAL => local = Some(ip_address(family, value)?),
            // The header holds only the low eight of the flags.
            IFA_FLAGS => flags = parse_u32(value)?,
            IFA_TARGET_NETNSID => target = Some(parse_i32(value)?),
            _ => {}
        }
        Ok(())
    })?;
    // On a point-to-point link IFA_ADDRESS is the other side's.
    let address = local
        .or(address)
        .ok_or(Undecodable("an address message without an address"))?;
    Ok(Some(OnLink {
        ifindex: if_index(header.index)?,
        address: AssignedAddress {
            address,
            prefix_len: prefix_len(family, header.prefix_len)?,
            tentative: flags & IFA_F_TENTATIVE != 0,
            dad_failed: flags & IFA_F_DADFAILED != 0,
        },
        target,
        host_scope: u8::from(header.scope) >= RT_SCOPE_HOST,
    }))
}
