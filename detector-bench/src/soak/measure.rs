//! The agent's memory and descriptors over time, and what they say.

use std::time::{Duration, Instant};

use anyhow::Result;

use detector_testkit::process::{open_descriptors, resident_kib};

/// One look.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    resident_kib: f64,
    descriptors: usize,
}

/// What was seen of one process.
#[derive(Debug)]
pub(super) struct Series {
    pid: u32,
    begun: Instant,
    samples: Vec<Sample>,
}

/// What it comes to, without the warm-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trend {
    /// Median of the first quarter, KiB.
    pub(super) first_kib: f64,
    /// Median of the last quarter, KiB.
    pub(super) last_kib: f64,
    /// Of the straight line through all samples, KiB an hour.
    pub(super) slope_kib_per_hour: f64,
    /// The most, KiB.
    pub(super) most_kib: f64,
    /// The most descriptors in the first quarter and in the last.
    pub(super) descriptors: (usize, usize),
}

impl Series {
    pub(super) fn of(pid: u32) -> Self {
        Self {
            pid,
            begun: Instant::now(),
            samples: Vec::new(),
        }
    }

    pub(super) fn look(&mut self) -> Result<()> {
        self.samples.push(Sample {
            at: self.begun.elapsed(),
            resident_kib: resident_kib(self.pid)? as f64,
            descriptors: open_descriptors(self.pid)?,
        });
        Ok(())
    }

    /// The trend of what came after the first quarter; `None` of too few looks.
    pub(super) fn trend(&self) -> Option<Trend> {
        let warm = self.samples.get(self.samples.len() / 4..)?;
        let quarter = warm.len() / 4;
        if quarter < 2 {
            return None;
        }
        let (first, last) = (warm.get(..quarter)?, warm.get(warm.len() - quarter..)?);
        let memory = |samples: &[Sample]| -> Vec<f64> {
            samples.iter().map(|sample| sample.resident_kib).collect()
        };
        Some(Trend {
            first_kib: median(memory(first))?,
            last_kib: median(memory(last))?,
            slope_kib_per_hour: slope(warm)?,
            most_kib: memory(warm).into_iter().fold(0.0, f64::max),
            descriptors: (most_descriptors(first)?, most_descriptors(last)?),
        })
    }
}

fn most_descriptors(samples: &[Sample]) -> Option<usize> {
    samples.iter().map(|sample| sample.descriptors).max()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Least squares, KiB an hour.
fn slope(samples: &[Sample]) -> Option<f64> {
    let count = samples.len() as f64;
    let mean = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (time, memory) = (mean(|s| s.at.as_secs_f64()), mean(|s| s.resident_kib));
    let (mut together, mut spread) = (0.0, 0.0);
    for sample in samples {
        let away = sample.at.as_secs_f64() - time;
        together += away * (sample.resident_kib - memory);
        spread += away * away;
    }
    (spread > 0.0).then(|| together / spread * 3600.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn series(memory: impl Fn(u32) -> f64) -> Series {
        let sample = |second| Sample {
            at: Duration::from_secs(u64::from(second)),
            resident_kib: memory(second),
            // Some come and go; none stays.
            descriptors: 20 + second as usize % 7,
        };
        Series {
            pid: 0,
            begun: Instant::now(),
            samples: (0..400).map(sample).collect(),
        }
    }

    #[test]
    fn growth_after_the_warm_up_is_told_and_growth_during_it_is_not() {
        let flat = series(|second| f64::from(second.min(90)) * 100.0)
            .trend()
            .unwrap();
        assert!(flat.slope_kib_per_hour.abs() < 1.0, "{flat:?}");
        assert!((flat.last_kib - flat.first_kib).abs() < 1.0, "{flat:?}");
        assert_eq!(flat.descriptors, (26, 26));
        let growing = series(|second| 10_000.0 + f64::from(second))
            .trend()
            .unwrap();
        assert!(
            (growing.slope_kib_per_hour - 3600.0).abs() < 1.0,
            "{growing:?}"
        );
        assert!(growing.last_kib - growing.first_kib > 200.0, "{growing:?}");
    }

    #[test]
    fn descriptors_that_stay_open_are_told() {
        let mut leaking = series(|_| 1.0);
        for (second, sample) in leaking.samples.iter_mut().enumerate() {
            sample.descriptors += second / 20;
        }
        // Seconds 100 to 174, and 325 to 399.
        assert_eq!(leaking.trend().unwrap().descriptors, (34, 45));
    }

    #[test]
    fn a_few_looks_are_no_trend() {
        let mut short = series(|_| 1.0);
        short.samples.truncate(6);
        assert!(short.trend().is_none());
    }
}
