//! The endpoints: status page, metrics, health, the API and its stream of events. Read-only.
//!
//! Invariants: they run on a thread of their own, so neither a scrape nor a client makes detection, a delivery or a
//! signal wait; detection is asked one small question at a time and answers between two of its rounds; every client,
//! connection, header and queue is bounded, and a client that neither sends nor reads is cut off.

mod api;
mod ask;
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
    event_loop::{Inbox, Readiness},
    health::Health,
    metrics::Metrics,
    pods::PodDirectory,
};
use ask::Ask;
use tls::Tls;
use token::Token;

pub use feed::Feed;
pub use listen::Listen;
pub use tls::TlsError;
pub use token::TokenError;

/// Why the endpoints are not there.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Nothing can listen there.
    #[error(
        "cannot serve HTTP on {address}: {reason}; choose another address with --listen, or `--listen none`"
    )]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why, for a person.
        reason: String,
    },
    /// The token's file is of no use.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A certificate without a key, or the other way round.
    #[error("TLS takes both --tls-cert and --tls-key")]
    HalfTls,
    /// Certificate or key are of no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The system refused a thread or a poll descriptor.
    #[error("cannot serve HTTP: {0}")]
    Start(#[from] io::Error),
}

/// The settings of the endpoints.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where, if at all.
    pub listen: Listen,
    /// File with the token that clients have to bring.
    pub token_file: Option<PathBuf>,
    /// Certificate chain, PEM: TLS instead of plain text.
    pub tls_chain: Option<PathBuf>,
    /// The key to it, PEM.
    pub tls_key: Option<PathBuf>,
}

/// What the endpoints tell of.
#[derive(Clone, Debug)]
pub struct Sources {
    /// This node.
    pub node: String,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// Start-up.
    pub readiness: Arc<Readiness>,
    /// The parts.
    pub health: Arc<Health>,
    /// What is known of pods.
    pub pods: Arc<PodDirectory>,
    /// The way to the detection thread.
    pub inbox: Inbox,
    /// The events, which a sink of the reporter feeds.
    pub feed: Feed,
    /// A series for each claimed address in the metrics.
    pub export_claims: bool,
}

/// Endpoints that listen but do not answer yet: what is wrong with the settings shows before anything is attached.
#[derive(Debug)]
pub struct Endpoints {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Tls>,
    token: Option<Token>,
}

impl Endpoints {
    /// Opens them; `None` where they are switched off.
    ///
    /// # Errors
    /// As [`HttpError`] says.
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
                "{address} answers whoever reaches it; give --http-token-file, or listen on 127.0.0.1"
            );
        }
        Ok(Some(Self {
            listener,
            address,
            tls,
            token,
        }))
    }

    /// Where they listen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from a thread of its own until the [`Server`] is dropped.
    ///
    /// # Errors
    /// Where the system refuses the thread or its poll descriptor.
    pub fn serve(self, sources: Sources) -> Result<Server, HttpError> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let address = self.address;
        let app = Arc::new(App {
            ask: Ask::new(sources.inbox.clone()),
            only_local_names: address.ip().is_loopback(),
            token: self.token,
            sources,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (listener, tls) = (self.listener, self.tls);
        let thread = thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || {
                let served = runtime.block_on(async {
                    tokio::select! {
                        served = serve::serve(listener, tls, app) => served,
                        _ = stopped => Ok(()),
                    }
                });
                if let Err(e) = served {
                    error!("HTTP is no longer served: {e}; detection goes on, restart the agent to have it back");
                }
            })?;
        info!("serving {scheme}://{address}/");
        Ok(Server {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// Answering endpoints; they end when this is dropped, open streams included.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It reports its own end.
            let _ = thread.join();
        }
    }
}

/// What every request is answered from.
#[derive(Debug)]
struct App {
    sources: Sources,
    ask: Ask,
    token: Option<Token>,
    /// On loopback a foreign `Host` is a web page of somebody else's that had its name resolve to us.
    only_local_names: bool,
}
