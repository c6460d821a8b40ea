//! Hostile clients: every request is answered or its connection closed, and the next client is served.
//!
//! The endpoints run here without an event loop, so the lists answer 503.

mod connections;
mod requests;

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use detector_agent::sinks::EventFeed;
use detector_agent::{
    event_loop::EventLoopHandle,
    health::Health,
    http::{Endpoints, Listen, Options, Server, Sources},
    metrics::Metrics,
};
use detector_event::Role;

/// Well above every timeout of the server.
const DEADLINE: Duration = Duration::from_secs(60);

struct Served {
    address: SocketAddr,
    /// Serves the metrics and the probes only.
    metrics_address: SocketAddr,
    _server: Server,
    _directory: tempfile::TempDir,
}

fn serve() -> Served {
    let any_port = Listen::At("127.0.0.1:0".parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let endpoints = Endpoints::open(&Options {
        socket: directory.path().join("agent.sock"),
        listen: any_port,
        metrics_listen: any_port,
        token_file: None,
        tls_chain: None,
        tls_key: None,
    })
    .unwrap();
    let addresses: Vec<_> = endpoints.addresses().collect();
    let (inbox, _ended) = EventLoopHandle::new().unwrap();
    let health = Arc::new(Health::default());
    health.part(Role::Source, "netlink").works("test");
    let server = endpoints
        .serve(Sources {
            node: "test".into(),
            cluster: None,
            metrics: Arc::new(Metrics::new()),
            readiness: Arc::default(),
            health,
            explanations: Arc::default(),
            pods: Arc::default(),
            inbox,
            feed: EventFeed::default(),
            history: Arc::default(),
            export_claims: false,
        })
        .unwrap();
    Served {
        address: addresses[0],
        metrics_address: addresses[1],
        _server: server,
        _directory: directory,
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends the request and returns everything up to the end of the connection. If nothing ends it within
/// `timeout`, the sending side is shut down, because the server may wait for more.
fn exchange_within(address: SocketAddr, request: &[u8], timeout: Duration) -> Vec<u8> {
    let mut stream = connect(address);
    // The server may answer and close before it has read the whole request.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    for timeout in [timeout, DEADLINE] {
        stream.set_read_timeout(Some(timeout)).unwrap();
        match stream.read_to_end(&mut answer) {
            Ok(_) => return answer,
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return answer,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let _ = stream.shutdown(Shutdown::Write);
            }
            Err(e) => panic!("{e}"),
        }
    }
    panic!("the connection was not closed: {}", request.escape_ascii());
}

fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    exchange_within(address, request, Duration::from_secs(2))
}

/// The status of the first answer; 0 if the connection was closed without one.
fn status(address: SocketAddr, request: &[u8]) -> u16 {
    status_of(&exchange(address, request))
}

fn status_of(answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(answer);
    let Some(rest) = text.strip_prefix("HTTP/1.") else {
        assert!(answer.is_empty(), "{text}");
        return 0;
    };
    rest[2..5].parse().unwrap()
}

fn assert_alive(address: SocketAddr) {
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(status(address, request), 200);
}

fn request(line: &str, headers: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n").into_bytes()
}
