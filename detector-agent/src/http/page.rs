//! The status page: files embedded in the agent, no outside resource.

use hyper::{StatusCode, header};

use super::respond::{Reply, full, with};

/// Only our own files, and no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The embedded file at this path, if there is one.
pub(super) fn file(path: &str) -> Option<Reply> {
    let (content_type, text) = match path {
        "/" => ("text/html; charset=utf-8", include_str!("page/index.html")),
        "/page.css" => ("text/css; charset=utf-8", include_str!("page/page.css")),
        "/page.js" => (
            "text/javascript; charset=utf-8",
            include_str!("page/page.js"),
        ),
        "/icon.svg" => ("image/svg+xml", include_str!("page/icon.svg")),
        _ => return None,
    };
    let reply = full(StatusCode::OK, content_type, text);
    let reply = with(reply, header::CONTENT_SECURITY_POLICY, POLICY);
    Some(with(reply, header::X_FRAME_OPTIONS, "DENY"))
}
