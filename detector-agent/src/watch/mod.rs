//! `watch`: what a running agent sees, live, read from its endpoints.
//!
//! In a terminal a table, with the details of a conflict on Enter; elsewhere one line for each event. A lost agent is
//! shown as lost and looked for again; one that is not there at the start is an error.

mod client;
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

use serde::Deserialize;
use tokio::{sync::mpsc, time::sleep};

use crate::{
    cli::WatchArgs,
    event::{AnomalyEvent, ConflictData, Event},
};
use client::Client;
use stream::Message;

pub use client::ClientError;

/// The longest pause between two tries to reach a lost agent.
const RETRY_AT_MOST: Duration = Duration::from_secs(10);

/// Why nothing can be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The agent cannot be reached, or refuses.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The terminal or the output fails.
    #[error("cannot write to the terminal or the output: {0}")]
    Output(#[from] io::Error),
}

/// All there is, as the agent answers it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Present {
    pub(crate) node: String,
    #[serde(default)]
    pub(crate) ready: bool,
    pub(crate) conflicts: Vec<ConflictData>,
    #[serde(default)]
    pub(crate) resolved: Vec<ConflictData>,
}

/// What there is to show.
#[derive(Debug)]
enum News {
    /// All there is: at the start, and whenever some may have been missed.
    Present(Box<Present>),
    /// One thing happened.
    Event(Box<Event>),
    /// Something that is no conflict was raised or is over.
    Anomaly(Box<AnomalyEvent>),
    /// The agent is lost, and why.
    Lost(String),
}

/// Shows it until the person ends it, or nobody reads any more.
///
/// # Errors
/// As [`WatchError`] says.
pub fn run(args: &WatchArgs) -> Result<(), WatchError> {
    let client = Client::new(
        &args.url,
        args.token_file.as_deref(),
        args.ca_file.as_deref(),
    )?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // What is wrong with the address, the token or the certificate is said before the screen is taken.
        let first = client.present().await?;
        let (to, news) = mpsc::channel(64);
        tokio::spawn(follow(client, to));
        if !args.lines && io::stdout().is_terminal() && io::stdin().is_terminal() {
            screen::show(first, news).await?;
        } else {
            lines::show(first, news).await?;
        }
        Ok(())
    })
}

/// Follows the agent for ever, through its losses.
async fn follow(client: Client, to: mpsc::Sender<News>) {
    let mut last_id = None;
    let mut pause = Duration::from_secs(1);
    loop {
        let Err(error) = stream(&client, &mut last_id, &mut pause, &to).await else {
            return;
        };
        if to.send(News::Lost(error.to_string())).await.is_err() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY_AT_MOST);
    }
}

/// Follows one stream; `Ok` where nobody listens any more.
async fn stream(
    client: &Client,
    last_id: &mut Option<String>,
    pause: &mut Duration,
    to: &mpsc::Sender<News>,
) -> Result<(), ClientError> {
    let mut stream = client.events(last_id.as_deref()).await?;
    loop {
        let news = match stream.next().await? {
            // Asked for only now that the stream is open: nothing falls between the two.
            Message::Hello | Message::Reset => {
                *pause = Duration::from_secs(1);
                News::Present(Box::new(client.present().await?))
            }
            Message::Beat => continue,
            Message::Event { id, event } => {
                *last_id = Some(id);
                News::Event(event)
            }
            Message::Anomaly { id, event } => {
                *last_id = Some(id);
                News::Anomaly(event)
            }
        };
        if to.send(news).await.is_err() {
            return Ok(());
        }
    }
}
