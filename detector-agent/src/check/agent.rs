//! What the agent on this node knows, read from its HTTP endpoints.

use std::{net::IpAddr, time::Duration};

use detector_client::{AgentStatus, Client, ClientError, Overview};
use detector_event::{PartReport, Role, State, WallTime};
use tokio::time::{Instant, sleep};

use super::{
    CheckError,
    report::{Findings, Source},
};
use crate::cli::AgentArgs;

/// How long to wait for an agent that is starting, or reading the kernel state again after a loss.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay between two requests meanwhile.
const INTERVAL: Duration = Duration::from_millis(100);

/// What became of asking the agent.
pub(crate) enum Answer {
    Findings(Box<Findings>),
    /// There is no agent, with the reason to show.
    None(String),
    /// There seems to be an agent, but it cannot be asked.
    Unusable(ClientError),
}

/// Asks the agent for what `exchange` requests.
///
/// # Errors
/// If a setting is invalid.
pub(crate) fn ask(
    args: &AgentArgs,
    exchange: impl AsyncFnOnce(&Client) -> Result<(Overview, AgentStatus), ClientError>,
) -> Result<Answer, CheckError> {
    if args.is_none() {
        return Ok(Answer::None("no agent was asked (--url none)".to_owned()));
    }
    let client = match args.client() {
        Ok(client) => client,
        Err(error @ ClientError::NoCa) => return Ok(Answer::Unusable(error)),
        Err(error) => return Err(CheckError::Agent(error)),
    };
    let answer = runtime()?.block_on(exchange(&client));
    Ok(match answer {
        Ok((overview, status)) => {
            Answer::Findings(Box::new(findings(overview, status, client.url())))
        }
        Err(error) => match why_absent(&error) {
            Some(reason) => Answer::None(reason),
            None => Answer::Unusable(error),
        },
    })
}

/// Why no agent answers; `None` if there seems to be one.
fn why_absent(error: &ClientError) -> Option<String> {
    match error {
        ClientError::Unreachable { url: place, reason }
        | ClientError::NoAgent {
            socket: place,
            reason,
        } => Some(format!("no agent answers at {place} ({reason})")),
        _ => None,
    }
}

/// Whether the agent is ready, or why not, in a sentence. One that is starting is asked again for a moment.
///
/// # Errors
/// If a setting is invalid.
pub(super) fn readiness(args: &AgentArgs) -> Result<Result<String, String>, CheckError> {
    let client = args.client().map_err(CheckError::Agent)?;
    let url = client.url();
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    runtime()?.block_on(async {
        loop {
            let reason = match client.status().await {
                Ok(status) if status.ready => {
                    return Ok(Ok(format!("the agent at {url} is ready")));
                }
                Ok(_) => format!("the agent at {url} is not ready yet"),
                Err(error) => error.to_string(),
            };
            if Instant::now() >= deadline {
                return Ok(Err(reason));
            }
            sleep(INTERVAL).await;
        }
    })
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime, CheckError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CheckError::Runtime)
}

/// Everything that is open, or what concerns an address. An agent that does not see everything is asked again for a moment.
pub(super) async fn overview(
    client: &Client,
    address: Option<IpAddr>,
    allow_no_devices: bool,
) -> Result<(Overview, AgentStatus), ClientError> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let mut connection = client.connect().await?;
        let overview = match address {
            Some(address) => connection.overview_of(address).await?,
            None => connection.overview(None).await?,
        };
        let status = connection.status().await?;
        // The agent counts its devices once a second.
        let has_devices = allow_no_devices || status.devices.is_some_and(|devices| devices > 0);
        if status.gaps().is_empty() && has_devices || Instant::now() >= deadline {
            return Ok((overview, status));
        }
        sleep(INTERVAL).await;
    }
}

/// What an agent answered.
pub(crate) fn findings(overview: Overview, status: AgentStatus, url: &str) -> Findings {
    let sources = status.parts.iter().filter(|part| part.role == Role::Source);
    let disabled = sources
        .filter(|part| part.state == State::Off)
        .map(PartReport::line);
    let ipam = status.parts.iter().filter(|part| part.role == Role::Ipam);
    let others = status
        .parts
        .iter()
        .filter(|part| part.role != Role::Source && part.is_impaired());
    Findings {
        checked_at: WallTime::now(),
        address: None,
        devices: status.devices,
        gaps: status.gaps(),
        not_seen: disabled.collect(),
        ipam: ipam.map(PartReport::line).collect(),
        impaired: others.map(PartReport::line).collect(),
        node: overview.node,
        source: Source::Agent {
            url: url.to_owned(),
            version: status.version,
        },
        conflicts: overview.conflicts,
        anomalies: overview.anomalies,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_sink_is_named_after_the_result() {
        let status = AgentStatus::sample(true, Some(1), &[(Role::Sink, State::Failed)]);
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
