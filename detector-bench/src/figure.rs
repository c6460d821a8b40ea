//! One measured value beside its goal, as a line of JSON that another process collects.

use std::{env, fs::OpenOptions, io::Write as _};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Environment variable that names the file which figures are appended to.
pub const FIGURES_VARIABLE: &str = "BENCH_FIGURES";

/// What a value should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Less than this.
    Below(f64),
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

/// One measured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Which table it stands in.
    pub group: String,
    /// What was measured.
    pub name: String,
    /// The value; nothing where it could not be measured, and then `note` says why.
    pub value: Option<f64>,
    /// Unit of value and goal, as a reader wants to see it.
    pub unit: String,
    /// What it should be, where that was decided.
    pub goal: Option<Goal>,
    /// How it was measured, the noise, why there is no value.
    pub note: String,
}

impl Figure {
    /// A value without a goal.
    #[must_use]
    pub fn new(group: &str, name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self {
            group: group.to_owned(),
            name: name.into(),
            value: value.is_finite().then_some(value),
            unit: unit.to_owned(),
            goal: None,
            note: String::new(),
        }
    }

    /// What could not be measured, and why.
    #[must_use]
    pub fn absent(group: &str, name: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            value: None,
            note: why.into(),
            ..Self::new(group, name, 0.0, "")
        }
    }

    /// Sets what it should be.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Sets the note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Is it as it should be? Nothing where there is no goal; what could not be measured is not.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        let goal = self.goal?;
        Some(self.value.is_some_and(|value| match goal {
            Goal::Below(most) => value < most,
            Goal::AtMost(most) => value <= most,
            Goal::AtLeast(least) => value >= least,
        }))
    }
}

/// Appends figures to the file that [`FIGURES_VARIABLE`] names; does nothing where it is not set.
///
/// # Errors
/// Where the file cannot be written.
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
    use super::{Figure, Goal};

    #[test]
    fn what_could_not_be_measured_has_missed_its_goal() {
        let absent = Figure::absent("group", "name", "it did not start").goal(Goal::Below(1.0));
        assert_eq!(absent.met(), Some(false));
        assert_eq!(Figure::new("group", "name", 1.0, "s").met(), None);
    }

    #[test]
    fn a_goal_of_below_is_missed_by_its_own_value() {
        let one = Figure::new("group", "name", 1.0, "s");
        assert_eq!(one.clone().goal(Goal::Below(1.0)).met(), Some(false));
        assert_eq!(one.clone().goal(Goal::AtMost(1.0)).met(), Some(true));
        assert_eq!(one.goal(Goal::AtLeast(1.0)).met(), Some(true));
    }
}
