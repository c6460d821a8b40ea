//! Decoding of valid records, and rejection of bytes that no kernel program writes.

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// Recorded on Linux 6.18, x86-64: an announcement of 10.244.2.10 on interface 2, VLAN 100.7.
const FRAME: [u8; 48] = [
    0x15, 0xcd, 0x5b, 0x07, 0, 0, 0, 0, // at
    1, 0, 100, 0, 2, 0, 0, 0, // tag, tentative, outer VLAN, interface
    10, 244, 2, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // address
    2, 0x1c, 0, 0, 0, 1, 2, 0x1c, 0, 0, 0, 2, // sender, Ethernet source
    7, 0, 0, 0, // inner VLAN, router, reserved
];
/// A PERMANENT entry for fd00::a:b on interface 3.
const NEIGHBOUR: [u8; 40] = [
    0x15, 0xcd, 0x5b, 0x07, 0, 0, 0, 0, // at
    3, 6, 0x80, 1, 3, 0, 0, 0, // tag, IP version, state, has lladdr, interface
    0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0x0b, // address
    2, 0x1c, 0, 0, 0, 1, 0, 0, // lladdr, reserved
];

fn with(record: &[u8], at: usize, value: u8) -> Vec<u8> {
    let mut bytes = record.to_vec();
    *bytes.get_mut(at).unwrap() = value;
    bytes
}

#[test]
fn decodes_a_claim() {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&[10, 244, 2, 10]);
    let claim = RawClaim {
        tag: TAG_ARP,
        tentative: 0,
        vlan_outer: 100,
        ifindex: 2,
        address,
        mac: [2, 0x1c, 0, 0, 0, 1],
        ether_source: [2, 0x1c, 0, 0, 0, 2],
        vlan_inner: 7,
        router: 0,
        reserved: 0,
    };
    assert_eq!(
        RingRecord::decode(&FRAME),
        Ok(RingRecord::Frame(FrameRecord {
            at: 123_456_789,
            claim
        }))
    );
}

#[test]
fn decodes_a_neighbour_entry() {
    let record = NeighbourRecord {
        at: 123_456_789,
        tag: NEIGHBOUR_UPDATE,
        ip_version: 6,
        state: 0x80,
        has_lladdr: 1,
        ifindex: 3,
        address: [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0x0b],
        lladdr: [2, 0x1c, 0, 0, 0, 1],
        reserved: 0,
    };
    assert_eq!(
        RingRecord::decode(&NEIGHBOUR),
        Ok(RingRecord::Neighbour(record))
    );
    let gone = NeighbourRecord {
        tag: NEIGHBOUR_GONE,
        ..record
    };
    assert_eq!(
        RingRecord::decode(&with(&NEIGHBOUR, 8, NEIGHBOUR_GONE)),
        Ok(RingRecord::Neighbour(gone))
    );
}

/// 169.254.1.1 on interface 2, requested three times by 192.168.156.177.
const UNANSWERED_PROBE: [u8; 56] = [
    0x15, 0xcd, 0x5b, 0x07, 0, 0, 0, 0, // at
    5, 0, 0, 0, 2, 0, 0, 0, // tag, reserved, outer VLAN, interface
    169, 254, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // target
    192, 168, 156, 177, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // sender
    0, 0, 3, 0, 0, 0, 0, 0, // inner VLAN, times, reserved
];

#[test]
fn decodes_an_unanswered_probe() {
    let mut target = [0; 16];
    target[..4].copy_from_slice(&[169, 254, 1, 1]);
    let mut sender = [0; 16];
    sender[..4].copy_from_slice(&[192, 168, 156, 177]);
    let probe = UnansweredProbeRecord {
        at: 123_456_789,
        tag: UNANSWERED_ARP,
        reserved: 0,
        vlan_outer: 0,
        ifindex: 2,
        target,
        sender,
        vlan_inner: 0,
        times: 3,
        reserved_too: 0,
    };
    assert_eq!(
        RingRecord::decode(&UNANSWERED_PROBE),
        Ok(RingRecord::UnansweredProbe(probe))
    );
    for (at, value, field) in [(11, 0x10, "vlan"), (49, 0xff, "vlan"), (12, 0, "ifindex")] {
        let error = Err(DecodeError::Field(field));
        assert_eq!(
            RingRecord::decode(&with(&UNANSWERED_PROBE, at, value)),
            error
        );
    }
}

#[test]
fn rejects_other_lengths() {
    for record in [&FRAME[..], &NEIGHBOUR[..], &UNANSWERED_PROBE[..]] {
        for length in 0..record.len() {
            let error = RingRecord::decode(record.get(..length).unwrap());
            assert_eq!(error, Err(DecodeError::Length(length)));
        }
        let mut long = record.to_vec();
        long.push(0);
        assert_eq!(
            RingRecord::decode(&long),
            Err(DecodeError::Length(long.len()))
        );
    }
}

#[test]
fn rejects_values_that_no_program_writes() {
    for tag in [0, 7, 8, 255] {
        assert_eq!(
            RingRecord::decode(&with(&FRAME, 8, tag)),
            Err(DecodeError::Tag(tag))
        );
    }
    let cases: [(&[u8], usize, u8, &str); 6] = [
        (&FRAME, 9, 2, "tentative"),
        (&FRAME, 11, 0x10, "vlan"),
        (&FRAME, 45, 0xff, "vlan"),
        (&FRAME, 12, 0, "ifindex"),
        (&NEIGHBOUR, 9, 5, "ip_version"),
        (&NEIGHBOUR, 11, 2, "has_lladdr"),
    ];
    for (record, at, value, field) in cases {
        assert_eq!(
            RingRecord::decode(&with(record, at, value)),
            Err(DecodeError::Field(field))
        );
    }
}

proptest! {
    #[test]
    fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = RingRecord::decode(&bytes);
    }
}
