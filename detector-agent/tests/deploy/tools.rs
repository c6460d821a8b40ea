//! Paths, and helpers that call the external tools.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use serde_yaml_ng::Value;

/// If set, tests write the generated files instead of comparing them.
const UPDATE: &str = "DEPLOY_UPDATE";

/// A path in `deploy/`.
pub(crate) fn deploy(path: &str) -> PathBuf {
    root().join("deploy").join(path)
}

/// The checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A directory for the files this test binary produces.
pub(crate) fn scratch() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("deploy");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Python with kubernetes-validate and jsonschema, as `cargo xtask setup` installs it.
pub(crate) fn python() -> PathBuf {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .unwrap()
        .join("tools/python/bin/python3");
    assert!(
        python.exists(),
        "{} is missing: `cargo xtask setup` installs it",
        python.display()
    );
    python
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

/// The chart's templates rendered with these values merged over its own, by file name; or the error
/// output of the renderer.
pub(crate) fn render(values: &str) -> Result<BTreeMap<String, String>, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), values).unwrap();
    let output = output(
        Command::new(renderer())
            .arg(deploy("helm/ip-conflict-detector"))
            .args(["ip-conflict-detector", "ip-conflict-detector"])
            .arg(file.path()),
    );
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    let rendered: BTreeMap<String, String> = serde_json::from_slice(&output.stdout).unwrap();
    Ok(rendered
        .into_iter()
        .map(|(name, text)| match text.trim() {
            "" => (name, String::new()),
            text => (
                name,
                format!("{}\n", text.trim_start_matches("---").trim_start()),
            ),
        })
        .collect())
}

fn renderer() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let binary = scratch().join("helm-render");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deploy/helm-render");
        stdout(
            Command::new("go")
                .args(["build", "-o"])
                .arg(&binary)
                .arg(".")
                .current_dir(source)
                // Go libraries from Debian packages; nothing is downloaded.
                .env("GO111MODULE", "off")
                .env("GOPATH", "/usr/share/gocode")
                .env("GOCACHE", scratch().join("go-cache")),
        );
        binary
    })
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

/// Whether generated files are to be written instead of compared.
pub(crate) fn is_updating() -> bool {
    std::env::var_os(UPDATE).is_some()
}

/// Asserts that the file has this text; with `DEPLOY_UPDATE=1` writes it.
pub(crate) fn assert_current(file: &Path, text: &str) {
    if is_updating() {
        fs::write(file, text).unwrap();
        return;
    }
    let found = fs::read_to_string(file).unwrap_or_default();
    assert!(
        found == text,
        "{} is stale; regenerate it with: {UPDATE}=1 cargo xtask test -- --test deploy",
        file.display()
    );
}
