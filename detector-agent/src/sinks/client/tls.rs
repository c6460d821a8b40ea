//! TLS of the client: trusted CAs and the client certificate.

use std::sync::{Arc, OnceLock};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use super::files::{Credentials, Pem};

/// The TLS configuration for these credentials. Errors are one sentence without any secret.
pub(super) fn config(credentials: &Credentials) -> Result<ClientConfig, String> {
    let roots = match &credentials.ca {
        Some(ca) => Arc::new(authorities(ca)?),
        // Reading the system's is slow, and plain HTTP needs none.
        None if credentials.url.scheme_str() == Some("https") => system()?,
        None => Arc::new(RootCertStore::empty()),
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("cannot set up TLS: {e}"))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &credentials.certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(certificate)?;
    let shown = key.path.display();
    // The parser's own message could contain a part of the key.
    let key = PrivateKeyDer::from_pem_slice(&key.content)
        .map_err(|_| format!("{shown} has no private key in PEM format"))?;
    builder.with_client_auth_cert(chain, key).map_err(|e| {
        format!(
            "{} and {shown} do not match: {e}",
            certificate.path.display()
        )
    })
}

fn authorities(ca: &Pem) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|e| {
            format!(
                "{} has a certificate that cannot be used: {e}",
                ca.path.display()
            )
        })?;
    }
    Ok(roots)
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = pem.path.display();
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem.content)
        .collect::<Result<_, _>>()
        .map_err(|_| format!("{shown} is not PEM"))?;
    if certificates.is_empty() {
        return Err(format!("{shown} has no certificate"));
    }
    Ok(certificates)
}

/// The system's CA certificates, read once.
fn system() -> Result<Arc<RootCertStore>, String> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = SYSTEM.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    });
    if roots.is_empty() {
        return Err(
            "this system has no CA certificates; install ca-certificates or set ca-file".to_owned(),
        );
    }
    Ok(Arc::clone(roots))
}
