//! The endpoints: status page, metrics, health, the API and its event stream. Read-only.
//!
//! Invariants: they run on a thread of their own, so neither a scrape nor a client delays detection, a delivery or a
//! signal; clients on the node have a thread, engine queries and encoded metrics of their own, so requests of pods do not
//! delay its probes and scrapes; the engine receives one small query of each at a time and answers between two rounds of
//! the event loop; every client, connection, header and queue is bounded, and a client that neither sends nor reads is
//! disconnected.
//!
//! Commands on the node connect to a Unix socket that only root can reach. The ports are for everybody else: another
//! process may hold one, which costs its clients only.

mod accept;
mod api;
mod engine_client;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod guard;
mod health;
mod history;
mod list;
mod listed;
mod listen;
mod metrics;
mod openapi;
mod pace;
mod page;
mod paging;
mod parameters;
mod respond;
mod route;
mod serve;
mod slots;
mod stream;
mod tls;
mod token;

use std::{
    fs,
    future::pending,
    io,
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use detector_event::{Explanations, Role, answers::AnswerHead};
use futures_util::future::try_join_all;
use tokio::{runtime::Runtime, sync::oneshot, time::sleep};
use tracing::{error, info, warn};

use crate::{
    event_loop::{EventLoopHandle, Readiness},
    health::Health,
    metrics::Metrics,
    persist::history::History,
    pods::PodDirectory,
    process::{clock, descriptors, threads},
    sinks::EventFeed,
};
use engine_client::EngineClient;
use history::HistoryReader;
use metrics::MetricsText;
use pace::RequestPace;
use slots::Slots;
use tls::Tls;
use token::Token;

pub use listen::Listen;
pub use tls::TlsError;
pub use token::TokenError;

/// How often a port that another program holds is tried again.
const BIND_INTERVAL: Duration = Duration::from_secs(5);

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
    /// The socket for commands on the node cannot be bound.
    #[error(
        "cannot listen on {}: {source}; choose another directory with --run-dir", .path.display()
    )]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
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
    /// Where to serve everything to commands on the node, without a token; only this user can connect.
    pub socket: PathBuf,
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
    pub node: Arc<str>,
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
    /// Why conflicts and anomalies are there.
    pub explanations: Arc<Explanations>,
    /// Sends queries to the event loop.
    pub inbox: EventLoopHandle,
    /// Recent events, filled by a sink.
    pub feed: EventFeed,
    /// What ended, filled by a sink.
    pub history: Arc<History>,
    /// Export one metric series per claimed address.
    pub export_claims: bool,
}

impl Sources {
    /// What an answer begins with.
    fn head(&self) -> AnswerHead {
        AnswerHead {
            node: self.node.to_string(),
            at: clock::moment().wall(),
            ready: self.readiness.is_ready(),
        }
    }
}

/// What a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Everything,
    /// `/metrics`, `/healthz` and `/readyz`.
    Metrics,
}

/// An address to serve.
#[derive(Debug)]
struct Port {
    scope: Scope,
    /// None while another program holds it.
    listener: Option<TcpListener>,
    address: SocketAddr,
}

/// Endpoints that are bound but not serving yet, so that wrong settings are reported before anything is attached.
#[derive(Debug)]
pub struct Endpoints {
    socket: UnixListener,
    /// Its file, removed in the end.
    socket_path: PathBuf,
    ports: Vec<Port>,
    tls: Option<Tls>,
    token: Option<Arc<Token>>,
}

impl Endpoints {
    /// Binds the socket and the ports. A port that another program holds is no error: any process in the node's network can
    /// take one first, and detection does not depend on it.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub fn open(options: &Options) -> Result<Self, HttpError> {
        let tls = match (&options.tls_chain, &options.tls_key) {
            (None, None) => None,
            (Some(chain), Some(key)) => Some(Tls::load(chain, key)?),
            _ => return Err(HttpError::HalfTls),
        };
        let token = options.token_file.as_deref().map(Token::load).transpose()?;
        let token = token.map(Arc::new);
        let mut ports: Vec<Port> = Vec::new();
        for (scope, listen, flag) in [
            (Scope::Everything, options.listen, "--listen"),
            (Scope::Metrics, options.metrics_listen, "--metrics-listen"),
        ] {
            let Listen::At(address) = listen else {
                continue;
            };
            let other = ports.first().map(|first| first.address);
            let is_own = other.is_some_and(|other| other.port() == address.port());
            let listener = match listen::bind(address) {
                Ok(listener) => Some(listener),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && !is_own => None,
                Err(error) => {
                    return Err(HttpError::Bind {
                        address,
                        flag,
                        reason: listen::reason(&error, address, other),
                    });
                }
            };
            let address = match &listener {
                Some(listener) => listener.local_addr()?,
                None => address,
            };
            if scope == Scope::Everything && token.is_none() && !address.ip().is_loopback() {
                warn!(
                    %address,
                    "endpoints need no authentication; set --http-token-file, or listen on 127.0.0.1 and use --metrics-listen"
                );
            }
            ports.push(Port {
                scope,
                listener,
                address,
            });
        }
        let socket_path = options.socket.clone();
        let socket = listen::bind_socket(&socket_path).map_err(|source| HttpError::Socket {
            path: socket_path.clone(),
            source,
        })?;
        Ok(Self {
            socket,
            socket_path,
            ports,
            tls,
            token,
        })
    }

    /// The addresses: that of `--listen`, then that of `--metrics-listen`.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.ports.iter().map(|port| port.address)
    }

    /// Serves from threads of its own until the [`Server`] is dropped.
    ///
    /// # Errors
    /// The system refused a thread or an epoll descriptor.
    pub fn serve(self, sources: Sources) -> Result<Server, HttpError> {
        let tls = self.tls.map(Arc::new);
        let app = App {
            scope: Scope::Everything,
            engine: Arc::new(EngineClient::new(sources.inbox.clone())),
            history: Arc::new(HistoryReader::new(Arc::clone(&sources.history))),
            token: None,
            slots: Slots::new(descriptors::limit()),
            pace: Arc::default(),
            metrics_text: Arc::default(),
            local_hosts_only: false,
            sources,
        };
        let others = app.for_others();
        let remote = runtime()?;
        let served_ports: Vec<_> = self
            .ports
            .into_iter()
            .map(|port| {
                let at_port = |app: &App| {
                    Arc::new(App {
                        scope: port.scope,
                        token: self.token.clone(),
                        local_hosts_only: port.address.ip().is_loopback(),
                        ..app.clone()
                    })
                };
                let apps = serve::Apps {
                    node: at_port(&app),
                    others: at_port(&others),
                    runtime_of_others: remote.handle().clone(),
                };
                serve_port(port, tls.clone(), apps)
            })
            .collect();
        let local = runtime()?;
        let serving = async move {
            let reload = async {
                match &tls {
                    Some(tls) => tls.reload_on_change().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                served = serve::serve_socket(self.socket, Arc::new(app)) => served,
                served = try_join_all(served_ports), if !served_ports.is_empty() => served.map(drop),
                () = reload => Ok(()),
            }
        };
        Ok(Server {
            _local: ServingThread::spawn("http", local, serving)?,
            _remote: ServingThread::spawn("http-remote", remote, pending())?,
            socket_path: self.socket_path,
        })
    }
}

/// Serves a port, once it is free.
async fn serve_port(port: Port, tls: Option<Arc<Tls>>, apps: serve::Apps) -> io::Result<()> {
    let address = port.address;
    let listener = match port.listener {
        Some(listener) => listener,
        None => bind_when_free(address, &apps.node.sources.health).await,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let what = match port.scope {
        Scope::Everything => "",
        Scope::Metrics => "metrics",
    };
    info!("serving {scheme}://{address}/{what}");
    serve::serve(listener, tls, apps).await
}

/// Binds an address that another program holds, as soon as it is free. Meanwhile health shows that it is not served.
async fn bind_when_free(address: SocketAddr, health: &Health) -> TcpListener {
    let part = health.part(Role::Sink, format!("endpoint {address}"));
    let mut is_logged = false;
    loop {
        let error = match listen::bind(address) {
            Ok(listener) => {
                part.works("serving");
                return listener;
            }
            Err(error) => error,
        };
        let reason = listen::reason(&error, address, None);
        if !is_logged {
            is_logged = true;
            warn!(%address, reason, "endpoint not served; detection runs, and the address is tried again every five seconds");
        }
        part.failed(format!("not served: {reason}"));
        sleep(BIND_INTERVAL).await;
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
    socket_path: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The next agent replaces one that is left.
        let _ = fs::remove_file(&self.socket_path);
    }
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
            // A read of the history may wait for a disk that does not answer.
            runtime.shutdown_background();
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
    history: Arc<HistoryReader>,
    token: Option<Arc<Token>>,
    slots: Slots,
    pace: Arc<RequestPace>,
    metrics_text: Arc<MetricsText>,
    /// On loopback, a foreign `Host` means DNS rebinding by a web page.
    local_hosts_only: bool,
}

impl App {
    /// For what is tested without an agent. There is no event loop, so every query fails at once.
    #[cfg(any(test, feature = "fuzzing"))]
    fn without_agent() -> io::Result<Self> {
        let (inbox, _) = EventLoopHandle::new()?;
        Ok(Self {
            scope: Scope::Everything,
            engine: Arc::new(EngineClient::new(inbox.clone())),
            history: Arc::new(HistoryReader::new(Arc::default())),
            token: None,
            slots: Slots::new(1024),
            pace: Arc::default(),
            metrics_text: Arc::default(),
            local_hosts_only: false,
            sources: Sources {
                node: "test".into(),
                cluster: None,
                metrics: Arc::new(Metrics::new()),
                readiness: Arc::default(),
                health: Arc::default(),
                explanations: Arc::default(),
                pods: Arc::default(),
                inbox,
                feed: EventFeed::default(),
                history: Arc::default(),
                export_claims: false,
            },
        })
    }

    /// The same for clients that are not on the node: what they wait for, the node does not wait for.
    fn for_others(&self) -> Self {
        Self {
            engine: Arc::new(EngineClient::new(self.sources.inbox.clone())),
            history: Arc::new(HistoryReader::new(Arc::clone(&self.sources.history))),
            metrics_text: Arc::default(),
            ..self.clone()
        }
    }
}
