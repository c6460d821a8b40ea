//! The rows of the table about the state of `host-local`.

use super::*;

impl Table<'_> {
    pub(super) fn about_host_local(&self) -> Option<Cause> {
        let PoolState::HostLocal {
            directory, lock, ..
        } = &self.pool?.state
        else {
            return None;
        };
        if let Some(cause) = self.wiped() {
            return Some(cause);
        }
        let is_older = |file: &Known<FileFacts>, created: UnixTime| match file {
            Known::Value(file, _) => file.born.is_some_and(|born| born <= created),
            _ => false,
        };
        let is_released = self.victims().iter().any(|pod| {
            let Some(created) = pod.given_from else {
                return false;
            };
            self.is_pools(pod) == Some(true)
                && is_older(directory, created)
                && (is_older(lock, created) || lock.is_absent())
        });
        is_released.then_some(Cause::ReleasedInUse)
    }

    fn wiped(&self) -> Option<Cause> {
        let live = self.pool?.live_pods.value()?;
        let node = &self.facts.node;
        for pod in self.victims() {
            let Some(created) = pod.given_by else {
                continue;
            };
            let reset_took_result = pod.result_missing
                && self.facts.overlapping_networks.is_absent()
                && node
                    .var_lib_cni_born
                    .value()
                    .is_some_and(|born| *born > created);
            if self.is_pools(pod) != Some(true) && !reset_took_result {
                continue;
            }
            if let Some((at, is_seen)) = self.lost_at(created)
                && (is_seen || live.without_allocation >= 2)
            {
                return Some(self.refined(created, at, is_seen));
            }
        }
        None
    }

    /// When the reservations of the pod and of others went, and whether the agent saw that.
    fn lost_at(&self, created: UnixTime) -> Option<(Time, bool)> {
        let pool = self.pool?;
        let live = pool.live_pods.value()?;
        let PoolState::HostLocal {
            directory,
            lock,
            removals,
            ..
        } = &pool.state
        else {
            return None;
        };
        let all: &[Removal] = removals.value().map_or(&[], Vec::as_slice);
        let ours = RemovedItem::Reservation(self.facts.address);
        let mut own: Time = None;
        let mut seen: Time = None;
        for removal in all.iter().filter(|removal| removal.at > created) {
            let is_whole = match removal.item {
                RemovedItem::Directory | RemovedItem::Lock => true,
                item if item == ours => {
                    own = Some(own.map_or(removal.at, |own| own.min(removal.at)));
                    let together = all
                        .iter()
                        .filter(|other| matches!(other.item, RemovedItem::Reservation(_)))
                        .filter(|other| other.at.0.abs_diff(removal.at.0) <= 60 * SECOND)
                        .count();
                    live.without_allocation * 2 > live.total
                        && together >= 2
                        && together * 2 >= live.without_allocation
                }
                _ => false,
            };
            if is_whole {
                seen = Some(seen.map_or(removal.at, |seen| seen.min(removal.at)));
            }
        }
        // Others may have gone shortly before.
        while let Some(first) = seen
            && let Some(before) = all.iter().find(|other| {
                other.at > created && other.at < first && other.at.0 + 5 * SECOND >= first.0
            })
        {
            seen = Some(before.at);
        }
        let born = |file: &Known<FileFacts>| {
            let born = file.value().and_then(|file| file.born);
            born.filter(|born| *born > created)
        };
        let (at, is_seen) = if seen.is_some() {
            (seen, true)
        } else if directory.is_absent() {
            (None, false)
        } else {
            (Some(born(directory).or_else(|| born(lock))?), false)
        };
        let was_released = own.is_some_and(|own| match at {
            Some(at) => at.0.abs_diff(own.0) > 60 * SECOND,
            None => true,
        });
        (!was_released).then_some((at, is_seen))
    }

    fn refined(&self, created: UnixTime, at: Time, is_seen: bool) -> Cause {
        let Some(PoolState::HostLocal { filesystem, .. }) = self.pool.map(|pool| &pool.state)
        else {
            return Cause::Unknown;
        };
        let Some(at) = at else {
            return Cause::IpamStateWiped;
        };
        let node = &self.facts.node;
        let minutes = |from: UnixTime, to: UnixTime| (to.0 - from.0) / (60 * SECOND);
        let between = |time: &Known<UnixTime>| {
            let time = time.value().copied();
            time.filter(|time| created < *time && *time <= at)
        };
        let is_volatile = matches!(
            filesystem.value(),
            Some(Filesystem::Tmpfs | Filesystem::Overlay)
        );
        let booted = between(&node.booted);
        let runtime = between(&node.runtime_started);
        if !is_seen && is_volatile && booted.is_some() {
            return Cause::IpamStateNotPersistent;
        }
        let young = |born: &Known<UnixTime>| {
            let born = born.value().copied();
            born.map(|born| born > created && born.0.abs_diff(at.0) <= 600 * SECOND)
        };
        let configuration = [young(&node.etc_cni_born), young(&node.opt_cni_born)];
        let is_cleaned =
            configuration.contains(&Some(true)) && !configuration.contains(&Some(false));
        if is_cleaned || young(&node.var_lib_cni_born) == Some(true) {
            return Cause::NodeReset;
        }
        let is_recent = |time: Time| time.is_some_and(|time| minutes(time, at) <= 10);
        if !is_seen && (is_recent(booted) || is_volatile && is_recent(runtime)) {
            return Cause::IpamStateNotPersistent;
        }
        Cause::IpamStateWiped
    }

    pub(super) fn is_likely_wiped(&self) -> bool {
        let Some(pool) = self.pool else { return false };
        let PoolState::HostLocal {
            directory, lock, ..
        } = &pool.state
        else {
            return false;
        };
        let live = pool.live_pods.value();
        let most =
            live.is_some_and(|l| l.without_allocation >= 2 && l.without_allocation * 2 > l.total);
        let born = |file: &Known<FileFacts>| file.value().and_then(|file| file.born);
        let is_old = |pod: &Pod| {
            let Some(created) = pod.given_from else {
                return false;
            };
            let is_before = |file| born(file).is_some_and(|born| born <= created);
            is_before(directory) && (lock.is_absent() || is_before(lock))
        };
        let alone = self.facts.overlapping_networks.is_absent();
        most && self.victims().iter().any(|pod| {
            let origin = self.is_pools(pod);
            !is_old(pod) && (origin == Some(true) || origin.is_none() && alone)
        })
    }
}
