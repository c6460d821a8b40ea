//! Neighbours, forwarding entries and routes.

use detector_engine::RouteKey;

use super::*;
use crate::observe::netlink::decode::route::OtherRoute;

#[test]
fn a_neighbour_has_address_mac_and_state() {
    let with = |last, state| Neighbour {
        ifindex: 3,
        address: ip("10.244.2.10"),
        lladdr: Some(Mac([2, 0, 0, 0, 0, last])),
        state,
    };
    assert_eq!(
        entry("neighbour_permanent"),
        NeighbourEntry::Neighbour(with(0x0a, NudState::Permanent))
    );
    assert_eq!(
        entry("neighbour_stale"),
        NeighbourEntry::Neighbour(with(0x0b, NudState::Stale))
    );
    let failed = Neighbour {
        lladdr: None,
        ..with(0, NudState::Invalid)
    };
    assert_eq!(entry("neighbour_failed"), NeighbourEntry::Neighbour(failed));
    assert_eq!(entry("neighbour_gone"), NeighbourEntry::Neighbour(failed));
    let ipv6 = Neighbour {
        address: ip("fd00:2::10"),
        ..with(0x0a, NudState::Permanent)
    };
    assert_eq!(entry("neighbour_ipv6"), NeighbourEntry::Neighbour(ipv6));
}

#[test]
fn proxy_and_multicast_entries_are_ignored() {
    assert_eq!(entry("neighbour_multicast_gone"), NeighbourEntry::Ignored);
    let mut bytes = payload("neighbour_permanent");
    bytes[10] |= 0x08;
    assert_eq!(neighbour::entry(&bytes), Ok(NeighbourEntry::Ignored));
}

#[test]
fn learned_and_static_forwarding_entries_count() {
    let with = |last| FdbEntry {
        bridge: 5,
        port: 3,
        mac: Mac([2, 0, 0, 0, 0, last]),
        vlan: None,
    };
    assert_eq!(entry("fdb_learned"), NeighbourEntry::Fdb(with(0x1f)));
    assert_eq!(entry("fdb_static"), NeighbourEntry::Fdb(with(0x0c)));
    assert_eq!(entry("fdb_gone"), NeighbourEntry::Fdb(with(0x0c)));
    // NDA_VLAN (5), as a bridge that filters VLANs appends it; the recording kernel has none.
    let mut bytes = payload("fdb_learned");
    bytes.extend([6, 0, 5, 0, 7, 0, 0, 0]);
    assert_eq!(
        neighbour::entry(&bytes),
        Ok(NeighbourEntry::Fdb(FdbEntry {
            vlan: Some(7),
            ..with(0x1f)
        }))
    );
}

#[test]
fn own_addresses_and_tunnel_entries_are_not_forwarding_entries() {
    for name in ["fdb_bridge_own", "fdb_port_own", "fdb_tunnel"] {
        assert_eq!(entry(name), NeighbourEntry::Ignored, "{name}");
    }
}

#[test]
fn plain_routes_are_kept() {
    let read = |name: &str| match route::route(&payload(name)) {
        Ok(RouteMessage::Plain(route)) => Some(route),
        _ => None,
    };
    let pod = Route {
        destination: ip("10.244.2.10"),
        prefix_len: 32,
        ifindex: 3,
        metric: 0,
        table: 254,
    };
    assert_eq!(read("route_pod"), Some(pod));
    assert_eq!(read("route_replaced"), Some(Route { ifindex: 4, ..pod }));
    assert_eq!(read("route_gone"), Some(Route { ifindex: 4, ..pod }));
    assert_eq!(
        read("route_metric_table"),
        Some(Route {
            metric: 1024,
            table: 1000,
            ..pod
        })
    );
    let ipv6 = Route {
        destination: ip("fd00:2::10"),
        prefix_len: 128,
        metric: 1024,
        ..pod
    };
    assert_eq!(read("route_ipv6"), Some(ipv6));
    let default = Route {
        destination: ip("0.0.0.0"),
        prefix_len: 0,
        ..pod
    };
    assert_eq!(read("route_default"), Some(default));
    let by_object = Route {
        destination: ip("203.0.113.9"),
        ..pod
    };
    assert_eq!(read("route_nexthop_object"), Some(by_object));
    // blackhole, unreachable and prohibit.
    for kind in [6, 7, 8] {
        let mut bytes = payload("route_pod");
        bytes[7] = kind;
        let nowhere = Route {
            ifindex: Route::NOWHERE,
            ..pod
        };
        assert_eq!(route::route(&bytes), Ok(RouteMessage::Plain(nowhere)));
    }
}

#[test]
fn of_other_routes_the_destination_is_kept() {
    for name in ["route_local_table", "route_multipath"] {
        let read = route::route(&payload(name));
        assert!(
            matches!(read, Ok(RouteMessage::Other(..))),
            "{name}: {read:?}"
        );
    }
    let place = RouteKey {
        destination: ip("10.244.2.10"),
        prefix_len: 32,
        metric: 0,
        table: 254,
    };
    let other = RouteMessage::Other(OtherRoute {
        place,
        may_replace_plain: false,
    });
    // The type of service, and the length of a source prefix.
    for at in [3, 2] {
        let mut bytes = payload("route_pod");
        bytes[at] = 8;
        assert_eq!(route::route(&bytes), Ok(other));
    }
    // RTM_F_CLONED.
    let mut bytes = payload("route_pod");
    bytes[9] |= 2;
    assert_eq!(route::route(&bytes), Ok(RouteMessage::Ignored));
}

#[test]
fn a_looked_up_route_has_a_device_and_perhaps_a_gateway() {
    let bytes = payload("route_pod");
    assert_eq!(route::found_route(&bytes), Ok(FoundRoute::Out(3, None)));
    let mut local = bytes.clone();
    local[7] = 2;
    assert_eq!(route::found_route(&local), Ok(FoundRoute::Local));
    for kind in [3, 6, 7, 8] {
        let mut rejected = bytes.clone();
        rejected[7] = kind;
        assert_eq!(route::found_route(&rejected), Ok(FoundRoute::Nowhere));
    }
    let mut by_gateway = bytes.clone();
    by_gateway.extend([8, 0, 5, 0, 10, 0, 0, 1]);
    assert_eq!(
        route::found_route(&by_gateway),
        Ok(FoundRoute::Out(3, Some(ip("10.0.0.1"))))
    );
    let mut via = bytes.clone();
    via.extend([22, 0, 18, 0, 10, 0]);
    via.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(
        route::found_route(&via),
        Ok(FoundRoute::Out(3, Some(ip("fd00::1"))))
    );
    assert!(route::found_route(&bytes[..12]).is_err(), "no device");
}

#[test]
fn a_list_of_one_next_hop_gives_its_device() {
    let mut bytes = payload("route_multipath");
    let list = position(&bytes, 12, 9);
    // Cut the second hop (8 bytes) off the list (16 + 8) and its length, 4 bytes before the value.
    bytes.drain(list + 16..list + 24);
    bytes[list - 4] = 20;
    let read = route::route(&bytes);
    assert!(matches!(read, Ok(RouteMessage::Plain(route)) if route.ifindex == 3));
}
