//! Paths, and helpers that call the external tools.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use detector_testkit::golden;
use serde_yaml_ng::Value;

/// The chart in `deploy/`.
pub(crate) const CHART: &str = "helm/ip-conflict-detector";
/// The release and its namespace, in which the plain manifests are as well.
pub(crate) const NAME: &str = "ip-conflict-detector";

/// A path in `deploy/`.
pub(crate) fn deploy(path: &str) -> PathBuf {
    root().join("deploy").join(path)
}

/// The checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The content of a file of the checkout.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A directory for the files this test binary produces.
pub(crate) fn scratch() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("deploy");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A program of the Python environment that `cargo xtask setup` installs.
pub(crate) fn python(program: &str) -> Command {
    let program = installed_tools().join("python/bin").join(program);
    assert_installed(&program);
    Command::new(program)
}

fn installed_tools() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    target.join("tools")
}

fn assert_installed(program: &Path) {
    assert!(
        program.exists(),
        "{} is missing: `cargo xtask setup` installs it",
        program.display()
    );
}

/// Runs a command to completion.
pub(crate) fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; `cargo xtask setup` installs what is missing")
    })
}

/// The stdout of a command, which has to succeed.
pub(crate) fn stdout(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    String::from_utf8(output.stdout).unwrap()
}

/// `helm` or `kubectl`, as `cargo xtask setup` installs it.
pub(crate) fn kubernetes_client(name: &str) -> Command {
    let program = installed_tools().join("kubernetes-clients").join(name);
    assert_installed(&program);
    let mut command = Command::new(program);
    // Nothing of the user's own settings.
    for variable in ["HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
        command.env(variable, scratch().join("helm"));
    }
    command.env("KUBECONFIG", "/nonexistent");
    command
}

/// The objects of the chart with these values merged over its own, as text by the template's file name; or Helm's error.
pub(crate) fn render(values: &str) -> Result<BTreeMap<String, String>, String> {
    render_with(&[], values)
}

/// As [`render`], with values files of the chart below these values.
pub(crate) fn render_with(
    values_files: &[&str],
    values: &str,
) -> Result<BTreeMap<String, String>, String> {
    render_text(&["--namespace", NAME], values_files, values)
}

/// As [`render`], for a version of Kubernetes.
pub(crate) fn render_for(version: &str, values: &str) -> Result<BTreeMap<String, String>, String> {
    render_text(
        &["--namespace", NAME, "--kube-version", version],
        &[],
        values,
    )
}

fn render_text(
    arguments: &[&str],
    values_files: &[&str],
    values: &str,
) -> Result<BTreeMap<String, String>, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), values).unwrap();
    let mut helm = kubernetes_client("helm");
    helm.args(["template", NAME]).arg(deploy(CHART));
    helm.args(arguments);
    for values_file in values_files {
        helm.arg("--values").arg(deploy(CHART).join(values_file));
    }
    let output = output(helm.arg("--values").arg(file.path()));
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    let mut rendered: BTreeMap<String, String> = BTreeMap::new();
    for document in String::from_utf8(output.stdout)
        .unwrap()
        .split("---\n# Source: ")
    {
        let Some((path, text)) = document.split_once('\n') else {
            continue;
        };
        let file = path.rsplit('/').next().unwrap().to_owned();
        let all = rendered.entry(file).or_default();
        if !all.is_empty() {
            all.push_str("---\n");
        }
        all.push_str(text.trim_end());
        all.push('\n');
    }
    Ok(rendered)
}

/// The documents of a YAML file.
pub(crate) fn documents(yaml: &str) -> Vec<Value> {
    serde_yaml_ng::Deserializer::from_str(yaml)
        .map(|document| {
            use serde::Deserialize as _;
            Value::deserialize(document).unwrap_or_else(|error| panic!("{error} in\n{yaml}"))
        })
        .filter(|document| !document.is_null())
        .collect()
}

/// Asserts that the file has this text; with `DEPLOY_UPDATE=1` writes it.
pub(crate) fn assert_current(file: &Path, text: &str) {
    golden::check(file, text).unwrap();
}
