//! `RTM_NEWLINK` and `RTM_DELLINK`.

use netlink_packet_core::{parse_i32, parse_u16, parse_u32};
use netlink_packet_route::link::LinkHeader;
use nix::libc::{
    self, ARPHRD_LOOPBACK, IFLA_ADDRESS, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND,
    IFLA_INFO_SLAVE_DATA, IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_MASTER,
    IFLA_NEW_IFINDEX, IFLA_NEW_NETNSID, IFLA_WIRELESS,
};

use super::{AF_BRIDGE, AF_UNSPEC, if_index, mac};
use crate::{
    engine::{IfIndex, Mac, NsId, Peer},
    observe::netlink::{
        selection::LinkDriver,
        wire::{Undecodable, for_each_attribute, text},
    },
};

const HEADER: usize = size_of::<libc::ifinfomsg>();
const IFF_UP: u32 = libc::IFF_UP as u32;
const IFF_RUNNING: u32 = libc::IFF_RUNNING as u32;

/// `linux/if_link.h` and `linux/if_bridge.h`; libc does not have them.
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_VLAN_DEFAULT_PVID: u16 = 39;
const IFLA_BRPORT_STATE: u16 = 1;
const BR_STATE_FORWARDING: u8 = 3;

/// A link as one message describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct LinkFacts {
    pub(in super::super) ifindex: IfIndex,
    pub(in super::super) name: String,
    pub(in super::super) alias: Option<String>,
    pub(in super::super) driver: LinkDriver,
    pub(in super::super) mac: Option<Mac>,
    pub(in super::super) master: Option<IfIndex>,
    /// The other end of a veth or netkit pair.
    pub(in super::super) other_end: OtherEnd,
    pub(in super::super) up: bool,
    /// Able to pass packets: up, and with a carrier.
    pub(in super::super) running: bool,
}

/// Where the other end of a veth or netkit pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum OtherEnd {
    /// Not a pair, not connected yet, or already torn down.
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

/// A link that left its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct RemovedLink {
    pub(in super::super) ifindex: IfIndex,
    /// It moved to another namespace instead of being deleted.
    pub(in super::super) has_moved: bool,
    /// If it moved away from its other end: the other end of its pair, and where it is now. The kernel sends no message about
    /// the end that stayed.
    pub(in super::super) moved: Option<(IfIndex, Peer)>,
}

/// Parses `RTM_NEWLINK`; `None` for partial messages (of a bridge about its ports, of family `AF_BRIDGE`; of IPv6 about its
/// settings; wireless events), which must not erase known attributes.
pub(in super::super) fn new_link(payload: &[u8]) -> Result<Option<LinkFacts>, Undecodable> {
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
    let mut driver = LinkDriver::Other;
    let mut partial = false;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
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
        driver = LinkDriver::Loopback;
    }
    // Other drivers use the same attribute for their lower device (vlan, macvlan), which is no pod's.
    let other_end = match (driver, other_end, nsid) {
        // The id is negative if the namespace is being torn down.
        (LinkDriver::Veth | LinkDriver::Netkit, Some(ifindex), Some(nsid)) if nsid >= 0 => {
            OtherEnd::Elsewhere(Peer { nsid, ifindex })
        }
        (LinkDriver::Veth | LinkDriver::Netkit, Some(ifindex), None) => OtherEnd::Here(ifindex),
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
        running: header.flags.bits() & IFF_RUNNING != 0,
    }))
}

/// The port that a bridge's message is about (family `AF_BRIDGE`); the bridge sends one when the port's state changes.
pub(in super::super) fn bridge_port(payload: &[u8]) -> Result<Option<IfIndex>, Undecodable> {
    let header = LinkHeader::parse(payload)?;
    if u8::from(header.interface_family) != AF_BRIDGE {
        return Ok(None);
    }
    if_index(header.index).map(Some)
}

/// What decides about forwarding on a link, in `RTM_NEWLINK`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct LinkForwarding {
    /// The link is a bridge.
    pub(in super::super) is_bridge: bool,
    /// The VLAN of untagged frames, if it is a bridge with VLAN filtering.
    pub(in super::super) vlan: Option<u16>,
    /// The link is a bridge's port that forwards frames.
    pub(in super::super) is_forwarding_port: bool,
}

/// Parses `RTM_NEWLINK`.
pub(in super::super) fn forwarding(payload: &[u8]) -> Result<LinkForwarding, Undecodable> {
    let mut found = LinkForwarding::default();
    let mut filters_vlans = false;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        if kind != IFLA_LINKINFO {
            return Ok(());
        }
        let is_bridge = driver_of(value)? == LinkDriver::Bridge;
        found.is_bridge = is_bridge;
        for_each_attribute(value, |kind, value| match kind {
            // Other drivers give the same numbers another meaning.
            IFLA_INFO_DATA if is_bridge => for_each_attribute(value, |kind, value| {
                match kind {
                    IFLA_BR_VLAN_FILTERING => filters_vlans = value.first() == Some(&1),
                    IFLA_BR_VLAN_DEFAULT_PVID => {
                        found.vlan = Some(parse_u16(value)?).filter(|vlan| *vlan != 0);
                    }
                    _ => {}
                }
                Ok(())
            }),
            IFLA_INFO_SLAVE_DATA => for_each_attribute(value, |kind, value| {
                if kind == IFLA_BRPORT_STATE {
                    found.is_forwarding_port = value.first() == Some(&BR_STATE_FORWARDING);
                }
                Ok(())
            }),
            _ => Ok(()),
        })
    })?;
    found.vlan = found.vlan.filter(|_| filters_vlans);
    Ok(found)
}

/// Parses `RTM_DELLINK`; `None` if the link stays and only left its bridge (family `AF_BRIDGE`).
pub(in super::super) fn removed_link(payload: &[u8]) -> Result<Option<RemovedLink>, Undecodable> {
    let header = LinkHeader::parse(payload)?;
    if u8::from(header.interface_family) != AF_UNSPEC {
        return Ok(None);
    }
    let ifindex = if_index(header.index)?;
    let mut other_end: Option<IfIndex> = None;
    let mut has_peer_nsid = false;
    let mut has_moved = false;
    let mut nsid: Option<NsId> = None;
    let mut new_ifindex: Option<IfIndex> = None;
    let mut driver = LinkDriver::Other;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            IFLA_LINK => other_end = if_index(parse_u32(value)?).ok(),
            IFLA_LINK_NETNSID => has_peer_nsid = true,
            IFLA_NEW_NETNSID => {
                has_moved = true;
                nsid = Some(parse_i32(value)?).filter(|nsid| *nsid >= 0);
            }
            IFLA_NEW_IFINDEX => new_ifindex = if_index(parse_u32(value)?).ok(),
            IFLA_LINKINFO => driver = driver_of(value)?,
            _ => {}
        }
        Ok(())
    })?;
    let moved = match (driver, other_end, nsid, new_ifindex) {
        (LinkDriver::Veth | LinkDriver::Netkit, Some(stays), Some(nsid), Some(ifindex))
            if !has_peer_nsid =>
        {
            Some((stays, Peer { nsid, ifindex }))
        }
        _ => None,
    };
    Ok(Some(RemovedLink {
        ifindex,
        has_moved,
        moved,
    }))
}

/// The driver in `IFLA_LINKINFO`.
fn driver_of(linkinfo: &[u8]) -> Result<LinkDriver, Undecodable> {
    let mut driver = LinkDriver::Other;
    for_each_attribute(linkinfo, |kind, value| {
        if kind == IFLA_INFO_KIND {
            driver = match text(value).as_str() {
                "veth" => LinkDriver::Veth,
                "netkit" => LinkDriver::Netkit,
                "tun" => LinkDriver::Tun,
                "bridge" => LinkDriver::Bridge,
                _ => LinkDriver::Other,
            };
        }
        Ok(())
    })?;
    Ok(driver)
}
