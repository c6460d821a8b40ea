//! `/api/v1/conflicts`, `/anomalies`, `/claims` and `/history`: streamed, so that no complete answer is ever held in memory.

use std::{net::IpAddr, sync::Arc, time::Duration};

use detector_engine::{
    Anomaly, AnomalyId, AnomalyKind, Claimant, Conflict, ConflictId, ConflictKind, ListedClaim,
};
use detector_event::{
    AnomalyData, AnyEvent, ClaimData, ClaimantData, ConflictData, ContractName as _, Moment,
    PodAnswer, SubjectId, SubjectKind, SubjectState,
    answers::{OneAnomaly, OneConflict},
    row::Item,
};
use hyper::{StatusCode, header};
use serde::Serialize;
use tokio::sync::mpsc;

use super::{
    App, Sources,
    engine_client::QueryError,
    list::{ItemKey, List},
    parameters::{Parameters, Position, Supported},
    respond::{JSON, Reply, error, head_only, json, stream, with},
};
use crate::{
    metrics::{AddressLabels, ClaimInfo, ClaimSeries},
    persist::history::{Ended, EndedKey},
    process::clock,
};

/// Keys per query: a few hundred microseconds of the event loop's time.
const CONFLICTS_PER_QUERY: usize = 32;
const CLAIMS_PER_QUERY: usize = 256;
const ANOMALIES_PER_QUERY: usize = 128;
/// Entries per read of the history.
const ENTRIES_PER_QUERY: usize = 64;

/// Parameters of the conflicts.
pub(super) const CONFLICT_PARAMETERS: Supported = Supported {
    names: &[
        "state",
        "kind",
        "namespace",
        "address",
        "network",
        "limit",
        "cursor",
        "reasons",
    ],
    kinds: &[
        ConflictKind::Duplicate.name(),
        ConflictKind::Host.name(),
        ConflictKind::Flapping.name(),
    ],
};
/// Parameters of the anomalies.
pub(super) const ANOMALY_PARAMETERS: Supported = Supported {
    names: &["kind", "namespace", "address", "limit", "cursor", "reasons"],
    kinds: &[
        AnomalyKind::IpamDrift.name(),
        AnomalyKind::IpamLeak.name(),
        AnomalyKind::GatewayUnresolved.name(),
        AnomalyKind::RouteAstray.name(),
        AnomalyKind::AddressSweep.name(),
        AnomalyKind::PodCidrOverlap.name(),
        AnomalyKind::RogueRouter.name(),
        AnomalyKind::MacDuplicate.name(),
        AnomalyKind::MacMoved.name(),
        AnomalyKind::AddressUnusable.name(),
    ],
};
/// Parameters of the claims.
pub(super) const CLAIM_PARAMETERS: Supported = Supported {
    names: &[
        "namespace",
        "address",
        "network",
        "limit",
        "cursor",
        "reasons",
    ],
    kinds: &[],
};
/// Parameters of the history.
pub(super) const HISTORY_PARAMETERS: Supported = Supported {
    names: &[
        "kind",
        "cause",
        "namespace",
        "address",
        "network",
        "since",
        "until",
        "limit",
        "cursor",
        "reasons",
    ],
    kinds: &HISTORY_KINDS,
};
const HISTORY_KINDS: [&str; SubjectKind::ALL.len()] = {
    let mut kinds = [""; SubjectKind::ALL.len()];
    let mut at = 0;
    while at < kinds.len() {
        kinds[at] = match SubjectKind::ALL[at] {
            SubjectKind::Conflict(kind) => kind.name(),
            SubjectKind::Anomaly(kind) => kind.name(),
        };
        at += 1;
    }
    kinds
};
/// Parameters of endpoints that have none.
const NO_PARAMETERS: Supported = Supported {
    names: &[],
    kinds: &[],
};

/// The response if the event loop gave no answer.
pub(super) fn unavailable(cause: QueryError) -> Reply {
    let reply = error(StatusCode::SERVICE_UNAVAILABLE, &cause.to_string());
    with(reply, header::RETRY_AFTER, "5")
}

/// Rejects any query parameter.
pub(super) fn no_parameters(query: Option<&str>) -> Result<(), Box<Reply>> {
    Parameters::parse(query, NO_PARAMETERS).map(drop)
}

/// The active conflicts, and those of the history that ended last.
pub(super) async fn conflicts(app: Arc<App>, query: Option<&str>, head: bool) -> Reply {
    let page = match Page::<Conflict>::parse(query, CONFLICT_PARAMETERS) {
        Ok(page) => page,
        Err(reply) => return *reply,
    };
    // Queried before the response starts: a failure then is an error status, not a truncated response.
    let keys = if page.parameters.is_state(SubjectState::Active) {
        match app.engine.conflict_ids().await {
            Ok(ids) => ids.into_iter().map(ItemKey::from).collect(),
            Err(e) => return unavailable(e),
        }
    } else {
        Vec::new()
    };
    answer(app, page, keys, head, |app, page| {
        let resolved = app.sources.history.recent_conflicts();
        let selected = |data: &&ConflictData| page.parameters.selects_conflict(data);
        resolved
            .iter()
            .map(|event| &event.data)
            .filter(selected)
            .cloned()
            .map(|mut data| {
                Conflict::shorten(&mut data);
                data
            })
            .collect()
    })
}

/// The open anomalies.
pub(super) async fn anomalies(app: Arc<App>, query: Option<&str>, head: bool) -> Reply {
    let page = match Page::<Anomaly>::parse(query, ANOMALY_PARAMETERS) {
        Ok(page) => page,
        Err(reply) => return *reply,
    };
    let keys = match app.engine.anomaly_ids().await {
        Ok(ids) => ids.into_iter().map(ItemKey::from).collect(),
        Err(e) => return unavailable(e),
    };
    answer(app, page, keys, head, |_, _| Vec::new())
}

/// What ended, newest first.
pub(super) async fn history(app: Arc<App>, query: Option<&str>, head: bool) -> Reply {
    let page = match Page::<Ended>::parse(query, HISTORY_PARAMETERS) {
        Ok(page) => page,
        Err(reply) => return *reply,
    };
    let keys = match app.history.keys().await {
        Ok(keys) => keys,
        Err(e) => return unavailable(e),
    };
    answer(app, page, keys, head, |_, _| Vec::new())
}

/// Every claim, or those that the parameters select.
pub(super) async fn claims(app: Arc<App>, query: Option<&str>, head: bool) -> Reply {
    let page = match Page::<ListedClaim>::parse(query, CLAIM_PARAMETERS) {
        Ok(page) => page,
        Err(reply) => return *reply,
    };
    let keys = match page.parameters.address {
        Some(address) => vec![address],
        None => match app.engine.addresses().await {
            Ok(addresses) => addresses,
            Err(e) => return unavailable(e),
        },
    };
    answer(app, page, keys, head, |_, _| Vec::new())
}

/// One conflict, open or in the history.
pub(super) async fn conflict(app: &App, id: &str, query: Option<&str>) -> Reply {
    if let Err(reply) = no_parameters(query) {
        return *reply;
    }
    let Ok(id) = ConflictId::try_from(id.to_owned()) else {
        return not_found("conflict");
    };
    let open = async {
        let ids = app.engine.conflict_ids().await?;
        let key = ids.into_iter().find(|(.., known)| *known == id);
        let Some(key) = key.map(ItemKey::from) else {
            return Ok(None);
        };
        Ok(Conflict::query(app, &[key]).await?.pop())
    };
    let open = open.await.map(|found| {
        let conflict = found?;
        Some(conflict.data(&app.sources, &clock::moment()))
    });
    let ended = |event| match event {
        AnyEvent::Conflict(event) => Some(event.data.clone()),
        AnyEvent::Anomaly(_) => None,
    };
    match open_or_ended(app, id.into(), open, ended).await {
        Ok(Some(conflict)) => {
            let head = app.sources.head();
            json(StatusCode::OK, &OneConflict { head, conflict })
        }
        Ok(None) => not_found("conflict"),
        Err(e) => unavailable(e),
    }
}

/// One anomaly, open or in the history.
pub(super) async fn anomaly(app: &App, id: &str, query: Option<&str>) -> Reply {
    if let Err(reply) = no_parameters(query) {
        return *reply;
    }
    let Ok(id) = AnomalyId::try_from(id.to_owned()) else {
        return not_found("anomaly");
    };
    let open = app.engine.anomalies(&[id]).await.map(|mut found| {
        let anomaly = found.pop()?;
        Some(anomaly.data(&app.sources, &clock::moment()))
    });
    let ended = |event| match event {
        AnyEvent::Anomaly(event) => Some(event.data.clone()),
        AnyEvent::Conflict(_) => None,
    };
    match open_or_ended(app, id.into(), open, ended).await {
        Ok(Some(anomaly)) => {
            let head = app.sources.head();
            json(StatusCode::OK, &OneAnomaly { head, anomaly })
        }
        Ok(None) => not_found("anomaly"),
        Err(e) => unavailable(e),
    }
}

/// What is open, else what the history has. The history is read second: what was open may have ended meanwhile.
async fn open_or_ended<T>(
    app: &App,
    id: SubjectId,
    open: Result<Option<T>, QueryError>,
    ended: impl FnOnce(AnyEvent) -> Option<T>,
) -> Result<Option<T>, QueryError> {
    match open? {
        Some(open) => Ok(Some(open)),
        None => Ok(app.history.find(id).await?.and_then(ended)),
    }
}

fn not_found(what: &str) -> Reply {
    error(
        StatusCode::NOT_FOUND,
        &format!("no {what} with this ID is open or in the history"),
    )
}

/// A request for a list.
struct Page<L: Listed> {
    parameters: Parameters,
    from: Option<Position<L::Key>>,
}

impl<L: Listed> Page<L> {
    fn parse(query: Option<&str>, supported: Supported) -> Result<Self, Box<Reply>> {
        let parameters = Parameters::parse(query, supported)?;
        let from = parameters.position()?;
        Ok(Self { parameters, from })
    }
}

/// Streams a page: the items of `keys`, which are sorted, and after the last page what `last` returns.
fn answer<L: Listed + 'static>(
    app: Arc<App>,
    page: Page<L>,
    mut keys: Vec<L::Key>,
    head: bool,
    last: impl FnOnce(&App, &Page<L>) -> Vec<L::Data> + Send + 'static,
) -> Reply {
    if head {
        return head_only(JSON);
    }
    if let Some(from) = &page.from {
        keys.retain(|key| *key >= from.key);
    }
    keys.retain(|key| L::may_select(&page.parameters, key));
    let (to, from) = mpsc::channel(2);
    tokio::spawn(async move {
        let mut list = List::begin(&app.sources, L::LIST, page.parameters.reasons_once, to);
        let Ok(next) = write(&app, &page, &keys, &mut list).await else {
            list.abort().await;
            return;
        };
        if let Some(name) = L::LAST {
            let items = if next.is_none() {
                last(&app, &page)
            } else {
                Vec::new()
            };
            list.add_list(name, &items);
        }
        list.end(next.map(|position| position.to_string())).await;
    });
    stream(JSON, from)
}

/// Writes the items of `keys`; returns where the next page begins, if this one is not the last.
async fn write<L: Listed>(
    app: &App,
    page: &Page<L>,
    keys: &[L::Key],
    list: &mut List,
) -> Result<Option<Position<L::Key>>, Interrupted> {
    let mut room = page.parameters.limit.unwrap_or(usize::MAX);
    for chunk in keys.chunks(L::PER_QUERY) {
        let moment = clock::moment();
        let found = L::query(app, chunk).await.map_err(|_| Interrupted)?;
        // How many items of the current key came before.
        let mut before = 0;
        let mut previous = None;
        for item in &found {
            let key = item.key();
            before = if previous.as_ref() == Some(&key) {
                before + 1
            } else {
                0
            };
            previous = Some(key.clone());
            let is_on_earlier_page =
                (page.from.as_ref()).is_some_and(|from| from.key == key && before < from.skip);
            if is_on_earlier_page {
                continue;
            }
            let mut data = item.data(&app.sources, &moment);
            if !L::selects(&page.parameters, &data) {
                continue;
            }
            if room == 0 {
                return Ok(Some(Position { key, skip: before }));
            }
            room -= 1;
            L::shorten(&mut data);
            list.add(&data);
        }
        if !list.send().await {
            return Err(Interrupted);
        }
    }
    Ok(None)
}

/// The list cannot be completed: the event loop gave no answer, or the client disconnected.
struct Interrupted;

/// Every claimed address, for the metrics.
pub(super) async fn claim_series(app: &App) -> Result<ClaimSeries, QueryError> {
    let mut series = ClaimSeries::default();
    for chunk in app.engine.addresses().await?.chunks(CLAIMS_PER_QUERY) {
        let found = app.engine.claims(chunk).await?;
        let mut named: Vec<_> = found
            .iter()
            .map(|claim| match app.sources.pods.pod_of(&claim.claimant) {
                PodAnswer::Known(pod) => (claim, Some(pod)),
                PodAnswer::Unknown(_) => (claim, None),
            })
            .collect();
        // One series for each address of a network: a claimant with a known pod first, then the oldest.
        named.sort_by(|(a, pod_a), (b, pod_b)| {
            let place = |claim: &ListedClaim| (claim.address, claim.vlan);
            let rank = |claim: &ListedClaim, pod: &Option<_>| (pod.is_none(), claim.claimant.since);
            (place(a), &a.network, rank(a, pod_a)).cmp(&(place(b), &b.network, rank(b, pod_b)))
        });
        for (claim, pod) in named {
            let vlan = (claim.vlan.outer, claim.vlan.inner);
            series.add(ClaimInfo {
                address: AddressLabels::new(claim.address, &claim.network, vlan),
                namespace: pod
                    .as_ref()
                    .map(|p| p.namespace.clone())
                    .unwrap_or_default(),
                pod: pod.as_ref().map(|p| p.name.clone()).unwrap_or_default(),
            });
        }
    }
    Ok(series)
}

/// An item of a streamed list, queried by key in batches.
trait Listed: Sized + Send + Sync {
    type Key: Ord + Clone + std::fmt::Display + std::str::FromStr + Send + Sync + 'static;
    type Data: Serialize + Send + Sync;
    /// The list's name in the response.
    const LIST: &'static str;
    /// Name of the list that follows on the last page.
    const LAST: Option<&'static str> = None;
    const PER_QUERY: usize;

    /// The items of these keys, in the order of their keys.
    fn query(
        app: &App,
        keys: &[Self::Key],
    ) -> impl Future<Output = Result<Vec<Self>, QueryError>> + Send;

    fn key(&self) -> Self::Key;

    /// The item as it is serialised.
    fn data(&self, sources: &Sources, moment: &Moment) -> Self::Data;

    /// Leaves out what a list does not have.
    fn shorten(_: &mut Self::Data) {}

    /// Whether an item of this key may be selected.
    fn may_select(_: &Parameters, _: &Self::Key) -> bool {
        true
    }

    fn selects(parameters: &Parameters, data: &Self::Data) -> bool;
}

impl Listed for Conflict {
    type Key = ItemKey<ConflictId>;
    type Data = ConflictData;
    const LIST: &'static str = "conflicts";
    const LAST: Option<&'static str> = Some("resolved");
    const PER_QUERY: usize = CONFLICTS_PER_QUERY;

    async fn query(app: &App, keys: &[ItemKey<ConflictId>]) -> Result<Vec<Self>, QueryError> {
        let mut addresses: Vec<_> = keys.iter().map(|key| key.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut found = app.engine.conflicts(&addresses).await?;
        found.retain(|conflict| keys.contains(&conflict.key()));
        found.sort_by_key(Listed::key);
        Ok(found)
    }

    fn key(&self) -> ItemKey<ConflictId> {
        (self.raised_at, self.address, self.id).into()
    }

    fn data(&self, sources: &Sources, moment: &Moment) -> ConflictData {
        let pod_of = |claimant: &Claimant| sources.pods.pod_of(claimant);
        let mut data = ConflictData::new(&sources.node, moment, self, pod_of);
        data.cluster.clone_from(&sources.cluster);
        // That of the last event, not of this response; a record of an earlier version does not have it.
        data.latency_us = match &self.reported {
            Some(reported) => reported.latency_us,
            None => micros(self.updated_at.since(self.decided_at)),
        };
        data.explain(&sources.explanations);
        data
    }

    fn shorten(data: &mut ConflictData) {
        data.timeline = None;
    }

    fn may_select(parameters: &Parameters, key: &ItemKey<ConflictId>) -> bool {
        parameters.is_address(key.address)
    }

    fn selects(parameters: &Parameters, data: &ConflictData) -> bool {
        parameters.selects_conflict(data)
    }
}

impl Listed for Anomaly {
    type Key = ItemKey<AnomalyId>;
    type Data = AnomalyData;
    const LIST: &'static str = "anomalies";
    const PER_QUERY: usize = ANOMALIES_PER_QUERY;

    async fn query(app: &App, keys: &[ItemKey<AnomalyId>]) -> Result<Vec<Self>, QueryError> {
        let ids: Vec<_> = keys.iter().map(|key| key.id).collect();
        let mut found = app.engine.anomalies(&ids).await?;
        found.sort_by_key(Listed::key);
        Ok(found)
    }

    fn key(&self) -> ItemKey<AnomalyId> {
        (self.raised_at, self.address, self.id).into()
    }

    fn data(&self, sources: &Sources, moment: &Moment) -> AnomalyData {
        let pod_of = |holder: &Claimant| sources.pods.pod_of(holder);
        let mut data = AnomalyData::new(&sources.node, moment, self, pod_of);
        data.cluster.clone_from(&sources.cluster);
        // As for a conflict.
        let unreported = || micros(self.raised_at.since(self.decided_at));
        data.latency_us = self.reported_latency_us.unwrap_or_else(unreported);
        data.explain(&sources.explanations);
        data
    }

    fn shorten(data: &mut AnomalyData) {
        data.timeline = None;
    }

    fn selects(parameters: &Parameters, data: &AnomalyData) -> bool {
        parameters.selects_anomaly(data)
    }
}

impl Listed for ListedClaim {
    type Key = IpAddr;
    type Data = ClaimData;
    const LIST: &'static str = "claims";
    const PER_QUERY: usize = CLAIMS_PER_QUERY;

    async fn query(app: &App, keys: &[IpAddr]) -> Result<Vec<Self>, QueryError> {
        app.engine.claims(keys).await
    }

    fn key(&self) -> IpAddr {
        self.address
    }

    fn data(&self, sources: &Sources, moment: &Moment) -> ClaimData {
        ClaimData {
            address: self.address,
            network: self.network.clone(),
            vlan: self.vlan.outer,
            inner_vlan: self.vlan.inner,
            claimant: ClaimantData::new(
                &sources.node,
                &self.claimant,
                moment,
                sources.pods.pod_of(&self.claimant),
            ),
        }
    }

    fn selects(parameters: &Parameters, data: &ClaimData) -> bool {
        let pod = data.claimant.pod.as_deref();
        parameters.is_network(&data.network) && parameters.is_namespace(std::iter::once(pod))
    }
}

impl Listed for Ended {
    type Key = EndedKey;
    type Data = Item;
    const LIST: &'static str = "history";
    const PER_QUERY: usize = ENTRIES_PER_QUERY;

    async fn query(app: &App, keys: &[EndedKey]) -> Result<Vec<Self>, QueryError> {
        app.history.entries(keys.to_vec()).await
    }

    fn key(&self) -> EndedKey {
        self.key
    }

    fn data(&self, _: &Sources, _: &Moment) -> Item {
        (&self.event).into()
    }

    fn shorten(data: &mut Item) {
        match data {
            Item::Conflict(conflict) => conflict.timeline = None,
            Item::Anomaly(anomaly) => anomaly.timeline = None,
        }
    }

    fn may_select(parameters: &Parameters, key: &EndedKey) -> bool {
        key.is_within(parameters.since, parameters.until)
    }

    fn selects(parameters: &Parameters, data: &Item) -> bool {
        parameters.selects_ended(data)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
