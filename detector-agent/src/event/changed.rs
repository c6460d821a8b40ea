//! What an update changed.

use serde::{Deserialize, Serialize};

/// A part of a conflict that an updating event names as changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangedField {
    /// Its kind.
    Kind,
    /// How certain the evidence is.
    Confidence,
    /// Which device receives the node's traffic for the address.
    TrafficGoesTo,
    /// A claimant joined or left, or its device was renamed.
    Claimants,
    /// What supports the claims; not when it was last seen.
    Evidence,
    /// A pod became known, or what is known of it changed.
    Pod,
    /// Which claimant is the newest, or how that is known.
    Newest,
    /// The address sweep that it is part of.
    Sweep,
}
