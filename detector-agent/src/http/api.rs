//! `/api/v1/conflicts`, `/anomalies`, `/claims` and `/history`, and single items of them.

use std::sync::Arc;

use detector_engine::{Anomaly, AnomalyId, Conflict, ConflictId, ListedClaim};
use detector_event::{
    AnyEvent, ConflictData, PodAnswer, SubjectId, SubjectState,
    answers::{OneAnomaly, OneConflict},
};
use hyper::{StatusCode, header};

use super::{
    App,
    engine_client::QueryError,
    list::ItemKey,
    listed::{
        ANOMALY_PARAMETERS, CLAIM_PARAMETERS, CLAIMS_PER_QUERY, CONFLICT_PARAMETERS,
        HISTORY_PARAMETERS,
    },
    paging::{Listed, Page, answer},
    parameters::{Parameters, Supported},
    respond::{Reply, error, json, with},
};
use crate::{
    metrics::{AddressLabels, ClaimInfo, ClaimSeries},
    persist::history::Ended,
    process::clock,
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
