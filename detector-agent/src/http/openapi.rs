//! `/api/v1/openapi.json`: the description of the API. A test validates real answers with it.

#[cfg(test)]
mod document;

use hyper::StatusCode;

use super::{
    api,
    respond::{JSON, Reply, full},
};

/// The document, which a test generates from the types of events and answers.
const DOCUMENT: &str = include_str!("../../../docs/openapi.json");

/// Serves it.
pub(super) fn document(query: Option<&str>) -> Reply {
    match api::no_parameters(query) {
        Ok(()) => full(StatusCode::OK, JSON, DOCUMENT),
        Err(reply) => *reply,
    }
}
