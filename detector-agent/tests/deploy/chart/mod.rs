//! The Helm chart, rendered and linted by Helm.

mod platforms;
mod readme;
mod switches;

use std::fs;

use crate::{
    manifests::{HELM_LABELS, MONITORING},
    tools::{
        CHART, NAME, assert_current, deploy, documents, kubernetes_client, output, read, render,
        root, stdout,
    },
};

/// The file of the DaemonSet, the same in every rendering.
const DAEMONSET: &str = "daemonset.yaml";
/// The files with what older versions of Kubernetes do not have.
const NEWER_FILES: [&str; 2] = ["admissionpolicy.yaml", "flowschema.yaml"];

/// The DaemonSet rendered with these values.
fn daemonset(values: &str) -> serde_yaml_ng::Value {
    documents(&render(values).unwrap()[DAEMONSET]).remove(0)
}

/// The agent's container.
fn container(daemonset: &serde_yaml_ng::Value) -> &serde_yaml_ng::Value {
    &daemonset["spec"]["template"]["spec"]["containers"][0]
}

/// The value of an environment variable of the agent's container.
fn environment<'d>(daemonset: &'d serde_yaml_ng::Value, name: &str) -> Option<&'d str> {
    let variables = container(daemonset)["env"].as_sequence().unwrap();
    let variable = variables.iter().find(|variable| variable["name"] == name)?;
    variable["value"].as_str()
}

#[test]
fn helm_finds_nothing_to_improve() {
    let lint = |values: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), values).unwrap();
        let mut helm = kubernetes_client("helm");
        output(
            helm.args(["lint", "--strict", "--values"])
                .arg(file.path())
                .arg(deploy(CHART)),
        )
    };
    let result = lint("");
    let text = String::from_utf8_lossy(&result.stdout);
    assert!(result.status.success(), "{text}");
    // Recommendations are lines too.
    assert!(
        !text.contains("[INFO]") && !text.contains("[WARNING]"),
        "{text}"
    );
    assert!(!lint("{listen: {port: 0}}").status.success());
}

/// What the base has and the chart no longer renders is found by `manifests::components_equal_the_chart_with_values`.
#[test]
fn plain_manifests_are_the_chart_with_default_values() {
    let rendered = render("").unwrap();
    let base = deploy("manifests/base");
    for (name, text) in &rendered {
        match name.as_str() {
            // For `helm test`.
            "readiness.yaml" => {}
            name if NEWER_FILES.contains(&name) => {
                let component = deploy("manifests/components/kubernetes-1.32");
                assert_current(&component.join(name), &manifest(text));
            }
            "configmap.yaml" => {
                let map = documents(text).remove(0);
                let config = map["data"]["config.yaml"].as_str().unwrap();
                assert_current(&base.join("config.yaml"), config);
            }
            name => assert_current(&base.join(name), &manifest(text)),
        }
    }
    let openshift = render("{openshift: {securityContextConstraints: true}}").unwrap();
    assert_current(
        &deploy("manifests/components/openshift/scc.yaml"),
        &manifest(&openshift["scc.yaml"]),
    );
    let monitoring = render(MONITORING).unwrap();
    for name in ["podmonitor.yaml", "prometheusrule.yaml", "dashboards.yaml"] {
        assert_current(
            &deploy("manifests/monitoring").join(name),
            &manifest(&monitoring[name]),
        );
    }
}

fn manifest(text: &str) -> String {
    let text: String = text
        .lines()
        .filter(|line| {
            let line = line.trim_start();
            let is_of_helm = HELM_LABELS.iter().any(|label| line.starts_with(label));
            // The hash that kustomize adds to the map's name restarts the pods.
            !is_of_helm && !line.starts_with("checksum/config:")
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    format!("# Rendered from deploy/helm/ip-conflict-detector with its default values.\n{text}")
}

#[test]
fn schema_rejects_wrong_values_and_names_them() {
    for (values, named) in [
        ("{imgae: {tag: x}}", "imgae"),
        ("{image: {pullPolicy: Sometimes}}", "/image/pullPolicy'"),
        ("{image: {digest: sha256:123}}", "/image/digest'"),
        ("{listen: {port: '9842'}}", "/listen/port'"),
        ("{listen: {port: 70000}}", "/listen/port'"),
        ("{kube: {enabled: 'yes'}}", "/kube/enabled'"),
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
        ("{seccomp: {type: runtime-default}}", "/seccomp/type'"),
        ("{seccomp: {type: Localhost}}", "localhostProfile"),
        (
            "{updateStrategy: {type: Recreate}}",
            "/updateStrategy/type'",
        ),
        (
            "{updateStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1}}}",
            "maxSurge",
        ),
        ("{podMonitor: {interval: 30}}", "/podMonitor/interval'"),
        ("{config: {listen: '0.0.0.0:1'}}", "listen"),
        ("{config: {metrics-listen: '0.0.0.0:1'}}", "metrics-listen"),
        ("{metricsListen: {port: 0}}", "/metricsListen/port'"),
        ("{metricsListen: {detail: 'no'}}", "/metricsListen/detail'"),
        ("{config: {Claim_TTL: 1m}}", "Claim_TTL"),
        (
            "{priorityClass: {value: 2000000000}}",
            "/priorityClass/value'",
        ),
        ("{nodeSelector: {a: 1}}", "nodeSelector"),
        ("{listen: {address: none}}", "/listen/address'"),
        ("{extraArgs: [claim-ttl]}", "/extraArgs/0'"),
        ("{extraVolumes: [{emptyDir: {}}]}", "/extraVolumes/0'"),
        ("{extraVolumeMounts: [{name: a}]}", "/extraVolumeMounts/0'"),
        ("{seLinuxOptions: {typ: spc_t}}", "typ"),
        (
            "{ipam: {cniConfigDirectory: ''}}",
            "/ipam/cniConfigDirectory'",
        ),
        ("{config: {cluster-name: east}}", "cluster-name"),
        ("{config: {fleet-rate: 5}}", "fleet-rate"),
        ("{fleet: {mode: on}}", "/fleet/mode'"),
        ("{fleet: {handover: 15}}", "/fleet/handover'"),
        (
            "{fleet: {exclude: [10.0.0.0-10.0.0.9]}}",
            "/fleet/exclude/0'",
        ),
        ("{fleet: {rate: 0}}", "/fleet/rate'"),
    ] {
        let why = render(values).err();
        let why = why.unwrap_or_else(|| panic!("{values} passes"));
        assert!(why.contains(named), "{values}: {why}");
    }
}

#[test]
fn every_value_is_used_by_a_template() {
    let values = documents(&read(deploy(CHART).join("values.yaml")));
    let mut templates = String::new();
    for entry in fs::read_dir(deploy(CHART).join("templates")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            templates += &read(path);
        }
    }
    for (key, value) in values[0].as_mapping().unwrap() {
        let key = key.as_str().unwrap();
        assert!(templates.contains(&format!(".Values.{key}")), "{key}");
        let free = ["nodeSelector", "resources", "updateStrategy", "config"];
        if let (Some(inner), false) = (value.as_mapping(), free.contains(&key)) {
            for (inner, _) in inner {
                let inner = inner.as_str().unwrap();
                let path = format!(".Values.{key}.{inner}");
                // The probes take one of two listeners.
                let listener = key.to_lowercase().ends_with("listen")
                    && templates.contains(&format!("$listener.{inner}"));
                assert!(templates.contains(&path) || listener, "{path}");
            }
        }
    }
}

#[test]
fn chart_metadata_is_current() {
    let chart = &documents(&read(deploy(CHART).join("Chart.yaml")))[0];
    assert_eq!(chart["name"], NAME);
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let icon = chart["icon"].as_str().unwrap();
    let (_, file) = icon.split_once("/main/").unwrap();
    assert!(root().join(file).exists(), "{icon}");
    // Annotations for Artifact Hub are text of YAML.
    let listed = |name: &str| documents(chart["annotations"][name].as_str().unwrap()).remove(0);
    let image = &listed("artifacthub.io/images")[0]["image"];
    assert!(
        render("").unwrap()[DAEMONSET].contains(&format!("image: {:?}", image.as_str().unwrap()))
    );
    let crds = listed("artifacthub.io/crds");
    let crds = crds.as_sequence().unwrap().iter();
    let mut expected = documents(&render("").unwrap()["crds.yaml"]);
    expected.sort_by_key(|crd| crd["metadata"]["name"].as_str().unwrap().to_owned());
    let name = |crd: &serde_yaml_ng::Value| {
        [
            &crd["metadata"]["name"],
            &crd["spec"]["names"]["kind"],
            &crd["spec"]["versions"][0]["name"],
        ]
        .map(Clone::clone)
    };
    let expected: Vec<_> = expected.iter().map(name).collect();
    let crds: Vec<_> = crds
        .map(|crd| ["name", "kind", "version"].map(|key| crd[key].clone()))
        .collect();
    assert_eq!(crds, expected);
    for (list, field) in [("links", "url"), ("screenshots", "url")] {
        for entry in listed(&format!("artifacthub.io/{list}"))
            .as_sequence()
            .unwrap()
        {
            let url = entry[field].as_str().unwrap();
            let (_, file) = url.split_once("/main/").unwrap();
            assert!(root().join(file).exists(), "{url}");
        }
    }
    let image = render(&format!(
        "{{image: {{digest: 'sha256:{}'}}}}",
        "a".repeat(64)
    ))
    .unwrap();
    assert!(image[DAEMONSET].contains("ip-conflict-detector@sha256:aaaa"));
}

/// What a user sees after `helm install`.
#[test]
fn notes_name_the_commands_of_this_release() {
    let mut helm = kubernetes_client("helm");
    let text = stdout(
        helm.args(["install", "mine", "--dry-run=client", "--namespace", "net"])
            .args(["--set", "listen.port=9000,listen.tlsSecret=tls"])
            .arg(deploy(CHART)),
    );
    let (_, notes) = text.split_once("\nNOTES:\n").unwrap();
    for command in [
        "kubectl -n net rollout status daemonset/mine-ip-conflict-detector",
        "helm -n net test mine",
        "kubectl -n net exec ds/mine-ip-conflict-detector -- /usr/local/bin/detector-agent check",
        "kubectl label namespace net pod-security.kubernetes.io/enforce=privileged",
        "kubectl -n net port-forward daemonset/mine-ip-conflict-detector 9842:9000",
        "https://127.0.0.1:9842/",
    ] {
        assert!(notes.contains(command), "{command} in\n{notes}");
    }
}
