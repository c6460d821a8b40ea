//! Which of two text formats a client prefers (RFC 9110 section 12.5.1).

use hyper::{HeaderMap, header};

/// Whether `Accept` prefers the Prometheus text format to OpenMetrics, which is the default. A media type that the header
/// names counts more than a wildcard of the same weight.
pub(super) fn prefers_prometheus_text(headers: &HeaderMap) -> bool {
    let preference = |kind, subtype| preference(headers, kind, subtype);
    let text = preference("text", "plain");
    text.is_some_and(|text| text.0 > 0) && text > preference("application", "openmetrics-text")
}

/// Weight (in thousandths) of a media type, and how precisely the header names it.
fn preference(headers: &HeaderMap, kind: &str, subtype: &str) -> Option<(u16, u8)> {
    let values = headers.get_all(header::ACCEPT).iter();
    let ranges = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    ranges
        .filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next()?.to_ascii_lowercase();
            let precision = match media.split_once('/')? {
                (k, s) if (k, s) == (kind, subtype) => 2,
                (k, "*") if k == kind => 1,
                ("*", "*") => 0,
                _ => return None,
            };
            let weight = parts.find_map(|parameter| parameter.strip_prefix("q="));
            Some((precision, weight.map_or(1000, thousandths)))
        })
        // The most precise range decides; of several versions the one with the highest weight.
        .max()
        .map(|(precision, weight)| (weight, precision))
}

/// A weight between 0 and 1; an invalid one is 0.
fn thousandths(weight: &str) -> u16 {
    let weight: f32 = weight.parse().unwrap_or_default();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between 0 and 1000
    let thousandths = (weight.clamp(0.0, 1.0) * 1000.0) as u16;
    thousandths
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn format_follows_the_weights_of_accept() {
        for (accept, is_text) in [
            ("", false),
            ("*/*", false),
            ("text/plain", true),
            ("text/plain; version=0.0.4", true),
            ("Text/*", true),
            ("text/plain;q=0", false),
            ("text/plain, */*", true),
            ("text/plain;q=0.5, */*", false),
            ("application/openmetrics-text, text/plain", false),
            (
                "application/openmetrics-text;q=0.3, text/plain;q=0.31",
                true,
            ),
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                false,
            ),
            // Prometheus 2.42 and 3.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                false,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                false,
            ),
            ("text/plain;q=nan, ;;,/,", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(prefers_prometheus_text(&headers), is_text, "{accept}");
        }
        assert!(!prefers_prometheus_text(&HeaderMap::new()));
    }
}
