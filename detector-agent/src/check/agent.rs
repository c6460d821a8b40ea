//! What the agent on this node knows, read from its HTTP endpoints.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    CheckError,
    report::{Findings, Gap, Source},
};
use crate::{
    agent_client::{AgentStatus, Client, ClientError, Overview},
    cli::AgentArgs,
    clock::WallTime,
    health::{PartReport, Role, State},
};

/// How long to wait for an agent that is starting, or reading the kernel state again after a loss.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay between two requests meanwhile.
const INTERVAL: Duration = Duration::from_millis(100);

/// What became of asking the agent.
pub(super) enum Answer {
    Findings(Box<Findings>),
    /// There is no agent, with the reason to show.
    None(String),
    /// There seems to be an agent, but it cannot be asked, with the reason.
    Unusable(String),
}

/// Asks the agent. One that does not see everything is asked again for a moment.
///
/// # Errors
/// If a setting is invalid.
pub(super) fn ask(args: &AgentArgs, allow_no_devices: bool) -> Result<Answer, CheckError> {
    if args.url == "none" {
        return Ok(Answer::None("no agent was asked (--url none)".to_owned()));
    }
    let client = match Client::new(args) {
        Ok(client) => client,
        Err(error @ ClientError::NoCa) => return Ok(Answer::Unusable(error.to_string())),
        Err(error) => return Err(CheckError::Agent(error)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(read(&client, allow_no_devices));
    Ok(match answer {
        Ok((overview, status)) => {
            Answer::Findings(Box::new(findings(overview, status, client.url())))
        }
        Err(ClientError::Unreachable { url, reason }) => {
            Answer::None(format!("no agent answers at {url} ({reason})"))
        }
        Err(error) => Answer::Unusable(error.to_string()),
    })
}

async fn read(
    client: &Client,
    allow_no_devices: bool,
) -> Result<(Overview, AgentStatus), ClientError> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let overview = client.overview().await?;
        let status = client.status().await?;
        // The agent counts its devices once a second.
        let has_devices = allow_no_devices || status.devices.is_some_and(|devices| devices > 0);
        if gaps(&status).is_empty() && has_devices || Instant::now() >= deadline {
            return Ok((overview, status));
        }
        sleep(INTERVAL).await;
    }
}

fn findings(overview: Overview, status: AgentStatus, url: &str) -> Findings {
    let sources = status.parts.iter().filter(|part| part.role == Role::Source);
    let disabled = sources.filter(|part| part.state == State::Off).map(line);
    let ipam = status.parts.iter().filter(|part| part.role == Role::Ipam);
    let others = status.parts.iter().filter(|part| {
        part.role != Role::Source && matches!(part.state, State::Degraded | State::Failed)
    });
    Findings {
        checked_at: WallTime::now(),
        devices: status.devices,
        gaps: gaps(&status),
        not_seen: disabled.collect(),
        ipam: ipam.map(line).collect(),
        impaired: others.map(line).collect(),
        node: overview.node,
        source: Source::Agent {
            url: url.to_owned(),
            version: status.version,
        },
        conflicts: overview.conflicts,
        anomalies: overview.anomalies,
    }
}

fn line(part: &PartReport) -> String {
    format!("{}: {}", part.name, part.detail)
}

/// Why conflicts may be unknown to the agent.
fn gaps(status: &AgentStatus) -> Vec<Gap> {
    let mut gaps = Vec::new();
    if !status.ready || status.devices.is_none() {
        gaps.push(Gap {
            headline: "the agent is not ready yet",
            reason: "the agent is not ready yet".to_owned(),
        });
    }
    let blind = status.parts.iter().filter(|part| {
        part.role == Role::Source && !matches!(part.state, State::Works | State::Off)
    });
    gaps.extend(blind.map(|part| Gap {
        headline: "no conflict known, but the agent does not see everything",
        reason: line(part),
    }));
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(ready: bool, devices: Option<usize>, parts: &[(Role, State)]) -> AgentStatus {
        let part = |(role, state): &(Role, State)| PartReport {
            name: "part".to_owned(),
            role: *role,
            state: *state,
            detail: "detail".to_owned(),
            since: WallTime::now(),
        };
        AgentStatus {
            ready,
            version: String::new(),
            devices,
            parts: parts.iter().map(part).collect(),
        }
    }

    #[test]
    fn agent_that_does_not_see_everything_has_gaps() {
        use State::{Degraded, Failed, Off, Starting, Works};
        let seeing = [(Role::Source, Works), (Role::Source, Off)];
        assert!(gaps(&status(true, Some(1), &seeing)).is_empty());
        assert_eq!(gaps(&status(false, Some(1), &seeing)).len(), 1);
        assert_eq!(gaps(&status(true, None, &seeing)).len(), 1);
        for state in [Degraded, Failed, Starting] {
            let blind = status(true, Some(1), &[(Role::Source, state)]);
            assert_eq!(gaps(&blind).len(), 1, "{state:?}");
        }
        let sink_fails = status(true, Some(1), &[(Role::Sink, Failed)]);
        assert!(gaps(&sink_fails).is_empty());
    }

    #[test]
    fn failed_sink_is_named_beside_the_result() {
        let status = status(true, Some(1), &[(Role::Sink, State::Failed)]);
        let overview = Overview {
            node: "n".to_owned(),
            ready: true,
            conflicts: Vec::new(),
            resolved: Vec::new(),
            anomalies: Vec::new(),
        };
        let findings = findings(overview, status, "http://a");
        assert_eq!(findings.impaired, ["part: detail"]);
    }
}
