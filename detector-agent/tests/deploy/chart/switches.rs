//! What single values of the chart change.

use super::{DAEMONSET, container, daemonset, environment};
use crate::tools::{documents, render};

#[test]
fn secrets_are_mounted_and_never_rendered() {
    let rendered = render(
        "{secrets: [{name: slack, secretName: slack-webhook}], listen: {tokenSecret: {name: agent-token}, tlsSecret: agent-tls},
          podMonitor: {enabled: true}}",
    )
    .unwrap();
    let daemonset = &rendered[DAEMONSET];
    for line in [
        "secret: {secretName: slack-webhook, defaultMode: 256}",
        "mountPath: /etc/ip-conflict-detector/secrets/slack",
        "secret: {secretName: agent-token, defaultMode: 256}",
        "value: \"/etc/ip-conflict-detector/token/token\"",
        "secret: {secretName: agent-tls, defaultMode: 256}",
        "scheme: HTTPS",
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

/// The pod's address, which kubelet uses without a host, is the node's. Pod Security refuses a host below the level privileged.
#[test]
fn probe_uses_the_listener_that_kubelet_reaches() {
    for (values, port, host) in [
        ("", 9842, None),
        ("{listen: {address: 127.0.0.1, port: 9000}}", 9842, None),
        ("{metricsListen: {port: 9001}}", 9001, None),
        (
            "{metricsListen: {address: 192.0.2.7}}",
            9842,
            Some("192.0.2.7"),
        ),
        ("{metricsListen: {address: '::'}}", 9842, Some("::1")),
        ("{metricsListen: {address: ''}}", 9842, Some("127.0.0.1")),
        (
            "{metricsListen: {address: ''}, listen: {address: 0.0.0.0, port: 9000}}",
            9000,
            Some("127.0.0.1"),
        ),
        (
            "{metricsListen: {address: ''}, listen: {address: '[::1]'}}",
            9842,
            Some("::1"),
        ),
        (
            "{metricsListen: {address: ''}, listen: {address: '$(NODE_IP)'}}",
            9842,
            None,
        ),
    ] {
        let daemonset = daemonset(values);
        let container = container(&daemonset);
        let get = &container["readinessProbe"]["httpGet"];
        assert_eq!(get["port"], port, "{values}");
        let found = get.get("host").map(|host| host.as_str().unwrap());
        assert_eq!(found, host, "{values}");
        // Another process that holds the port could fail it.
        assert!(container.get("livenessProbe").is_none());
    }
}

/// Whatever form an address has, the agent can parse it.
#[test]
fn addresses_of_either_family_are_usable() {
    for (address, listen) in [
        ("127.0.0.1", "127.0.0.1:9842"),
        ("0.0.0.0", "0.0.0.0:9842"),
        ("'::'", "[::]:9842"),
        ("'[::]'", "[::]:9842"),
        ("fd00::7", "[fd00::7]:9842"),
        ("$(NODE_IP)", "$(NODE_IP):9842"),
    ] {
        let daemonset = daemonset(&format!("{{listen: {{address: {address}}}}}"));
        assert_eq!(environment(&daemonset, "IPCONFLICT_LISTEN"), Some(listen));
        for node_ip in ["192.0.2.7", "fd00::7"] {
            let listen = listen.replace("$(NODE_IP)", node_ip);
            let arguments = ["detector-agent", "run", "--listen", &listen];
            detector_agent::config::parse(arguments.map(std::ffi::OsString::from)).unwrap();
        }
    }
}

/// By the environment, so that a command in the container gets them as well, unlike the agent's arguments.
#[test]
fn settings_reach_the_agent_and_commands_in_its_container() {
    for (values, variables) in [
        (
            "{clusterName: east}",
            &[("CLUSTER_NAME", "east"), ("CNI_CONF_DIR", "/etc/cni/net.d")][..],
        ),
        (
            "{fleet: {handover: 1m, rate: 5, exclude: [10.0.0.10, 'fd00::/64']}}",
            &[
                ("FLEET", "kubernetes"),
                ("FLEET_HANDOVER", "1m"),
                ("FLEET_RATE", "5"),
                ("FLEET_EXCLUDE", "10.0.0.10,fd00::/64"),
            ],
        ),
        ("{kube: {enabled: false}}", &[("KUBE", "off")]),
        (
            "{metricsListen: {address: '', detail: false}}",
            &[("METRICS_DETAIL", "false")],
        ),
    ] {
        let daemonset = daemonset(values);
        for (name, value) in variables {
            let variable = environment(&daemonset, &format!("IPCONFLICT_{name}"));
            assert_eq!(variable, Some(*value), "{name} with {values}");
            let flag = name.to_lowercase().replace('_', "-");
            let flag = format!("--{flag}={value}");
            let arguments = ["detector-agent", "run", &flag];
            detector_agent::config::parse(arguments.map(std::ffi::OsString::from)).unwrap();
        }
    }
    let daemonset = daemonset("{extraArgs: [--claim-ttl=5m]}");
    let config = environment(&daemonset, "IPCONFLICT_CONFIG");
    assert_eq!(config, Some("/etc/ip-conflict-detector/config.yaml"));
    let container = container(&daemonset);
    let arguments: Vec<_> = container["args"].as_sequence().unwrap().iter().collect();
    assert_eq!(arguments, ["run", "--claim-ttl=5m"]);
}

/// A mount keeps showing a directory that was deleted; one of its parent shows the directory that replaced it.
#[test]
fn parent_of_ipam_state_is_mounted_unless_it_is_shared() {
    let mounted = |directories: &str| -> Vec<String> {
        let daemonset = daemonset(&format!(
            "{{ipam: {{hostLocalDirectories: [{directories}]}}}}"
        ));
        let spec = &daemonset["spec"]["template"]["spec"];
        let mounts = spec["containers"][0]["volumeMounts"].as_sequence().unwrap();
        let mounts = mounts.iter().filter_map(|mount| {
            let name = mount["name"].as_str().unwrap();
            name.starts_with("host-local-")
                .then(|| mount["mountPath"].as_str().unwrap().to_owned())
        });
        mounts.collect()
    };
    assert_eq!(mounted("/run/cni-ipam-state"), ["/run/cni-ipam-state"]);
    assert_eq!(mounted("/data/cni/networks"), ["/data/cni"]);
    assert_eq!(mounted("/data/cni/a, /data/cni/b"), ["/data/cni"]);
}

/// Server-side apply refuses a path that is mounted twice.
#[test]
fn every_path_is_mounted_once() {
    for values in [
        "{ipam: {hostLocalDirectories: [/run/containerd/ipam]}}",
        "{ipam: {hostLocalDirectories: [/run/containerd/ipam, /run/containerd/other]}}",
        "{runtime: {socketDirectory: /run/k3s}, ipam: {hostLocalDirectories: [/run/k3s/ipam]}}",
        "{runtime: {socketDirectory: /run/flannel}, ipam: {hostLocalDirectories: [/run/flannel]}}",
        "{ipam: {hostLocalDirectories: [/var/lib/cni/mine, /etc/cni/net.d/state]}}",
        "{ipam: {hostLocalDirectories: [/var/run/aws-node/x, /var/log/aws-routed-eni/x], aws: true, awsLogs: true}}",
        "{stateDirectory: /data/agent, ipam: {hostLocalDirectories: [/data/agent/cni]}}",
        "{runtime: {mountSocket: false}, ipam: {hostLocalDirectories: [/run/containerd/ipam]}}",
    ] {
        let daemonset = daemonset(values);
        let spec = &daemonset["spec"]["template"]["spec"];
        let unique = |list: &serde_yaml_ng::Value, key: &str| {
            let list = list.as_sequence().unwrap();
            let text = |entry: &serde_yaml_ng::Value| entry[key].as_str().unwrap().to_owned();
            let mut seen: Vec<_> = list.iter().map(text).collect();
            let all = seen.len();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), all, "{key} with {values}: {seen:?}");
            seen
        };
        let mounts = unique(&spec["containers"][0]["volumeMounts"], "mountPath");
        unique(&spec["volumes"], "name");
        let is_mounted = mounts.iter().any(|path| path == "/run/containerd");
        let has_state = values.contains("/run/containerd");
        assert!(is_mounted || !has_state, "{values}: {mounts:?}");
    }
}

/// Server-side apply would refuse them only at the API server, without naming the values.
#[test]
fn entries_that_two_values_give_are_refused() {
    for (values, named) in [
        (
            "{stateDirectory: /run/ip-conflict-detector}",
            "mount /run/ip-conflict-detector: `run` and `state`",
        ),
        (
            "{runtime: {socketDirectory: /etc/cni/net.d}}",
            "mount /etc/cni/net.d: `cni-config` and `runtime`",
        ),
        (
            "{extraVolumes: [{name: e, emptyDir: {}}], extraVolumeMounts: [{name: e, mountPath: /run/netns}]}",
            "mount /run/netns: `netns` and `e`",
        ),
        (
            "{extraVolumes: [{name: state, emptyDir: {}}]}",
            "volume state",
        ),
        (
            "{extraEnv: [{name: IPCONFLICT_KUBE, value: on}]}",
            "variable IPCONFLICT_KUBE",
        ),
    ] {
        let why = render(values).unwrap_err();
        assert!(why.contains(named), "{values}: {why}");
    }
}

/// Those of the pods must stay what the DaemonSet selects, and must not restart the pods with each version of the chart.
#[test]
fn common_labels_are_on_every_object_and_change_no_selector() {
    let values = "{commonLabels: {team: network, tier: shared, app.kubernetes.io/name: other}, podLabels: {tier: pod},
        podMonitor: {enabled: true, labels: {tier: monitor}}, prometheusRule: {enabled: true}, dashboards: {enabled: true}}";
    let rendered = render(values).unwrap();
    for document in rendered.values().flat_map(|text| documents(text)) {
        let labels = &document["metadata"]["labels"];
        assert_eq!(labels["team"], "network", "{document:?}");
        if document["kind"] != "Pod" {
            assert_eq!(labels["app.kubernetes.io/name"], "ip-conflict-detector");
            assert_eq!(labels["app.kubernetes.io/managed-by"], "Helm");
            let chart = format!("ip-conflict-detector-{}", env!("CARGO_PKG_VERSION"));
            assert_eq!(labels["helm.sh/chart"], *chart);
        }
    }
    let monitor = &documents(&rendered["podmonitor.yaml"])[0];
    assert_eq!(monitor["metadata"]["labels"]["tier"], "monitor");
    let daemonset = &documents(&rendered[DAEMONSET])[0];
    let labels = &daemonset["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["tier"], "pod");
    assert_eq!(labels.get("helm.sh/chart"), None);
    let selector = daemonset["spec"]["selector"]["matchLabels"].as_mapping();
    for (label, value) in selector.unwrap() {
        assert_eq!(&labels[label], value);
    }
}

/// A directory that is missing on a node is named in the pod's events; kubelet does not create it there.
#[test]
fn directories_of_others_are_not_created() {
    let daemonset =
        daemonset("{ipam: {aws: true, awsLogs: true, hostLocalDirectories: [/run/flannel]}}");
    let volumes = daemonset["spec"]["template"]["spec"]["volumes"]
        .as_sequence()
        .unwrap();
    let created: Vec<_> = volumes
        .iter()
        .filter(|volume| volume["hostPath"]["type"] == "DirectoryOrCreate")
        .map(|volume| volume["name"].as_str().unwrap())
        .collect();
    // The first two appear with the first pod, the others are the agent's own.
    assert_eq!(created, ["netns", "cni-state", "run", "state"]);
    let known = volumes.iter().filter_map(|volume| volume.get("hostPath"));
    assert!(known.into_iter().all(|path| path["type"].is_string()));
}

#[test]
fn combinations_that_cannot_work_are_refused_with_the_remedy() {
    for (values, sentence) in [
        (
            "{kube: {enabled: false}, ipam: {calico: true}}",
            "it needs kube.enabled",
        ),
        (
            "{kube: {enabled: false}, ipam: {kubeOvn: true}}",
            "it needs kube.enabled",
        ),
        (
            "{kube: {enabled: false}, ipam: {whereabouts: true}}",
            "it needs kube.enabled",
        ),
        (
            "{kube: {enabled: false}, ipam: {spiderpool: true}}",
            "it needs kube.enabled",
        ),
        (
            "{priorityClass: {name: system-node-critical}}",
            "set priorityClass.create to false",
        ),
        (
            "{metricsListen: {address: ''}, podMonitor: {enabled: true}}",
            "need metricsListen.address",
        ),
        (
            "{podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}",
            "enable one of them",
        ),
        (
            "{seccomp: {type: Localhost, localhostProfile: ''}}",
            "localhostProfile",
        ),
    ] {
        let why = render(values).unwrap_err();
        assert!(why.contains(sentence), "{values}: {why}");
    }
    let rendered = render("{priorityClass: {name: mine}}").unwrap();
    let class = &documents(&rendered["priorityclass.yaml"])[0];
    assert_eq!(class["metadata"]["name"], "mine");
    assert!(rendered[DAEMONSET].contains("priorityClassName: mine\n"));
}

#[test]
fn cluster_name_is_a_label_of_scraped_metrics() {
    for (monitor, endpoints) in [
        ("podMonitor", "podMetricsEndpoints"),
        ("serviceMonitor", "endpoints"),
    ] {
        let values = format!("{{clusterName: east, {monitor}: {{enabled: true}}}}");
        let rendered = render(&values).unwrap();
        let file = format!("{}.yaml", monitor.to_lowercase());
        let object = documents(&rendered[&file]).pop().unwrap();
        let relabelings = &object["spec"][endpoints][0]["relabelings"];
        let relabelings = relabelings.as_sequence().unwrap();
        let found = relabelings
            .iter()
            .find(|rule| rule["targetLabel"] == "cluster");
        assert_eq!(found.unwrap()["replacement"], "east");
    }
}

/// It lists the agents, by the labels and the port of their pods.
#[test]
fn service_of_the_service_monitor_selects_the_agents() {
    let rendered = render("{serviceMonitor: {enabled: true}}").unwrap();
    let found = documents(&rendered["servicemonitor.yaml"]);
    let [service, monitor] = &found[..] else {
        panic!("{found:?}");
    };
    let daemonset = daemonset("");
    let selector = &daemonset["spec"]["selector"]["matchLabels"];
    assert_eq!(&service["spec"]["selector"], selector);
    assert_eq!(&monitor["spec"]["selector"]["matchLabels"], selector);
    let port = &container(&daemonset)["ports"][0];
    let of_service = &service["spec"]["ports"][0];
    assert_eq!(of_service["targetPort"], port["name"]);
    assert_eq!(of_service["name"], monitor["spec"]["endpoints"][0]["port"]);
}

/// `helm test` asks at the agent's socket: without its Secrets, and without a right.
#[test]
fn helm_test_asks_at_the_socket_without_rights() {
    let rendered = render("{listen: {tokenSecret: {name: t}, tlsSecret: c}}").unwrap();
    let pod = &documents(&rendered["readiness.yaml"])[0];
    assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test");
    assert_eq!(pod["spec"]["hostNetwork"], true);
    let container = &pod["spec"]["containers"][0];
    let capabilities = &container["securityContext"]["capabilities"];
    assert!(capabilities["drop"][0] == "ALL" && capabilities.get("add").is_none());
    assert!(container.get("env").is_none());
    let mounts = container["volumeMounts"].as_sequence().unwrap();
    let daemonset = documents(&rendered[DAEMONSET]).remove(0);
    let agent = super::container(&daemonset);
    let run = agent["volumeMounts"].as_sequence().unwrap().iter();
    let run = run.filter(|mount| mount["name"] == "run");
    let paths = |mount: &serde_yaml_ng::Value| mount["mountPath"].clone();
    assert!(run.map(paths).eq(mounts.iter().map(paths)));
}

#[test]
fn without_metrics_listen_no_port_is_declared_or_scraped() {
    let rendered = render("{metricsListen: {address: ''}}").unwrap();
    let daemonset = &rendered[DAEMONSET];
    assert!(!daemonset.contains("containerPort") && !daemonset.contains("METRICS_LISTEN"));
}

/// Without the Kubernetes API the agent needs no permissions and no token.
#[test]
fn without_kube_there_is_no_role_and_no_token() {
    let rendered = render("{kube: {enabled: false}}").unwrap();
    assert!(!rendered.contains_key("rbac.yaml"));
    let daemonset = &rendered[DAEMONSET];
    assert!(daemonset.contains("automountServiceAccountToken: false"));
}

/// Without the fleet, or without the Kubernetes API, nothing of it is installed or asked for.
#[test]
fn without_the_fleet_nothing_of_it_is_installed() {
    for values in [
        "{fleet: {mode: 'off'}}",
        "{fleet: {mode: off}}",
        "{kube: {enabled: false}}",
    ] {
        let rendered = render(values).unwrap();
        let daemonset = daemonset(values);
        assert_eq!(environment(&daemonset, "IPCONFLICT_FLEET"), Some("off"));
        assert_eq!(environment(&daemonset, "IPCONFLICT_FLEET_RATE"), None);
        for (file, text) in rendered {
            assert!(!text.contains("ipconflict.io/"), "{file}: {text}");
            assert!(!text.contains("[ipconflict.io]"), "{file}: {text}");
            assert!(!text.contains("group: ipconflict.io"), "{file}: {text}");
        }
    }
    let rendered = render("{fleet: {crds: false}}").unwrap();
    assert!(!rendered.contains_key("crds.yaml"));
    assert!(rendered["rbac.yaml"].contains("ipclaims"));
}
