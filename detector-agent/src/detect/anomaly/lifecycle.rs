//! The life of an anomaly, and when books and live addresses are worth comparing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use super::{
    super::{
        conflict::Claimant,
        expiry::Expiry,
        lifecycle::{Moment, mix},
        observation::{IfIndex, Timestamp, Vlan},
        settings::{AnomalyRules, Bounds},
    },
    gateways::Gateways,
    model::{Anomaly, AnomalyId, AnomalyKind, Cause, OverReason, Said},
    pools::{Books, PoolId, PoolNews, PoolSource, Pools, Standing, Touched},
};

/// Books older than this are read again before something is raised by them.
const FRESH: Duration = Duration::from_secs(1);
/// How long anomalies of an earlier agent are kept that nothing tells of any more.
const HELD_FOR: Duration = Duration::from_secs(20);

/// Tells anomalies apart. A device is told by index and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::detect) struct Key {
    pub(in crate::detect) kind: AnomalyKind,
    pub(in crate::detect) address: IpAddr,
    pub(in crate::detect) device: Option<(IfIndex, u64)>,
    pub(in crate::detect) vlan: Vlan,
}

impl Key {
    /// Of the address alone.
    pub(in crate::detect) fn of(kind: AnomalyKind, address: IpAddr) -> Self {
        Self {
            kind,
            address,
            device: None,
            vlan: Vlan::default(),
        }
    }
}

/// What there is to tell of a new anomaly.
#[derive(Debug)]
pub(in crate::detect) struct News {
    pub(in crate::detect) cause: Cause,
    pub(in crate::detect) holders: Vec<Claimant>,
    pub(in crate::detect) source: Option<Arc<PoolSource>>,
    pub(in crate::detect) owner: Option<Arc<str>>,
    pub(in crate::detect) detail: String,
}

/// Open anomalies, and what may become one.
#[derive(Debug)]
pub(in crate::detect) struct Anomalies {
    pub(in crate::detect) rules: AnomalyRules,
    pools: Pools,
    open: BTreeMap<Key, Anomaly>,
    /// Of an earlier agent, until something tells of them again.
    held: Vec<Anomaly>,
    held_until: Option<Timestamp>,
    /// Live addresses that the books lack, since when.
    missing: HashMap<IpAddr, Timestamp>,
    /// Addresses in the books that nobody holds, since when.
    idle: HashMap<IpAddr, Timestamp>,
    /// Host routes that lead astray, since when.
    astray: HashMap<IpAddr, Timestamp>,
    /// Addresses whose host route led to a claimant.
    routed: BTreeSet<IpAddr>,
    /// Pods that ask and get no answer.
    pub(in crate::detect) gateways: Gateways,
    /// Pools whose books were asked for and did not come yet.
    asked: BTreeSet<PoolId>,
    expiry: Expiry,
    seed: u64,
    serial: u64,
    refused: u64,
}

impl Anomalies {
    pub(in crate::detect) fn new(rules: AnomalyRules, seed: u64) -> Self {
        Self {
            rules,
            pools: Pools::default(),
            open: BTreeMap::new(),
            held: Vec::new(),
            held_until: None,
            missing: HashMap::new(),
            idle: HashMap::new(),
            astray: HashMap::new(),
            routed: BTreeSet::new(),
            gateways: Gateways::default(),
            asked: BTreeSet::new(),
            expiry: Expiry::default(),
            seed,
            serial: 0,
            refused: 0,
        }
    }

    /// Goes on with what an earlier agent left open: the same anomaly keeps its id and is not raised again.
    pub(in crate::detect) fn restore(&mut self, held: Vec<Anomaly>) {
        self.held = held;
    }

    /// Everything was read once: what is held and not found again by and by is over.
    pub(in crate::detect) fn first_read(&mut self, now: Timestamp) {
        if !self.held.is_empty() && self.held_until.is_none() {
            self.held_until = Some(now + HELD_FOR);
        }
    }

    pub(in crate::detect) fn open(&self) -> impl Iterator<Item = &Anomaly> {
        self.open.values().chain(&self.held)
    }

    pub(in crate::detect) fn is_open(&self, key: &Key) -> bool {
        self.open.contains_key(key)
    }

    /// Plans a look at an address.
    pub(in crate::detect) fn look_at(&mut self, address: IpAddr, at: Timestamp) {
        self.expiry.look_at(address, at);
    }

    /// Addresses whose host route led to a claimant.
    pub(in crate::detect) fn routed(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.routed.iter().copied()
    }

    /// Whether anything is known of an address as far as routes go.
    pub(in crate::detect) fn follows_route(&self, address: IpAddr) -> bool {
        self.routed.contains(&address) || self.astray.contains_key(&address)
    }

    /// The host route of a live address leads to a claimant, if it has one.
    pub(in crate::detect) fn route_right(
        &mut self,
        address: IpAddr,
        by_host_route: bool,
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<Said>,
    ) {
        if by_host_route && self.routed.len() < bounds.kernel_entries {
            self.routed.insert(address);
        }
        self.astray.remove(&address);
        let key = Key::of(AnomalyKind::RouteAstray, address);
        self.resolve(&key, OverReason::RouteRight, at, said);
    }

    /// Nobody holds the address any more.
    pub(in crate::detect) fn route_over(
        &mut self,
        address: IpAddr,
        at: Moment,
        said: &mut Vec<Said>,
    ) {
        self.routed.remove(&address);
        self.astray.remove(&address);
        let key = Key::of(AnomalyKind::RouteAstray, address);
        self.resolve(&key, OverReason::AddressGone, at, said);
    }

    /// The host route of a live address leads to none of its claimants: `instead`, or nowhere any more.
    pub(in crate::detect) fn route_astray(
        &mut self,
        address: IpAddr,
        instead: Option<String>,
        holders: &[Claimant],
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<Said>,
    ) {
        let key = Key::of(AnomalyKind::RouteAstray, address);
        if self.open.contains_key(&key) || (instead.is_none() && !self.routed.contains(&address)) {
            return;
        }
        let Some(since) = note(&mut self.astray, address, at.now, bounds) else {
            self.refused += 1;
            return;
        };
        let due = since + self.rules.astray_grace;
        if at.now < due {
            self.expiry.look_at(address, due);
            return;
        }
        let on = holders
            .first()
            .map(|h| h.device.as_str())
            .unwrap_or_default();
        let (cause, detail) = match instead {
            Some(device) => (
                Cause::OtherDevice,
                format!(
                    "{address} is in use on {on}, but the host's route for it leads to {device}: its packets do not arrive"
                ),
            ),
            None => (
                Cause::RouteGone,
                format!(
                    "{address} is in use on {on}, but the host's route to it is gone: its packets do not arrive"
                ),
            ),
        };
        let news = News {
            cause,
            holders: holders.to_vec(),
            source: None,
            owner: None,
            detail,
        };
        self.raise(key, news, at, bounds, said);
    }

    /// Anomalies turned away at the bound.
    pub(in crate::detect) fn refused(&self) -> u64 {
        self.refused
    }

    pub(in crate::detect) fn has_pools(&self) -> bool {
        !self.pools.is_empty()
    }

    /// Whether anything was concluded, or is about to be, from books about an address. They may be gone by now.
    pub(in crate::detect) fn follows_books(&self, address: IpAddr) -> bool {
        let is_open = |kind| self.open.contains_key(&Key::of(kind, address));
        is_open(AnomalyKind::IpamDrift)
            || is_open(AnomalyKind::IpamLeak)
            || self.missing.contains_key(&address)
            || self.idle.contains_key(&address)
    }

    /// Takes books over. Gives the addresses to look at; `None` for all.
    pub(in crate::detect) fn read(&mut self, news: PoolNews) -> Option<BTreeSet<IpAddr>> {
        match news {
            PoolNews::Read(pool, touched) => {
                self.asked.remove(&pool.id);
                let known = self.pools.put(pool);
                match touched {
                    Touched::These(addresses) if known.is_some() => {
                        let missing = self.missing.keys().copied();
                        Some(addresses.into_iter().chain(missing).collect())
                    }
                    _ => None,
                }
            }
            PoolNews::Gone(id) => {
                self.asked.remove(&id);
                self.pools.remove(id)?;
                None
            }
        }
    }

    /// Every address that an anomaly is, or may become, open for.
    pub(in crate::detect) fn addresses(&self) -> BTreeSet<IpAddr> {
        let open = self.open.keys().map(|key| key.address);
        let idle = self.idle.keys().chain(self.missing.keys()).copied();
        open.chain(idle).chain(self.pools.allocated()).collect()
    }

    /// When something has to be looked at though nothing happens.
    pub(in crate::detect) fn next(&self) -> Option<Timestamp> {
        match (self.expiry.next(), self.held_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// An address that is due by now.
    pub(in crate::detect) fn due(&mut self, now: Timestamp) -> Option<IpAddr> {
        self.expiry.due(now)
    }

    /// Ends what an earlier agent left open and nothing tells of any more.
    pub(in crate::detect) fn end_held(&mut self, now: Timestamp, said: &mut Vec<Said>) {
        if self.held_until.is_none_or(|until| until > now) {
            return;
        }
        self.held_until = None;
        for anomaly in std::mem::take(&mut self.held) {
            said.push(over(anomaly, OverReason::NotSeen, now, now));
        }
    }

    /// Compares a live address with the books. `holders`: the pods that hold it, oldest first.
    pub(in crate::detect) fn drift(
        &mut self,
        address: IpAddr,
        holders: &[Claimant],
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<Said>,
    ) {
        let key = Key::of(AnomalyKind::IpamDrift, address);
        if holders.is_empty() {
            self.missing.remove(&address);
            self.resolve(&key, OverReason::AddressGone, at, said);
            return;
        }
        let news = match self.pools.standing(address, holders) {
            Standing::NoMatter => {
                self.missing.remove(&address);
                self.resolve(&key, OverReason::NotSeen, at, said);
                return;
            }
            Standing::Held(pool, allocation) => {
                let cause = if allocation.second_owner.is_some() {
                    Cause::TwoOwners
                } else if allocation.owner_is_shared {
                    Cause::SharedOwner
                } else {
                    self.missing.remove(&address);
                    self.resolve(&key, OverReason::Allocated, at, said);
                    return;
                };
                let owner = allocation.owner.clone();
                let second = allocation.second_owner.as_deref().unwrap_or_default();
                let shown = owner.as_deref().unwrap_or("nobody");
                let place = place(&pool.source);
                let detail = match cause {
                    Cause::TwoOwners => format!(
                        "{address} stands twice in the books of {place}, for {shown} and for {second}: when one of them goes, the address is freed under the other"
                    ),
                    _ => format!(
                        "{address} is held in {place} for {shown}, a name that an earlier pod shares: when that pod's record is deleted, the live address is freed"
                    ),
                };
                self.missing.remove(&address);
                (cause, Arc::clone(&pool.source), owner, detail)
            }
            Standing::Free(pool) => {
                if self.open.contains_key(&key) {
                    return;
                }
                let (id, books, read_at) = (pool.id, pool.books, pool.read_at);
                let source = Arc::clone(&pool.source);
                let Some(since) = note(&mut self.missing, address, at.now, bounds) else {
                    self.refused += 1;
                    return;
                };
                // IPAM writes first and sets the address then: books that were read before it was seen say nothing of it.
                let seen = holders.iter().map(|h| h.since).min().unwrap_or(at.now);
                let due = match books {
                    Books::Lost => since,
                    _ => since + self.rules.drift_grace,
                };
                let stale = books != Books::Lost && read_at + FRESH < at.now;
                if at.now < due {
                    self.expiry.look_at(address, due);
                    return;
                }
                if read_at <= seen || stale {
                    if self.asked.insert(id) {
                        said.push(Said::ReadBooks(id));
                    }
                    return;
                }
                self.missing.remove(&address);
                let on = holders
                    .first()
                    .map(|h| h.device.as_str())
                    .unwrap_or_default();
                let place = place(&source);
                let detail = format!(
                    "{address} is in use on {on}, but {place} holds nothing for it: the next pod may be given the same address"
                );
                (Cause::NotAllocated, source, None, detail)
            }
        };
        let (cause, source, owner, detail) = news;
        let news = News {
            cause,
            holders: holders.to_vec(),
            source: Some(source),
            owner,
            detail,
        };
        self.raise(key, news, at, bounds, said);
    }

    /// Looks whether an address in the books is anybody's.
    pub(in crate::detect) fn leak(
        &mut self,
        address: IpAddr,
        live: bool,
        blind: impl FnOnce() -> bool,
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<Said>,
    ) {
        let key = Key::of(AnomalyKind::IpamLeak, address);
        let Some(Standing::Held(pool, allocation)) = self.pools.held(address) else {
            self.idle.remove(&address);
            self.resolve(&key, OverReason::Released, at, said);
            return;
        };
        let over = if live {
            Some(OverReason::InUse)
        } else if !pool.tells_leaks || allocation.not_a_pod || blind() {
            Some(OverReason::NotSeen)
        } else {
            None
        };
        if let Some(over) = over {
            self.idle.remove(&address);
            self.resolve(&key, over, at, said);
            return;
        }
        if self.open.contains_key(&key) {
            return;
        }
        let (source, owner) = (Arc::clone(&pool.source), allocation.owner.clone());
        let Some(since) = note(&mut self.idle, address, at.now, bounds) else {
            self.refused += 1;
            return;
        };
        let due = since + self.rules.leak_after;
        if at.now < due {
            self.expiry.look_at(address, due);
            return;
        }
        let whom = owner
            .as_deref()
            .map(|owner| format!(" for {owner}"))
            .unwrap_or_default();
        let detail = format!(
            "{address} is held in {}{whom}, but no pod of this node has had it for {} s: the address is lost to the pool until it is released",
            place(&source),
            self.rules.leak_after.as_secs()
        );
        let news = News {
            cause: Cause::NoLiveOwner,
            holders: Vec::new(),
            source: Some(source),
            owner,
            detail,
        };
        self.raise(key, news, at, bounds, said);
    }

    pub(in crate::detect) fn raise(
        &mut self,
        key: Key,
        news: News,
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<Said>,
    ) {
        if self.open.contains_key(&key) {
            return;
        }
        let mut holders = news.holders.into_iter();
        let holder = holders.next();
        if let Some(index) = self
            .held
            .iter()
            .position(|old| is_same(old, &key, holder.as_ref()))
        {
            let held = self.held.swap_remove(index);
            let goes_on = Anomaly {
                holder,
                also_on: holders.map(|h| h.device).collect(),
                detail: news.detail,
                ..held
            };
            self.open.insert(key, goes_on);
            return;
        }
        if self.open.len() >= bounds.open_conflicts {
            self.refused += 1;
            self.expiry
                .look_at(key.address, at.now + Duration::from_secs(60));
            return;
        }
        let anomaly = Anomaly {
            id: self.next_id(),
            kind: key.kind,
            cause: news.cause,
            address: key.address,
            vlan: key.vlan,
            holder,
            also_on: holders.map(|h| h.device).collect(),
            source: news.source,
            owner: news.owner,
            detail: news.detail,
            raised_at: at.now,
            decided_at: at.decided_at,
            resolved_at: None,
            over_because: None,
        };
        said.push(Said::Raised(Box::new(anomaly.clone())));
        self.open.insert(key, anomaly);
    }

    pub(in crate::detect) fn resolve(
        &mut self,
        key: &Key,
        because: OverReason,
        at: Moment,
        said: &mut Vec<Said>,
    ) {
        if let Some(anomaly) = self.open.remove(key) {
            said.push(over(anomaly, because, at.now, at.decided_at));
        }
    }

    /// Distinct from conflicts' ids of the same seed.
    fn next_id(&mut self) -> AnomalyId {
        self.serial += 1;
        let high = mix(!self.seed ^ mix(self.serial));
        let low = mix((!self.seed).rotate_left(32).wrapping_add(self.serial));
        AnomalyId((u128::from(high) << 64) | u128::from(low))
    }
}

fn over(mut anomaly: Anomaly, because: OverReason, now: Timestamp, decided_at: Timestamp) -> Said {
    anomaly.resolved_at = Some(now);
    anomaly.decided_at = decided_at;
    anomaly.over_because = Some(because);
    Said::Resolved(Box::new(anomaly))
}

/// Since when something is so; notes it where it is new. `None` at the bound.
fn note(
    since: &mut HashMap<IpAddr, Timestamp>,
    address: IpAddr,
    now: Timestamp,
    bounds: &Bounds,
) -> Option<Timestamp> {
    if since.len() >= bounds.kernel_entries && !since.contains_key(&address) {
        return None;
    }
    Some(*since.entry(address).or_insert(now))
}

/// Whether an earlier agent's anomaly is this one. Its device has another generation now.
fn is_same(old: &Anomaly, key: &Key, holder: Option<&Claimant>) -> bool {
    let device = |c: Option<&Claimant>| c.map(|c| (c.ifindex, c.device.clone()));
    (old.kind, old.address, old.vlan) == (key.kind, key.address, key.vlan)
        && (key.device.is_none() || device(old.holder.as_ref()) == device(holder))
}

fn place(source: &PoolSource) -> String {
    format!("{} ({})", source.ipam.name(), source.place)
}
