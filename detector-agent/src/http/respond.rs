//! Answers: bodies, headers, and errors as one JSON object.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    body::{Body, Frame, SizeHint},
    header::{self, HeaderName, HeaderValue},
};
use serde::Serialize;
use tokio::sync::mpsc;

/// JSON.
pub(super) const JSON: &str = "application/json";

/// A stream ended before its end: the connection is cut, so that half an answer is not taken for a whole one.
#[derive(Debug, thiserror::Error)]
#[error("the answer could not be completed")]
pub(super) struct Cut;

/// A piece of a streamed answer.
pub(super) type Piece = Result<Bytes, Cut>;

/// A whole answer, or one that comes piece by piece.
#[derive(Debug)]
pub(super) enum Answer {
    Whole(Option<Bytes>),
    Pieces(mpsc::Receiver<Piece>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Pieces(pieces) => pieces
                .poll_recv(cx)
                .map(|piece| piece.map(|p| p.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

/// What a handler gives.
pub(super) type Reply = Response<Answer>;
/// What hyper takes.
pub(super) type Served = Result<Reply, Infallible>;

/// A whole answer.
pub(super) fn whole(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Reply {
    let body: Bytes = body.into();
    dressed(status, content_type, Answer::Whole(Some(body)))
}

/// An answer that comes piece by piece.
pub(super) fn pieces(content_type: &'static str, pieces: mpsc::Receiver<Piece>) -> Reply {
    dressed(StatusCode::OK, content_type, Answer::Pieces(pieces))
}

/// The head of an answer that would be streamed.
pub(super) fn head_only(content_type: &'static str) -> Reply {
    dressed(StatusCode::OK, content_type, Answer::Whole(None))
}

/// An object as JSON.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(body) => whole(status, JSON, body),
        Err(_) => whole(
            StatusCode::INTERNAL_SERVER_ERROR,
            JSON,
            &br#"{"error":"the answer cannot be written as JSON"}"#[..],
        ),
    }
}

/// An error, as one sentence.
pub(super) fn error(status: StatusCode, sentence: &str) -> Reply {
    json(status, &serde_json::json!({ "error": sentence }))
}

/// The same with one more header.
pub(super) fn with(mut reply: Reply, name: HeaderName, value: &'static str) -> Reply {
    reply
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
    reply
}

fn dressed(status: StatusCode, content_type: &'static str, body: Answer) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, content_type);
    // What is shown is of this moment, and of this cluster: nobody on the way keeps it.
    set(header::CACHE_CONTROL, "no-store");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    set(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    reply
}
