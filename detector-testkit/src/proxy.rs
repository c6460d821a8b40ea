//! A TCP proxy from one network namespace into another.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    thread,
};

use anyhow::Result;
use nix::sys::socket::{self, shutdown};

use crate::netns::Netns;

/// Forwards connections until it is dropped; those that are open then end with one of their sides.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    listener: TcpListener,
    thread: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// Forwards what `listener` accepts, in the namespace it was created in, to `target` in `netns`. A client is disconnected
    /// if there is no server.
    ///
    /// # Errors
    /// The listener has no address, or the namespace cannot be entered.
    pub fn start(listener: TcpListener, netns: &Netns, target: SocketAddr) -> Result<Self> {
        let address = listener.local_addr()?;
        let accepting = listener.try_clone()?;
        // The thread's connections are made in the namespace; the listener stays where it was created.
        let thread = netns.spawn_in(move || {
            while let Ok((client, _)) = accepting.accept() {
                if let Ok(server) = TcpStream::connect(target) {
                    forward(client, server);
                }
            }
        })?;
        Ok(Self {
            address,
            listener,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Linux ends a pending accept.
        let ended = shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
        if ended.is_ok()
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
