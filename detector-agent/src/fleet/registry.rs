//! Executes the protocol's requests at the Kubernetes API.
//!
//! Replacing and deleting are conditional on uid and resource version, so what another agent wrote in between is never lost. Every
//! object is owned by the Nodes of its claimants: Kubernetes removes the objects of a Node that was deleted.

mod answer;
mod owners;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, time::Duration};

use ::kube::{
    Client,
    api::{ApiResource, DeleteParams, GetParams, PostParams},
    client::Body,
    core::{
        GroupVersionKind, Request as Target,
        object::{NotUsed, Object},
        params::Preconditions,
    },
};
use detector_fleet::{
    NodeState, Outcome, Request, Stored, Version,
    conditions::ConflictStatus,
    objects::{self, ClaimSpec, ConflictSpec},
};
use http::header::RETRY_AFTER;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use self::{
    answer::{RawAnswer, is_named},
    owners::Owners,
};
use crate::kube_client::KubeClient;

pub(super) use self::answer::Problem;

/// Deadline for one request, the connection included.
const DEADLINE: Duration = Duration::from_secs(10);
/// A server that has just started denies everything until it has read its roles.
const STARTING: Duration = Duration::from_secs(30);
/// The path of all Nodes.
const NODES: &str = "/api/v1/nodes";

/// An `IPClaim`.
type Claim = Object<ClaimSpec, NotUsed>;
/// An `IPConflict` as it is written.
type Conflict = Object<ConflictSpec, ConflictStatus>;

/// What became of a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// Why, if the outcome is [`Outcome::Failed`] or [`Outcome::Rejected`].
    pub(super) problem: Option<Problem>,
}

/// The API server as the registry of addresses. One request at a time and several are the same to it.
pub(super) struct Registry {
    kube: KubeClient,
    node: String,
    connection: Mutex<Connection>,
    owners: std::sync::Mutex<Owners>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Connection {
    client: Option<Client>,
    /// Counts the clients.
    generation: u64,
    /// Since when the server has answered nothing that needs a role; `None` if it has.
    unproven_since: Option<Instant>,
    /// The server has answered something that needs a role, since it was away.
    is_proven: bool,
}

/// The resource of `IPClaim`s.
fn claims() -> ApiResource {
    resource("IPClaim", "ipclaims")
}

/// The resource of `IPConflict`s.
pub(super) fn conflicts() -> ApiResource {
    resource("IPConflict", "ipconflicts")
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk(objects::GROUP, objects::VERSION, kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

/// The path of a cluster-scoped resource.
fn target(resource: &ApiResource) -> Target {
    let ApiResource {
        api_version,
        plural,
        ..
    } = resource;
    Target::new(format!("/apis/{api_version}/{plural}"))
}

impl Registry {
    /// A registry in which this agent's node is `node`.
    pub(super) fn new(kube: KubeClient, node: String) -> Self {
        Self {
            kube,
            node,
            connection: Mutex::default(),
            owners: std::sync::Mutex::default(),
        }
    }

    /// Sends a request about the object `name`, and waits for its answer.
    pub(super) async fn execute(&self, name: &str, request: &Request) -> Answer {
        let (target, body) = match self.http_request(name, request) {
            Ok(parts) => parts,
            // It cannot be sent, today or tomorrow.
            Err(why) => return Answer::rejected(why),
        };
        let raw = match self.send(&target, body).await {
            Ok(raw) => raw,
            Err(problem) => return problem.into(),
        };
        self.interpret(request, &raw)
    }

    /// Learns the uid of this agent's Node.
    pub(super) fn learn_node(&self, uid: &str) {
        self.owners().learn(&self.node, uid);
    }

    /// Learns the owners that an object of the watch names.
    pub(super) fn learn(&self, metadata: &::kube::core::ObjectMeta) {
        self.owners().learn_from(metadata);
    }

    fn owners(&self) -> std::sync::MutexGuard<'_, Owners> {
        // No code panics while holding the lock.
        let owners = self.owners.lock();
        owners.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn http_request(
        &self,
        name: &str,
        request: &Request,
    ) -> Result<(http::Request<()>, Vec<u8>), String> {
        let (claims, conflicts) = (claims(), conflicts());
        let (post, get) = (PostParams::default(), GetParams::default());
        let claim = |version: Option<&Version>, spec: &ClaimSpec| {
            let nodes = [spec.party.node.as_str()];
            let object = Claim::new(name, &claims, spec.clone());
            self.body(object, version, &nodes, None)
        };
        let conflict = |version: Option<&Version>, spec: &ConflictSpec| {
            let present = spec.claimants.iter().filter(|who| who.left.is_none());
            let mut nodes: Vec<_> = present.map(|who| who.party.node.as_str()).collect();
            if spec.is_resolved() {
                // It goes with the Node whose agent deletes it otherwise.
                nodes = vec![&self.node];
            }
            let mut object = Conflict::new(name, &conflicts, spec.clone());
            object.status = Some(spec.status());
            self.body(object, version, &nodes, Some(spec.labels(&self.node)))
        };
        let built = match request {
            Request::CreateClaim(spec) => target(&claims).create(&post, claim(None, spec)?),
            Request::GetClaim => target(&claims).get(name, &get),
            Request::ReplaceClaim(version, spec) => {
                target(&claims).replace(name, &post, claim(Some(version), spec)?)
            }
            Request::DeleteClaim(version) => target(&claims).delete(name, &only(version)),
            Request::CreateConflict(spec) => {
                target(&conflicts).create(&post, conflict(None, spec)?)
            }
            Request::GetConflict => target(&conflicts).get(name, &get),
            Request::ReplaceConflict(version, spec) => {
                target(&conflicts).replace(name, &post, conflict(Some(version), spec)?)
            }
            Request::DeleteConflict(version) => target(&conflicts).delete(name, &only(version)),
            Request::GetNode(node) => Target::new(NODES).get(node, &get),
        };
        let (parts, body) = built.map_err(|why| why.to_string())?.into_parts();
        Ok((http::Request::from_parts(parts, ()), body))
    }

    /// An object as it is written, owned by these nodes as far as their uids are known.
    fn body<S: Clone + Serialize, U: Clone + Serialize>(
        &self,
        mut object: Object<S, U>,
        version: Option<&Version>,
        nodes: &[&str],
        labels: Option<BTreeMap<String, String>>,
    ) -> Result<Vec<u8>, String> {
        object.metadata.uid = version.map(|version| version.uid.clone());
        object.metadata.resource_version = version.map(|version| version.resource_version.clone());
        object.metadata.owner_references = Some(self.owners().references(nodes));
        object.metadata.labels = labels;
        serde_json::to_vec(&object).map_err(|why| why.to_string())
    }

    /// Sends a request; once again with new credentials if the server refuses those it has.
    async fn send(&self, target: &http::Request<()>, body: Vec<u8>) -> Result<RawAnswer, Problem> {
        let answer = timeout(DEADLINE, async {
            let (client, generation) = self.client(None).await?;
            let answer = once(&client, target, &body).await?;
            if answer.status.as_u16() != 401 {
                return Ok(answer);
            }
            // The token was rotated: a new client reads it again.
            let (client, _) = self.client(Some(generation)).await?;
            once(&client, target, &body).await
        });
        let mut answer = answer
            .await
            .unwrap_or_else(|_| Err(Problem::away(format!("no response within {DEADLINE:?}"))));
        let mut connection = self.connection.lock().await;
        match &mut answer {
            Ok(answer) if answer.is_overloaded() => connection.is_proven = false,
            Ok(answer) if matches!(answer.status.as_u16(), 401 | 403) => {
                let since = *connection.unproven_since.get_or_insert_with(Instant::now);
                answer.is_starting = !connection.is_proven && since.elapsed() < STARTING;
            }
            Ok(_) => {
                connection.is_proven = true;
                connection.unproven_since = None;
            }
            Err(_) => {
                connection.is_proven = false;
                connection.unproven_since = None;
            }
        }
        answer
    }

    /// The client; a new one if there is none, or it is of generation `unusable`.
    async fn client(&self, unusable: Option<u64>) -> Result<(Client, u64), Problem> {
        let mut connection = self.connection.lock().await;
        if let Some(client) = &connection.client
            && Some(connection.generation) != unusable
        {
            return Ok((client.clone(), connection.generation));
        }
        let client = self.kube.connect_without_retries().await;
        let client = client.map_err(|why| Problem::away(why.to_string()))?;
        connection.client = Some(client.clone());
        connection.generation += 1;
        Ok((client, connection.generation))
    }

    fn interpret(&self, request: &Request, raw: &RawAnswer) -> Answer {
        let wanted = match request {
            _ if !raw.is_success() => return refusal(request, raw),
            Request::DeleteClaim(_) | Request::DeleteConflict(_) => Ok(Outcome::Deleted),
            Request::CreateClaim(_) | Request::GetClaim | Request::ReplaceClaim(..) => raw
                .parse::<Claim>()
                .and_then(|claim| self.stored(claim))
                .map(Outcome::Claim),
            Request::CreateConflict(_) | Request::GetConflict | Request::ReplaceConflict(..) => raw
                .parse::<Object<ConflictSpec, NotUsed>>()
                .and_then(|conflict| self.stored(conflict))
                .map(Outcome::Conflict),
            Request::GetNode(node) => raw.parse().map(|found| {
                let state = node_state(found);
                self.owners().learn(node, &state.uid);
                Outcome::Node(state)
            }),
        };
        match wanted {
            Ok(outcome) => Answer {
                outcome,
                problem: None,
            },
            Err(problem) => problem.into(),
        }
    }

    fn stored<S: Clone + DeserializeOwned>(
        &self,
        object: Object<S, NotUsed>,
    ) -> Result<Stored<S>, Problem> {
        self.owners().learn_from(&object.metadata);
        let Some(version) = version(&object.metadata) else {
            return Err(Problem::Rejected("the object has no version".to_owned()));
        };
        Ok(Stored {
            version,
            spec: object.spec,
        })
    }
}

/// The version of an object; `None` if the server gave none.
pub(super) fn version(metadata: &::kube::core::ObjectMeta) -> Option<Version> {
    Some(Version {
        uid: metadata.uid.clone()?,
        resource_version: metadata.resource_version.clone()?,
    })
}

/// Deletes exactly this version.
fn only(version: &Version) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(version.uid.clone()),
            resource_version: Some(version.resource_version.clone()),
        }),
        ..DeleteParams::default()
    }
}

fn node_state(node: k8s_openapi::api::core::v1::Node) -> NodeState {
    let status = node.status.unwrap_or_default();
    let mut conditions = status.conditions.iter().flatten();
    NodeState {
        uid: node.metadata.uid.unwrap_or_default(),
        is_ready: conditions.any(|c| c.type_ == "Ready" && c.status == "True"),
        boot_id: status
            .node_info
            .map(|info| info.boot_id)
            .unwrap_or_default(),
    }
}

/// Outcomes of status codes that are no success.
fn refusal(request: &Request, raw: &RawAnswer) -> Answer {
    let status = raw.kubernetes_status();
    let outcome = match (raw.status.as_u16(), request) {
        (404, Request::GetNode(_)) if status.reason == "NotFound" => Outcome::NotFound,
        (404, Request::CreateClaim(_) | Request::CreateConflict(_)) => {
            return Problem::NoSuchResource.into();
        }
        (404, _) if is_named(&status) => Outcome::NotFound,
        (404, _) => return Problem::NoSuchResource.into(),
        (409, _) if status.reason == "AlreadyExists" => Outcome::AlreadyExists,
        // A conflict without a version is not about what the request would have changed.
        (409, Request::CreateClaim(_) | Request::CreateConflict(_)) => {
            return raw.problem().into();
        }
        (409, _) => Outcome::Outdated,
        _ => return raw.problem().into(),
    };
    Answer {
        outcome,
        problem: None,
    }
}

/// Sends a request once.
async fn once(
    client: &Client,
    target: &http::Request<()>,
    body: &[u8],
) -> Result<RawAnswer, Problem> {
    let request = target.clone().map(|()| Body::from(body.to_vec()));
    let response = client.send(request).await;
    let response =
        response.map_err(|why| Problem::away(detector_event::error_chain::one_line(&why)))?;
    let (parts, body) = response.into_parts();
    let body = body.collect_bytes().await;
    let body = body.map_err(|why| Problem::away(detector_event::error_chain::one_line(&why)))?;
    let retry_after = parts.headers.get(RETRY_AFTER);
    let seconds = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Ok(RawAnswer {
        status: parts.status,
        retry_after: seconds.map(Duration::from_secs),
        body,
        is_starting: false,
    })
}
