//! Accepts connections, each with a slot and its own timeouts.
//!
//! Every connection is accepted at once, also one that is refused then: connections of pods never fill the listen
//! backlog, in which those of the node would wait behind them.

use std::{convert::Infallible, io, pin::Pin, sync::Arc, time::Duration};

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
    net::{TcpListener, TcpStream, UnixListener},
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
    slots::{ConnectionSource, Slot, SlotHandle},
    tls::Tls,
};
use crate::process::{clock, log_budget::LogBudget};

/// Bytes of a request line with its headers; more is rejected with 414 or 431.
const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 64;
/// For the TLS handshake, and for a request's headers, counted from the end of the handshake or of the last response.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that reads nothing for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// What is served on a port: to clients on the node, and to all others, on a runtime of their own.
#[derive(Debug)]
pub(super) struct Apps {
    pub(super) node: Arc<App>,
    pub(super) others: Arc<App>,
    pub(super) runtime_of_others: Handle,
}

/// Serves a port until dropped.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    tls: Option<Arc<Tls>>,
    apps: Apps,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut failures = AcceptFailures::new();
    loop {
        let (stream, client) = match accept(&listener).await {
            Ok(accepted) => accepted,
            Err(error) => {
                failures.recover(&apps.node, error).await;
                continue;
            }
        };
        // Without a slot the connection is closed.
        if let Some(slot) = apps.node.slots.admit(client) {
            let tls = tls.clone();
            match client {
                ConnectionSource::Node => {
                    let app = Arc::clone(&apps.node);
                    tokio::spawn(serve_slot(
                        serve_connection(stream, tls, app, slot.handle()),
                        slot,
                    ));
                }
                ConnectionSource::Other(_) => {
                    let app = Arc::clone(&apps.others);
                    let stream = stream.into_std();
                    apps.runtime_of_others.spawn(async move {
                        // Registers it with the other runtime.
                        if let Ok(stream) = stream.and_then(TcpStream::from_std) {
                            serve_slot(serve_connection(stream, tls, app, slot.handle()), slot)
                                .await;
                        }
                    });
                }
            }
        }
        // One that gave way is closed before the next one is accepted.
        yield_now().await;
    }
}

/// Serves the socket for commands on the node until dropped.
pub(super) async fn serve_socket(
    listener: std::os::unix::net::UnixListener,
    app: Arc<App>,
) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let mut failures = AcceptFailures::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Some(slot) = app.slots.admit(ConnectionSource::Node) {
                    let serving =
                        serve_requests(with_timeout(stream), Arc::clone(&app), slot.handle());
                    tokio::spawn(serve_slot(serving, slot));
                }
            }
            Err(error) => failures.recover(&app, error).await,
        }
        yield_now().await;
    }
}

/// Failures to accept a connection, logged at a bounded rate.
struct AcceptFailures(LogBudget);

impl AcceptFailures {
    fn new() -> Self {
        Self(LogBudget::new())
    }

    /// Makes room if descriptors are exhausted, else waits a moment.
    async fn recover(&mut self, app: &App, error: io::Error) {
        if self.0.take(clock::now()) {
            warn!(%error, "accepting HTTP connections failed; retrying");
        }
        if !(is_out_of_descriptors(&error) && app.slots.shed()) {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Serves a connection until it ends or has to give way.
async fn serve_slot(serving: impl Future<Output = io::Result<()>>, mut slot: Slot) {
    tokio::select! {
        () = slot.closed() => debug!("connection gave way to a new one"),
        served = serving => {
            if let Err(error) = served {
                debug!(%error, "connection closed");
            }
        }
    }
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, ConnectionSource)> {
    let (stream, peer) = listener.accept().await?;
    let client = ConnectionSource::new(peer, stream.local_addr()?);
    Ok((stream, client))
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE))
}

/// Serves a connection to a port, with TLS if it is configured.
async fn serve_connection(
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    app: Arc<App>,
    slot: SlotHandle,
) -> io::Result<()> {
    // Events are small and must not wait for more data.
    stream.set_nodelay(true)?;
    let stream = with_timeout(stream);
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

/// Disconnects a client that reads nothing for too long.
fn with_timeout<S: AsyncRead + AsyncWrite>(stream: S) -> Pin<Box<TimeoutStream<S>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    Box::pin(stream)
}

/// Waits until a client may be answered.
async fn pause(app: &App, client: ConnectionSource) {
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
    // A waiting connection may be replaced by another one. Even without a pause, one request of each connection in turn,
    // even if a client sends many at once.
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
