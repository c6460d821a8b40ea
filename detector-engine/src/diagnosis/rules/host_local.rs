//! The state of `host-local` is gone: wiped, lost in a restart, or cleaned with the node.
//!
//! The table names tmpfs as proof of `ipam_state_not_persistent`. Here a boot or a restart between is needed as well: a directory on
//! tmpfs that somebody deleted while everything ran was wiped.

use std::time::Duration;

use super::Proof;
use crate::diagnosis::{
    Evidence,
    facts::{Facts, FileFacts, Filesystem, PoolFacts, PoolState, Removal, RemovedItem},
    known::{Known, UnixTime},
    text::evidence,
};

/// Directories that are younger than the pods and this close to each other were deleted by one clean-up; a restart that was this short
/// before was its reason.
const ONE_INCIDENT: Duration = Duration::from_mins(10);

/// Files that went within this time were deleted together.
const ONE_DELETION: Duration = Duration::from_mins(1);
/// The most time between two of them, of which a read of the directory in the middle shows some.
const BETWEEN_DELETIONS: Duration = Duration::from_secs(5);

/// `host-local`'s part of a pool.
struct HostLocal<'f> {
    directory: &'f Known<FileFacts>,
    lock: &'f Known<FileFacts>,
    filesystem: &'f Known<Filesystem>,
    removals: &'f Known<Vec<Removal>>,
    pool: &'f PoolFacts,
}

impl<'f> HostLocal<'f> {
    fn of(facts: &'f Facts) -> Option<Self> {
        let pool = facts.pool.value()?;
        match &pool.state {
            PoolState::HostLocal {
                directory,
                lock,
                filesystem,
                removals,
            } => Some(Self {
                directory,
                lock,
                filesystem,
                removals,
                pool,
            }),
            _ => None,
        }
    }

    fn pods_without_reservation(&self) -> Option<usize> {
        Some(self.pool.live_pods.value()?.without_allocation)
    }

    fn most_pods_lack_reservations(&self) -> bool {
        let live = self.pool.live_pods.value();
        live.is_some_and(|l| l.without_allocation >= 2 && l.without_allocation * 2 > l.total)
    }

    /// When the agent saw the reservation of the address go, after `set_up`.
    fn own_removal(&self, facts: &Facts, set_up: UnixTime) -> Option<UnixTime> {
        let removals = self.removals.value()?.iter();
        let ours = removals.filter(|removal| {
            removal.item == RemovedItem::Reservation(facts.address) && removal.at > set_up
        });
        ours.map(|removal| removal.at).min()
    }

    /// Whether the reservations of most pods went together with one that went at `at`.
    fn is_one_of_many(&self, at: UnixTime) -> bool {
        let is_together = |removal: &&Removal| {
            let distance = removal.at.0.abs_diff(at.0);
            matches!(removal.item, RemovedItem::Reservation(_)) && distance <= nanos(ONE_DELETION)
        };
        let removals = self.removals.value().into_iter().flatten();
        let together = removals.filter(is_together).count();
        let without = self.pods_without_reservation().unwrap_or_default();
        self.most_pods_lack_reservations() && together >= 2 && together * 2 >= without
    }

    /// The first deletion after `set_up` that the agent saw and that took more than one reservation. All addresses have the time of
    /// the first that went.
    fn seen_deletion(&self, facts: &Facts, set_up: UnixTime) -> Option<Deletion> {
        let (removals, source) = self.removals.found()?;
        let is_whole = |removal: &&Removal| match removal.item {
            RemovedItem::Directory | RemovedItem::Lock => true,
            RemovedItem::Reservation(address) => {
                address == facts.address && self.is_one_of_many(removal.at)
            }
        };
        let after = removals.iter().filter(|removal| removal.at > set_up);
        let first = after.clone().filter(is_whole);
        let first = first.min_by_key(|removal| removal.at)?;
        let mut times: Vec<_> = after.map(|removal| removal.at).collect();
        times.sort_unstable();
        let before = times.into_iter().rev().filter(|at| *at < first.at);
        let began = before.fold(first.at, |began, at| {
            let is_together = began.0 - at.0 <= nanos(BETWEEN_DELETIONS);
            if is_together { at } else { began }
        });
        Some(Deletion {
            at: Some(began),
            is_seen: true,
            evidence: evidence::removal(*first, source),
        })
    }

    /// The deletion that took the reservation of the address, which a pod has had since `set_up`.
    fn deletion(&self, facts: &Facts, set_up: UnixTime) -> Option<Deletion> {
        let seen = self.seen_deletion(facts, set_up);
        let deletion = seen.or_else(|| self.left_deletion(set_up))?;
        // It was released at another time.
        let released = self.own_removal(facts, set_up);
        let is_another = released.is_some_and(|released| {
            let at = deletion.at.unwrap_or(UnixTime(u64::MAX));
            at.0.abs_diff(released.0) > nanos(ONE_DELETION)
        });
        (!is_another).then_some(deletion)
    }

    /// A deletion after `set_up` that is seen from what is there.
    fn left_deletion(&self, set_up: UnixTime) -> Option<Deletion> {
        let is_younger = |file: &Known<FileFacts>| {
            let born = file.value()?.born?;
            (born > set_up).then_some(born)
        };
        let (at, evidence) = if self.directory.is_absent() {
            (None, evidence::file("the directory", self.directory))
        } else if let Some(born) = is_younger(self.directory) {
            (Some(born), evidence::file("the directory", self.directory))
        } else {
            let born = is_younger(self.lock)?;
            (Some(born), evidence::file("its lock", self.lock))
        };
        Some(Deletion {
            at,
            is_seen: false,
            evidence,
        })
    }
}

struct Deletion {
    at: Option<UnixTime>,
    is_seen: bool,
    evidence: Option<Evidence>,
}

/// A pod's reservation that was deleted with those of others.
struct Wipe<'f> {
    host_local: HostLocal<'f>,
    victim: usize,
    set_up: UnixTime,
    deletion: Deletion,
}

impl<'f> Wipe<'f> {
    fn find(facts: &'f Facts) -> Option<Self> {
        let host_local = HostLocal::of(facts)?;
        let is_alone = host_local.pods_without_reservation()? < 2;
        let (victim, set_up, deletion) = facts.victims().find_map(|victim| {
            let set_up = facts.set_up(victim)?.latest;
            if !was_given_by_pool(facts, victim, set_up) {
                return None;
            }
            let deletion = host_local.deletion(facts, set_up)?;
            (deletion.is_seen || !is_alone).then_some((victim, set_up, deletion))
        })?;
        Some(Self {
            host_local,
            victim,
            set_up,
            deletion,
        })
    }

    fn proof(
        self,
        facts: &Facts,
        since: Option<UnixTime>,
        more: impl IntoIterator<Item = Option<Evidence>>,
    ) -> Proof {
        let evidence = [
            self.deletion.evidence,
            evidence::sandbox(facts, self.victim),
            evidence::configuration(facts, self.victim),
            evidence::live_pods(self.host_local.pool),
        ];
        Proof::of_pool(since, evidence.into_iter().chain(more)).and(evidence::owners(facts))
    }

    /// Births that belong to the same clean-up.
    fn is_as_young(&self, born: &Known<UnixTime>) -> Option<bool> {
        let at = self.deletion.at?;
        let born = *born.value()?;
        Some(born > self.set_up && born.0.abs_diff(at.0) <= nanos(ONE_INCIDENT))
    }

    fn is_volatile(&self) -> bool {
        let filesystem = self.host_local.filesystem.value();
        filesystem.is_some_and(|filesystem| *filesystem != Filesystem::Disk)
    }

    fn is_between(&self, at: &Known<UnixTime>) -> bool {
        let deleted = self.deletion.at;
        at.value()
            .zip(deleted)
            .is_some_and(|(&at, deleted)| self.set_up < at && at <= deleted)
    }

    fn is_shortly_before(&self, at: &Known<UnixTime>) -> bool {
        let deleted = self.deletion.at;
        let is_short = at
            .value()
            .zip(deleted)
            .is_some_and(|(at, deleted)| deleted.0.saturating_sub(at.0) <= nanos(ONE_INCIDENT));
        is_short && self.is_between(at)
    }

    /// Whether a boot emptied the file system.
    fn is_emptied_by_boot(&self, facts: &Facts) -> bool {
        !self.deletion.is_seen && self.is_volatile() && self.is_between(&facts.node.booted)
    }

    fn is_lost_in_restart(&self, facts: &Facts) -> bool {
        // A restart of the runtime empties a file system only if the node is a container, and leaves a disk alone.
        self.is_emptied_by_boot(facts)
            || !self.deletion.is_seen
                && (self.is_shortly_before(&facts.node.booted)
                    || self.is_volatile() && self.is_shortly_before(&facts.node.runtime_started))
    }

    /// The births of what was cleaned with the node.
    fn cleaned(&self, facts: &Facts) -> Option<Vec<Evidence>> {
        let node = &facts.node;
        let births = [
            ("/etc/cni", &node.etc_cni_born),
            ("/opt/cni", &node.opt_cni_born),
            ("/var/lib/cni", &node.var_lib_cni_born),
        ];
        let [etc, opt, var] = births.map(|(_, born)| self.is_as_young(born));
        let is_configuration_young =
            etc != Some(false) && opt != Some(false) && etc.or(opt).is_some();
        let young = births
            .iter()
            .filter(|(_, born)| self.is_as_young(born) == Some(true))
            .filter_map(|(what, born)| evidence::birth(what, born));
        (is_configuration_young || var == Some(true)).then(|| young.collect())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether the pod's reservation was in this pool: its CNI result says so, or that was deleted with all of `/var/lib/cni` and there is
/// no other network that could have given the address.
fn was_given_by_pool(facts: &Facts, index: usize, set_up: UnixTime) -> bool {
    let var_lib_cni = facts.node.var_lib_cni_born.value();
    facts.is_from_pool(index) == Some(true)
        || (facts.claimants[index].cni_results.is_absent()
            && var_lib_cni.is_some_and(|born| *born > set_up)
            && facts.overlapping_networks.is_absent())
}

pub(super) fn state_was_deleted(facts: &Facts) -> Option<Proof> {
    let wipe = Wipe::find(facts)?;
    let since = wipe.deletion.at;
    Some(wipe.proof(facts, since, []))
}

pub(super) fn most_pods_lack_reservations(facts: &Facts) -> Option<Proof> {
    let host_local = HostLocal::of(facts)?;
    if !host_local.most_pods_lack_reservations() {
        return None;
    }
    let victim = facts.victims().find(|&victim| {
        let is_from_pool = facts.is_from_pool(victim);
        let is_older_state = host_local
            .pool
            .state_since()
            .zip(facts.set_up(victim))
            .is_some_and(|(since, set_up)| since <= set_up.earliest);
        !is_older_state
            && (is_from_pool == Some(true)
                || is_from_pool.is_none() && facts.overlapping_networks.is_absent())
    })?;
    let evidence = [
        evidence::live_pods(host_local.pool),
        evidence::sandbox(facts, victim),
    ];
    Some(Proof::of_pool(None, evidence).and(evidence::owners(facts)))
}

/// The pod alone lacks its reservation, and that is not because it was the only one when all were deleted.
pub(super) fn other_pods_have_reservations(facts: &Facts) -> bool {
    let Some(host_local) = HostLocal::of(facts) else {
        return false;
    };
    let is_deleted = || {
        let mut set_ups = facts.victims().filter_map(|victim| facts.set_up(victim));
        set_ups.any(|set_up| host_local.deletion(facts, set_up.latest).is_some())
    };
    let without = host_local.pods_without_reservation();
    without.is_some_and(|without| without < 2) && !is_deleted()
}

pub(super) fn state_was_lost_in_restart(facts: &Facts) -> Option<Proof> {
    let wipe = Wipe::find(facts)?;
    if !wipe.is_lost_in_restart(facts) {
        return None;
    }
    let node = &facts.node;
    let starts = [
        ("the node booted", &node.booted),
        ("the container runtime was started", &node.runtime_started),
    ];
    let between = starts.iter().filter(|(_, at)| wipe.is_between(at));
    // A boot starts the runtime as well.
    let since = between.clone().find_map(|(_, at)| at.value().copied());
    let filesystem = evidence::filesystem(wipe.host_local.filesystem);
    let starts = between.map(|(what, at)| evidence::start(what, at));
    let more: Vec<_> = [filesystem].into_iter().chain(starts).collect();
    Some(wipe.proof(facts, since, more))
}

pub(super) fn nothing_restarted(facts: &Facts) -> bool {
    let Some(wipe) = Wipe::find(facts) else {
        return other_pods_have_reservations(facts);
    };
    let is_before = |at: &Known<UnixTime>| at.value().is_some_and(|at| *at <= wipe.set_up);
    wipe.deletion.is_seen || is_before(&facts.node.booted) && is_before(&facts.node.runtime_started)
}

pub(super) fn node_was_cleaned(facts: &Facts) -> Option<Proof> {
    let wipe = Wipe::find(facts)?;
    if wipe.is_emptied_by_boot(facts) {
        return None;
    }
    let cleaned = wipe.cleaned(facts)?;
    let births = cleaned.iter().filter_map(|evidence| evidence.at);
    let since = births.chain(wipe.deletion.at).min();
    Some(wipe.proof(facts, since, []).and(cleaned))
}

pub(super) fn node_was_not_cleaned(facts: &Facts) -> bool {
    let Some(wipe) = Wipe::find(facts) else {
        return other_pods_have_reservations(facts);
    };
    let node = &facts.node;
    let is_old = |born: &Known<UnixTime>| wipe.is_as_young(born) == Some(false);
    is_old(&node.var_lib_cni_born) && (is_old(&node.etc_cni_born) || is_old(&node.opt_cni_born))
}
