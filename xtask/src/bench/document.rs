//! `docs/benchmarks.md`: what people wrote there stays, the measured part between two marks is replaced.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};

use super::machine::Machine;
use crate::process;

const BEGIN: &str = "<!-- measured: written by `cargo xtask bench` -->";
const END: &str = "<!-- measured: end -->";

/// How the figures came about.
pub(super) struct Run<'m> {
    /// On what.
    pub(super) machine: &'m Machine,
    /// Load averages after it.
    pub(super) load_after: String,
    /// By what.
    pub(super) command: &'static str,
    /// In what time.
    pub(super) took: Duration,
    /// How many goals were met.
    pub(super) verdict: String,
}

/// Replaces the measured part.
///
/// # Errors
/// Where the document cannot be read or written, or the marks are not in it.
pub(super) fn write(path: &Path, run: &Run<'_>, tables: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let date = process::probe(std::process::Command::new("date").args(["--utc", "+%F %H:%M UTC"]))
        .unwrap_or_default();
    let measured = format!("{}{tables}", heading(run, date.trim()));
    let Some(text) = replaced(&text, &measured) else {
        bail!("{} lacks the lines {BEGIN} and {END}", path.display());
    };
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn heading(run: &Run<'_>, date: &str) -> String {
    let Machine {
        processor,
        cores,
        memory_mib,
        virtual_machine,
        kernel,
        load,
    } = run.machine;
    let kind = if *virtual_machine {
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
        run.took.as_secs(),
        run.load_after,
        run.verdict,
    )
}

fn replaced(text: &str, measured: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{measured}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::{BEGIN, END, replaced};

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let text = format!("# Title\n{BEGIN}\nold\n{END}\nprose\n");
        let new = replaced(&text, "new\n");
        assert_eq!(
            new,
            Some(format!("# Title\n{BEGIN}\n\nnew\n{END}\nprose\n"))
        );
        assert_eq!(replaced("# Title\n", "new\n"), None);
    }
}
