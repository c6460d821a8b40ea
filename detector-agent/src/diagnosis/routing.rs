//! What is known of the node's routes and addresses, and of the sysctls that decide whether it answers a pod.

use std::{fs, net::IpAddr, sync::Arc};

use detector_engine::{
    ConflictKind, IfIndex, RouteQuery,
    diagnosis::{
        DeviceSysctls, FindingKind, Known, NodeAddress, RouteFacts, RouteHolder, SandboxFacts,
        SandboxState, Source,
    },
    is_link_local,
};
use detector_event::Pod;

use super::{claimants::source_of, files::not_checked};
use crate::observe::netlink::{NetlinkReader, NodeRoute, RoutedLink};

/// Where the kernel shows the IPv4 settings of devices, in the network namespace of the reader.
const SYSCTLS: &str = "/proc/sys/net/ipv4/conf";

/// The routes, addresses and sysctls between the node and a pod.
pub(super) struct RoutingFacts {
    pub(super) route: Known<RouteFacts>,
    pub(super) gateway_route: Known<RouteFacts>,
    pub(super) gateway_on_node: Known<String>,
    pub(super) node_address: Known<NodeAddress>,
    pub(super) sysctls: Known<DeviceSysctls>,
}

impl RoutingFacts {
    /// Reads what the rules for `finding` look at. The address is the pod's, `gateway` the one that it asks for; `pod_behind` knows
    /// the pods of devices with their sandboxes.
    pub(super) fn read(
        routing: Result<Routing, String>,
        finding: FindingKind,
        address: IpAddr,
        gateway: Option<IpAddr>,
        mut pod_behind: impl FnMut(IfIndex) -> Option<(Arc<Pod>, Known<SandboxFacts>)>,
    ) -> Self {
        const NOT_READ: &str = "no cause of this finding depends on it";
        let (routing, why) = match routing {
            Ok(routing) => (Some(routing), NOT_READ.to_owned()),
            Err(why) => (None, why),
        };
        let mut facts = Self {
            route: not_checked(format!("the route to {address}"), &*why),
            gateway_route: not_checked("the route to the gateway", &*why),
            gateway_on_node: not_checked("the gateway's address on the node", &*why),
            node_address: not_checked("the node's address", &*why),
            sysctls: not_checked("the sysctls of the device", &*why),
        };
        let Some(mut routing) = routing else {
            return facts;
        };
        facts.route = routing.route(address, &mut pod_behind);
        if finding == FindingKind::Conflict(ConflictKind::Host) {
            facts.node_address = routing.node_address(address);
        }
        let Some(gateway) = gateway else {
            return facts;
        };
        facts.gateway_on_node = routing.gateway_on_node(gateway);
        if is_link_local(gateway) && gateway.is_ipv6() {
            facts.gateway_route = not_checked(
                "the route to the gateway",
                "a link-local address of IPv6 is on every device",
            );
        } else {
            facts.gateway_route = routing.route(gateway, &mut pod_behind);
        }
        facts.sysctls = match gateway {
            IpAddr::V4(_) => routing.sysctls(),
            IpAddr::V6(_) => not_checked(
                "the sysctls of the device",
                "IPv6 has no rp_filter and no proxy_arp",
            ),
        };
        facts
    }
}

/// Asks the kernel about one finding.
#[derive(Debug)]
pub(super) struct Routing {
    netlink: NetlinkReader,
    /// The VRF of the pod's device; routes and addresses are looked up there.
    vrf: Option<IfIndex>,
    /// The device that takes the pod's packets in: its own, or the bridge that it is a port of.
    input: Option<(IfIndex, RoutedLink)>,
    /// The device of the pod itself.
    link: Option<RoutedLink>,
}

impl Routing {
    /// Of a pod on this device; of the node as a whole if there is none.
    ///
    /// # Errors
    /// Why nothing can be known.
    pub(super) fn around(device: Option<IfIndex>) -> Result<Self, String> {
        let mut netlink = NetlinkReader::open().map_err(|error| error.to_string())?;
        let mut read = |ifindex: Option<IfIndex>| match ifindex {
            Some(ifindex) => netlink
                .routed_link(ifindex)
                .map_err(|error| error.to_string()),
            None => Ok(None),
        };
        let link = read(device)?;
        let master_index = link.as_ref().and_then(|link| link.master);
        let master = read(master_index)?;
        let (vrf, bridge) = match master {
            Some(master) if master.is_vrf => (master_index, None),
            Some(master) => (
                read(master.master)?
                    .filter(|outer| outer.is_vrf)
                    .and(master.master),
                Some(master),
            ),
            None => (None, None),
        };
        let input = match bridge {
            Some(bridge) => master_index.zip(Some(bridge)),
            None => device.zip(link.clone()),
        };
        Ok(Self {
            netlink,
            vrf,
            input,
            link,
        })
    }

    /// The name of the bridge that the pod's device is a port of.
    pub(super) fn bridge(&self) -> Option<String> {
        let (_, input) = self.input.as_ref()?;
        (Some(input) != self.link.as_ref()).then(|| input.name.clone())
    }

    /// The first address of this family on the pod's end that is not link-local.
    pub(super) fn address_of_pod(&mut self, is_ipv4: bool) -> Option<IpAddr> {
        let peer = self.link.as_ref()?.peer?;
        let addresses = self.netlink.addresses_at(peer).ok()?.into_iter();
        let mut usable = addresses.filter(|a| a.is_ipv4() == is_ipv4 && !is_link_local(*a));
        match is_ipv4 {
            true => usable.next(),
            // The kernel lists the oldest one last.
            false => usable.next_back(),
        }
    }

    fn route_to(&mut self, address: IpAddr) -> Result<Option<NodeRoute>, String> {
        let query = RouteQuery {
            address,
            vrf: self.vrf,
        };
        self.netlink.route_to(query).map_err(|e| e.to_string())
    }

    fn name(&mut self, ifindex: IfIndex) -> String {
        let link = self.netlink.routed_link(ifindex).ok().flatten();
        link.map_or_else(|| format!("the device {ifindex}"), |link| link.name)
    }

    /// The node's route to an address.
    fn route(
        &mut self,
        address: IpAddr,
        mut pod_behind: impl FnMut(IfIndex) -> Option<(Arc<Pod>, Known<SandboxFacts>)>,
    ) -> Known<RouteFacts> {
        let (device, protocol) = match self.route_to(address) {
            Ok(Some(NodeRoute { device, protocol })) => (device, protocol),
            Ok(None) => return Known::Absent(Source::Netlink),
            Err(why) => return not_checked(format!("the route to {address}"), why),
        };
        let Some(ifindex) = device else {
            let facts = RouteFacts {
                device: "lo".to_owned(),
                protocol,
                changed_at: None,
                holder: Known::Value(RouteHolder::Node, Source::Netlink),
            };
            return Known::Value(facts, Source::Netlink);
        };
        let link = self.netlink.routed_link(ifindex).ok().flatten();
        let holder = match (pod_behind(ifindex), &link) {
            (Some((pod, sandbox)), _) => {
                let is_running = |facts: &SandboxFacts| facts.state == SandboxState::Ready;
                match sandbox.found() {
                    Some((facts, source)) if !is_running(facts) => {
                        Known::Value(RouteHolder::DeletedPod, source.clone())
                    }
                    _ => {
                        let name = format!("{}/{}", pod.namespace, pod.name);
                        Known::Value(RouteHolder::Pod(name), source_of(&pod))
                    }
                }
            }
            (None, Some(link)) if link.peer.is_none() => {
                Known::Value(RouteHolder::Node, Source::Netlink)
            }
            (None, link) => {
                let device = link.as_ref().map_or("the device", |link| &link.name);
                not_checked(format!("what is behind {device}"), "its pod is not known")
            }
        };
        let facts = RouteFacts {
            device: link.map_or_else(|| format!("the device {ifindex}"), |link| link.name),
            protocol,
            changed_at: None,
            holder,
        };
        Known::Value(facts, Source::Netlink)
    }

    /// The device on which the node has an address.
    fn device_with(&mut self, address: IpAddr) -> Result<Option<String>, String> {
        let addresses = self.netlink.node_addresses().map_err(|e| e.to_string())?;
        // A link-local address is one for each device.
        let input = self.input.as_ref().map(|(ifindex, _)| *ifindex);
        let is_here =
            |on: IfIndex| !is_link_local(address) || address.is_ipv4() || Some(on) == input;
        let mut found = addresses.into_iter();
        let found = found.find(|(on, known)| *known == address && is_here(*on));
        Ok(match found {
            Some((ifindex, _)) => Some(self.name(ifindex)),
            None if is_link_local(address) && address.is_ipv6() => None,
            // Those of loopback are not listed.
            None => self
                .route_to(address)?
                .filter(|route| route.device.is_none())
                .map(|_| "lo".to_owned()),
        })
    }

    /// The device on which the node has the gateway's address.
    fn gateway_on_node(&mut self, gateway: IpAddr) -> Known<String> {
        match self.device_with(gateway) {
            Ok(Some(device)) => Known::Value(device, Source::Netlink),
            Ok(None) => Known::Absent(Source::Netlink),
            Err(why) => not_checked("the gateway's address on the node", why),
        }
    }

    /// The assignment of an address to the node.
    fn node_address(&mut self, address: IpAddr) -> Known<NodeAddress> {
        match self.device_with(address) {
            Ok(Some(device)) => Known::Value(NodeAddress { device }, Source::Netlink),
            Ok(None) => Known::Absent(Source::Netlink),
            Err(why) => not_checked("the node's address", why),
        }
    }

    /// The sysctls of the device that takes the pod's packets in.
    fn sysctls(&mut self) -> Known<DeviceSysctls> {
        const WHAT: &str = "the sysctls of the device";
        let Some((ifindex, input)) = &self.input else {
            return not_checked(WHAT, "the device is gone");
        };
        let addresses = match self.netlink.node_addresses() {
            Ok(addresses) => addresses,
            Err(error) => return not_checked(WHAT, error.to_string()),
        };
        let mut addresses = addresses.iter();
        let read = |device: &str, key: &str| {
            let path = format!("{SYSCTLS}/{device}/{key}");
            let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
            text.trim()
                .parse::<u8>()
                .map_err(|error| format!("{path}: {error}"))
        };
        // IN_DEV_RPFILTER and IN_DEV_PROXY_ARP in include/linux/inetdevice.h: the greater one counts, of flags either.
        let greater = |key: &str| Ok::<u8, String>(read(&input.name, key)?.max(read("all", key)?));
        let both = greater("rp_filter").and_then(|rp| Ok((rp, greater("proxy_arp")?)));
        match both {
            Ok((rp_filter, proxy_arp)) => {
                let sysctls = DeviceSysctls {
                    rp_filter,
                    proxy_arp: proxy_arp != 0,
                    has_address: addresses.any(|(on, a)| on == ifindex && a.is_ipv4()),
                };
                let path = format!("net/ipv4/conf/{}", input.name);
                Known::Value(sysctls, Source::Sysctl(path))
            }
            Err(why) => not_checked(WHAT, why),
        }
    }
}
