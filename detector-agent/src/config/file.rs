//! Turns one configuration file, a YAML mapping, into command-line flags and sink settings.

use std::{ffi::OsString, fs::File, io::Read as _, path::Path};

use clap::{ArgMatches, Command as Clap, parser::ValueSource};
use serde_yaml_ng::{Mapping, Value};

use super::{
    ConfigError,
    sinks::{SECTIONS, check_unique_names, read_section},
};
use crate::sinks::settings::SinkSettings;

/// Only this much of the file is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Reads the file; `shown` is its name in errors.
pub(super) fn read(path: &Path, shown: &str) -> Result<Mapping, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable {
        path: shown.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    mapping(&text, shown)
}

fn mapping(text: &str, shown: &str) -> Result<Mapping, ConfigError> {
    let malformed = |reason: String| ConfigError::Malformed {
        path: shown.to_owned(),
        reason,
    };
    match serde_yaml_ng::from_str(text).map_err(|e| malformed(e.to_string()))? {
        Value::Mapping(mapping) => Ok(mapping),
        Value::Null => Ok(Mapping::new()),
        other => Err(malformed(format!("found {}", kind(&other)))),
    }
}

/// Converts the file's settings to flags and sink settings. Flags that the command line or the environment already sets are
/// left out.
///
/// # Errors
/// [`ConfigError::Settings`] with every invalid setting of the file.
pub(super) fn settings_from(
    command: &Clap,
    subcommand: &str,
    given: &ArgMatches,
    file: &Mapping,
    shown: &str,
) -> Result<(Vec<OsString>, SinkSettings), ConfigError> {
    let mut errors = Vec::new();
    let mut flags = Vec::new();
    let mut sinks = SinkSettings::default();
    let current = command.find_subcommand(subcommand);
    for (key, value) in file {
        let Some(key) = key.as_str() else {
            errors.push(format!(
                "a key is {}; expected the name of a setting",
                kind(key)
            ));
            continue;
        };
        if SECTIONS.contains(&key) {
            read_section(&mut sinks, key, value, &mut errors);
            continue;
        }
        let is_used = current.is_some_and(|c| has_flag(c, key));
        if key == "config" || !command.get_subcommands().any(|c| has_flag(c, key)) {
            errors.push(format!(
                "`{key}` is not a setting; {}",
                suggestion(command, key)
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
        // One file serves all commands. Settings of other commands are validated too, but not used.
        let parsed_by = if is_used {
            subcommand
        } else {
            subcommand_with_flag(command, key)
        };
        let as_flags: Vec<OsString> = values
            .iter()
            .map(|v| format!("--{key}={v}").into())
            .collect();
        let trial = [OsString::from("detector-agent"), parsed_by.into()]
            .into_iter()
            .chain(as_flags.clone());
        if let Err(e) = command.clone().try_get_matches_from(trial) {
            errors.push(format!("`{key}`: {}", first_line(&e)));
        } else if is_used && !is_given(given, key) {
            flags.extend(as_flags);
        }
    }
    check_unique_names(&sinks, &mut errors);
    if errors.is_empty() {
        Ok((flags, sinks))
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

fn subcommand_with_flag<'c>(command: &'c Clap, key: &str) -> &'c str {
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

/// The type of a value, as named in errors.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
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

/// A similar setting, or the list of all settings.
fn suggestion(command: &Clap, key: &str) -> String {
    let mut names: Vec<&str> = command
        .get_subcommands()
        .flat_map(|c| {
            c.get_arguments()
                .filter(|a| !a.is_hide_set())
                .filter_map(|a| a.get_long())
        })
        .filter(|name| !["config", "help", "version"].contains(name))
        .chain(SECTIONS)
        .collect();
    names.sort_unstable();
    names.dedup();
    let is_similar = |name: &&str| {
        name.contains(key)
            || key.contains(*name)
            || name.chars().zip(key.chars()).take(4).all(|(a, b)| a == b)
    };
    match names.iter().find(|name| is_similar(name)) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("supported: {}", names.join(", ")),
    }
}

/// Fuzz entry points; see [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use clap::CommandFactory as _;

    use super::{mapping, settings_from};
    use crate::cli::Cli;

    /// Parses a configuration file for each command that takes one.
    pub fn settings(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        let Ok(file) = mapping(text, "fuzz.yaml") else {
            return;
        };
        let command = Cli::command();
        for name in ["run", "check"] {
            let args = ["detector-agent", name];
            let Ok(matches) = command.clone().try_get_matches_from(args) else {
                continue;
            };
            let Some((_, given)) = matches.subcommand() else {
                continue;
            };
            // The resulting flags must not make the command line parser panic.
            if let Ok((flags, _)) = settings_from(&command, name, given, &file, "fuzz.yaml") {
                let args = args.map(Into::into).into_iter().chain(flags);
                let _ = command.clone().try_get_matches_from(args);
            }
        }
    }
}
