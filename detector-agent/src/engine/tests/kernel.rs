//! What the kernel says of links, addresses, entries, routes and frames, made of a number and a word.

use std::net::IpAddr;

use super::super::*;

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The hardware address of the pod behind device `n`.
pub(super) fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

/// The other end of pod device `n`, in a namespace of its own.
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
    }
}

/// Untagged it is [`frame`].
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

/// A link of the node itself.
pub(super) fn uplink(ifindex: IfIndex) -> Link {
    Link {
        name: format!("eth{ifindex}"),
        kind: LinkKind::Other,
        peer: None,
        ..pod(ifindex)
    }
}

pub(super) fn assigned(address: &str) -> AssignedAddress {
    AssignedAddress {
        address: ip(address),
        prefix_len: 32,
        tentative: false,
        dad_failed: false,
    }
}

pub(super) fn holds(ifindex: IfIndex, addresses: &[&str]) -> PodAddresses {
    PodAddresses {
        peer: peer(ifindex),
        mac: Some(mac(u8::try_from(ifindex).unwrap())),
        addresses: Some(addresses.iter().map(|a| assigned(a)).collect()),
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

/// A reading of pod devices and what their namespaces hold.
pub(super) fn snapshot(pods: &[(IfIndex, &[&str])]) -> Snapshot {
    Snapshot {
        links: pods.iter().map(|(ifindex, _)| pod(*ifindex)).collect(),
        pods: pods
            .iter()
            .map(|(i, addresses)| holds(*i, addresses))
            .collect(),
        ..Snapshot::default()
    }
}
