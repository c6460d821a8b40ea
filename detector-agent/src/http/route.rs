//! Routes a request to its endpoint.

use std::sync::Arc;

use hyper::{Method, Request, StatusCode, body::Incoming, header};

use super::{
    App, Scope, api, guard, health,
    metrics::metrics,
    openapi, page,
    respond::{ServiceResult, error, with},
    slots::ConnectionSource,
    stream,
};

/// Handles one request.
pub(super) async fn handle(
    app: Arc<App>,
    client: ConnectionSource,
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
        "/api/v1/conflicts" => api::conflicts(app, query, head).await,
        "/api/v1/anomalies" => api::anomalies(app, query, head).await,
        "/api/v1/claims" => api::claims(app, query, head).await,
        "/api/v1/history" => api::history(app, query, head).await,
        "/api/v1/events" => match api::no_parameters(query) {
            Ok(()) => stream::events(&app, client, request.headers(), head),
            Err(reply) => *reply,
        },
        "/api/v1/openapi.json" => openapi::document(query),
        path => match path
            .strip_prefix("/api/v1/")
            .and_then(|path| path.split_once('/'))
        {
            Some(("conflicts", id)) => api::conflict(&app, id, query).await,
            Some(("anomalies", id)) => api::anomaly(&app, id, query).await,
            _ => error(
                StatusCode::NOT_FOUND,
                "not found; endpoints: /, /metrics, /healthz, /readyz, /api/v1/conflicts, /api/v1/anomalies, /api/v1/claims, /api/v1/history, /api/v1/events and /api/v1/openapi.json",
            ),
        },
    })
}
