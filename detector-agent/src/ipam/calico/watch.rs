//! Follows Calico's blocks, each by a watch on its name.
//!
//! Invariants: the number of blocks, of addresses in doubt and of reads is bounded, whatever addresses a pod takes. A
//! watch begins with a list from the server's cache; only an address that seems to be free costs a read from etcd.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use ::kube::Client;
use ipnet::IpNet;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use super::{
    PLACE, block_name, blocks_api,
    followed_block::{BlockChange, ChangeKind, Failing, FollowedBlock, follow},
    ip_pools::IpPools,
    view::{BlocksView, ViewedBlock},
};
use crate::{
    ipam::{
        follower::{OUTAGE, TIMEOUT},
        kube_objects::version,
        read_budget::ReadBudget,
    },
    kube_client::KubeClient,
    process::{
        clock,
        timer::{DoublingDelay, RetryPolicy},
    },
};

/// Time between two looks at the node's routes, which cost the API nothing.
const RECHECK: Duration = Duration::from_secs(30);
/// Shortest time between two lists of the pools.
const POOLS_AGE: Duration = Duration::from_secs(60);
/// A block of another node is followed this long after its last use.
const UNUSED: Duration = Duration::from_secs(600);
/// Most blocks of the node.
const MAX_OWN: usize = 256;
/// Most blocks of other nodes, which pods of this one can take addresses of.
const MAX_BORROWED: usize = 32;
/// Most addresses in doubt.
const MAX_IN_DOUBT: usize = 1024;
/// Delays after errors.
const DELAYS: RetryPolicy = RetryPolicy {
    first: Duration::from_millis(500),
    longest: Duration::from_secs(30),
};

/// The task that follows the blocks.
pub(super) struct BlockWatch<R, P> {
    kube: KubeClient,
    client: Option<Client>,
    routes: R,
    publish: P,
    pools: Option<IpPools>,
    pools_listed_at: Option<Instant>,
    blocks: BTreeMap<IpNet, FollowedBlock>,
    omitted: BTreeSet<IpNet>,
    in_doubt: BTreeSet<IpAddr>,
    /// Why the pools or routes cannot be read.
    problem: Option<String>,
    delay: DoublingDelay,
    retry_at: Instant,
    changes: mpsc::UnboundedSender<BlockChange>,
    changed: mpsc::UnboundedReceiver<BlockChange>,
    random: fastrand::Rng,
}

impl<R, P> BlockWatch<R, P>
where
    R: Fn() -> Result<Vec<IpNet>, String>,
    P: Fn(BlocksView),
{
    /// `routes`: the destinations of the node's `blackhole` routes. `publish` gets every new state.
    pub(super) fn new(kube: KubeClient, routes: R, publish: P) -> Self {
        let (changes, changed) = mpsc::unbounded_channel();
        Self {
            kube,
            client: None,
            routes,
            publish,
            pools: None,
            pools_listed_at: None,
            blocks: BTreeMap::new(),
            omitted: BTreeSet::new(),
            in_doubt: BTreeSet::new(),
            problem: None,
            delay: DoublingDelay::new(DELAYS),
            retry_at: Instant::now(),
            changes,
            changed,
            random: fastrand::Rng::new(),
        }
    }

    /// Runs until the sender of `requests` is dropped: addresses whose newest state is wanted.
    pub(super) async fn run(mut self, mut requests: mpsc::UnboundedReceiver<IpAddr>) {
        let mut recheck = Instant::now();
        loop {
            let mut has_changed = false;
            let now = Instant::now();
            if recheck <= now && self.retry_at <= now {
                self.refresh().await;
                has_changed = true;
                recheck = match self.problem {
                    Some(_) => self.retry_at,
                    None => now + RECHECK,
                };
            }
            has_changed |= self.confirm().await;
            if has_changed {
                (self.publish)(self.view());
            }
            let next = self.next_due(recheck);
            tokio::select! {
                request = requests.recv() => match request {
                    Some(address) => self.doubt(address),
                    None => return,
                },
                Some(change) = self.changed.recv() => {
                    if self.apply(change) {
                        (self.publish)(self.view());
                    }
                }
                () = sleep_until(next) => {}
            }
            while let Ok(address) = requests.try_recv() {
                self.doubt(address);
            }
        }
    }

    fn doubt(&mut self, address: IpAddr) {
        if self.in_doubt.len() < MAX_IN_DOUBT {
            self.in_doubt.insert(address);
        }
    }

    /// Lists the pools unless that was done, and follows the node's blocks.
    async fn refresh(&mut self) {
        let result = self.follow_own().await;
        self.problem = result.err();
        if self.problem.is_some() {
            self.back_off();
        } else {
            self.delay.reset();
        }
    }

    async fn follow_own(&mut self) -> Result<(), String> {
        let pools = match &self.pools {
            Some(pools) => pools.clone(),
            None => self.list_pools().await?,
        };
        let own = (self.routes)().map_err(|why| format!("the node's routes: {why}"))?;
        let own: BTreeSet<_> = pools.blocks_of(&own).into_iter().take(MAX_OWN).collect();
        let now = Instant::now();
        for block in self.blocks.values_mut() {
            block.is_own = false;
        }
        for range in own {
            self.follow(range, now).is_own = true;
        }
        self.blocks
            .retain(|_, block| block.is_own || now < block.used_at + UNUSED);
        self.omitted.clear();
        Ok(())
    }

    async fn list_pools(&mut self) -> Result<IpPools, String> {
        let client = self.client().await?;
        let listed = timeout(TIMEOUT, IpPools::list(client)).await;
        let listed = listed.unwrap_or_else(|_| Err(format!("no response within {TIMEOUT:?}")));
        if listed.is_err() {
            // Its token may have been rotated.
            self.client = None;
        }
        let pools = listed?;
        self.pools = Some(pools.clone());
        self.pools_listed_at = Some(Instant::now());
        Ok(pools)
    }

    async fn client(&mut self) -> Result<Client, String> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let connected = self.kube.connect().await;
        let (client, _) = connected.map_err(|why| format!("{PLACE}: {why}"))?;
        Ok(self.client.insert(client).clone())
    }

    fn back_off(&mut self) {
        self.retry_at = Instant::now() + self.delay.advance_with_jitter(&mut self.random);
    }

    /// The block, which is followed from now on.
    fn follow(&mut self, range: IpNet, now: Instant) -> &mut FollowedBlock {
        let (kube, changes) = (&self.kube, &self.changes);
        self.blocks.entry(range).or_insert_with(|| FollowedBlock {
            task: tokio::spawn(follow(range, kube.clone(), changes.clone())).abort_handle(),
            spec: None,
            created: None,
            version: 0,
            confirmed_at: None,
            is_own: false,
            used_at: now,
            budget: ReadBudget::new(now),
            failing: None,
        })
    }

    /// Reads the blocks of the addresses in doubt, as far as the budgets allow. Whether something was read.
    async fn confirm(&mut self) -> bool {
        let now = Instant::now();
        if self.in_doubt.is_empty() || self.pools.is_none() || now < self.retry_at {
            return false;
        }
        let mut by_block: BTreeMap<IpNet, Vec<IpAddr>> = BTreeMap::new();
        for address in self.in_doubt.clone() {
            match self.block_of(address).await {
                Some(range) if self.may_follow(&range) => {
                    by_block.entry(range).or_default().push(address);
                }
                _ => drop(self.in_doubt.remove(&address)),
            }
        }
        let mut has_read = false;
        for (range, addresses) in by_block {
            // Those before it may have taken the room.
            if !self.may_follow(&range) {
                self.in_doubt.retain(|address| !addresses.contains(address));
                continue;
            }
            let block = self.follow(range, now);
            block.used_at = now;
            if !block.budget.try_begin(Instant::now()) {
                continue;
            }
            if self.read(range).await.is_err() {
                self.back_off();
                break;
            }
            self.delay.reset();
            has_read = true;
            for address in addresses {
                self.in_doubt.remove(&address);
            }
        }
        has_read
    }

    /// The block of an address. For one in no pool, the pools are listed again, at most once a minute.
    async fn block_of(&mut self, address: IpAddr) -> Option<IpNet> {
        let found = self.pools.as_ref()?.block_of(address);
        let is_old = |at: Instant| at + POOLS_AGE <= Instant::now();
        if found.is_some() || !self.pools_listed_at.is_none_or(is_old) {
            return found;
        }
        self.pools_listed_at = Some(Instant::now());
        // Otherwise the known pools stay.
        let _ = self.list_pools().await;
        self.pools.as_ref()?.block_of(address)
    }

    /// Whether the block is followed or there is room for it.
    fn may_follow(&mut self, range: &IpNet) -> bool {
        let borrowed = self.blocks.values().filter(|block| !block.is_own);
        let may = self.blocks.contains_key(range) || borrowed.count() < MAX_BORROWED;
        if !may && self.omitted.len() < MAX_IN_DOUBT {
            self.omitted.insert(*range);
        }
        may
    }

    /// Reads one block from etcd.
    async fn read(&mut self, range: IpNet) -> Result<(), String> {
        let client = self.client().await?;
        let confirmed_at = clock::now();
        let api = blocks_api(client);
        let name = block_name(&range);
        let read = timeout(TIMEOUT, api.get_opt(&name)).await;
        let read = match read {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no response within {TIMEOUT:?}")),
        };
        if read.is_err() {
            self.client = None;
        }
        let found = read?;
        if let Some(block) = self.blocks.get_mut(&range) {
            block.set(found);
            block.confirmed_at = Some(confirmed_at);
        }
        Ok(())
    }

    /// Applies what a watch reports; whether that changes the view.
    fn apply(&mut self, change: BlockChange) -> bool {
        let Some(block) = self.blocks.get_mut(&change.range) else {
            return false;
        };
        let now = Instant::now();
        match change.kind {
            ChangeKind::Works => block.failing = None,
            ChangeKind::Failed(why) => {
                let since = block.failing.as_ref().map_or(now, |failing| failing.since);
                block.failing = Some(Failing { since, why });
            }
            ChangeKind::Listed(found) => {
                block.failing = None;
                // A cache may be behind a read.
                if found
                    .as_ref()
                    .is_none_or(|found| version(found) >= block.version)
                {
                    block.set(found.map(|found| *found));
                }
            }
            ChangeKind::Changed(found) => {
                block.failing = None;
                if version(&found) >= block.version {
                    block.set(Some(*found));
                }
            }
            ChangeKind::Deleted(found) => {
                block.failing = None;
                if version(&found) >= block.version {
                    block.set(None);
                }
            }
        }
        true
    }

    fn next_due(&self, recheck: Instant) -> Instant {
        let now = Instant::now();
        let in_doubt = self.in_doubt.iter().map(|address| {
            let range = self.pools.as_ref().and_then(|p| p.block_of(*address));
            let block = range.and_then(|range| self.blocks.get(&range));
            block.map_or(now, |block| block.budget.next())
        });
        let in_doubt = in_doubt.min().map(|due| due.max(self.retry_at));
        let in_doubt = in_doubt.filter(|_| self.pools.is_some());
        let recheck = recheck.max(self.retry_at);
        recheck.min(in_doubt.unwrap_or(recheck))
    }

    fn view(&self) -> BlocksView {
        let now = Instant::now();
        let is_lost = |block: &&FollowedBlock| {
            let since = block.failing.as_ref().map(|failing| failing.since);
            since.is_some_and(|since| block.spec.is_none() || since + OUTAGE <= now)
        };
        let lost = self.blocks.values().find(is_lost);
        let lost = lost.and_then(|block| block.failing.as_ref());
        let problem = lost.map(|failing| format!("{PLACE}: {}", failing.why));
        let blocks = self.blocks.iter().filter_map(|(range, block)| {
            let spec = block.spec.clone()?;
            let confirmed_at = block.confirmed_at;
            let viewed = ViewedBlock {
                spec,
                created: block.created,
                confirmed_at,
            };
            Some((*range, viewed))
        });
        BlocksView {
            blocks: blocks.collect(),
            is_loaded: self.pools.is_some()
                && self.blocks.values().all(|b| b.spec.is_some() || !b.is_own),
            problem: problem.or_else(|| self.problem.clone()),
            omitted: self.omitted.len(),
        }
    }
}
