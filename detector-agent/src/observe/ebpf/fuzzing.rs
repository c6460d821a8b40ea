//! Records of any content; see [`crate::fuzzing`].

use detector_common::Record;

use super::ring::stamped;
use crate::engine::{Observation, TimedObservation};

/// Reads the bytes of one record, as they lie in the ring buffer.
#[must_use]
pub fn ring_record(bytes: &[u8]) -> Option<TimedObservation> {
    let stamped = stamped(&Record::decode(bytes).ok()?);
    if let Observation::Frame(claim) = &stamped.observation {
        let ids = [claim.vlan.outer, claim.vlan.inner];
        assert!(
            ids.iter().flatten().all(|id| (1..=4094).contains(id)),
            "a VLAN id that no tag can have was let through: {ids:?}"
        );
    }
    Some(stamped)
}
