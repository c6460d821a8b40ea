//! Which endpoint answers what.

use std::sync::Arc;

use hyper::{Method, Request, StatusCode, body::Incoming, header};

use super::{
    App, api, guard, health, page,
    respond::{Reply, Served, error, with},
    stream,
};

/// The OpenMetrics text format, which Prometheus asks for by this name.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers a request.
pub(super) async fn answer(app: Arc<App>, request: Request<Incoming>) -> Served {
    if let Err(refusal) = guard::check(&app, &request) {
        return Ok(*refusal);
    }
    let path = request.uri().path();
    // These show nothing of the cluster; kubelets and browsers bring no token to them.
    let open = match path {
        "/healthz" => Some(health::alive(&app)),
        "/readyz" => Some(health::ready(
            &app,
            guard::is_admitted(&app, request.headers()),
        )),
        path => page::file(path),
    };
    if let Some(reply) = open {
        return Ok(reply);
    }
    if !guard::is_admitted(&app, request.headers()) {
        let reply = error(
            StatusCode::UNAUTHORIZED,
            "send the token of --http-token-file as `Authorization: Bearer …`",
        );
        return Ok(with(reply, header::WWW_AUTHENTICATE, "Bearer"));
    }
    let head = *request.method() == Method::HEAD;
    let query = request.uri().query();
    Ok(match path {
        "/metrics" => metrics(&app).await,
        "/api/v1/conflicts" => match api::no_parameters(query) {
            Ok(()) => api::conflicts(app, head).await,
            Err(reply) => *reply,
        },
        "/api/v1/anomalies" => match api::no_parameters(query) {
            Ok(()) => api::anomalies(app, head).await,
            Err(reply) => *reply,
        },
        "/api/v1/claims" => match api::claims_parameters(query) {
            Ok(address) => api::claims(app, address, head).await,
            Err(reply) => *reply,
        },
        "/api/v1/events" => match api::no_parameters(query) {
            Ok(()) => stream::events(&app, request.headers(), head),
            Err(reply) => *reply,
        },
        _ => error(
            StatusCode::NOT_FOUND,
            "nothing here; there are /, /metrics, /healthz, /readyz, /api/v1/conflicts, /api/v1/anomalies, /api/v1/claims and /api/v1/events",
        ),
    })
}

async fn metrics(app: &App) -> Reply {
    let claims = if app.sources.export_claims {
        match api::claim_series(app).await {
            Ok(claims) => Some(claims),
            Err(e) => return api::unanswered(e),
        }
    } else {
        None
    };
    match app.sources.metrics.encode(claims) {
        Ok(text) => super::respond::whole(StatusCode::OK, OPEN_METRICS, text),
        Err(_) => error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics cannot be written",
        ),
    }
}
