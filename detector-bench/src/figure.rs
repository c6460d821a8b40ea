//! A measured value with its goal, as a line of JSON that another process collects.

use std::{env, fs::OpenOptions, io::Write as _};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// The environment variable with the path of the file that figures are appended to.
pub const FIGURES_VARIABLE: &str = "BENCH_FIGURES";

/// The goal for a value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// The value must be less than this.
    Below(f64),
    /// The value must not exceed this.
    AtMost(f64),
    /// The value must not be less than this.
    AtLeast(f64),
}

impl Goal {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::Below(bound) => value < bound,
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }
}

/// How a figure compares with its goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The goal is met, at each end of the uncertainty.
    Met,
    /// The goal is missed at each end of the uncertainty, or there is no value.
    Missed,
    /// The goal is within the uncertainty, which is contained: it cannot be known whether it is met.
    Unknown(f64),
}

/// One measured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The heading of the table that it belongs to.
    pub group: String,
    /// What was measured.
    pub name: String,
    /// The value; `None` if it could not be measured, for the reason in `note`.
    pub value: Option<f64>,
    /// Half of the width of the 95 % confidence interval, in the unit of the value; `None` if it was not determined.
    #[serde(default)]
    pub uncertainty: Option<f64>,
    /// The unit of value and goal.
    pub unit: String,
    /// The goal, if there is one.
    pub goal: Option<Goal>,
    /// How it was measured, the noise, or why there is no value.
    pub note: String,
}

impl Figure {
    /// A figure without a goal; a value that is not finite counts as not measured.
    #[must_use]
    pub fn new(group: &str, name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self {
            group: group.to_owned(),
            name: name.into(),
            value: value.is_finite().then_some(value),
            uncertainty: None,
            unit: unit.to_owned(),
            goal: None,
            note: String::new(),
        }
    }

    /// A figure that could not be measured, with the reason.
    #[must_use]
    pub fn absent(group: &str, name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            value: None,
            note: reason.into(),
            ..Self::new(group, name, 0.0, "")
        }
    }

    /// Sets the goal.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Sets the uncertainty. One that is not finite is infinite: nothing is known.
    #[must_use]
    pub fn uncertainty(mut self, uncertainty: f64) -> Self {
        self.uncertainty = Some(if uncertainty.is_finite() {
            uncertainty.abs()
        } else {
            f64::MAX
        });
        self
    }

    /// Sets the note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// How it compares with its goal; `None` without a goal.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        let goal = self.goal?;
        let Some(value) = self.value else {
            return Some(Verdict::Missed);
        };
        let uncertainty = self.uncertainty.unwrap_or_default();
        let ends = [value - uncertainty, value + uncertainty];
        Some(match ends.map(|end| goal.is_met_by(end)) {
            [true, true] => Verdict::Met,
            [false, false] => Verdict::Missed,
            _ => Verdict::Unknown(uncertainty),
        })
    }
}

/// Appends figures to the file named by [`FIGURES_VARIABLE`]; does nothing if the variable is not set.
///
/// # Errors
/// The file cannot be written.
pub fn record(figures: &[Figure]) -> Result<()> {
    let Some(path) = env::var_os(FIGURES_VARIABLE) else {
        return Ok(());
    };
    let mut lines = String::new();
    for figure in figures {
        lines += &serde_json::to_string(figure).context("a figure as JSON")?;
        lines.push('\n');
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut file| file.write_all(lines.as_bytes()))
        .with_context(|| format!("writing figures to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{Figure, Goal, Verdict};

    fn one() -> Figure {
        Figure::new("group", "name", 1.0, "s")
    }

    #[test]
    fn absent_figure_misses_its_goal() {
        let absent = Figure::absent("group", "name", "it did not start").goal(Goal::Below(1.0));
        assert_eq!(absent.verdict(), Some(Verdict::Missed));
        assert_eq!(one().verdict(), None);
    }

    #[test]
    fn below_excludes_the_bound() {
        let verdict = |goal| one().goal(goal).verdict();
        assert_eq!(verdict(Goal::Below(1.0)), Some(Verdict::Missed));
        assert_eq!(verdict(Goal::AtMost(1.0)), Some(Verdict::Met));
        assert_eq!(verdict(Goal::AtLeast(1.0)), Some(Verdict::Met));
    }

    #[test]
    fn goal_within_the_uncertainty_is_neither_met_nor_missed() {
        let verdict = |goal| one().uncertainty(0.3).goal(goal).verdict();
        assert_eq!(verdict(Goal::AtMost(1.4)), Some(Verdict::Met));
        assert_eq!(verdict(Goal::AtMost(1.2)), Some(Verdict::Unknown(0.3)));
        assert_eq!(verdict(Goal::AtMost(0.8)), Some(Verdict::Unknown(0.3)));
        assert_eq!(verdict(Goal::AtMost(0.6)), Some(Verdict::Missed));
        assert_eq!(verdict(Goal::AtLeast(1.2)), Some(Verdict::Unknown(0.3)));
        assert_eq!(verdict(Goal::AtLeast(0.6)), Some(Verdict::Met));
    }

    #[test]
    fn undetermined_uncertainty_leaves_the_goal_unknown() {
        let figure = one().uncertainty(f64::NAN).goal(Goal::AtMost(2.0));
        assert_eq!(figure.verdict(), Some(Verdict::Unknown(f64::MAX)));
    }
}
