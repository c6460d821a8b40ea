//! Requests of any content; see [`crate::fuzzing`].

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    runtime::Runtime,
    time::timeout,
};

use super::{App, serve, slots::ConnectionSource};

/// Bytes in flight in each direction.
const PIPE: usize = 1 << 20;
/// Responses come from memory, so this is generous.
const TIMEOUT: Duration = Duration::from_secs(5);

struct Site {
    runtime: Runtime,
    app: Arc<App>,
}

thread_local! {
    static SITE: Option<Site> = site().ok();
}

fn site() -> std::io::Result<Site> {
    Ok(Site {
        runtime: tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?,
        app: Arc::new(App {
            local_hosts_only: true,
            ..App::without_agent()?
        }),
    })
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Sends the bytes over one connection, closes it, and reads the responses.
pub fn requests(bytes: &[u8]) {
    let answered = SITE.with(|site| {
        let site = site.as_ref()?;
        let (mut client, server) = duplex(PIPE);
        let slot = site.app.slots.admit(ConnectionSource::Node)?;
        let talk = async {
            let app = Arc::clone(&site.app);
            let serving = tokio::spawn(serve::serve_requests(server, app, slot.handle()));
            // The server may close the connection early.
            let _ = client.write_all(bytes).await;
            let _ = client.shutdown().await;
            let mut answer = Vec::new();
            while let Ok(1..) = client.read_buf(&mut answer).await {
                // An event stream continues as long as its client reads.
                if contains(&answer, b"event: hello") {
                    serving.abort();
                    break;
                }
            }
            let _ = serving.await;
            answer
        };
        site.runtime
            .block_on(async { timeout(TIMEOUT, talk).await.ok() })
    });
    let answer = answered.unwrap_or_else(|| unreachable!("a connection did not end"));
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1."),
        "the response is not HTTP"
    );
}
