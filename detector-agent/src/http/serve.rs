//! Accepts connections, each with a slot and its own timeouts.
//!
//! Every connection is accepted at once, also one that is refused then: connections of pods never fill the listen
//! backlog, in which those of the node would wait behind them.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    Request, Response,
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::errno::Errno;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    task::yield_now,
    time::{sleep, timeout},
};
use tokio_io_timeout::TimeoutStream;
use tracing::{debug, warn};

use super::{
    App,
    respond::Truncated,
    route,
    slots::{Client, Slot, SlotHandle},
    tls::Tls,
};
use crate::{clock, log_budget::LogBudget};

/// Bytes of a request line with its headers; more is rejected with 414 or 431.
const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 64;
/// For the TLS handshake, and for a request's headers, counted from the end of the handshake or of the last response.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that reads nothing for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves until dropped; clients that are not on the node are served by `remote`.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    tls: Option<Arc<Tls>>,
    app: Arc<App>,
    remote: Handle,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut log_budget = LogBudget::new();
    loop {
        let (stream, client) = match accept(&listener).await {
            Ok(accepted) => accepted,
            Err(error) => {
                if log_budget.take(clock::now()) {
                    warn!(%error, "accepting HTTP connections failed; retrying");
                }
                if !(is_out_of_descriptors(&error) && app.slots.shed()) {
                    sleep(Duration::from_millis(100)).await;
                }
                continue;
            }
        };
        // Without a slot the connection is closed.
        if let Some(slot) = app.slots.admit(client) {
            let (tls, app) = (tls.clone(), Arc::clone(&app));
            match client {
                Client::Node => {
                    tokio::spawn(serve_slot(stream, tls, app, slot));
                }
                Client::Other(_) => {
                    let stream = stream.into_std();
                    remote.spawn(async move {
                        // Registers it with the other runtime.
                        if let Ok(stream) = stream.and_then(TcpStream::from_std) {
                            serve_slot(stream, tls, app, slot).await;
                        }
                    });
                }
            }
        }
        // One that gave way is closed before the next one is accepted.
        yield_now().await;
    }
}

/// Serves a connection until it ends or has to give way.
async fn serve_slot(stream: TcpStream, tls: Option<Arc<Tls>>, app: Arc<App>, mut slot: Slot) {
    let handle = slot.handle();
    tokio::select! {
        () = slot.closed() => debug!("connection gave way to a new one"),
        served = serve_connection(stream, tls.as_deref(), app, handle) => {
            if let Err(error) = served {
                debug!(%error, "connection closed");
            }
        }
    }
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, Client)> {
    let (stream, peer) = listener.accept().await?;
    let client = Client::new(peer, stream.local_addr()?);
    Ok((stream, client))
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE))
}

async fn serve_connection(
    stream: TcpStream,
    tls: Option<&Tls>,
    app: Arc<App>,
    slot: SlotHandle,
) -> io::Result<()> {
    // Events are small and must not wait for more data.
    stream.set_nodelay(true)?;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let stream = Box::pin(stream);
    match tls {
        None => serve_requests(stream, app, slot).await,
        Some(tls) => {
            // A handshake costs more than most requests.
            pause(&app, slot.client()).await;
            let stream = timeout(HEADER_TIMEOUT, tls.acceptor().accept(stream)).await??;
            serve_requests(stream, app, slot).await
        }
    }
}

/// Waits until a client may be answered.
async fn pause(app: &App, client: Client) {
    let pause = app.pace.take(client, clock::now());
    if !pause.is_zero() {
        sleep(pause).await;
    }
}

pub(super) async fn serve_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    app: Arc<App>,
    slot: SlotHandle,
) -> io::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| answer(Arc::clone(&app), slot.clone(), request)),
        )
        .await
        .map_err(io::Error::other)
}

async fn answer(
    app: Arc<App>,
    slot: SlotHandle,
    request: Request<Incoming>,
) -> Result<Response<impl Body<Data = Bytes, Error = Truncated>>, Infallible> {
    // A connection that waits may give way to another one. Without a pause, too, one request of each connection in turn,
    // also if a client sends many at once.
    pause(&app, slot.client()).await;
    yield_now().await;
    let answering = slot.answer();
    let reply = route::handle(app, slot.client(), request).await?;
    let bytes = reply.body().size_hint().exact().unwrap_or_default();
    answering.holds(usize::try_from(bytes).unwrap_or(usize::MAX));
    // The body owns `answering`, and is dropped once it is sent.
    Ok(reply.map(|body| {
        body.map_err(move |error| {
            let _answering = &answering;
            error
        })
    }))
}
