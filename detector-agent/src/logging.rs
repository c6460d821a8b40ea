//! Logs go to stderr, through a queue: a stderr that nobody reads must not make detection wait.

use tracing::{Level, enabled};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    cli::LogFormat,
    observe::ebpf::{KERNEL_LOG_TARGET, KernelLog},
};

/// Lines that wait for stderr, at most; what comes then is lost. The queue's room is taken at the start, 32 bytes a line.
const QUEUE: usize = 8_192;

/// Starts logging; what is queued is written when the guard is dropped.
#[must_use = "what is queued is lost without the guard"]
pub fn start(format: LogFormat, kernel_log: bool) -> WorkerGuard {
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(QUEUE)
        .finish(std::io::stderr());
    let mut filter = EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::INFO.into())
        .from_env_lossy();
    if kernel_log
        && !names_kernel_log()
        && let Ok(directive) = format!("{KERNEL_LOG_TARGET}=debug").parse()
    {
        filter = filter.add_directive(directive);
    }
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => {
            let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr())
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

/// What the kernel log contains, by the level at which its target is enabled; off unless the flag or `RUST_LOG` asks for it.
/// Call it after [`start`].
#[must_use]
pub fn kernel_log(flag: bool) -> KernelLog {
    if !flag && !names_kernel_log() {
        KernelLog::Off
    } else if enabled!(target: KERNEL_LOG_TARGET, Level::DEBUG) {
        KernelLog::All
    } else if enabled!(target: KERNEL_LOG_TARGET, Level::INFO) {
        KernelLog::Losses
    } else {
        KernelLog::Off
    }
}

/// Whether `RUST_LOG` has a directive for the kernel log.
fn names_kernel_log() -> bool {
    std::env::var(EnvFilter::DEFAULT_ENV).is_ok_and(|directives| names_target(&directives))
}

fn names_target(directives: &str) -> bool {
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
    fn only_a_directive_for_the_target_names_the_kernel_log() {
        for directives in [
            "detector_ebpf",
            "warn,detector_ebpf=info",
            "x=1, detector_ebpf=debug",
        ] {
            assert!(names_target(directives), "{directives}");
        }
        for directives in [
            "",
            "debug",
            "detector_agent=debug",
            "detector_ebpf_other=debug",
        ] {
            assert!(!names_target(directives), "{directives}");
        }
    }
}
