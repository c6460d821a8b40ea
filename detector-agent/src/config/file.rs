//! Turns one configuration file, a YAML mapping, into command-line flags and sink settings.

use std::{collections::BTreeSet, ffi::OsString, fs::File, io::Read as _, path::Path};

use clap::{Arg, ArgAction, ArgMatches, Command as Clap, parser::ValueSource};
use serde_yaml_ng::{Mapping, Value};

use super::{
    ConfigError,
    errors::{Errors, Places, suggestion},
    fields::kind,
    sinks::{SECTIONS, read_section},
};
use crate::sinks::settings::SinkSettings;

/// Longest file that is accepted, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// A configuration file.
#[derive(Debug)]
pub(super) struct ConfigFile {
    /// Its name in errors.
    shown: String,
    /// Errors name lines of it.
    text: String,
    settings: Mapping,
}

impl ConfigFile {
    /// Reads the file; `shown` is its name in errors.
    pub(super) fn read(path: &Path, shown: &str) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Unreadable {
            path: shown.to_owned(),
            source,
        };
        let mut text = String::new();
        let file = File::open(path).map_err(unreadable)?;
        // One byte more shows that there is more.
        file.take(MAX_FILE + 1)
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        if text.len() as u64 > MAX_FILE {
            return Err(ConfigError::TooLarge {
                path: shown.to_owned(),
            });
        }
        Self::parse(text, shown)
    }

    fn parse(text: String, shown: &str) -> Result<Self, ConfigError> {
        let malformed = |reason: String| ConfigError::Malformed {
            path: shown.to_owned(),
            reason,
        };
        let settings = match serde_yaml_ng::from_str(&text).map_err(|e| malformed(e.to_string()))? {
            Value::Mapping(mapping) => mapping,
            Value::Null => Mapping::new(),
            other => return Err(malformed(format!("found {}", kind(&other)))),
        };
        Ok(Self {
            shown: shown.to_owned(),
            text,
            settings,
        })
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
    file: &ConfigFile,
) -> Result<(Vec<OsString>, SinkSettings), ConfigError> {
    let mut errors = Errors::default();
    let places = Places::of(&file.text);
    let mut flags = Vec::new();
    let mut sinks = SinkSettings::default();
    let mut names = BTreeSet::new();
    for (key, value) in &file.settings {
        let Some(key) = key.as_str() else {
            let text = format!("a key is {}; expected the name of a setting", kind(key));
            errors.add_sentence(&scalar(key).unwrap_or_default(), text);
            continue;
        };
        if SECTIONS.contains(&key) {
            read_section(&mut sinks, &mut names, key, value, &mut errors);
            continue;
        }
        // One file serves all commands. Settings of other commands are validated too, but not used.
        let used = command.find_subcommand(subcommand);
        let mut commands = used.into_iter().chain(command.get_subcommands());
        let found = commands.find_map(|c| flag(c, key).map(|argument| (c.get_name(), argument)));
        let Some((parsed_by, argument)) = found.filter(|_| key != "config") else {
            let text = format!(
                "`{key}` is not a setting; {}",
                suggest_setting(command, key)
            );
            errors.add_sentence(key, text);
            continue;
        };
        let Some(as_flags) = flags_of(argument, key, value, &places, &mut errors) else {
            continue;
        };
        let parse = |flags: &[OsString]| {
            let args = [OsString::from("detector-agent"), parsed_by.into()];
            let args = args.into_iter().chain(flags.iter().cloned());
            command.clone().try_get_matches_from(args).map(drop)
        };
        let all: Vec<OsString> = as_flags.iter().map(|(_, flag)| flag.clone()).collect();
        if let Err(error) = parse(&all) {
            // It is about the first one only.
            let mut found = false;
            for (path, flag) in &as_flags {
                if let Err(error) = parse(std::slice::from_ref(flag)) {
                    errors.add(path, &first_line(&error));
                    found = true;
                }
            }
            if !found {
                errors.add(key, &first_line(&error));
            }
        } else if parsed_by == subcommand && !is_given(given, key) {
            flags.extend(all);
        }
    }
    if errors.is_empty() {
        Ok((flags, sinks))
    } else {
        Err(ConfigError::Settings {
            path: file.shown.clone(),
            errors: errors.with_lines(&places),
        })
    }
}

fn flag<'c>(command: &'c Clap, key: &str) -> Option<&'c Arg> {
    command.get_arguments().find(|a| a.get_long() == Some(key))
}

fn is_given(given: &ArgMatches, key: &str) -> bool {
    let id = key.replace('-', "_");
    matches!(
        given.value_source(&id),
        Some(ValueSource::CommandLine | ValueSource::EnvVariable)
    )
}

/// The setting as flags, each with the path of its value; `None` if the value has the wrong type, which adds an error.
fn flags_of(
    argument: &Arg,
    key: &str,
    value: &Value,
    places: &Places,
    errors: &mut Errors,
) -> Option<Vec<(String, OsString)>> {
    let as_flag = |value: String| OsString::from(format!("--{key}={value}"));
    let is_list = matches!(argument.get_action(), ArgAction::Append);
    let expected = if is_list {
        "a value or a list of values"
    } else {
        "one value"
    };
    match value {
        Value::Sequence(items) if is_list => {
            let mut flags = Vec::new();
            for (n, item) in items.iter().enumerate() {
                let path = format!("{key}[{n}]");
                match written(item, &path, places) {
                    Ok(value) => flags.push((path, as_flag(value))),
                    Err(found) => {
                        let text = format!("`{path}` is {found}; expected one value");
                        errors.add_sentence(&path, text);
                    }
                }
            }
            Some(flags)
        }
        value => match written(value, key, places) {
            Ok(value) => Some(vec![(key.to_owned(), as_flag(value))]),
            Err(found) => {
                let text = format!("`{key}` is {found}; expected {expected}");
                errors.add_sentence(key, text);
                None
            }
        },
    }
}

/// A value as it is written: `1.10` is a name, not the number 1.1.
fn written(value: &Value, path: &str, places: &Places) -> Result<String, &'static str> {
    let text = places.text(path).filter(|_| value.is_number());
    let is_decimal = |text: &&str| {
        text.starts_with(|c: char| c.is_ascii_digit())
            && !text.starts_with("0x")
            && !text.starts_with("0o")
    };
    match text.filter(is_decimal) {
        Some(text) => Ok(text.to_owned()),
        None => scalar(value),
    }
}

fn scalar(value: &Value) -> Result<String, &'static str> {
    match value {
        Value::String(s) => Ok(s.clone()),
        Value::Bool(b) => Ok(b.to_string()),
        Value::Number(n) => Ok(n.to_string()),
        other => Err(kind(other)),
    }
}

/// What is wrong, and the values that are possible.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    let values = text
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("[possible values: "));
    values.map_or_else(|| line.to_owned(), |values| format!("{line} {values}"))
}

/// A similar setting, or the list of all settings.
fn suggest_setting(command: &Clap, key: &str) -> String {
    let flags = command
        .get_subcommands()
        .flat_map(Clap::get_arguments)
        .filter(|a| !a.is_hide_set())
        .filter_map(Arg::get_long)
        .filter(|name| !["config", "help", "version"].contains(name));
    let names: BTreeSet<&str> = flags.chain(SECTIONS).collect();
    suggestion(key, names.into_iter())
}

/// Fuzz entry points; see [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use clap::CommandFactory as _;

    use super::{ConfigFile, settings_from};
    use crate::cli::Cli;

    /// Parses a configuration file for each command that takes one.
    pub fn settings(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        let Ok(file) = ConfigFile::parse(text.to_owned(), "fuzz.yaml") else {
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
            if let Ok((flags, _)) = settings_from(&command, name, given, &file) {
                let args = args.map(Into::into).into_iter().chain(flags);
                let _ = command.clone().try_get_matches_from(args);
            }
        }
    }
}
