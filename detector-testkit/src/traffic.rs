//! Real traffic between namespaces, so that the kernels at both ends do what they do on a node: resolve, answer, learn.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::netns::Netns;

/// A port that nobody listens on (RFC 863 discards what comes there).
const PORT: u16 = 9;
/// How long one datagram's answer may take before the next is sent.
const PATIENCE: Duration = Duration::from_millis(200);

/// Sends small datagrams from `netns` to an address until its kernel answers that nobody listens there: each end has then
/// resolved the other. At most five a second.
///
/// # Errors
/// Where no answer comes before the deadline, or there is no route.
pub fn reach(netns: &Netns, address: IpAddr, deadline: Duration) -> Result<()> {
    let until = Instant::now() + deadline;
    netns.run_in(|| {
        let any: IpAddr = match address {
            IpAddr::V4(_) => [0, 0, 0, 0].into(),
            IpAddr::V6(_) => [0u16; 8].into(),
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).context("opening a socket")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket
            .connect(SocketAddr::new(address, PORT))
            .with_context(|| format!("{address} cannot be reached from {}", netns.name()))?;
        loop {
            let outcome = socket.send(&[0]).and_then(|_| socket.recv(&mut [0; 8]));
            match outcome {
                Err(ref error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(()),
                Err(ref error) if error.kind() != ErrorKind::WouldBlock => {
                    // Not resolved (yet): asking again at once would only fail again.
                    thread::sleep(PATIENCE);
                }
                _ => {}
            }
            if Instant::now() > until {
                bail!("{address} did not answer within {deadline:?}: {outcome:?}");
            }
        }
    })
}
