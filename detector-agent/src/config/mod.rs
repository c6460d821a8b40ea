//! The configuration file: one YAML mapping with a key for every flag, named as the flag, and the sections that no
//! flag could hold (`webhooks`, `alertmanagers`; see [`sinks`]).
//!
//! Each value goes through the flag's own parser, so a file cannot hold what the command line would refuse; every
//! error of the file is found, not only the first.

pub mod fields;
pub(crate) mod file;
pub mod sinks;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

use crate::cli::{Cli, Command};

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
    let settings = file::read(path, &shown)?;
    let (flags, sinks) = file::settings_from(&command, name, given, &settings, &shown)?;
    let mut merged = args;
    merged.extend(flags);
    let mut cli = Cli::from_arg_matches(&command.try_get_matches_from(merged)?)?;
    if let Command::Run(args) = &mut cli.command {
        args.sinks = sinks;
    }
    Ok(cli)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)] // a test that cannot set itself up fails

    use std::io::Write;

    use super::*;
    use crate::{cli::RunArgs, config::sinks::Format, engine::ConflictKind, event::SubjectKind};

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
    fn webhooks_and_alertmanagers_are_read() {
        let args = run_with(
            "webhooks:\n- name: ops\n  url: https://example.org/hook\n  secret-files: [/s]\n  header-files: {Authorization: /h}\n  \
             only: {kinds: [host], namespaces: [a], confidence: certain, min-duration: 30s}\n  retry: {first: 2s}\n\
             - {name: chat, url-file: /u, format: slack}\n- {name: pager, format: pagerduty, routing-key-file: /k}\n\
             alertmanagers:\n- {name: am, url: 'http://am:9093', labels: {cluster: east}, timeout: 3s, resend-every: 30s}\n",
            &[],
        )
        .unwrap();
        let [ops, chat, pager] = &args.sinks.webhooks[..] else {
            panic!("{:?}", args.sinks);
        };
        assert_eq!(ops.only.kinds, [SubjectKind::Conflict(ConflictKind::Host)]);
        assert_eq!(ops.only.min_duration.as_secs(), 30);
        assert_eq!(ops.retry.first.as_secs(), 2);
        assert_eq!(ops.retry.give_up_after.as_secs(), 24 * 3600);
        assert_eq!(chat.format, Format::Slack);
        assert_eq!(pager.format, Format::Pagerduty);
        assert_eq!(args.sinks.alertmanagers[0].labels["cluster"], "east");
        assert_eq!(args.sinks.alertmanagers[0].endpoint.timeout.as_secs(), 3);
        assert_eq!(args.sinks.alertmanagers[0].resend_every.as_secs(), 30);
    }

    #[test]
    fn documented_example_file_is_valid() {
        let page = include_str!("../../../docs/configuration.md");
        let (_, rest) = page.split_once("```yaml\n").unwrap();
        let (yaml, _) = rest.split_once("```").unwrap();
        let sinks = run_with(yaml, &[]).unwrap().sinks;
        assert_eq!((sinks.webhooks.len(), sinks.alertmanagers.len()), (3, 2));
    }

    #[test]
    fn every_error_of_every_sink_is_named_at_once() {
        let error = run_with(
            "flap-moves: 1\nwebhooks:\n- {name: Ops!, url: 'ftp://x', format: teams, colour: red}\n\
             - {name: lines, url: 'http://a:secret@b/'}\n\
             - {name: a, url: 'http://b', only: {kinds: [double], min-duration: soon, what: 1}, retry: {first: 2m, longest: 1m}}\n\
             - {name: a, url: 'http://b', client-key-file: /k, header-files: {Content-Type: /f}}\n\
             - {name: p, format: pagerduty}\n- 7\n\
             alertmanagers: {name: am}\n",
            &[],
        )
        .unwrap_err()
        .to_string();
        for word in [
            "flap-moves",
            "`webhooks[0].name`: `Ops!`",
            "`webhooks[0].url`: is no http",
            "`webhooks[0].format`: unknown variant `teams`",
            "`webhooks[0].colour` is not a setting",
            "`webhooks[1].name`: `lines` is the agent's own",
            "`webhooks[1].url`: holds a password",
            "`webhooks[2].only.kinds`: `double`",
            "`webhooks[2].only.min-duration`",
            "`webhooks[2].only.observation` is not a setting; the settings here are kinds",
            "`webhooks[2].retry.longest`",
            "two sinks are named `a`",
            "`webhooks[3].client-cert-file`",
            "`webhooks[3].header-files.Content-Type`",
            "`webhooks[4].routing-key-file`",
            "`webhooks[5]` is a number",
            "`alertmanagers` is a mapping; expected a list",
        ] {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(!error.contains("secret@"), "{error}");
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
