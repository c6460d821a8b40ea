//! The value of `--listen`.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    str::FromStr,
};

use super::HttpError;

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
        text.parse().map(Self::At).map_err(|_| {
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

/// Binds a non-blocking listener, as tokio requires.
pub(super) fn bind(address: SocketAddr) -> Result<TcpListener, HttpError> {
    let failed = |error: io::Error| HttpError::Bind {
        address,
        reason: match error.kind() {
            io::ErrorKind::AddrInUse => "the port is in use by another program".to_owned(),
            io::ErrorKind::AddrNotAvailable => "this node has no such address".to_owned(),
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need CAP_NET_BIND_SERVICE".to_owned()
            }
            _ => error.to_string(),
        },
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
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
        for wrong in ["", "localhost:1", "127.0.0.1", "127.0.0.1:99999", "off"] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }
}
