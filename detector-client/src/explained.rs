//! Asks an agent why its conflicts and anomalies are there, for `explain` and `kubectl ipconflict explain`.

use std::{collections::HashSet, net::IpAddr, time::Duration};

use detector_event::{
    SubjectId, WallTime,
    answers::AnomalyList,
    explain::{Incident, incidents},
};
use tokio::time::{Instant, sleep};

use crate::{AgentStatus, ClientError, Connection, Overview};

/// How long to wait for the diagnosis of a new finding, or for an agent that is starting.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Delay between two requests meanwhile.
const INTERVAL: Duration = Duration::from_millis(200);
/// Timelines are requested one by one; findings beyond are shown without.
const MAX_TIMELINES: usize = 200;

/// The findings whose timelines are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timelines {
    /// Of the first finding of each incident.
    OfIncidents,
    /// Of every finding.
    All,
}

impl Connection<'_> {
    /// The open conflicts and anomalies with at most 200 timelines, and the agent's status: all, or the conflict of an address and
    /// the anomalies of it and of the devices that have it. Waits up to three seconds while a diagnosis may follow, or the agent does
    /// not see everything yet.
    ///
    /// # Errors
    /// If the agent gives no valid answer.
    pub async fn explained(
        &mut self,
        address: Option<IpAddr>,
        timelines: Timelines,
    ) -> Result<(Overview, AgentStatus), ClientError> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let (mut overview, status) = loop {
            let overview = match address {
                Some(address) => self.overview_of(address).await?,
                None => self.overview(None).await?,
            };
            let status = self.status().await?;
            let is_settled = status.gaps().is_empty() && !is_pending(&overview);
            if is_settled || Instant::now() >= deadline {
                break (overview, status);
            }
            sleep(INTERVAL).await;
        };
        let ids: Vec<SubjectId> = match timelines {
            Timelines::All => {
                let conflicts = overview.conflicts.iter().map(|c| c.conflict_id.into());
                let anomalies = overview.anomalies.iter().map(|a| a.anomaly_id.into());
                conflicts.chain(anomalies).collect()
            }
            Timelines::OfIncidents => {
                let incidents = incidents(&overview.conflicts, &overview.anomalies);
                incidents.iter().filter_map(Incident::first).collect()
            }
        };
        self.add_timelines(&mut overview, ids).await?;
        Ok((overview, status))
    }

    /// What is open and concerns an address: its conflicts, and the anomalies of it and of the pods that have it.
    ///
    /// # Errors
    /// If the agent does not answer as it should.
    pub async fn overview_of(&mut self, address: IpAddr) -> Result<Overview, ClientError> {
        let mut overview = self.overview(Some(address)).await?;
        let claims = self.claims(address).await?;
        let holders: Vec<_> = claims.iter().map(|claim| claim.claimant.ifindex).collect();
        if !holders.is_empty() {
            let all: AnomalyList = self.list("/api/v1/anomalies").await?;
            overview.anomalies = all.anomalies;
            overview.anomalies.retain(|a| a.is_about(address, &holders));
        }
        Ok(overview)
    }

    async fn add_timelines(
        &mut self,
        overview: &mut Overview,
        ids: Vec<SubjectId>,
    ) -> Result<(), ClientError> {
        let wanted: HashSet<_> = ids.into_iter().take(MAX_TIMELINES).collect();
        for conflict in &mut overview.conflicts {
            let id = conflict.conflict_id.into();
            if wanted.contains(&id) {
                conflict.timeline = self.conflict(id).await?.and_then(|one| one.timeline);
            }
        }
        for anomaly in &mut overview.anomalies {
            let id = anomaly.anomaly_id.into();
            if wanted.contains(&id) {
                anomaly.timeline = self.anomaly(id).await?.and_then(|one| one.timeline);
            }
        }
        Ok(())
    }
}

/// Whether a finding is so new that its diagnosis may follow.
fn is_pending(overview: &Overview) -> bool {
    let conflicts = overview.conflicts.iter();
    let conflicts = conflicts.map(|c| (c.diagnosis.is_none(), c.raised_at));
    let anomalies = overview.anomalies.iter();
    let anomalies = anomalies.map(|a| (a.diagnosis.is_none(), a.raised_at));
    let now = WallTime::now();
    conflicts
        .chain(anomalies)
        .any(|(is_missing, raised_at)| is_missing && now.since(raised_at) < SETTLE_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use detector_event::samples;

    use super::*;

    #[test]
    fn only_a_new_finding_without_a_diagnosis_is_waited_for() {
        let mut overview = Overview {
            node: "node-1".to_owned(),
            ready: true,
            conflicts: vec![samples::raised("10.0.0.1").data],
            resolved: Vec::new(),
            anomalies: Vec::new(),
        };
        assert!(!is_pending(&overview));
        overview.conflicts[0].raised_at = WallTime::now();
        assert!(is_pending(&overview));
    }
}
