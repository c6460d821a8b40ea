//! Checks that every request must pass before it is routed.

use hyper::{
    HeaderMap, Method, Request, StatusCode, Version,
    body::{Body, Incoming},
    header,
};

use super::{
    App,
    respond::{Reply, error, with},
};

/// Rejects a request with the response to send, or accepts it.
pub(super) fn check(app: &App, request: &Request<Incoming>) -> Result<(), Box<Reply>> {
    let refuse = |status, sentence: &str| Err(Box::new(error(status, sentence)));
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let reply = error(
            StatusCode::METHOD_NOT_ALLOWED,
            "method not allowed; use GET or HEAD",
        );
        return Err(Box::new(with(reply, header::ALLOW, "GET, HEAD")));
    }
    if !request.body().is_end_stream() {
        let reply = error(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request bodies are not accepted",
        );
        return Err(Box::new(with(reply, header::CONNECTION, "close")));
    }
    // RFC 9112 §3.2: exactly one Host in HTTP/1.1.
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts > 1 || (hosts == 0 && request.version() >= Version::HTTP_11) {
        return refuse(
            StatusCode::BAD_REQUEST,
            "exactly one Host header is required",
        );
    }
    if app.local_hosts_only && !is_local_host(request.headers()) {
        return refuse(
            StatusCode::MISDIRECTED_REQUEST,
            "on loopback, Host must be an IP address or `localhost`",
        );
    }
    Ok(())
}

/// A request without a Host header (HTTP/1.0) counts as local.
fn is_local_host(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        return true;
    };
    let Ok(host) = host.to_str() else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<std::net::IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

/// Whether the request presents the token, if one is configured.
pub(super) fn is_authorized(app: &App, headers: &HeaderMap) -> bool {
    let authorization = headers.get(header::AUTHORIZATION);
    app.token
        .as_ref()
        .is_none_or(|token| token.matches(authorization.map(header::HeaderValue::as_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_local_hosts() {
        let is_local = |host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, header::HeaderValue::from_static(host));
            is_local_host(&headers)
        };
        for host in [
            "127.0.0.1:9842",
            "127.0.0.1",
            "[::1]:9842",
            "[::1]",
            "localhost:9842",
            "LocalHost",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "evil.example:9842",
            "evil.example",
            "localhost.evil.example",
            "",
            ":9842",
        ] {
            assert!(!is_local(host), "{host}");
        }
        assert!(is_local_host(&HeaderMap::new()));
    }
}
