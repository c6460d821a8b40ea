//! Which conflicts within this node are published as `IPConflict`s, so that `kubectl get ipconflicts` lists all of the cluster. Pure.
//!
//! Level-triggered: [`ConflictSelector::update`] takes all open conflicts of an address and returns what changed since the last time.
//!
//! Invariants:
//! - at most [`MAX_PUBLISHED`] conflicts of a node are published at once, however many its pods cause;
//! - the victims of an address sweep are not published, which one pod could have thousands of.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use detector_engine::{Claimant, ClaimantId, Conflict, ConflictId, ConflictScope, IfIndex};
use detector_event::{Moment, Pod};
use detector_fleet::{
    Subject,
    objects::{ConflictCause, ConflictClaimant, ConflictSpec, ConflictState, MAX_CLAIMANTS, Party},
};

/// The most conflicts of this node that are published at once.
pub const MAX_PUBLISHED: usize = 64;

/// The present state of the object of a conflict within this node. The node and the boot of its claimants are filled in later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictUpdate {
    /// The object's name.
    pub name: String,
    /// Its content, resolved if the conflict is over; `None` if it is no longer published.
    pub spec: Option<Box<ConflictSpec>>,
}

/// Decides which conflicts are published.
#[derive(Debug, Default)]
pub struct ConflictSelector {
    published: BTreeMap<IpAddr, PublishedConflicts>,
    /// A conflict found no room.
    has_refused: bool,
}

/// What is known about conflicts beyond what the engine has.
#[expect(missing_debug_implementations, reason = "functions have none")]
pub struct PodsAndCauses<'a> {
    /// The pod of a claimant.
    pub pod_of: &'a dyn Fn(&Claimant) -> Option<Arc<Pod>>,
    /// Why a conflict came about.
    pub cause_of: &'a dyn Fn(ConflictId) -> Option<ConflictCause>,
}

/// What is published about an address.
#[derive(Debug, Default)]
struct PublishedConflicts {
    objects: BTreeMap<String, Box<ConflictSpec>>,
    /// The devices whose pods are part of it, by index and generation.
    devices: BTreeSet<(IfIndex, u64)>,
}

/// The name of the object of a conflict within a node: that of the address with a part of the conflict's id, which sets it apart from those
/// between nodes, and from those of other nodes that have the same address.
fn object_name(conflict: &Conflict) -> String {
    let address = Subject::Address(conflict.address).object_name();
    format!("{address}-{:08x}", conflict.id.0 >> 96)
}

impl ConflictSelector {
    /// The open conflicts of an address as they are now. Returns the changes to send.
    pub fn update(
        &mut self,
        address: IpAddr,
        conflicts: &[Conflict],
        known: &PodsAndCauses<'_>,
        moment: &Moment,
    ) -> Vec<ConflictUpdate> {
        let previous = self.published.remove(&address).unwrap_or_default();
        let room = MAX_PUBLISHED.saturating_sub(self.len());
        let mut now = PublishedConflicts::default();
        for conflict in conflicts.iter().filter(|c| c.sweep.is_none()) {
            if now.objects.len() >= room {
                self.has_refused = true;
                break;
            }
            let name = object_name(conflict);
            let mut spec = spec(conflict, known, moment);
            if let Some(previous) = previous.objects.get(&name) {
                keep(&mut spec, previous);
            }
            now.devices.extend(conflict.present().filter_map(device));
            now.objects.insert(name, Box::new(spec));
        }
        let mut updates = Vec::new();
        for (name, spec) in &now.objects {
            if previous.objects.get(name) != Some(spec) {
                updates.push(ConflictUpdate {
                    name: name.clone(),
                    spec: Some(spec.clone()),
                });
            }
        }
        let open: BTreeSet<_> = conflicts.iter().map(object_name).collect();
        for (name, mut spec) in previous.objects {
            if now.objects.contains_key(&name) {
                continue;
            }
            spec.state = ConflictState::Resolved;
            spec.resolved_at = Some(moment.wall());
            let spec = (!open.contains(&name)).then_some(spec);
            updates.push(ConflictUpdate { name, spec });
        }
        if !now.objects.is_empty() {
            self.published.insert(address, now);
        }
        updates
    }

    /// The addresses whose published conflicts name the pods of these devices.
    pub fn addresses_on<'a>(
        &'a self,
        devices: &'a [(IfIndex, u64)],
    ) -> impl Iterator<Item = IpAddr> + 'a {
        let published = self.published.iter();
        let names_them =
            |published: &PublishedConflicts| devices.iter().any(|d| published.devices.contains(d));
        published.filter_map(move |(address, published)| names_them(published).then_some(*address))
    }

    /// Whether there is room again for conflicts that found none.
    pub fn take_has_room(&mut self) -> bool {
        self.len() < MAX_PUBLISHED && std::mem::take(&mut self.has_refused)
    }

    fn len(&self) -> usize {
        self.published.values().map(|p| p.objects.len()).sum()
    }
}

/// Keeps what a pod can change as often as it likes, the words of the cause, and the time, which changes when the clock is set: the
/// object is not written again for that.
fn keep(spec: &mut ConflictSpec, previous: &ConflictSpec) {
    spec.raised_at = previous.raised_at;
    spec.keep_cause(previous);
    for ConflictClaimant { party, .. } in &mut spec.claimants {
        let mut before = previous.claimants.iter().map(|c| &c.party);
        let before = before.find(|p| (&p.device, p.ifindex) == (&party.device, party.ifindex));
        if let Some(before) = before {
            party.mac = before.mac;
            if spec.confidence == previous.confidence {
                party.evidence = before.evidence;
            }
        }
    }
}

fn device(claimant: &Claimant) -> Option<(IfIndex, u64)> {
    match claimant.id {
        ClaimantId::Device(ifindex, generation) => Some((ifindex, generation)),
        ClaimantId::Host | ClaimantId::BehindBridge(..) | ClaimantId::Registered(_) => None,
    }
}

fn spec(conflict: &Conflict, known: &PodsAndCauses<'_>, moment: &Moment) -> ConflictSpec {
    let present = conflict.present().take(MAX_CLAIMANTS);
    let mut claimants: Vec<_> = present
        .map(|claimant| ConflictClaimant {
            party: party(claimant, (known.pod_of)(claimant).as_deref()),
            ..ConflictClaimant::default()
        })
        .collect();
    // Not by who receives the traffic, which may change often.
    claimants.sort_by_key(|c| c.party.ifindex);
    ConflictSpec {
        address: Subject::Address(conflict.address),
        conflict_id: conflict.id,
        kind: conflict.kind,
        scope: ConflictScope::Node,
        network: conflict.network.clone(),
        state: ConflictState::Active,
        confidence: conflict.confidence,
        raised_at: Some(moment.wall_at(conflict.raised_at)),
        resolved_at: None,
        nodes: String::new(),
        pods: detector_fleet::columns(&claimants).1,
        cause: (known.cause_of)(conflict.id).map(Box::new),
        claimants,
    }
}

fn party(claimant: &Claimant, pod: Option<&Pod>) -> Party {
    // What is certain first.
    let strongest = claimant.evidence.iter().min_by_key(|e| e.kind);
    let party = Party {
        device: claimant.device.clone(),
        ifindex: claimant.ifindex,
        mac: claimant.mac,
        evidence: strongest.map(|e| e.kind),
        ..Party::default()
    };
    let Some(pod) = pod else { return party };
    Party {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        pod_uid: pod.uid.clone().unwrap_or_default(),
        container_id: pod.container_id.clone().unwrap_or_default(),
        ..party
    }
}

#[cfg(test)]
mod tests;
