//! The plain manifests: kustomize builds them, they validate against Kubernetes' schemas, and each
//! overlay equals the chart with one value set.

use std::{fs, path::Path, process::Command};

use serde_yaml_ng::Value;

use crate::tools::{deploy, documents, output, python, render, stdout};

/// Directories that kustomize builds, and the equivalent values of the chart.
const BUILT: [(&str, &str); 6] = [
    ("base", ""),
    ("overlays/calico", "{ipam: {calico: true}}"),
    (
        "overlays/kind",
        "{ipam: {hostLocalDirectories: [/run/cni-ipam-state]}}",
    ),
    ("overlays/eks", "{ipam: {aws: true}}"),
    ("overlays/privileged", "{privileged: true}"),
    (
        "monitoring",
        "{podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboards: {enabled: true}}",
    ),
];

/// The oldest version that the chart supports, and the newest with a schema.
const KUBERNETES: [&str; 2] = ["1.25.0", "1.37.0"];

/// Kinds of the Prometheus Operator, which Kubernetes has no schema for.
const OPERATOR: [&str; 2] = ["PodMonitor", "PrometheusRule"];

pub(crate) fn build(folder: &str) -> Vec<Value> {
    let built = stdout(
        Command::new("kubectl")
            .arg("kustomize")
            .arg(deploy("manifests").join(folder)),
    );
    documents(&built)
}

/// The documents sorted by kind and name, with lists that are sets in Kubernetes sorted, too.
fn in_order(mut documents: Vec<Value>) -> Vec<Value> {
    for document in &mut documents {
        for path in [
            &["spec", "template", "spec", "volumes"][..],
            &[
                "spec",
                "template",
                "spec",
                "containers",
                "0",
                "volumeMounts",
            ][..],
        ] {
            let list =
                path.iter()
                    .try_fold(&mut *document, |value, key| match key.parse::<usize>() {
                        Ok(index) => value.get_mut(index),
                        Err(_) => value.get_mut(*key),
                    });
            if let Some(Value::Sequence(list)) = list {
                list.sort_by_key(|item| item["name"].as_str().map(str::to_owned));
            }
        }
    }
    documents.sort_by_key(|document| {
        let name = document["metadata"]["name"].as_str().map(str::to_owned);
        (document["kind"].as_str().map(str::to_owned), name)
    });
    documents
}

#[test]
fn every_overlay_is_the_chart_with_its_value() {
    for (folder, values) in BUILT {
        let built: Vec<Value> = build(folder)
            .into_iter()
            .filter(|document| document["kind"] != "Namespace")
            .collect();
        let mut rendered: Vec<Value> = render(values)
            .unwrap()
            .iter()
            .filter(|(name, _)| *name != "NOTES.txt")
            .flat_map(|(_, text)| documents(text))
            .collect();
        if folder == "monitoring" {
            // Applied in addition to the base.
            rendered.retain(|document| {
                let kind = document["kind"].as_str().unwrap();
                OPERATOR.contains(&kind)
                    || document["metadata"]["labels"]
                        .get("grafana_dashboard")
                        .is_some()
            });
            assert_eq!(rendered.len(), 5);
        }
        let (built, rendered) = (in_order(built), in_order(rendered));
        assert_eq!(built.len(), rendered.len(), "{folder}");
        for (built, rendered) in built.iter().zip(&rendered) {
            let text = |document| serde_yaml_ng::to_string(document).unwrap();
            assert!(
                built == rendered,
                "{folder}: kustomize builds\n{}\nthe chart renders\n{}",
                text(built),
                text(rendered)
            );
        }
    }
}

/// Validates against Kubernetes' own schemas, strictly: an unknown field is an error.
fn validate(file: &Path, version: &str) -> Result<(), String> {
    let output = output(
        Command::new(python())
            .args([
                "-m",
                "kubernetes_validate",
                "--strict",
                "--quiet",
                "-k",
                version,
            ])
            .arg(file),
    );
    let errors = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else {
        Err(errors)
    }
}

#[test]
fn every_object_is_valid_for_kubernetes() {
    let mut all = Vec::new();
    for (folder, _) in BUILT {
        all.extend(build(folder));
    }
    let everything = "{networkPolicy: {enabled: true, from: [{namespaceSelector: {}}]}, secrets: [{name: a, secretName: b}],
        listen: {tokenSecret: {name: t}, tlsSecret: c}, seccomp: {type: Localhost, localhostProfile: a.json},
        imagePullSecrets: [{name: r}], podAnnotations: {a: b}, podLabels: {a: b}, serviceAccount: {annotations: {a: b}},
        affinity: {nodeAffinity: {}}, extraEnv: [{name: RUST_LOG, value: debug}], runtime: {mountSocket: false}}";
    let rendered = render(everything).unwrap();
    for (name, text) in &rendered {
        if name != "NOTES.txt" {
            all.extend(documents(text));
        }
    }
    all.retain(|document| !OPERATOR.contains(&document["kind"].as_str().unwrap()));
    assert!(all.len() > 30, "{}", all.len());
    // As JSON, which is valid YAML, so that a YAML 1.1 parser reads strings such as `off` as strings.
    let yaml: String = all
        .iter()
        .map(|document| format!("---\n{}\n", serde_json::to_string(document).unwrap()))
        .collect();
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    fs::write(file.path(), yaml).unwrap();
    for version in KUBERNETES {
        validate(file.path(), version).unwrap();
    }
    // The validation itself detects an error.
    let mut wrong = all.remove(0);
    wrong["spce"] = Value::Bool(true);
    fs::write(file.path(), serde_json::to_string(&wrong).unwrap()).unwrap();
    validate(file.path(), KUBERNETES[1]).unwrap_err();
}

/// The tests of the image run the agent with exactly these privileges.
#[test]
fn agent_has_only_the_privileges_it_needs() {
    let base = build("base");
    let daemonset = base
        .iter()
        .find(|document| document["kind"] == "DaemonSet")
        .unwrap();
    let spec = &daemonset["spec"]["template"]["spec"];
    let context = &spec["containers"][0]["securityContext"];
    assert_eq!(context["privileged"], false);
    assert_eq!(context["allowPrivilegeEscalation"], false);
    assert_eq!(context["readOnlyRootFilesystem"], true);
    assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(
        context["capabilities"],
        serde_yaml_ng::from_str::<Value>(
            "{drop: [ALL], add: [BPF, PERFMON, NET_ADMIN, NET_BROADCAST]}"
        )
        .unwrap()
    );
    assert_eq!(spec.get("hostPID"), None);
    assert_eq!(spec.get("hostIPC"), None);
    for mount in spec["containers"][0]["volumeMounts"].as_sequence().unwrap() {
        let own = mount["name"] == "state" || mount["name"] == "run";
        assert_eq!(mount["readOnly"] == true, !own, "{mount:?}");
    }
    let roles: Vec<_> = base
        .iter()
        .filter(|document| document["kind"] == "ClusterRole")
        .map(|document| &document["rules"])
        .collect();
    let rules: Value = serde_yaml_ng::from_str(
        "[{apiGroups: [''], resources: [pods], verbs: [list, watch]},
          {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}]",
    )
    .unwrap();
    assert_eq!(roles, [&rules]);
}
