//! An API server with the semantics that the protocol relies on: names are unique, and writes are conditional on the version.

use std::collections::BTreeMap;

use super::admission;
use crate::{
    NodeState, Outcome, Request, Stored, Subject, Version,
    objects::{ClaimSpec, ConflictSpec},
};

/// An event of the watch of conflicts.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Changed(Stored<ConflictSpec>),
    Deleted(Stored<ConflictSpec>),
}

/// Whether the watch of `node` has it. A resolved one may be there for the agent that wrote it, which ignores it.
fn names(spec: &ConflictSpec, node: &str) -> bool {
    !spec.is_resolved() && spec.claimants.iter().any(|c| c.party.node == node)
}

#[derive(Debug, Default)]
pub(super) struct Server {
    revision: u64,
    pub(super) claims: BTreeMap<String, Stored<ClaimSpec>>,
    pub(super) conflicts: BTreeMap<String, Stored<ConflictSpec>>,
    pub(super) nodes: BTreeMap<String, NodeState>,
    /// Everything that happened to conflicts; each watch has a position in it.
    pub(super) log: Vec<Event>,
    /// Its schema has no `rightful`, which it drops.
    pub(super) knows_no_rights: bool,
    /// Its schema has no `cause`.
    pub(super) knows_no_causes: bool,
}

impl Server {
    /// The same for the agent of a node: what it writes has to be admitted.
    pub(super) fn apply_as(&mut self, node: &str, subject: Subject, request: &Request) -> Outcome {
        self.assert_admitted(node, subject, request);
        self.apply(subject, request)
    }

    pub(super) fn assert_admitted(&self, node: &str, subject: Subject, request: &Request) {
        let stored = self.conflicts.get(&subject.object_name());
        let (before, after) = match request {
            Request::CreateConflict(after) if stored.is_none() => (None, after),
            Request::ReplaceConflict(version, after) => match stored {
                Some(stored) if stored.version == *version => (Some(&stored.spec), after),
                _ => return,
            },
            Request::DeleteConflict(version) => {
                if let Some(stored) = stored.filter(|stored| stored.version == *version) {
                    let admitted = admission::admit_deletion(node, &stored.spec);
                    assert_eq!(admitted, Ok(()), "{node}: {:#?}", stored.spec);
                }
                return;
            }
            _ => return,
        };
        let admitted = admission::admit(node, before, after);
        assert_eq!(admitted, Ok(()), "{node}: {before:#?}\n{after:#?}");
    }

    pub(super) fn apply(&mut self, subject: Subject, request: &Request) -> Outcome {
        let name = subject.object_name();
        match request {
            Request::CreateClaim(spec) => {
                if self.claims.contains_key(&name) {
                    return Outcome::AlreadyExists;
                }
                let stored = self.stored(None, spec.clone());
                self.claims.insert(name, stored.clone());
                Outcome::Claim(stored)
            }
            Request::GetClaim => self
                .claims
                .get(&name)
                .map_or(Outcome::NotFound, |stored| Outcome::Claim(stored.clone())),
            Request::ReplaceClaim(version, spec) => match self.claims.get(&name) {
                None => Outcome::NotFound,
                Some(stored) if stored.version != *version => Outcome::Outdated,
                Some(_) => {
                    let stored = self.stored(Some(version), spec.clone());
                    self.claims.insert(name, stored.clone());
                    Outcome::Claim(stored)
                }
            },
            Request::DeleteClaim(version) => match self.claims.get(&name) {
                None => Outcome::NotFound,
                Some(stored) if stored.version != *version => Outcome::Outdated,
                Some(_) => {
                    self.claims.remove(&name);
                    Outcome::Deleted
                }
            },
            Request::CreateConflict(spec) => {
                if self.conflicts.contains_key(&name) {
                    return Outcome::AlreadyExists;
                }
                self.put_conflict(name, None, spec)
            }
            Request::GetConflict => self
                .conflicts
                .get(&name)
                .map_or(Outcome::NotFound, |stored| {
                    Outcome::Conflict(stored.clone())
                }),
            Request::ReplaceConflict(version, spec) => match self.conflicts.get(&name) {
                None => Outcome::NotFound,
                Some(stored) if stored.version != *version => Outcome::Outdated,
                Some(_) => self.put_conflict(name, Some(version), spec),
            },
            Request::DeleteConflict(version) => match self.conflicts.get(&name) {
                None => Outcome::NotFound,
                Some(stored) if stored.version != *version => Outcome::Outdated,
                Some(_) => {
                    self.delete_conflict(&name);
                    Outcome::Deleted
                }
            },
            Request::GetNode(node) => self
                .nodes
                .get(node)
                .map_or(Outcome::NotFound, |state| Outcome::Node(state.clone())),
        }
    }

    /// The conflicts that name `node`, as they were when the log had so many events.
    pub(super) fn conflicts_at(&self, position: usize, node: &str) -> Vec<Stored<ConflictSpec>> {
        let mut conflicts = BTreeMap::new();
        for event in &self.log[..position] {
            match event {
                Event::Changed(stored) => conflicts.insert(stored.spec.address, stored.clone()),
                Event::Deleted(stored) => conflicts.remove(&stored.spec.address),
            };
        }
        conflicts.retain(|_, stored| names(&stored.spec, node));
        conflicts.into_values().collect()
    }

    /// The event at a position for the watch of `node`, which selects what names it: what does not any longer is deleted for it.
    pub(super) fn event(&self, position: usize, node: &str) -> Option<Event> {
        let (stored, is_deleted) = match &self.log[position] {
            Event::Changed(stored) => (stored, false),
            Event::Deleted(stored) => (stored, true),
        };
        let before = self.log[..position]
            .iter()
            .rev()
            .find_map(|event| match event {
                Event::Changed(before) if before.version.uid == stored.version.uid => Some(before),
                _ => None,
            });
        let was_selected = before.is_some_and(|before| names(&before.spec, node));
        match !is_deleted && names(&stored.spec, node) {
            true => Some(Event::Changed(stored.clone())),
            false => was_selected.then(|| {
                let spec = before.map(|before| before.spec.clone());
                Event::Deleted(Stored {
                    version: stored.version.clone(),
                    spec: spec.unwrap_or_else(|| stored.spec.clone()),
                })
            }),
        }
    }

    /// The conflict about `subject` that is not over.
    pub(super) fn open_conflict(&self, subject: Subject) -> Option<&ConflictSpec> {
        let stored = self.conflicts.get(&subject.object_name())?;
        Some(&stored.spec).filter(|spec| !spec.is_resolved())
    }

    /// Another writer replaces this conflict, whatever is there.
    pub(super) fn write_conflict(&mut self, spec: ConflictSpec) {
        let subject = spec.address;
        let before = self.conflicts.get(&subject.object_name());
        let request = match before.map(|stored| stored.version.clone()) {
            Some(version) => Request::ReplaceConflict(version, spec),
            None => Request::CreateConflict(spec),
        };
        self.apply(subject, &request);
    }

    pub(super) fn delete_conflict(&mut self, name: &str) {
        if let Some(mut stored) = self.conflicts.remove(name) {
            self.revision += 1;
            stored.version.resource_version = self.revision.to_string();
            self.log.push(Event::Deleted(stored));
        }
    }

    /// The Node is deleted; its claims with it, and the conflicts without a claimant whose Node is left.
    pub(super) fn delete_node(&mut self, node: &str) {
        self.nodes.remove(node);
        self.claims
            .retain(|_, stored| stored.spec.party.node != node);
        let names: Vec<_> = self.conflicts.keys().cloned().collect();
        for name in names {
            self.collect_conflict(&name);
        }
    }

    /// The garbage collector deletes a conflict none of whose owners exists: the Nodes of its claimants.
    fn collect_conflict(&mut self, name: &str) {
        let is_owned = |spec: &ConflictSpec| {
            let mut present = spec.claimants.iter().filter(|c| c.left.is_none());
            present.any(|c| self.nodes.contains_key(&c.party.node))
        };
        if !is_owned(&self.conflicts[name].spec) {
            self.delete_conflict(name);
        }
    }

    fn put_conflict(
        &mut self,
        name: String,
        version: Option<&Version>,
        spec: &ConflictSpec,
    ) -> Outcome {
        let mut spec = spec.clone();
        if self.knows_no_rights {
            spec.claimants.iter_mut().for_each(|c| c.rightful = None);
        }
        spec.cause.take_if(|_| self.knows_no_causes);
        if let Some(unchanged) = self.conflicts.get(&name).filter(|have| have.spec == spec) {
            return Outcome::Conflict(unchanged.clone());
        }
        let stored = self.stored(version, spec);
        self.conflicts.insert(name.clone(), stored.clone());
        self.log.push(Event::Changed(stored.clone()));
        // What a removed node sent may arrive after its Node was deleted. A resolved one is owned by the Node of its writer.
        if !stored.spec.is_resolved() {
            self.collect_conflict(&name);
        }
        Outcome::Conflict(stored)
    }

    fn stored<T>(&mut self, version: Option<&Version>, spec: T) -> Stored<T> {
        self.revision += 1;
        let uid = version.map_or_else(|| format!("uid-{}", self.revision), |v| v.uid.clone());
        Stored {
            version: Version {
                uid,
                resource_version: self.revision.to_string(),
            },
            spec,
        }
    }
}
