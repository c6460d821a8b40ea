//! Executables in the output of `cargo build --message-format json`.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// An executable that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    /// The target's name in its Cargo.toml.
    pub(crate) name: String,
    /// The package's directory.
    pub(crate) package_dir: PathBuf,
    /// The built file.
    pub(crate) executable: PathBuf,
    /// It is an integration test (a file or directory of `tests/`).
    pub(crate) is_integration_test: bool,
    /// It contains tests: of a library, a program or an integration test.
    pub(crate) is_test: bool,
}

/// The executables in cargo's messages, one JSON object per line; other messages are skipped.
pub(crate) fn parse_artifacts(messages: &str) -> Vec<Artifact> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|message: Value| {
            let target = &message["target"];
            let manifest = Path::new(message["manifest_path"].as_str()?);
            Some(Artifact {
                name: target["name"].as_str()?.to_owned(),
                package_dir: manifest.parent().unwrap_or(manifest).to_owned(),
                executable: message["executable"].as_str()?.into(),
                is_integration_test: target["kind"].as_array()?.iter().any(|kind| kind == "test"),
                is_test: message["profile"]["test"].as_bool()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_with_an_executable_become_artifacts() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/c/Cargo.toml","profile":{"test":true},"target":{"kind":["test"],"name":"t"},"executable":"/t/t-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/c/Cargo.toml","profile":{"test":false},"target":{"kind":["bench"],"name":"packet_cost"},"executable":"/b"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/c/Cargo.toml","profile":{"test":true},"target":{"kind":["lib"],"name":"c"},"executable":null}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let artifact = |name: &str, executable: &str, is_test| Artifact {
            name: name.to_owned(),
            package_dir: "/c".into(),
            executable: executable.into(),
            is_integration_test: is_test,
            is_test,
        };
        assert_eq!(
            parse_artifacts(messages),
            [
                artifact("t", "/t/t-1", true),
                artifact("packet_cost", "/b", false)
            ]
        );
    }
}
