//! The commands of README.md and docs/install.md, as written.
//!
//! A `console` block is run, or a comment in the line before it gives the reason why not: `<!-- not run: … -->`.

use std::{collections::BTreeMap, fs, path::Path};

use detector_testkit::cluster::{ClusterOptions, chart_image};

use crate::{
    AGENT,
    installation::{Installation, root},
};

/// The name that docs/install.md gives the reader's image.
const READERS_IMAGE: &str = "registry.example.com/ip-conflict-detector:0.1.0";
/// Kinds of the Prometheus Operator, which docs/install.md expects in the cluster: accepted as they are.
const OPERATOR_KINDS: [(&str, &str); 2] = [
    ("PodMonitor", "podmonitors"),
    ("PrometheusRule", "prometheusrules"),
];

#[test]
fn readme_and_install_commands_are_run_or_give_a_reason() {
    for (section, blocks) in console_blocks("README.md") {
        assert!(blocks.is_empty(), "README.md, {section}: {blocks:?}");
    }
    let mut blocks = console_blocks("docs/install.md");
    let it = Installation::prepare(&ClusterOptions::default());
    tag_image(&it);
    for (kind, plural) in OPERATOR_KINDS {
        it.cluster.apply(&custom_resource(kind, plural)).unwrap();
    }
    let checkout = it.checkout();
    let mut run = |section: &str, directory: &Path| {
        let blocks = blocks.remove(section).unwrap_or_default();
        assert!(!blocks.is_empty(), "no commands in {section:?}");
        for block in blocks {
            run_block(&it, directory, &block);
        }
    };

    let kustomization = yaml_block("docs/install.md", "kind: Kustomization\n");
    let reader = checkout.join("reader");
    fs::create_dir(&reader).unwrap();
    let text = kustomization.replace("path/to/checkout", "..");
    fs::write(reader.join("kustomization.yaml"), text).unwrap();
    run("With kustomize", &reader);
    it.rollout();
    run("Remove what kustomize installed", &reader);
    run("With Helm", &checkout);
    run("Verify it", &checkout);
    run("node-problem-detector", &checkout);
    let completions = [
        "bash-completion/completions",
        "zsh/vendor-completions",
        "fish/vendor_completions.d",
    ];
    for directory in completions {
        fs::create_dir_all(checkout.join("usr/share").join(directory)).unwrap();
    }
    run("As a package", &checkout);
    run("Remove what Helm installed", &checkout);
    for (section, rest) in blocks {
        assert!(
            rest.is_empty(),
            "{section}: {rest:?} neither run nor marked"
        );
    }
}

/// By section, the commands of each `console` block that is not marked as not run.
fn console_blocks(document: &str) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut section = String::new();
    let mut before = "";
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix('#') {
            title
                .trim_start_matches('#')
                .trim()
                .clone_into(&mut section);
        }
        if line == "```console" {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            if !before.starts_with("<!-- not run: ") {
                found
                    .entry(section.clone())
                    .or_default()
                    .push(commands(&block));
            }
        }
        before = line;
    }
    found
}

/// The lines with a prompt and their continuations; the others are output.
fn commands(block: &[&str]) -> String {
    let mut script = String::new();
    let mut continues = false;
    for line in block {
        let command = line.strip_prefix("$ ");
        if let Some(command) = command.or(continues.then_some(*line)) {
            script.push_str(command);
            script.push('\n');
            continues = command.ends_with('\\');
        }
    }
    script
}

/// The `yaml` block that contains a line.
fn yaml_block(document: &str, line: &str) -> String {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let block = text
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .find(|block| block.contains(line));
    block
        .unwrap_or_else(|| panic!("no {line:?} in {document}"))
        .to_owned()
}

fn run_block(it: &Installation, directory: &Path, script: &str) {
    let mut shell = it.cluster.command("bash");
    let path = std::env::join_paths(
        [
            it.cluster.programs().clients(),
            Path::new(AGENT).parent().unwrap(),
        ]
        .into_iter()
        .map(Path::to_path_buf)
        .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    shell
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(directory)
        .env("PATH", path.unwrap());
    let output = it.cluster.output(shell).unwrap();
    assert!(
        output.status.success(),
        "{script}{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}

fn tag_image(it: &Installation) {
    let name = chart_image(root()).unwrap();
    it.node()
        .run_in(|| {
            let output = std::process::Command::new("ctr")
                .args(["-n", "k8s.io", "images", "tag", &name, READERS_IMAGE])
                .output()?;
            anyhow::ensure!(output.status.success(), "{output:?}");
            Ok(())
        })
        .unwrap();
}

fn custom_resource(kind: &str, plural: &str) -> String {
    let singular = kind.to_lowercase();
    format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.monitoring.coreos.com}}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {{kind: {kind}, plural: {plural}, singular: {singular}, listKind: {kind}List}}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
"
    )
}
