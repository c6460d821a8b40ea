//! Kernel objects of the model.

use super::*;

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The MAC of the pod behind device `n`.
pub(super) fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

/// A pod device; the world numbers its peer.
pub(super) fn pod(ifindex: IfIndex) -> Link {
    Link {
        ifindex,
        name: format!("veth{ifindex}"),
        alias: None,
        kind: LinkKind::Pod,
        mac: Some(Mac([0xee; 6])),
        master: None,
        peer: None,
        up: true,
        is_tap: false,
        running: true,
        vlan_filtering: None,
    }
}

pub(super) fn bridge(ifindex: IfIndex) -> Link {
    Link {
        name: format!("br{ifindex}"),
        kind: LinkKind::Bridge,
        ..pod(ifindex)
    }
}

/// A link of the node itself.
pub(super) fn uplink(ifindex: IfIndex) -> Link {
    Link {
        name: format!("eth{ifindex}"),
        kind: LinkKind::Other,
        ..pod(ifindex)
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

pub(super) fn fdb(bridge: IfIndex, port: IfIndex, mac: Mac) -> FdbEntry {
    FdbEntry {
        bridge,
        port,
        mac,
        vlan: None,
    }
}
