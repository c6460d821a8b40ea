//! The version, which several files have to agree on.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::{files, process, workspace::Workspace};

/// A place that states the version, and what it states.
type Statement = (&'static str, Option<String>);

/// Checks that all files state one version; without `dry_run` also that HEAD is its tag, without uncommitted changes, and
/// that its section of the changelog has a date. Returns the version.
///
/// # Errors
/// A file disagrees (the message lists all of them), or HEAD is not the commit to release.
pub(super) fn check(workspace: &Workspace, dry_run: bool) -> Result<String> {
    let chart = files::read_text(
        &workspace
            .root()
            .join("deploy/helm/ip-conflict-detector/Chart.yaml"),
    )?;
    let changelog = files::read_text(&workspace.root().join("CHANGELOG.md"))?;
    let section = first_section(&changelog);
    let version = agree(&[
        ("Cargo.toml", Some(cargo_version(workspace)?)),
        ("Chart.yaml: version", field(&chart, "version")),
        ("Chart.yaml: appVersion", field(&chart, "appVersion")),
        (
            "CHANGELOG.md",
            section.map(|(version, _)| version.to_owned()),
        ),
    ])?;
    if dry_run {
        return Ok(version);
    }
    let date = section.map_or("", |(_, date)| date);
    ensure!(
        is_date(date),
        "the section {version} of CHANGELOG.md has {date:?} for a date; write the day of the release"
    );
    let tags = process::output(git(workspace).args(["tag", "--points-at", "HEAD"]))?;
    let tag = format!("v{version}");
    ensure!(
        tags.lines().any(|line| line == tag),
        "HEAD does not have the tag {tag}; --dry-run builds any commit"
    );
    let changes = process::output(git(workspace).args(["status", "--porcelain"]))?;
    ensure!(
        changes.is_empty(),
        "the checkout has uncommitted changes:\n{changes}"
    );
    Ok(version)
}

/// A git command in the checkout.
pub(super) fn git(workspace: &Workspace) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(workspace.root());
    command
}

/// The section of a version in the changelog, without its heading: the notes of the release.
///
/// # Errors
/// There is no such section.
pub(super) fn notes(changelog: &str, version: &str) -> Result<String> {
    let heading = format!("## [{version}]");
    let (_, rest) = changelog
        .split_once(&heading)
        .with_context(|| format!("CHANGELOG.md has no section {version}"))?;
    let (_, body) = rest.split_once('\n').unwrap_or((rest, ""));
    let end = body.find("\n## ").unwrap_or(body.len());
    Ok(format!("{}\n", body[..end].trim()))
}

fn cargo_version(workspace: &Workspace) -> Result<String> {
    let metadata = process::output(workspace.cargo().args([
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
    ]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let versions: Vec<_> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|package| package["name"] == crate::build::AGENT)
        .filter_map(|package| package["version"].as_str())
        .collect();
    match versions[..] {
        [version] => Ok(version.to_owned()),
        _ => bail!("`cargo metadata` lists no {}", crate::build::AGENT),
    }
}

/// A top-level scalar of a YAML file.
fn field(yaml: &str, name: &str) -> Option<String> {
    yaml.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(|value| value.trim().trim_matches(['"', '\'']).to_owned())
}

/// Version and date of the newest section that has a version: `## [0.1.0] - 2026-11-23`.
fn first_section(changelog: &str) -> Option<(&str, &str)> {
    changelog
        .lines()
        .filter_map(|line| line.strip_prefix("## [")?.split_once(']'))
        .map(|(version, rest)| (version, rest.trim_start_matches([' ', '-'])))
        .find(|(version, _)| *version != "Unreleased")
}

fn is_date(text: &str) -> bool {
    text.len() == 10
        && text.char_indices().all(|(index, c)| match index {
            4 | 7 => c == '-',
            _ => c.is_ascii_digit(),
        })
}

fn agree(statements: &[Statement]) -> Result<String> {
    let version = statements.iter().find_map(|(_, version)| version.clone());
    let is_same = |(_, stated): &Statement| stated.is_some() && *stated == version;
    match version {
        Some(version) if statements.iter().all(is_same) => Ok(version),
        _ => {
            let list: Vec<_> = statements
                .iter()
                .map(|(place, version)| {
                    format!("{place}: {}", version.as_deref().unwrap_or("none"))
                })
                .collect();
            bail!("the versions differ: {}", list.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    const CHANGELOG: &str = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [0.2.0] - 2026-11-23\n\n### Added\n\n- this\n\n## [0.1.0] - 2026-01-01\n\n- that\n";

    #[test]
    fn differing_versions_are_all_listed() {
        let statement = |place, version: &str| (place, Some(version.to_owned()));
        let same = [statement("a", "0.1.0"), statement("b", "0.1.0")];
        assert_eq!(agree(&same).unwrap(), "0.1.0");
        let error = agree(&[
            statement("a", "0.1.0"),
            statement("b", "0.2.0"),
            ("c", None),
        ]);
        assert_eq!(
            error.unwrap_err().to_string(),
            "the versions differ: a: 0.1.0, b: 0.2.0, c: none"
        );
    }

    #[test]
    fn this_checkout_states_one_version() {
        check(&Workspace::locate().unwrap(), true).unwrap();
    }

    #[test]
    fn section_of_the_version_becomes_the_notes() {
        assert_eq!(first_section(CHANGELOG), Some(("0.2.0", "2026-11-23")));
        assert_eq!(notes(CHANGELOG, "0.2.0").unwrap(), "### Added\n\n- this\n");
        assert_eq!(notes(CHANGELOG, "0.1.0").unwrap(), "- that\n");
        assert!(notes(CHANGELOG, "0.3.0").is_err());
    }

    #[test]
    fn chart_fields_are_read_with_and_without_quotes() {
        let chart = "version: 0.1.0\nappVersion: \"0.2.0\"\n";
        assert_eq!(field(chart, "version").unwrap(), "0.1.0");
        assert_eq!(field(chart, "appVersion").unwrap(), "0.2.0");
        assert_eq!(field(chart, "kubeVersion"), None);
    }

    #[test]
    fn unreleased_is_not_a_date() {
        assert!(is_date("2026-11-23"));
        assert!(!is_date("unreleased"));
        assert!(!is_date(""));
        assert!(!is_date("2026-11-2"));
    }
}
