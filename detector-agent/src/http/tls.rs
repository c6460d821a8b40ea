//! TLS for the endpoints, with files that may be replaced while the agent runs, as certificates are renewed.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject as _},
};
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

/// How often the files are looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate file cannot be read, or holds none.
    #[error("cannot use the certificate {path}: {reason}; give a PEM chain with --tls-cert")]
    Certificate {
        /// Which file.
        path: String,
        /// Why.
        reason: String,
    },
    /// The key file cannot be read, or holds none.
    #[error("cannot use the private key {path}: {reason}; give a PEM key with --tls-key")]
    Key {
        /// Which file.
        path: String,
        /// Why.
        reason: String,
    },
    /// They do not belong together, or are of a kind that is not supported.
    #[error(
        "the certificate {chain} and the key {key} cannot be used together: {source}; give the key that the certificate was made for"
    )]
    Pair {
        /// The certificate file.
        chain: String,
        /// The key file.
        key: String,
        /// Why.
        source: rustls::Error,
    },
}

/// The present certificate and key.
#[derive(Debug)]
pub(super) struct Tls {
    chain: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads them for the first time.
    pub(super) fn load(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        Ok(Self {
            config: RwLock::new(config(chain, key)?),
            chain: chain.to_owned(),
            key: key.to_owned(),
        })
    }

    /// For the next connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&config))
    }

    /// Takes over replaced files for ever; those that are of no use leave the old ones in force.
    pub(super) async fn follow_files(&self) {
        let mut known = self.stamp();
        let mut look = tokio::time::interval(LOOK_AGAIN);
        loop {
            look.tick().await;
            let stamp = self.stamp();
            if stamp == known {
                continue;
            }
            known = stamp;
            match config(&self.chain, &self.key) {
                Ok(config) => {
                    info!("took over a new certificate from {}", self.chain.display());
                    *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                }
                Err(e) => warn!("{e}; the certificate read before stays in force"),
            }
        }
    }

    fn stamp(&self) -> [Option<(SystemTime, u64)>; 2] {
        [&self.chain, &self.key].map(|path| {
            let data = std::fs::metadata(path).ok()?;
            Some((data.modified().ok()?, data.len()))
        })
    }
}

fn config(chain: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let shown = |path: &Path| path.display().to_string();
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .and_then(|found| match found.len() {
            0 => Err(pem::Error::NoItemsFound),
            _ => Ok(found),
        })
        .map_err(|e| TlsError::Certificate {
            path: shown(chain),
            reason: reason(&e),
        })?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| TlsError::Key {
        path: shown(key),
        reason: reason(&e),
    })?;
    let pair = |source| TlsError::Pair {
        chain: shown(chain),
        key: shown(key),
        source,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn reason(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(e) => e.to_string(),
        pem::Error::NoItemsFound => "there is none in it".to_owned(),
        other => other.to_string(),
    }
}
