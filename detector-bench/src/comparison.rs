//! Comparison of arms measured in alternation: by how many percent one arm takes longer than another, with a confidence interval.
//!
//! Arms are measured in blocks. The order within a block is random and then reversed, so a drift of the machine during a block
//! affects all arms alike. Each block gives one logarithm of a ratio; the effect is their trimmed mean, since a block that
//! something else disturbed is an outlier. An arm that occurs twice (A/A) shows the error that the method itself makes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use detector_testkit::random::Random;

/// The share of the sample that is cut off at each end.
const TRIMMED: f64 = 0.2;
/// Blocks before the first decision whether the precision is sufficient.
const MIN_BLOCKS: usize = 20;

/// By how much one arm takes longer than another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Percent; negative if it is faster.
    pub percent: f64,
    /// Half of the width of the 95 % confidence interval, percent.
    pub uncertainty: f64,
}

impl Effect {
    /// From the logarithms of ratios, one for each block.
    #[must_use]
    pub fn of(logarithms: &[f64]) -> Self {
        let (mean, error) = trimmed_mean(logarithms);
        Self {
            percent: mean.exp_m1() * 100.0,
            uncertainty: error * quantile(logarithms.len()) * 100.0,
        }
    }
}

/// The time of each arm in each block.
#[derive(Clone, Debug)]
pub struct Blocks<const ARMS: usize> {
    logarithms: Vec<[f64; ARMS]>,
    random: Random,
}

/// When to stop measuring.
#[derive(Clone, Copy, Debug)]
pub struct Precision {
    /// Percent on each side of the effect.
    pub uncertainty: f64,
    /// At most this long.
    pub time_limit: Duration,
}

impl<const ARMS: usize> Default for Blocks<ARMS> {
    fn default() -> Self {
        Self {
            logarithms: Vec::new(),
            // A fixed seed, so that a run can be repeated.
            random: Random(0x5851_f42d_4c95_7f2d),
        }
    }
}

impl<const ARMS: usize> Blocks<ARMS> {
    /// Measures one block: each arm twice, in a random order and then in the reverse one. `measure` returns a time, or anything
    /// that is proportional to one.
    ///
    /// # Errors
    /// A measurement fails or is not positive.
    pub fn add(&mut self, mut measure: impl FnMut(usize) -> Result<f64>) -> Result<()> {
        let order = self.random_order();
        let mut sums = [0.0; ARMS];
        for arm in order.into_iter().chain(order.into_iter().rev()) {
            let time = measure(arm)?;
            ensure!(time > 0.0, "a measurement is {time}");
            if let Some(sum) = sums.get_mut(arm) {
                *sum += time.ln() / 2.0;
            }
        }
        self.logarithms.push(sums);
        Ok(())
    }

    /// Measures blocks until the effect is known with this precision, or for the time limit.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn add_until(
        &mut self,
        precision: Precision,
        effect: impl Fn(&Self) -> Effect,
        mut measure: impl FnMut(usize) -> Result<f64>,
    ) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < precision.time_limit {
            self.add(&mut measure)?;
            // The decision depends on the spread alone, never on the effect.
            if self.len() >= MIN_BLOCKS
                && self.len().is_multiple_of(5)
                && effect(self).uncertainty <= precision.uncertainty
            {
                break;
            }
        }
        Ok(())
    }

    /// The effect of one arm, compared with another.
    #[must_use]
    pub fn effect(&self, arm: usize, base: usize) -> Effect {
        Effect::of(&self.map(|of| of(arm) - of(base)))
    }

    /// A value for each block, from the logarithm of an arm's time.
    pub fn map(&self, value: impl Fn(&dyn Fn(usize) -> f64) -> f64) -> Vec<f64> {
        self.logarithms
            .iter()
            .map(|times| value(&|arm| times.get(arm).copied().unwrap_or(f64::NAN)))
            .collect()
    }

    /// The typical measurement of an arm.
    #[must_use]
    pub fn typical(&self, arm: usize) -> f64 {
        trimmed_mean(&self.map(|of| of(arm))).0.exp()
    }

    /// The number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.logarithms.len()
    }

    /// Whether nothing has been measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.logarithms.is_empty()
    }

    fn random_order(&mut self) -> [usize; ARMS] {
        let mut order = std::array::from_fn(|arm| arm);
        for last in (1..ARMS).rev() {
            let other = usize::try_from(self.random.below(last as u64 + 1)).unwrap_or(last);
            order.swap(last, other);
        }
        order
    }
}

/// Standard errors on each side of a 95 % confidence interval of the trimmed mean of `count` values: the quantile of Student's
/// distribution, by the first terms of its expansion. NaN if fewer than five values are left after trimming.
fn quantile(count: usize) -> f64 {
    let freedom = count as f64 * (1.0 - 2.0 * TRIMMED) - 1.0;
    if freedom < 4.0 {
        return f64::NAN;
    }
    1.96 + 2.37 / freedom + 2.82 / freedom.powi(2)
}

/// The trimmed mean and its standard error, from the Winsorized variance (Tukey and McLaughlin, 1963). NaN for fewer than two
/// values.
#[must_use]
pub fn trimmed_mean(sample: &[f64]) -> (f64, f64) {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "less than the number of values"
    )]
    let cut = (count as f64 * TRIMMED) as usize;
    let kept = sorted.get(cut..count - cut).unwrap_or_default();
    let (Some(low), Some(high)) = (kept.first(), kept.last()) else {
        return (f64::NAN, f64::NAN);
    };
    let mean = kept.iter().sum::<f64>() / kept.len() as f64;
    let winsorized: Vec<f64> = sorted.iter().map(|x| x.clamp(*low, *high)).collect();
    let winsorized_mean = winsorized.iter().sum::<f64>() / count as f64;
    let squares: f64 = winsorized
        .iter()
        .map(|x| (x - winsorized_mean).powi(2))
        .sum();
    let deviation = (squares / (count as f64 - 1.0)).sqrt();
    let error = deviation / ((1.0 - 2.0 * TRIMMED) * (count as f64).sqrt());
    (mean, error)
}

#[cfg(test)]
mod tests {
    use super::{Blocks, Effect, quantile, trimmed_mean};
    use detector_testkit::random::Random;

    /// About normal, with mean 0 and deviation 1.
    fn noise(random: &mut Random) -> f64 {
        let uniform = |random: &mut Random| random.below(1 << 32) as f64 / (1_u64 << 32) as f64;
        (0..12).map(|_| uniform(random)).sum::<f64>() - 6.0
    }

    #[test]
    fn confidence_interval_contains_the_effect_as_often_as_claimed() {
        let mut random = Random(7);
        let contained = (0..1000)
            .filter(|_| {
                let sample: Vec<f64> = (0..50).map(|_| 0.01 + 0.02 * noise(&mut random)).collect();
                let Effect {
                    percent,
                    uncertainty,
                } = Effect::of(&sample);
                (percent - 0.01_f64.exp_m1() * 100.0).abs() <= uncertainty
            })
            .count();
        assert!((920..=975).contains(&contained), "{contained}");
    }

    #[test]
    fn few_blocks_widen_the_interval() {
        // Tables of Student's distribution: 2.306 for 8 degrees of freedom, 2.045 for 29.
        for (count, expected) in [(15, 2.306), (50, 2.045)] {
            assert!((quantile(count) - expected).abs() < 0.01, "{count}");
        }
        assert!(Effect::of(&[0.01; 8]).uncertainty.is_nan());
    }

    #[test]
    fn disturbed_blocks_do_not_move_the_effect() {
        let mut sample = vec![0.01; 18];
        sample.extend([3.0, 5.0]);
        let (mean, error) = trimmed_mean(&sample);
        assert!((mean - 0.01).abs() < 1e-9, "{mean}");
        assert!(error < 1e-9, "{error}");
    }

    #[test]
    fn drift_affects_all_arms_of_a_block_alike() {
        let mut blocks = Blocks::<3>::default();
        let mut drift = 1.0;
        for _ in 0..20 {
            let measured = blocks.add(|arm| {
                drift *= 1.01;
                Ok(drift * if arm == 2 { 1.1 } else { 1.0 })
            });
            assert!(measured.is_ok());
        }
        let (ab, aa) = (blocks.effect(2, 0), blocks.effect(1, 0));
        assert!((ab.percent - 10.0).abs() < 1e-6, "{ab:?}");
        assert!(aa.percent.abs() < 1e-6, "{aa:?}");
    }

    #[test]
    fn order_of_the_arms_changes_and_every_arm_is_measured_twice() {
        let mut blocks = Blocks::<3>::default();
        let mut orders = Vec::new();
        for _ in 0..20 {
            let mut order = Vec::new();
            let measured = blocks.add(|arm| {
                order.push(arm);
                Ok(1.0)
            });
            assert!(measured.is_ok());
            let reversed: Vec<usize> = order.iter().rev().copied().collect();
            assert_eq!(order, reversed);
            order.truncate(3);
            orders.push(order);
        }
        orders.sort();
        orders.dedup();
        assert_eq!(orders.len(), 6);
    }

    #[test]
    fn failed_measurement_ends_the_block() {
        assert!(Blocks::<2>::default().add(|_| Ok(0.0)).is_err());
    }

    #[test]
    fn without_blocks_nothing_is_known() {
        assert!(Blocks::<2>::default().effect(1, 0).uncertainty.is_nan());
    }
}
