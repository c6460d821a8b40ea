//! `RTM_NEWLINK` and `RTM_DELLINK`.

use netlink_packet_core::{NlasIterator, parse_i32, parse_u32};
use netlink_packet_route::link::LinkHeader;

use super::{AF_UNSPEC, Undecodable, attributes, if_index, mac, text};
use crate::{
    engine::{IfIndex, Mac, NsId, Peer},
    observe::netlink::selection::Driver,
};

/// `struct ifinfomsg`.
const HEADER: usize = 16;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_WIRELESS: u16 = 11;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_IFALIAS: u16 = 20;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_NEW_NETNSID: u16 = 45;
const IFLA_NEW_IFINDEX: u16 = 49;
const IFF_UP: u32 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// A link as one message describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct LinkFacts {
    pub(in super::super) ifindex: IfIndex,
    pub(in super::super) name: String,
    pub(in super::super) alias: Option<String>,
    pub(in super::super) driver: Driver,
    pub(in super::super) mac: Option<Mac>,
    pub(in super::super) master: Option<IfIndex>,
    /// The other end of a veth or netkit.
    pub(in super::super) other_end: OtherEnd,
    pub(in super::super) up: bool,
}

/// Where the other end of a veth or netkit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum OtherEnd {
    /// Not a pair, not yet joined, or already torn down.
    Unknown,
    /// In the agent's own namespace, under this index.
    Here(IfIndex),
    /// In another namespace.
    Elsewhere(Peer),
}

impl LinkFacts {
    pub(in super::super) fn peer(&self) -> Option<Peer> {
        match self.other_end {
            OtherEnd::Elsewhere(peer) => Some(peer),
            OtherEnd::Unknown | OtherEnd::Here(_) => None,
        }
    }
}

/// A link is gone from the agent's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct LinkGone {
    pub(in super::super) ifindex: IfIndex,
    /// The other end of the pair it was, and where it went itself, when it moved to another namespace: the kernel
    /// sends no word about the end that stayed.
    pub(in super::super) moved: Option<(IfIndex, Peer)>,
}

/// Reads `RTM_NEWLINK`; `None` for messages that tell only a part (a bridge's about its ports, of family `AF_BRIDGE`;
/// IPv6's about its settings; wireless events), which must not erase what is known.
pub(in super::super) fn appeared(payload: &[u8]) -> Result<Option<LinkFacts>, Undecodable> {
    let header = LinkHeader::parse(payload)?;
    if u8::from(header.interface_family) != AF_UNSPEC {
        return Ok(None);
    }
    let ifindex = if_index(header.index)?;
    let mut name = None;
    let mut alias = None;
    let mut hardware = None;
    let mut master = None;
    let mut other_end = None;
    let mut nsid = None;
    let mut driver = Driver::Other;
    let mut partial = false;
    attributes(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            IFLA_IFNAME => name = Some(text(value)),
            IFLA_IFALIAS => alias = Some(text(value)).filter(|alias| !alias.is_empty()),
            IFLA_ADDRESS => hardware = mac(value),
            IFLA_MASTER => master = if_index(parse_u32(value)?).ok(),
            IFLA_LINK => other_end = if_index(parse_u32(value)?).ok(),
            IFLA_LINK_NETNSID => nsid = Some(parse_i32(value)?),
            IFLA_LINKINFO => driver = driver_of(value)?,
            IFLA_WIRELESS => partial = true,
            _ => {}
        }
        Ok(())
    })?;
    if partial {
        return Ok(None);
    }
    let name = name
        .filter(|name| !name.is_empty())
        .ok_or(Undecodable("a link without a name"))?;
    if u16::from(header.link_layer_type) == ARPHRD_LOOPBACK {
        driver = Driver::Loopback;
    }
    // Other drivers use the same attribute for the device they stand on (vlan, macvlan), which is no pod.
    let other_end = match (driver, other_end, nsid) {
        // A negative id is none: the namespace is being torn down.
        (Driver::Veth | Driver::Netkit, Some(ifindex), Some(nsid)) if nsid >= 0 => {
            OtherEnd::Elsewhere(Peer { nsid, ifindex })
        }
        (Driver::Veth | Driver::Netkit, Some(ifindex), None) => OtherEnd::Here(ifindex),
        _ => OtherEnd::Unknown,
    };
    Ok(Some(LinkFacts {
        ifindex,
        name,
        alias,
        driver,
        mac: hardware,
        master,
        other_end,
        up: header.flags.bits() & IFF_UP != 0,
    }))
}

/// Reads `RTM_DELLINK`; `None` where the link stays and only left its bridge (family `AF_BRIDGE`).
pub(in super::super) fn gone(payload: &[u8]) -> Result<Option<LinkGone>, Undecodable> {
    let header = LinkHeader::parse(payload)?;
    if u8::from(header.interface_family) != AF_UNSPEC {
        return Ok(None);
    }
    let ifindex = if_index(header.index)?;
    let mut other_end: Option<IfIndex> = None;
    let mut other_end_elsewhere = false;
    let mut nsid: Option<NsId> = None;
    let mut new_ifindex: Option<IfIndex> = None;
    let mut driver = Driver::Other;
    attributes(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            IFLA_LINK => other_end = if_index(parse_u32(value)?).ok(),
            IFLA_LINK_NETNSID => other_end_elsewhere = true,
            IFLA_NEW_NETNSID => nsid = Some(parse_i32(value)?).filter(|nsid| *nsid >= 0),
            IFLA_NEW_IFINDEX => new_ifindex = if_index(parse_u32(value)?).ok(),
            IFLA_LINKINFO => driver = driver_of(value)?,
            _ => {}
        }
        Ok(())
    })?;
    let moved = match (driver, other_end, nsid, new_ifindex) {
        (Driver::Veth | Driver::Netkit, Some(stays), Some(nsid), Some(ifindex))
            if !other_end_elsewhere =>
        {
            Some((stays, Peer { nsid, ifindex }))
        }
        _ => None,
    };
    Ok(Some(LinkGone { ifindex, moved }))
}

/// The driver that `IFLA_LINKINFO` names.
fn driver_of(linkinfo: &[u8]) -> Result<Driver, Undecodable> {
    for attribute in NlasIterator::new(linkinfo) {
        let attribute = attribute?;
        if attribute.kind() == IFLA_INFO_KIND {
            return Ok(match text(attribute.value()).as_str() {
                "veth" => Driver::Veth,
                "netkit" => Driver::Netkit,
                "tun" => Driver::Tun,
                "bridge" => Driver::Bridge,
                _ => Driver::Other,
            });
        }
    }
    Ok(Driver::Other)
}
