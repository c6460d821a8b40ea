//! The values of `--listen` and `--metrics-listen`.

use std::{
    fmt, io,
    net::{Ipv6Addr, SocketAddr, TcpListener},
    str::FromStr,
};

use nix::sys::socket::{
    Backlog, listen, setsockopt,
    sockopt::{RcvBuf, SndBuf},
};

use super::HttpError;

/// Bytes that the kernel may hold of a connection in each direction; it doubles the value.
const SOCKET_BUFFER: usize = 64 << 10;

/// An address to listen on, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// `none`: no endpoints.
    Off,
    /// This address and port.
    At(SocketAddr),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Off);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::At(address));
        }
        // `$(NODE_IP):9842` in a manifest gives an IPv6 address no brackets.
        text.rsplit_once(':')
            .and_then(|(host, port)| {
                let host: Ipv6Addr = host.parse().ok()?;
                Some(Self::At((host, port.parse().ok()?).into()))
            })
            .ok_or_else(|| {
                "expected an address with a port such as 127.0.0.1:9842 or [::]:9842, or `none`"
                    .to_owned()
            })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("none"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// Binds a non-blocking listener, as tokio requires. `flag` is the one that set the address, and `other` the address that
/// this process has bound already.
pub(super) fn bind(
    address: SocketAddr,
    flag: &'static str,
    other: Option<SocketAddr>,
) -> Result<TcpListener, HttpError> {
    let failed = |error: io::Error| HttpError::Bind {
        address,
        flag,
        reason: match error.kind() {
            io::ErrorKind::AddrInUse if other.is_some_and(|o| o.port() == address.port()) => {
                "--listen serves this port already".to_owned()
            }
            io::ErrorKind::AddrInUse => "the port is in use by another program".to_owned(),
            io::ErrorKind::AddrNotAvailable => "this node has no such address".to_owned(),
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need CAP_NET_BIND_SERVICE".to_owned()
            }
            _ => error.to_string(),
        },
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    prepare(&listener).map_err(failed)?;
    Ok(listener)
}

fn prepare(listener: &TcpListener) -> io::Result<()> {
    // Accepted connections inherit both: what a client sends or does not read takes bounded memory in the kernel, too.
    setsockopt(listener, SndBuf, &SOCKET_BUFFER)?;
    setsockopt(listener, RcvBuf, &SOCKET_BUFFER)?;
    // The standard library's backlog may be small.
    listen(listener, Backlog::MAXCONN)?;
    listener.set_nonblocking(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_none_and_addresses_with_ports_are_accepted() {
        assert_eq!("none".parse(), Ok(Listen::Off));
        assert_eq!(
            "127.0.0.1:9842".parse::<Listen>().map(|l| l.to_string()),
            Ok("127.0.0.1:9842".to_owned())
        );
        for (bare, shown) in [
            ("fd00::1:9842", "[fd00::1]:9842"),
            ("[fd00::1]:9842", "[fd00::1]:9842"),
            (":::9842", "[::]:9842"),
            ("1:2:3:4:5:6:7:8:9842", "[1:2:3:4:5:6:7:8]:9842"),
        ] {
            let listen = bare.parse::<Listen>().map(|l| l.to_string());
            assert_eq!(listen, Ok(shown.to_owned()), "{bare}");
        }
        for wrong in [
            "",
            "localhost:1",
            "127.0.0.1",
            "127.0.0.1:99999",
            "fd00::1",
            "fd00::1:99999",
            "[fd00::1]",
            "off",
        ] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }
}
