//! Hardware addresses that are not where they belong: two pods with one in the same L2 domain
//! (`mac_duplicate`), and one that was learned behind another port than its pod's (`mac_moved`).
//!
//! Invariant: what is watched is bounded by the pod devices: each hardware address is that of a
//! pod's interface.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use crate::{
    limits::expiry::ExpiryQueue,
    model::{
        AnomalyCause, AnomalyKind, Claimant, DeviceKey, IfIndex, Mac, ResolveReason, Timestamp,
    },
    track::{
        Step,
        anomaly::lifecycle::{Anomalies, AnomalyDetails, AnomalyKey},
    },
};

/// A `mac_moved` is resolved when the hardware address has been back for this time: with each frame
/// of its pod it is, and with each of the other port it is not.
const BACK_FOR: Duration = Duration::from_secs(60);
/// When an anomaly is tried again that was rejected at a bound.
const RETRY: Duration = Duration::from_secs(60);

/// A hardware address in an L2 domain: a bridge with one VLAN in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MacKey {
    pub(crate) mac: Mac,
    pub(crate) bridge: IfIndex,
    pub(crate) vlan: Option<u16>,
}

/// What is wrong with a hardware address.
#[derive(Debug)]
pub(crate) struct MacFault {
    /// The port behind which it was learned (`mac_moved`); `None` if several pods have it
    /// (`mac_duplicate`).
    pub(crate) learned_on: Option<IfIndex>,
    /// The device whose pod has the hardware address.
    pub(crate) device: (Claimant, DeviceKey),
    /// The other devices whose pods have it, or the one behind which it was learned.
    pub(crate) others: Vec<Claimant>,
    /// An address of the first device.
    pub(crate) address: IpAddr,
    /// The name of the bridge.
    pub(crate) bridge: String,
}

#[derive(Debug)]
struct Watch {
    kind: AnomalyKind,
    /// When it was first wrong.
    began: Timestamp,
    /// Since when it has been wrong without interruption; when it was last right, if it is now.
    since: Timestamp,
    learned_on: Option<IfIndex>,
    /// When it was learned behind another port, at most [`Settings::flap_moves`](crate::Settings::flap_moves) times.
    moves: Vec<Timestamp>,
    open: Option<AnomalyKey>,
}

/// The hardware addresses that are, or recently were, not where they belong.
#[derive(Debug, Default)]
pub(crate) struct Macs {
    watches: BTreeMap<MacKey, Watch>,
    checks: ExpiryQueue<MacKey>,
}

impl Macs {
    /// The L2 domains in which a hardware address is watched.
    pub(crate) fn watched(&self, mac: Mac) -> impl Iterator<Item = MacKey> + '_ {
        let from = MacKey {
            mac,
            bridge: IfIndex::MIN,
            vlan: None,
        };
        let watches = self.watches.range(from..);
        watches
            .map(|(key, _)| *key)
            .take_while(move |key| key.mac == mac)
    }

    /// The device that the open anomaly about a hardware address names.
    pub(crate) fn named_device(&self, key: &MacKey) -> Option<DeviceKey> {
        self.watches.get(key)?.open?.device
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.checks.next_due()
    }

    /// The next hardware address whose check is due by `now`.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<Mac> {
        self.checks.pop_due(now).map(|key| key.mac)
    }
}

impl Anomalies {
    /// Something is wrong with a hardware address now. It is an anomaly once that has lasted, since
    /// machines migrate and pods are replaced, or once it happened often, as when both sides send
    /// (RFC 7432 section 15.1 has the same problem and solution).
    pub(crate) fn mac_wrong(&mut self, key: MacKey, fault: MacFault, step: &mut Step<'_>) {
        let kind = fault.kind();
        let is_other = |watch: &Watch| watch.kind != kind;
        if self.macs.watches.get(&key).is_some_and(is_other) {
            self.end_mac(key, ResolveReason::MacUnique, step);
        }
        let watch = self.macs.watches.entry(key).or_insert_with(|| Watch {
            kind,
            began: step.now,
            since: step.now,
            learned_on: None,
            moves: Vec::new(),
            open: None,
        });
        if watch.learned_on != fault.learned_on {
            watch.learned_on = fault.learned_on;
            watch.since = step.now;
            watch
                .moves
                .retain(|moved| step.now.since(*moved) < self.settings.flap_window);
            watch.moves.push(step.now);
            let surplus = watch.moves.len().saturating_sub(self.settings.flap_moves);
            watch.moves.drain(..surplus);
        }
        if watch.open.is_some() {
            return;
        }
        // Not before the grace in any case: the hardware address of an interface that changed may
        // not have been read yet.
        let is_flapping = watch.moves.len() >= self.settings.flap_moves;
        let since = if is_flapping {
            watch.began
        } else {
            watch.since
        };
        let due = since + self.settings.anomalies.mac_grace;
        if step.now < due {
            self.macs.checks.schedule(key, due);
            return;
        }
        let (cause, detail) = fault.describe(key.mac);
        let (device, id) = fault.device;
        let anomaly = AnomalyKey {
            device: Some(id),
            ..AnomalyKey::of(kind, fault.address)
        };
        let holders = [vec![device], fault.others].concat();
        let details = AnomalyDetails::new(cause, holders, detail);
        self.raise(anomaly, details, step);
        if self.is_open(&anomaly) {
            if let Some(watch) = self.macs.watches.get_mut(&key) {
                watch.open = Some(anomaly);
            }
        } else {
            self.macs.checks.schedule(key, step.now + RETRY);
        }
    }

    /// Nothing is wrong with a hardware address now. `gone`: why it is no pod's there any more.
    pub(crate) fn mac_right(
        &mut self,
        key: MacKey,
        gone: Option<ResolveReason>,
        step: &mut Step<'_>,
    ) {
        let Some(watch) = self.macs.watches.get_mut(&key) else {
            return;
        };
        if gone.is_some() || watch.kind == AnomalyKind::MacDuplicate {
            let reason = gone.unwrap_or(ResolveReason::MacUnique);
            self.end_mac(key, reason, step);
            return;
        }
        if watch.learned_on.take().is_some() {
            watch.since = step.now;
        }
        let wait = match watch.open {
            Some(_) => BACK_FOR,
            // Further moves may follow.
            None => self.settings.flap_window,
        };
        let due = watch.since + wait;
        if step.now < due {
            self.macs.checks.schedule(key, due);
        } else {
            self.end_mac(key, ResolveReason::MacUnique, step);
        }
    }

    fn end_mac(&mut self, key: MacKey, reason: ResolveReason, step: &mut Step<'_>) {
        self.macs.checks.cancel(key);
        let watch = self.macs.watches.remove(&key);
        if let Some(anomaly) = watch.and_then(|watch| watch.open) {
            self.resolve(&anomaly, reason, step);
        }
    }
}

impl MacFault {
    fn kind(&self) -> AnomalyKind {
        match self.learned_on {
            Some(_) => AnomalyKind::MacMoved,
            None => AnomalyKind::MacDuplicate,
        }
    }

    /// The cause, and one sentence.
    fn describe(&self, mac: Mac) -> (AnomalyCause, String) {
        let device = &self.device.0.device;
        let others: Vec<_> = self.others.iter().map(|other| &*other.device).collect();
        let others = others.join(", ");
        let bridge = &self.bridge;
        match self.learned_on {
            Some(_) => (
                AnomalyCause::LearnedElsewhere,
                format!(
                    "{bridge} learned the MAC address of the pod on {device}, {mac}, on {others}: the pod's packets go there"
                ),
            ),
            None => (
                AnomalyCause::SeveralPorts,
                format!(
                    "the pods on {device} and {others} have one MAC address, {mac}, on {bridge}: whichever sent last receives the packets of both"
                ),
            ),
        }
    }
}
