//! An ARP storm from one pod at a given rate: every frame another sender address and station.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use detector_testkit::{
    frames::{Frame, FrameSender},
    mac::MacAddress,
    node::Pod,
};

/// How often a batch is sent.
const TICK: Duration = Duration::from_millis(1);

/// A storm; ends with the value.
#[derive(Debug)]
pub struct Storm {
    begun: Instant,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Storm {
    /// Begins.
    ///
    /// # Errors
    /// Where the pod's device is gone.
    pub fn begin(pod: &Pod, per_second: u32) -> Result<Self> {
        let sender = FrameSender::open(pod)?;
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let begun = Instant::now();
        let thread = {
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            thread::spawn(move || {
                let mut random = Random(0x9e37_79b9_7f4a_7c15);
                while !stop.load(Ordering::Acquire) {
                    let done = sent.load(Ordering::Relaxed);
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a number of frames"
                    )]
                    let due = (begun.elapsed().as_secs_f64() * f64::from(per_second)) as u64;
                    // What a stall kept back is not sent all at once.
                    let batch = due.saturating_sub(done).min(u64::from(per_second) / 100);
                    let frames: Vec<_> = (0..batch).map(|_| random.frame()).collect();
                    if !frames.is_empty() {
                        sender.send_all(&frames)?;
                    }
                    sent.fetch_add(batch, Ordering::Relaxed);
                    thread::sleep(TICK);
                }
                Ok(())
            })
        };
        Ok(Self {
            begun,
            stop,
            sent,
            thread: Some(thread),
        })
    }

    /// Ends it; gives the frames a second that it came to.
    ///
    /// # Errors
    /// Where a frame could not be sent.
    pub fn end(mut self) -> Result<f64> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let sent = self.sent.load(Ordering::Relaxed);
        self.stop.store(true, Ordering::Release);
        self.thread
            .take()
            .context("a storm has a thread")?
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

/// SplitMix64: the same storm every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 11.0.0.0/8 and a locally administered station.
    fn frame(&mut self) -> Vec<u8> {
        let [_, a, b, c, d, e, f, g] = self.next().to_be_bytes();
        let station = MacAddress([0x02, d, e, f, g, a]);
        Frame::announcement(station, Ipv4Addr::new(11, a, b, c)).to_bytes()
    }
}
