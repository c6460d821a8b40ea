//! Reads the kernel programs' ring buffer and turns its records into observations.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use aya::maps::{MapData, RingBuf};
use detector_common::{
    FrameRecord, NEIGHBOUR_GONE, NeighbourRecord, RawClaim, RingRecord, TAG_ARP, UNANSWERED_ARP,
    UnansweredProbeRecord,
};
use detector_engine::{
    FrameClaim, FrameKind, Mac, Neighbour, NudState, Observation, RouterAdvertisement,
    TimedObservation, Timestamp, UnansweredProbe, Vlan,
};

/// The consumer of the programs' ring buffer. Its descriptor becomes readable when there are records.
pub struct RingReader {
    ring: RingBuf<MapData>,
}

impl fmt::Debug for RingReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingReader").finish_non_exhaustive()
    }
}

/// Result of [`RingReader::drain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingDrain {
    /// Number of observations.
    pub observations: usize,
    /// The maximum was reached before the ring was empty: drain again, because the descriptor may not become readable again.
    pub more: bool,
    /// Number of invalid records, which were skipped.
    pub undecodable: u64,
}

impl RingReader {
    pub(super) fn new(ring: RingBuf<MapData>) -> Self {
        Self { ring }
    }

    /// Reads up to `max_records`, oldest first, and passes their observations to `handle`. Never blocks.
    pub fn drain(
        &mut self,
        max_records: usize,
        mut handle: impl FnMut(TimedObservation),
    ) -> RingDrain {
        let mut drained = RingDrain::default();
        for _ in 0..max_records {
            let Some(item) = self.ring.next() else {
                return drained;
            };
            match RingRecord::decode(&item) {
                Ok(record) => {
                    // Frees the space in the ring before the observation is handled.
                    drop(item);
                    drained.observations += 1;
                    handle(stamped(&record));
                    if let Some(advertisement) = router_advertisement(&record) {
                        drained.observations += 1;
                        handle(advertisement);
                    }
                }
                Err(_) => drained.undecodable += 1,
            }
        }
        drained.more = true;
        drained
    }
}

impl AsFd for RingReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl AsRawFd for RingReader {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

pub(crate) fn stamped(record: &RingRecord) -> TimedObservation {
    match record {
        RingRecord::Frame(FrameRecord { at, claim }) => TimedObservation {
            at: Timestamp(*at),
            observation: Observation::Frame(frame(claim)),
        },
        RingRecord::Neighbour(record) => TimedObservation {
            at: Timestamp(record.at),
            observation: neighbour(record),
        },
        RingRecord::UnansweredProbe(record) => TimedObservation {
            at: Timestamp(record.at),
            observation: Observation::UnansweredProbe(unanswered_probe(record)),
        },
    }
}

/// What else a claim shows: its sender advertises itself as a router.
fn router_advertisement(record: &RingRecord) -> Option<TimedObservation> {
    let RingRecord::Frame(FrameRecord { at, claim }) = record else {
        return None;
    };
    let FrameClaim {
        ifindex,
        address,
        vlan,
        ..
    } = frame(claim);
    (claim.router != 0).then_some(TimedObservation {
        at: Timestamp(*at),
        observation: Observation::RouterAdvertisement(RouterAdvertisement {
            ifindex,
            source: address,
            vlan,
        }),
    })
}

fn frame(claim: &RawClaim) -> FrameClaim {
    let arp = claim.tag == TAG_ARP;
    FrameClaim {
        ifindex: claim.ifindex,
        kind: if arp { FrameKind::Arp } else { FrameKind::Ndp },
        tentative: claim.tentative != 0,
        address: address(claim.address, arp),
        mac: Mac(claim.mac),
        ether_source: Mac(claim.ether_source),
        vlan: Vlan {
            outer: tag(claim.vlan_outer),
            inner: tag(claim.vlan_inner),
        },
    }
}

fn unanswered_probe(record: &UnansweredProbeRecord) -> UnansweredProbe {
    let arp = record.tag == UNANSWERED_ARP;
    UnansweredProbe {
        ifindex: record.ifindex,
        target: address(record.target, arp),
        sender: address(record.sender, arp),
        vlan: Vlan {
            outer: tag(record.vlan_outer),
            inner: tag(record.vlan_inner),
        },
        count: record.times,
    }
}

fn neighbour(record: &NeighbourRecord) -> Observation {
    let address = address(record.address, record.ip_version == 4);
    if record.tag == NEIGHBOUR_GONE {
        return Observation::NeighbourGone(record.ifindex, address);
    }
    Observation::Neighbour(Neighbour {
        ifindex: record.ifindex,
        address,
        lladdr: (record.has_lladdr != 0).then_some(Mac(record.lladdr)),
        state: NudState::from_bits(u16::from(record.state)),
    })
}

fn address(bytes: [u8; 16], is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        let [a, b, c, d, ..] = bytes;
        Ipv4Addr::new(a, b, c, d).into()
    } else {
        Ipv6Addr::from(bytes).into()
    }
}

fn tag(id: u16) -> Option<u16> {
    (id != 0).then_some(id)
}

#[cfg(test)]
mod tests {
    use detector_common::{NEIGHBOUR_UPDATE, TAG_NDP};

    use super::*;

    const MAC: [u8; 6] = [2, 0x1c, 0, 0, 0, 1];

    fn v4(address: [u8; 4]) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&address);
        bytes
    }

    fn entry() -> NeighbourRecord {
        NeighbourRecord {
            at: 7,
            tag: NEIGHBOUR_UPDATE,
            ip_version: 4,
            state: 0x80,
            has_lladdr: 1,
            ifindex: 3,
            address: v4([10, 244, 2, 10]),
            lladdr: MAC,
            reserved: 0,
        }
    }

    #[test]
    fn arp_claims_are_ipv4_and_ndp_claims_ipv6() {
        let claim = RawClaim {
            tag: TAG_ARP,
            tentative: 1,
            vlan_outer: 100,
            ifindex: 3,
            address: v4([10, 244, 2, 10]),
            mac: MAC,
            ether_source: [2; 6],
            vlan_inner: 0,
            router: 0,
            reserved: 0,
        };
        let arp = FrameClaim {
            ifindex: 3,
            kind: FrameKind::Arp,
            tentative: true,
            address: Ipv4Addr::new(10, 244, 2, 10).into(),
            mac: Mac(MAC),
            ether_source: Mac([2; 6]),
            vlan: Vlan {
                outer: Some(100),
                inner: None,
            },
        };
        let observed = |claim| stamped(&RingRecord::Frame(FrameRecord { at: 7, claim }));
        let expected = |claim| TimedObservation {
            at: Timestamp(7),
            observation: Observation::Frame(claim),
        };
        assert_eq!(observed(claim), expected(arp));
        let ndp = FrameClaim {
            kind: FrameKind::Ndp,
            address: Ipv6Addr::from(claim.address).into(),
            ..arp
        };
        assert_eq!(
            observed(RawClaim {
                tag: TAG_NDP,
                ..claim
            }),
            expected(ndp)
        );
    }

    #[test]
    fn hardware_address_is_absent_if_the_entry_has_none() {
        let expected = Neighbour {
            ifindex: 3,
            address: Ipv4Addr::new(10, 244, 2, 10).into(),
            lladdr: Some(Mac(MAC)),
            state: NudState::Permanent,
        };
        assert_eq!(neighbour(&entry()), Observation::Neighbour(expected));
        let failed = NeighbourRecord {
            state: 0x20,
            has_lladdr: 0,
            ..entry()
        };
        let expected = Neighbour {
            lladdr: None,
            state: NudState::Invalid,
            ..expected
        };
        assert_eq!(neighbour(&failed), Observation::Neighbour(expected));
    }

    #[test]
    fn removed_entry_is_gone_in_any_state() {
        let gone = NeighbourRecord {
            tag: NEIGHBOUR_GONE,
            ip_version: 6,
            ..entry()
        };
        let address = Ipv6Addr::from(gone.address).into();
        assert_eq!(neighbour(&gone), Observation::NeighbourGone(3, address));
    }
}
