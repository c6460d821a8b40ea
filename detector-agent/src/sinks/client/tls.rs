//! TLS for the client: which authorities are trusted, and what it shows of itself.

use std::sync::{Arc, OnceLock};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use super::files::{Material, Pem};

/// A configuration with what the files hold. What is wrong is told in a sentence that holds no secret.
pub(super) fn config(material: &Material) -> Result<ClientConfig, String> {
    let roots = match &material.ca {
        Some(ca) => Arc::new(authorities(ca)?),
        // Reading the system's takes a while, and plain HTTP needs none.
        None if material.url.scheme_str() == Some("https") => system()?,
        None => Arc::new(RootCertStore::empty()),
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("TLS cannot be set up: {e}"))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &material.certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(certificate)?;
    let shown = key.path.display();
    // The parser's own message could hold a part of the key.
    let key = PrivateKeyDer::from_pem_slice(&key.content)
        .map_err(|_| format!("{shown} holds no private key in PEM"))?;
    builder.with_client_auth_cert(chain, key).map_err(|e| {
        format!(
            "{} and {shown} do not go together: {e}",
            certificate.path.display()
        )
    })
}

fn authorities(ca: &Pem) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|e| {
            format!(
                "{} holds a certificate that cannot be used: {e}",
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
        return Err(format!("{shown} holds no certificate"));
    }
    Ok(certificates)
}

/// The system's authorities, read once.
fn system() -> Result<Arc<RootCertStore>, String> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = SYSTEM.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    });
    if roots.is_empty() {
        return Err(
            "this system has no certificates to trust; install ca-certificates or give ca-file"
                .to_owned(),
        );
    }
    Ok(Arc::clone(roots))
}
