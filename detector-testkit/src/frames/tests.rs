//! Encoded frames compared with frames that Linux sent.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::net::Ipv6Addr;

use super::{ExtensionHeader, Frame, NaFlags, group_mac, solicited_node};
use crate::mac::MacAddress;

const MAC: MacAddress = MacAddress([0x02, 0x1c, 0, 0, 0, 0x01]);

fn hex(frame: &Frame) -> String {
    frame
        .to_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn announcement_has_the_42_bytes_of_rfc_5227() {
    let frame = Frame::announcement(MAC, [10, 244, 2, 10].into());
    assert_eq!(
        hex(&frame),
        "ffffffffffff021c000000010806\
         0001080006040001021c000000010af4020a0000000000000af4020a"
    );
    assert_eq!(frame.to_bytes().len(), 42);
}

#[test]
fn probe_has_no_sender_address() {
    let bytes = Frame::probe(MAC, [10, 244, 2, 10].into()).to_bytes();
    assert_eq!(bytes.get(28..32), Some(&[0, 0, 0, 0][..]));
    assert_eq!(bytes.get(38..42), Some(&[10, 244, 2, 10][..]));
}

#[test]
fn gratuitous_reply_has_equal_sender_and_target() {
    assert_eq!(
        hex(&Frame::gratuitous_reply(MAC, [192, 168, 91, 33].into())),
        "ffffffffffff021c000000010806\
         0001080006040002021c00000001c0a85b21021c00000001c0a85b21"
    );
}

#[test]
fn vlan_tags_precede_the_ethertype_outer_first() {
    let frame = Frame::announcement(MAC, [10, 0, 0, 1].into())
        .vlan(100)
        .vlan(7);
    assert!(hex(&frame).starts_with("ffffffffffff021c0000000188a80064810000070806"));
    let frame = Frame::announcement(MAC, [10, 0, 0, 1].into()).vlan(100);
    assert!(hex(&frame).starts_with("ffffffffffff021c00000001810000640806"));
}

/// Recorded from Linux 6.18, which adds a nonce option (RFC 7527) that `dad` omits.
#[test]
fn dad_equals_linux_except_for_the_nonce() {
    let recorded = "3333ff0a000b021c0000000186dd\
        6000000000203aff00000000000000000000000000000000ff0200000000000000000001ff0a000b\
        8700e60b00000000fd0000000000000000000000000a000b0e01f2e83fb656c9";
    let target: Ipv6Addr = "fd00::a:b".parse().unwrap();
    let mut body = vec![0; 4];
    body.extend(target.octets());
    body.extend([0x0e, 1, 0xf2, 0xe8, 0x3f, 0xb6, 0x56, 0xc9]);
    let group = solicited_node(target);
    let with_nonce = Frame::icmpv6(
        MAC,
        group_mac(group),
        Ipv6Addr::UNSPECIFIED,
        group,
        135,
        &body,
    );
    assert_eq!(hex(&with_nonce), recorded);
    let (header, message) = (54, 24);
    let dad = Frame::dad(MAC, target).to_bytes();
    assert_eq!(dad.len(), header + message);
    assert_eq!(
        dad.get(58..),
        with_nonce.to_bytes().get(58..header + message)
    );
}

/// Recorded from Linux 6.18 with `ndisc_notify`.
#[test]
fn unsolicited_advertisement_equals_linux() {
    let recorded = "333300000001021c0000000186dd\
        6000000000203afffd0000000000000000000000000a000bff020000000000000000000000000001\
        88005a5720000000fd0000000000000000000000000a000b0201021c00000001";
    let frame = Frame::advertisement(
        MAC,
        "fd00::a:b".parse().unwrap(),
        Some(MAC),
        NaFlags::OVERRIDE,
    );
    assert_eq!(hex(&frame), recorded);
}

#[test]
fn solicited_advertisement_may_omit_the_option() {
    let soliciting = "fd00::c".parse().unwrap();
    let bytes =
        Frame::solicited_advertisement(MAC, "fd00::a:b".parse().unwrap(), None, (MAC, soliciting))
            .to_bytes();
    assert_eq!(bytes.len(), 14 + 40 + 24);
    assert_eq!(bytes.get(38..54), Some(&soliciting.octets()[..]));
    assert_eq!(bytes.get(58), Some(&0x60));
}

#[test]
fn extension_headers_are_chained_in_order() {
    let target = "fd00::a:b".parse().unwrap();
    let plain = Frame::advertisement(MAC, target, Some(MAC), NaFlags::OVERRIDE);
    let chain = [ExtensionHeader::HopByHop, ExtensionHeader::Fragment];
    let bytes = plain.clone().extension_headers(&chain).to_bytes();
    let plain = plain.to_bytes();
    // Payload length 48, next header hop-by-hop.
    assert_eq!(bytes.get(18..21), Some(&[0, 48, 0][..]));
    assert_eq!(bytes.get(54..62), Some(&[44, 0, 1, 4, 0, 0, 0, 0][..]));
    assert_eq!(bytes.get(62..70), Some(&[58, 0, 0, 0, 0, 0, 0, 0][..]));
    assert_eq!(bytes.get(70..), plain.get(54..));
}
