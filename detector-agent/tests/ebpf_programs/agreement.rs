//! Compares the kernel program with the same parser on the host, frame by frame.

use std::time::Duration;

use detector_agent::observe::ebpf::{EbpfOptions, Programs};
use detector_common::{
    Counter, RejectReason, TAG_ARP,
    frame::{Classification, FrameSlice, parse},
};
use detector_engine::{FrameKind, Mac, Observation, Vlan};
use detector_testkit::{ExtensionHeader, Frame, MacAddress, NaFlags};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

const MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x0a]);

/// Valid frames with some bytes changed, cut or padded.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let v6 = "fd00::a:b".parse().unwrap();
    let arp = vec![
        Frame::announcement(MAC, [10, 244, 2, 10].into()),
        Frame::probe(MAC, [10, 244, 2, 10].into()),
    ];
    let ndp = vec![
        Frame::solicitation(MAC, v6, "fd00::1".parse().unwrap()),
        Frame::dad(MAC, v6),
        Frame::advertisement(MAC, v6, Some(MAC), NaFlags::OVERRIDE),
    ];
    let headers = prop::sample::select(vec![
        ExtensionHeader::HopByHop,
        ExtensionHeader::Routing,
        ExtensionHeader::Fragment,
        ExtensionHeader::DestinationOptions,
    ]);
    let ndp = (
        prop::sample::select(ndp),
        prop::collection::vec(headers, 0..10),
    );
    let valid = prop_oneof![
        prop::sample::select(arp),
        ndp.prop_map(|(frame, headers)| frame.extension_headers(&headers)),
    ];
    let tags = prop::collection::vec(any::<u16>(), 0..3);
    let changes = prop::collection::vec((0_usize..90, any::<u8>()), 0..5);
    // None keeps the length, and with it most claims.
    let length = prop::option::of(0_usize..160);
    (valid, tags, changes, length).prop_map(|(frame, tags, changes, length)| {
        let mut bytes = tags.into_iter().fold(frame, Frame::vlan).to_bytes();
        for (at, byte) in changes {
            if let Some(changed) = bytes.get_mut(at) {
                *changed = byte;
            }
        }
        // The kernel refuses to test-run a program on a truncated IP header.
        let is_arp = bytes.get(12..14) == Some(&[0x08, 0x06]);
        let least = if is_arp { 14 } else { 54 };
        bytes.resize(length.unwrap_or(bytes.len()).max(least), 0);
        bytes
    })
}

#[test]
fn kernel_and_host_agree_on_every_frame() {
    let options = EbpfOptions {
        republish_after: Duration::ZERO,
        budget_per_second: 0,
        ..EbpfOptions::default()
    };
    let (programs, reader) = Programs::load(&options).unwrap();
    let state = std::cell::RefCell::new((programs, reader));
    let mut runner = TestRunner::new(Config {
        cases: 3_000,
        failure_persistence: None,
        ..Config::default()
    });
    let check = |frame: Vec<u8>| {
        let (programs, reader) = &mut *state.borrow_mut();
        let mut claim = std::mem::MaybeUninit::new(detector_common::RawClaim::default());
        let class = parse(
            &FrameSlice {
                frame: &frame,
                outer_tag: None,
            },
            &mut claim,
        );
        // SAFETY: initialised above.
        let claim = unsafe { claim.assume_init() };

        let before = programs.counters().read().unwrap();
        let result = programs.test_run(&frame, 1).unwrap();
        prop_assert_eq!(result.verdict, -1);
        let after = programs.counters().read().unwrap();
        let rejected: Vec<RejectReason> = RejectReason::ALL
            .into_iter()
            .filter(|reason| {
                after.get(Counter::Rejected(*reason)) > before.get(Counter::Rejected(*reason))
            })
            .collect();
        let mut published = Vec::new();
        reader.drain(usize::MAX, |stamped| {
            // Neighbour entries of the test's own namespace may change.
            if let Observation::Frame(claim) = stamped.observation {
                published.push(claim);
            }
        });
        match class {
            Classification::Other => prop_assert!(published.is_empty() && rejected.is_empty()),
            Classification::Rejected(reason) => {
                prop_assert!(published.is_empty());
                prop_assert_eq!(rejected, vec![reason]);
            }
            Classification::Claim => {
                prop_assert!(rejected.is_empty());
                prop_assert_eq!(published.len(), 1);
                let found = published[0];
                let tag = |id: u16| (id != 0).then_some(id);
                let vlan = Vlan {
                    outer: tag(claim.vlan_outer),
                    inner: tag(claim.vlan_inner),
                };
                prop_assert_eq!(found.kind == FrameKind::Arp, claim.tag == TAG_ARP);
                prop_assert_eq!(found.tentative, claim.tentative == 1);
                prop_assert_eq!(
                    (found.mac, found.ether_source),
                    (Mac(claim.mac), Mac(claim.ether_source))
                );
                prop_assert_eq!(found.vlan, vlan);
                match found.address {
                    std::net::IpAddr::V4(address) => {
                        prop_assert_eq!(&address.octets()[..], &claim.address[..4])
                    }
                    std::net::IpAddr::V6(address) => {
                        prop_assert_eq!(address.octets(), claim.address)
                    }
                }
            }
        }
        Ok(())
    };
    runner.run(&frames(), check).unwrap();
}
