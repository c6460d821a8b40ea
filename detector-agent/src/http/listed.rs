//! The items of the API's lists: how they are queried, selected and serialised.

use std::{net::IpAddr, time::Duration};

use detector_engine::{
    Anomaly, AnomalyId, AnomalyKind, Claimant, Conflict, ConflictId, ConflictKind, ListedClaim,
};
use detector_event::{
    AnomalyData, ClaimData, ClaimantData, ConflictData, ContractName as _, Moment, SubjectKind,
    row::Item,
};

use super::{
    App, Sources,
    engine_client::QueryError,
    list::ItemKey,
    paging::Listed,
    parameters::{Parameters, Supported},
};
use crate::persist::history::{Ended, EndedKey};

/// Keys per query: a few hundred microseconds of the event loop's time.
const CONFLICTS_PER_QUERY: usize = 32;
pub(super) const CLAIMS_PER_QUERY: usize = 256;
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
