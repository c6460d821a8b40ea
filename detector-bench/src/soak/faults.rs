//! Faults during the soak.

use std::{
    net::Ipv4Addr,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result};
use detector_testkit::{Frame, FrameSender, MacAddress, Pod, random::Random};

/// The largest number of connections that a hanging runtime keeps open.
const MAX_CONNECTIONS: usize = 64;
/// Frames per burst.
const BURST: usize = 20_000;
/// Frames per system call.
const BATCH: usize = 256;

/// A container runtime that accepts connections and either never responds or closes them.
#[derive(Debug)]
pub(super) struct UnresponsiveRuntime {
    hangs: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<UnixStream>>>,
}

impl UnresponsiveRuntime {
    /// Listens on this socket until the process ends.
    pub(super) fn start(socket: &Path) -> Result<Self> {
        let listener = UnixListener::bind(socket).context("opening the runtime's socket")?;
        let this = Self {
            hangs: Arc::new(AtomicBool::new(true)),
            connections: Arc::default(),
        };
        let hangs = Arc::clone(&this.hangs);
        let connections = Arc::clone(&this.connections);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
                if hangs.load(Ordering::Acquire) && connections.len() < MAX_CONNECTIONS {
                    connections.push(stream);
                }
            }
        });
        Ok(this)
    }

    /// Whether connections hang or are closed from now on; closes all present ones.
    pub(super) fn set_hanging(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::Release);
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

/// Sends more claims from one pod at once than the ring buffer holds. No other pod claims these addresses, so there is no
/// conflict.
pub(super) fn send_burst(pod: &Pod, random: &mut Random) -> Result<()> {
    let sender = FrameSender::open(pod)?;
    for _ in 0..BURST / BATCH {
        let frames: Vec<_> = (0..BATCH)
            .map(|_| {
                let [a, b, c, d, e, f, ..] = random.next_u64().to_be_bytes();
                let address = Ipv4Addr::new(172, 16 + (a & 15), b, c);
                Frame::announcement(MacAddress([2, 0xfe, c, d, e, f]), address).to_bytes()
            })
            .collect();
        sender.send_all(&frames)?;
    }
    Ok(())
}
