//! What the agent believes about an `IPConflict`, and the sanitised form in which it is used and written.

use std::collections::BTreeSet;

use detector_engine::{Confidence, ConflictId, ConflictKind, ConflictScope, Network};

use super::{
    Stored, Subject, Version,
    objects::{ConflictClaimant, ConflictSpec, ConflictState, MAX_COLUMN, Party, bound_text},
};

/// The most claimants that join a conflict. Keeps the object small where every node has an address, such as a virtual IP.
pub(super) const MAX_CLAIMANTS: usize = 32;
/// The longest text used of an object: the longest name in Kubernetes.
const MAX_TEXT: usize = 253;
/// The most names in a column; the rest is counted.
const MAX_NAMES: usize = 4;

/// What the agent believes about the `IPConflict` of a subject.
#[derive(Clone, Debug, Default)]
pub(super) struct ConflictBelief {
    /// As last read or watched; `None`: there is none.
    pub(super) stored: Option<Box<Stored<ConflictSpec>>>,
    /// The last write that the server accepted without keeping anything of it, because its schema is of an earlier version.
    pub(super) without_effect: Option<Box<ConflictSpec>>,
    /// Whether it has to be read before anything is concluded from it.
    pub(super) is_stale: bool,
    /// The version of one that is resolved, if it was there: it has to be deleted before another is created.
    pub(super) resolved: Option<Version>,
    /// The number of the next call when `stored` became known.
    pub(super) known: u64,
    /// The uid of the object that was deleted last: events about it that arrive later are outdated.
    deleted: Option<String>,
    /// The version with which an object last left the watch, by its deletion or because it no longer names this node: what is older
    /// is outdated.
    unwatched: Option<Version>,
}

impl ConflictBelief {
    pub(super) fn spec(&self) -> Option<&ConflictSpec> {
        self.stored.as_ref().map(|stored| &stored.spec)
    }

    pub(super) fn version(&self) -> Option<&Version> {
        self.stored.as_ref().map(|stored| &stored.version)
    }

    /// Whether writing `spec` has changed nothing.
    pub(super) fn is_without_effect(&self, spec: &ConflictSpec) -> bool {
        self.without_effect.as_deref() == Some(spec)
    }

    /// The watch has reported this version. Returns whether it is news.
    pub(super) fn watched(&mut self, stored: Stored<ConflictSpec>, known: u64) -> bool {
        let is_outdated = self.deleted.as_ref() == Some(&stored.version.uid)
            || self.was_unwatched_after(&stored.version)
            || self
                .version()
                .is_some_and(|have| !is_newer(&stored.version, have));
        if !is_outdated {
            self.set(stored, known);
        }
        !is_outdated
    }

    /// A request was answered with this version: as good as a watched one, unless it was read because the belief was stale.
    pub(super) fn answered(&mut self, stored: Stored<ConflictSpec>, known: u64) {
        if self.is_stale && !self.was_unwatched_after(&stored.version) {
            self.set(stored, known);
        } else {
            self.watched(stored, known);
        }
    }

    /// It left the watch: it was deleted, or no longer names this node, and then is ignored until it does again.
    pub(super) fn unwatched(&mut self, version: Version) {
        let is_newer_than_last = self
            .unwatched
            .as_ref()
            .is_none_or(|last| last.uid != version.uid || is_newer(&version, last));
        let is_current = self
            .version()
            .is_some_and(|have| have.uid == version.uid && !is_newer(have, &version));
        if is_current {
            self.is_stale = false;
            self.stored = None;
        }
        if is_newer_than_last {
            self.unwatched = Some(version);
        }
    }

    /// A request was answered with a resolved one, with this version: as if it had left the watch.
    pub(super) fn answered_resolved(&mut self, version: Version) {
        if std::mem::take(&mut self.is_stale) {
            self.stored = None;
        }
        self.unwatched(version.clone());
        self.resolved = Some(version);
    }

    fn was_unwatched_after(&self, version: &Version) -> bool {
        let last = self.unwatched.as_ref();
        last.is_some_and(|last| last.uid == version.uid && is_older(version, last))
    }

    /// A list contradicts the belief: only a read shows which is right.
    pub(super) fn read_again(&mut self) {
        self.is_stale = true;
        // If the server was restored from a backup, versions start again.
        self.unwatched = None;
    }

    /// It was deleted; with a uid, only that object was. Returns whether this is news.
    pub(super) fn gone(&mut self, uid: Option<&str>) -> bool {
        self.resolved = None;
        let have = self.version().map(|version| version.uid.clone());
        if uid.is_some() && have.as_deref() != uid {
            return false;
        }
        self.is_stale = false;
        if have.is_some() {
            self.deleted = have;
        }
        self.stored.take().is_some()
    }

    fn set(&mut self, stored: Stored<ConflictSpec>, known: u64) {
        self.is_stale = false;
        self.deleted = None;
        self.resolved = None;
        self.known = known;
        self.stored = Some(Box::new(stored));
    }
}

/// Whether `a` was written after `b`. Resource versions of one resource are ordered numbers (KEP-5504); what is not a number counts
/// as newer, and the conditional write finds out.
fn is_newer(a: &Version, b: &Version) -> bool {
    let number = |version: &Version| version.resource_version.parse::<u64>().ok();
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a > b,
        _ => a != b,
    }
}

/// Whether `a` was certainly written before `b`.
fn is_older(a: &Version, b: &Version) -> bool {
    a != b && !is_newer(a, b)
}

/// The part of a stored conflict that is used: each node once, texts and the number of claimants bounded. `None` if it is not about
/// `subject` across nodes.
pub(super) fn sanitized(
    stored: Stored<ConflictSpec>,
    subject: &Subject,
) -> Option<Stored<ConflictSpec>> {
    let Stored { version, mut spec } = stored;
    if spec.address != *subject || spec.scope != ConflictScope::Fleet {
        return None;
    }
    let mut nodes = BTreeSet::new();
    spec.claimants.retain(|claimant| {
        is_name(&claimant.party.node) && nodes.insert(claimant.party.node.clone())
    });
    spec.claimants.truncate(MAX_CLAIMANTS);
    for claimant in &mut spec.claimants {
        bound_party(&mut claimant.party);
        claimant.unconfirmed_because.iter_mut().for_each(bound);
    }
    spec.cause.iter_mut().for_each(|cause| cause.bound());
    // Texts of the columns are written from the claimants.
    let (nodes, pods) = columns(&spec.claimants);
    (spec.nodes, spec.pods) = (nodes, pods);
    Some(Stored { version, spec })
}

/// Bounds the texts of a party that another agent wrote.
pub(super) fn bound_party(party: &mut Party) {
    for text in [
        &mut party.boot_id,
        &mut party.device,
        &mut party.namespace,
        &mut party.pod,
        &mut party.pod_uid,
        &mut party.container_id,
        &mut party.source,
    ] {
        bound(text);
    }
}

fn bound(text: &mut String) {
    bound_text(text, MAX_TEXT);
}

/// Whether `name` can be the name of a Node (RFC 1123), and so part of a request.
pub(super) fn is_name(name: &str) -> bool {
    let is_inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'.';
    let is_edge = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let bytes = name.as_bytes();
    bytes.len() <= MAX_TEXT
        && bytes.iter().all(|c| is_inner(*c))
        && is_edge(bytes.first())
        && is_edge(bytes.last())
}

/// A new conflict, to be completed by [`completed`].
pub(super) fn new(address: Subject, conflict_id: ConflictId) -> ConflictSpec {
    ConflictSpec {
        address,
        conflict_id,
        kind: ConflictKind::Duplicate,
        scope: ConflictScope::Fleet,
        network: Network::Node,
        state: ConflictState::Suspected,
        confidence: Confidence::Observed,
        raised_at: None,
        resolved_at: None,
        nodes: String::new(),
        pods: String::new(),
        cause: None,
        claimants: Vec::new(),
    }
}

/// `spec` with the fields that follow from the claimants.
pub(super) fn completed(
    mut spec: ConflictSpec,
    wall: Option<detector_event::WallTime>,
) -> ConflictSpec {
    let is_active = spec.claimants.iter().any(|c| c.active);
    let is_confirmed = |c: &ConflictClaimant| c.active && c.asked != 0 && c.asked == c.confirmed;
    if is_active {
        spec.state = ConflictState::Active;
        spec.raised_at = spec.raised_at.or(wall);
    } else {
        spec.state = ConflictState::Suspected;
        spec.raised_at = None;
        spec.cause = None;
        spec.confidence = Confidence::Observed;
    }
    if spec.claimants.iter().any(is_confirmed) {
        spec.confidence = Confidence::Certain;
    } else if spec
        .claimants
        .first()
        .is_some_and(|holder| holder.unconfirmed_because.is_some())
    {
        // The claimants with certain evidence have left.
        spec.confidence = Confidence::Observed;
    }
    (spec.nodes, spec.pods) = columns(&spec.claimants);
    spec
}

/// The texts of the columns NODES and PODS.
#[must_use]
pub fn columns(claimants: &[ConflictClaimant]) -> (String, String) {
    let nodes = claimants.iter().map(|c| c.party.node.clone());
    let pods = claimants
        .iter()
        .filter(|c| !c.party.pod.is_empty())
        .map(|c| format!("{}/{}", c.party.namespace, c.party.pod));
    (joined(nodes.collect()), joined(pods.collect()))
}

fn joined(mut names: Vec<String>) -> String {
    let all = names.len();
    loop {
        let more = all - names.len();
        let text = names.join(", ");
        let text = match more {
            0 => text,
            _ => format!("{text} and {more} more"),
        };
        // The schema refuses a longer text, and with it the conflict.
        if names.len() <= MAX_NAMES && text.len() <= MAX_COLUMN {
            return text;
        }
        names.pop();
    }
}

/// The entry of `node`, unless it has left.
pub(super) fn claimant<'a>(spec: &'a ConflictSpec, node: &str) -> Option<&'a ConflictClaimant> {
    let found = spec.claimants.iter().find(|c| c.party.node == node);
    found.filter(|c| c.left.is_none())
}

/// The one that reports: the first that is active and has not left.
pub(super) fn reporter(spec: &ConflictSpec) -> Option<&ConflictClaimant> {
    spec.claimants.iter().find(|c| c.active && c.left.is_none())
}

/// Whether `node` is the first, the holder, and has not left.
pub(super) fn is_first(spec: &ConflictSpec, node: &str) -> bool {
    spec.claimants
        .first()
        .is_some_and(|c| c.party.node == node && c.left.is_none())
}
