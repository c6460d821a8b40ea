//! `fuzz`: libFuzzer over every parser that reads what others wrote, on the stable compiler.
//!
//! What the compiler calls sanitizer coverage is an LLVM pass that stable rustc can be told to run; no sanitizer is linked. The
//! instrumented build has a target directory of its own, `target/fuzz`, as everything else that fuzzing leaves.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{process, requirements::Group, say::say, setup, workspace::Workspace};

/// What an input may take; a parser that needs longer is a finding.
const INPUT_SECONDS: u32 = 10;
/// What a parser may hold; more is a finding.
const MEMORY_MIB: u32 = 1024;

/// Bounds of what counts as the longest input of a corpus, bytes.
const MIN_INPUT: u64 = 32;
const MAX_INPUT: u64 = 8192;

/// Coverage that libFuzzer reads, as cargo-fuzz asks for it without a sanitizer.
const COVERAGE: [&str; 7] = [
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Arguments of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long each target is fuzzed
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Targets side by side; as many as there are processors where not given
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
    /// Add what reached new code to the corpus in fuzz/corpus
    #[arg(long)]
    keep: bool,
    /// Which targets; all where none is named
    targets: Vec<String>,
}

/// Builds the fuzzer and gives each target its time.
///
/// # Errors
/// The build failed, or a target did: the input that broke it lies in its corpus then, where `cargo test` finds it.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    setup::ensure(workspace, &[Group::Fuzz])?;
    let corpus = workspace.root().join("fuzz/corpus");
    let targets = choose(&corpus, &args.targets)?;
    let site = Site {
        binary: build(workspace)?,
        corpus,
        work: workspace.target().join("fuzz"),
    };
    let queue = Mutex::new(targets.iter());
    let jobs = args
        .jobs
        .map_or_else(thread::available_parallelism, |jobs| {
            usize::from(jobs).try_into().map_err(std::io::Error::other)
        })
        .map_or(1, usize::from);
    say(Outcome::HEADING)?;
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(target) = next else { break };
                    let outcome = site
                        .fuzz(target, args)
                        .and_then(|outcome| say(outcome.row(target)));
                    if let Err(error) = outcome {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.push(format!("{}: {error:#}", target));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// The targets that are asked for; each has a folder in the corpus, which a test of `detector-fuzz` sees to.
fn choose(corpus: &Path, asked: &[String]) -> Result<Vec<String>> {
    let entries = fs::read_dir(corpus).with_context(|| format!("reading {}", corpus.display()))?;
    let mut all = Vec::new();
    for entry in entries {
        all.extend(entry?.file_name().into_string().ok());
    }
    all.sort_unstable();
    if let Some(unknown) = asked.iter().find(|name| !all.contains(name)) {
        bail!(
            "`{unknown}` is no target; the targets are {}",
            all.join(", ")
        );
    }
    all.retain(|name| asked.is_empty() || asked.contains(name));
    Ok(all)
}

fn build(workspace: &Workspace) -> Result<PathBuf> {
    let triple = host_triple()?;
    let target = workspace.target().join("fuzz");
    let mut command = workspace.cargo();
    command
        .args(["build", "--package", "detector-fuzz", "--bin", "fuzz"])
        .args(["--features", "libfuzzer", "--profile", "fuzz"])
        // With a target named, build scripts and macros are built without these flags.
        .args(["--target", &triple])
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"));
    process::run(&mut command)?;
    Ok(target.join(triple).join("fuzz/fuzz"))
}

fn host_triple() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = process::output(Command::new(rustc).arg("-vV"))?;
    version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("`rustc -vV` names no host")
}

/// Where things are.
struct Site {
    binary: PathBuf,
    /// What is committed.
    corpus: PathBuf,
    /// What is not: what the fuzzer found, and its log.
    work: PathBuf,
}

impl Site {
    /// Fuzzes one target for its time, and keeps what it found where that is wanted.
    fn fuzz(&self, target: &str, args: &Args) -> Result<Outcome> {
        let committed = self.corpus.join(target);
        let found = self.work.join("found").join(target);
        for folder in [&committed, &found] {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let log = self.work.join(format!("{}.log", target));
        let mut fuzz = self.command(target, &log)?;
        fuzz.arg(format!("-max_total_time={}", args.seconds))
            // A broken input is written straight into the corpus, where the test finds it.
            .arg(format!("-artifact_prefix={}/", committed.display()))
            .args([&found, &committed]);
        process::run(&mut fuzz).with_context(|| {
            format!(
                "an input broke it: see {}, mend it, and commit the input that was added to {}",
                log.display(),
                committed.display()
            )
        })?;
        let outcome = Outcome::read(&log)?;
        if args.keep {
            let log = self.work.join(format!("{}.merge.log", target));
            let mut merge = self.command(target, &log)?;
            process::run(merge.arg("-merge=1").args([&committed, &found]))
                .with_context(|| format!("keeping what was found: see {}", log.display()))?;
        }
        Ok(outcome)
    }

    fn command(&self, target: &str, log: &Path) -> Result<Command> {
        let log = fs::File::create(log).with_context(|| format!("making {}", log.display()))?;
        let mut command = Command::new(&self.binary);
        command
            .env("FUZZ_TARGET", target)
            .arg(format!(
                "-max_len={}",
                2 * longest(&self.corpus.join(target))?
            ))
            .arg(format!("-timeout={INPUT_SECONDS}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .args(["-print_final_stats=1", "-detect_leaks=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Ok(command)
    }
}

/// Bytes of the longest input in a folder; longer ones than twice that show nothing new.
fn longest(folder: &Path) -> Result<u64> {
    let mut longest = MIN_INPUT;
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        longest = longest.max(entry?.metadata()?.len());
    }
    Ok(longest.min(MAX_INPUT))
}

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    runs: u64,
    took: Duration,
    /// Edges of the program that were reached.
    edges: u64,
    /// Inputs that each reach something of their own.
    inputs: u64,
    peak_mib: u64,
}

impl Outcome {
    const HEADING: &str = "target                 inputs run   a second   edges   corpus   memory";

    /// From libFuzzer's log.
    fn read(log: &Path) -> Result<Self> {
        let text = fs::read(log).with_context(|| format!("reading {}", log.display()))?;
        Self::parse(&String::from_utf8_lossy(&text))
            .with_context(|| format!("{} does not tell how it went", log.display()))
    }

    fn parse(log: &str) -> Option<Self> {
        let statistic = |name: &str| {
            let mut lines = log.lines();
            lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        // `#123 DONE cov: 45 ft: 67 corp: 8/90b …`, `Done 123 runs in 4 second(s)`.
        let status = log.lines().rfind(|line| line.contains(" cov: "))?;
        let number = |key: &str| -> Option<u64> {
            let (_, rest) = status.split_once(key)?;
            let digits = rest
                .trim_start()
                .split(|c: char| !c.is_ascii_digit())
                .next()?;
            digits.parse().ok()
        };
        let done = log.lines().find_map(|line| line.strip_prefix("Done "))?;
        let seconds = done.split_whitespace().nth(3)?.parse().ok()?;
        Some(Self {
            runs: statistic("stat::number_of_executed_units:")?,
            took: Duration::from_secs(seconds),
            edges: number(" cov:")?,
            inputs: number(" corp:")?,
            peak_mib: statistic("stat::peak_rss_mb:")?,
        })
    }

    fn row(&self, target: &str) -> String {
        let rate = self.runs / self.took.as_secs().max(1);
        format!(
            "{:<20} {:>12} {rate:>10} {:>7} {:>8} {:>4} MiB",
            target, self.runs, self.edges, self.inputs, self.peak_mib
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_read_from_the_fuzzers_log() {
        let log = "INFO: seed\n#2\tINITED cov: 9 ft: 9 corp: 1/1b exec/s: 0 rss: 30Mb\n\
                   #4096\tDONE   cov: 112 ft: 230 corp: 31/402b lim: 64 exec/s: 2048 rss: 35Mb\n\
                   Done 4096 runs in 2 second(s)\n\
                   stat::number_of_executed_units: 4096\nstat::peak_rss_mb:              35\n";
        let expected = Outcome {
            runs: 4096,
            took: Duration::from_secs(2),
            edges: 112,
            inputs: 31,
            peak_mib: 35,
        };
        assert_eq!(Outcome::parse(log), Some(expected));
        assert_eq!(Outcome::parse("BINGO"), None);
    }
}
