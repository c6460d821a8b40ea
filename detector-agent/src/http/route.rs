//! Routes a request to its endpoint.

use std::sync::Arc;

use hyper::{Method, Request, StatusCode, body::Incoming, header};

use super::{
    App, Scope, api, guard, health,
    metrics::metrics,
    page,
    respond::{ServiceResult, error, with},
    slots::Client,
    stream,
};

/// Handles one request.
pub(super) async fn handle(
    app: Arc<App>,
    client: Client,
    request: Request<Incoming>,
) -> ServiceResult {
    if let Err(rejection) = guard::check(&app, &request) {
        return Ok(*rejection);
    }
    let path = request.uri().path();
    if app.scope == Scope::Metrics && !["/metrics", "/healthz", "/readyz"].contains(&path) {
        return Ok(error(
            StatusCode::NOT_FOUND,
            "not found; endpoints here: /metrics, /healthz and /readyz; --listen serves all",
        ));
    }
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
        "/metrics" => metrics(&app, request.headers()).await,
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
            Ok(()) => stream::events(&app, client, request.headers(), head),
            Err(reply) => *reply,
        },
        _ => error(
            StatusCode::NOT_FOUND,
            "not found; endpoints: /, /metrics, /healthz, /readyz, /api/v1/conflicts, /api/v1/anomalies, /api/v1/claims and /api/v1/events",
        ),
    })
}
