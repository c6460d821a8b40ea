//! Events of any content; see [`crate::fuzzing`].

use super::stream::parse;

/// Reads one block of the agent's stream of events.
pub fn event_block(bytes: &[u8]) {
    let _ = parse(bytes);
}
