//! Kernel objects made from a few numbers: links, addresses, neighbours, FDB entries, routes,
//! frames.

use std::net::IpAddr;

use ipnet::IpNet;

use super::*;

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The MAC of the pod behind device `n`.
pub(super) fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

/// The peer of pod device `n`, in a namespace of its own.
pub(super) fn peer(ifindex: IfIndex) -> Peer {
    Peer {
        nsid: i32::try_from(ifindex).unwrap(),
        ifindex: 2,
    }
}

pub(super) fn pod(ifindex: IfIndex) -> Link {
    Link {
        ifindex,
        name: format!("veth{ifindex}"),
        alias: None,
        kind: LinkKind::Pod,
        mac: Some(Mac([0xee; 6])),
        master: None,
        peer: Some(peer(ifindex)),
        up: true,
        is_tap: false,
        running: true,
        vlan_filtering: None,
    }
}

/// A [`frame`] in VLAN 5.
pub(super) fn tagged(ifindex: IfIndex, address: &str) -> Observation {
    Observation::Frame(FrameClaim {
        vlan: Vlan {
            outer: Some(5),
            inner: None,
        },
        ..frame(ifindex, address)
    })
}

pub(super) fn bridge(ifindex: IfIndex) -> Link {
    Link {
        name: format!("br{ifindex}"),
        kind: LinkKind::Bridge,
        peer: None,
        ..pod(ifindex)
    }
}

/// The addresses by which the node routes a bridge.
pub(super) fn bridge_addresses(bridge: IfIndex) -> Vec<(IfIndex, AssignedAddress)> {
    let addresses = ["192.0.2.1", "2001:db8:ffff::1"];
    let on_bridge = addresses.map(|address| (bridge, assigned(address)));
    on_bridge.into()
}

/// A link of the node itself.
pub(super) fn uplink(ifindex: IfIndex) -> Link {
    Link {
        name: format!("eth{ifindex}"),
        kind: LinkKind::Other,
        peer: None,
        ..pod(ifindex)
    }
}

/// A pod device whose peer is unknown.
pub(super) fn pod_without_peer(ifindex: IfIndex) -> Link {
    Link {
        peer: None,
        ..pod(ifindex)
    }
}

/// The device of a virtual machine.
pub(super) fn tap(ifindex: IfIndex) -> Link {
    Link {
        is_tap: true,
        ..pod_without_peer(ifindex)
    }
}

pub(super) fn pod_with_peer(ifindex: IfIndex, peer: Peer) -> Link {
    Link {
        peer: Some(peer),
        ..pod(ifindex)
    }
}

/// A pod device that is a port of a bridge.
pub(super) fn bridge_port(ifindex: IfIndex, bridge: IfIndex) -> Link {
    Link {
        master: Some(bridge),
        ..pod(ifindex)
    }
}

pub(super) fn link_down(link: Link) -> Link {
    Link {
        up: false,
        running: false,
        ..link
    }
}

pub(super) fn renamed(link: Link, name: &str) -> Link {
    Link {
        name: name.to_owned(),
        ..link
    }
}

/// The allowed addresses of tests with VIPs.
pub(super) fn vip_range() -> Vec<IpNet> {
    vec!["10.9.0.0/16".parse().unwrap()]
}

pub(super) fn assigned_with_prefix(address: &str, prefix_len: u8) -> AssignedAddress {
    AssignedAddress {
        prefix_len,
        ..assigned(address)
    }
}

/// A point-to-point address, as `ip address add ADDRESS peer OTHER/LEN` adds it.
pub(super) fn assigned_with_peer(address: &str, other: &str, prefix_len: u8) -> AssignedAddress {
    AssignedAddress {
        other_end: Some(ip(other)),
        ..assigned_with_prefix(address, prefix_len)
    }
}

pub(super) fn assigned(address: &str) -> AssignedAddress {
    AssignedAddress {
        address: ip(address),
        prefix_len: 32,
        other_end: None,
        tentative: false,
        dad_failed: false,
        no_dad: true,
        autoconfigured: false,
    }
}

pub(super) fn pod_addresses(ifindex: IfIndex, addresses: &[&str]) -> PodAddresses {
    PodAddresses {
        peer: peer(ifindex),
        mac: Some(mac(u8::try_from(ifindex).unwrap())),
        addresses: Some(addresses.iter().map(|a| assigned(a)).collect()),
        is_truncated: false,
        internal: Vec::new(),
        is_missing_internal: false,
    }
}

/// A snapshot of one pod device whose end has this hardware address.
pub(super) fn pod_with_mac(ifindex: IfIndex, mac: Mac, address: &str) -> Snapshot {
    let read = PodAddresses {
        mac: Some(mac),
        ..pod_addresses(ifindex, &[address])
    };
    Snapshot {
        pods: vec![read],
        ..Snapshot::default()
    }
}

pub(super) fn internal_address(address: &IpAddr, interface: &str) -> InternalAddress {
    InternalAddress {
        address: *address,
        interface: interface.to_owned(),
        mac: None,
        place: InternalPlace::Local,
    }
}

pub(super) fn neighbour(
    ifindex: IfIndex,
    address: &str,
    lladdr: Mac,
    state: NudState,
) -> Neighbour {
    Neighbour {
        ifindex,
        address: ip(address),
        lladdr: Some(lladdr),
        state,
    }
}

pub(super) fn fdb(bridge: IfIndex, port: IfIndex, mac: Mac) -> FdbEntry {
    FdbEntry {
        bridge,
        port,
        mac,
        vlan: None,
    }
}

pub(super) fn route(destination: &str, ifindex: IfIndex) -> Route {
    let destination = ip(destination);
    Route {
        destination,
        prefix_len: if destination.is_ipv4() { 32 } else { 128 },
        ifindex,
        metric: 0,
        table: 254,
    }
}

pub(super) fn frame(ifindex: IfIndex, address: &str) -> FrameClaim {
    let address = ip(address);
    let mac = mac(u8::try_from(ifindex).unwrap());
    FrameClaim {
        ifindex,
        kind: if address.is_ipv4() {
            FrameKind::Arp
        } else {
            FrameKind::Ndp
        },
        tentative: false,
        address,
        mac,
        ether_source: mac,
        vlan: Vlan::default(),
    }
}

/// A snapshot of ports 1 to 3 of bridge 9, each with its own hardware address and an address.
pub(super) fn bridge_dump() -> Snapshot {
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.2"]), (3, &["10.0.0.3"])]);
    for link in &mut dump.links {
        link.master = Some(9);
    }
    dump.links.push(bridge(9));
    dump.host = bridge_addresses(9);
    dump.fdb = vec![fdb(9, 1, mac(1)), fdb(9, 2, mac(2)), fdb(9, 3, mac(3))];
    dump
}

/// A snapshot of pod devices and the addresses in their namespaces.
pub(super) fn snapshot(pods: &[(IfIndex, &[&str])]) -> Snapshot {
    Snapshot {
        links: pods.iter().map(|(ifindex, _)| pod(*ifindex)).collect(),
        pods: pods
            .iter()
            .map(|(i, addresses)| pod_addresses(*i, addresses))
            .collect(),
        ..Snapshot::default()
    }
}
