//! An ARP storm from one pod at a given rate; every frame has a random sender address and MAC.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use detector_testkit::{FrameSender, Pod, random::Random};

use super::random_announcement;

/// Pause between two batches.
const PAUSE: Duration = Duration::from_millis(1);

/// A running storm; stops on drop.
#[derive(Debug)]
pub(super) struct Storm {
    started: Instant,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Storm {
    /// Starts the storm. The seed determines its claims, so two storms with the same seed are the same.
    ///
    /// # Errors
    /// The pod's device does not exist.
    pub(super) fn start(pod: &Pod, per_second: u32, seed: u64) -> Result<Self> {
        let sender = FrameSender::open(pod)?;
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let started = Instant::now();
        let thread = {
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            thread::spawn(move || {
                let mut random = Random(seed);
                while !stop.load(Ordering::Acquire) {
                    let done = sent.load(Ordering::Relaxed);
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a number of frames"
                    )]
                    let due = (started.elapsed().as_secs_f64() * f64::from(per_second)) as u64;
                    // After a stall, the missed frames are not sent all at once.
                    let batch = due.saturating_sub(done).min(u64::from(per_second) / 100);
                    let frames: Vec<_> = (0..batch)
                        .map(|_| random_announcement(&mut random, 11))
                        .collect();
                    if !frames.is_empty() {
                        sender.send_all(&frames)?;
                    }
                    sent.fetch_add(batch, Ordering::Relaxed);
                    thread::sleep(PAUSE);
                }
                Ok(())
            })
        };
        Ok(Self {
            started,
            stop,
            sent,
            thread: Some(thread),
        })
    }

    /// Stops the storm and returns its rate in frames per second.
    ///
    /// # Errors
    /// A frame could not be sent.
    pub(super) fn stop(mut self) -> Result<f64> {
        let seconds = self.started.elapsed().as_secs_f64();
        let sent = self.sent.load(Ordering::Relaxed);
        self.stop.store(true, Ordering::Release);
        self.thread
            .take()
            .context("the storm was stopped before")?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(sent as f64 / seconds)
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}
