//! `/api/v1/events`: server-sent events, one `data:` line for each event of the Contract.
//!
//! Besides them: `hello` first (did the stream resume after `Last-Event-ID`?), `beat` while nothing happens, so that a
//! client knows a dead connection from a quiet node, and `reset` where the client was too slow and missed some.

use std::{fmt::Write as _, time::Duration};

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode, header};
use serde_json::json;
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    time::{MissedTickBehavior, interval},
};

use super::{
    App,
    feed::{FeedEvent, Follower},
    respond::{Piece, Reply, error, head_only, pieces, with},
};

const EVENT_STREAM: &str = "text/event-stream";
/// Time between two signs of life.
const BEAT: Duration = Duration::from_secs(10);
/// What a browser waits before it tries again, in milliseconds.
const RETRY: u32 = 2000;

/// Starts a stream.
pub(super) fn events(app: &App, headers: &HeaderMap, head: bool) -> Reply {
    if head {
        return head_only(EVENT_STREAM);
    }
    let last_id = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let Some(follower) = app.sources.feed.follow(last_id) else {
        let reply = error(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many streams of events are open; try again later",
        );
        return with(reply, header::RETRY_AFTER, "10");
    };
    // Two pieces: what waits for a slow client is in the follower's queue, which is bounded.
    let (to, from) = mpsc::channel(2);
    let node = app.sources.node.clone();
    tokio::spawn(async move {
        // An error is the client's going.
        let _ = feed(follower, &node, to).await;
    });
    // Proxies that gather answers would hold the events back.
    with(
        pieces(EVENT_STREAM, from),
        header::HeaderName::from_static("x-accel-buffering"),
        "no",
    )
}

/// The client is gone.
struct Gone;

async fn feed(mut follower: Follower, node: &str, to: mpsc::Sender<Piece>) -> Result<(), Gone> {
    let hello = json!({ "node": node, "resumed": follower.resumed });
    let mut first = format!("retry: {RETRY}\nevent: hello\ndata: {hello}\n\n");
    for kept in follower.missed.drain(..) {
        append(&mut first, &kept);
    }
    send(&to, first).await?;
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat.tick().await;
    loop {
        let text = tokio::select! {
            received = follower.receiver.recv() => match received {
                Ok(kept) => {
                    let mut text = String::new();
                    append(&mut text, &kept);
                    // Those that wait already go out with it.
                    while let Ok(kept) = follower.receiver.try_recv() {
                        append(&mut text, &kept);
                        if text.len() > 64 << 10 {
                            break;
                        }
                    }
                    text
                }
                Err(RecvError::Lagged(missed)) => {
                    format!("event: reset\ndata: {}\n\n", json!({ "missed": missed }))
                }
                Err(RecvError::Closed) => return Ok(()),
            },
            _ = beat.tick() => "event: beat\ndata: {}\n\n".to_owned(),
            () = to.closed() => return Err(Gone),
        };
        send(&to, text).await?;
    }
}

fn append(text: &mut String, kept: &FeedEvent) {
    // Writing to a string does not fail. JSON has no line breaks, ids neither.
    let _ = write!(text, "id: {}\ndata: {}\n\n", kept.id(), kept.json());
}

async fn send(to: &mpsc::Sender<Piece>, text: String) -> Result<(), Gone> {
    to.send(Ok(Bytes::from(text))).await.map_err(|_| Gone)
}
