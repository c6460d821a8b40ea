//! `RTM_NEWLINK` and `RTM_DELLINK`.

use detector_engine::{IfIndex, Mac, NsId, Peer, PortVlan, VlanFiltering, VlanProtocol};
use netlink_packet_core::{parse_i32, parse_u16, parse_u32};
use netlink_packet_route::link::LinkHeader;
use nix::libc::{
    self, ARPHRD_LOOPBACK, IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA,
    IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA, IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_MASTER,
    IFLA_NEW_IFINDEX, IFLA_NEW_NETNSID, IFLA_STATS64, IFLA_WIRELESS,
};

use super::{AF_BRIDGE, AF_UNSPEC, if_index, mac};
use crate::observe::netlink::{
    selection::LinkDriver,
    wire::{Undecodable, for_each_attribute, text},
};

const HEADER: usize = size_of::<libc::ifinfomsg>();
const IFF_UP: u32 = libc::IFF_UP as u32;
const IFF_RUNNING: u32 = libc::IFF_RUNNING as u32;

/// `linux/if_link.h` and `linux/if_bridge.h`; libc does not have them.
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_VLAN_DEFAULT_PVID: u16 = 39;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
/// `ETH_P_8021AD`, in network order.
const DOT1AD: [u8; 2] = [0x88, 0xa8];
const IFLA_VRF_TABLE: u16 = 1;
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;
const BRIDGE_VLAN_INFO_PVID: u16 = 1 << 1;
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
    pub(in super::super) vlan_filtering: Option<VlanFiltering>,
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
    let mut info = LinkInfo::default();
    let mut partial = false;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            IFLA_IFNAME => name = Some(text(value)),
            IFLA_IFALIAS => alias = Some(text(value)).filter(|alias| !alias.is_empty()),
            IFLA_ADDRESS => hardware = mac(value),
            IFLA_MASTER => master = if_index(parse_u32(value)?).ok(),
            IFLA_LINK => other_end = if_index(parse_u32(value)?).ok(),
            IFLA_LINK_NETNSID => nsid = Some(parse_i32(value)?),
            IFLA_LINKINFO => info = LinkInfo::parse(value)?,
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
    let driver = match (info.driver, other_end, nsid) {
        _ if u16::from(header.link_layer_type) == ARPHRD_LOOPBACK => LinkDriver::Loopback,
        (InfoDriver::Known(driver), ..) => driver,
        // The lower device of a pod's VLAN interface may be in another namespace.
        (InfoDriver::Vlan(id, protocol), Some(parent), None) => LinkDriver::Vlan {
            parent,
            id,
            protocol,
        },
        (InfoDriver::Vlan(..), ..) => LinkDriver::Other,
    };
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
        vlan_filtering: info.vlan_filtering,
    }))
}

/// As [`new_link`], with how many frames came in on the link; 0 in a message without counters.
pub(in super::super) fn link_and_received(
    payload: &[u8],
) -> Result<Option<(LinkFacts, u64)>, Undecodable> {
    let mut received = 0;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        // `struct rtnl_link_stats64` begins with it.
        if kind == IFLA_STATS64
            && let Some((packets, _)) = value.split_first_chunk()
        {
            received = u64::from_ne_bytes(*packets);
        }
        Ok(())
    })?;
    Ok(new_link(payload)?.map(|facts| (facts, received)))
}

/// The hardware address in `RTM_NEWLINK`; `None` in partial messages, and if the link has none.
pub(in super::super) fn hardware_address(
    payload: &[u8],
) -> Result<Option<(IfIndex, Mac)>, Undecodable> {
    let header = LinkHeader::parse(payload)?;
    if u8::from(header.interface_family) != AF_UNSPEC {
        return Ok(None);
    }
    let ifindex = if_index(header.index)?;
    let mut found = None;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        if kind == IFLA_ADDRESS {
            found = mac(value);
        }
        Ok(())
    })?;
    Ok(found.map(|mac| (ifindex, mac)))
}

/// The port that a bridge's message is about (family `AF_BRIDGE`), or the bridge itself, with its PVID. The bridge sends one
/// when the state or the VLANs of the port change (`br_ifinfo_notify` in net/bridge/br_netlink.c). Without VLANs there is no
/// list of them.
pub(in super::super) fn bridge_port(payload: &[u8]) -> Result<Option<PortVlan>, Undecodable> {
    let header = LinkHeader::parse(payload)?;
    if u8::from(header.interface_family) != AF_BRIDGE {
        return Ok(None);
    }
    let mut pvid = None;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        if kind != IFLA_AF_SPEC {
            return Ok(());
        }
        for_each_attribute(value, |kind, value| {
            // `struct bridge_vlan_info`: flags and VLAN id.
            if kind == IFLA_BRIDGE_VLAN_INFO
                && let Some((flags, id)) = value.split_at_checked(2)
                && parse_u16(flags)? & BRIDGE_VLAN_INFO_PVID != 0
            {
                pvid = Some(parse_u16(id)?).filter(|id| *id != 0);
            }
            Ok(())
        })
    })?;
    let ifindex = if_index(header.index)?;
    Ok(Some(PortVlan { ifindex, pvid }))
}

/// What decides about forwarding on a link, in `RTM_NEWLINK`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct LinkForwarding {
    /// The link is a bridge.
    pub(in super::super) is_bridge: bool,
    /// The VLAN of untagged frames, if it is a bridge with VLAN filtering.
    pub(in super::super) vlan: Option<u16>,
    /// The link below and the VLAN id, if it is a VLAN interface.
    pub(in super::super) vlan_on: Option<(IfIndex, u16)>,
    /// The link is a bridge's port that forwards frames.
    pub(in super::super) is_forwarding_port: bool,
}

/// Parses `RTM_NEWLINK`.
pub(in super::super) fn forwarding(payload: &[u8]) -> Result<LinkForwarding, Undecodable> {
    let mut found = LinkForwarding::default();
    if let Some(link) = new_link(payload)? {
        found.is_bridge = link.driver == LinkDriver::Bridge;
        found.vlan = link.vlan_filtering.and_then(|bridge| bridge.default_pvid);
        if let LinkDriver::Vlan { parent, id, .. } = link.driver {
            found.vlan_on = Some((parent, id));
        }
    }
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        if kind != IFLA_LINKINFO {
            return Ok(());
        }
        for_each_attribute(value, |kind, value| match kind {
            IFLA_INFO_SLAVE_DATA => for_each_attribute(value, |kind, value| {
                if kind == IFLA_BRPORT_STATE {
                    found.is_forwarding_port = value.first() == Some(&BR_STATE_FORWARDING);
                }
                Ok(())
            }),
            _ => Ok(()),
        })
    })?;
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
    let mut info = LinkInfo::default();
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            IFLA_LINK => other_end = if_index(parse_u32(value)?).ok(),
            IFLA_LINK_NETNSID => has_peer_nsid = true,
            IFLA_NEW_NETNSID => {
                has_moved = true;
                nsid = Some(parse_i32(value)?).filter(|nsid| *nsid >= 0);
            }
            IFLA_NEW_IFINDEX => new_ifindex = if_index(parse_u32(value)?).ok(),
            IFLA_LINKINFO => info = LinkInfo::parse(value)?,
            _ => {}
        }
        Ok(())
    })?;
    let moved = match (info.driver, other_end, nsid, new_ifindex) {
        (
            InfoDriver::Known(LinkDriver::Veth | LinkDriver::Netkit),
            Some(stays),
            Some(nsid),
            Some(ifindex),
        ) if !has_peer_nsid => Some((stays, Peer { nsid, ifindex })),
        _ => None,
    };
    Ok(Some(RemovedLink {
        ifindex,
        has_moved,
        moved,
    }))
}

/// What `IFLA_LINKINFO` names as the driver.
#[derive(Clone, Copy, Debug)]
enum InfoDriver {
    Known(LinkDriver),
    /// `vlan`, with its VLAN id and protocol.
    Vlan(u16, VlanProtocol),
}

/// The content of `IFLA_LINKINFO`.
#[derive(Clone, Copy, Debug)]
struct LinkInfo {
    driver: InfoDriver,
    vlan_filtering: Option<VlanFiltering>,
}

impl Default for LinkInfo {
    fn default() -> Self {
        Self {
            driver: InfoDriver::Known(LinkDriver::Other),
            vlan_filtering: None,
        }
    }
}

impl LinkInfo {
    /// The kernel writes the driver before its data, whose numbers every driver defines.
    fn parse(value: &[u8]) -> Result<Self, Undecodable> {
        let mut info = Self::default();
        let mut name = String::new();
        for_each_attribute(value, |kind, value| {
            match kind {
                IFLA_INFO_KIND => {
                    name = text(value);
                    info.driver = InfoDriver::Known(driver(&name));
                }
                IFLA_INFO_DATA => info.add_data(&name, value)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(info)
    }

    fn add_data(&mut self, driver: &str, data: &[u8]) -> Result<(), Undecodable> {
        let mut filters_vlans = false;
        let mut vlan_id = None;
        let mut protocol = VlanProtocol::Dot1Q;
        let mut default_pvid = None;
        for_each_attribute(data, |kind, value| {
            match (driver, kind) {
                ("bridge", IFLA_BR_VLAN_FILTERING) => filters_vlans = value.first() == Some(&1),
                ("bridge", IFLA_BR_VLAN_DEFAULT_PVID) => {
                    default_pvid = Some(parse_u16(value)?).filter(|pvid| *pvid != 0);
                }
                ("vlan", IFLA_VLAN_ID) => vlan_id = Some(parse_u16(value)?),
                ("vlan", IFLA_VLAN_PROTOCOL) if value == DOT1AD => protocol = VlanProtocol::Dot1Ad,
                ("vrf", IFLA_VRF_TABLE) => {
                    let table = parse_u32(value)?;
                    self.driver = InfoDriver::Known(LinkDriver::Vrf { table });
                }
                _ => {}
            }
            Ok(())
        })?;
        if let Some(id) = vlan_id {
            self.driver = InfoDriver::Vlan(id, protocol);
        }
        self.vlan_filtering = filters_vlans.then_some(VlanFiltering { default_pvid });
        Ok(())
    }
}

/// The driver of this name, as far as it is known without its data.
fn driver(name: &str) -> LinkDriver {
    match name {
        "veth" => LinkDriver::Veth,
        "netkit" => LinkDriver::Netkit,
        "tun" => LinkDriver::Tun,
        "bridge" => LinkDriver::Bridge,
        "openvswitch" => LinkDriver::OpenVswitch,
        _ => LinkDriver::Other,
    }
}
