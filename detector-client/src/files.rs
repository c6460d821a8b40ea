//! The files that a client needs: certificates and the token.

use std::{path::Path, sync::Arc};

use hyper::header;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio_rustls::TlsConnector;

use super::ClientError;

/// Verifies an agent by these CA certificates.
pub(super) fn connector(ca: &Path) -> Result<TlsConnector, ClientError> {
    let file = |reason: String| ClientError::File {
        path: ca.display().to_string(),
        reason,
        flag: "--ca-file",
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(ca).map_err(|e| file(e.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|e| file(e.to_string()))?;
        roots.add(certificate).map_err(|e| file(e.to_string()))?;
    }
    if roots.is_empty() {
        return Err(file("it contains no certificate".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| file(e.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The header with the token in this file.
pub(super) fn token(path: &Path) -> Result<header::HeaderValue, ClientError> {
    let file = |reason: String| ClientError::File {
        path: path.display().to_string(),
        reason,
        flag: "--token-file",
    };
    let text = std::fs::read_to_string(path).map_err(|e| file(e.to_string()))?;
    let mut value = header::HeaderValue::from_str(&format!("Bearer {}", text.trim()))
        .map_err(|_| file("it contains no valid token".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}
