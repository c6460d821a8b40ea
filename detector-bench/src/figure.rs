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

/// One measured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The heading of the table that it belongs to.
    pub group: String,
    /// What was measured.
    pub name: String,
    /// The value; `None` if it could not be measured, for the reason in `note`.
    pub value: Option<f64>,
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

    /// Sets the note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Whether it meets its goal; `None` without a goal. A figure that could not be measured misses it.
    #[must_use]
    pub fn is_met(&self) -> Option<bool> {
        let goal = self.goal?;
        Some(self.value.is_some_and(|value| match goal {
            Goal::Below(bound) => value < bound,
            Goal::AtMost(bound) => value <= bound,
            Goal::AtLeast(bound) => value >= bound,
        }))
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
    use super::{Figure, Goal};

    #[test]
    fn absent_figure_misses_its_goal() {
        let absent = Figure::absent("group", "name", "it did not start").goal(Goal::Below(1.0));
        assert_eq!(absent.is_met(), Some(false));
        assert_eq!(Figure::new("group", "name", 1.0, "s").is_met(), None);
    }

    #[test]
    fn below_excludes_the_bound() {
        let one = Figure::new("group", "name", 1.0, "s");
        assert_eq!(one.clone().goal(Goal::Below(1.0)).is_met(), Some(false));
        assert_eq!(one.clone().goal(Goal::AtMost(1.0)).is_met(), Some(true));
        assert_eq!(one.goal(Goal::AtLeast(1.0)).is_met(), Some(true));
    }
}
