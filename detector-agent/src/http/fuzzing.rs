//! Requests of any content; see [`crate::fuzzing`].

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    runtime::Runtime,
    time::timeout,
};

use super::{App, Feed, Sources, ask::Ask, serve};
use crate::{
    event_loop::{Inbox, Readiness},
    health::Health,
    metrics::Metrics,
    pods::PodDirectory,
};

/// The most that is written or answered while the other side does not read.
const PIPE: usize = 1 << 20;
/// Answers come from memory.
const PATIENCE: Duration = Duration::from_secs(5);

struct Site {
    runtime: Runtime,
    app: Arc<App>,
}

thread_local! {
    static SITE: Option<Site> = site().ok();
}

fn site() -> std::io::Result<Site> {
    // Nobody reads it: detection has ended, and says so to each question at once.
    let (inbox, _) = Inbox::new()?;
    let sources = Sources {
        node: "fuzz".to_owned(),
        metrics: Arc::new(Metrics::new()),
        readiness: Arc::new(Readiness::default()),
        health: Arc::new(Health::default()),
        pods: Arc::new(PodDirectory::default()),
        inbox: inbox.clone(),
        feed: Feed::default(),
        export_claims: false,
    };
    Ok(Site {
        runtime: tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?,
        app: Arc::new(App {
            ask: Ask::new(inbox),
            only_local_names: true,
            token: None,
            sources,
        }),
    })
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Sends the bytes over one connection, ends it, and reads what comes back.
pub fn requests(bytes: &[u8]) {
    let answered = SITE.with(|site| {
        let site = site.as_ref()?;
        let (mut client, server) = duplex(PIPE);
        let talk = async {
            let serving = tokio::spawn(serve::requests(server, Arc::clone(&site.app)));
            // The server may hang up before it has taken everything.
            let _ = client.write_all(bytes).await;
            let _ = client.shutdown().await;
            let mut answer = Vec::new();
            while let Ok(1..) = client.read_buf(&mut answer).await {
                // A stream of events goes on while its client reads, also where that one has nothing more to ask.
                if contains(&answer, b"event: hello") {
                    serving.abort();
                    break;
                }
            }
            let _ = serving.await;
            answer
        };
        site.runtime
            .block_on(async { timeout(PATIENCE, talk).await.ok() })
    });
    let answer = answered.unwrap_or_else(|| unreachable!("a connection did not end"));
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1."),
        "something else than HTTP was answered"
    );
}
