//! Decoding of recorded messages, and of what no kernel would send.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::net::IpAddr;

use proptest::prelude::*;

use super::{
    Message, Messages, RTM_NEWLINK, Undecodable, address, attributes,
    link::{self, LinkFacts, LinkGone, OtherEnd},
    neighbour::{self, Entry},
    route,
};
use crate::{
    engine::{AssignedAddress, FdbEntry, Mac, Neighbour, NudState, Peer, Route},
    observe::netlink::selection::Driver,
};

/// Name and bytes of every recorded message.
fn recordings() -> Vec<(&'static str, Vec<u8>)> {
    let lines = include_str!("recorded.txt").lines();
    lines
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, hex) = line.split_once(' ').expect("name and hex");
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
            (name, (0..hex.len()).step_by(2).map(byte).collect())
        })
        .collect()
}

fn recorded(name: &str) -> Vec<u8> {
    let mut all = recordings().into_iter();
    all.find(|(found, _)| *found == name)
        .unwrap_or_else(|| panic!("no recording {name}"))
        .1
}

/// The payload of a recorded datagram that is one message.
fn payload(name: &str) -> Vec<u8> {
    let bytes = recorded(name);
    let messages: Vec<Message<'_>> = Messages::of(&bytes)
        .map(|message| message.unwrap())
        .collect();
    let [message] = messages.as_slice() else {
        panic!("{name} is not one message")
    };
    message.payload.to_vec()
}

fn link(name: &str) -> LinkFacts {
    link::appeared(&payload(name))
        .unwrap()
        .expect("a whole link")
}

fn entry(name: &str) -> Entry {
    neighbour::entry(&payload(name)).unwrap()
}

fn on_link(name: &str) -> address::OnLink {
    address::on_link(&payload(name))
        .unwrap()
        .expect("an address")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

const POD: Peer = Peer {
    nsid: 0,
    ifindex: 2,
};

#[test]
fn a_veth_tells_where_its_other_end_stands() {
    let first = link("link_pair_first");
    assert_eq!((first.name.as_str(), first.ifindex), ("vpb", 2));
    assert_eq!(
        (first.driver, first.other_end),
        (Driver::Veth, OtherEnd::Unknown)
    );
    assert_eq!(link("link_pair_here").other_end, OtherEnd::Here(2));
    assert_eq!(link("link_peer").other_end, OtherEnd::Elsewhere(POD));
    assert_eq!(link("link_peer").peer(), Some(POD));
}

#[test]
fn the_kernels_first_word_on_a_veth_made_inside_the_pod_names_no_peer() {
    assert_eq!(link("link_first_word").peer(), None);
    assert_eq!(
        link("link_second_word").peer(),
        Some(Peer {
            nsid: 1,
            ifindex: 2
        })
    );
}

#[test]
fn a_link_tells_driver_master_alias_hardware_address_and_whether_it_is_up() {
    let bridge = link("link_bridge");
    assert_eq!((bridge.driver, bridge.up), (Driver::Bridge, true));
    assert_eq!(link("link_port").master, Some(bridge.ifindex));
    assert_eq!(link("link_port_no_more").master, None);
    assert_eq!(
        link("link_alias").alias.as_deref(),
        Some("link-pod default/web-0")
    );
    assert_eq!(link("link_port").alias, None);
    assert!(link("link_port").mac.is_some());
    let tap = link("link_tap");
    assert_eq!(
        (tap.driver, tap.up, tap.name.as_str()),
        (Driver::Tun, false, "tap0")
    );
    assert_eq!(link("link_loopback").driver, Driver::Loopback);
}

#[test]
fn a_bridges_word_on_its_port_is_no_news_of_the_link() {
    assert_eq!(
        link::appeared(&payload("link_port_bridge_family")),
        Ok(None)
    );
    assert_eq!(link::gone(&payload("link_left_bridge")), Ok(None));
}

#[test]
fn a_link_that_is_gone_tells_whether_it_moved_away_from_an_end_that_stays() {
    let moved = link::gone(&payload("link_gone_moved")).unwrap();
    assert_eq!(
        moved,
        Some(LinkGone {
            ifindex: 2,
            moved: Some((3, POD))
        })
    );
    let deleted = link::gone(&payload("link_gone")).unwrap();
    assert_eq!(
        deleted,
        Some(LinkGone {
            ifindex: 3,
            moved: None
        })
    );
}

#[test]
fn a_wireless_event_is_no_news_of_the_link() {
    // IFLA_WIRELESS (11), as wireless drivers send it: name and event alone.
    let mut bytes = payload("link_peer")[..16].to_vec();
    bytes.extend([8, 0, 3, 0, b'w', b'l', b'0', 0, 8, 0, 11, 0, 1, 2, 3, 4]);
    assert_eq!(link::appeared(&bytes), Ok(None));
}

#[test]
fn an_unknown_namespace_of_the_peer_is_no_peer() {
    let mut bytes = payload("link_peer");
    let nsid = position(&bytes, 16, 37);
    bytes[nsid..nsid + 4].copy_from_slice(&(-1_i32).to_ne_bytes());
    assert_eq!(
        link::appeared(&bytes).unwrap().unwrap().other_end,
        OtherEnd::Unknown
    );
}

#[test]
fn an_address_tells_its_own_side_and_its_flags() {
    let pod = on_link("address_pod");
    assert_eq!(pod.ifindex, 2);
    let plain = AssignedAddress {
        address: ip("10.244.2.10"),
        prefix_len: 24,
        tentative: false,
        dad_failed: false,
    };
    assert_eq!(pod.address, plain);
    assert_eq!(on_link("address_pod_gone"), pod);
    let dumped = on_link("address_pod_dumped");
    assert_eq!((dumped.address, dumped.target), (plain, Some(0)));
    assert_eq!(
        on_link("address_host_point_to_point").address.address,
        ip("10.244.2.1")
    );
    let tentative = on_link("address_pod_tentative").address;
    assert_eq!(
        (tentative.address, tentative.prefix_len),
        (ip("fd00:2::10"), 64)
    );
    assert!(tentative.tentative && !tentative.dad_failed);
    assert!(on_link("address_dad_failed").address.dad_failed);
}

#[test]
fn loopback_is_neither_the_nodes_nor_a_pods_address() {
    assert!(!on_link("address_loopback").of_host());
    assert!(!on_link("address_loopback").of_pod());
    assert!(on_link("address_pod").of_pod() && on_link("address_pod").of_host());
}

#[test]
fn an_address_of_host_scope_is_the_nodes_but_no_pods() {
    let mut bytes = payload("address_pod");
    bytes[3] = 254;
    let read = address::on_link(&bytes).unwrap().unwrap();
    assert!(read.of_host() && !read.of_pod());
}

#[test]
fn a_neighbour_tells_address_hardware_address_and_state() {
    let with = |last, state| Neighbour {
        ifindex: 3,
        address: ip("10.244.2.10"),
        lladdr: Some(Mac([2, 0, 0, 0, 0, last])),
        state,
    };
    assert_eq!(
        entry("neighbour_permanent"),
        Entry::Neighbour(with(0x0a, NudState::Permanent))
    );
    assert_eq!(
        entry("neighbour_stale"),
        Entry::Neighbour(with(0x0b, NudState::Stale))
    );
    let failed = Neighbour {
        lladdr: None,
        ..with(0, NudState::Invalid)
    };
    assert_eq!(entry("neighbour_failed"), Entry::Neighbour(failed));
    assert_eq!(entry("neighbour_gone"), Entry::Neighbour(failed));
    let ipv6 = Neighbour {
        address: ip("fd00:2::10"),
        ..with(0x0a, NudState::Permanent)
    };
    assert_eq!(entry("neighbour_ipv6"), Entry::Neighbour(ipv6));
}

#[test]
fn proxy_and_multicast_entries_are_no_neighbours() {
    assert_eq!(entry("neighbour_multicast_gone"), Entry::Ignored);
    let mut bytes = payload("neighbour_permanent");
    bytes[10] |= 0x08;
    assert_eq!(neighbour::entry(&bytes), Ok(Entry::Ignored));
}

#[test]
fn a_forwarding_entry_on_a_port_counts_whether_learned_or_set() {
    let with = |last| FdbEntry {
        bridge: 5,
        port: 3,
        mac: Mac([2, 0, 0, 0, 0, last]),
        vlan: None,
    };
    assert_eq!(entry("fdb_learned"), Entry::Fdb(with(0x1f)));
    assert_eq!(entry("fdb_static"), Entry::Fdb(with(0x0c)));
    assert_eq!(entry("fdb_gone"), Entry::Fdb(with(0x0c)));
    // NDA_VLAN (5), as a bridge that filters VLANs appends it; the recording kernel has none.
    let mut bytes = payload("fdb_learned");
    bytes.extend([6, 0, 5, 0, 7, 0, 0, 0]);
    assert_eq!(
        neighbour::entry(&bytes),
        Ok(Entry::Fdb(FdbEntry {
            vlan: Some(7),
            ..with(0x1f)
        }))
    );
}

#[test]
fn addresses_of_the_bridge_and_its_ports_and_entries_of_tunnels_are_no_forwarding_entries() {
    for name in ["fdb_bridge_own", "fdb_port_own", "fdb_tunnel"] {
        assert_eq!(entry(name), Entry::Ignored, "{name}");
    }
}

#[test]
fn a_unicast_route_over_one_device_tells_where_traffic_goes() {
    let read = |name: &str| route::route(&payload(name)).unwrap();
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
}

#[test]
fn other_routes_do_not_tell() {
    for name in ["route_local_table", "route_multipath", "route_blackhole"] {
        assert_eq!(route::route(&payload(name)), Ok(None), "{name}");
    }
}

#[test]
fn a_list_of_one_next_hop_tells_its_device() {
    let mut bytes = payload("route_multipath");
    let list = position(&bytes, 12, 9);
    // Cut the second hop (8 bytes) off the list (16 + 8) and its length, 4 bytes before the value.
    bytes.drain(list + 16..list + 24);
    bytes[list - 4] = 20;
    assert_eq!(route::route(&bytes).unwrap().unwrap().ifindex, 3);
}

#[test]
fn every_message_of_a_datagram_is_walked() {
    let mut datagram = recorded("address_pod_gone");
    datagram.extend(recorded("link_peer"));
    datagram.extend(recorded("neighbour_gone"));
    let kinds: Vec<u16> = Messages::of(&datagram)
        .map(|message| message.unwrap().kind)
        .collect();
    assert_eq!(kinds, [21, RTM_NEWLINK, 29]);
}

#[test]
fn a_datagram_cut_short_gives_its_whole_messages_and_one_error() {
    let mut datagram = recorded("address_pod");
    datagram.extend(&recorded("link_peer")[..100]);
    let read: Vec<bool> = Messages::of(&datagram)
        .map(|message| message.is_ok())
        .collect();
    assert_eq!(read, [true, false]);
}

#[test]
fn a_message_without_what_it_is_about_is_undecodable() {
    assert!(link::appeared(&payload("link_peer")[..16]).is_err());
    assert!(address::on_link(&payload("address_pod")[..8]).is_err());
    assert!(neighbour::entry(&payload("neighbour_stale")[..12]).is_err());
    let mut long_prefix = payload("route_pod");
    long_prefix[1] = 33;
    assert!(route::route(&long_prefix).is_err());
}

/// Where the value of an attribute begins in a payload.
fn position(payload: &[u8], header: usize, wanted: u16) -> usize {
    let mut at = header;
    loop {
        let length = usize::from(u16::from_ne_bytes([payload[at], payload[at + 1]]));
        if u16::from_ne_bytes([payload[at + 2], payload[at + 3]]) & 0x3fff == wanted {
            return at + 4;
        }
        at += length.next_multiple_of(4);
    }
}

/// Reads bytes in every way they could be read.
fn read_all(bytes: &[u8]) {
    let decode = |payload: &[u8]| {
        let _ = link::appeared(payload);
        let _ = link::gone(payload);
        let _ = address::on_link(payload);
        let _ = neighbour::entry(payload);
        let _ = route::route(payload);
    };
    let walked =
        Messages::of(bytes).map(|message| message.map(|message| decode(message.payload)).is_err());
    assert!(walked.filter(|wrong| *wrong).count() <= 1);
    decode(bytes);
    let _: Result<(), Undecodable> = attributes(bytes, |_, _| Ok(()));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        read_all(&bytes);
    }

    #[test]
    fn no_mangled_recording_panics(
        pick in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        keep in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let recordings = recordings();
        let mut bytes = pick.get(&recordings).1.clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if cut {
            let keep = keep.index(bytes.len());
            bytes.truncate(keep);
        }
        read_all(&bytes);
        read_all(bytes.get(16..).unwrap_or_default());
    }
}
