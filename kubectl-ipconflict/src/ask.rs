//! Asks the agents, some at a time, each through a port-forward of its own.

use std::{net::IpAddr, time::Duration};

use ::kube::{Api, Client};
use detector_client::{AgentStatus, Client as AgentClient, ClientError, Overview, Timelines};
use detector_event::{ClaimData, answers::HistoryList};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use tokio::time::timeout;

use super::{
    agents::{Agents, NodeAgent, reason},
    args::ClusterArgs,
};

/// How long to wait for the reason of a failed connection, which arrives on a channel of its own.
const REASON_TIMEOUT: Duration = Duration::from_millis(500);

/// What an agent answered.
#[derive(Debug)]
pub(super) struct AgentAnswer {
    pub(super) overview: Overview,
    pub(super) status: AgentStatus,
    /// The claims of the address that was asked for.
    pub(super) claims: Vec<ClaimData>,
    /// What ended, if that was asked for.
    pub(super) history: Option<HistoryList>,
}

/// What to ask each agent for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    /// Its conflicts and anomalies.
    Open,
    /// Those of an address, with its claims.
    Address(IpAddr),
    /// Why they are there: all, or those of an address.
    Why(Option<IpAddr>, Timelines),
    /// What ended, all or that of an address; at most so many of each node.
    Ended(Option<IpAddr>, usize),
}

/// A node whose agent was asked.
#[derive(Debug)]
pub(super) struct NodeAnswer {
    pub(super) agent: NodeAgent,
    /// The answer, or why there is none.
    pub(super) answer: Result<AgentAnswer, String>,
}

/// The answers of all nodes.
#[derive(Debug)]
pub(super) struct ClusterAnswers {
    /// Ordered by name.
    pub(super) nodes: Vec<NodeAnswer>,
    pub(super) nodes_without: Vec<String>,
    pub(super) nodes_unknown: Option<String>,
}

/// Asks every agent.
pub(super) async fn ask_all(
    client: &Client,
    agent_client: &AgentClient,
    agents: &Agents,
    question: Question,
    args: &ClusterArgs,
) -> ClusterAnswers {
    let asking = agents.agents.iter().map(|agent| async move {
        let answer = match &agent.not_running {
            Some(reason) => Err(reason.clone()),
            None => {
                let asking = ask(client, agent_client, agent, question);
                let answer = timeout(args.timeout, asking).await;
                let late = |_| {
                    format!(
                        "no answer within {}",
                        humantime::format_duration(args.timeout)
                    )
                };
                answer.map_err(late).flatten()
            }
        };
        NodeAnswer {
            agent: agent.clone(),
            answer,
        }
    });
    let asking = stream::iter(asking).buffered(args.concurrency.into());
    ClusterAnswers {
        nodes: asking.collect().await,
        nodes_without: agents.nodes_without.clone(),
        nodes_unknown: agents.nodes_unknown.clone(),
    }
}

async fn ask(
    client: &Client,
    agent_client: &AgentClient,
    agent: &NodeAgent,
    question: Question,
) -> Result<AgentAnswer, String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &agent.namespace);
    let port = agent_client.port();
    let forward = pods.portforward(&agent.pod, &[port]).await;
    let mut forward = forward.map_err(|error| reason(&error))?;
    let refused = forward.take_error(port);
    let stream = forward.take_stream(port).ok_or("no stream")?;
    let exchange = async {
        let mut connection = agent_client.connect_over(stream).await?;
        let mut claims = Vec::new();
        let mut history = None;
        let (overview, status) = match question {
            Question::Open => (connection.overview(None).await?, connection.status().await?),
            Question::Address(address) => {
                let overview = connection.overview(Some(address)).await?;
                let status = connection.status().await?;
                claims = connection.claims(address).await?;
                (overview, status)
            }
            Question::Why(address, timelines) => connection.explained(address, timelines).await?,
            Question::Ended(address, limit) => {
                history = Some(connection.history(address, limit).await?);
                (Overview::default(), connection.status().await?)
            }
        };
        Ok(AgentAnswer {
            overview,
            status,
            claims,
            history,
        })
    };
    let refused = async {
        match refused {
            Some(refused) => refused.await,
            None => None,
        }
    };
    let refused = refused.fuse();
    tokio::pin!(refused);
    let result = tokio::select! {
        answer = exchange => match answer {
            Ok(answer) => Ok(answer),
            Err::<_, ClientError>(error) => {
                let refused = timeout(REASON_TIMEOUT, refused).await.ok().flatten();
                Err(refused.unwrap_or_else(|| error.to_string()))
            }
        },
        Some(reason) = &mut refused => Err(reason),
    };
    forward.abort();
    result
}
