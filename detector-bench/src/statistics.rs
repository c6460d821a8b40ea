//! Percentiles and figures of samples.

use super::Figure;

/// The value that `percent` of the sample do not exceed (nearest rank); 0 of an empty one.
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

/// The median.
#[must_use]
pub fn median(sample: &[f64]) -> f64 {
    percentile(sample, 50.0)
}

/// p50, p99 and the maximum of microseconds as three figures, without goals.
#[must_use]
pub fn latencies(group: &str, name: &str, sample: &[f64]) -> [Figure; 3] {
    [("p50", 50.0), ("p99", 99.0), ("max", 100.0)].map(|(rank, percent)| {
        let value = percentile(sample, percent);
        Figure::new(group, format!("{name}, {rank}"), value, "µs").note(format!(
            "of {}; a tenth within {:.0} µs",
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
