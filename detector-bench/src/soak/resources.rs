//! The agent's memory and file descriptors over time, and their trend.

use std::time::{Duration, Instant};

use anyhow::Result;
use detector_testkit::process::{Descriptors, open_descriptors, resident_kib};

use crate::statistics::median;

/// One sample.
#[derive(Clone, Copy, Debug)]
struct ResourceSample {
    at: Duration,
    resident_kib: f64,
    descriptors: Descriptors,
}

/// The samples of one process.
#[derive(Debug)]
pub(super) struct ResourceSamples {
    pid: u32,
    started: Instant,
    samples: Vec<ResourceSample>,
}

/// The trend after the warm-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceTrend {
    /// Median of the first quarter, KiB.
    pub(super) first_kib: f64,
    /// Median of the last quarter, KiB.
    pub(super) last_kib: f64,
    /// Slope of the linear regression, KiB per hour.
    pub(super) slope_kib_per_hour: f64,
    /// Maximum, KiB.
    pub(super) max_kib: f64,
    /// Fewest descriptors in the first and in the last quarter, without TCP connections: a leak raises that, while what is open
    /// for a moment raises only the most.
    pub(super) descriptors: (usize, usize),
    /// The most TCP connections. Their number varies with what the webhook does, so it is bounded instead of compared.
    pub(super) max_connections: usize,
}

impl ResourceSamples {
    pub(super) fn new(pid: u32) -> Self {
        Self {
            pid,
            started: Instant::now(),
            samples: Vec::new(),
        }
    }

    pub(super) fn sample(&mut self) -> Result<()> {
        self.samples.push(ResourceSample {
            at: self.started.elapsed(),
            resident_kib: resident_kib(self.pid)? as f64,
            descriptors: open_descriptors(self.pid)?,
        });
        Ok(())
    }

    /// The trend after the first quarter, which is the warm-up; `None` if there are too few samples.
    pub(super) fn trend(&self) -> Option<ResourceTrend> {
        let warm = self.samples.get(self.samples.len() / 4..)?;
        let quarter = warm.len() / 4;
        if quarter < 2 {
            return None;
        }
        let (first, last) = (warm.get(..quarter)?, warm.get(warm.len() - quarter..)?);
        let memory = |samples: &[ResourceSample]| -> Vec<f64> {
            samples.iter().map(|sample| sample.resident_kib).collect()
        };
        Some(ResourceTrend {
            first_kib: median(&memory(first)),
            last_kib: median(&memory(last)),
            slope_kib_per_hour: slope(warm)?,
            max_kib: memory(warm).into_iter().fold(0.0, f64::max),
            descriptors: (fewest_descriptors(first)?, fewest_descriptors(last)?),
            max_connections: warm.iter().map(|s| s.descriptors.connections).max()?,
        })
    }
}

fn fewest_descriptors(samples: &[ResourceSample]) -> Option<usize> {
    samples.iter().map(|s| s.descriptors.others).min()
}

/// Slope of the linear regression by least squares, KiB per hour.
fn slope(samples: &[ResourceSample]) -> Option<f64> {
    let count = samples.len() as f64;
    let mean = |of: fn(&ResourceSample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (time, memory) = (mean(|s| s.at.as_secs_f64()), mean(|s| s.resident_kib));
    let (mut covariance, mut variance) = (0.0, 0.0);
    for sample in samples {
        let deviation = sample.at.as_secs_f64() - time;
        covariance += deviation * (sample.resident_kib - memory);
        variance += deviation * deviation;
    }
    (variance > 0.0).then(|| covariance / variance * 3600.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn samples(memory: impl Fn(u32) -> f64) -> ResourceSamples {
        let sample = |second| ResourceSample {
            at: Duration::from_secs(u64::from(second)),
            resident_kib: memory(second),
            // Fluctuates without a trend.
            descriptors: Descriptors {
                connections: second as usize % 9,
                others: 20 + second as usize % 7,
            },
        };
        ResourceSamples {
            pid: 0,
            started: Instant::now(),
            samples: (0..400).map(sample).collect(),
        }
    }

    #[test]
    fn only_growth_after_the_warm_up_counts() {
        let flat = samples(|second| f64::from(second.min(90)) * 100.0)
            .trend()
            .unwrap();
        assert!(flat.slope_kib_per_hour.abs() < 1.0, "{flat:?}");
        assert!((flat.last_kib - flat.first_kib).abs() < 1.0, "{flat:?}");
        assert_eq!(flat.descriptors, (20, 20));
        assert_eq!(flat.max_connections, 8);
        let growing = samples(|second| 10_000.0 + f64::from(second))
            .trend()
            .unwrap();
        assert!(
            (growing.slope_kib_per_hour - 3600.0).abs() < 1.0,
            "{growing:?}"
        );
        assert!(growing.last_kib - growing.first_kib > 200.0, "{growing:?}");
    }

    #[test]
    fn leaked_descriptors_count() {
        let mut leaking = samples(|_| 1.0);
        for (second, sample) in leaking.samples.iter_mut().enumerate() {
            sample.descriptors.others += second / 20;
        }
        // Seconds 100 to 174, and 325 to 399.
        assert_eq!(leaking.trend().unwrap().descriptors, (25, 36));
    }

    #[test]
    fn too_few_samples_have_no_trend() {
        let mut short = samples(|_| 1.0);
        short.samples.truncate(6);
        assert!(short.trend().is_none());
    }
}
