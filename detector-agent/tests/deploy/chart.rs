//! The Helm chart: rendered output, and values checked by its schema.
//!
//! Helm itself is not run; `helm-render` uses Go's templates and sprig as Helm does for this chart.

use std::{fs, process::Command};

use crate::tools::{assert_current, deploy, documents, python, render, stdout};

/// The schema errors of these values, if any.
fn schema_errors(values: &str) -> Option<String> {
    const CHECK: &str = "
import json, sys, yaml, jsonschema
chart, values = sys.argv[1:]
def merge(under, over):
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(under.get(key), dict):
            merge(under[key], value)
        else:
            under[key] = value
    return under
schema = json.load(open(chart + '/values.schema.json'))
jsonschema.Draft7Validator.check_schema(schema)
merged = merge(yaml.safe_load(open(chart + '/values.yaml')), yaml.safe_load(values) or {})
errors = [f'{error.json_path}: {error.message}' for error in jsonschema.Draft7Validator(schema).iter_errors(merged)]
print('\\n'.join(errors))
";
    let errors = stdout(
        Command::new(python())
            .args(["-c", CHECK])
            .arg(deploy("helm/ip-conflict-detector"))
            .arg(values),
    );
    Some(errors.trim().to_owned()).filter(|errors| !errors.is_empty())
}

#[test]
fn plain_manifests_are_the_chart_with_default_values() {
    let rendered = render("").unwrap();
    let mut files = Vec::new();
    for (name, text) in &rendered {
        if name != "NOTES.txt" && !text.is_empty() {
            files.push(name.clone());
            assert_current(&deploy("manifests/base").join(name), &manifest(text));
        }
    }
    assert_eq!(
        files,
        [
            "configmap.yaml",
            "daemonset.yaml",
            "priorityclass.yaml",
            "rbac.yaml",
            "serviceaccount.yaml"
        ]
    );
    let monitoring = render(
        "{podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboards: {enabled: true}}",
    )
    .unwrap();
    for name in ["podmonitor.yaml", "prometheusrule.yaml", "dashboards.yaml"] {
        assert_current(
            &deploy("manifests/monitoring").join(name),
            &manifest(&monitoring[name]),
        );
    }
}

fn manifest(text: &str) -> String {
    format!("# Rendered from deploy/helm/ip-conflict-detector with its default values.\n{text}")
}

#[test]
fn schema_accepts_default_and_documented_values() {
    assert_eq!(schema_errors(""), None);
    for values in [
        "{seccomp: {type: Localhost, localhostProfile: profiles/agent.json}}",
        "{listen: {address: '[$(NODE_IP)]', port: 9000, tokenSecret: {name: token}, tlsSecret: tls}}",
        "{metricsListen: {address: '', detail: false}}",
        "{secrets: [{name: slack, secretName: slack-webhook}], config: {allow: [10.0.0.10], export-claims: true}}",
        "{ipam: {hostLocalDirectories: [/run/cni-ipam-state], calico: true, aws: true}}",
        "{runtime: {mountSocket: false}, stateDirectory: ''}",
        "{priorityClass: {create: false, name: system-node-critical}}",
    ] {
        assert_eq!(schema_errors(values), None, "{values}");
        let rendered = render(values).unwrap();
        for (name, text) in rendered {
            if name != "NOTES.txt" {
                drop(documents(&text));
            }
        }
    }
}

#[test]
fn schema_rejects_wrong_values_and_names_them() {
    for (values, named) in [
        ("{imgae: {tag: x}}", "imgae"),
        ("{image: {pullPolicy: Sometimes}}", "image.pullPolicy"),
        ("{image: {digest: sha256:123}}", "image.digest"),
        ("{listen: {port: '9842'}}", "listen.port"),
        ("{listen: {port: 70000}}", "listen.port"),
        ("{kube: {enabled: 'yes'}}", "kube.enabled"),
        (
            "{runtime: {socketDirectory: run/containerd}}",
            "socketDirectory",
        ),
        (
            "{ipam: {hostLocalDirectories: [/]}}",
            "hostLocalDirectories",
        ),
        ("{secrets: [{name: slack}]}", "secretName"),
        ("{secrets: [{name: Sl/ack, secretName: x}]}", "Sl/ack"),
        ("{seccomp: {type: runtime-default}}", "seccomp.type"),
        ("{seccomp: {type: Localhost}}", "localhostProfile"),
        ("{updateStrategy: {type: Recreate}}", "updateStrategy.type"),
        (
            "{updateStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1}}}",
            "maxSurge",
        ),
        ("{podMonitor: {interval: 30}}", "podMonitor.interval"),
        ("{config: {listen: '0.0.0.0:1'}}", "listen"),
        ("{config: {metrics-listen: '0.0.0.0:1'}}", "metrics-listen"),
        ("{metricsListen: {port: 0}}", "metricsListen.port"),
        ("{metricsListen: {detail: 'no'}}", "metricsListen.detail"),
        ("{config: {Claim_TTL: 1m}}", "Claim_TTL"),
        (
            "{priorityClass: {value: 2000000000}}",
            "priorityClass.value",
        ),
        ("{nodeSelector: {a: 1}}", "nodeSelector"),
    ] {
        let why = schema_errors(values).unwrap_or_else(|| panic!("{values} passes"));
        assert!(why.contains(named), "{values}: {why}");
    }
}

#[test]
fn every_value_is_in_the_schema_and_used_by_a_template() {
    let values =
        documents(&fs::read_to_string(deploy("helm/ip-conflict-detector/values.yaml")).unwrap());
    let mut templates = String::new();
    for entry in fs::read_dir(deploy("helm/ip-conflict-detector/templates")).unwrap() {
        templates += &fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    for (key, value) in values[0].as_mapping().unwrap() {
        let key = key.as_str().unwrap();
        assert!(templates.contains(&format!(".Values.{key}")), "{key}");
        let free = ["nodeSelector", "resources", "updateStrategy", "config"];
        if let (Some(inner), false) = (value.as_mapping(), free.contains(&key)) {
            for (inner, _) in inner {
                let path = format!(".Values.{key}.{}", inner.as_str().unwrap());
                assert!(templates.contains(&path), "{path}");
            }
        }
    }
}

#[test]
fn secrets_are_mounted_and_never_rendered() {
    let rendered = render(
        "{secrets: [{name: slack, secretName: slack-webhook}], listen: {tokenSecret: {name: agent-token}, tlsSecret: agent-tls},
          podMonitor: {enabled: true}}",
    )
    .unwrap();
    let daemonset = &rendered["daemonset.yaml"];
    for line in [
        "secret: {secretName: slack-webhook}",
        "mountPath: /etc/ip-conflict-detector/secrets/slack",
        "secret: {secretName: agent-token}",
        "value: \"/etc/ip-conflict-detector/token/token\"",
        "secret: {secretName: agent-tls}",
        "scheme: HTTPS",
        "value: \"https://127.0.0.1:9842\"",
        "value: \"$(NODE_IP):9842\"",
    ] {
        assert!(daemonset.contains(line), "{line} in\n{daemonset}");
    }
    let monitor = &rendered["podmonitor.yaml"];
    assert!(
        monitor.contains("credentials: {name: agent-token, key: token}")
            && monitor.contains("scheme: https"),
        "{monitor}"
    );
}

/// kubelet runs in the node's network namespace, so it reaches the loopback of a pod that does, too.
#[test]
fn probes_use_the_address_that_serves_everything() {
    for (address, probe) in [
        ("127.0.0.1", Some("127.0.0.1")),
        ("0.0.0.0", Some("127.0.0.1")),
        ("'[::1]'", Some("::1")),
        ("192.0.2.7", Some("192.0.2.7")),
        // kubelet then uses the pod's address, which is the node's.
        ("$(NODE_IP)", None),
    ] {
        let rendered = render(&format!("{{listen: {{address: {address}, port: 9000}}}}")).unwrap();
        let daemonset = &documents(&rendered["daemonset.yaml"])[0];
        let container = &daemonset["spec"]["template"]["spec"]["containers"][0];
        for name in ["livenessProbe", "readinessProbe"] {
            let get = &container[name]["httpGet"];
            assert_eq!(get["port"], 9000, "{name}");
            let host = get.get("host").map(|host| host.as_str().unwrap());
            assert_eq!(host, probe, "{name} with {address}");
        }
    }
}

#[test]
fn without_metrics_listen_no_port_is_declared_or_scraped() {
    let rendered = render("{metricsListen: {address: '', detail: false}}").unwrap();
    let daemonset = &rendered["daemonset.yaml"];
    assert!(!daemonset.contains("containerPort") && !daemonset.contains("METRICS_LISTEN"));
    assert!(daemonset.contains("name: IPCONFLICT_METRICS_DETAIL\n              value: \"false\""));
    let why = render("{metricsListen: {address: ''}, podMonitor: {enabled: true}}").unwrap_err();
    assert!(why.contains("needs metricsListen.address"), "{why}");
}

/// Without the Kubernetes API the agent needs no permissions and no token.
#[test]
fn without_kube_there_is_no_role_and_no_token() {
    let rendered = render("{kube: {enabled: false}}").unwrap();
    assert_eq!(rendered["rbac.yaml"], "");
    let daemonset = &rendered["daemonset.yaml"];
    assert!(daemonset.contains("automountServiceAccountToken: false"));
    assert!(daemonset.contains("name: IPCONFLICT_KUBE\n              value: \"off\""));
}

#[test]
fn localhost_profile_without_a_name_fails_to_render() {
    let why = render("{seccomp: {type: Localhost}}").unwrap_err();
    assert!(why.contains("needs seccomp.localhostProfile"), "{why}");
}

#[test]
fn chart_metadata_is_valid_for_helm() {
    let chart =
        &documents(&fs::read_to_string(deploy("helm/ip-conflict-detector/Chart.yaml")).unwrap())[0];
    assert_eq!(chart["apiVersion"], "v2");
    assert_eq!(chart["name"], "ip-conflict-detector");
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let image = render("{image: {digest: 'sha256:abc'}}").unwrap();
    assert!(image["daemonset.yaml"].contains("ip-conflict-detector@sha256:abc\""));
}
