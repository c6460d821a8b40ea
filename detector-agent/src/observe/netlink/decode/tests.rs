//! Decoding of recorded messages, and of malformed ones.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::net::IpAddr;

use detector_engine::{AssignedAddress, FdbEntry, Mac, Neighbour, NudState, Peer, Route};
use nix::libc::RTM_NEWLINK;
use proptest::prelude::*;

use super::{
    address,
    link::{self, LinkFacts, OtherEnd, RemovedLink},
    neighbour::{self, NeighbourEntry},
    route::{self, FoundRoute, RouteMessage},
};
use crate::observe::netlink::{
    selection::LinkDriver,
    wire::{RawMessage, RawMessages, Undecodable, for_each_attribute},
};

mod tables;

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
    let messages: Vec<RawMessage<'_>> = RawMessages::of(&bytes)
        .map(|message| message.unwrap())
        .collect();
    let [message] = messages.as_slice() else {
        panic!("{name} is not one message")
    };
    message.payload.to_vec()
}

fn link(name: &str) -> LinkFacts {
    link::new_link(&payload(name))
        .unwrap()
        .expect("a whole link")
}

fn entry(name: &str) -> NeighbourEntry {
    neighbour::entry(&payload(name)).unwrap()
}

fn on_link(name: &str) -> address::LinkAddress {
    address::link_address(&payload(name))
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
fn a_veth_link_names_its_other_end() {
    let first = link("link_pair_first");
    assert_eq!((first.name.as_str(), first.ifindex), ("vpb", 2));
    assert_eq!(
        (first.driver, first.other_end),
        (LinkDriver::Veth, OtherEnd::Unknown)
    );
    assert_eq!(link("link_pair_here").other_end, OtherEnd::Here(2));
    assert_eq!(link("link_peer").other_end, OtherEnd::Elsewhere(POD));
    assert_eq!(link("link_peer").peer(), Some(POD));
}

#[test]
fn the_first_message_of_a_veth_made_in_the_pod_names_no_peer() {
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
fn a_link_has_driver_master_alias_mac_and_state() {
    let bridge = link("link_bridge");
    assert_eq!((bridge.driver, bridge.up), (LinkDriver::Bridge, true));
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
        (LinkDriver::Tun, false, "tap0")
    );
    assert_eq!(link("link_loopback").driver, LinkDriver::Loopback);
}

#[test]
fn a_bridge_message_about_its_port_is_ignored() {
    assert_eq!(
        link::new_link(&payload("link_port_bridge_family")),
        Ok(None)
    );
    assert_eq!(link::removed_link(&payload("link_left_bridge")), Ok(None));
}

#[test]
fn hardware_address_is_that_of_the_whole_link() {
    for name in ["link_peer", "link_tap", "link_bridge", "link_loopback"] {
        let whole = link(name);
        let found = link::hardware_address(&payload(name)).unwrap();
        assert_eq!(found, whole.mac.map(|mac| (whole.ifindex, mac)), "{name}");
    }
    // A bridge's message about its port.
    let of_bridge = link::hardware_address(&payload("link_port_bridge_family"));
    assert_eq!(of_bridge, Ok(None));
}

#[test]
fn a_removed_link_names_the_end_it_moved_away_from() {
    let moved = link::removed_link(&payload("link_gone_moved")).unwrap();
    assert_eq!(
        moved,
        Some(RemovedLink {
            ifindex: 2,
            has_moved: true,
            moved: Some((3, POD))
        })
    );
    let deleted = link::removed_link(&payload("link_gone")).unwrap();
    assert_eq!(
        deleted,
        Some(RemovedLink {
            ifindex: 3,
            has_moved: false,
            moved: None
        })
    );
}

#[test]
fn a_wireless_event_is_ignored() {
    // IFLA_WIRELESS (11), as wireless drivers send it: name and event alone.
    let mut bytes = payload("link_peer")[..16].to_vec();
    bytes.extend([8, 0, 3, 0, b'w', b'l', b'0', 0, 8, 0, 11, 0, 1, 2, 3, 4]);
    assert_eq!(link::new_link(&bytes), Ok(None));
}

#[test]
fn a_negative_peer_namespace_id_is_no_peer() {
    let mut bytes = payload("link_peer");
    let nsid = position(&bytes, 16, 37);
    bytes[nsid..nsid + 4].copy_from_slice(&(-1_i32).to_ne_bytes());
    assert_eq!(
        link::new_link(&bytes).unwrap().unwrap().other_end,
        OtherEnd::Unknown
    );
}

#[test]
fn an_address_has_its_local_side_and_flags() {
    let pod = on_link("address_pod");
    assert_eq!(pod.ifindex, 2);
    let plain = AssignedAddress {
        address: ip("10.244.2.10"),
        prefix_len: 24,
        other_end: None,
        tentative: false,
        dad_failed: false,
        no_dad: false,
        autoconfigured: false,
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
    assert!(!tentative.autoconfigured);
}

#[test]
fn loopback_is_no_address_of_node_or_pod() {
    assert!(!on_link("address_loopback").is_node_address());
    assert!(!on_link("address_loopback").is_pod_address());
    assert!(on_link("address_pod").is_pod_address() && on_link("address_pod").is_node_address());
}

#[test]
fn a_host_scope_address_is_an_address() {
    let mut bytes = payload("address_pod");
    bytes[3] = 254;
    let read = address::link_address(&bytes).unwrap().unwrap();
    assert!(read.is_node_address() && read.is_pod_address());
}

#[test]
fn every_message_of_a_datagram_is_parsed() {
    let mut datagram = recorded("address_pod_gone");
    datagram.extend(recorded("link_peer"));
    datagram.extend(recorded("neighbour_gone"));
    let kinds: Vec<u16> = RawMessages::of(&datagram)
        .map(|message| message.unwrap().kind)
        .collect();
    assert_eq!(kinds, [21, RTM_NEWLINK, 29]);
}

#[test]
fn a_truncated_datagram_gives_its_messages_and_one_error() {
    let mut datagram = recorded("address_pod");
    datagram.extend(&recorded("link_peer")[..100]);
    let read: Vec<bool> = RawMessages::of(&datagram)
        .map(|message| message.is_ok())
        .collect();
    assert_eq!(read, [true, false]);
}

#[test]
fn a_message_without_its_subject_is_undecodable() {
    assert!(link::new_link(&payload("link_peer")[..16]).is_err());
    assert!(address::link_address(&payload("address_pod")[..8]).is_err());
    assert!(neighbour::entry(&payload("neighbour_stale")[..12]).is_err());
    let mut long_prefix = payload("route_pod");
    long_prefix[1] = 33;
    assert!(route::route(&long_prefix).is_err());
}

/// Offset of an attribute's value in a payload.
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

/// Parses bytes in every possible way.
fn parse_all(bytes: &[u8]) {
    let decode = |payload: &[u8]| {
        let _ = link::new_link(payload);
        let _ = link::removed_link(payload);
        let _ = link::hardware_address(payload);
        let _ = address::link_address(payload);
        let _ = neighbour::entry(payload);
        let _ = route::route(payload);
        let _ = route::found_route(payload);
        let _ = link::forwarding(payload);
        let _ = link::bridge_port(payload);
    };
    let walked = RawMessages::of(bytes)
        .map(|message| message.map(|message| decode(message.payload)).is_err());
    assert!(walked.filter(|wrong| *wrong).count() <= 1);
    decode(bytes);
    let _: Result<(), Undecodable> = for_each_attribute(bytes, |_, _| Ok(()));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        parse_all(&bytes);
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
        parse_all(&bytes);
        parse_all(bytes.get(16..).unwrap_or_default());
    }
}
