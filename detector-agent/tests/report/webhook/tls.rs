//! Server certificates a webhook trusts, and the client certificate it presents.

use std::{fs, sync::Arc};

use detector_testkit::{
    DEADLINE, Receiver,
    receiver::{Connection, WrapStream},
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{RunningSinks, accepted, event, hook, ids};

/// A certificate authority and the certificates it signed for 127.0.0.1 and for a client.
struct Certificates {
    ca: String,
    server: (String, Vec<u8>),
    client: (String, String),
}

fn certificates() -> Certificates {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(params, ca_key);
    let sign = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key)
    };
    let (server, server_key) = sign("127.0.0.1");
    let (client, client_key) = sign("agent");
    Certificates {
        ca: ca.pem(),
        server: (server, server_key.serialize_der()),
        client: (client, client_key.serialize_pem()),
    }
}

/// A receiver that speaks TLS and asks for a client certificate.
fn tls_receiver(certificates: &Certificates) -> Receiver {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(der(&certificates.ca)).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        Arc::clone(&provider),
    )
    .build()
    .unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certificates.server.1.clone()));
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![der(&certificates.server.0)], key)
        .unwrap();
    let config = Arc::new(config);
    let wrap: Box<WrapStream> = Box::new(move |stream| {
        let session =
            rustls::ServerConnection::new(Arc::clone(&config)).map_err(std::io::Error::other)?;
        Ok(Box::new(rustls::StreamOwned::new(session, stream)) as Box<dyn Connection>)
    });
    Receiver::start_with(wrap).unwrap()
}

#[test]
fn tls_trusts_only_the_ca_and_presents_the_client_cert() {
    let certificates = certificates();
    let stranger = self::certificates();
    let receiver = tls_receiver(&certificates);
    let url = format!("https://{}/hook", receiver.address());
    let files = "  ca-file: DIR/ca\n  client-cert-file: DIR/cert\n  client-key-file: DIR/key\n";
    let yaml = format!(
        "{}- name: wary\n  url: {url}\n  ca-file: DIR/stranger\n  retry: {{first: 20ms}}\n",
        hook(&url, files)
    );
    let mut running = RunningSinks::start(&yaml, |dir| {
        fs::write(dir.join("ca"), &certificates.ca).unwrap();
        fs::write(dir.join("stranger"), &stranger.ca).unwrap();
        fs::write(dir.join("cert"), &certificates.client.0).unwrap();
        fs::write(dir.join("key"), &certificates.client.1).unwrap();
    })
    .unwrap();
    running.report(event("e1", "raised", "c1"));
    let posted = receiver.wait_until(DEADLINE, |p| accepted(p) == 1).unwrap();
    assert_eq!(ids(&posted), ["e1"]);
    running.wait_count("wary", "failed", 2);
    assert_eq!(receiver.requests().len(), 1);
    assert_eq!(running.count("wary", "delivered"), 0);
}
