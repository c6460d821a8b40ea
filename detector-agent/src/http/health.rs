//! `/healthz` and `/readyz`.

use detector_event::{PartReport, Role, State, counted, guidance::runbooks};
use hyper::{StatusCode, header};
use serde::Serialize;

use super::{
    App,
    respond::{Reply, json, with},
};
use crate::{pods::SourceState, process::clock};

#[derive(Serialize)]
struct Alive {
    alive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Liveness: the event loop is not stuck. If it is, a restart helps.
pub(super) fn alive(app: &App) -> Reply {
    match app.sources.health.stuck_for() {
        None => json(
            StatusCode::OK,
            &Alive {
                alive: true,
                reason: None,
            },
        ),
        Some(silent) => json(
            StatusCode::SERVICE_UNAVAILABLE,
            &Alive {
                alive: false,
                reason: Some(format!(
                    "the event loop has been stuck for {} s",
                    silent.as_secs()
                )),
            },
        ),
    }
}

#[derive(Serialize)]
struct Ready<'a> {
    ready: bool,
    #[serde(flatten)]
    details: Option<Details<'a>>,
}

#[derive(Serialize)]
struct Details<'a> {
    node: &'a str,
    version: &'static str,
    /// Where the runbooks are.
    runbooks: &'static str,
    devices: Option<usize>,
    parts: Vec<PartReport>,
}

/// The agent's parts, pod sources included.
fn parts(app: &App) -> Vec<PartReport> {
    let moment = clock::moment();
    let names = app.sources.pods.sources();
    let names = names.iter().map(|source| {
        let state = match source.state {
            SourceState::Working => State::Works,
            SourceState::Untried => State::Starting,
            // No node has every source; a missing one is not a failure.
            SourceState::Off | SourceState::Missing => State::Off,
            SourceState::Refused
            | SourceState::Foreign
            | SourceState::Silent
            | SourceState::Failing => State::Failed,
        };
        let mut detail = match source.state {
            SourceState::Off => "disabled".to_owned(),
            SourceState::Working => format!(
                "{} from {}",
                counted(source.pods, "pod", "pods"),
                source.target
            ),
            // The reason names the place.
            _ if !source.detail.is_empty() => String::new(),
            _ => source.target.clone(),
        };
        if !source.detail.is_empty() {
            let colon = if detail.is_empty() { "" } else { ": " };
            detail = format!("{detail}{colon}{}", source.detail);
        }
        PartReport {
            name: source.via.name().to_owned(),
            role: Role::Names,
            state,
            detail,
            since: moment.wall_at(source.since),
            runbook_url: None,
        }
        .with_runbook()
    });
    let mut parts = app.sources.health.report();
    parts.extend(names);
    parts
}

/// Readiness: programs attached and first snapshot merged. Details only for authorized clients.
pub(super) fn ready(app: &App, authorized: bool) -> Reply {
    let ready = app.sources.readiness.is_ready();
    let details = || Details {
        node: &app.sources.node,
        version: env!("CARGO_PKG_VERSION"),
        runbooks: runbooks(),
        devices: app.sources.health.devices(),
        parts: parts(app),
    };
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let reply = json(
        status,
        &Ready {
            ready,
            details: authorized.then(details),
        },
    );
    if ready {
        reply
    } else {
        with(reply, header::RETRY_AFTER, "1")
    }
}
