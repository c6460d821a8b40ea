//! The limit of open file descriptors.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// Raises the limit to what the system allows: programs on many devices and webhooks need descriptors, and few systems
/// allow more than 1,024 by default. Nothing here uses select(2), which fails beyond that.
pub fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!(%error, "the limit of open files could not be raised");
    }
}

/// The limit; 1,024, the usual one, if it is unknown.
#[must_use]
pub fn limit() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(soft).unwrap_or(usize::MAX)
}
