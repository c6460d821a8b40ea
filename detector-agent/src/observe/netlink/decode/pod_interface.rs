//! `RTM_NEWLINK` of an interface in a pod's namespace, as far as it decides for which addresses the pod answers.

use detector_engine::{IfIndex, Mac};
use netlink_packet_core::parse_u32;
use netlink_packet_route::link::LinkHeader;
use nix::libc::{
    self, ARPHRD_LOOPBACK, IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINK,
    IFLA_LINK_NETNSID, IFLA_LINKINFO,
};

use super::{AF_INET, if_index, mac};
use crate::observe::netlink::wire::{Undecodable, for_each_attribute, text};

const HEADER: usize = size_of::<libc::ifinfomsg>();
/// `linux/if_link.h`: the settings of IPv4, 32 bits each, in the order of `linux/ip.h`.
const IFLA_INET_CONF: u16 = 1;
const IPV4_DEVCONF_ARP_IGNORE: usize = 19;

/// An interface in a pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct PodInterface {
    pub(in super::super) name: String,
    pub(in super::super) mac: Option<Mac>,
    pub(in super::super) kind: PodInterfaceKind,
    /// `arp_ignore` of this interface is not 0. The setting `all`, which counts as well, is in no message.
    pub(in super::super) ignores_arp: bool,
}

/// The kinds of interfaces that differ in what the pod answers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum PodInterfaceKind {
    /// `lo`, or a dummy.
    Local,
    /// macvlan or ipvlan on top of this interface of the same namespace.
    Above(IfIndex),
    Other,
}

/// Parses the message.
pub(in super::super) fn pod_interface(payload: &[u8]) -> Result<PodInterface, Undecodable> {
    let header = LinkHeader::parse(payload)?;
    let mut name = String::new();
    let mut hardware = None;
    let mut lower = None;
    let mut is_lower_elsewhere = false;
    let mut driver = String::new();
    let mut ignores_arp = false;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        match kind {
            IFLA_IFNAME => name = text(value),
            IFLA_ADDRESS => hardware = mac(value),
            IFLA_LINK => lower = if_index(parse_u32(value)?).ok(),
            IFLA_LINK_NETNSID => is_lower_elsewhere = true,
            IFLA_LINKINFO => for_each_attribute(value, |kind, value| {
                if kind == IFLA_INFO_KIND {
                    driver = text(value);
                }
                Ok(())
            })?,
            IFLA_AF_SPEC => ignores_arp = parse_ignores_arp(value)?,
            _ => {}
        }
        Ok(())
    })?;
    let kind = match (driver.as_str(), lower) {
        ("", _) if u16::from(header.link_layer_type) == ARPHRD_LOOPBACK => PodInterfaceKind::Local,
        ("dummy", _) => PodInterfaceKind::Local,
        ("macvlan" | "ipvlan", Some(lower)) if !is_lower_elsewhere => {
            PodInterfaceKind::Above(lower)
        }
        _ => PodInterfaceKind::Other,
    };
    Ok(PodInterface {
        name,
        mac: hardware,
        kind,
        ignores_arp,
    })
}

fn parse_ignores_arp(families: &[u8]) -> Result<bool, Undecodable> {
    let mut ignores_arp = false;
    for_each_attribute(families, |family, value| {
        if family != u16::from(AF_INET) {
            return Ok(());
        }
        for_each_attribute(value, |kind, settings| {
            if kind == IFLA_INET_CONF {
                let setting = settings.chunks_exact(4).nth(IPV4_DEVCONF_ARP_IGNORE - 1);
                ignores_arp = setting.is_some_and(|value| value != [0; 4]);
            }
            Ok(())
        })
    })?;
    Ok(ignores_arp)
}
