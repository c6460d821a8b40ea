//! A webhook receiver that misbehaves on command and records every request.
//!
//! It uses threads and blocking sockets, so that a change of its behaviour applies to the very next request. Dropping it
//! closes the listener and all connections.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::socket::shutdown;

use crate::wait::{Monitor, lock};

/// Largest accepted request body, in bytes.
const MAX_BODY: usize = 4 << 20;

/// What the receiver does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Responds with this status and these headers.
    Respond(u16, Vec<(&'static str, String)>),
    /// Reads the request and never responds.
    Hang,
    /// Reads the request and resets the connection.
    Reset,
    /// Resets the connection without recording the request.
    ResetUnread,
}

impl Behaviour {
    /// Responds with this status and no extra headers.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::Respond(status, Vec::new())
    }
}

/// A request that was read completely.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// When its last byte was read.
    pub at: Instant,
    /// The method.
    pub method: String,
    /// The request target.
    pub path: String,
    /// The headers; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// How the receiver treated it.
    pub behaviour: Behaviour,
}

impl ReceivedRequest {
    /// The value of a header, named in lower case; empty if absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map_or("", |(_, value)| value)
    }

    /// Whether the response had a 2xx status.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        matches!(self.behaviour, Behaviour::Respond(200..=299, _))
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// The body is not valid JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).context("the body is not valid JSON")
    }
}

/// A connection, plain or TLS.
pub trait Connection: Read + Write + Send {}
impl<S: Read + Write + Send> Connection for S {}

/// Wraps an accepted TCP stream, for example in TLS.
pub type WrapStream = dyn Fn(TcpStream) -> io::Result<Box<dyn Connection>> + Send + Sync;
type Handler = dyn Fn(&ReceivedRequest) -> Behaviour + Send + Sync;

struct ReceiverState {
    handler: Mutex<Arc<Handler>>,
    requests: Monitor<Vec<ReceivedRequest>>,
    /// Open connections by peer address, so that they can be closed.
    open: Mutex<Vec<(SocketAddr, TcpStream)>>,
    wrap: Box<WrapStream>,
}

/// A running receiver.
pub struct Receiver {
    address: SocketAddr,
    state: Arc<ReceiverState>,
    acceptor: Option<Acceptor>,
}

/// The thread that accepts connections.
struct Acceptor {
    /// A second descriptor of its socket; shutting it down wakes the thread, from any namespace.
    socket: TcpListener,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Receiver {
    /// Listens on a free loopback port of the caller's namespace and responds 204 to every request.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn start() -> Result<Self> {
        Self::start_with(plain())
    }

    /// [`Receiver::start`] on another address of the caller's namespace; port 0 is a free one.
    ///
    /// # Errors
    /// As [`Receiver::start`].
    pub fn start_on(address: SocketAddr) -> Result<Self> {
        Self::start_wrapped(address, plain())
    }

    /// [`Receiver::start`] with every connection wrapped by `wrap`.
    ///
    /// # Errors
    /// As [`Receiver::start`].
    pub fn start_with(wrap: Box<WrapStream>) -> Result<Self> {
        Self::start_wrapped(SocketAddr::from(([127, 0, 0, 1], 0)), wrap)
    }

    fn start_wrapped(address: SocketAddr, wrap: Box<WrapStream>) -> Result<Self> {
        let listener = TcpListener::bind(address).context("listening")?;
        let address = listener.local_addr().context("the listener's address")?;
        let accept: Arc<Handler> = Arc::new(|_| Behaviour::status(204));
        let mut receiver = Self {
            address,
            state: Arc::new(ReceiverState {
                handler: Mutex::new(accept),
                requests: Monitor::default(),
                open: Mutex::default(),
                wrap,
            }),
            acceptor: None,
        };
        receiver.listen(listener)?;
        Ok(receiver)
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL for plain HTTP.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Lets `handler` choose the behaviour for each request from now on. The request is recorded with that behaviour before
    /// the response is sent.
    pub fn set_handler(
        &self,
        handler: impl Fn(&ReceivedRequest) -> Behaviour + Send + Sync + 'static,
    ) {
        *lock(&self.state.handler) = Arc::new(handler);
    }

    /// Treats every request like this from now on.
    pub fn set_behaviour(&self, behaviour: Behaviour) {
        self.set_handler(move |_| behaviour.clone());
    }

    /// Closes the listener and all connections until [`Receiver::accept_connections`].
    pub fn refuse_connections(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.stop.store(true, Ordering::Release);
            let woken = shutdown(
                acceptor.socket.as_raw_fd(),
                nix::sys::socket::Shutdown::Both,
            );
            if let Err(error) = woken {
                eprintln!("the receiver's socket cannot be shut down: {error}");
            }
            if acceptor.thread.join().is_err() {
                eprintln!("the receiver's thread panicked");
            }
        }
        self.close_connections();
    }

    /// Listens again, on the same port of the caller's namespace; does nothing if it already does.
    ///
    /// # Errors
    /// The port is in use.
    pub fn accept_connections(&mut self) -> Result<()> {
        if self.acceptor.is_none() {
            let listener = TcpListener::bind(self.address).context("listening again")?;
            self.listen(listener)?;
        }
        Ok(())
    }

    /// Closes all connections.
    pub fn close_connections(&self) {
        for (_, stream) in lock(&self.state.open).drain(..) {
            // Fails if the peer has closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// All requests so far, in the order they were read.
    #[must_use]
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.state.requests.lock().clone()
    }

    /// Waits until `enough` accepts all requests so far, and returns them.
    ///
    /// # Errors
    /// The deadline passes; the error contains the last requests.
    pub fn wait_until(
        &self,
        deadline: Duration,
        enough: impl Fn(&[ReceivedRequest]) -> bool,
    ) -> Result<Vec<ReceivedRequest>> {
        self.wait(deadline, |requests| {
            enough(requests).then(|| requests.to_vec())
        })
    }

    /// Waits for a request that `wanted` accepts; of several, returns the newest.
    ///
    /// # Errors
    /// The deadline passes; the error contains the last requests.
    pub fn wait_for(
        &self,
        deadline: Duration,
        wanted: impl Fn(&ReceivedRequest) -> bool,
    ) -> Result<ReceivedRequest> {
        self.wait(deadline, |requests| {
            requests
                .iter()
                .rev()
                .find(|request| wanted(request))
                .cloned()
        })
    }

    fn wait<T>(
        &self,
        deadline: Duration,
        check: impl Fn(&[ReceivedRequest]) -> Option<T>,
    ) -> Result<T> {
        self.state.requests.wait(
            deadline,
            "requests to the receiver",
            |requests| check(requests),
            |requests| {
                let last: Vec<_> = requests.iter().rev().take(5).collect();
                format!("{} requests so far, the last ones {last:?}", requests.len())
            },
        )
    }

    fn listen(&mut self, listener: TcpListener) -> Result<()> {
        let socket = listener
            .try_clone()
            .context("duplicating the listener's descriptor")?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, state) = (Arc::clone(&stop), Arc::clone(&self.state));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let state = Arc::clone(&state);
                // Ends with its connection.
                thread::spawn(move || {
                    // The peer may close at any time; requests read by then are recorded.
                    let _ = serve(stream, &state);
                });
            }
        });
        self.acceptor = Some(Acceptor {
            socket,
            stop,
            thread,
        });
        Ok(())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.refuse_connections();
    }
}

/// Connections as they are.
fn plain() -> Box<WrapStream> {
    Box::new(|stream| Ok(Box::new(stream) as Box<dyn Connection>))
}

fn serve(stream: TcpStream, state: &ReceiverState) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let peer = stream.peer_addr()?;
    lock(&state.open).push((peer, stream.try_clone()?));
    let outcome = serve_requests(stream, state);
    // Last, because a connection with zero linger time is reset when its last descriptor is closed.
    lock(&state.open).retain(|(other, _)| *other != peer);
    outcome
}

fn serve_requests(stream: TcpStream, state: &ReceiverState) -> io::Result<()> {
    let raw = stream.try_clone()?;
    let mut reader = BufReader::new((state.wrap)(stream)?);
    while let Some(mut request) = read_request(&mut reader)? {
        let handler = Arc::clone(&lock(&state.handler));
        let behaviour = handler(&request);
        if behaviour == Behaviour::ResetUnread {
            return reset_on_close(&raw);
        }
        request.behaviour = behaviour.clone();
        state.requests.update(|requests| requests.push(request));
        match behaviour {
            Behaviour::Respond(status, headers) => {
                let mut head = format!("HTTP/1.1 {status} -\r\nContent-Length: 0\r\n");
                for (name, value) in headers {
                    head += &format!("{name}: {value}\r\n");
                }
                reader.get_mut().write_all((head + "\r\n").as_bytes())?;
                reader.get_mut().flush()?;
            }
            Behaviour::Hang => {
                // Until the peer, or the test, closes the connection.
                io::copy(&mut reader, &mut io::sink())?;
                return Ok(());
            }
            Behaviour::Reset | Behaviour::ResetUnread => return reset_on_close(&raw),
        }
    }
    Ok(())
}

/// Sets a linger time of zero, so that closing the connection resets it.
fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    let linger = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &linger)?;
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> io::Result<Option<ReceivedRequest>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut parts = line.split_whitespace();
    let (method, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let mut request = ReceivedRequest {
        at: Instant::now(),
        method: method.to_owned(),
        path: path.to_owned(),
        headers: Vec::new(),
        body: Vec::new(),
        behaviour: Behaviour::Hang,
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
            request.headers.push((name, value));
        }
    }
    let length: usize = request.header("content-length").parse().unwrap_or(0);
    if length > MAX_BODY {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    request.body = vec![0; length];
    reader.read_exact(&mut request.body)?;
    request.at = Instant::now();
    Ok(Some(request))
}
