//! The objects of the Kubernetes API that have this node's allocations, followed by one watch that the server restricts to
//! the node by a label.
//!
//! A watch may lag, so an address that seems to be free is confirmed by a list that is surely new. It costs etcd one object:
//! the first request reads the newest version of the resource, the second one waits in the watch cache for it.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap, net::IpAddr, net::Ipv4Addr, net::Ipv6Addr, sync::Arc, time::Duration,
};

use ::kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, VersionMatch},
    runtime::watcher::{self, Event},
};
use detector_engine::{PoolId, PoolPart, Timestamp};
use futures_util::future::BoxFuture;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use super::{
    follower::{Follower, OUTAGE, TIMEOUT},
    read_budget::ReadBudget,
    source::{PoolRead, PoolReader},
    whole_pool::{Allocations, Found, WholePool},
};
use crate::{
    kube_client::{
        KubeClient, MAX_BODY, NOT_USED,
        watch::{KubeUpdate, Watch},
    },
    process::{
        clock,
        timer::{DoublingDelay, RetryPolicy, sleep_until_some},
    },
};

/// Most objects of one node.
const MAX_OBJECTS: usize = 4096;
/// Delays after a failed list.
const DELAYS: RetryPolicy = RetryPolicy {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};

/// Which objects have the allocations of a node.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub(super) resource: ApiResource,
    /// The label selector that restricts them to the node.
    pub(super) labels: String,
}

impl Selection {
    fn api(&self, client: Client) -> Api<DynamicObject> {
        Api::all_with(client, &self.resource)
    }

    /// The resource's full name.
    fn place(&self) -> String {
        format!("{}.{}", self.resource.plural, self.resource.group)
    }
}

/// The objects by namespace and name.
type Objects = BTreeMap<String, DynamicObject>;

/// Reads the allocations in the objects of this node.
#[derive(Debug)]
pub(super) struct ObjectsReader {
    pub(super) pool: WholePool,
    pub(super) kube: Option<KubeClient>,
    pub(super) selection: Selection,
    pub(super) node: String,
    /// The allocations in the objects of a node, or why they cannot be understood.
    pub(super) parse:
        fn(&mut dyn Iterator<Item = &DynamicObject>, &str) -> Result<Allocations, String>,
    pub(super) watch: Option<Follower<View, ()>>,
}

/// The objects as last seen.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// `None` until they were listed.
    objects: Option<Arc<Objects>>,
    problem: Option<String>,
    /// When the last list began that is surely contained in them.
    confirmed_at: Option<Timestamp>,
}

impl PoolReader for ObjectsReader {
    fn follow(&mut self, changed: mpsc::UnboundedSender<PoolId>) {
        let Some(kube) = &self.kube else {
            return;
        };
        let (kube, selection) = (kube.clone(), self.selection.clone());
        self.watch = Some(Follower::start(
            self.pool.id,
            changed,
            |publish, requests| ObjectsWatch::new(kube, selection, publish).run(requests),
        ));
    }

    fn request(&self, _address: IpAddr) -> bool {
        if let Some(watch) = &self.watch {
            watch.request(());
        }
        true
    }

    /// What the watch has, or without one what a list finds; `None` before the watch has anything.
    fn read(&mut self, _thorough: bool) -> BoxFuture<'_, Option<PoolRead>> {
        Box::pin(async move {
            let read_at = clock::now();
            let view = match (&self.watch, &self.kube) {
                (Some(watch), _) => watch.view(),
                (None, Some(kube)) => match list(kube, &self.selection).await {
                    Ok((objects, _)) => View {
                        objects: Some(Arc::new(objects)),
                        problem: None,
                        confirmed_at: Some(read_at),
                    },
                    Err(problem) => View {
                        problem: Some(problem),
                        ..View::default()
                    },
                },
                (None, None) => View {
                    problem: Some(NOT_USED.to_owned()),
                    ..View::default()
                },
            };
            let found = match (view.problem, view.objects) {
                (Some(problem), _) => Found::Failed(problem),
                (None, None) => return None,
                (None, Some(objects)) => (self.parse)(&mut objects.values(), &self.node)
                    .map_or_else(Found::Failed, Found::All),
            };
            let part = |range| PoolPart {
                range,
                confirmed_at: view.confirmed_at,
            };
            let all_v4 = Ipv4Addr::UNSPECIFIED.into()..=Ipv4Addr::BROADCAST.into();
            let all_v6 = Ipv6Addr::UNSPECIFIED.into()..=Ipv6Addr::from(u128::MAX).into();
            let parts = Some(vec![part(all_v4), part(all_v6)]);
            let place = self.selection.place();
            Some(self.pool.apply(place, found, read_at, parts))
        })
    }
}

/// The objects as they are now, and the version of the list.
async fn list(kube: &KubeClient, selection: &Selection) -> Result<(Objects, u64), String> {
    let read = async {
        let (client, _) = kube.connect().await.map_err(|error| error.to_string())?;
        let api = selection.api(client);
        let text = |error: ::kube::Error| error.to_string();
        let newest = api
            .list(&ListParams::default().limit(1))
            .await
            .map_err(text)?;
        let newest = newest.metadata.resource_version.unwrap_or_default();
        let params = ListParams::default()
            .labels(&selection.labels)
            .at(&newest)
            .matching(VersionMatch::NotOlderThan);
        let list = api.list(&params).await.map_err(text)?;
        let version = list.metadata.resource_version.as_deref();
        let version = version.and_then(|v| v.parse().ok()).unwrap_or_default();
        let mut objects = Objects::new();
        for object in list.items {
            insert(&mut objects, object);
        }
        Ok((objects, version))
    };
    match timeout(TIMEOUT, read).await {
        Ok(result) => result,
        Err(_) => Err(format!("no response within {TIMEOUT:?}")),
    }
}

fn key(object: &DynamicObject) -> String {
    let metadata = &object.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    format!(
        "{namespace}/{}",
        metadata.name.as_deref().unwrap_or_default()
    )
}

/// Adds an object without what nothing is read from.
fn insert(objects: &mut Objects, mut object: DynamicObject) {
    object.metadata.managed_fields = None;
    object.metadata.annotations = None;
    // One more than the bound shows that there are too many.
    if objects.len() <= MAX_OBJECTS {
        objects.insert(key(&object), object);
    }
}

/// The resource version of an object; 0 if it is not a number.
pub(super) fn version(object: &DynamicObject) -> u64 {
    let version = object.metadata.resource_version.as_deref();
    version.and_then(|v| v.parse().ok()).unwrap_or_default()
}

/// The errors of the watch.
struct Failing {
    since: Instant,
    why: String,
}

/// The task that follows the objects.
struct ObjectsWatch<P> {
    kube: KubeClient,
    selection: Selection,
    publish: P,
    objects: Option<Arc<Objects>>,
    listed: Objects,
    /// The version of the confirming list that `objects` came from: older changes are contained in it.
    version: u64,
    confirmed_at: Option<Timestamp>,
    failing: Option<Failing>,
    budget: ReadBudget,
    is_requested: bool,
    delay: DoublingDelay,
    retry_at: Instant,
    random: fastrand::Rng,
}

impl<P: Fn(View)> ObjectsWatch<P> {
    fn new(kube: KubeClient, selection: Selection, publish: P) -> Self {
        let now = Instant::now();
        Self {
            kube,
            selection,
            publish,
            objects: None,
            listed: Objects::new(),
            version: 0,
            confirmed_at: None,
            failing: None,
            budget: ReadBudget::new(now),
            is_requested: false,
            delay: DoublingDelay::new(DELAYS),
            retry_at: now,
            random: fastrand::Rng::new(),
        }
    }

    /// Runs until the sender of `requests` is dropped: each is for a list that is surely new.
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<()>) {
        let selection = self.selection.clone();
        let config = watcher::Config::default().labels(&selection.labels);
        let make_api = move |client| selection.api(client);
        let mut watch = Watch::new(self.kube.clone(), MAX_BODY, make_api, config);
        loop {
            let due = self
                .is_requested
                .then(|| self.budget.next().max(self.retry_at));
            // An outage is reported once it has lasted.
            let outage = self.failing.as_ref().map(|failing| failing.since + OUTAGE);
            let outage = outage.filter(|at| *at > Instant::now());
            let has_changed = tokio::select! {
                update = watch.next() => self.apply(update),
                request = requests.recv() => match request {
                    Some(()) => {
                        self.is_requested = true;
                        false
                    }
                    None => return,
                },
                () = sleep_until_some(due) => self.confirm().await,
                () = sleep_until_some(outage) => true,
            };
            if has_changed {
                (self.publish)(self.view());
            }
        }
    }

    /// Lists the objects anew; whether that was possible.
    async fn confirm(&mut self) -> bool {
        if !self.budget.try_begin(Instant::now()) {
            return false;
        }
        let began_at = clock::now();
        match list(&self.kube, &self.selection).await {
            Ok((objects, version)) => {
                self.objects = Some(Arc::new(objects));
                self.version = version;
                self.confirmed_at = Some(began_at);
                self.is_requested = false;
                self.delay.reset();
                true
            }
            // The watch reports it.
            Err(_) => {
                self.retry_at = Instant::now() + self.delay.advance_with_jitter(&mut self.random);
                false
            }
        }
    }

    /// Applies what the watch reports; whether that may change the view.
    fn apply(&mut self, update: KubeUpdate<DynamicObject>) -> bool {
        match update {
            KubeUpdate::Event(Event::Init) => {
                self.listed = Objects::new();
                return false;
            }
            KubeUpdate::Event(Event::InitApply(object)) => {
                insert(&mut self.listed, object);
                return false;
            }
            KubeUpdate::Event(Event::InitDone) => {
                // It comes from a cache, which may be behind the list before.
                self.objects = Some(Arc::new(std::mem::take(&mut self.listed)));
                self.confirmed_at = None;
                self.version = 0;
            }
            KubeUpdate::Event(Event::Apply(object)) => {
                if version(&object) >= self.version {
                    insert(Arc::make_mut(self.objects.get_or_insert_default()), object);
                }
            }
            KubeUpdate::Event(Event::Delete(object)) => {
                if version(&object) >= self.version {
                    Arc::make_mut(self.objects.get_or_insert_default()).remove(&key(&object));
                }
            }
            KubeUpdate::Works => {}
            KubeUpdate::Failed(why) => {
                let since = self.failing.as_ref().map_or_else(Instant::now, |f| f.since);
                let why = why.to_string();
                self.failing = Some(Failing { since, why });
                return self.objects.is_none();
            }
        }
        self.failing = None;
        true
    }

    fn view(&self) -> View {
        let is_lost =
            |failing: &&Failing| self.objects.is_none() || failing.since + OUTAGE <= Instant::now();
        let lost = self.failing.as_ref().filter(is_lost);
        let too_many = self.objects.as_ref().filter(|o| o.len() > MAX_OBJECTS);
        let too_many = too_many.map(|_| format!("the node has more than {MAX_OBJECTS}"));
        View {
            objects: self.objects.clone(),
            problem: lost.map(|failing| failing.why.clone()).or(too_many),
            confirmed_at: self.confirmed_at,
        }
    }
}
