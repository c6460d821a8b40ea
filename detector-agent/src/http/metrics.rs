//! `/metrics`, as OpenMetrics or, if the client prefers it, as Prometheus text: encoded once for all requests that
//! arrived before the encoding began, so that its cost does not grow with the number of clients.

use std::time::Instant;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode, header};
use tokio::{sync::Mutex, task::yield_now};

use super::{
    App, accept, api,
    engine_client::QueryError,
    respond::{Reply, error, full, with},
};
use crate::metrics::to_prometheus_text;

/// Content type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of the Prometheus text format.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

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
    open_metrics: Result<Bytes, Failure>,
    /// Once a client asked for it.
    prometheus: Option<Bytes>,
}

impl Encoded {
    fn text(&mut self, as_prometheus: bool) -> Result<Bytes, Failure> {
        let open_metrics = self.open_metrics.as_ref().map_err(|failure| *failure)?;
        if !as_prometheus {
            return Ok(open_metrics.clone());
        }
        let text = self.prometheus.get_or_insert_with(|| {
            let open_metrics = String::from_utf8_lossy(open_metrics);
            to_prometheus_text(&open_metrics).into()
        });
        Ok(text.clone())
    }
}

/// The latest text.
#[derive(Debug, Default)]
pub(super) struct MetricsText {
    latest: Mutex<Option<Encoded>>,
}

/// The metrics as they are after the request arrived.
pub(super) async fn metrics(app: &App, headers: &HeaderMap) -> Reply {
    let as_prometheus = accept::prefers_prometheus_text(headers);
    let content_type = if as_prometheus {
        PROMETHEUS_TEXT
    } else {
        OPEN_METRICS
    };
    match text(app, as_prometheus).await {
        Ok(text) => with(
            full(StatusCode::OK, content_type, text),
            header::VARY,
            "Accept",
        ),
        Err(Failure::Claims(cause)) => api::unavailable(cause),
        Err(Failure::Encoding) => error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics could not be encoded",
        ),
    }
}

async fn text(app: &App, as_prometheus: bool) -> Result<Bytes, Failure> {
    let arrived = Instant::now();
    // Lets every request arrive that the kernel has delivered already.
    yield_now().await;
    let mut latest = app.metrics_text.latest.lock().await;
    if let Some(encoded) = &mut *latest
        && encoded.begun >= arrived
    {
        return encoded.text(as_prometheus);
    }
    let begun = Instant::now();
    let encoded = latest.insert(Encoded {
        begun,
        open_metrics: encode(app).await,
        prometheus: None,
    });
    encoded.text(as_prometheus)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[tokio::test]
    async fn scrape_of_a_pod_delays_none_of_the_node() {
        let node = App::without_agent().unwrap();
        let others = node.for_others();
        // As while the text for a pod is being made.
        let _encoding = others.metrics_text.latest.lock().await;
        let text = text(&node, false).await.unwrap();
        assert!(text.ends_with(b"# EOF\n"));
    }
}
