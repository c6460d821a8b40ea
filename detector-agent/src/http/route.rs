//! Routes a request to its endpoint.

use std::sync::Arc;

use hyper::{Method, Request, StatusCode, body::Incoming, header};

use super::{
    App, api, guard, health, page,
    respond::{Reply, ServiceResult, error, with},
    stream,
};

/// Content type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Handles one request.
pub(super) async fn handle(app: Arc<App>, request: Request<Incoming>) -> ServiceResult {
    if let Err(rejection) = guard::check(&app, &request) {
        return Ok(*rejection);
    }
    let path = request.uri().path();
    // These reveal nothing about the cluster, and kubelets and browsers send no token.
    let open = match path {
        "/healthz" => Some(health::alive(&app)),
        "/readyz" => Some(health::ready(
            &app,
            guard::is_authorized(&app, request.headers()),
        )),
        path => page::file(path),
    };
    if let Some(reply) = open {
        return Ok(reply);
    }
    if !guard::is_authorized(&app, request.headers()) {
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
            "not found; endpoints: /, /metrics, /healthz, /readyz, /api/v1/conflicts, /api/v1/anomalies, /api/v1/claims and /api/v1/events",
        ),
    })
}

async fn metrics(app: &App) -> Reply {
    let claims = if app.sources.export_claims {
        match api::claim_series(app).await {
            Ok(claims) => Some(claims),
            Err(e) => return api::unavailable(e),
        }
    } else {
        None
    };
    match app.sources.metrics.encode(claims) {
        Ok(text) => super::respond::full(StatusCode::OK, OPEN_METRICS, text),
        Err(_) => error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics could not be encoded",
        ),
    }
}
