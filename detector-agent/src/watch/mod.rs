//! `watch`: shows the conflicts of a running agent live, read from its HTTP endpoints.
//!
//! In a terminal it draws a table, with the details of a conflict on Enter; otherwise it prints one line per event. A lost
//! connection is shown and retried; failing to connect at the start is an error.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod lines;
mod screen;
mod stream;
mod view_model;

use std::{
    io::{self, IsTerminal as _},
    time::Duration,
};

use detector_client::{Client, ClientError, Overview};
use detector_event::{AnomalyEvent, Event};
use tokio::{sync::mpsc, time::sleep};

use crate::{
    cli::WatchArgs,
    process::timer::{DoublingDelay, RetryPolicy},
};
use stream::{EventStream, Message};

/// Delays between attempts to reconnect.
const RECONNECT: RetryPolicy = RetryPolicy {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(10),
};

/// Why `watch` failed.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The agent cannot be queried.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The terminal or stdout cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// A change to show.
#[derive(Debug)]
enum Update {
    /// The complete state: at the start, and after a possible loss of events.
    Overview(Box<Overview>),
    /// A conflict was raised, updated or resolved.
    Conflict(Box<Event>),
    /// An anomaly was raised or resolved.
    Anomaly(Box<AnomalyEvent>),
    /// The connection was lost, with the reason.
    Disconnected(String),
}

/// Shows conflicts until the user quits or the output is closed.
///
/// # Errors
/// See [`WatchError`].
pub fn run(args: &WatchArgs) -> Result<(), WatchError> {
    let client = args.agent.client()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // An invalid URL, token or certificate is reported before the terminal is switched to full screen.
        let first = client.overview().await?;
        let (sender, updates) = mpsc::channel(64);
        tokio::spawn(follow(client, sender));
        if !args.lines && io::stdout().is_terminal() && io::stdin().is_terminal() {
            screen::show(first, updates).await?;
        } else {
            lines::show(first, updates).await?;
        }
        Ok(())
    })
}

/// Follows the event stream and reconnects when it is lost, until the receiver is dropped.
async fn follow(client: Client, updates: mpsc::Sender<Update>) {
    let mut last_id = None;
    let mut delay = DoublingDelay::new(RECONNECT);
    loop {
        let Err(error) = follow_stream(&client, &mut last_id, &mut delay, &updates).await else {
            return;
        };
        if updates
            .send(Update::Disconnected(error.to_string()))
            .await
            .is_err()
        {
            return;
        }
        sleep(delay.advance()).await;
    }
}

/// Follows one event stream; returns `Ok` once the receiver is dropped.
async fn follow_stream(
    client: &Client,
    last_id: &mut Option<String>,
    delay: &mut DoublingDelay,
    updates: &mpsc::Sender<Update>,
) -> Result<(), ClientError> {
    let body = client.events(last_id.as_deref()).await?;
    let mut stream = EventStream::new(client.url().to_owned(), body);
    loop {
        let update = match stream.next().await? {
            // Requested after the stream is open, so that no event is missed in between.
            Message::Hello | Message::Reset => {
                delay.reset();
                Update::Overview(Box::new(client.overview().await?))
            }
            Message::Heartbeat => continue,
            Message::Event { id, event } => {
                *last_id = Some(id);
                Update::Conflict(event)
            }
            Message::Anomaly { id, event } => {
                *last_id = Some(id);
                Update::Anomaly(event)
            }
        };
        if updates.send(update).await.is_err() {
            return Ok(());
        }
    }
}
