//! The standard process metrics of Prometheus, read from `/proc` at each scrape.

use std::fmt;

use procfs::process::{LimitValue, Process};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

/// This process.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    /// Seconds since 1970; does not change while the process lives.
    started: Option<f64>,
}

impl ProcessCollector {
    pub(super) fn new() -> Self {
        Self {
            started: started().ok(),
        }
    }
}

#[allow(clippy::cast_precision_loss)] // ticks and seconds are far below 2^52
fn started() -> procfs::ProcResult<f64> {
    let ticks = Process::myself()?.stat()?.starttime;
    let boot = procfs::boot_time_secs()?;
    Ok(boot as f64 + ticks as f64 / procfs::ticks_per_second() as f64)
}

struct ProcessStats {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    threads: i64,
    open_fds: u64,
    max_fds: Option<u64>,
}

#[allow(clippy::cast_precision_loss)] // as above
fn stats() -> procfs::ProcResult<ProcessStats> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let max_fds = match process.limits()?.max_open_files.soft_limit {
        LimitValue::Value(limit) => Some(limit),
        LimitValue::Unlimited => None,
    };
    Ok(ProcessStats {
        cpu_seconds: (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64,
        resident_bytes: stat.rss * procfs::page_size(),
        virtual_bytes: stat.vsize,
        threads: stat.num_threads,
        open_fds: process.fd_count()? as u64,
        max_fds,
    })
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Without /proc these metrics are missing; the others are still encoded.
        let Ok(stats) = stats() else {
            return Ok(());
        };
        let cpu = ConstCounter::new(stats.cpu_seconds);
        cpu.encode(encoder.encode_descriptor(
            "process_cpu",
            "Total user and system CPU time spent in seconds.",
            Some(&Unit::Seconds),
            cpu.metric_type(),
        )?)?;
        let mut gauge = |name: &str, help: &str, unit: Option<&Unit>, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)
        };
        #[allow(clippy::cast_precision_loss)] // memory of a process is far below 2^52 bytes
        let float = |value: u64| value as f64;
        gauge(
            "process_resident_memory",
            "Resident memory size in bytes.",
            Some(&Unit::Bytes),
            float(stats.resident_bytes),
        )?;
        gauge(
            "process_virtual_memory",
            "Virtual memory size in bytes.",
            Some(&Unit::Bytes),
            float(stats.virtual_bytes),
        )?;
        if let Some(started) = self.started {
            gauge(
                "process_start_time",
                "Start time of the process since the Unix epoch in seconds.",
                Some(&Unit::Seconds),
                started,
            )?;
        }
        gauge(
            "process_open_fds",
            "Number of open file descriptors.",
            None,
            float(stats.open_fds),
        )?;
        if let Some(limit) = stats.max_fds {
            gauge(
                "process_max_fds",
                "Maximum number of open file descriptors.",
                None,
                float(limit),
            )?;
        }
        gauge(
            "process_threads",
            "Number of threads of the process.",
            None,
            float(stats.threads.unsigned_abs()),
        )
    }
}
