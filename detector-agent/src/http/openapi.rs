//! `/api/v1/openapi.json`: the description of the API. A test validates real answers with it.

use hyper::StatusCode;

use super::{
    api,
    respond::{JSON, Reply, full},
};

/// The document. Its paths, parameters and fields are written by hand, like docs/events.md.
const DOCUMENT: &str = include_str!("openapi.json");

/// Serves it.
pub(super) fn document(query: Option<&str>) -> Reply {
    match api::no_parameters(query) {
        Ok(()) => full(StatusCode::OK, JSON, DOCUMENT),
        Err(reply) => *reply,
    }
}
