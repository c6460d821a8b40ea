//! Logs go to stderr, through a queue: a stderr that nobody reads must not make detection wait.

use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::cli::LogFormat;

/// Starts logging; what is queued is written when the guard is dropped.
#[must_use = "what is queued is lost without the guard"]
pub fn start(format: LogFormat) -> WorkerGuard {
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
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
