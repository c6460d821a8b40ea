//! `/api/v1/events`: server-sent events, one `data:` line per event (`docs/events.md`).
//!
//! Three control events as well: `hello` first (did the stream resume after `Last-Event-ID`?), `beat` while nothing
//! happens, so that a client can tell a dead connection from a quiet node, and `reset` if the client was too slow and
//! missed events.

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
    respond::{Chunk, Reply, error, head_only, stream, with},
    slots::ConnectionSource,
};
use crate::sinks::event_feed::{FeedEvent, Subscriber, Subscription};

const EVENT_STREAM: &str = "text/event-stream";
/// Interval between two `beat` events.
const BEAT: Duration = Duration::from_secs(10);
/// Reconnect delay of browsers, in milliseconds.
const RETRY: u32 = 2000;

/// Starts a stream.
pub(super) fn events(
    app: &App,
    client: ConnectionSource,
    headers: &HeaderMap,
    head: bool,
) -> Reply {
    if head {
        return head_only(EVENT_STREAM);
    }
    let last_id = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let subscriber = match client {
        ConnectionSource::Node => Subscriber::Node,
        ConnectionSource::Other(_) => Subscriber::Other,
    };
    let Some(subscription) = app.sources.feed.subscribe(subscriber, last_id) else {
        let reply = error(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many open event streams; try again later",
        );
        return with(reply, header::RETRY_AFTER, "10");
    };
    // Two chunks: the backlog of a slow client is in its own bounded queue.
    let (to, from) = mpsc::channel(2);
    let node = app.sources.node.clone();
    tokio::spawn(async move {
        // An error means that the client disconnected.
        let _ = feed(subscription, &node, to).await;
    });
    // Buffering proxies would delay the events.
    with(
        stream(EVENT_STREAM, from),
        header::HeaderName::from_static("x-accel-buffering"),
        "no",
    )
}

/// The client disconnected.
struct Disconnected;

async fn feed(
    mut subscription: Subscription,
    node: &str,
    to: mpsc::Sender<Chunk>,
) -> Result<(), Disconnected> {
    let hello = json!({ "node": node, "resumed": subscription.resumed });
    let mut first = format!("retry: {RETRY}\nevent: hello\ndata: {hello}\n\n");
    for kept in subscription.missed.drain(..) {
        append(&mut first, &kept);
    }
    send(&to, first).await?;
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat.tick().await;
    loop {
        let text = tokio::select! {
            received = subscription.receiver.recv() => match received {
                Ok(kept) => {
                    let mut text = String::new();
                    append(&mut text, &kept);
                    // Send what is queued already in one write.
                    while let Ok(kept) = subscription.receiver.try_recv() {
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
            () = to.closed() => return Err(Disconnected),
        };
        send(&to, text).await?;
    }
}

fn append(text: &mut String, kept: &FeedEvent) {
    // Writing to a String cannot fail. Neither JSON nor ids contain line breaks.
    let _ = write!(text, "id: {}\ndata: {}\n\n", kept.id(), kept.json());
}

async fn send(to: &mpsc::Sender<Chunk>, text: String) -> Result<(), Disconnected> {
    to.send(Ok(Bytes::from(text)))
        .await
        .map_err(|_| Disconnected)
}
