//! The endpoints: status page, metrics, health, the API and its event stream. Read-only.
//!
//! Invariants: they run on a thread of their own, so neither a scrape nor a client delays detection, a delivery or a
//! signal; the engine receives one small query at a time and answers between two rounds of the event loop; every
//! client, connection, header and queue is bounded, and a client that neither sends nor reads is disconnected.

mod api;
mod engine_client;
mod feed;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod guard;
mod health;
mod listen;
mod page;
mod respond;
mod route;
mod serve;
mod stream;
mod tls;
mod token;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    thread,
};

use tokio::sync::oneshot;
use tracing::{error, info, warn};

use crate::{
    event_loop::{EventLoopHandle, Readiness},
    health::Health,
    metrics::Metrics,
    pods::PodDirectory,
    threads,
};
use engine_client::EngineClient;
use tls::Tls;
use token::Token;

pub use feed::Feed;
pub use listen::Listen;
pub use tls::TlsError;
pub use token::TokenError;

/// Why the endpoints could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address cannot be bound.
    #[error(
        "cannot serve HTTP on {address}: {reason}; choose another address with --listen, or `--listen none`"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause, for people.
        reason: String,
    },
    /// The token file is unusable.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A certificate without a key, or a key without a certificate.
    #[error("TLS needs both --tls-cert and --tls-key")]
    HalfTls,
    /// The certificate or the key is unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The system refused a thread or an epoll descriptor.
    #[error("cannot serve HTTP: {0}")]
    Start(#[from] io::Error),
}

/// The settings of the endpoints.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen, if at all.
    pub listen: Listen,
    /// File with the bearer token that clients must present.
    pub token_file: Option<PathBuf>,
    /// Certificate chain in PEM; enables TLS.
    pub tls_chain: Option<PathBuf>,
    /// Its private key in PEM.
    pub tls_key: Option<PathBuf>,
}

/// The state that the endpoints serve.
#[derive(Clone, Debug)]
pub struct Sources {
    /// This node.
    pub node: String,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// Start-up.
    pub readiness: Arc<Readiness>,
    /// Health of each part.
    pub health: Arc<Health>,
    /// Which pod is behind each device.
    pub pods: Arc<PodDirectory>,
    /// Sends queries to the event loop.
    pub inbox: EventLoopHandle,
    /// Recent events, filled by a sink.
    pub feed: Feed,
    /// Export one metric series per claimed address.
    pub export_claims: bool,
}

/// Endpoints that are bound but not serving yet, so that wrong settings are reported before anything is attached.
#[derive(Debug)]
pub struct Endpoints {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Tls>,
    token: Option<Token>,
}

impl Endpoints {
    /// Binds them; `None` if they are disabled.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub fn open(options: &Options) -> Result<Option<Self>, HttpError> {
        let Listen::At(address) = options.listen else {
            return Ok(None);
        };
        let tls = match (&options.tls_chain, &options.tls_key) {
            (None, None) => None,
            (Some(chain), Some(key)) => Some(Tls::load(chain, key)?),
            _ => return Err(HttpError::HalfTls),
        };
        let token = options.token_file.as_deref().map(Token::load).transpose()?;
        let listener = listen::bind(address)?;
        let address = listener.local_addr()?;
        if token.is_none() && !address.ip().is_loopback() {
            warn!(
                %address,
                "endpoints need no authentication; set --http-token-file or listen on 127.0.0.1"
            );
        }
        Ok(Some(Self {
            listener,
            address,
            tls,
            token,
        }))
    }

    /// The bound address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves from a thread of its own until the [`Server`] is dropped.
    ///
    /// # Errors
    /// The system refused the thread or its epoll descriptor.
    pub fn serve(self, sources: Sources) -> Result<Server, HttpError> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let address = self.address;
        let app = Arc::new(App {
            engine: EngineClient::new(sources.inbox.clone()),
            local_hosts_only: address.ip().is_loopback(),
            token: self.token,
            sources,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (listener, tls) = (self.listener, self.tls);
        let thread = threads::spawn("http", move || {
            let served = runtime.block_on(async {
                tokio::select! {
                    served = serve::serve(listener, tls, app) => served,
                    _ = stopped => Ok(()),
                }
            });
            if let Err(error) = served {
                error!(%error, "HTTP server failed; detection continues, restart the agent to restore the endpoints");
            }
        })?;
        info!("serving {scheme}://{address}/");
        Ok(Server {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// Running endpoints. Dropping this stops them, open streams included.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread logs its own failure.
            let _ = thread.join();
        }
    }
}

/// Shared state of all request handlers.
#[derive(Debug)]
struct App {
    sources: Sources,
    engine: EngineClient,
    token: Option<Token>,
    /// On loopback, a foreign `Host` means DNS rebinding by a web page.
    local_hosts_only: bool,
}
