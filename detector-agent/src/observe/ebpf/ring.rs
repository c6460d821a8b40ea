//! From the ring buffer's records to observations.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use aya::maps::{MapData, RingBuf};
use detector_common::{
    Claim, FrameRecord, NEIGHBOUR_GONE, NeighbourRecord, QUESTION_ARP, QuestionRecord, Record,
    TAG_ARP,
};

use crate::engine::{
    FrameClaim, FrameKind, Mac, Neighbour, NudState, Observation, Question, TimedObservation,
    Timestamp, Vlan,
};

/// The reading end of the programs' ring buffer. Its descriptor becomes readable when there is something to read.
pub struct RingReader {
    ring: RingBuf<MapData>,
}

impl fmt::Debug for RingReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingReader").finish_non_exhaustive()
    }
}

/// What one call of [`RingReader::drain`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Observations handed over.
    pub observations: usize,
    /// As much as was asked for was read before the ring was empty: drain again, the descriptor may not say so a second time.
    pub more: bool,
    /// Records that were none this agent knows; they are skipped.
    pub undecodable: u64,
}

impl RingReader {
    pub(super) fn new(ring: RingBuf<MapData>) -> Self {
        Self { ring }
    }

    /// Reads up to `max_records`, oldest first, and gives `tell` what they say. Never blocks.
    pub fn drain(&mut self, max_records: usize, mut tell: impl FnMut(TimedObservation)) -> Drained {
        let mut drained = Drained::default();
        for _ in 0..max_records {
            let Some(item) = self.ring.next() else {
                return drained;
            };
            match Record::decode(&item) {
                Ok(record) => {
                    // The room in the ring is given back before anything else happens.
                    drop(item);
                    drained.observations += 1;
                    tell(stamped(&record));
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

pub(crate) fn stamped(record: &Record) -> TimedObservation {
    match record {
        Record::Frame(FrameRecord { at, claim }) => TimedObservation {
            at: Timestamp(*at),
            observation: Observation::Frame(frame(claim)),
        },
        Record::Neighbour(record) => TimedObservation {
            at: Timestamp(record.at),
            observation: neighbour(record),
        },
        Record::Question(record) => TimedObservation {
            at: Timestamp(record.at),
            observation: Observation::Question(question(record)),
        },
    }
}

fn frame(claim: &Claim) -> FrameClaim {
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

fn question(record: &QuestionRecord) -> Question {
    let arp = record.tag == QUESTION_ARP;
    Question {
        ifindex: record.ifindex,
        target: address(record.target, arp),
        asker: address(record.asker, arp),
        vlan: Vlan {
            outer: tag(record.vlan_outer),
            inner: tag(record.vlan_inner),
        },
        times: record.times,
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
    fn an_arp_claim_is_of_ipv4_and_an_ndp_claim_of_ipv6() {
        let claim = Claim {
            tag: TAG_ARP,
            tentative: 1,
            vlan_outer: 100,
            ifindex: 3,
            address: v4([10, 244, 2, 10]),
            mac: MAC,
            ether_source: [2; 6],
            vlan_inner: 0,
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
        let said = |claim| stamped(&Record::Frame(FrameRecord { at: 7, claim }));
        let expected = |claim| TimedObservation {
            at: Timestamp(7),
            observation: Observation::Frame(claim),
        };
        assert_eq!(said(claim), expected(arp));
        let ndp = FrameClaim {
            kind: FrameKind::Ndp,
            address: Ipv6Addr::from(claim.address).into(),
            ..arp
        };
        assert_eq!(
            said(Claim {
                tag: TAG_NDP,
                ..claim
            }),
            expected(ndp)
        );
    }

    #[test]
    fn an_entry_without_hardware_address_has_none() {
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
    fn a_removed_entry_is_gone_whatever_its_state_was() {
        let gone = NeighbourRecord {
            tag: NEIGHBOUR_GONE,
            ip_version: 6,
            ..entry()
        };
        let address = Ipv6Addr::from(gone.address).into();
        assert_eq!(neighbour(&gone), Observation::NeighbourGone(3, address));
    }
}
