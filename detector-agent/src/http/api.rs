//! `/api/v1/conflicts`, `/anomalies` and `/claims`: streamed, so that no complete answer is ever held in memory.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{StatusCode, header};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{
    App, Sources,
    engine_client::{EngineClient, QueryError},
    respond::{Chunk, JSON, Reply, Truncated, error, head_only, stream, with},
};
use crate::{
    clock::Moment,
    engine::{Anomaly, AnomalyId, Claimant, Conflict, ListedClaim, Network},
    event::{AnomalyData, ClaimantData, ConflictData},
    metrics::{AddressLabels, ClaimInfo, ClaimSeries},
    pods::PodAnswer,
};

/// Keys per query: a few hundred microseconds of the event loop's time.
const CONFLICTS_PER_QUERY: usize = 32;
const CLAIMS_PER_QUERY: usize = 256;
const ANOMALIES_PER_QUERY: usize = 128;

/// One claim, as the API shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ClaimData {
    address: IpAddr,
    #[serde(default)]
    network: Network,
    vlan: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inner_vlan: Option<u16>,
    #[serde(flatten)]
    claimant: ClaimantData,
}

/// The response if the event loop gave no answer.
pub(super) fn unavailable(cause: QueryError) -> Reply {
    let reply = error(StatusCode::SERVICE_UNAVAILABLE, &cause.to_string());
    with(reply, header::RETRY_AFTER, "5")
}

/// Rejects any query parameter.
pub(super) fn no_parameters(query: Option<&str>) -> Result<(), Box<Reply>> {
    match query.map(|q| form_urlencoded::parse(q.as_bytes()).next()) {
        Some(Some((name, _))) => Err(unknown_parameter(&name, "none")),
        _ => Ok(()),
    }
}

/// The value of `address`, if given.
pub(super) fn claims_parameters(query: Option<&str>) -> Result<Option<IpAddr>, Box<Reply>> {
    let mut address = None;
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        if name != "address" {
            return Err(unknown_parameter(&name, "`address`"));
        }
        let Ok(parsed) = value.parse() else {
            let reply = error(
                StatusCode::BAD_REQUEST,
                "`address` is not a valid IP address; expected for example 10.244.2.10",
            );
            return Err(Box::new(reply));
        };
        if address.replace(parsed).is_some() {
            let reply = error(StatusCode::BAD_REQUEST, "`address` is given twice");
            return Err(Box::new(reply));
        }
    }
    Ok(address)
}

fn unknown_parameter(name: &str, supported: &str) -> Box<Reply> {
    let name: String = name.chars().take(40).collect();
    Box::new(error(
        StatusCode::BAD_REQUEST,
        &format!("unknown query parameter `{name}`; supported: {supported}"),
    ))
}

/// The active conflicts, and those resolved most recently.
pub(super) async fn conflicts(app: Arc<App>, head: bool) -> Reply {
    // Queried before the response starts: a failure then is an error status, not a truncated response.
    let addresses = match app.engine.conflict_addresses().await {
        Ok(addresses) => addresses,
        Err(e) => return unavailable(e),
    };
    if head {
        return head_only(JSON);
    }
    let (to, from) = mpsc::channel(2);
    tokio::spawn(async move {
        let Some(list) = write::<Conflict>(&app, &addresses, &to).await else {
            return;
        };
        let resolved = app.sources.feed.resolved();
        let resolved: Vec<_> = resolved.iter().map(|event| &event.data).collect();
        list.end_with("resolved", &resolved, &to).await;
    });
    stream(JSON, from)
}

/// The open anomalies.
pub(super) async fn anomalies(app: Arc<App>, head: bool) -> Reply {
    let ids = match app.engine.anomaly_ids().await {
        Ok(ids) => ids,
        Err(e) => return unavailable(e),
    };
    if head {
        return head_only(JSON);
    }
    let (to, from) = mpsc::channel(2);
    tokio::spawn(async move {
        if let Some(list) = write::<Anomaly>(&app, &ids, &to).await {
            list.end(&to).await;
        }
    });
    stream(JSON, from)
}

/// Every claim, or those of one address.
pub(super) async fn claims(app: Arc<App>, address: Option<IpAddr>, head: bool) -> Reply {
    let addresses = match address {
        Some(address) => vec![address],
        None => match app.engine.addresses().await {
            Ok(addresses) => addresses,
            Err(e) => return unavailable(e),
        },
    };
    if head {
        return head_only(JSON);
    }
    let (to, from) = mpsc::channel(2);
    tokio::spawn(async move {
        if let Some(list) = write::<ListedClaim>(&app, &addresses, &to).await {
            list.end(&to).await;
        }
    });
    stream(JSON, from)
}

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
    type Key: Sync;
    /// The list's name in the response.
    const LIST: &'static str;
    const PER_QUERY: usize;

    fn query(
        engine: &EngineClient,
        keys: &[Self::Key],
    ) -> impl Future<Output = Result<Vec<Self>, QueryError>> + Send;

    /// The item as it is serialised.
    fn data(&self, sources: &Sources, moment: &Moment) -> impl Serialize;
}

impl Listed for Conflict {
    type Key = IpAddr;
    const LIST: &'static str = "conflicts";
    const PER_QUERY: usize = CONFLICTS_PER_QUERY;

    async fn query(engine: &EngineClient, keys: &[IpAddr]) -> Result<Vec<Self>, QueryError> {
        engine.conflicts(keys).await
    }

    fn data(&self, sources: &Sources, moment: &Moment) -> impl Serialize {
        let pod_of = |claimant: &Claimant| sources.pods.pod_of(claimant);
        let mut data = ConflictData::new(&sources.node, moment, self, pod_of);
        // The latency of the last reported change, not of this response.
        data.latency_us = micros(self.updated_at.since(self.decided_at));
        data
    }
}

impl Listed for Anomaly {
    type Key = AnomalyId;
    const LIST: &'static str = "anomalies";
    const PER_QUERY: usize = ANOMALIES_PER_QUERY;

    async fn query(engine: &EngineClient, keys: &[AnomalyId]) -> Result<Vec<Self>, QueryError> {
        engine.anomalies(keys).await
    }

    fn data(&self, sources: &Sources, moment: &Moment) -> impl Serialize {
        let pod_of = |holder: &Claimant| sources.pods.pod_of(holder);
        let mut data = AnomalyData::new(&sources.node, moment, self, pod_of);
        // The latency of the raising event, not of this response.
        data.latency_us = micros(self.raised_at.since(self.decided_at));
        data
    }
}

impl Listed for ListedClaim {
    type Key = IpAddr;
    const LIST: &'static str = "claims";
    const PER_QUERY: usize = CLAIMS_PER_QUERY;

    async fn query(engine: &EngineClient, keys: &[IpAddr]) -> Result<Vec<Self>, QueryError> {
        engine.claims(keys).await
    }

    fn data(&self, sources: &Sources, moment: &Moment) -> impl Serialize {
        ClaimData {
            address: self.address,
            network: self.network.clone(),
            vlan: self.vlan.outer,
            inner_vlan: self.vlan.inner,
            claimant: ClaimantData::new(
                &self.claimant,
                moment,
                sources.pods.pod_of(&self.claimant),
            ),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Streams the items of `keys`; `None` if the stream was aborted.
async fn write<L: Listed>(app: &App, keys: &[L::Key], to: &mpsc::Sender<Chunk>) -> Option<List> {
    let mut list = List::begin(app, L::LIST);
    for chunk in keys.chunks(L::PER_QUERY) {
        let moment = Moment::now();
        let Ok(found) = L::query(&app.engine, chunk).await else {
            list.abort(to).await;
            return None;
        };
        for item in &found {
            list.add(&item.data(&app.sources, &moment));
        }
        if !list.send(to).await {
            return None;
        }
    }
    Some(list)
}

/// A JSON object with one long list in it, written in chunks.
struct List {
    text: String,
    first: bool,
}

impl List {
    fn begin(app: &App, name: &str) -> Self {
        let moment = Moment::now();
        let head = serde_json::json!({
            "node": app.sources.node,
            "at": moment.wall(),
            "ready": app.sources.readiness.is_ready(),
        });
        let mut text = head.to_string();
        text.pop();
        text.push_str(&format!(",\"{name}\":["));
        Self { text, first: true }
    }

    fn add(&mut self, item: &impl Serialize) {
        // Serialising these types cannot fail.
        let Ok(json) = serde_json::to_string(item) else {
            return;
        };
        if !self.first {
            self.text.push(',');
        }
        self.first = false;
        self.text.push_str(&json);
    }

    /// `false` if the client disconnected.
    async fn send(&mut self, to: &mpsc::Sender<Chunk>) -> bool {
        let text = std::mem::take(&mut self.text);
        text.is_empty() || to.send(Ok(Bytes::from(text))).await.is_ok()
    }

    async fn end(mut self, to: &mpsc::Sender<Chunk>) {
        self.text.push_str("]}\n");
        self.send(to).await;
    }

    async fn end_with(mut self, name: &str, last: &impl Serialize, to: &mpsc::Sender<Chunk>) {
        let last = serde_json::to_string(last).unwrap_or_else(|_| "[]".to_owned());
        self.text.push_str(&format!("],\"{name}\":{last}}}\n"));
        self.send(to).await;
    }

    async fn abort(self, to: &mpsc::Sender<Chunk>) {
        // A failed send means that the client disconnected.
        let _ = to.send(Err(Truncated)).await;
    }
}
