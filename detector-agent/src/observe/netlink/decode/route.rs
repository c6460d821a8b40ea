//! `RTM_NEWROUTE` and `RTM_DELROUTE`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::parse_u32;
use netlink_packet_route::route::RouteHeader;
use nix::libc::{
    RT_TABLE_LOCAL, RTA_DST, RTA_MULTIPATH, RTA_OIF, RTA_PRIORITY, RTA_TABLE, RTM_F_CLONED,
    RTN_UNICAST,
};

use super::{AF_INET, AF_INET6, if_index, ip_address, prefix_len};
use crate::{
    engine::{IfIndex, Route},
    observe::netlink::wire::{Undecodable, for_each_attribute},
};

/// Size of `struct rtmsg`.
const HEADER: usize = 12;
/// Size of `struct rtnexthop`: length (2 bytes), flags, hops, interface index (4 bytes).
const NEXT_HOP_HEADER: usize = 8;

/// Parses either message; `None` for routes from which no single receiving device follows: other types than unicast, the
/// local table, cloned cache entries, routes over several next hops or without a device.
pub(in super::super) fn route(payload: &[u8]) -> Result<Option<Route>, Undecodable> {
    let header = RouteHeader::parse(payload)?;
    let family = u8::from(header.address_family);
    if !matches!(family, AF_INET | AF_INET6)
        || u8::from(header.kind) != RTN_UNICAST
        || header.flags.bits() & RTM_F_CLONED != 0
    {
        return Ok(None);
    }
    let mut destination: Option<IpAddr> = None;
    let mut device: Option<IfIndex> = None;
    let mut only_hop = None;
    let mut metric = 0;
    let mut table = u32::from(header.table);
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            RTA_DST => destination = Some(ip_address(family, value)?),
            RTA_OIF => device = Some(if_index(parse_u32(value)?)?),
            RTA_MULTIPATH => only_hop = only_next_hop(value)?,
            RTA_PRIORITY => metric = parse_u32(value)?,
            // The header holds only the low eight bits of the table.
            RTA_TABLE => table = parse_u32(value)?,
            _ => {}
        }
        Ok(())
    })?;
    let Some(ifindex) = device.or(only_hop) else {
        return Ok(None);
    };
    if table == u32::from(RT_TABLE_LOCAL) {
        return Ok(None);
    }
    let destination = destination.unwrap_or(match family {
        AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    });
    let prefix_len = prefix_len(family, header.destination_prefix_length)?;
    Ok(Some(Route {
        destination,
        prefix_len,
        ifindex,
        metric,
        table,
    }))
}

/// The device of a next-hop list with exactly one entry.
fn only_next_hop(list: &[u8]) -> Result<Option<IfIndex>, Undecodable> {
    const SHORT: Undecodable = Undecodable("a next hop is truncated");
    let header = list.get(..NEXT_HOP_HEADER).ok_or(SHORT)?;
    let &[low, high, _flags, _hops, ref index @ ..] = header else {
        return Err(SHORT);
    };
    let length = usize::from(u16::from_ne_bytes([low, high]));
    if length < NEXT_HOP_HEADER || length > list.len() {
        return Err(SHORT);
    }
    if length.next_multiple_of(4) < list.len() {
        return Ok(None);
    }
    if_index(parse_u32(index)?).map(Some)
}
