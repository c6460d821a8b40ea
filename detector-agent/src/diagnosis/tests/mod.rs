//! From what is on a node and in its API server to the cause: collectors and rules together.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod aws;
mod calico;
mod nodes;
mod others;
mod plugins;
mod results_off;
mod vlan;

use std::{fs, sync::Arc, time::Instant};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use detector_engine::diagnosis::{Cause, CauseConfidence, Diagnosis, diagnose};
use detector_event::{AnomalyData, ConflictData, Pod};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Collector, Finding, Watched};
use crate::{
    ipam::IpamSettings,
    kube_client::{KubeClient, KubeMode, simulated::SimulatedApi},
    pods::{CriSetting, PathSetting, PodDirectory, PodLookupSettings},
};

const NODE: &str = "worker-7";

/// A time, in minutes from now.
fn minute(minute: i64) -> Timestamp {
    Timestamp::now() + SignedDuration::from_mins(minute)
}

/// A pod that runs.
#[derive(Clone)]
struct TestPod {
    name: &'static str,
    address: &'static str,
    created: Timestamp,
    /// Its controller's kind.
    controller: &'static str,
}

impl TestPod {
    fn new(name: &'static str, address: &'static str, created: Timestamp) -> Self {
        Self {
            name,
            address,
            created,
            controller: "ReplicaSet",
        }
    }

    /// The id of its sandbox.
    fn sandbox(&self) -> String {
        let digits = self.name.bytes().map(|byte| format!("{byte:02x}"));
        format!("{:0<64}", digits.collect::<String>())
    }

    fn json(&self) -> Value {
        json!({"namespace": "shop", "name": self.name, "uid": null, "container_id": self.sandbox(), "via": "cri",
            "owner": {"kind": self.controller, "name": "web"}, "sandbox_created_at": self.created.to_string()})
    }

    fn pod(&self) -> Arc<Pod> {
        let mut pod: Pod = serde_json::from_value(self.json()).unwrap();
        pod.primary_addresses = vec![self.address.parse().unwrap()];
        Arc::new(pod)
    }
}

/// A node with pods, an API server and files.
struct TestNode {
    directory: TempDir,
    api: SimulatedApi,
    settings: IpamSettings,
    network: Value,
    pods: Vec<TestPod>,
    watched: Watched,
    /// Whether the CNI result cache is used.
    has_results: bool,
}

impl TestNode {
    /// With a network of this configuration.
    fn new(network: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("net.d")).unwrap();
        fs::create_dir(at("results")).unwrap();
        fs::write(at("net.d/10-net.conflist"), network.to_string()).unwrap();
        let api = SimulatedApi::default();
        api.install("/api/v1/pods");
        api.continue_from(1_000);
        Self {
            settings: IpamSettings {
                cni_conf_dir: at("net.d"),
                aws_ipam_file: at("ipam.json"),
                aws_log_file: at("ipamd.log"),
                ..IpamSettings::default()
            },
            directory,
            api,
            network: network.clone(),
            pods: Vec::new(),
            watched: Watched::default(),
            has_results: true,
        }
    }

    /// Adds a pod that the network plugin gave its address when it was created.
    fn add(&mut self, pod: &TestPod) {
        let id = pod.sandbox();
        let name = self.network["name"].as_str().unwrap();
        let result = json!({"kind": "cniCacheV1", "containerId": id, "ifName": "eth0", "networkName": name,
            "config": STANDARD.encode(self.network.to_string()),
            "result": {"ips": [{"address": format!("{}/32", pod.address)}]}});
        let path = self
            .directory
            .path()
            .join(format!("results/{name}-{id}-eth0"));
        fs::write(&path, result.to_string()).unwrap();
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(pod.created.into()).unwrap();
        self.pods.push(pod.clone());
    }

    /// As if all pods had been created before this test.
    fn age_pods(&mut self) {
        for mut pod in std::mem::take(&mut self.pods) {
            pod.created = minute(-60);
            self.add(&pod);
        }
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.directory.path().join(name), content).unwrap();
    }

    fn collector(&mut self) -> Collector {
        let pods = (1..).zip(&self.pods).map(|(n, pod)| (n, pod.pod()));
        self.watched.pods = Arc::new(PodDirectory::of(pods));
        let lookups = PodLookupSettings {
            cri_endpoint: CriSetting::Off,
            cni_cache_dir: match self.has_results {
                true => PathSetting::At(self.directory.path().join("results")),
                false => PathSetting::Off,
            },
            kube: KubeMode::Off,
            pod_labels: Vec::new(),
            lookup_timeout: std::time::Duration::from_secs(1),
        };
        let kube = Some(KubeClient::simulated(&self.api));
        let collector = Collector::new(&self.settings, &lookups, kube, self.watched.clone());
        let listed = self.pods.iter().map(|pod| (pod.sandbox(), true));
        collector.unwrap().with_sandboxes(listed.collect())
    }

    /// A conflict of the pods with this address.
    fn conflict(&self, address: &str) -> ConflictData {
        let pods = (1..).zip(&self.pods);
        let claimants = pods.filter(|(_, pod)| pod.address == address);
        let claimants = claimants.map(|(n, pod)| {
            let seen = pod.created.to_string();
            json!({"node": NODE, "device": format!("cali{n}"), "ifindex": n, "mac": null, "master": null,
                "since": seen, "pod": pod.json(), "pod_unknown_because": null, "left": null,
                "evidence": [{"kind": "address", "first_seen": seen, "last_seen": seen, "mac": null, "detail": null}]})
        });
        let now = Timestamp::now().to_string();
        let conflict = json!({"conflict_id": format!("{:016x}", 1), "node": NODE, "address": address, "vlan": null,
            "kind": "duplicate", "confidence": "certain", "state": "active", "raised_at": now, "updated_at": now,
            "resolved_at": null, "latency_us": 1, "traffic_goes_to": null, "claimants": claimants.collect::<Vec<_>>()});
        serde_json::from_value(conflict).unwrap()
    }

    /// Drift of the address of one pod.
    fn drift(&self, address: &str) -> AnomalyData {
        let mut pods = (1..).zip(&self.pods);
        let (n, pod) = pods.find(|(_, pod)| pod.address == address).unwrap();
        let anomaly = json!({"anomaly_id": format!("{:016x}", 2), "node": NODE, "kind": "ipam_drift",
            "cause": "not_allocated", "state": "active", "address": address, "vlan": null,
            "device": format!("cali{n}"), "ifindex": n, "pod": pod.json(), "pod_unknown_because": null,
            "network": null, "source": null, "owner": null, "detail": "", "raised_at": Timestamp::now().to_string(),
            "resolved_at": null, "latency_us": 1});
        serde_json::from_value(anomaly).unwrap()
    }
}

fn explain<'d>(collector: &mut Collector, finding: Finding<'d>) -> Diagnosis {
    diagnose(&collector.facts(finding, Instant::now()).unwrap())
}

fn assert_cause(diagnosis: &Diagnosis, cause: Cause, confidence: CauseConfidence) {
    let found = (diagnosis.cause, diagnosis.confidence);
    assert_eq!(found, (cause, confidence), "{diagnosis:#?}");
}

fn assert_unknown(diagnosis: &Diagnosis) {
    assert_cause(diagnosis, Cause::Unknown, CauseConfidence::Likely);
}

fn has_fact(diagnosis: &Diagnosis, part: &str) -> bool {
    diagnosis.evidence.iter().any(|e| e.fact.contains(part))
}
