//! The status page: files embedded in the agent, no outside resource.

use hyper::{StatusCode, header};

use super::respond::{Reply, full, with};

/// Only our own files, and no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The files by their paths.
const FILES: [(&str, &str, &str); 11] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/page.css", CSS, include_str!("page/page.css")),
    ("/icon.svg", SVG, include_str!("page/icon.svg")),
    ("/page.js", JAVASCRIPT, include_str!("page/page.js")),
    (
        "/page/card_list.js",
        JAVASCRIPT,
        include_str!("page/card_list.js"),
    ),
    ("/page/cards.js", JAVASCRIPT, include_str!("page/cards.js")),
    (
        "/page/connection.js",
        JAVASCRIPT,
        include_str!("page/connection.js"),
    ),
    ("/page/dom.js", JAVASCRIPT, include_str!("page/dom.js")),
    (
        "/page/groups.js",
        JAVASCRIPT,
        include_str!("page/groups.js"),
    ),
    (
        "/page/health.js",
        JAVASCRIPT,
        include_str!("page/health.js"),
    ),
    ("/page/why.js", JAVASCRIPT, include_str!("page/why.js")),
];

/// The embedded file at this path, if there is one.
pub(super) fn file(path: &str) -> Option<Reply> {
    let mut files = FILES.into_iter();
    let (_, content_type, text) = files.find(|(known, ..)| *known == path)?;
    let reply = full(StatusCode::OK, content_type, text);
    let reply = with(reply, header::CONTENT_SECURITY_POLICY, POLICY);
    Some(with(reply, header::X_FRAME_OPTIONS, "DENY"))
}
