//! A single lookup in every source, for `check`.

use std::{io, sync::Arc, time::Duration};

use detector_engine::PodDevice;
use tokio::time::{Instant, timeout_at};

use super::{LookupRequest, LookupUpdate, PodDirectory, PodResolver, PodSources};

/// Extra time for a source that reports a timeout of its own, which says more than that time is up.
const GRACE: Duration = Duration::from_millis(50);

/// Looks up the pods and CNI networks of `devices`. Returns what is known once all sources have answered or `timeout` has
/// passed.
///
/// # Errors
/// If the asynchronous runtime cannot be started.
pub fn resolve_once(
    devices: Vec<PodDevice>,
    sources: PodSources,
    timeout: Duration,
) -> io::Result<(Arc<PodDirectory>, LookupUpdate)> {
    let directory = Arc::new(PodDirectory::default());
    if devices.is_empty() {
        return Ok((directory, LookupUpdate::default()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut resolver = PodResolver::without_log(Arc::clone(&directory));
    let found = runtime.block_on(async move {
        let now = Instant::now();
        resolver.set_sources(sources.statuses());
        for device in devices {
            resolver.handle(LookupRequest::DeviceAppeared(device), now);
        }
        resolver.begin_round(now);
        let mut queries = sources.query_once(resolver.round());
        let deadline = now + timeout + GRACE;
        while let Ok(Some(finished)) = timeout_at(deadline, queries.join_next()).await {
            if let Ok(report) = finished {
                resolver.apply_report(report);
            }
        }
        resolver.stop_lookups();
        resolver.publish();
        resolver.take_update()
    });
    // A file read that hangs is left behind.
    runtime.shutdown_background();
    Ok((directory, found))
}
