//! Updates `docs/benchmarks.md`: only the text between two markers is replaced.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::machine::Machine;
use crate::{files, process};

const BEGIN: &str = "<!-- measured: written by `cargo xtask bench` -->";
const END: &str = "<!-- measured: end -->";

/// The circumstances of a run.
pub(super) struct BenchmarkRun<'m> {
    /// The machine, with its load before the run.
    pub(super) machine: &'m Machine,
    /// Load averages after the run.
    pub(super) load_after: String,
    /// The command that was run.
    pub(super) command: &'static str,
    /// How long the run took.
    pub(super) duration: Duration,
    /// How many goals were met.
    pub(super) verdict: String,
}

/// Replaces the text between the markers.
///
/// # Errors
/// The document cannot be read or written, or has no markers.
pub(super) fn update(path: &Path, run: &BenchmarkRun<'_>, tables: &str) -> Result<()> {
    let date = process::try_output(Command::new("date").args(["--utc", "+%F %H:%M UTC"]))
        .unwrap_or_default();
    let measured = format!("{}{tables}", header(run, date.trim()));
    let text = replace_measured(&files::read_text(path)?, &measured)
        .with_context(|| format!("{} has no lines {BEGIN} and {END}", path.display()))?;
    files::write(path, text)
}

fn header(run: &BenchmarkRun<'_>, date: &str) -> String {
    let Machine {
        processor,
        cores,
        memory_mib,
        is_virtual,
        kernel,
        load,
    } = run.machine;
    let kind = if *is_virtual {
        "a virtual machine"
    } else {
        "bare metal"
    };
    format!(
        "| | |\n| --- | --- |\n\
         | machine | {processor}, {cores} cores, {memory_mib} MiB, {kind} |\n\
         | kernel | {kernel} |\n\
         | date | {date} |\n\
         | command | `{}`, {} s |\n\
         | load (1, 5, 15 min) before and after | {load} and {} |\n\n{}\n\n",
        run.command,
        run.duration.as_secs(),
        run.load_after,
        run.verdict,
    )
}

fn replace_measured(text: &str, measured: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{measured}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::{BEGIN, END, replace_measured};

    #[test]
    fn only_text_between_the_markers_is_replaced() {
        let text = format!("# Title\n{BEGIN}\nold\n{END}\nprose\n");
        let new = replace_measured(&text, "new\n");
        assert_eq!(
            new,
            Some(format!("# Title\n{BEGIN}\n\nnew\n{END}\nprose\n"))
        );
        assert_eq!(replace_measured("# Title\n", "new\n"), None);
    }
}
