//! Long-lived connections: streams, and clients that send or read nothing.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    time::{Duration, Instant},
};

use super::{DEADLINE, assert_alive, connect, request, serve};

#[test]
fn event_streams_are_bounded_and_slots_are_reused() {
    let served = serve();
    let open = || {
        let mut stream = connect(served.address);
        stream
            .write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        (stream, String::from_utf8_lossy(&head[9..]).into_owned())
    };
    let mut streams: Vec<_> = (0..64).map(|_| open()).collect();
    assert!(streams.iter().all(|(_, status)| status == "200"));
    assert_eq!(open().1, "503");
    assert_alive(served.address);
    drop(streams.pop());
    let until = Instant::now() + DEADLINE;
    while open().1 != "200" {
        assert!(Instant::now() < until, "the slot is not free again");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The server keeps 128 connections of the node, which all of these are.
#[test]
fn idle_connections_give_way_to_new_ones() {
    let served = serve();
    let idle = || {
        let mut stream = connect(served.address);
        let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head[9..], b"200");
        stream
    };
    let mut streams: Vec<_> = (0..140).map(|_| idle()).collect();
    assert_alive(served.metrics_address);
    let mut rest = Vec::new();
    let closed = streams[0].read_to_end(&mut rest);
    assert!(
        closed.is_ok(),
        "the idlest connection is closed: {closed:?}"
    );
    let newest = streams.last_mut().unwrap();
    newest.set_nonblocking(true).unwrap();
    let open = loop {
        match newest.read(&mut [0; 256]) {
            Ok(0) => break false,
            Ok(_) => {}
            Err(error) => break error.kind() == ErrorKind::WouldBlock,
        }
    };
    assert!(open, "the newest connection is kept");
}

#[test]
fn idle_clients_are_disconnected_while_others_are_served() {
    let served = serve();
    let address = served.address;
    let silent = connect(address);
    let mut halfway = connect(address);
    halfway.write_all(b"GET / HTTP/1.1\r\nHost: local").unwrap();
    // This client never reads, so the server's writes block.
    let mut non_reading = connect(address);
    non_reading.set_nonblocking(true).unwrap();
    let keep_alive = String::from_utf8(request("GET /page.js", ""))
        .unwrap()
        .replace("Connection: close\r\n", "");
    for _ in 0..20_000 {
        if non_reading.write(keep_alive.as_bytes()).is_err() {
            break;
        }
    }
    assert_alive(address);
    for (what, mut stream) in [("silent", silent), ("halfway", halfway)] {
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(
            ended.is_ok() || ended.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
            "the {what} client is still connected"
        );
    }
    // Without reading, the client notices the close only as a write error.
    let until = Instant::now() + DEADLINE;
    loop {
        match non_reading.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") {
            Err(e) if e.kind() != ErrorKind::WouldBlock => break,
            _ => {
                assert!(
                    Instant::now() < until,
                    "the non-reading client is still connected"
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    assert_alive(address);
}
