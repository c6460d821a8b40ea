//! `/metrics`: encoded once for all requests that arrived before the encoding began, so that its cost does not grow with
//! the number of clients.

use std::time::Instant;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::{sync::Mutex, task::yield_now};

use super::{
    App, api,
    engine_client::QueryError,
    respond::{Reply, error, full},
};

/// Content type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why there is no text.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// The claims are unknown.
    Claims(QueryError),
    /// The text could not be encoded.
    Encoding,
}

#[derive(Debug)]
struct Encoded {
    begun: Instant,
    text: Result<Bytes, Failure>,
}

/// The latest text.
#[derive(Debug, Default)]
pub(super) struct MetricsText {
    latest: Mutex<Option<Encoded>>,
}

/// The metrics as they are after the request arrived.
pub(super) async fn metrics(app: &App) -> Reply {
    match text(app).await {
        Ok(text) => full(StatusCode::OK, OPEN_METRICS, text),
        Err(Failure::Claims(cause)) => api::unavailable(cause),
        Err(Failure::Encoding) => error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics could not be encoded",
        ),
    }
}

async fn text(app: &App) -> Result<Bytes, Failure> {
    let arrived = Instant::now();
    // Lets every request arrive that the kernel has delivered already.
    yield_now().await;
    let mut latest = app.metrics_text.latest.lock().await;
    if let Some(encoded) = &*latest
        && encoded.begun >= arrived
    {
        return encoded.text.clone();
    }
    let begun = Instant::now();
    let text = encode(app).await;
    *latest = Some(Encoded {
        begun,
        text: text.clone(),
    });
    text
}

async fn encode(app: &App) -> Result<Bytes, Failure> {
    let claims = if app.sources.export_claims {
        Some(api::claim_series(app).await.map_err(Failure::Claims)?)
    } else {
        None
    };
    let text = app.sources.metrics.encode(claims);
    text.map(Bytes::from).map_err(|_| Failure::Encoding)
}
