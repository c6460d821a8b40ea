//! Logging to stderr through a bounded queue, so that a blocked stderr does not delay detection.

use std::io;

use detector_event::clean_log_line;
use tracing::{Level, enabled};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    cli::LogFormat,
    observe::ebpf::{KERNEL_LOG_TARGET, KernelLog},
};

/// Maximum number of queued lines; further lines are dropped. The queue is allocated at the start, 32 bytes per line.
const MAX_QUEUED_LINES: usize = 8_192;

/// Starts logging. Dropping the guard writes the queued lines.
#[must_use = "queued lines are lost if the guard is dropped early"]
pub fn start(format: LogFormat, kernel_log: bool) -> WorkerGuard {
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(MAX_QUEUED_LINES)
        .finish(io::stderr());
    let mut filter = EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::INFO.into())
        .from_env_lossy();
    if kernel_log
        && !has_kernel_log_directive()
        && let Ok(directive) = format!("{KERNEL_LOG_TARGET}=debug").parse()
    {
        filter = filter.add_directive(directive);
    }
    let writer = move || CleanWriter(writer.clone());
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => {
            let ansi = io::IsTerminal::is_terminal(&io::stderr())
                && std::env::var_os("NO_COLOR").is_none();
            registry
                .with(
                    fmt::layer()
                        .with_writer(writer)
                        .with_target(false)
                        .with_ansi(ansi),
                )
                .init();
        }
        LogFormat::Json => {
            registry
                .with(
                    fmt::layer()
                        .json()
                        .flatten_event(true)
                        .with_writer(writer)
                        .with_target(false),
                )
                .init();
        }
    }
    guard
}

/// Replaces hidden characters of names in log lines.
struct CleanWriter<W>(W);

impl<W: io::Write> io::Write for CleanWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) => self.0.write_all(clean_log_line(text).as_bytes())?,
            Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The kernel log's verbosity: off unless the flag or a directive in `RUST_LOG` enables it, otherwise by the level of its
/// target. Call it after [`start`].
#[must_use]
pub fn kernel_log(flag: bool) -> KernelLog {
    if !flag && !has_kernel_log_directive() {
        KernelLog::Off
    } else if enabled!(target: KERNEL_LOG_TARGET, Level::DEBUG) {
        KernelLog::All
    } else if enabled!(target: KERNEL_LOG_TARGET, Level::INFO) {
        KernelLog::Losses
    } else {
        KernelLog::Off
    }
}

/// Whether `RUST_LOG` has a directive for the kernel log's target.
fn has_kernel_log_directive() -> bool {
    std::env::var(EnvFilter::DEFAULT_ENV).is_ok_and(|directives| has_target(&directives))
}

fn has_target(directives: &str) -> bool {
    directives.split(',').any(|directive| {
        directive
            .trim()
            .strip_prefix(KERNEL_LOG_TARGET)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directive_for_its_target_enables_the_kernel_log() {
        for directives in [
            "detector_ebpf",
            "warn,detector_ebpf=info",
            "x=1, detector_ebpf=debug",
        ] {
            assert!(has_target(directives), "{directives}");
        }
        for directives in [
            "",
            "debug",
            "detector_agent=debug",
            "detector_ebpf_other=debug",
        ] {
            assert!(!has_target(directives), "{directives}");
        }
    }
}
