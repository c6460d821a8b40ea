//! `RTM_NEWROUTE` and `RTM_DELROUTE`, as notifications, in dumps, and as the answer to a lookup.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use detector_engine::{IfIndex, Route, RouteKey};
use netlink_packet_core::parse_u32;
use netlink_packet_route::route::RouteHeader;
use nix::libc::{
    RT_TABLE_LOCAL, RTA_DST, RTA_GATEWAY, RTA_MULTIPATH, RTA_OIF, RTA_PRIORITY, RTA_TABLE, RTA_VIA,
    RTM_F_CLONED, RTN_BLACKHOLE, RTN_LOCAL, RTN_PROHIBIT, RTN_UNICAST, RTN_UNREACHABLE,
};

use super::{AF_INET, AF_INET6, if_index, ip_address, prefix_len};
use crate::observe::netlink::wire::{Undecodable, for_each_attribute};

/// Size of `struct rtmsg`.
const HEADER: usize = 12;
/// Size of `struct rtnexthop`: length (2 bytes), flags, hops, interface index (4 bytes).
const NEXT_HOP_HEADER: usize = 8;

/// The content of a message about a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RouteMessage {
    /// A route from which a single receiving device follows, or that discards or rejects packets.
    Plain(Route),
    /// Any other route: of another type, in the local table, for a type of service or a source, over several next hops,
    /// without a device.
    Other(OtherRoute),
    /// Another family, or a cache entry.
    Ignored,
}

/// A route that is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct OtherRoute {
    pub(in super::super) place: RouteKey,
    /// It can replace a plain route, or be replaced by one: neither is for a type of service or a source.
    pub(in super::super) may_replace_plain: bool,
}

/// Parses either message.
pub(in super::super) fn route(payload: &[u8]) -> Result<RouteMessage, Undecodable> {
    let header = RouteHeader::parse(payload)?;
    let family = u8::from(header.address_family);
    if !matches!(family, AF_INET | AF_INET6) || header.flags.bits() & RTM_F_CLONED != 0 {
        return Ok(RouteMessage::Ignored);
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
    let destination = destination.unwrap_or(match family {
        AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    });
    let prefix_len = prefix_len(family, header.destination_prefix_length)?;
    let may_replace_plain = header.tos == 0 && header.source_prefix_length == 0;
    let out = match u8::from(header.kind) {
        RTN_UNICAST => device.or(only_hop),
        RTN_BLACKHOLE | RTN_UNREACHABLE | RTN_PROHIBIT => Some(Route::NOWHERE),
        _ => None,
    };
    let is_plain = may_replace_plain && table != u32::from(RT_TABLE_LOCAL);
    Ok(match out.filter(|_| is_plain) {
        Some(ifindex) => RouteMessage::Plain(Route {
            destination,
            prefix_len,
            ifindex,
            metric,
            table,
        }),
        None => RouteMessage::Other(OtherRoute {
            place: RouteKey {
                destination,
                prefix_len,
                metric,
                table,
            },
            may_replace_plain,
        }),
    })
}

/// The destination and its prefix length if the route discards packets without an answer (`blackhole`).
pub(in super::super) fn blackhole(payload: &[u8]) -> Result<Option<(IpAddr, u8)>, Undecodable> {
    let is_blackhole = u8::from(RouteHeader::parse(payload)?.kind) == RTN_BLACKHOLE;
    Ok(match route(payload)? {
        RouteMessage::Plain(route) if is_blackhole => Some((route.destination, route.prefix_len)),
        _ => None,
    })
}

/// The answer to a lookup of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum FoundRoute {
    /// Delivered to the node itself.
    Local,
    /// Out of a device, to a gateway or to the address itself.
    Out(IfIndex, Option<IpAddr>),
    /// Discarded, rejected, or for a group of receivers.
    Nowhere,
}

/// Parses the answer to a lookup.
pub(in super::super) fn found_route(payload: &[u8]) -> Result<FoundRoute, Undecodable> {
    let header = RouteHeader::parse(payload)?;
    let family = u8::from(header.address_family);
    let mut device = None;
    let mut gateway = None;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            RTA_OIF => device = Some(if_index(parse_u32(value)?)?),
            RTA_GATEWAY => gateway = Some(ip_address(family, value)?),
            RTA_VIA => gateway = Some(via(value)?),
            _ => {}
        }
        Ok(())
    })?;
    match u8::from(header.kind) {
        RTN_LOCAL => Ok(FoundRoute::Local),
        RTN_UNICAST => match device {
            Some(device) => Ok(FoundRoute::Out(device, gateway)),
            None => Err(Undecodable("a route that was looked up has no device")),
        },
        _ => Ok(FoundRoute::Nowhere),
    }
}

/// A gateway of another family: `struct rtvia`, the family (2 bytes) and the address.
fn via(value: &[u8]) -> Result<IpAddr, Undecodable> {
    let Some((family, address)) = value.split_first_chunk::<2>() else {
        return Err(Undecodable("a gateway is truncated"));
    };
    let family = u8::try_from(u16::from_ne_bytes(*family)).unwrap_or_default();
    ip_address(family, address)
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
