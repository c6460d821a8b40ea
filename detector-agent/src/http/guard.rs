//! What every request has to pass before it is looked at further.

use hyper::{
    HeaderMap, Method, Request, StatusCode, Version,
    body::{Body, Incoming},
    header,
};

use super::{
    App,
    respond::{Reply, error, with},
};

/// Turns a request away, or lets it through.
pub(super) fn check(app: &App, request: &Request<Incoming>) -> Result<(), Box<Reply>> {
    let refuse = |status, sentence: &str| Err(Box::new(error(status, sentence)));
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let reply = error(
            StatusCode::METHOD_NOT_ALLOWED,
            "this agent only answers: use GET or HEAD",
        );
        return Err(Box::new(with(reply, header::ALLOW, "GET, HEAD")));
    }
    if !request.body().is_end_stream() {
        let reply = error(
            StatusCode::PAYLOAD_TOO_LARGE,
            "no request to this agent has a body",
        );
        return Err(Box::new(with(reply, header::CONNECTION, "close")));
    }
    // RFC 9112 §3.2: exactly one Host in HTTP/1.1.
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts > 1 || (hosts == 0 && request.version() >= Version::HTTP_11) {
        return refuse(
            StatusCode::BAD_REQUEST,
            "a request needs exactly one Host header",
        );
    }
    if app.only_local_names && !names_this_machine(request.headers()) {
        return refuse(
            StatusCode::MISDIRECTED_REQUEST,
            "this agent listens on loopback and answers only to an address or `localhost` as Host",
        );
    }
    Ok(())
}

/// Without a Host header nothing was named.
fn names_this_machine(headers: &HeaderMap) -> bool {
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

/// Whether the request brings the token, where one is asked for.
pub(super) fn is_admitted(app: &App, headers: &HeaderMap) -> bool {
    let given = headers.get(header::AUTHORIZATION);
    app.token
        .as_ref()
        .is_none_or(|token| token.admits(given.map(header::HeaderValue::as_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_name_this_machine_and_nothing_else_does() {
        let named = |host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, header::HeaderValue::from_static(host));
            names_this_machine(&headers)
        };
        for host in [
            "127.0.0.1:9842",
            "127.0.0.1",
            "[::1]:9842",
            "[::1]",
            "localhost:9842",
            "LocalHost",
        ] {
            assert!(named(host), "{host}");
        }
        for host in [
            "evil.example:9842",
            "evil.example",
            "localhost.evil.example",
            "",
            ":9842",
        ] {
            assert!(!named(host), "{host}");
        }
        assert!(names_this_machine(&HeaderMap::new()));
    }
}
