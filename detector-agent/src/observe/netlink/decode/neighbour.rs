//! `RTM_NEWNEIGH` and `RTM_DELNEIGH`: neighbours of IPv4 and IPv6, and the forwarding entries of bridges.

use detector_engine::{FdbEntry, Neighbour, NudState};
use netlink_packet_core::{parse_u16, parse_u32};
use netlink_packet_route::neighbour::NeighbourHeader;
use nix::libc::{
    NDA_DST, NDA_LLADDR, NDA_MASTER, NDA_VLAN, NTF_PROXY, NUD_PERMANENT, RTN_BROADCAST,
    RTN_MULTICAST,
};

use super::{AF_BRIDGE, AF_INET, AF_INET6, if_index, ip_address, mac};
use crate::observe::netlink::wire::{Undecodable, for_each_attribute};

/// Size of `struct ndmsg`.
const HEADER: usize = 12;
/// The highest VLAN id, IEEE 802.1Q.
const LAST_VLAN: u16 = 4094;

/// The entry that a neighbour message describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum NeighbourEntry {
    /// A neighbour of IPv4 or IPv6.
    Neighbour(Neighbour),
    /// A forwarding entry of a bridge's port.
    Fdb(FdbEntry),
    /// Neither: a proxy or multicast entry, a bridge's own address, a tunnel's forwarding entry, another family.
    Ignored,
}

/// Parses either message.
pub(in super::super) fn entry(payload: &[u8]) -> Result<NeighbourEntry, Undecodable> {
    let header = NeighbourHeader::parse(payload)?;
    match u8::from(header.family) {
        AF_BRIDGE => forwarding(&header, payload),
        family @ (AF_INET | AF_INET6) => neighbour(family, &header, payload),
        _ => Ok(NeighbourEntry::Ignored),
    }
}

fn neighbour(
    family: u8,
    header: &NeighbourHeader,
    payload: &[u8],
) -> Result<NeighbourEntry, Undecodable> {
    if header.flags.bits() & NTF_PROXY != 0
        || matches!(u8::from(header.kind), RTN_BROADCAST | RTN_MULTICAST)
    {
        return Ok(NeighbourEntry::Ignored);
    }
    let mut address = None;
    let mut lladdr = None;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            NDA_DST => address = Some(ip_address(family, value)?),
            NDA_LLADDR => lladdr = mac(value),
            _ => {}
        }
        Ok(())
    })?;
    let address = address.ok_or(Undecodable("a neighbour without an address"))?;
    if address.is_multicast() {
        return Ok(NeighbourEntry::Ignored);
    }
    Ok(NeighbourEntry::Neighbour(Neighbour {
        ifindex: if_index(header.ifindex)?,
        address,
        lladdr,
        state: NudState::from_bits(header.state.into()),
    }))
}

/// A bridge writes its own index into `NDA_MASTER` and the port into the header, and marks its own and its ports' addresses
/// as permanent (`fdb_to_nud` in net/bridge/br_fdb.c). Entries without `NDA_MASTER` belong to tunnels and to the filters of
/// network cards.
fn forwarding(header: &NeighbourHeader, payload: &[u8]) -> Result<NeighbourEntry, Undecodable> {
    let mut hardware = None;
    let mut bridge = None;
    let mut vlan = None;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            NDA_LLADDR => hardware = mac(value),
            NDA_MASTER => bridge = Some(if_index(parse_u32(value)?)?),
            NDA_VLAN => vlan = Some(parse_u16(value)?).filter(|id| (1..=LAST_VLAN).contains(id)),
            _ => {}
        }
        Ok(())
    })?;
    let Some(bridge) = bridge else {
        return Ok(NeighbourEntry::Ignored);
    };
    let port = if_index(header.ifindex)?;
    if u16::from(header.state) & NUD_PERMANENT != 0 || port == bridge {
        return Ok(NeighbourEntry::Ignored);
    }
    let mac = hardware.ok_or(Undecodable("a forwarding entry without a hardware address"))?;
    Ok(NeighbourEntry::Fdb(FdbEntry {
        bridge,
        port,
        mac,
        vlan,
    }))
}
