//! Ring buffer records of any content; see [`crate::fuzzing`].

use detector_common::RingRecord;
use detector_engine::{Observation, TimedObservation};

use super::ring_reader::stamped;

/// Decodes the bytes of one record.
#[must_use]
pub fn ring_record(bytes: &[u8]) -> Option<TimedObservation> {
    let stamped = stamped(&RingRecord::decode(bytes).ok()?);
    if let Observation::Frame(claim) = &stamped.observation {
        let ids = [claim.vlan.outer, claim.vlan.inner];
        assert!(
            ids.iter().flatten().all(|id| (1..=4094).contains(id)),
            "decoding accepted an invalid VLAN id: {ids:?}"
        );
    }
    Some(stamped)
}
