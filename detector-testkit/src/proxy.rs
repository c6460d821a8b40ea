//! A TCP proxy from the machine's own network into a namespace: the API server for the user's shell.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result};

use crate::netns::Netns;

/// Listens on a free port of the loopback until it is dropped.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// Forwards connections to `target` in the namespace.
    pub(super) fn start(netns: &Netns, target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening on the loopback")?;
        let address = listener.local_addr()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        // The thread's connections are made in the namespace; the listener stays where it was created.
        let thread = netns.spawn_in(move || {
            for client in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                if let Ok(client) = client
                    && let Ok(server) = TcpStream::connect(target)
                {
                    forward(client, server);
                }
            }
        })?;
        Ok(Self {
            address,
            stopped,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Wakes the thread.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // It has nothing to report.
            let _ = thread.join();
        }
    }
}

/// Copies both directions until both sides have ended.
fn forward(client: TcpStream, server: TcpStream) {
    let (Ok(from_client), Ok(from_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    for (mut from, mut to) in [(from_client, server), (from_server, client)] {
        thread::spawn(move || {
            // A connection that breaks ends like one that is closed.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}
