//! TLS for the endpoints. The files may be replaced while the agent runs, as certificates are renewed.

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

/// Interval at which the files are checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate file is unreadable or contains no certificate.
    #[error("cannot use the certificate {path}: {reason}; give a PEM chain with --tls-cert")]
    Certificate {
        /// The file.
        path: String,
        /// The cause.
        reason: String,
    },
    /// The key file is unreadable or contains no key.
    #[error("cannot use the private key {path}: {reason}; give a PEM key with --tls-key")]
    Key {
        /// The file.
        path: String,
        /// The cause.
        reason: String,
    },
    /// Certificate and key do not match, or are of an unsupported kind.
    #[error(
        "the certificate {chain} and the key {key} cannot be used together: {source}; use the key that the certificate was issued for"
    )]
    Pair {
        /// The certificate file.
        chain: String,
        /// The key file.
        key: String,
        /// The cause.
        source: rustls::Error,
    },
}

/// The current certificate and key.
#[derive(Debug)]
pub(super) struct Tls {
    chain: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads both files.
    pub(super) fn load(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        Ok(Self {
            config: RwLock::new(config(chain, key)?),
            chain: chain.to_owned(),
            key: key.to_owned(),
        })
    }

    /// An acceptor with the current certificate.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&config))
    }

    /// Reloads replaced files, for ever; unusable ones leave the previous certificate active.
    pub(super) async fn reload_on_change(&self) {
        let mut known = self.fingerprint();
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        loop {
            checks.tick().await;
            let fingerprint = self.fingerprint();
            if fingerprint == known {
                continue;
            }
            known = fingerprint;
            match config(&self.chain, &self.key) {
                Ok(config) => {
                    info!(path = %self.chain.display(), "TLS certificate reloaded");
                    *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                }
                Err(error) => {
                    warn!(%error, "TLS files unusable; the previous certificate remains active")
                }
            }
        }
    }

    fn fingerprint(&self) -> [Option<(SystemTime, u64)>; 2] {
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
        pem::Error::NoItemsFound => "it contains none".to_owned(),
        other => other.to_string(),
    }
}
