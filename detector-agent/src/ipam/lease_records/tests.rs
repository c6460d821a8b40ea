//! What a node asks of the API server for the records of its leases, in simulated time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::{
    ipam::{leases::tests::cache_file, settings::IpamSettings, spiderpool, whereabouts},
    kube_client::simulated::SimulatedApi,
};

const RESERVATIONS: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1/overlappingrangeipreservations";
const POOLS: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools";

/// A node whose pods have leases, and the reader of their records.
struct Fixture {
    api: SimulatedApi,
    results: tempfile::TempDir,
    reader: Box<dyn PoolReader>,
    changed: mpsc::UnboundedReceiver<PoolId>,
}

impl Fixture {
    fn new(source: &crate::ipam::source::Source) -> Self {
        let (api, results) = (SimulatedApi::default(), tempfile::tempdir().unwrap());
        let settings = IpamSettings {
            whereabouts_namespace: "kube-system".to_owned(),
            ..IpamSettings::default()
        };
        let mut config = crate::ipam::cni_config::CniConfig::default();
        config.add_leased(|ipam| ipam == source.ipam);
        let context = Context {
            settings: &settings,
            node: "node",
            kube: Some(&KubeClient::simulated(&api)),
            results: Some(results.path()),
            blocks: &Arc::default(),
        };
        let mut reader = (source.reader)(PoolId(1), &config.networks[0], &context);
        let (changes, changed) = mpsc::unbounded_channel();
        reader.follow(changes);
        Self {
            api,
            results,
            reader,
            changed,
        }
    }

    fn whereabouts() -> Self {
        let fixture = Self::new(&whereabouts::SOURCE);
        fixture.put_pool(&json!({}));
        fixture
    }

    /// A pod is created that whereabouts gives an address.
    fn lease(&self, pod: &str, address: &str, ipam: &Value) {
        let config = json!({"name": "lan", "type": "bridge", "ipam": ipam});
        let file = cache_file(&config, pod, &format!("{address}/24"));
        fs::write(self.results.path().join(format!("lan-{pod}-net1")), file).unwrap();
    }

    fn pod(&self, pod: &str, address: &str) {
        let range = json!({"type": "whereabouts", "range": "10.9.0.0/24"});
        self.lease(pod, address, &range);
    }

    fn reserve(&self, address: &str, pod: &str) {
        let object = json!({"metadata": {"name": address, "namespace": "kube-system"}, "spec": {"podref": format!("shop/{pod}")}});
        self.api.apply_object(RESERVATIONS, &object);
    }

    fn release(&self, address: &str) {
        self.api.delete_in(RESERVATIONS, "kube-system", address);
    }

    fn put_pool(&self, allocations: &Value) {
        let object = json!({"metadata": {"name": "10.9.0.0-24", "namespace": "kube-system"},
            "spec": {"range": "10.9.0.0/24", "allocations": allocations}});
        self.api.apply_object(POOLS, &object);
    }

    async fn read(&mut self) -> PoolRead {
        self.reader.read(false).await.unwrap()
    }

    /// The pool once the engine has requested an address, and all that is due was read.
    async fn requested(&mut self, address: &str) -> PoolRead {
        self.read().await;
        self.reader.request(address.parse().unwrap());
        sleep(Duration::from_secs(1)).await;
        while self.changed.try_recv().is_ok() {}
        self.read().await
    }
}

fn owner(read: &PoolRead, address: &str) -> Option<String> {
    let address: IpAddr = address.parse().unwrap();
    let allocation = read.pool.allocated.get(&address)?;
    allocation.owner.as_deref().map(str::to_owned)
}

fn confirmed(read: &PoolRead, address: &str) -> Option<Timestamp> {
    let address: IpAddr = address.parse().unwrap();
    let mut parts = read.pool.parts.iter().flatten();
    parts
        .find(|part| part.range == (address..=address))?
        .confirmed_at
}

#[tokio::test(start_paused = true)]
async fn only_requested_addresses_are_read() {
    let mut node = Fixture::whereabouts();
    for last in 2..100 {
        node.pod(&format!("web-{last}"), &format!("10.9.0.{last}"));
        node.reserve(&format!("10.9.0.{last}"), &format!("web-{last}"));
    }
    node.read().await;
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(node.api.requests(), [], "the devices may be macvlan");
    let read = node.requested("10.9.0.2").await;
    assert_eq!(owner(&read, "10.9.0.2").as_deref(), Some("shop/web-2"));
    assert_eq!(read.pool.coverage.previously_allocated.len(), 98);
    assert_eq!(confirmed(&read, "10.9.0.3"), None);
    // One that no plugin gave to a pod names no object.
    node.requested("10.9.0.200").await;
    assert_eq!(node.api.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn quiet_node_reads_one_record_a_minute() {
    let mut node = Fixture::whereabouts();
    for last in 2..12 {
        node.pod(&format!("web-{last}"), &format!("10.9.0.{last}"));
        node.reserve(&format!("10.9.0.{last}"), &format!("web-{last}"));
    }
    for last in 2..12 {
        node.requested(&format!("10.9.0.{last}")).await;
    }
    let before = node.api.requests().len();
    assert_eq!(before, 10);
    node.release("10.9.0.7");
    sleep(Duration::from_secs(3600)).await;
    let requests = node.api.requests().len() - before;
    assert!((60..=125).contains(&requests), "{requests}");
    assert!(node.changed.try_recv().is_ok());
    let read = node.read().await;
    assert_eq!(owner(&read, "10.9.0.7"), None, "it was released meanwhile");
    assert!(confirmed(&read, "10.9.0.7").is_some());
}

#[tokio::test(start_paused = true)]
async fn released_address_is_free_only_if_the_pool_says_so() {
    let mut node = Fixture::whereabouts();
    node.pod("web-1", "10.9.0.5");
    node.put_pool(&json!({"5": {"id": "", "podref": "shop/web-1"}}));
    let read = node.requested("10.9.0.5").await;
    assert_eq!(
        owner(&read, "10.9.0.5").as_deref(),
        Some("shop/web-1"),
        "reservations are off"
    );
    node.put_pool(&json!({}));
    let read = node.requested("10.9.0.5").await;
    assert!(read.pool.allocated.is_empty() && confirmed(&read, "10.9.0.5").is_some());
    // The objects are elsewhere, or a slice of the range has the address.
    node.api.delete_in(POOLS, "kube-system", "10.9.0.0-24");
    let read = node.requested("10.9.0.5").await;
    assert_eq!(confirmed(&read, "10.9.0.5"), None);
    assert!(read.pool.coverage.previously_allocated.is_empty());
}

#[tokio::test(start_paused = true)]
async fn address_given_to_another_pod_is_read_again_at_once() {
    let mut node = Fixture::whereabouts();
    node.pod("web-1", "10.9.0.5");
    node.reserve("10.9.0.5", "web-1");
    node.requested("10.9.0.5").await;
    node.reserve("10.9.0.5", "web-2");
    node.pod("web-2", "10.9.0.5");
    node.read().await;
    sleep(Duration::from_secs(1)).await;
    let read = node.read().await;
    assert_eq!(owner(&read, "10.9.0.5").as_deref(), Some("shop/web-2"));
}

#[tokio::test(start_paused = true)]
async fn address_of_two_spaces_is_not_judged() {
    let mut node = Fixture::whereabouts();
    node.pod("web-1", "10.9.0.5");
    node.reserve("10.9.0.5", "web-1");
    let of_another = json!({"type": "whereabouts", "range": "10.9.0.0/24", "network_name": "lab"});
    node.lease("web-2", "10.9.0.5", &of_another);
    let read = node.requested("10.9.0.5").await;
    assert!(read.pool.allocated.is_empty());
    assert_eq!(confirmed(&read, "10.9.0.5"), None);
}

#[tokio::test(start_paused = true)]
async fn lease_after_the_address_makes_it_judged() {
    let mut node = Fixture::whereabouts();
    node.read().await;
    // libcni stores the result once the address is there.
    node.pod("web-1", "10.9.0.5");
    let read = node.read().await;
    assert_eq!(read.changed, ChangedAddresses::All);
    let read = node.read().await;
    assert_eq!(read.changed, ChangedAddresses::Only(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn short_outage_changes_nothing_and_a_long_one_is_reported() {
    let mut node = Fixture::whereabouts();
    node.pod("web-1", "10.9.0.5");
    node.reserve("10.9.0.5", "web-1");
    node.requested("10.9.0.5").await;
    node.api.set_down(true);
    let read = node.requested("10.9.0.5").await;
    assert_eq!(read.state, detector_event::State::Works, "{}", read.summary);
    sleep(Duration::from_secs(600)).await;
    let read = node.read().await;
    assert_eq!(
        read.state,
        detector_event::State::Failed,
        "{}",
        read.summary
    );
    assert_eq!(owner(&read, "10.9.0.5").as_deref(), Some("shop/web-1"));
    let requests = node.api.requests().len();
    assert!(requests <= 60, "{requests}");
    node.api.set_down(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.read().await.state, detector_event::State::Works);
}

#[tokio::test(start_paused = true)]
async fn spiderpool_is_read_by_pod_and_pool() {
    const GROUP: &str = "/apis/spiderpool.spidernet.io/v2beta1";
    let mut node = Fixture::new(&spiderpool::SOURCE);
    node.lease("web-1", "172.31.199.193", &json!({"type": "spiderpool"}));
    node.lease(
        "virt-launcher-1",
        "172.31.199.194",
        &json!({"type": "spiderpool"}),
    );
    let objects = include_bytes!("../../../../fuzz/corpus/ipam_spiderpool/objects");
    let objects: Value = serde_json::from_slice(objects).unwrap();
    let [endpoint, pool] = [0, 1].map(|n: usize| &objects["items"][n]);
    node.api
        .apply_object(&format!("{GROUP}/spiderendpoints"), endpoint);
    let pools = format!("{GROUP}/spiderippools");
    node.api.apply_object(&pools, pool);
    let read = node.requested("172.31.199.193").await;
    assert_eq!(
        owner(&read, "172.31.199.193").as_deref(),
        Some("shop/web-1")
    );
    // The endpoint of a virtual machine has its name.
    let read = node.requested("172.31.199.194").await;
    assert_eq!(confirmed(&read, "172.31.199.194"), None);
    // A garbage collector releases the address of a pod that runs.
    let mut released = pool.clone();
    released["status"]["allocatedIPs"] = "{}".into();
    node.api.apply_object(&pools, &released);
    let read = node.requested("172.31.199.193").await;
    assert!(read.pool.allocated.is_empty() && confirmed(&read, "172.31.199.193").is_some());
}
