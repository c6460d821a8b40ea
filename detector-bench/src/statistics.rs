//! Percentiles of samples, and figures from them.

use super::Figure;

/// The smallest value that at least `percent` of the sample do not exceed (nearest rank); 0 for an empty sample.
#[must_use]
pub fn percentile(sample: &[f64], percent: f64) -> f64 {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank is small and not negative"
    )]
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// The median; 0 for an empty sample.
#[must_use]
pub fn median(sample: &[f64]) -> f64 {
    percentile(sample, 50.0)
}

/// Half of the interquartile range: half of the sample lies within this distance of the median, roughly.
#[must_use]
pub fn half_interquartile_range(sample: &[f64]) -> f64 {
    (percentile(sample, 75.0) - percentile(sample, 25.0)) / 2.0
}

/// The standard error of the median of `count` values: 1.25 σ/√n for a normal distribution, with σ from the quartiles.
#[must_use]
pub fn median_error(half_interquartile_range: f64, count: usize) -> f64 {
    1.25 * half_interquartile_range / 0.674 / (count as f64).sqrt()
}

/// Three figures without goals from a sample of microseconds: p50, p99 and maximum.
#[must_use]
pub fn latencies(group: &str, name: &str, sample: &[f64]) -> [Figure; 3] {
    [("p50", 50.0), ("p99", 99.0), ("max", 100.0)].map(|(rank, percent)| {
        let value = percentile(sample, percent);
        Figure::new(group, format!("{name}, {rank}"), value, "µs").note(format!(
            "of {}; p10 {:.0} µs",
            sample.len(),
            percentile(sample, 10.0)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let sample: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(
            [50.0, 99.0, 100.0].map(|percent| percentile(&sample, percent)),
            [50.0, 99.0, 100.0]
        );
        assert_eq!(percentile(&[7.0], 50.0), 7.0);
        assert_eq!(percentile(&[], 99.0), 0.0);
    }
}
