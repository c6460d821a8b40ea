//! Logs go to stderr, through a queue: a stderr that nobody reads must not make detection wait.

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::cli::LogFormat;

/// Lines that wait for stderr, at most; what comes then is lost. The queue's room is taken at the start, 32 bytes a line.
const QUEUE: usize = 8_192;

/// Starts logging; what is queued is written when the guard is dropped.
#[must_use = "what is queued is lost without the guard"]
pub fn start(format: LogFormat) -> WorkerGuard {
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(QUEUE)
        .finish(std::io::stderr());
    let filter = EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::INFO.into())
        .from_env_lossy();
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
