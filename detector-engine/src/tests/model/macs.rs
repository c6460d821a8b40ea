//! Hardware addresses on two ports, recomputed (`docs/detection-rules.md`, sections 14.8 and 14.9).

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use crate::tests::model::{
    expected::ModelClaimant,
    world::{WINDOW, World},
};

/// How long a fault lasts before it is reported.
const GRACE: Duration = Duration::from_secs(5);
/// How many moves are reported, and how long an address that moved is watched after the last one.
const MOVES: usize = 5;
/// How long a hardware address has to be back.
const BACK_FOR: Duration = Duration::from_secs(60);

/// A hardware address of a pod in an L2 domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MacPlace {
    pub(super) bridge: IfIndex,
    pub(super) vlan: Option<u16>,
    pub(super) mac: Mac,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MacState {
    Right,
    /// Several pods have it.
    Shared,
    /// It was learned behind this port, which is another pod's.
    Behind(IfIndex),
}

/// What the agent saw of the hardware addresses that pods have now.
#[derive(Debug, Default)]
pub(super) struct MacHistories(BTreeMap<MacPlace, Vec<(Timestamp, MacState)>>);

impl World {
    /// The ports with a carrier whose pods have a hardware address.
    fn ports_with_mac(&self) -> BTreeMap<MacPlace, Vec<IfIndex>> {
        let mut ports = BTreeMap::<_, Vec<_>>::new();
        for (ifindex, device) in &self.links {
            let has_carrier = device.link.up && device.link.running;
            if let Some(mac) = device.known_mac.filter(|_| has_carrier)
                && let Some(bridge) = self.bridge_of(*ifindex)
            {
                let vlan = self.pvid_at(bridge, *ifindex);
                let place = MacPlace { bridge, vlan, mac };
                ports.entry(place).or_default().push(*ifindex);
            }
        }
        ports
    }

    pub(super) fn mac_states(&self) -> BTreeMap<MacPlace, MacState> {
        let ports = self.ports_with_mac().into_iter();
        ports
            .map(|(place, ports)| (place, self.mac_state(place, &ports)))
            .collect()
    }

    fn mac_state(&self, place: MacPlace, ports: &[IfIndex]) -> MacState {
        let pods: Vec<_> = ports.iter().copied().map(ModelClaimant::Device).collect();
        if self.pod_count(pods.iter()) > 1 {
            return MacState::Shared;
        }
        let is_original = |port: &IfIndex| !self.links[port].has_changed_mac;
        // The forwarding entries of the model are in no VLAN.
        let learned = self.fdb.get(&(place.bridge, place.mac));
        let learned = learned.filter(|entry| !entry.aged && place.vlan.is_none());
        match learned.map(|entry| entry.port) {
            Some(port)
                if ports.iter().any(is_original)
                    && !self.is_one_pod(pods[0], ModelClaimant::Device(port)) =>
            {
                MacState::Behind(port)
            }
            _ => MacState::Right,
        }
    }

    /// Whether an anomaly that is raised now names the devices that it concerns.
    pub(super) fn names_its_devices(&self, anomaly: &Anomaly) -> bool {
        let Some(holder) = &anomaly.holder else {
            return false;
        };
        let also: BTreeSet<_> = anomaly.also_on.iter().map(String::as_str).collect();
        let name = |port: &IfIndex| self.links[port].link.name.as_str();
        let is_original = |port: &IfIndex| !self.links[port].has_changed_mac;
        self.ports_with_mac().iter().any(|(place, ports)| {
            let others = match self.mac_state(*place, ports) {
                MacState::Right => return false,
                MacState::Shared => ports.clone(),
                MacState::Behind(port) => vec![port],
            };
            let others = others.iter().filter(|port| **port != holder.ifindex);
            Some(place.mac) == holder.mac
                && ports.contains(&holder.ifindex)
                && (is_original(&holder.ifindex) || !ports.iter().any(is_original))
                && others.map(name).collect::<BTreeSet<_>>() == also
        })
    }
}

impl MacHistories {
    /// The state at `now`; the agent has seen every change of it.
    pub(super) fn record(&mut self, states: &BTreeMap<MacPlace, MacState>, now: Timestamp) {
        self.0.retain(|place, _| states.contains_key(place));
        for (place, state) in states {
            let history = self.0.entry(*place).or_default();
            if history.last().is_none_or(|(_, last)| last != state) {
                history.push((now, *state));
            }
        }
    }

    /// What was before is over, or not known.
    pub(super) fn forget(&mut self, place: &MacPlace) {
        self.0.remove(place);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The kinds of the anomalies that are open at `now`, with bridge and hardware address.
    pub(super) fn open(&self, now: Timestamp) -> Vec<(AnomalyKind, IfIndex, Mac)> {
        let mut open: Vec<_> = self
            .0
            .iter()
            .filter_map(|(place, history)| {
                Some((open_kind(history, now)?, place.bridge, place.mac))
            })
            .collect();
        open.sort();
        open
    }
}

fn open_kind(history: &[(Timestamp, MacState)], now: Timestamp) -> Option<AnomalyKind> {
    let (since, state) = history.last()?;
    if *state == MacState::Shared {
        return (now.since(*since) >= GRACE).then_some(AnomalyKind::MacDuplicate);
    }
    let shared = history.iter().rposition(|(_, s)| *s == MacState::Shared);
    let history = &history[shared.map_or(0, |last| last + 1)..];
    let ends = history.iter().skip(1).map(|(at, _)| *at).chain([now]);
    let mut is_open = false;
    let mut moves: Vec<Timestamp> = Vec::new();
    for ((at, state), end) in history.iter().zip(ends) {
        if let MacState::Behind(_) = state {
            moves.push(*at);
            let recent = moves.iter().filter(|m| at.since(**m) < WINDOW).count();
            let often = recent >= MOVES && end.since(moves[0]) >= GRACE;
            is_open |= often || end.since(*at) >= GRACE;
        } else if end.since(*at) >= if is_open { BACK_FOR } else { WINDOW } {
            is_open = false;
            moves.clear();
        }
    }
    is_open.then_some(AnomalyKind::MacMoved)
}
