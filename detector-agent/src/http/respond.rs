//! Responses: bodies, headers, and errors as one JSON object.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use detector_event::answers::ErrorAnswer;
use hyper::{
    Response, StatusCode,
    body::{Body, Frame, SizeHint},
    header::{self, HeaderName, HeaderValue},
};
use serde::Serialize;
use tokio::sync::mpsc;

/// Content type of JSON responses.
pub(super) const JSON: &str = "application/json";

/// A streamed response failed midway. The connection is closed without a final chunk, so that clients notice.
#[derive(Debug, thiserror::Error)]
#[error("the response could not be completed")]
pub(super) struct Truncated;

/// A chunk of a streamed response.
pub(super) type Chunk = Result<Bytes, Truncated>;

/// A complete body, or one that is streamed.
#[derive(Debug)]
pub(super) enum ResponseBody {
    Full(Option<Bytes>),
    Stream(mpsc::Receiver<Chunk>),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Truncated;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Truncated>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Stream(chunks) => chunks
                .poll_recv(cx)
                .map(|chunk| chunk.map(|c| c.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// What a handler returns.
pub(super) type Reply = Response<ResponseBody>;
/// What hyper expects of a service.
pub(super) type ServiceResult = Result<Reply, Infallible>;

/// A complete response.
pub(super) fn full(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Reply {
    let body: Bytes = body.into();
    with_headers(status, content_type, ResponseBody::Full(Some(body)))
}

/// A streamed response.
pub(super) fn stream(content_type: &'static str, chunks: mpsc::Receiver<Chunk>) -> Reply {
    with_headers(StatusCode::OK, content_type, ResponseBody::Stream(chunks))
}

/// The response to HEAD for a streamed response.
pub(super) fn head_only(content_type: &'static str) -> Reply {
    with_headers(StatusCode::OK, content_type, ResponseBody::Full(None))
}

/// An object as JSON.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(body) => full(status, JSON, body),
        Err(_) => full(
            StatusCode::INTERNAL_SERVER_ERROR,
            JSON,
            &br#"{"error":"the response could not be serialised"}"#[..],
        ),
    }
}

/// An error as `{"error": "<one sentence>"}`.
pub(super) fn error(status: StatusCode, sentence: &str) -> Reply {
    let error = sentence.to_owned();
    json(status, &ErrorAnswer { error })
}

/// Adds a header to a response.
pub(super) fn with(mut reply: Reply, name: HeaderName, value: &'static str) -> Reply {
    reply
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
    reply
}

fn with_headers(status: StatusCode, content_type: &'static str, body: ResponseBody) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, content_type);
    // Responses show the current state of this cluster; proxies must not cache them.
    set(header::CACHE_CONTROL, "no-store");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    set(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    reply
}
