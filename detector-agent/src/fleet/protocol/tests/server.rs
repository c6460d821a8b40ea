//! An API server with the semantics that the protocol relies on: names are unique, and writes are conditional on the version.

use std::collections::BTreeMap;

use crate::fleet::{
    Subject,
    objects::{ClaimSpec, ConflictSpec},
    protocol::{NodeState, Outcome, Request, Stored, Version},
};

/// An event of the watch of conflicts.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Changed(Stored<ConflictSpec>),
    Deleted(Stored<ConflictSpec>),
}

#[derive(Debug, Default)]
pub(super) struct Server {
    revision: u64,
    pub(super) claims: BTreeMap<String, Stored<ClaimSpec>>,
    pub(super) conflicts: BTreeMap<String, Stored<ConflictSpec>>,
    pub(super) nodes: BTreeMap<String, NodeState>,
    /// Everything that happened to conflicts; each watch has a position in it.
    pub(super) log: Vec<Event>,
}

impl Server {
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

    /// The conflicts as they were when the log had so many events.
    pub(super) fn conflicts_at(&self, position: usize) -> Vec<Stored<ConflictSpec>> {
        let mut conflicts = BTreeMap::new();
        for event in &self.log[..position] {
            match event {
                Event::Changed(stored) => conflicts.insert(stored.spec.address, stored.clone()),
                Event::Deleted(stored) => conflicts.remove(&stored.spec.address),
            };
        }
        conflicts.into_values().collect()
    }

    /// Somebody else writes this conflict, whatever is there.
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

    /// The Node is deleted; its claims with it.
    pub(super) fn delete_node(&mut self, node: &str) {
        self.nodes.remove(node);
        self.claims
            .retain(|_, stored| stored.spec.party.node != node);
    }

    fn put_conflict(
        &mut self,
        name: String,
        version: Option<&Version>,
        spec: &ConflictSpec,
    ) -> Outcome {
        let stored = self.stored(version, spec.clone());
        self.conflicts.insert(name, stored.clone());
        self.log.push(Event::Changed(stored.clone()));
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
