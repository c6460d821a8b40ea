//! What a node asks of the API server for its objects, in simulated time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ::kube::api::GroupVersionKind;
use serde_json::json;
use tokio::{sync::watch as latest, time::sleep};

use super::*;
use crate::kube_client::simulated::SimulatedApi;

const PATH: &str = "/apis/kubeovn.io/v1/ips";
const LABEL: &str = "ovn.kubernetes.io/node-name";

fn put(api: &SimulatedApi, name: &str, node: &str) {
    api.apply_labelled(PATH, name, &json!({}), &json!({LABEL: node}));
}

/// A cluster with many objects, two of which are this node's.
fn cluster() -> SimulatedApi {
    let api = SimulatedApi::default();
    for number in 0..500 {
        put(&api, &format!("other-{number}"), "other");
    }
    put(&api, "a", "node");
    put(&api, "b", "node");
    api
}

fn start(api: &SimulatedApi) -> (latest::Receiver<View>, mpsc::UnboundedSender<()>) {
    let (published, view) = latest::channel(View::default());
    let (requests, requested) = mpsc::unbounded_channel();
    let kind = GroupVersionKind::gvk("kubeovn.io", "v1", "IP");
    let selection = Selection {
        resource: ApiResource::from_gvk_with_plural(&kind, "ips"),
        labels: format!("{LABEL}=node"),
    };
    let publish = move |view| drop(published.send(view));
    let watch = ObjectsWatch::new(KubeClient::simulated(api), selection, publish);
    tokio::spawn(watch.run(requested));
    (view, requests)
}

fn names(view: &latest::Receiver<View>) -> Vec<String> {
    let objects = view.borrow().objects.clone();
    objects.unwrap().keys().cloned().collect()
}

/// Requests that are not watches: those from the cache, those that wait in it for a version, and those from etcd.
fn reads(api: &SimulatedApi) -> [usize; 3] {
    let requests = api.requests();
    let reads = requests.iter().filter(|(_, r)| !r.contains("watch=true"));
    let mut counts = [0; 3];
    for (_, request) in reads {
        let from = match request {
            r if r.contains("resourceVersion=0") => 0,
            r if r.contains("NotOlderThan") => 1,
            r => {
                assert!(r.contains("limit=1"), "{r}");
                2
            }
        };
        counts[from] += 1;
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn quiet_hour_takes_one_watch_of_this_nodes_objects() {
    let api = cluster();
    let (view, _requests) = start(&api);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(names(&view), ["/a", "/b"]);
    assert_eq!(view.borrow().confirmed_at, None);
    assert_eq!(reads(&api), [1, 0, 0]);
    let requests = api.requests();
    assert!((12..=17).contains(&requests.len()), "{}", requests.len());
    for (_, request) in requests {
        assert!(request.contains("labelSelector="), "{request}");
    }
}

#[tokio::test(start_paused = true)]
async fn change_of_an_object_is_seen_at_once() {
    let api = cluster();
    let (mut view, _requests) = start(&api);
    sleep(Duration::from_secs(1)).await;
    view.mark_unchanged();
    put(&api, "c", "node");
    view.changed().await.unwrap();
    assert_eq!(names(&view), ["/a", "/b", "/c"]);
    // The pod moved, and another one was deleted.
    put(&api, "a", "other");
    api.delete(PATH, "b");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(names(&view), ["/c"]);
}

#[tokio::test(start_paused = true)]
async fn addresses_in_doubt_are_confirmed_by_a_bounded_number_of_lists() {
    let api = cluster();
    let (view, requests) = start(&api);
    sleep(Duration::from_secs(1)).await;
    for _ in 0..60 {
        requests.send(()).unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    let confirmed_at = view.borrow().confirmed_at;
    assert!(confirmed_at.is_some());
    let [_, cached, etcd] = reads(&api);
    assert!(cached <= 2 && cached == etcd, "{cached}, {etcd}");
    // A change after the list is not lost.
    put(&api, "c", "node");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(names(&view).len(), 3);
    for _ in 0..1200 {
        requests.send(()).unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    let [_, _, etcd] = reads(&api);
    assert!(etcd <= 5 + 2 + 1200 / 15, "{etcd}");
}

#[tokio::test(start_paused = true)]
async fn short_outage_changes_nothing_and_a_long_one_is_reported() {
    let api = cluster();
    let (view, requests) = start(&api);
    sleep(Duration::from_secs(1)).await;
    api.set_down(true);
    requests.send(()).unwrap();
    sleep(Duration::from_secs(50)).await;
    assert_eq!(view.borrow().problem, None);
    sleep(Duration::from_secs(550)).await;
    assert!(view.borrow().problem.is_some());
    assert_eq!(names(&view), ["/a", "/b"]);
    api.set_down(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(view.borrow().problem, None);
    assert!(view.borrow().confirmed_at.is_some(), "requested before");
}

#[tokio::test(start_paused = true)]
async fn server_that_is_away_at_the_start_is_reported_until_it_comes() {
    let api = cluster();
    api.set_down(true);
    let (view, _requests) = start(&api);
    sleep(Duration::from_secs(10)).await;
    assert!(view.borrow().problem.is_some());
    api.set_down(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(view.borrow().problem, None);
    assert_eq!(names(&view), ["/a", "/b"]);
}

#[tokio::test(start_paused = true)]
async fn too_many_objects_are_unknown() {
    let api = cluster();
    for number in 0..MAX_OBJECTS {
        put(&api, &format!("more-{number}"), "node");
    }
    let (view, _requests) = start(&api);
    sleep(Duration::from_secs(5)).await;
    let problem = view.borrow().problem.clone().unwrap();
    assert!(problem.contains("more than"), "{problem}");
    assert!(names(&view).len() <= MAX_OBJECTS + 1);
}
