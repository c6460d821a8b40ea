//! Questions about the present state, which the detection thread answers between two of its rounds.

use std::net::IpAddr;

use tokio::sync::oneshot;

use crate::{
    detect::{Claim, Claimant, ClaimantId, Conflict},
    identify::{Pod, PodAnswer},
};

/// A question. Lists are asked for by address, a few hundred at a time, so that no answer takes long.
#[derive(Debug)]
pub enum Query {
    /// The addresses with an open conflict, the one raised first at the front.
    ConflictAddresses(oneshot::Sender<Vec<IpAddr>>),
    /// The open conflicts of these addresses.
    Conflicts(Vec<IpAddr>, oneshot::Sender<Vec<Named<Conflict>>>),
    /// Every address something is known of.
    Addresses(oneshot::Sender<Vec<IpAddr>>),
    /// The claims of these addresses.
    Claims(Vec<IpAddr>, oneshot::Sender<Vec<Named<Claim>>>),
}

/// Something about claimants, with what is known of their pods at that moment.
#[derive(Clone, Debug)]
pub struct Named<T> {
    /// What it is.
    pub what: T,
    pods: Vec<(ClaimantId, PodAnswer)>,
}

impl Named<Conflict> {
    /// A conflict, with the pod of each claimant.
    pub fn conflict(what: Conflict, pod_of: impl Fn(&Claimant) -> PodAnswer) -> Self {
        let pods = what.claimants.iter().map(|c| (c.id, pod_of(c))).collect();
        Self { what, pods }
    }
}

impl Named<Claim> {
    /// A claim, with the pod of its claimant.
    pub fn claim(what: Claim, pod_of: impl Fn(&Claimant) -> PodAnswer) -> Self {
        let pods = vec![(what.claimant.id, pod_of(&what.claimant))];
        Self { what, pods }
    }
}

impl<T> Named<T> {
    /// What is known of the pod of one of its claimants.
    #[must_use]
    pub fn answer(&self, claimant: &Claimant) -> PodAnswer {
        let found = self.pods.iter().find(|(id, _)| *id == claimant.id);
        found.map_or_else(
            || PodAnswer::Unknown("nobody asked".into()),
            |(_, answer)| answer.clone(),
        )
    }

    /// The pod of one of its claimants, where it is known.
    #[must_use]
    pub fn pod_of(&self, claimant: &Claimant) -> Option<&Pod> {
        self.pods.iter().find_map(|(id, answer)| match answer {
            PodAnswer::Known(pod) if *id == claimant.id => Some(pod.as_ref()),
            _ => None,
        })
    }
}
