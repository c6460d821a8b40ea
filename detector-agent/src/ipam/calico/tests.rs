//! The watch of Calico's blocks, and what it asks of the API server, in simulated time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use serde_json::json;
use tokio::{
    sync::watch as latest,
    time::{Instant, sleep},
};

use super::*;
use crate::kube_client::simulated::SimulatedApi;

const POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";
const BLOCKS: &str = "/apis/crd.projectcalico.org/v1/ipamblocks";
/// The node's blocks.
const OWN: [&str; 3] = ["10.244.9.0/26", "10.244.9.64/26", "fd00::40/122"];

fn block(cidr: &str, ordinals: &[usize]) -> Value {
    let mut allocations = vec![Value::Null; 64];
    for ordinal in ordinals {
        allocations[*ordinal] = 0.into();
    }
    json!({"cidr": cidr, "affinity": "host:node", "allocations": allocations,
        "attributes": [{"handle_id": "n.a", "secondary": {"node": "node"}}]})
}

fn put(api: &SimulatedApi, block: &Value) {
    let range: IpNet = block["cidr"].as_str().unwrap().parse().unwrap();
    api.apply(BLOCKS, &block_name(&range), block);
}

/// A cluster with many blocks, three of which are this node's.
fn cluster() -> SimulatedApi {
    let api = SimulatedApi::default();
    api.apply(
        POOLS,
        "default",
        &json!({"cidr": "10.244.0.0/16", "blockSize": 26}),
    );
    api.apply(POOLS, "v6", &json!({"cidr": "fd00::/64", "blockSize": 122}));
    for cidr in OWN {
        put(&api, &block(cidr, &[2]));
    }
    for other in 0..200 {
        put(&api, &block(&format!("10.244.{}.0/26", 20 + other), &[]));
    }
    api
}

/// A watch, its views, and the sender of its requests.
fn start(api: &SimulatedApi) -> (latest::Receiver<BlocksView>, mpsc::UnboundedSender<IpAddr>) {
    let (published, view) = latest::channel(BlocksView::default());
    let (requests, requested) = mpsc::unbounded_channel();
    let routes = || Ok(OWN.iter().map(|cidr| cidr.parse().unwrap()).collect());
    let publish = move |view| drop(published.send(view));
    let watch = BlockWatch::new(KubeClient::simulated(api), routes, publish);
    tokio::spawn(watch.run(requested));
    (view, requests)
}

/// Requests that are not watches: those from the cache, and those from etcd.
fn reads(api: &SimulatedApi) -> (usize, usize) {
    let requests = api.requests();
    let reads = requests.iter().filter(|(_, r)| !r.contains("watch=true"));
    let (cached, etcd): (Vec<_>, Vec<_>) =
        reads.partition(|(_, r)| r.contains("resourceVersion=0"));
    (cached.len(), etcd.len())
}

#[tokio::test(start_paused = true)]
async fn node_reads_its_own_blocks_from_the_watch_cache() {
    let api = cluster();
    let (view, _requests) = start(&api);
    sleep(Duration::from_secs(1)).await;
    let view = view.borrow().clone();
    assert!(view.is_loaded && view.problem.is_none());
    assert_eq!(view.blocks.len(), 3);
    // The pools, and each block by its name.
    assert_eq!(reads(&api), (4, 0));
    for (_, request) in api.requests() {
        let is_by_name = request.contains("metadata.name%3D");
        assert!(is_by_name || request.contains(POOLS), "{request}");
    }
}

#[tokio::test(start_paused = true)]
async fn quiet_hour_takes_watches_only() {
    let api = cluster();
    let (_view, _requests) = start(&api);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(reads(&api), (4, 0));
    let watches = api.requests().len() - 4;
    assert!((36..=48).contains(&watches), "{watches}");
}

#[tokio::test(start_paused = true)]
async fn change_of_a_block_is_seen_at_once() {
    let api = cluster();
    let (mut view, _requests) = start(&api);
    sleep(Duration::from_secs(1)).await;
    view.mark_unchanged();
    let before = Instant::now();
    put(&api, &block(OWN[0], &[2, 3]));
    view.changed().await.unwrap();
    let range = OWN[0].parse().unwrap();
    assert_eq!(view.borrow().blocks[&range].spec["allocations"][3], 0);
    assert!(before.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn address_in_doubt_is_read_from_etcd_once() {
    let api = cluster();
    let (view, requests) = start(&api);
    sleep(Duration::from_secs(1)).await;
    let range: IpNet = OWN[0].parse().unwrap();
    assert_eq!(view.borrow().blocks[&range].confirmed_at, None);
    for last in 3..60 {
        requests.send(IpAddr::from([10, 244, 9, last])).unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    assert!(view.borrow().blocks[&range].confirmed_at.is_some());
    assert_eq!(reads(&api), (4, 1));
    // A block of another node, which is followed from then on, and one that does not exist.
    requests.send(IpAddr::from([10, 244, 30, 3])).unwrap();
    requests.send(IpAddr::from([10, 244, 9, 200])).unwrap();
    sleep(Duration::from_secs(1)).await;
    let absent: IpNet = "10.244.9.192/26".parse().unwrap();
    assert!(view.borrow().blocks[&absent].spec.is_null());
    assert_eq!(view.borrow().blocks.len(), 5);
    assert_eq!(reads(&api), (6, 3));
}

#[tokio::test(start_paused = true)]
async fn addresses_of_a_hostile_pod_cost_a_bounded_number_of_requests() {
    let api = cluster();
    let (view, requests) = start(&api);
    sleep(Duration::from_secs(1)).await;
    for second in 0..1200_u16 {
        for n in 0..20_u16 {
            let [a, b] = (second.wrapping_mul(977).wrapping_add(n * 311)).to_be_bytes();
            requests.send(IpAddr::from([10, 244, a, b])).unwrap();
            requests.send(IpAddr::from([192, 0, 2, b])).unwrap();
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert!(view.borrow().blocks.len() <= 3 + 32);
    assert!(view.borrow().omitted > 0);
    let (cached, etcd) = reads(&api);
    // The pools once a minute, and a list for each block that is followed.
    assert!(cached <= 4 + 20 + 32 * 2, "{cached}");
    // For each followed block five, and one every 15 seconds.
    assert!(etcd <= (3 + 32) * (5 + 1200 / 15), "{etcd}");
}

#[tokio::test(start_paused = true)]
async fn short_outage_changes_nothing_and_a_long_one_is_reported() {
    let api = cluster();
    let (view, _requests) = start(&api);
    sleep(Duration::from_secs(1)).await;
    let before = api.requests().len();
    api.set_down(true);
    sleep(Duration::from_secs(50)).await;
    assert_eq!(view.borrow().problem, None);
    sleep(Duration::from_secs(550)).await;
    let problem = view.borrow().problem.clone().unwrap();
    assert!(problem.contains(PLACE), "{problem}");
    let during = api.requests().len() - before;
    assert!(during <= 3 * 50, "{during}");
    api.set_down(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(view.borrow().problem, None);
    assert_eq!(reads(&api), (4, 0), "watches are resumed without a list");
}

#[tokio::test(start_paused = true)]
async fn server_that_is_away_at_the_start_is_used_when_it_comes() {
    let api = cluster();
    api.set_down(true);
    let (view, _requests) = start(&api);
    sleep(Duration::from_secs(120)).await;
    let problem = view.borrow().problem.clone().unwrap();
    assert!(problem.contains("ippools"), "{problem}");
    api.set_down(false);
    sleep(Duration::from_secs(60)).await;
    assert!(view.borrow().is_loaded && view.borrow().problem.is_none());
}

#[test]
fn block_follows_from_the_address() {
    let specs = [
        json!({"cidr": "10.244.0.0/16"}),
        json!({"cidr": "10.96.0.0/24", "blockSize": 28}),
        json!({"cidr": "fd00::/64", "blockSize": 122}),
        // Invalid.
        json!({"cidr": "10.0.0.0/8", "blockSize": 4}),
        json!({"cidr": 7}),
        json!(null),
    ];
    let pools = IpPools::new(specs.iter());
    let name = |address: &str| {
        let block = pools.block_of(address.parse().unwrap());
        block.map(|block| block_name(&block))
    };
    assert_eq!(name("10.244.9.70").as_deref(), Some("10-244-9-64-26"));
    assert_eq!(name("10.96.0.17").as_deref(), Some("10-96-0-16-28"));
    assert_eq!(name("fd00::41").as_deref(), Some("fd00--40-122"));
    assert_eq!(name("10.1.0.1"), None);
    let routes = [
        "10.244.9.0/26",
        "10.244.9.0/27",
        "10.0.0.0/8",
        "192.168.0.0/26",
    ];
    let routes: Vec<IpNet> = routes.iter().map(|r| r.parse().unwrap()).collect();
    assert_eq!(pools.blocks_of(&routes), routes[..2]);
}
