//! Malformed and unusual requests.

use std::time::Duration;

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::{assert_alive, exchange, exchange_within, request, serve, status, status_of};

#[test]
fn malformed_requests_get_the_right_status() {
    let served = serve();
    let address = served.address;
    let get = |path: &str| request(&format!("GET {path}"), "");
    let long = "a".repeat(40_000);
    let many = "X-Same: y\r\n".repeat(200);
    let mut table: Vec<(String, Vec<u8>, &[u16])> = vec![
        ("unknown path".into(), get("/nothing"), &[404]),
        (
            "path above the root".into(),
            get("/../../etc/passwd"),
            &[404],
        ),
        (
            "encoded path above the root".into(),
            get("/%2e%2e/%2e%2e/etc/passwd"),
            &[404],
        ),
        (
            "invalid UTF-8 in the path".into(),
            get("/%ff%fe%00"),
            &[404],
        ),
        ("a longer path".into(), get("/metrics/"), &[404]),
        ("another case".into(), get("/Metrics"), &[404]),
        ("empty".into(), Vec::new(), &[0]),
        (
            "only line breaks".into(),
            b"\r\n\r\n\r\n".to_vec(),
            &[0, 400],
        ),
        ("no version".into(), b"GET /\r\n\r\n".to_vec(), &[400]),
        (
            "unknown version".into(),
            b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n".to_vec(),
            &[400, 505],
        ),
        (
            "HTTP/2 preface".into(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            &[0, 400, 505],
        ),
        (
            "TLS to a plain port".into(),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
            &[0, 400],
        ),
        (
            "a header without colon".into(),
            request("GET /", "nonsense\r\n"),
            &[400],
        ),
        (
            "a space before the colon".into(),
            request("GET /", "X : y\r\n"),
            &[400],
        ),
        (
            "a header of control bytes".into(),
            request("GET /", "X: \u{1}\u{2}\r\n"),
            &[400],
        ),
        (
            "a folded header".into(),
            request("GET /", "X: y\r\n z\r\n"),
            &[400],
        ),
        (
            "a bad content length".into(),
            request("GET /", "Content-Length: -1\r\n"),
            &[400],
        ),
        (
            "two content lengths".into(),
            request("GET /", "Content-Length: 1\r\nContent-Length: 2\r\n"),
            &[400],
        ),
        (
            "a body".into(),
            request("GET /", "Content-Length: 5\r\n\r\nhello"),
            &[413],
        ),
        (
            "a body that never comes".into(),
            request("GET /", "Content-Length: 99999999999\r\n"),
            &[413],
        ),
        (
            "a chunked body".into(),
            request("GET /", "Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
            &[400, 413],
        ),
        (
            "smuggling".into(),
            request(
                "GET /",
                "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            ),
            &[400, 413],
        ),
        (
            "a path that is too long".into(),
            get(&format!("/{long}")),
            &[414, 431],
        ),
        (
            "a path beyond every bound".into(),
            get(&format!("/{}", "b".repeat(200_000))),
            &[414, 431],
        ),
        (
            "a header that is too long".into(),
            request("GET /", &format!("X: {long}\r\n")),
            &[431],
        ),
        ("too many headers".into(), request("GET /", &many), &[431]),
        ("no host".into(), b"GET / HTTP/1.1\r\n\r\n".to_vec(), &[400]),
        (
            "two hosts".into(),
            request("GET /", "Host: localhost\r\n"),
            &[400],
        ),
        (
            "somebody else's host".into(),
            b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".to_vec(),
            &[421],
        ),
        (
            "HTTP/1.0 without a host".into(),
            b"GET /healthz HTTP/1.0\r\n\r\n".to_vec(),
            &[200],
        ),
        (
            "an unknown parameter".into(),
            get("/api/v1/claims?adress=10.0.0.1"),
            &[400],
        ),
        (
            "a parameter that is not an address".into(),
            get("/api/v1/claims?address=10.0.0.0/8"),
            &[400],
        ),
        (
            "a parameter given twice".into(),
            get("/api/v1/claims?address=::1&address=::1"),
            &[400],
        ),
        (
            "a parameter of invalid UTF-8".into(),
            get("/api/v1/claims?address=%ff%00%zz"),
            &[400],
        ),
        (
            "a parameter to an endpoint without any".into(),
            get("/api/v1/conflicts?all"),
            &[400],
        ),
        (
            "a parameter to the stream".into(),
            get("/api/v1/events?since=1"),
            &[400],
        ),
    ];
    for path in [
        "/",
        "/metrics",
        "/healthz",
        "/readyz",
        "/api/v1/conflicts",
        "/api/v1/claims",
        "/api/v1/events",
        "/nothing",
    ] {
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
            table.push((
                format!("{method} {path}"),
                request(&format!("{method} {path}"), ""),
                &[405],
            ));
        }
    }
    let wrong: Vec<_> = table
        .iter()
        .map(|(what, bytes, expected)| (what, status(address, bytes), expected))
        .filter(|(_, status, expected)| !expected.contains(status))
        .collect();
    assert!(wrong.is_empty(), "what, status, expected: {wrong:#?}");
    for (path, expected) in [
        ("/", 200),
        ("/page.css", 200),
        ("/page.js", 200),
        ("/page/dom.js", 200),
        ("/icon.svg", 200),
        ("/metrics", 200),
        ("/healthz", 200),
        // Without an event loop nothing is ready, and lists cannot be answered.
        ("/readyz", 503),
        ("/api/v1/conflicts", 503),
        ("/api/v1/claims", 503),
    ] {
        for method in ["GET", "HEAD"] {
            assert_eq!(
                status(address, &request(&format!("{method} {path}"), "")),
                expected,
                "{method} {path}"
            );
        }
    }
    assert_eq!(status(address, &request("HEAD /api/v1/events", "")), 200);
}

#[test]
fn metrics_listener_serves_three_paths() {
    let served = serve();
    let get = |path| {
        let request = request(&format!("GET {path}"), "");
        status(served.metrics_address, &request)
    };
    assert_eq!(get("/metrics"), 200);
    assert_eq!(get("/healthz"), 200);
    // Nothing is ready without an event loop.
    assert_eq!(get("/readyz"), 503);
    for path in [
        "/",
        "/page.js",
        "/icon.svg",
        "/api/v1/conflicts",
        "/api/v1/anomalies",
        "/api/v1/claims",
        "/api/v1/events",
        "/metrics/",
        "//metrics",
        "/nothing",
    ] {
        assert_eq!(get(path), 404, "{path}");
    }
}

#[test]
fn refused_method_lists_the_allowed_ones() {
    let served = serve();
    let answer = exchange(served.address, &request("DELETE /api/v1/conflicts", ""));
    let text = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(text.contains("\r\nallow: get, head\r\n"), "{text}");
}

#[test]
fn head_has_the_headers_of_get_without_a_body() {
    let served = serve();
    let get = exchange(served.address, &request("GET /page.js", ""));
    let head = exchange(served.address, &request("HEAD /page.js", ""));
    let headers = |answer: &[u8]| {
        let text = String::from_utf8_lossy(answer).into_owned();
        let (headers, body) = text.split_once("\r\n\r\n").unwrap();
        let headers: Vec<_> = headers
            .lines()
            .filter(|l| !l.starts_with("date"))
            .map(str::to_owned)
            .collect();
        (headers, body.len())
    };
    let (of_get, body) = headers(&get);
    assert!(body > 1000);
    assert_eq!(headers(&head), (of_get, 0));
}

#[test]
fn page_loads_nothing_from_other_origins() {
    let served = serve();
    let scripts = ["card_list", "cards", "connection", "dom", "health", "why"];
    let scripts = scripts.map(|name| format!("/page/{name}.js"));
    let pages = ["/", "/page.js", "/page.css"].map(str::to_owned);
    for path in pages.into_iter().chain(scripts) {
        let answer = exchange(served.address, &request(&format!("GET {path}"), ""));
        let text = String::from_utf8_lossy(&answer);
        let policy = text
            .lines()
            .find_map(|l| l.strip_prefix("content-security-policy: "))
            .unwrap();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        for foreign in [
            "http://",
            "https://",
            "innerHTML",
            "eval(",
            "onclick",
            " style=",
        ] {
            assert!(!body.contains(foreign), "{path} has {foreign}");
        }
    }
}

#[test]
fn random_bytes_never_stop_or_hang_the_server() {
    let served = serve();
    let address = served.address;
    let seed: u64 = std::env::var("IPCONFLICT_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| jiff::Timestamp::now().as_microsecond().unsigned_abs());
    println!("seed {seed}: set IPCONFLICT_TEST_SEED to it for the same requests");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: 300,
        failure_persistence: None,
        ..Config::default()
    };
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, random);
    let anything = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..600),
        // Near misses: a valid request with random bytes inserted at one place.
        (
            proptest::collection::vec(any::<u8>(), 0..80),
            0..4usize,
            prop_oneof![
                Just("/"),
                Just("/metrics"),
                Just("/readyz"),
                Just("/api/v1/claims?address="),
                Just("/api/v1/conflicts"),
                Just("/healthz"),
                Just("/page.js")
            ],
        )
            .prop_map(|(noise, place, path)| {
                let parts: [&[u8]; 4] = [
                    b"GET ",
                    path.as_bytes(),
                    b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: ",
                    b"\r\n\r\n",
                ];
                let mut bytes = Vec::new();
                for (number, part) in parts.iter().enumerate() {
                    bytes.extend_from_slice(part);
                    if number == place {
                        bytes.extend_from_slice(&noise);
                    }
                }
                bytes
            }),
    ];
    runner
        .run(&anything, |bytes| {
            // Most are incomplete requests, answered only once the sending side is shut down.
            let status = status_of(&exchange_within(address, &bytes, Duration::from_millis(20)));
            prop_assert!(
                [0, 200, 400, 404, 405, 413, 414, 421, 431, 503, 505].contains(&status),
                "{status}"
            );
            Ok(())
        })
        .unwrap();
    assert_alive(address);
}
