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

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
mod tests {
    use detector_engine::diagnosis::Cause;
    use serde_json::{Value, json};

    use super::DOCUMENT;

    #[test]
    fn every_cause_of_a_diagnosis_is_described() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let properties = &document["components"]["schemas"]["Diagnosis"]["properties"];
        let causes = json!(Cause::ALL.map(Cause::name));
        assert_eq!(properties["cause"]["enum"], causes);
        assert_eq!(properties["ruled_out"]["items"]["enum"], causes);
        let page = include_str!("../../../docs/events.md");
        for cause in Cause::ALL {
            let row = format!("\n| `{}` | ", cause.name());
            assert!(page.contains(&row), "docs/events.md lacks {cause:?}");
        }
    }
}
