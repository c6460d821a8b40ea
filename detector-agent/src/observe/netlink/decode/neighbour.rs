//! `RTM_NEWNEIGH` and `RTM_DELNEIGH`: neighbours of IPv4 and IPv6, and the forwarding entries of bridges.

use netlink_packet_core::{parse_u16, parse_u32};
use netlink_packet_route::neighbour::NeighbourHeader;

use super::{AF_BRIDGE, AF_INET, AF_INET6, Undecodable, attributes, if_index, ip_address, mac};
use crate::engine::{FdbEntry, Neighbour, NudState};

/// `struct ndmsg`.
const HEADER: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_VLAN: u16 = 5;
const NDA_MASTER: u16 = 9;
const NTF_PROXY: u8 = 0x08;
const NUD_PERMANENT: u16 = 0x80;
/// `ndm_type` of neighbours that stand for many.
const RTN_BROADCAST: u8 = 3;
const RTN_MULTICAST: u8 = 5;
/// The highest VLAN id, IEEE 802.1Q.
const LAST_VLAN: u16 = 4094;

/// What a neighbour message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Entry {
    /// A neighbour of IPv4 or IPv6.
    Neighbour(Neighbour),
    /// A forwarding entry on a bridge's port.
    Fdb(FdbEntry),
    /// Neither: a proxy or multicast entry, a bridge's own address, a tunnel's forwarding entry, another family.
    Ignored,
}

/// Reads either message.
pub(in super::super) fn entry(payload: &[u8]) -> Result<Entry, Undecodable> {
    let header = NeighbourHeader::parse(payload)?;
    match u8::from(header.family) {
        AF_BRIDGE => forwarding(&header, payload),
        family @ (AF_INET | AF_INET6) => neighbour(family, &header, payload),
        _ => Ok(Entry::Ignored),
    }
}

fn neighbour(family: u8, header: &NeighbourHeader, payload: &[u8]) -> Result<Entry, Undecodable> {
    if header.flags.bits() & NTF_PROXY != 0
        || matches!(u8::from(header.kind), RTN_BROADCAST | RTN_MULTICAST)
    {
        return Ok(Entry::Ignored);
    }
    let mut address = None;
    let mut lladdr = None;
    attributes(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            NDA_DST => address = Some(ip_address(family, value)?),
            NDA_LLADDR => lladdr = mac(value),
            _ => {}
        }
        Ok(())
    })?;
    let address = address.ok_or(Undecodable("a neighbour without an address"))?;
    if address.is_multicast() {
        return Ok(Entry::Ignored);
    }
    Ok(Entry::Neighbour(Neighbour {
        ifindex: if_index(header.ifindex)?,
        address,
        lladdr,
        state: NudState::from_bits(header.state.into()),
    }))
}

/// A bridge writes its own index into `NDA_MASTER`, the port into the header, and marks addresses of its own and of its
/// ports as permanent (`fdb_to_nud` in net/bridge/br_fdb.c). Entries without `NDA_MASTER` are those of tunnels
/// and of network cards' filters.
fn forwarding(header: &NeighbourHeader, payload: &[u8]) -> Result<Entry, Undecodable> {
    let mut hardware = None;
    let mut bridge = None;
    let mut vlan = None;
    attributes(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            NDA_LLADDR => hardware = mac(value),
            NDA_MASTER => bridge = Some(if_index(parse_u32(value)?)?),
            NDA_VLAN => vlan = Some(parse_u16(value)?).filter(|id| (1..=LAST_VLAN).contains(id)),
            _ => {}
        }
        Ok(())
    })?;
    let Some(bridge) = bridge else {
        return Ok(Entry::Ignored);
    };
    let port = if_index(header.ifindex)?;
    if u16::from(header.state) & NUD_PERMANENT != 0 || port == bridge {
        return Ok(Entry::Ignored);
    }
    let mac = hardware.ok_or(Undecodable("a forwarding entry without a hardware address"))?;
    Ok(Entry::Fdb(FdbEntry {
        bridge,
        port,
        mac,
        vlan,
    }))
}
