//! The values of `--listen` and `--metrics-listen`.

use std::{
    fmt, fs, io,
    net::{Ipv6Addr, SocketAddr, TcpListener},
    os::{fd::AsRawFd as _, unix::net::UnixListener},
    path::Path,
    str::FromStr,
};

use nix::sys::{
    socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind as bind_to, listen, setsockopt,
        socket,
        sockopt::{RcvBuf, SndBuf},
    },
    stat::{Mode, fchmod},
};

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

/// Binds a non-blocking listener, as tokio requires.
///
/// # Errors
/// As of `bind(2)`.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    prepare(&listener)?;
    Ok(listener)
}

/// Why an address cannot be bound, for people. `other` is the address that this process has bound already.
pub(super) fn reason(error: &io::Error, address: SocketAddr, other: Option<SocketAddr>) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse if other.is_some_and(|o| o.port() == address.port()) => {
            "--listen serves this port already".to_owned()
        }
        io::ErrorKind::AddrInUse => "the port is in use by another program".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this node has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE".to_owned(),
        _ => error.to_string(),
    }
}

/// Binds a non-blocking listener in the file system, for this user alone. A file that is there is replaced: the caller holds
/// the lock beside it, so no agent listens on it.
///
/// # Errors
/// As of `bind(2)`.
pub(super) fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // Before it is bound, because the file gets the mode of the socket (`unix_bind_bsd` in net/unix/af_unix.c): at no
    // moment can others connect.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind_to(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

fn prepare(listener: &TcpListener) -> io::Result<()> {
    // Accepted connections inherit both: what a client sends or does not read takes bounded memory in the kernel as well.
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
