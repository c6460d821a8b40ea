//! Sweeps, recomputed from the open conflicts.

use super::*;

/// A sweep starts here with the second contested address: a sequence has few addresses.
pub(super) const SWEEP_FROM: usize = 2;

/// How long after its raise a sweep is updated first, and after that at most once in which time; and for how long its device has
/// contested few addresses when it ends (`docs/detection-rules.md`, section 14.5).
const FIRST_UPDATE: Duration = Duration::from_secs(1);
const UPDATE_EVERY: Duration = Duration::from_secs(10);
const FEW_FOR: Duration = Duration::from_secs(60);

/// The index of a pod device, and its generation.
type DeviceKey = (IfIndex, u64);

/// The sweeps as their events show them.
#[derive(Default)]
pub(super) struct ReportedSweeps {
    /// When the next event of each may be.
    open: HashMap<AnomalyId, Timestamp>,
    closed: HashSet<AnomalyId>,
    /// Since when each device has contested too few addresses to start a sweep.
    few_since: HashMap<DeviceKey, Timestamp>,
}

impl ReportedSweeps {
    /// Another run of the agent starts to count.
    pub(super) fn restart(&mut self) {
        self.few_since.clear();
    }

    pub(super) fn report(&mut self, effect: &AnomalyEffect, now: Timestamp) -> TestCaseResult {
        match effect {
            AnomalyEffect::Raised(a) if a.kind == AnomalyKind::AddressSweep => {
                prop_assert!(!self.closed.contains(&a.id), "raised again");
                let known = self.open.insert(a.id, now + FIRST_UPDATE);
                prop_assert!(known.is_none(), "raised twice");
            }
            AnomalyEffect::Updated(a) if a.kind == AnomalyKind::AddressSweep => {
                let from = self.open.insert(a.id, now + UPDATE_EVERY);
                prop_assert!(from.is_some_and(|from| now >= from), "updated too early");
            }
            AnomalyEffect::Resolved(a) if a.kind == AnomalyKind::AddressSweep => {
                prop_assert!(self.open.remove(&a.id).is_some(), "resolved unraised");
                prop_assert!(self.closed.insert(a.id), "resolved twice");
            }
            _ => {}
        }
        Ok(())
    }

    /// A sweep has to be found only once the node `is_read`.
    pub(super) fn check(
        &mut self,
        engine: &Engine,
        is_read: bool,
        now: Timestamp,
    ) -> TestCaseResult {
        let open: Vec<_> = engine
            .view()
            .anomalies()
            .into_iter()
            .filter(|a| a.kind == AnomalyKind::AddressSweep)
            .collect();
        let ids: HashSet<_> = open.iter().map(|a| a.id).collect();
        let reported: HashSet<_> = self.open.keys().copied().collect();
        prop_assert_eq!(&reported, &ids, "reported sweeps differ from the open ones");
        let device = |a: &Anomaly| match a.holder.as_ref().map(|holder| holder.id) {
            Some(ClaimantId::Device(ifindex, generation)) => (ifindex, generation),
            other => panic!("a sweep of {other:?}"),
        };
        let exists = |(ifindex, generation): &DeviceKey| {
            let mut found = engine.view().device(*ifindex).into_iter();
            found.any(|device| device.generation == *generation)
        };
        let sweeps: HashMap<_, _> = open.iter().map(|a| (device(a), a.id)).collect();
        let sweeps: HashMap<_, _> = sweeps.into_iter().filter(|(d, _)| exists(d)).collect();

        let mut contested: HashMap<DeviceKey, usize> = HashMap::new();
        for conflict in engine.view().conflicts(now) {
            let by = contesters(&conflict);
            for device in &by {
                *contested.entry(*device).or_default() += 1;
            }
            let of: Vec<_> = by.iter().map(|d| sweeps.get(d)).collect();
            let is_swept = !of.is_empty() && of.iter().all(Option::is_some);
            prop_assert_eq!(conflict.sweep.is_some(), is_swept, "{:?}", conflict);
            prop_assert!(!is_swept || of.contains(&conflict.sweep.as_ref()));
        }
        for sweep in open.iter().filter(|sweep| sweep.resolved_at.is_none()) {
            let measured = sweep.contested.as_ref();
            prop_assert!(
                measured.is_none_or(|c| c.diverted + c.kept <= c.count),
                "{:?}",
                sweep
            );
        }
        for (device, count) in &contested {
            let must_sweep = *count >= SWEEP_FROM && is_read;
            prop_assert!(!must_sweep || sweeps.contains_key(device), "no sweep");
        }
        let few = |d: &DeviceKey| contested.get(d).is_none_or(|count| *count < SWEEP_FROM);
        self.few_since
            .retain(|d, _| sweeps.contains_key(d) && few(d));
        for device in sweeps.keys().filter(|d| few(d)) {
            let since = *self.few_since.entry(*device).or_insert(now);
            prop_assert!(now.since(since) < FEW_FOR, "a sweep outlives its end");
        }
        Ok(())
    }
}

/// Who contests the address of a conflict, without records: claimants that do not have it for certain, except the first one if
/// none has, or the first whose stack is not the kernel's. Nobody, if such a one claimed it before it was assigned.
fn contesters(conflict: &Conflict) -> Vec<DeviceKey> {
    if conflict.kind == ConflictKind::Flapping || conflict.confidence == Confidence::Certain {
        return Vec::new();
    }
    let is_certain = |claimant: &Claimant| {
        claimant.evidence.iter().any(|e| {
            let permanent = EvidenceDetail::State(NudState::Permanent);
            e.kind == EvidenceKind::Address || e.detail == Some(permanent)
        })
    };
    let mut claimants: Vec<_> = conflict.present().collect();
    claimants.sort_by_key(|c| (!c.has_own_stack, c.since));
    let certain: Vec<_> = claimants.iter().filter(|c| is_certain(c)).collect();
    // Several are interfaces of one pod, which had the address before the newest of them.
    let is_taken = matches!(certain[..], [only] if only.is_newest);
    if is_taken && claimants.iter().any(|c| c.has_own_stack) {
        return Vec::new();
    }
    claimants
        .iter()
        .filter(|c| !is_certain(c))
        .skip(usize::from(certain.is_empty()))
        .filter_map(|c| match c.id {
            ClaimantId::Device(ifindex, generation) => Some((ifindex, generation)),
            _ => None,
        })
        .collect()
}
