//! The kernel log (`--kernel-log`): why the kernel programs did not publish something, as log lines of the agent.
//!
//! Three limits keep a flood of malformed frames from flooding the log: a budget of lines per device in the kernel program,
//! the size of aya-log's ring buffer, and [`LINES_PER_POLL`]. The kernel program counts every line before any of them, so
//! suppressed lines are the difference between that counter and what was written.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use aya::Ebpf;
use aya_log::EbpfLogger;
use detector_common::{Counter, LogEvent, LogLine};
use detector_engine::Mac;
use log::{Log, Metadata, Record};
use nix::net::if_::if_indextoname;
use tracing::{debug, field::display, info, warn};

use super::{CounterReader, KERNEL_LOG_TARGET as TARGET};

/// Lines written by one call of [`KernelLogReader::poll`].
const LINES_PER_POLL: u64 = 100;

/// Reads the kernel log. Nothing is read between two calls of [`Self::poll`].
pub struct KernelLogReader {
    logger: EbpfLogger<Arc<LineWriter>>,
    writer: Arc<LineWriter>,
    counters: CounterReader,
    /// Lines counted by the kernel programs before the previous poll: by now they are in the buffer or lost.
    counted: u64,
    suppressed: u64,
}

impl std::fmt::Debug for KernelLogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelLogReader").finish_non_exhaustive()
    }
}

impl KernelLogReader {
    /// Takes aya-log's ring buffer, before the programs that write to it are loaded.
    pub(super) fn new(ebpf: &mut Ebpf, counters: CounterReader) -> Result<Self, aya_log::Error> {
        let writer = Arc::new(LineWriter::default());
        Ok(Self {
            logger: EbpfLogger::init_with_logger(ebpf, Arc::clone(&writer))?,
            writer,
            counters,
            counted: 0,
            suppressed: 0,
        })
    }

    /// Writes the lines since the last call to the agent's log, at most [`LINES_PER_POLL`] of them. Returns how many lines
    /// have been suppressed since the programs were loaded.
    pub fn poll(&mut self) -> u64 {
        // Read before the buffer, so that it counts no line that is still to be written.
        let counted = self
            .counters
            .read()
            .map_or(self.counted, |counts| counts.get(Counter::LogLines));
        self.writer
            .remaining
            .store(LINES_PER_POLL, Ordering::Relaxed);
        self.logger.flush();
        let written = self.writer.written.load(Ordering::Relaxed);
        let suppressed = self.counted.saturating_sub(written);
        if let Some(more) = suppressed.checked_sub(self.suppressed)
            && more > 0
        {
            warn!(target: TARGET, suppressed = more, "{more} kernel log records suppressed");
            self.suppressed = suppressed;
        }
        self.counted = counted;
        self.suppressed
    }
}

/// Turns aya-log's records into events of `tracing`.
#[derive(Debug, Default)]
struct LineWriter {
    /// Lines that may still be written in this poll.
    remaining: AtomicU64,
    written: AtomicU64,
}

impl Log for LineWriter {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let remaining = self.remaining.load(Ordering::Relaxed);
        let Some(left) = remaining.checked_sub(1) else {
            return;
        };
        self.remaining.store(left, Ordering::Relaxed);
        self.written.fetch_add(1, Ordering::Relaxed);
        match LogLine::parse(&record.args().to_string()) {
            Some(line) => write(&line),
            None => debug!(target: TARGET, line = %record.args(), "unknown kernel log record"),
        }
    }

    fn flush(&self) {}
}

fn write(line: &LogLine) {
    // The name now: a device that is gone has none, and its index may have been reused.
    let device = line
        .ifindex
        .and_then(|ifindex| if_indextoname(ifindex).ok())
        .map(|name| name.to_string_lossy().into_owned());
    let device = device.as_deref();
    let reason = line.event.reason();
    let ether_source = line.ether_source.map(|mac| display(Mac(mac)));
    let mac = line.mac.map(|mac| display(Mac(mac)));
    let (address, target_address) = (line.address.map(display), line.target.map(display));
    let (ifindex, detail) = (line.ifindex, line.detail);
    match line.event {
        LogEvent::Rejected(_) => info!(
            target: TARGET, device, ifindex, reason, ether_source, mac, address, target_address, "frame rejected"
        ),
        LogEvent::Dropped(_) => info!(
            target: TARGET, device, ifindex, reason, ether_source, mac, address, "observation dropped"
        ),
        LogEvent::AlreadyPublished(_) => debug!(
            target: TARGET, device, ifindex, reason, ether_source, mac, address, "observation not repeated"
        ),
        LogEvent::Ignored(_) => {
            debug!(target: TARGET, reason, detail, "neighbour update ignored");
        }
    }
}
