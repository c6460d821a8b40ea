//! What the agents of a cluster ask of the API server, in simulated time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::HashMap, time::Duration};

use serde_json::json;
use tokio::{sync::mpsc, time::sleep};

use super::*;
use crate::kube_client::{KubeClient, simulated::SimulatedApi};

const AGENTS: usize = 300;
const PODS: &str = "/api/v1/pods";

/// Agents that run until the receiver is dropped.
fn start(api: &SimulatedApi, agents: usize) -> mpsc::Receiver<SourceReport> {
    api.apply(
        PODS,
        "web-0",
        &json!({"nodeName": "node", "containers": []}),
    );
    let (reports, reported) = mpsc::channel(100_000);
    for _ in 0..agents {
        let pods = KubePods::new(KubeClient::simulated(api), "node", &[]);
        tokio::spawn(watch(pods, reports.clone()));
    }
    reported
}

fn is_watch(request: &str) -> bool {
    request.contains("watch=true")
}

#[tokio::test(start_paused = true)]
async fn rollout_reads_the_watch_cache_once_for_each_agent() {
    let api = SimulatedApi::default();
    let _reports = start(&api, AGENTS);
    sleep(Duration::from_secs(60)).await;
    let requests = api.requests();
    let (watches, lists): (Vec<_>, Vec<_>) = requests.iter().partition(|(_, r)| is_watch(r));
    assert_eq!((lists.len(), watches.len()), (AGENTS, AGENTS));
    for (_, list) in lists {
        assert!(
            list.contains("resourceVersion=0&")
                && list.contains("fieldSelector=spec.nodeName%3Dnode"),
            "{list}"
        );
    }
    for (_, watch) in watches {
        assert!(watch.contains("allowWatchBookmarks=true"), "{watch}");
    }
}

#[tokio::test(start_paused = true)]
async fn quiet_hour_takes_a_watch_every_four_minutes() {
    let api = SimulatedApi::default();
    let _reports = start(&api, 1);
    sleep(Duration::from_secs(3600)).await;
    let requests = api.requests();
    let watches = requests.iter().filter(|(_, r)| is_watch(r)).count();
    assert!((12..=16).contains(&watches), "{watches}");
    assert_eq!(requests.len() - watches, 1);
}

#[tokio::test(start_paused = true)]
async fn agents_of_a_rollout_do_not_renew_their_watches_together() {
    let api = SimulatedApi::default();
    let _reports = start(&api, AGENTS);
    sleep(Duration::from_secs(400)).await;
    assert!(busiest_second(&api, 10) < AGENTS / 10);
}

/// The most requests in one second, from `after` seconds after the first one on.
fn busiest_second(api: &SimulatedApi, after: u64) -> usize {
    let requests = api.requests();
    let start = requests[0].0;
    let mut by_second: HashMap<u64, usize> = HashMap::new();
    for (at, _) in requests {
        let second = at.duration_since(start).as_secs();
        if second >= after {
            *by_second.entry(second).or_default() += 1;
        }
    }
    by_second.into_values().max().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn outage_is_retried_with_backoff_and_jitter() {
    let api = SimulatedApi::default();
    let _reports = start(&api, AGENTS);
    sleep(Duration::from_secs(10)).await;
    let before = api.requests().len();
    api.set_down(true);
    sleep(Duration::from_secs(600)).await;
    let during = api.requests().len() - before;
    // Half a second, doubling to 30 seconds, each shortened by up to half.
    assert!((15 * AGENTS..=50 * AGENTS).contains(&during), "{during}");
    // Once the first attempts are over.
    assert!(
        busiest_second(&api, 60) < AGENTS / 5,
        "{}",
        busiest_second(&api, 60)
    );
    api.set_down(false);
    sleep(Duration::from_secs(60)).await;
    let lists = api.requests();
    let lists = lists.iter().skip(before).filter(|(_, r)| !is_watch(r));
    assert_eq!(lists.count(), 0, "watches are resumed without a list");
    assert!(busiest_second(&api, 610) < AGENTS / 5);
}
