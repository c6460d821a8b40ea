//! A sink whose files (secrets, certificates, URLs) cannot be used is disabled until they can: detection and the other
//! sinks run, its events wait as if its receiver did not answer.

use std::{fmt::Display, sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use tracing::{error, info};

use crate::{health::Part, metrics::Metrics};

/// How often the files are tried again.
const RECHECK: Duration = Duration::from_secs(5);

/// Checks the files of one sink until they can be used.
#[derive(Debug)]
pub(super) struct FileCheck<F> {
    sink: String,
    check: F,
    is_usable: bool,
    health: Part,
    metrics: Arc<Metrics>,
}

impl<E: Display, F: FnMut() -> Result<(), E>> FileCheck<F> {
    /// Checks them for the first time; `check` names the file in its error, and no secret.
    pub(super) fn new(sink: &str, metrics: &Arc<Metrics>, health: Part, check: F) -> Self {
        let mut files = Self {
            sink: sink.to_owned(),
            check,
            is_usable: false,
            health,
            metrics: Arc::clone(metrics),
        };
        if let Err(reason) = files.check() {
            error!(
                sink = files.sink,
                reason,
                "sink disabled: a file that it needs cannot be used; its events wait until it can"
            );
        }
        files
    }

    fn check(&mut self) -> Result<(), String> {
        let result = (self.check)().map_err(|reason| reason.to_string());
        self.is_usable = result.is_ok();
        if let Err(reason) = &result {
            self.health.failed(format!("disabled: {reason}"));
            // Counted at each check, so that IPConflictSinkFailing fires without an event.
            self.metrics.count_deliveries(&self.sink, "unusable", 1);
        }
        result
    }

    /// Waits until they can be used; `false` if `stopped` comes first.
    pub(super) async fn wait(mut self, mut stopped: watch::Receiver<bool>) -> bool {
        if self.is_usable {
            return true;
        }
        loop {
            tokio::select! {
                () = sleep(RECHECK) => {}
                _ = stopped.changed() => return false,
            }
            if self.check().is_ok() {
                info!(sink = self.sink, "sink enabled: its files can be used now");
                return true;
            }
        }
    }
}
