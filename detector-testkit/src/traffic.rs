//! Real traffic between namespaces, which makes the kernels at both ends resolve and learn neighbours as on a node.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{netns::Netns, wait::until};

/// A port without a listener (the discard service of RFC 863).
const PORT: u16 = 9;
/// How long to wait for the response to one datagram before sending the next.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);

/// Sends small datagrams from `netns` to an address, at most five per second, until the destination reports the port as
/// unreachable: then each end has resolved the other.
///
/// # Errors
/// No response arrives before the deadline, or there is no route.
pub fn wait_reachable(netns: &Netns, address: IpAddr, deadline: Duration) -> Result<()> {
    netns.run_in(|| {
        let any: IpAddr = match address {
            IpAddr::V4(_) => [0, 0, 0, 0].into(),
            IpAddr::V6(_) => [0u16; 8].into(),
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).context("opening a socket")?;
        socket.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        socket
            .connect(SocketAddr::new(address, PORT))
            .with_context(|| format!("{address} cannot be reached from {}", netns.name()))?;
        until(deadline, format_args!("{address} to respond"), || {
            match socket.send(&[0]).and_then(|_| socket.recv(&mut [0; 8])) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        // Not resolved yet; an immediate retry would only fail again.
                        thread::sleep(RESPONSE_TIMEOUT);
                    }
                    Err(error.into())
                }
                Ok(_) => bail!("a datagram arrived instead of an error"),
            }
        })
    })
}
