//! The plain manifests: kustomize builds them, they validate against schemas, and each component equals the chart with
//! values.

use std::{fs, path::Path};

use serde_yaml_ng::Value;

use crate::tools::{
    deploy, documents, kubernetes_client, output, python, render, render_for, render_with,
};

/// Components that kustomize builds together, and the equivalent values of the chart: files, and others.
const COMPONENTS: [(&[&str], &[&str], &str); 15] = [
    (&[], &[], ""),
    (&["kubernetes-1.32"], &[], ""),
    (&["calico"], &[], "{ipam: {calico: true}}"),
    (&["kube-ovn"], &[], "{ipam: {kubeOvn: true}}"),
    (&["whereabouts"], &[], "{ipam: {whereabouts: true}}"),
    (&["spiderpool"], &[], "{ipam: {spiderpool: true}}"),
    (&["cilium"], &[], "{ipam: {cilium: true}}"),
    (&["kind"], &["platforms/kind.yaml"], ""),
    (&["k3s"], &["platforms/k3s.yaml"], ""),
    (&["rke2"], &["platforms/rke2.yaml"], ""),
    (&["eks"], &["platforms/eks.yaml"], ""),
    (&["openshift"], &["platforms/openshift.yaml"], ""),
    (&["privileged"], &[], "{privileged: true}"),
    (
        &["eks", "bottlerocket"],
        &["platforms/eks.yaml", "platforms/bottlerocket.yaml"],
        "",
    ),
    (
        &["k3s", "calico", "privileged"],
        &["platforms/k3s.yaml"],
        "{ipam: {calico: true}, privileged: true}",
    ),
];

/// The values for everything in the directory `monitoring`.
pub(crate) const MONITORING: &str =
    "{podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboards: {enabled: true}}";

/// Values of the chart that render more than its defaults.
const VALUES: [&str; 12] = [
    "{serviceMonitor: {enabled: true}, commonLabels: {team: network}}",
    "{seccomp: {type: Localhost, localhostProfile: profiles/agent.json}}",
    "{listen: {address: '[$(NODE_IP)]', port: 9000, tokenSecret: {name: token}, tlsSecret: tls}}",
    "{metricsListen: {address: '', detail: false}}",
    "{secrets: [{name: slack, secretName: slack-webhook}], config: {allow: [10.0.0.10], export-claims: true}}",
    "{ipam: {hostLocalDirectories: [/run/cni-ipam-state], calico: true, aws: true, awsLogs: true, cilium: true, azure: true, kubeOvn: true, whereabouts: true, spiderpool: true}}",
    "{runtime: {mountSocket: false}, stateDirectory: ''}",
    "{priorityClass: {create: false, name: system-node-critical}}",
    "{prometheusRule: {enabled: true, alertLabels: {team: network}, severities: {IPAMDrift: info}, disabled: [IPAMLeak]}}",
    "{fleet: {mode: off, crds: false, handover: 1m30s, exclude: [10.0.0.10, 'fd00::/64'], rate: 5}}",
    "{seLinuxOptions: {type: spc_t}, openshift: {securityContextConstraints: true}, clusterName: east}",
    "{networkPolicy: {enabled: true, from: [{namespaceSelector: {}}]}, secrets: [{name: a, secretName: b}],
        listen: {tokenSecret: {name: t}, tlsSecret: c}, seccomp: {type: Localhost, localhostProfile: a.json},
        imagePullSecrets: [{name: r}], podAnnotations: {a: b}, podLabels: {a: b}, serviceAccount: {annotations: {a: b}},
        affinity: {nodeAffinity: {}}, extraEnv: [{name: RUST_LOG, value: debug}], runtime: {mountSocket: false},
        extraArgs: [--kernel-log], extraVolumes: [{name: e, emptyDir: {}}], extraVolumeMounts: [{name: e, mountPath: /e}],
        seLinuxOptions: {type: spc_t}, clusterName: east}",
];

/// The oldest version that the chart supports, and the newest with a schema.
pub(crate) const KUBERNETES: [&str; 2] = ["1.25.0", "1.37.0"];

/// What the chart adds for versions from 1.32 on, and one component.
const NEWER: [&str; 4] = [
    "FlowSchema",
    "PriorityLevelConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Kinds of others, which Kubernetes has no schema for.
const FOREIGN: [&str; 4] = [
    "PodMonitor",
    "PrometheusRule",
    "SecurityContextConstraints",
    "ServiceMonitor",
];

/// Labels of what Helm installs.
pub(crate) const HELM_LABELS: [&str; 2] = ["app.kubernetes.io/managed-by", "helm.sh/chart"];

/// The base with these components, as `kubectl apply --kustomize` would apply it.
pub(crate) fn build(components: &[&str]) -> Vec<Value> {
    kustomize(&format!(
        "resources: [MANIFESTS/base]\ncomponents: [{}]\n",
        components
            .iter()
            .map(|name| format!("MANIFESTS/components/{name}"))
            .collect::<Vec<_>>()
            .join(", ")
    ))
}

/// Builds a kustomization, in which `MANIFESTS` stands for the directory. A warning, as about a deprecated field, fails.
fn kustomize(kustomization: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    // kustomize accepts relative paths only.
    let real = folder.path().canonicalize().unwrap();
    let mut manifests: String = real.components().skip(1).map(|_| "../").collect();
    manifests += deploy("manifests")
        .canonicalize()
        .unwrap()
        .to_str()
        .unwrap()
        .trim_start_matches('/');
    fs::write(
        folder.path().join("kustomization.yaml"),
        kustomization.replace("MANIFESTS", &manifests),
    )
    .unwrap();
    fs::write(folder.path().join("config.yaml"), "claim-ttl: 5m\n").unwrap();
    let output = output(
        kubernetes_client("kubectl")
            .arg("kustomize")
            .arg(folder.path()),
    );
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    documents(&String::from_utf8(output.stdout).unwrap())
}

fn of_kind<'d>(documents: &'d [Value], kind: &str) -> &'d Value {
    let found = documents.iter().find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}"))
}

fn config_volume(spec: &mut Value) -> &mut Value {
    let volumes = spec["volumes"].as_sequence_mut().unwrap();
    let volume = volumes.iter_mut().find(|volume| volume["name"] == "config");
    volume.unwrap()
}

/// The objects without what differs on purpose: the ways in which a changed configuration restarts the pods.
fn comparable(mut documents: Vec<Value>) -> Vec<Value> {
    documents.retain(|document| {
        document["kind"] != "Namespace"
            && document["metadata"]["annotations"]
                .get("helm.sh/hook")
                .is_none()
    });
    for document in &mut documents {
        if document["kind"] == "ConfigMap" && document["data"].get("config.yaml").is_some() {
            document["metadata"]["name"] = "configuration".into();
        }
        if document["kind"] == "DaemonSet" {
            let template = &mut document["spec"]["template"];
            let annotations = template["metadata"]["annotations"]
                .as_mapping_mut()
                .unwrap();
            annotations.remove("checksum/config");
            config_volume(&mut template["spec"])["configMap"]["name"] = "configuration".into();
        }
    }
    in_order(documents)
}

/// The documents sorted by kind and name, with lists that are sets in Kubernetes sorted as well.
fn in_order(mut documents: Vec<Value>) -> Vec<Value> {
    for document in &mut documents {
        let container = ["spec", "template", "spec", "containers", "0"];
        let environment = [&container[..], &["env"]].concat();
        for path in [
            &["spec", "template", "spec", "volumes"][..],
            &environment,
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

fn assert_same(what: &str, built: &[Value], rendered: &[Value]) {
    assert_eq!(built.len(), rendered.len(), "{what}");
    for (built, rendered) in built.iter().zip(rendered) {
        let text = |document| serde_yaml_ng::to_string(document).unwrap();
        assert!(
            built == rendered,
            "{what}: kustomize builds\n{}\nthe chart renders\n{}",
            text(built),
            text(rendered)
        );
    }
}

fn chart_documents(values_files: &[&str], values: &str) -> Vec<Value> {
    let rendered = render_with(values_files, values).unwrap();
    let mut all: Vec<_> = rendered.values().flat_map(|text| documents(text)).collect();
    for document in &mut all {
        if let Some(labels) = document["metadata"]["labels"].as_mapping_mut() {
            for label in HELM_LABELS {
                labels.remove(label);
            }
        }
    }
    all
}

#[test]
fn components_equal_the_chart_with_values() {
    for (components, values_files, values) in COMPONENTS {
        let mut rendered = chart_documents(values_files, values);
        if !components.contains(&"kubernetes-1.32") {
            rendered.retain(|document| !NEWER.contains(&document["kind"].as_str().unwrap()));
        }
        assert_same(
            &format!("{components:?}"),
            &comparable(build(components)),
            &comparable(rendered),
        );
    }
    let tested: Vec<_> = COMPONENTS.iter().flat_map(|(names, ..)| *names).collect();
    for entry in fs::read_dir(deploy("manifests/components")).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(tested.iter().any(|tested| name == **tested), "{name:?}");
    }
}

#[test]
fn monitoring_equals_the_chart_with_values() {
    let mut rendered = chart_documents(&[], MONITORING);
    // Applied in addition to the base.
    rendered.retain(|document| {
        FOREIGN.contains(&document["kind"].as_str().unwrap())
            || document["metadata"]["labels"]
                .get("grafana_dashboard")
                .is_some()
    });
    assert_eq!(rendered.len(), 6);
    let built = kustomize("resources: [MANIFESTS/monitoring]\n");
    assert_same("monitoring", &in_order(built), &in_order(rendered));
}

/// Otherwise a pod would keep the old configuration until it is restarted by hand.
#[test]
fn changed_configuration_restarts_the_pods() {
    let changed = kustomize(
        "resources: [MANIFESTS/base]\nconfigMapGenerator:\n- name: ip-conflict-detector\n  \
         namespace: ip-conflict-detector\n  behavior: merge\n  files: [config.yaml]\n",
    );
    let template =
        |documents: &[Value]| of_kind(documents, "DaemonSet")["spec"]["template"].clone();
    assert_ne!(template(&changed), template(&build(&[])));
    let map = of_kind(&changed, "ConfigMap");
    assert_eq!(map["data"]["config.yaml"], "claim-ttl: 5m\n");
    let mut template = template(&changed);
    let volume = config_volume(&mut template["spec"]);
    assert_eq!(volume["configMap"]["name"], map["metadata"]["name"]);
}

/// Validates against Kubernetes' own schemas, strictly: an unknown field is an error.
fn validate(file: &Path, version: &str) -> Result<(), String> {
    let output = output(
        python("python3")
            .args(["-m", "kubernetes_validate", "--strict", "--quiet"])
            .args(["-k", version])
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
    for (components, ..) in COMPONENTS {
        all.extend(build(components));
    }
    all.extend(kustomize("resources: [MANIFESTS/monitoring]\n"));
    for values in VALUES {
        for text in render(values).unwrap().values() {
            all.extend(documents(text));
        }
    }
    all.retain(|document| !FOREIGN.contains(&document["kind"].as_str().unwrap()));
    assert!(all.len() > 30, "{}", all.len());
    validate_all(&all, KUBERNETES[1]).unwrap();
    // The validation itself detects an error.
    let mut wrong = all[0].clone();
    wrong["spce"] = Value::Bool(true);
    validate_all(&[wrong], KUBERNETES[1]).unwrap_err();
    all.retain(|document| !NEWER.contains(&document["kind"].as_str().unwrap()));
    validate_all(&all, KUBERNETES[0]).unwrap();
}

/// The API of the flow schema changed several times, and the policy needs tokens that name their node.
#[test]
fn chart_uses_what_the_version_of_kubernetes_has() {
    for minor in 25..=37 {
        let flow_control = match minor {
            25 => "v1beta2",
            26..29 => "v1beta3",
            _ => "v1",
        };
        let vendor = if minor == 29 { "-eks-1a2b3c" } else { "" };
        let version = format!("1.{minor}.0{vendor}");
        let rendered = render_for(&version, "").unwrap();
        let has_policy = rendered.contains_key("admissionpolicy.yaml");
        assert_eq!(has_policy, minor >= 32, "{version}");
        let flow = documents(&rendered["flowschema.yaml"]);
        assert_eq!(flow.len(), 2);
        for document in flow {
            let api = format!("flowcontrol.apiserver.k8s.io/{flow_control}");
            assert_eq!(document["apiVersion"], *api, "{version}");
        }
        let all: Vec<_> = rendered.values().flat_map(|text| documents(text)).collect();
        let version = version.split('-').next().unwrap();
        validate_all(&all, version).unwrap_or_else(|error| panic!("{version}: {error}"));
    }
    let off = "{fleet: {flowSchema: false, admissionPolicy: false}}";
    let rendered = render_for("1.37.0", off).unwrap();
    assert!(rendered.values().all(|text| {
        let kinds = documents(text).into_iter();
        let mut kinds = kinds.map(|document| document["kind"].as_str().unwrap().to_owned());
        kinds.all(|kind| !NEWER.contains(&&*kind))
    }));
}

/// Validates objects with [`validate`].
fn validate_all(documents: &[Value], version: &str) -> Result<(), String> {
    // As JSON, which is valid YAML, so that a YAML 1.1 parser reads strings such as `off` as strings.
    let yaml: String = documents
        .iter()
        .map(|document| format!("---\n{}\n", serde_json::to_string(document).unwrap()))
        .collect();
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    fs::write(file.path(), yaml).unwrap();
    validate(file.path(), version)
}

/// Its capabilities, system calls and root file system are those with which `image` runs it.
#[test]
fn agent_has_only_the_rights_it_needs() {
    let base = build(&[]);
    let spec = &of_kind(&base, "DaemonSet")["spec"]["template"]["spec"];
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
          {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]},
          {apiGroups: [ipconflict.io], resources: [ipclaims], verbs: [create, get, update, delete]},
          {apiGroups: [ipconflict.io], resources: [ipconflicts],
           verbs: [create, get, list, watch, update, patch, delete]},
          {apiGroups: [''], resources: [nodes], verbs: [get, list, watch]}]",
    )
    .unwrap();
    assert_eq!(roles, [&rules]);
}

/// The operator's objects have the fields of its API; `rules.rs` has promtool check the rules.
#[test]
fn objects_of_the_prometheus_operator_have_its_fields() {
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("prometheus-operator.json")).unwrap();
    let validate = |document: &Value| {
        let mut schema = schema.clone();
        schema["$ref"] = format!("#/definitions/{}", document["kind"].as_str().unwrap()).into();
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        let document = serde_json::to_value(document).unwrap();
        validator.validate(&document).map_err(|e| e.to_string())
    };
    let secured =
        "{podMonitor: {enabled: true}, prometheusRule: {enabled: true}, clusterName: east,
        listen: {tokenSecret: {name: t}, tlsSecret: c}}";
    let by_service = secured.replace("podMonitor", "serviceMonitor");
    for values in [MONITORING, secured, &by_service] {
        let mut all = chart_documents(&[], values);
        all.retain(|document| FOREIGN.contains(&document["kind"].as_str().unwrap()));
        assert_eq!(all.len(), 2);
        for document in &mut all {
            validate(document).unwrap();
            // The validation itself detects an error.
            document["spec"]["enabled"] = true.into();
            validate(document).unwrap_err();
        }
    }
}
