//! A certificate for `localhost`, and a client that trusts it alone.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
};

use anyhow::Result;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use crate::Netns;

/// Writes a self-signed certificate for `localhost` and its key to a folder; the paths of both, in PEM.
///
/// # Errors
/// The files cannot be written.
pub fn self_signed(folder: &Path) -> Result<(String, String)> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
    fs::write(&chain, made.cert.pem())?;
    fs::write(&key, made.signing_key.serialize_pem())?;
    Ok((chain.display().to_string(), key.display().to_string()))
}

/// Requests `/healthz` from a namespace; the whole answer, status line and headers included.
///
/// # Errors
/// The server does not accept the connection, has another certificate than `chain`, or closes without `close_notify`.
pub fn get_health(netns: &Netns, server: SocketAddr, chain: &str) -> Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(chain)?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let session = ClientConnection::new(Arc::new(config), "localhost".try_into()?)?;
    let stream = netns.run_in(|| Ok(TcpStream::connect(server)?))?;
    let mut tls = StreamOwned::new(session, stream);
    tls.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    tls.read_to_string(&mut answer)?;
    Ok(answer)
}
