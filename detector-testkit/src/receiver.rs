//! A receiver of webhooks that misbehaves on command, and remembers everything that reached it.
//!
//! Plain threads and blocking sockets: what a test says about it holds for the very next request. It ends, with all its
//! connections, when it is dropped.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::shutdown;

/// Largest request that is read.
const LARGEST: usize = 4 << 20;

/// What it does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Answers with this status, and headers.
    Answer(u16, Vec<(&'static str, String)>),
    /// Reads the request and never answers.
    Hang,
    /// Reads the request and resets the connection.
    Reset,
    /// Resets the connection without reading.
    ResetUnread,
}

impl Mood {
    /// Answers with this status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::Answer(status, Vec::new())
    }
}

/// A request that was read to its end.
#[derive(Clone, Debug)]
pub struct Posted {
    /// When its last byte was read.
    pub at: Instant,
    /// Its method.
    pub method: String,
    /// Its path.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
    /// What was done with it.
    pub mood: Mood,
}

impl Posted {
    /// A header's value, or nothing.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map_or("", |(_, value)| value)
    }

    /// Whether it was answered with a 2xx.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        matches!(self.mood, Mood::Answer(200..=299, _))
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// Where it is none.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).context("the body is no JSON")
    }
}

/// A connection, plain or not.
pub trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// Makes what is spoken over a connection of it, such as TLS.
pub type Wrap = dyn Fn(TcpStream) -> io::Result<Box<dyn Stream>> + Send + Sync;
type Decide = dyn Fn(&Posted) -> Mood + Send + Sync;

struct Shared {
    decide: Mutex<Arc<Decide>>,
    posted: Mutex<Vec<Posted>>,
    changed: Condvar,
    /// Connections that are open, so that they can be ended.
    open: Mutex<Vec<(SocketAddr, TcpStream)>>,
    wrap: Box<Wrap>,
}

/// The receiver.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<Listening>,
}

struct Listening {
    /// The same socket; shutting it down wakes the thread, from whatever namespace.
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
    /// Listens on a free port of loopback and accepts everything.
    ///
    /// # Errors
    /// Where no port is to be had.
    pub fn start() -> Result<Self> {
        Self::start_with(Box::new(|stream| Ok(Box::new(stream) as Box<dyn Stream>)))
    }

    /// The same, over what `wrap` makes of a connection.
    ///
    /// # Errors
    /// As [`Receiver::start`].
    pub fn start_with(wrap: Box<Wrap>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening on loopback")?;
        let address = listener.local_addr().context("the listener's address")?;
        let accept: Arc<Decide> = Arc::new(|_| Mood::status(204));
        let mut receiver = Self {
            address,
            shared: Arc::new(Shared {
                decide: Mutex::new(accept),
                posted: Mutex::default(),
                changed: Condvar::new(),
                open: Mutex::default(),
                wrap,
            }),
            listening: None,
        };
        receiver.listen(listener)?;
        Ok(receiver)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL for plain HTTP.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// From now on `decide` says what is done with each request. It sees the request before it is answered.
    pub fn decide(&self, decide: impl Fn(&Posted) -> Mood + Send + Sync + 'static) {
        *lock(&self.shared.decide) = Arc::new(decide);
    }

    /// From now on this is done with every request.
    pub fn be(&self, mood: Mood) {
        self.decide(move |_| mood.clone());
    }

    /// Refuses connections, and ends those there are, until [`Receiver::admit`].
    pub fn refuse(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.stop.store(true, Ordering::Release);
            let woken = shutdown(
                listening.socket.as_raw_fd(),
                nix::sys::socket::Shutdown::Both,
            );
            if let Err(error) = woken {
                eprintln!("the receiver's socket cannot be shut down: {error}");
            }
            if listening.thread.join().is_err() {
                eprintln!("the receiver's thread panicked");
            }
        }
        self.hang_up();
    }

    /// Admits connections again, on the same port of the caller's namespace.
    ///
    /// # Errors
    /// Where somebody else has taken the port.
    pub fn admit(&mut self) -> Result<()> {
        if self.listening.is_none() {
            let listener = TcpListener::bind(self.address).context("listening again")?;
            self.listen(listener)?;
        }
        Ok(())
    }

    /// Ends all connections.
    pub fn hang_up(&self) {
        for (_, stream) in lock(&self.shared.open).drain(..) {
            // Fails where the other side has ended it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// All requests so far, in the order they came.
    #[must_use]
    pub fn posted(&self) -> Vec<Posted> {
        lock(&self.shared.posted).clone()
    }

    /// Waits until `enough` accepts all the requests so far.
    ///
    /// # Errors
    /// Where it does not by the deadline.
    pub fn wait_until(
        &self,
        deadline: Duration,
        enough: impl Fn(&[Posted]) -> bool,
    ) -> Result<Vec<Posted>> {
        self.wait(deadline, |posted| enough(posted).then(|| posted.to_vec()))
    }

    /// Waits for a request that `wanted` accepts; the newest is looked at first.
    ///
    /// # Errors
    /// Where none comes by the deadline.
    pub fn wait_for(&self, deadline: Duration, wanted: impl Fn(&Posted) -> bool) -> Result<Posted> {
        self.wait(deadline, |posted| {
            posted.iter().rev().find(|request| wanted(request)).cloned()
        })
    }

    fn wait<T>(&self, deadline: Duration, done: impl Fn(&[Posted]) -> Option<T>) -> Result<T> {
        let until = Instant::now() + deadline;
        let mut posted = lock(&self.shared.posted);
        loop {
            if let Some(done) = done(&posted) {
                return Ok(done);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(
                    "waited {deadline:?} in vain; {} requests came, the last ones {:?}",
                    posted.len(),
                    posted.iter().rev().take(5).collect::<Vec<_>>()
                );
            }
            posted = self
                .shared
                .changed
                .wait_timeout(posted, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn listen(&mut self, listener: TcpListener) -> Result<()> {
        let socket = listener.try_clone().context("a second descriptor")?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, shared) = (Arc::clone(&stop), Arc::clone(&self.shared));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let shared = Arc::clone(&shared);
                // Ends with its connection.
                thread::spawn(move || {
                    // The other side may go at any time; what was read by then is remembered.
                    let _ = serve(stream, &shared);
                });
            }
        });
        self.listening = Some(Listening {
            socket,
            stop,
            thread,
        });
        Ok(())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.refuse();
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let peer = stream.peer_addr()?;
    lock(&shared.open).push((peer, stream.try_clone()?));
    let outcome = speak(stream, shared);
    // Last, so that a connection told to reset does so when its last descriptor is closed here.
    lock(&shared.open).retain(|(other, _)| *other != peer);
    outcome
}

fn speak(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let raw = stream.try_clone()?;
    let mut reader = BufReader::new((shared.wrap)(stream)?);
    while let Some(mut request) = read_request(&mut reader)? {
        let decide = Arc::clone(&lock(&shared.decide));
        request.mood = decide(&request);
        let mood = request.mood.clone();
        if mood == Mood::ResetUnread {
            return reset(&raw);
        }
        lock(&shared.posted).push(request);
        shared.changed.notify_all();
        match mood {
            Mood::Answer(status, headers) => {
                let mut head = format!("HTTP/1.1 {status} As told\r\nContent-Length: 0\r\n");
                for (name, value) in headers {
                    head += &format!("{name}: {value}\r\n");
                }
                reader.get_mut().write_all((head + "\r\n").as_bytes())?;
                reader.get_mut().flush()?;
            }
            Mood::Hang => {
                // Until the other side, or the test, ends the connection.
                io::copy(&mut reader, &mut io::sink())?;
                return Ok(());
            }
            Mood::Reset | Mood::ResetUnread => return reset(&raw),
        }
    }
    Ok(())
}

/// From now on, closing it is a reset.
fn reset(stream: &TcpStream) -> io::Result<()> {
    let linger = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &linger)?;
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> io::Result<Option<Posted>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let mut request = Posted {
        at: Instant::now(),
        method: method.to_owned(),
        path: path.to_owned(),
        headers: Vec::new(),
        body: Vec::new(),
        mood: Mood::Hang,
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
    if length > LARGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    request.body = vec![0; length];
    reader.read_exact(&mut request.body)?;
    request.at = Instant::now();
    Ok(Some(request))
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
