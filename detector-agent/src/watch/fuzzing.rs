//! Fuzz entry points; see [`crate::fuzzing`].

use super::stream::parse;

/// Parses one block of an event stream.
pub fn event_block(bytes: &[u8]) {
    let _ = parse(bytes);
}
