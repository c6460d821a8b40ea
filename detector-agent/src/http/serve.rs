//! Accepts connections up to a bound, each with its own timeouts.

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

/// Concurrent connections, event streams included; more wait in the listen backlog.
const MAX_CONNECTIONS: usize = 256;
/// Bytes of a request line with its headers; more is rejected with 414 or 431.
const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 64;
/// For the TLS handshake, and for a request's headers, counted from the end of the handshake or of the last response.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// A client that reads nothing for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves until dropped.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    tls: Option<Tls>,
    app: Arc<App>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let tls = tls.map(Arc::new);
    if let Some(tls) = tls.clone() {
        tokio::spawn(async move { tls.reload_on_change().await });
    }
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut accept_failing = false;
    loop {
        let permit = Arc::clone(&permits)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => {
                accept_failing = false;
                stream
            }
            // The client disconnected, or descriptors are exhausted: both pass.
            Err(error) => {
                if !std::mem::replace(&mut accept_failing, true) {
                    warn!(%error, "accepting HTTP connections failed; retrying");
                }
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (tls, app) = (tls.clone(), Arc::clone(&app));
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = serve_connection(stream, tls.as_deref(), app).await {
                debug!(%error, "connection closed");
            }
        });
    }
}

async fn serve_connection(stream: TcpStream, tls: Option<&Tls>, app: Arc<App>) -> io::Result<()> {
    // Events are small and must not wait for more data.
    stream.set_nodelay(true)?;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let stream = Box::pin(stream);
    match tls {
        None => serve_requests(stream, app).await,
        Some(tls) => {
            let stream = timeout(HEADER_TIMEOUT, tls.acceptor().accept(stream)).await??;
            serve_requests(stream, app).await
        }
    }
}

pub(super) async fn serve_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    app: Arc<App>,
) -> io::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| route::handle(Arc::clone(&app), request)),
        )
        .await
        .map_err(io::Error::other)
}
