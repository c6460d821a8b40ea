//! Connections: accepted up to a bound, each with its own patience.

use std::{io, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_io_timeout::TimeoutStream;
use tracing::{debug, warn};

use super::{App, route, tls::Tls};

/// Connections at once, streams of events included; more wait in the kernel's queue.
const CONNECTIONS: usize = 256;
/// A request line with its headers; more is answered with 414 or 431.
const HEADER_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// For the TLS handshake, and for a request's headers from the connection's (or the last answer's) end on.
const HEADER_PATIENCE: Duration = Duration::from_secs(15);
/// A client that takes nothing for so long is gone.
const WRITE_PATIENCE: Duration = Duration::from_secs(20);

/// Serves until it is dropped.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    tls: Option<Tls>,
    app: Arc<App>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let tls = tls.map(Arc::new);
    if let Some(tls) = tls.clone() {
        tokio::spawn(async move { tls.follow_files().await });
    }
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut in_trouble = false;
    loop {
        let place = Arc::clone(&room)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => {
                in_trouble = false;
                stream
            }
            // The client is gone already, or descriptors are short: neither is a reason to end.
            Err(e) => {
                if !std::mem::replace(&mut in_trouble, true) {
                    warn!("HTTP connections cannot be accepted now: {e}; it is tried again");
                }
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (tls, app) = (tls.clone(), Arc::clone(&app));
        tokio::spawn(async move {
            let _place = place;
            if let Err(e) = connection(stream, tls.as_deref(), app).await {
                debug!("a connection ended: {e}");
            }
        });
    }
}

async fn connection(stream: TcpStream, tls: Option<&Tls>, app: Arc<App>) -> io::Result<()> {
    // Events are small and each is wanted at once.
    stream.set_nodelay(true)?;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_PATIENCE));
    let stream = Box::pin(stream);
    match tls {
        None => requests(stream, app).await,
        Some(tls) => {
            let stream = timeout(HEADER_PATIENCE, tls.acceptor().accept(stream)).await??;
            requests(stream, app).await
        }
    }
}

pub(super) async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    app: Arc<App>,
) -> io::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| route::answer(Arc::clone(&app), request)),
        )
        .await
        .map_err(io::Error::other)
}
