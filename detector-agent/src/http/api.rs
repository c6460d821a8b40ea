//! `/api/v1/conflicts` and `/api/v1/claims`: streamed, so that neither the agent nor detection ever holds all of it.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{StatusCode, header};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{
    App, Sources,
    ask::{Ask, AskError},
    respond::{Cut, JSON, Piece, Reply, error, head_only, pieces, with},
};
use crate::{
    clock::Moment,
    engine::{Anomaly, AnomalyId, Claimant, Conflict, ListedClaim},
    event::{AnomalyData, ClaimantData, ConflictData},
    metrics::{ClaimInfo, ClaimSeries},
    pods::PodAnswer,
};

/// Addresses asked about at once: some hundred microseconds of the detection thread's time.
const CONFLICTS_AT_ONCE: usize = 32;
const CLAIMS_AT_ONCE: usize = 256;
const ANOMALIES_AT_ONCE: usize = 128;

/// One claim, as the API shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ClaimData {
    address: IpAddr,
    vlan: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inner_vlan: Option<u16>,
    #[serde(flatten)]
    claimant: ClaimantData,
}

/// The answer where detection gave none.
pub(super) fn unanswered(why: AskError) -> Reply {
    let reply = error(StatusCode::SERVICE_UNAVAILABLE, &why.to_string());
    with(reply, header::RETRY_AFTER, "5")
}

/// Refuses a query string.
pub(super) fn no_parameters(query: Option<&str>) -> Result<(), Box<Reply>> {
    match query.map(|q| form_urlencoded::parse(q.as_bytes()).next()) {
        Some(Some((name, _))) => Err(unknown(&name)),
        _ => Ok(()),
    }
}

/// `address`, if given.
pub(super) fn claims_parameters(query: Option<&str>) -> Result<Option<IpAddr>, Box<Reply>> {
    let mut address = None;
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        if name != "address" {
            return Err(unknown(&name));
        }
        let Ok(parsed) = value.parse() else {
            let reply = error(
                StatusCode::BAD_REQUEST,
                "`address` is no IP address; give one such as 10.244.2.10",
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

fn unknown(name: &str) -> Box<Reply> {
    let name: String = name.chars().take(40).collect();
    Box::new(error(
        StatusCode::BAD_REQUEST,
        &format!("`{name}` is no parameter of this endpoint"),
    ))
}

/// The active conflicts, and the last that were resolved.
pub(super) async fn conflicts(app: Arc<App>, head: bool) -> Reply {
    // Asked before the answer begins: without detection there is an error, not half an answer.
    let addresses = match app.ask.conflict_addresses().await {
        Ok(addresses) => addresses,
        Err(e) => return unanswered(e),
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
    pieces(JSON, from)
}

/// The open anomalies.
pub(super) async fn anomalies(app: Arc<App>, head: bool) -> Reply {
    let ids = match app.ask.anomaly_ids().await {
        Ok(ids) => ids,
        Err(e) => return unanswered(e),
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
    pieces(JSON, from)
}

/// Every claim, or those of one address.
pub(super) async fn claims(app: Arc<App>, address: Option<IpAddr>, head: bool) -> Reply {
    let addresses = match address {
        Some(address) => vec![address],
        None => match app.ask.addresses().await {
            Ok(addresses) => addresses,
            Err(e) => return unanswered(e),
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
    pieces(JSON, from)
}

/// Every claimed address, for the metrics.
pub(super) async fn claim_series(app: &App) -> Result<ClaimSeries, AskError> {
    let mut series = ClaimSeries::default();
    for some in app.ask.addresses().await?.chunks(CLAIMS_AT_ONCE) {
        let found = app.ask.claims(some).await?;
        let mut named: Vec<_> = found
            .iter()
            .map(|claim| match app.sources.pods.pod_of(&claim.claimant) {
                PodAnswer::Known(pod) => (claim, Some(pod)),
                PodAnswer::Unknown(_) => (claim, None),
            })
            .collect();
        // Of several claimants of one address the one whose pod is known stands for it, then the oldest.
        named.sort_by_key(|(claim, pod)| (claim.address, pod.is_none(), claim.claimant.since));
        for (claim, pod) in named {
            series.add(ClaimInfo {
                address: claim.address.to_string(),
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

/// What a list has many of: asked for by key, some at a time.
trait Listed: Sized + Send + Sync {
    type Key: Sync;
    /// The list's name in the answer.
    const LIST: &'static str;
    const AT_ONCE: usize;

    fn ask(
        ask: &Ask,
        keys: &[Self::Key],
    ) -> impl Future<Output = Result<Vec<Self>, AskError>> + Send;

    /// As it is shown.
    fn data(&self, sources: &Sources, moment: &Moment) -> impl Serialize;
}

impl Listed for Conflict {
    type Key = IpAddr;
    const LIST: &'static str = "conflicts";
    const AT_ONCE: usize = CONFLICTS_AT_ONCE;

    async fn ask(ask: &Ask, keys: &[IpAddr]) -> Result<Vec<Self>, AskError> {
        ask.conflicts(keys).await
    }

    fn data(&self, sources: &Sources, moment: &Moment) -> impl Serialize {
        let pod_of = |claimant: &Claimant| sources.pods.pod_of(claimant);
        let mut data = ConflictData::new(&sources.node, moment, self, pod_of);
        // Of the change that was told last, not of this answer.
        data.latency_us = micros(self.updated_at.since(self.decided_at));
        data
    }
}

impl Listed for Anomaly {
    type Key = AnomalyId;
    const LIST: &'static str = "anomalies";
    const AT_ONCE: usize = ANOMALIES_AT_ONCE;

    async fn ask(ask: &Ask, keys: &[AnomalyId]) -> Result<Vec<Self>, AskError> {
        ask.anomalies(keys).await
    }

    fn data(&self, sources: &Sources, moment: &Moment) -> impl Serialize {
        let pod_of = |holder: &Claimant| sources.pods.pod_of(holder);
        let mut data = AnomalyData::new(&sources.node, moment, self, pod_of);
        // Of the event that told it, not of this answer.
        data.latency_us = micros(self.raised_at.since(self.decided_at));
        data
    }
}

impl Listed for ListedClaim {
    type Key = IpAddr;
    const LIST: &'static str = "claims";
    const AT_ONCE: usize = CLAIMS_AT_ONCE;

    async fn ask(ask: &Ask, keys: &[IpAddr]) -> Result<Vec<Self>, AskError> {
        ask.claims(keys).await
    }

    fn data(&self, sources: &Sources, moment: &Moment) -> impl Serialize {
        ClaimData {
            address: self.address,
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

/// Writes all that `keys` stand for; `None` where it was cut short.
async fn write<L: Listed>(app: &App, keys: &[L::Key], to: &mpsc::Sender<Piece>) -> Option<List> {
    let mut list = List::begin(app, L::LIST);
    for some in keys.chunks(L::AT_ONCE) {
        let moment = Moment::now();
        let Ok(found) = L::ask(&app.ask, some).await else {
            list.cut(to).await;
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

/// A JSON object with one long list in it, written piece by piece.
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
        // These types always serialize.
        let Ok(json) = serde_json::to_string(item) else {
            return;
        };
        if !self.first {
            self.text.push(',');
        }
        self.first = false;
        self.text.push_str(&json);
    }

    /// Whether the client still takes it.
    async fn send(&mut self, to: &mpsc::Sender<Piece>) -> bool {
        let text = std::mem::take(&mut self.text);
        text.is_empty() || to.send(Ok(Bytes::from(text))).await.is_ok()
    }

    async fn end(mut self, to: &mpsc::Sender<Piece>) {
        self.text.push_str("]}\n");
        self.send(to).await;
    }

    async fn end_with(mut self, name: &str, last: &impl Serialize, to: &mpsc::Sender<Piece>) {
        let last = serde_json::to_string(last).unwrap_or_else(|_| "[]".to_owned());
        self.text.push_str(&format!("],\"{name}\":{last}}}\n"));
        self.send(to).await;
    }

    async fn cut(self, to: &mpsc::Sender<Piece>) {
        // Where the client is gone already, nobody is deceived.
        let _ = to.send(Err(Cut)).await;
    }
}
