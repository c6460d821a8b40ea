//! Asking every source once: for `check`, which does not stay.

use std::{io, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{Identifier, Note, PodDirectory, Sources};
use crate::engine::PodDevice;

/// Looks the pods behind these devices up, and gives what is known when all sources have answered or `patience` is
/// over.
///
/// # Errors
/// Where the system gives no runtime to wait with.
pub fn look_once(
    devices: Vec<PodDevice>,
    sources: Sources,
    patience: Duration,
) -> io::Result<Arc<PodDirectory>> {
    let book = Arc::new(PodDirectory::default());
    if devices.is_empty() {
        return Ok(book);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let kept = Arc::clone(&book);
    runtime.block_on(async move {
        let now = Instant::now();
        let mut identifier = Identifier::quiet(kept);
        identifier.use_sources(sources.statuses());
        for device in devices {
            identifier.note(Note::Appeared(device), now);
        }
        identifier.begin_round(now);
        let mut asked = sources.ask(1);
        // A source has its own word for being late; it comes at the deadline.
        let deadline = now + patience + Duration::from_millis(50);
        while let Ok(Some(answer)) = timeout_at(deadline, asked.join_next()).await {
            if let Ok(report) = answer {
                identifier.report(report);
            }
        }
        identifier.give_up();
        identifier.publish();
    });
    // A reading that hangs is left behind.
    runtime.shutdown_background();
    Ok(book)
}
