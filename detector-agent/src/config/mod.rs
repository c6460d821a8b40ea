//! The configuration file: a YAML mapping with one key per flag, named like the flag, and the sections `webhooks` and
//! `alertmanagers`, which have no flag.
//!
//! Each value goes through the parser of its flag, so the file accepts exactly what the command line accepts. All errors of
//! the file are reported at once.

mod errors;
mod fields;
pub(crate) mod file;
mod sinks;

use std::{collections::BTreeSet, ffi::OsString};

use clap::{CommandFactory, FromArgMatches};
use detector_event::counted;

use crate::cli::{Cli, Command};
use file::ConfigFile;

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The command line is invalid, or requests help or the version.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// The configuration file cannot be read.
    #[error(
        "cannot read the configuration file {path}: {source}; check the path given with --config and its permissions"
    )]
    Unreadable {
        /// Path of the file.
        path: String,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error(
        "the configuration file {path} is larger than 1 MiB; check the path given with --config"
    )]
    TooLarge {
        /// Path of the file.
        path: String,
    },
    /// The file is not a YAML mapping.
    #[error("the configuration file {path} is not a YAML mapping of settings: {reason}")]
    Malformed {
        /// Path of the file.
        path: String,
        /// The parser's message.
        reason: String,
    },
    /// The file has invalid settings.
    #[error("the configuration file {path} has {}:\n  {}", counted(.errors.len(), "invalid setting", "invalid settings"), .errors.join("\n  "))]
    Settings {
        /// Path of the file.
        path: String,
        /// One sentence per invalid setting.
        errors: Vec<String>,
    },
}

/// The warning about a variable that looks like a setting and is none.
///
/// It is no error: Kubernetes adds variables such as `IPCONFLICT_PORT` for a Service that is called `ipconflict`.
#[must_use]
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let command = Cli::command();
    let arguments = command
        .get_subcommands()
        .flat_map(clap::Command::get_arguments);
    let known = arguments.filter_map(|argument| argument.get_env()?.to_str());
    let known: BTreeSet<&str> = known.collect();
    let unknown = names.filter(|name| name.starts_with("IPCONFLICT_") && !known.contains(&**name));
    let sentence = |name: String| match errors::similar(&name, known.iter().copied()) {
        Some(meant) => {
            format!("the environment variable {name} is not a setting; did you mean {meant}?")
        }
        None => format!("the environment variable {name} is not a setting"),
    };
    unknown.map(sentence).collect()
}

/// Parses the command line, the environment variables and the file given with `--config`.
///
/// # Errors
/// See [`ConfigError`].
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
    let file = ConfigFile::read(path, &path.display().to_string())?;
    let (flags, sinks) = file::settings_from(&command, name, given, &file)?;
    let mut merged = args;
    merged.extend(flags);
    let mut cli = Cli::from_arg_matches(&command.try_get_matches_from(merged)?)?;
    if let Command::Run(args) = &mut cli.command {
        args.sinks = sinks;
        args.sinks.status_page_url.clone_from(&args.status_page_url);
    }
    Ok(cli)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)] // a test that cannot set itself up fails

    use std::io::Write;

    use detector_engine::{AnomalyKind, ConflictKind};
    use detector_event::SubjectKind;

    use super::*;
    use crate::{cli::RunArgs, sinks::settings::Format};

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
    fn durations_beyond_a_year_are_refused_by_name() {
        let file = "claim-ttl: 367d\nipam-leak-after: 500000000000y\nalertmanagers:\n\
                    - {name: am, url: 'http://am', resend-every: 1000y, only: {min-duration: 366d}}\n";
        let errors = run_with(file, &[]).unwrap_err().to_string();
        for name in [
            "claim-ttl",
            "ipam-leak-after",
            "alertmanagers[0].resend-every",
        ] {
            assert!(errors.contains(&format!("`{name}`")), "{name}: {errors}");
        }
        assert!(errors.contains("between 1s and 366d"), "{errors}");
        assert!(!errors.contains("min-duration"), "{errors}");
    }

    #[test]
    fn one_mistake_is_one_error_with_the_allowed_values() {
        let cases = [
            ("attach: tcy\n", "[possible values: auto, tc, tcx]"),
            (
                "webhooks: [{nam: a, url: 'http://a'}]\n",
                "did you mean `name`?",
            ),
            ("webhooks: [7]\n", "`webhooks[0]` is a number"),
            ("webhooks: [{name: [a], url: 'http://a'}]\n", "name"),
            (
                "webhooks: [{name: a, url: 'ftp://a'}]\n",
                "`webhooks[0].url`",
            ),
            (
                "webhooks: [{name: a, url: 'http://a', url-file: /x}]\n",
                "conflicts with `url`",
            ),
            (
                "webhooks: [{name: a, url: 'http://a', format: slak, routing-key-file: /x}]\n",
                "slack",
            ),
        ];
        for (file, expected) in cases {
            let error = run_with(file, &[]).unwrap_err().to_string();
            assert!(error.contains(" 1 invalid setting:"), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn number_in_the_file_stays_as_it_is_written() {
        let args = run_with("cluster-name: 1.10\nnode-name: 007\nflap-moves: 6\n", &[]).unwrap();
        assert_eq!(args.common.cluster_name.as_deref(), Some("1.10"));
        assert_eq!(args.common.node_name.as_deref(), Some("007"));
        assert_eq!(args.flap_moves, 6);
    }

    #[test]
    fn variable_that_is_no_setting_is_named_with_a_similar_one() {
        let names = ["IPCONFLICT_CLAIM_TLL", "IPCONFLICT_LISTEN", "PATH"];
        let unknown = unknown_variables(names.map(str::to_owned).into_iter());
        assert_eq!(
            unknown,
            [
                "the environment variable IPCONFLICT_CLAIM_TLL is not a setting; did you mean IPCONFLICT_CLAIM_TTL?"
            ]
        );
    }

    #[test]
    fn file_beyond_the_bound_is_refused_instead_of_cut() {
        let file = format!("claim-ttl: 2m\n{}\nno-ebpf: true\n", "#".repeat(1 << 20));
        let error = run_with(&file, &[]).unwrap_err().to_string();
        assert!(error.contains("larger than 1 MiB"), "{error}");
        let file = format!("claim-ttl: 2m\n{}", "#".repeat((1 << 20) - 14));
        assert_eq!(run_with(&file, &[]).unwrap().claim_ttl.as_secs(), 120);
    }

    #[test]
    fn flags_take_precedence_over_the_file() {
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
        let file = "metrics-listen: 'fd00::1:9842'\nmetrics-detail: false\n";
        let args = run_with(file, &[]).unwrap();
        assert_eq!(args.metrics_listen.to_string(), "[fd00::1]:9842");
        assert!(!args.metrics_detail);
        let args = run_with(file, &["--metrics-listen=none", "--metrics-detail"]).unwrap();
        assert_eq!(args.metrics_listen.to_string(), "none");
        assert!(args.metrics_detail);
    }

    #[test]
    fn all_errors_of_the_file_are_reported_at_once() {
        let error = run_with(
            "claim-tll: 2m\nallow: [nonsense]\nflap-moves: 1\nlisten: {a: b}\n",
            &[],
        )
        .unwrap_err()
        .to_string();
        for part in [
            "4 invalid settings",
            "`claim-tll`",
            "`claim-ttl`",
            "nonsense",
            "flap-moves",
            "`listen` is a mapping",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn each_error_has_its_line_in_order() {
        let error = run_with(
            "allow:\n- nonsense\n- 10.0.0.0/8\n- 10.0.0.0/33\n- 300.1.1.1\nevents: [a]\nexport-claims: 1\n\
             webhooks:\n- name: ops\n  ulr: https://example.org/\nalertmanagers:\n- name: am\n  url: http://a\n\
             - {name: ops, url: 'http://a'}\nclaim-tll: 2m\n7: 8\ninterfaces: [a, [b]]\n",
            &[],
        )
        .unwrap_err()
        .to_string();
        let found: Vec<_> = error.lines().skip(1).map(str::trim).collect();
        let expected = [
            "line 2: `allow[0]`: invalid value 'nonsense' for '--allow <CIDR>': expected an address or a CIDR",
            "line 4: `allow[2]`: invalid value '10.0.0.0/33'",
            "line 5: `allow[3]`: invalid value '300.1.1.1'",
            "line 6: `events` is a list; expected one value",
            "line 7: `export-claims`: invalid value '1'",
            "line 10: `webhooks[0].ulr` is not a setting; did you mean `url`?",
            "line 14: `alertmanagers[1].name`: two sinks are named `ops`",
            "line 15: `claim-tll` is not a setting; did you mean `claim-ttl`?",
            "line 16: a key is a number; expected the name of a setting",
            "line 17: `interfaces[1]` is a list; expected one value",
        ];
        assert_eq!(found.len(), expected.len(), "{error}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn webhooks_and_alertmanagers_are_read() {
        let args = run_with(
            "webhooks:\n- name: ops\n  url: https://example.org/hook\n  secret-files: [/s]\n  header-files: {Authorization: /h}\n  \
             only: {kinds: [host], namespaces: [a], confidence: certain, min-duration: 30s}\n  retry: {first: 2s}\n\
             - {name: chat, url-file: /u, format: slack}\n- {name: pager, format: pagerduty, routing-key-file: /k}\n\
             alertmanagers:\n- {name: am, url: 'http://am:9093', labels: {cluster: east}, kind-labels: {ipam_drift: {team: ipam, severity: page}}, timeout: 3s, resend-every: 30s}\n",
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
        let labels = &args.sinks.alertmanagers[0].labels;
        assert_eq!(labels.all["cluster"], "east");
        let drift = SubjectKind::Anomaly(AnomalyKind::IpamDrift);
        assert_eq!(labels.by_kind[&drift]["severity"], "page");
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
    fn all_errors_of_all_sinks_are_reported_at_once() {
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
        for part in [
            "flap-moves",
            "`webhooks[0].name`: `Ops!`",
            "`webhooks[0].url`: is not an http",
            "`webhooks[0].format`: unknown variant `teams`",
            "`webhooks[0].colour` is not a setting",
            "`webhooks[1].name`: `lines` is reserved by the agent",
            "`webhooks[1].url`: contains a password",
            "`webhooks[2].only.kinds`: `double`",
            "`webhooks[2].only.min-duration`",
            "`webhooks[2].only.what` is not a setting; supported: kinds",
            "`webhooks[2].retry.longest`",
            "two sinks are named `a`",
            "`webhooks[3].client-cert-file`",
            "`webhooks[3].header-files.Content-Type`",
            "`webhooks[4].routing-key-file`",
            "`webhooks[5]` is a number",
            "`alertmanagers` is a mapping; expected a list",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(!error.contains("secret@"), "{error}");
    }

    #[test]
    fn labels_of_alerts_must_not_identify_them() {
        let error = run_with(
            "alertmanagers:\n- {name: am, url: 'http://am', labels: {node: a, 'b-c': d}, kind-labels: {host: {address: x}, double: {a: b}}}\n",
            &[],
        )
        .unwrap_err()
        .to_string();
        for part in [
            "`alertmanagers[0].labels.node`: identifies the alert",
            "`alertmanagers[0].labels.b-c`: is not a valid label name",
            "`alertmanagers[0].kind-labels.host.address`: identifies the alert",
            "`alertmanagers[0].kind-labels.double` is not a setting; supported: duplicate",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn file_must_be_a_mapping_or_empty() {
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
    fn settings_of_other_commands_are_validated_but_unused() {
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
