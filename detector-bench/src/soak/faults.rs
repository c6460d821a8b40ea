//! What goes wrong meanwhile.

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

use detector_testkit::{
    frames::{Frame, FrameSender},
    mac::MacAddress,
    node::Pod,
    random::Random,
};

/// Connections that a hanging runtime holds.
const HELD: usize = 64;
/// Frames of one burst, and in one system call.
const BURST: usize = 20_000;
const AT_ONCE: usize = 256;

/// A container runtime that takes connections and never answers, or hangs up.
#[derive(Debug)]
pub(super) struct DeafRuntime {
    hangs: Arc<AtomicBool>,
    held: Arc<Mutex<Vec<UnixStream>>>,
}

impl DeafRuntime {
    /// Listens on this socket for as long as the process lives.
    pub(super) fn at(socket: &Path) -> Result<Self> {
        let listener = UnixListener::bind(socket).context("the runtime's socket")?;
        let this = Self {
            hangs: Arc::new(AtomicBool::new(true)),
            held: Arc::default(),
        };
        let (hangs, held) = (Arc::clone(&this.hangs), Arc::clone(&this.held));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
                if hangs.load(Ordering::Acquire) && held.len() < HELD {
                    held.push(stream);
                }
            }
        });
        Ok(this)
    }

    /// From now on it hangs, or hangs up; connections so far are ended.
    pub(super) fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::Release);
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

/// A pod that claims more addresses at once than the ring buffer holds. Nobody else claims them, and it alone is no
/// conflict.
pub(super) fn burst(pod: &Pod, random: &mut Random) -> Result<()> {
    let sender = FrameSender::open(pod)?;
    for _ in 0..BURST / AT_ONCE {
        let frames: Vec<_> = (0..AT_ONCE)
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
