//! The configuration file: one YAML mapping with a key for every flag, named as the flag.
//!
//! Each value goes through the flag's own parser, so a file cannot hold what the command line would refuse; every
//! error of the file is found, not only the first.

use std::{ffi::OsString, path::Path};

use clap::{ArgMatches, Command as Clap, CommandFactory, FromArgMatches, parser::ValueSource};
use serde_yaml_ng::Value;

use crate::cli::Cli;

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The command line is wrong, or only asked for help.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// The file cannot be read.
    #[error(
        "cannot read the configuration file {path}: {source}; check the path given with --config and its permissions"
    )]
    Unreadable {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no YAML mapping.
    #[error("the configuration file {path} is not a YAML mapping of settings: {reason}")]
    Malformed {
        /// Which file.
        path: String,
        /// Why.
        reason: String,
    },
    /// Settings in the file are wrong.
    #[error("the configuration file {path} has {} wrong setting{}:\n  {}", .errors.len(), if .errors.len() == 1 { "" } else { "s" }, .errors.join("\n  "))]
    Settings {
        /// Which file.
        path: String,
        /// One sentence for each.
        errors: Vec<String>,
    },
}

/// Settings larger than this are not settings.
const FILE_LIMIT: u64 = 1 << 20;

/// Parses the command line, the environment and the file it names.
///
/// # Errors
/// As [`ConfigError`] says.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, ConfigError> {
    let args: Vec<OsString> = args.into_iter().collect();
    let command = Cli::command();
    let matches = command.clone().try_get_matches_from(&args)?;
    let Some((name, given)) = matches.subcommand() else {
        return Ok(Cli::from_arg_matches(&matches)?);
    };
    let path = given
        .try_get_one::<std::path::PathBuf>("config")
        .ok()
        .flatten();
    let Some(path) = path else {
        return Ok(Cli::from_arg_matches(&matches)?);
    };
    let shown = path.display().to_string();
    let file = read(path, &shown)?;
    let flags = flags_from(&command, name, given, &file, &shown)?;
    let mut merged = args;
    merged.extend(flags);
    Ok(Cli::from_arg_matches(
        &command.try_get_matches_from(merged)?,
    )?)
}

fn read(path: &Path, shown: &str) -> Result<serde_yaml_ng::Mapping, ConfigError> {
    use std::io::Read;
    let unreadable = |source| ConfigError::Unreadable {
        path: shown.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_LIMIT)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    mapping(&text, shown)
}

fn mapping(text: &str, shown: &str) -> Result<serde_yaml_ng::Mapping, ConfigError> {
    let malformed = |reason: String| ConfigError::Malformed {
        path: shown.to_owned(),
        reason,
    };
    match serde_yaml_ng::from_str(text).map_err(|e| malformed(e.to_string()))? {
        Value::Mapping(mapping) => Ok(mapping),
        Value::Null => Ok(serde_yaml_ng::Mapping::new()),
        other => Err(malformed(format!("found {}", kind(&other)))),
    }
}

/// The file's settings as flags, leaving out those that the command line or the environment already gives.
fn flags_from(
    command: &Clap,
    subcommand: &str,
    given: &ArgMatches,
    file: &serde_yaml_ng::Mapping,
    shown: &str,
) -> Result<Vec<OsString>, ConfigError> {
    let mut errors = Vec::new();
    let mut flags = Vec::new();
    let here = command.find_subcommand(subcommand);
    for (key, value) in file {
        let Some(key) = key.as_str() else {
            errors.push(format!("a key is {}, not a name", kind(key)));
            continue;
        };
        let known_here = here.is_some_and(|c| has_flag(c, key));
        if key == "config" || !command.get_subcommands().any(|c| has_flag(c, key)) {
            errors.push(format!(
                "`{key}` is not a setting; {}",
                nearest(command, key)
            ));
            continue;
        }
        let values = match scalars(value) {
            Ok(values) => values,
            Err(found) => {
                errors.push(format!(
                    "`{key}` is {found}; expected a value or a list of values"
                ));
                continue;
            }
        };
        // One file serves all commands: what another command reads is checked, but not used here.
        let checked_by = if known_here {
            subcommand
        } else {
            owner(command, key)
        };
        let as_flags: Vec<OsString> = values
            .iter()
            .map(|v| format!("--{key}={v}").into())
            .collect();
        let trial = [OsString::from("detector-agent"), checked_by.into()]
            .into_iter()
            .chain(as_flags.clone());
        if let Err(e) = command.clone().try_get_matches_from(trial) {
            errors.push(format!("`{key}`: {}", first_line(&e)));
        } else if known_here && !is_given(given, key) {
            flags.extend(as_flags);
        }
    }
    if errors.is_empty() {
        Ok(flags)
    } else {
        Err(ConfigError::Settings {
            path: shown.to_owned(),
            errors,
        })
    }
}

fn has_flag(command: &Clap, key: &str) -> bool {
    command.get_arguments().any(|a| a.get_long() == Some(key))
}

fn owner<'c>(command: &'c Clap, key: &str) -> &'c str {
    command
        .get_subcommands()
        .find(|c| has_flag(c, key))
        .map(Clap::get_name)
        .unwrap_or_default()
}

fn is_given(given: &ArgMatches, key: &str) -> bool {
    let id = key.replace('-', "_");
    matches!(
        given.value_source(&id),
        Some(ValueSource::CommandLine | ValueSource::EnvVariable)
    )
}

fn scalars(value: &Value) -> Result<Vec<String>, &'static str> {
    match value {
        Value::Sequence(items) => items
            .iter()
            .map(|item| match item {
                Value::Sequence(_) => Err("a list of lists"),
                item => scalars(item).map(|mut v| v.pop().unwrap_or_default()),
            })
            .collect(),
        Value::String(s) => Ok(vec![s.clone()]),
        Value::Bool(b) => Ok(vec![b.to_string()]),
        Value::Number(n) => Ok(vec![n.to_string()]),
        other => Err(kind(other)),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "a yes or no",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Sequence(_) => "a list",
        Value::Mapping(_) => "a mapping",
        Value::Tagged(_) => "a tagged value",
    }
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// The settings, so that a typing error mends itself.
fn nearest(command: &Clap, key: &str) -> String {
    let mut names: Vec<&str> = command
        .get_subcommands()
        .flat_map(|c| {
            c.get_arguments()
                .filter(|a| !a.is_hide_set())
                .filter_map(|a| a.get_long())
        })
        .filter(|name| !["config", "help", "version"].contains(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    let like = |name: &&str| {
        name.contains(key)
            || key.contains(*name)
            || name.chars().zip(key.chars()).take(4).all(|(a, b)| a == b)
    };
    match names.iter().find(|name| like(name)) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("the settings are {}", names.join(", ")),
    }
}

/// Files of any content; see [`crate::fuzzing`].
pub(crate) mod fuzzing {
    use clap::CommandFactory as _;

    use super::{Cli, flags_from, mapping};

    /// Reads a configuration file for each command that takes one.
    pub fn settings(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        let Ok(file) = mapping(text, "fuzz.yaml") else {
            return;
        };
        let command = Cli::command();
        for name in ["run", "check"] {
            let words = ["detector-agent", name];
            let Ok(matches) = command.clone().try_get_matches_from(words) else {
                continue;
            };
            let Some((_, given)) = matches.subcommand() else {
                continue;
            };
            // Whatever is accepted makes a command line.
            if let Ok(flags) = flags_from(&command, name, given, &file, "fuzz.yaml") {
                let words = words.map(Into::into).into_iter().chain(flags);
                let _ = command.clone().try_get_matches_from(words);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)] // a test that cannot set itself up fails

    use std::io::Write;

    use super::*;
    use crate::cli::{Command, RunArgs};

    fn run_with(file: &str, flags: &[&str]) -> Result<RunArgs, ConfigError> {
        let mut config = tempfile::NamedTempFile::new().unwrap();
        config.write_all(file.as_bytes()).unwrap();
        let path = config.path().to_str().unwrap().to_owned();
        let args = ["detector-agent", "run", "--config", &path]
            .into_iter()
            .chain(flags.iter().copied());
        match parse(args.map(OsString::from))?.command {
            Command::Run(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_file_sets_what_the_command_line_leaves_open() {
        let args = run_with(
            "claim-ttl: 2m\nallow: [10.0.0.1, 10.1.0.0/24]\nno-ebpf: true\n",
            &[],
        )
        .unwrap();
        assert_eq!(args.claim_ttl.as_secs(), 120);
        assert_eq!(args.common.allow.len(), 2);
        assert!(args.no_ebpf);
        let args = run_with("claim-ttl: 2m\n", &["--claim-ttl", "3m"]).unwrap();
        assert_eq!(args.claim_ttl.as_secs(), 180);
    }

    #[test]
    fn every_error_of_the_file_is_named_at_once() {
        let error = run_with(
            "claim-tll: 2m\nallow: [nonsense]\nflap-moves: 1\nlisten: {a: b}\n",
            &[],
        )
        .unwrap_err()
        .to_string();
        for word in [
            "4 wrong settings",
            "`claim-tll`",
            "`claim-ttl`",
            "nonsense",
            "flap-moves",
            "`listen` is a mapping",
        ] {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_no_mapping_is_refused_and_an_empty_one_is_fine() {
        assert!(matches!(
            run_with("- a\n- b\n", &[]),
            Err(ConfigError::Malformed { .. })
        ));
        assert!(matches!(
            run_with("a: [\n", &[]),
            Err(ConfigError::Malformed { .. })
        ));
        assert!(run_with("", &[]).is_ok());
    }

    #[test]
    fn settings_of_another_command_are_checked_but_not_used() {
        let args = ["detector-agent", "check", "--config"];
        let mut config = tempfile::NamedTempFile::new().unwrap();
        config.write_all(b"listen: 127.0.0.1:1\n").unwrap();
        let args = args
            .into_iter()
            .map(OsString::from)
            .chain([config.path().into()]);
        assert!(parse(args).is_ok());
    }
}
