//! From the ring buffer's records to observations.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use aya::maps::{MapData, RingBuf};
use detector_common::{Claim, FrameRecord, NEIGHBOUR_GONE, NeighbourRecord, Record, TAG_ARP};

use crate::detect::{
    FrameClaim, FrameKind, Mac, Neighbour, NudState, Observation, Stamped, Timestamp, Vlan,
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

/// How a drain ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainOutcome {
    /// Observations handed over.
    pub observations: usize,
    /// The budget was spent before the ring was empty: drain again, the descriptor may not say so a second time.
    pub more: bool,
    /// Records that were none this agent knows; they are skipped.
    pub undecodable: u64,
}

impl RingReader {
    pub(super) fn new(ring: RingBuf<MapData>) -> Self {
        Self { ring }
    }

    /// Hands over up to `budget` records, oldest first. Never blocks.
    pub fn drain(&mut self, budget: usize, mut f: impl FnMut(Stamped)) -> DrainOutcome {
        let mut outcome = DrainOutcome::default();
        for _ in 0..budget {
            let Some(item) = self.ring.next() else {
                return outcome;
            };
            match Record::decode(&item) {
                Ok(record) => {
                    // The room in the ring is given back before anything else happens.
                    drop(item);
                    outcome.observations += 1;
                    f(stamped(&record));
                }
                Err(_) => outcome.undecodable += 1,
            }
        }
        outcome.more = true;
        outcome
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

fn stamped(record: &Record) -> Stamped {
    match record {
        Record::Frame(FrameRecord { at, claim }) => Stamped {
            at: Timestamp(*at),
            what: Observation::Frame(frame(claim)),
        },
        Record::Neighbour(record) => Stamped {
            at: Timestamp(record.at),
            what: neighbour(record),
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
