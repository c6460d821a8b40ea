//! The endpoints: status page, metrics, health, the API and its event stream. Read-only.
//!
//! Invariants: they run on a thread of their own, so neither a scrape nor a client delays detection, a delivery or a
//! signal; clients on the node have a thread of their own, so requests of pods do not delay its probes; the engine
//! receives one small query at a time and answers between two rounds of the event loop; every client, connection,
//! header and queue is bounded, and a client that neither sends nor reads is disconnected.

mod accept;
mod api;
mod engine_client;
mod feed;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod guard;
mod health;
mod list;
mod listen;
mod metrics;
mod openapi;
mod pace;
mod page;
mod parameters;
mod respond;
mod route;
mod serve;
mod slots;
mod stream;
mod tls;
mod token;

use std::{
    future::pending,
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    thread,
};

use futures_util::future::try_join_all;
use tokio::{runtime::Runtime, sync::oneshot};
use tracing::{error, info, warn};

use crate::{
    descriptors,
    event_loop::{EventLoopHandle, Readiness},
    health::Health,
    metrics::Metrics,
    pods::PodDirectory,
    threads,
};
use engine_client::EngineClient;
use metrics::MetricsText;
use pace::RequestPace;
use slots::Slots;
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
        "cannot serve HTTP on {address}: {reason}; choose another address with {flag}, or `{flag} none`"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The flag that set it.
        flag: &'static str,
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
    /// Where to serve everything, if at all.
    pub listen: Listen,
    /// Where to serve only `/metrics`, `/healthz` and `/readyz`, if at all.
    pub metrics_listen: Listen,
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
    /// The cluster's name, if it is configured.
    pub cluster: Option<String>,
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

/// What a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Everything,
    /// `/metrics`, `/healthz` and `/readyz`.
    Metrics,
}

/// A listener that is bound.
#[derive(Debug)]
struct Bound {
    scope: Scope,
    listener: TcpListener,
    address: SocketAddr,
}

/// Endpoints that are bound but not serving yet, so that wrong settings are reported before anything is attached.
#[derive(Debug)]
pub struct Endpoints {
    bound: Vec<Bound>,
    tls: Option<Tls>,
    token: Option<Token>,
}

impl Endpoints {
    /// Binds them; `None` if they are disabled.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub fn open(options: &Options) -> Result<Option<Self>, HttpError> {
        if (options.listen, options.metrics_listen) == (Listen::Off, Listen::Off) {
            return Ok(None);
        }
        let tls = match (&options.tls_chain, &options.tls_key) {
            (None, None) => None,
            (Some(chain), Some(key)) => Some(Tls::load(chain, key)?),
            _ => return Err(HttpError::HalfTls),
        };
        let token = options.token_file.as_deref().map(Token::load).transpose()?;
        let mut bound: Vec<Bound> = Vec::new();
        for (scope, listen, flag) in [
            (Scope::Everything, options.listen, "--listen"),
            (Scope::Metrics, options.metrics_listen, "--metrics-listen"),
        ] {
            let Listen::At(address) = listen else {
                continue;
            };
            let other = bound.first().map(|first| first.address);
            let listener = listen::bind(address, flag, other)?;
            let address = listener.local_addr()?;
            if scope == Scope::Everything && token.is_none() && !address.ip().is_loopback() {
                warn!(
                    %address,
                    "endpoints need no authentication; set --http-token-file, or listen on 127.0.0.1 and use --metrics-listen"
                );
            }
            bound.push(Bound {
                scope,
                listener,
                address,
            });
        }
        Ok(Some(Self { bound, tls, token }))
    }

    /// The bound addresses: that of `--listen`, then that of `--metrics-listen`.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.bound.iter().map(|bound| bound.address)
    }

    /// Serves from threads of its own until the [`Server`] is dropped.
    ///
    /// # Errors
    /// The system refused a thread or an epoll descriptor.
    pub fn serve(self, sources: Sources) -> Result<Server, HttpError> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let tls = self.tls.map(Arc::new);
        let shared = App {
            scope: Scope::Everything,
            engine: Arc::new(EngineClient::new(sources.inbox.clone())),
            token: self.token.map(Arc::new),
            slots: Slots::new(descriptors::limit()),
            pace: Arc::default(),
            metrics_text: Arc::default(),
            local_hosts_only: false,
            sources,
        };
        let remote = runtime()?;
        let remote_clients = remote.handle().clone();
        let mut listeners = Vec::new();
        for bound in self.bound {
            let app = App {
                scope: bound.scope,
                local_hosts_only: bound.address.ip().is_loopback(),
                ..shared.clone()
            };
            let what = match bound.scope {
                Scope::Everything => "",
                Scope::Metrics => "metrics",
            };
            info!("serving {scheme}://{}/{what}", bound.address);
            listeners.push((bound.listener, Arc::new(app)));
        }
        let local = runtime()?;
        let serving = async move {
            let served = listeners.into_iter().map(|(listener, app)| {
                serve::serve(listener, tls.clone(), app, remote_clients.clone())
            });
            let reload = async {
                match &tls {
                    Some(tls) => tls.reload_on_change().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                served = try_join_all(served) => served.map(drop),
                () = reload => Ok(()),
            }
        };
        Ok(Server {
            _local: ServingThread::spawn("http", local, serving)?,
            _remote: ServingThread::spawn("http-remote", remote, pending())?,
        })
    }
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Running endpoints. Dropping this stops them, open streams included.
#[derive(Debug)]
pub struct Server {
    /// Accepts, and serves clients on the node.
    _local: ServingThread,
    /// Serves all other clients, whose requests cannot delay those of the node.
    _remote: ServingThread,
}

/// A thread with a runtime. Dropping this ends both.
#[derive(Debug)]
struct ServingThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl ServingThread {
    fn spawn(
        name: &'static str,
        runtime: Runtime,
        serving: impl Future<Output = io::Result<()>> + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = threads::spawn(name, move || {
            let served = runtime.block_on(async {
                tokio::select! {
                    served = serving => served,
                    _ = stopped => Ok(()),
                }
            });
            if let Err(error) = served {
                error!(%error, "HTTP server failed; detection continues, restart the agent to restore the endpoints");
            }
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for ServingThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread logs its own failure.
            let _ = thread.join();
        }
    }
}

/// Shared state of all request handlers of a listener.
#[derive(Clone, Debug)]
struct App {
    scope: Scope,
    sources: Sources,
    engine: Arc<EngineClient>,
    token: Option<Arc<Token>>,
    slots: Slots,
    pace: Arc<RequestPace>,
    metrics_text: Arc<MetricsText>,
    /// On loopback, a foreign `Host` means DNS rebinding by a web page.
    local_hosts_only: bool,
}
