//! A cluster in which the chart is installed, and what the tests ask it.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use detector_testkit::{
    DEADLINE,
    cluster::{
        Cluster, ClusterNode, ClusterOptions, PAUSE_IMAGE, Programs, chart_image, copy_chart,
        copy_deployment,
    },
    http::TestClient,
    image::AgentImage,
    until,
};
use serde_json::Value;

use crate::AGENT;

/// The release and its namespace.
pub(crate) const RELEASE: &str = "ip-conflict-detector";
/// The tag under which the clusters have the image of the previous version.
pub(crate) const PREVIOUS_TAG: &str = "previous";
/// For steps in which Kubernetes takes part: kubelet looks at some things once in 10 seconds.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// The checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The servers and clients.
pub(crate) fn programs() -> Programs {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    Programs::in_tools(&target.join("tools")).unwrap()
}

/// An archive with the image, under the name that the chart uses: the one that was given, or one with the agent of this build.
fn image() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| env::var_os("CLUSTER_IMAGE").map_or_else(build_image, PathBuf::from))
}

fn build_image() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cluster/image");
    // Left by an earlier run; each takes some hundred megabytes.
    let _ = fs::remove_dir_all(&directory);
    let name = chart_image(root()).unwrap();
    let built = AgentImage::build(&directory, root(), Path::new(AGENT), &name, "unknown");
    built.unwrap().archive()
}

/// An archive with the image of the previous version, if it was given; otherwise that of this one.
fn previous_image() -> PathBuf {
    env::var_os("CLUSTER_PREVIOUS_IMAGE").map_or_else(|| image().to_owned(), PathBuf::from)
}

/// A cluster whose first node is looked at.
pub(crate) struct Installation {
    pub(crate) cluster: Cluster,
    chart: PathBuf,
    began: Instant,
}

impl Installation {
    /// Starts a cluster that has the image.
    pub(crate) fn prepare(options: &ClusterOptions) -> Self {
        let began = Instant::now();
        let cluster = Cluster::start(&programs(), options).unwrap();
        // First, because it may have the name of the other one as well.
        let repository = chart_image(root()).unwrap();
        let (repository, _) = repository.rsplit_once(':').unwrap();
        let name = format!("{repository}:{PREVIOUS_TAG}");
        cluster.import_as(&previous_image(), &name).unwrap();
        cluster.import(image()).unwrap();
        let chart = copy_chart(root(), cluster.directory()).unwrap();
        Self {
            cluster,
            chart,
            began,
        }
    }

    /// Installs the chart with its defaults, or changes the installation, and waits for the rollout.
    pub(crate) fn helm(&self, verb: &str, settings: &[&str]) {
        let mut helm = self.cluster.command("helm");
        helm.args([verb, RELEASE])
            .arg(&self.chart)
            .args(["--namespace", RELEASE])
            .args(settings.iter().flat_map(|setting| ["--set", *setting]));
        if verb == "install" {
            helm.arg("--create-namespace");
        }
        self.cluster.run(helm).unwrap();
        self.rollout();
    }

    /// Replaces the schema of IPConflicts in the chart.
    pub(crate) fn set_conflict_schema(&self, definition: &str) {
        fs::write(self.chart.join("files/crds/ipconflicts.yaml"), definition).unwrap();
    }

    /// Waits until the agent runs on every node.
    pub(crate) fn rollout(&self) {
        self.kubectl(&format!(
            "-n {RELEASE} rollout status daemonset/{RELEASE} --timeout=120s"
        ));
    }

    /// Replaces the agents of all nodes, one after the other.
    pub(crate) fn restart_agents(&self) {
        self.kubectl(&format!("-n {RELEASE} rollout restart daemonset/{RELEASE}"));
        self.rollout();
    }

    /// Prints what was reached when: for a failure, and with `--nocapture`.
    pub(crate) fn note(&self, what: impl fmt::Display) {
        let test = thread::current();
        let test = test.name().unwrap_or_default().to_owned();
        eprintln!(
            "{test}: {:5.1} s: {what}",
            self.began.elapsed().as_secs_f64()
        );
    }

    /// A directory with what of the checkout a cluster needs, and with the chart that the cluster accepts.
    pub(crate) fn checkout(&self) -> PathBuf {
        let directory = self.cluster.directory().join("checkout");
        copy_deployment(root(), &directory).unwrap();
        directory
    }

    /// Runs kubectl with these words, which has to succeed.
    pub(crate) fn kubectl(&self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.cluster
            .kubectl(&words)
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.describe()))
    }

    /// What a failure needs.
    pub(crate) fn describe(&self) -> String {
        let one = |args: &[&str]| {
            self.cluster
                .kubectl(args)
                .unwrap_or_else(|error| format!("{error:#}"))
        };
        let agent = format!("daemonset/{RELEASE}");
        format!(
            "{}\n{}",
            one(&["get", "pods,events", "-A", "-o", "wide"]),
            one(&["-n", RELEASE, "logs", &agent, "--tail=40"]),
        )
    }

    pub(crate) fn node(&self) -> &ClusterNode {
        &self.cluster.nodes()[0]
    }

    /// Creates a pod and returns its address.
    pub(crate) fn run_pod(&self, name: &str) -> String {
        self.kubectl(&format!(
            "run {name} --image={PAUSE_IMAGE} --image-pull-policy=Never"
        ));
        self.kubectl(&format!(
            "wait --for=condition=Ready pod/{name} --timeout=60s"
        ));
        self.kubectl(&format!("get pod {name} -o jsonpath={{.status.podIP}}"))
    }

    /// Two pods with one address, as after a loss of IPAM's state: kindnet's incident.
    pub(crate) fn run_duplicates(&self, first: &str, second: &str) -> String {
        let address = self.run_pod(first);
        self.node().wipe_ipam().unwrap();
        assert_eq!(self.run_pod(second), address);
        address
    }

    /// The agent's API, as its node sees it.
    pub(crate) fn api(&self) -> TestClient<'_> {
        TestClient::of_agent(self.node().node())
    }

    /// The endpoints that the agent serves on the node's address, as the cluster sees them.
    pub(crate) fn metrics(&self) -> TestClient<'_> {
        let address = self.cluster.family().bracketed(self.node().address());
        TestClient::new(self.cluster.netns(), format!("http://{address}:9842"))
    }

    /// Waits for the one conflict, with these pods as claimants.
    pub(crate) fn wait_conflict(&self, address: &str, pods: &[&str]) -> Value {
        self.wait("the conflict", || {
            let answer = self.api().get("/api/v1/conflicts?state=active")?.json()?;
            let conflicts = answer["conflicts"].as_array().context("no list")?;
            let conflict = conflicts.first().context("no conflict")?;
            ensure!(
                conflicts.len() == 1 && conflict["address"] == address,
                "{answer}"
            );
            let mut named: Vec<&str> = conflict["claimants"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|claimant| claimant["pod"]["name"].as_str())
                .collect();
            named.sort_unstable();
            ensure!(named == pods, "{answer}");
            Ok(conflict.clone())
        })
    }

    /// Waits until no conflict is open.
    pub(crate) fn wait_no_conflict(&self) {
        self.wait("the end of the conflict", || {
            let answer = self.api().get("/api/v1/conflicts?state=active")?.json()?;
            ensure!(answer["conflicts"] == serde_json::json!([]), "{answer}");
            Ok(())
        });
    }

    /// Waits until each of two pods has an event about their address. An event is posted once, two seconds after the conflict was
    /// raised at the latest, so a pod whose name takes longer is named by its own event alone.
    pub(crate) fn wait_events(&self, address: &str, [first, second]: [&str; 2]) {
        self.wait(
            "an event on each pod, one of which names the other pod",
            || {
                let has = |pod, text: &str| self.has_event(pod, address, text);
                ensure!(has(first, "claimed by")? && has(second, "claimed by")?);
                let is_named = has(first, &format!("default/{second}"))?
                    || has(second, &format!("default/{first}"))?;
                ensure!(is_named, "neither event names the other pod");
                Ok(())
            },
        );
    }

    /// Waits until a pod has an event that contains two texts.
    pub(crate) fn wait_event(&self, pod: &str, address: &str, text: &str) {
        self.wait(&format!("an event on {pod} with {text:?}"), || {
            ensure!(self.has_event(pod, address, text)?);
            Ok(())
        });
    }

    fn has_event(&self, pod: &str, address: &str, text: &str) -> Result<bool> {
        let events = self.cluster.kubectl(&[
            "get",
            "events",
            "--field-selector",
            &format!("reason=IPConflict,involvedObject.name={pod}"),
            "-o",
            "json",
        ])?;
        let events: Value = serde_json::from_str(&events)?;
        let events = events["items"].as_array().into_iter().flatten();
        let mut notes = events.filter_map(|event| event["message"].as_str());
        Ok(notes.any(|note| note.contains(address) && note.contains(text)))
    }

    /// The sum of a metric's series.
    pub(crate) fn metric(&self, name: &str) -> Result<f64> {
        let answer = self.metrics().get("/metrics")?;
        ensure!(answer.status == 200, "{answer:?}");
        let values = answer.body.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with(['{', ' '])
                .then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        Ok(values.sum())
    }

    pub(crate) fn wait<T>(&self, what: &str, check: impl FnMut() -> Result<T>) -> T {
        until(LONG, what, check).unwrap_or_else(|error| panic!("{error:#}\n{}", self.describe()))
    }

    /// The tag of the agent's image.
    pub(crate) fn image_tag(&self) -> String {
        let image = self.kubectl(&format!(
            "-n {RELEASE} get pods -o jsonpath={{.items[*].spec.containers[0].image}}"
        ));
        image.rsplit(':').next().unwrap().to_owned()
    }

    /// The name of the agent's pod.
    pub(crate) fn agent_pod(&self) -> String {
        self.kubectl(&format!(
            "-n {RELEASE} get pods -o jsonpath={{.items[*].metadata.name}}"
        ))
    }

    /// The pod devices of the node, each with whether the agent's filter is attached to it.
    pub(crate) fn filters(&self) -> Vec<(String, bool)> {
        let node = self.node().node();
        let links = node
            .exec(&["ip", "-o", "link", "show", "type", "veth"])
            .unwrap();
        links
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1)?.split('@').next())
            .filter(|device| *device != "eth0")
            .map(|device| {
                let filters = node.filters(device).unwrap();
                let is_attached = filters.iter().any(|filter| filter.contains("bpf"));
                (device.to_owned(), is_attached)
            })
            .collect()
    }

    /// Waits with the deadline of the other tests; see [`Installation::wait`].
    pub(crate) fn wait_soon<T>(&self, what: &str, check: impl FnMut() -> Result<T>) -> T {
        until(DEADLINE, what, check)
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.describe()))
    }
}
