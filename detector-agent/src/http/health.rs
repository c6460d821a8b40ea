//! `/healthz` and `/readyz`.

use hyper::{StatusCode, header};
use serde::Serialize;

use super::{
    App,
    respond::{Reply, json, with},
};
use crate::{
    clock::Moment,
    health::{PartReport, Role, State},
    pods::SourceState,
};

#[derive(Serialize)]
struct Alive {
    alive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The process works: detection gave a sign of life lately. Otherwise a restart helps.
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
                    "detection gave no sign of life for {} s",
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
    more: Option<Details<'a>>,
}

#[derive(Serialize)]
struct Details<'a> {
    node: &'a str,
    version: &'static str,
    parts: Vec<PartReport>,
}

/// The agent's parts, and what names pods.
fn parts(app: &App) -> Vec<PartReport> {
    let moment = Moment::now();
    let names = app.sources.pods.sources();
    let names = names.iter().map(|source| {
        let state = match source.state {
            SourceState::Working => State::Works,
            SourceState::Untried => State::Starting,
            // A node has the one or the other of them: what is not there is not broken.
            SourceState::Off | SourceState::Missing => State::Off,
            SourceState::Refused
            | SourceState::Foreign
            | SourceState::Silent
            | SourceState::Failing => State::Failed,
        };
        let mut detail = match source.state {
            SourceState::Off => "switched off".to_owned(),
            SourceState::Working => format!("{} pods from {}", source.pods, source.target),
            // The reason names where it looked.
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
        }
    });
    let mut parts = app.sources.health.report();
    parts.extend(names);
    parts
}

/// Programs attached and first snapshot done; which parts work only for those who may know.
pub(super) fn ready(app: &App, admitted: bool) -> Reply {
    let ready = app.sources.readiness.is_ready();
    let details = || Details {
        node: &app.sources.node,
        version: env!("CARGO_PKG_VERSION"),
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
            more: admitted.then(details),
        },
    );
    if ready {
        reply
    } else {
        with(reply, header::RETRY_AFTER, "1")
    }
}
