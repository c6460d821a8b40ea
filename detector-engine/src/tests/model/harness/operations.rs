//! Operations with more than one step or with preconditions.

use super::*;

impl Harness {
    pub(super) fn create(
        &mut self,
        ifindex: IfIndex,
        place: PeerPlace,
        readable: bool,
        master: Option<IfIndex>,
        has: &[IpAddr],
        shared_mac: Option<Mac>,
    ) -> TestCaseResult {
        if self.world.links.contains_key(&ifindex) {
            return Ok(());
        }
        let taken: HashSet<Peer> = self.world.links.values().filter_map(|d| d.peer).collect();
        let first = |nsid| Peer { nsid, ifindex: 2 };
        let fresh = (0..)
            .find(|n| taken.iter().all(|p| p.nsid != *n))
            .map(first);
        let peer_of = |other| self.world.links.get(&other).and_then(|d| d.link.peer);
        let (peer, numbered) = match place {
            PeerPlace::Own { numbered } => (fresh, numbered),
            PeerPlace::SecondInterface(other) => {
                let second = peer_of(other).map(|p| Peer { ifindex: 3, ..p });
                (second.filter(|p| !taken.contains(p)).or(fresh), true)
            }
            PeerPlace::ReusedNetns(other) => (peer_of(other).or(fresh), true),
            PeerPlace::None => (None, true),
        };
        let link = Link {
            is_tap: matches!(place, PeerPlace::None),
            master: master.filter(|m| self.world.is_bridge(*m)),
            ..pod(ifindex)
        };
        let observation = self.world.create(link, peer, numbered);
        if let Some(device) = self.world.links.get_mut(&ifindex) {
            device.readable &= readable;
            device.mac = shared_mac.unwrap_or(device.mac);
            if device.readable {
                // Assigned before the node sees the device, so no event reports it.
                device.ever.extend(has);
                device.addresses.extend(has.iter().map(|a| (*a, false)));
            }
        }
        self.deliver(observation)
    }

    pub(super) fn set_mac(&mut self, ifindex: IfIndex, mac: Mac) -> TestCaseResult {
        match self.stage {
            SyncStage::Synced => self.apply(|w| w.set_mac(ifindex, mac, true)),
            SyncStage::Losing => self.apply(|w| w.set_mac(ifindex, mac, false)),
            // Whether it is the first one that the agent knows depends on what it lost.
            _ => Ok(()),
        }
    }

    /// Whether the removal has the same effect if the agent misses it: no frame and no neighbour
    /// entry depends on it. Only such removals are allowed while out of sync.
    pub(super) fn is_removal_unobservable(&self, address: IpAddr) -> bool {
        let has_frame = self
            .world
            .frames
            .iter()
            .any(|h| h.claim.address == address && h.claim.vlan == Vlan::default());
        let mut entries = self.world.neighbours.iter();
        let has_entry = entries.any(|((_, a), e)| *a == address && e.state != NudState::Permanent);
        !has_frame && !has_entry
    }

    pub(super) fn neighbour(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        mac: Mac,
        state: NudState,
    ) -> TestCaseResult {
        let known = self.world.neighbours.get(&(ifindex, address));
        // A permanent entry is removed before the kernel manages it again.
        if known.is_some_and(|e| e.state == NudState::Permanent) && state != NudState::Permanent {
            return Ok(());
        }
        let known_by_agent = self
            .engine
            .facts()
            .get(address)
            .is_some_and(|f| f.neighbours.iter().any(|n| n.ifindex == ifindex));
        let fresh = known.is_none() && !known_by_agent;
        let lossy = self.stage != SyncStage::Synced && self.stage != SyncStage::Losing;
        if lossy && self.world.is_bridge(ifindex) && !fresh {
            return Ok(());
        }
        // A removal that only a snapshot shows is taken for later than what was seen before the snapshot.
        let device = self.world.links.get(&ifindex);
        let is_removed = device
            .is_some_and(|d| d.ever.contains(&address) && !d.addresses.contains_key(&address));
        if lossy && is_removed {
            return Ok(());
        }
        self.apply(|w| w.neighbour(ifindex, address, mac, state))
    }

    pub(super) fn frame(&mut self, claim: FrameClaim, late: u64) -> TestCaseResult {
        let at = if self.stage == SyncStage::Synced {
            Timestamp(self.world.now.0 - late * MS * u64::from(!claim.tentative))
        } else {
            let Some(device) = self.world.pod(claim.ifindex) else {
                return Ok(());
            };
            let is_same = |d: PodDevice| d.name == device.link.name;
            let known = self
                .engine
                .view()
                .device(claim.ifindex)
                .is_some_and(is_same);
            // The removal of the address from one interface of a pod withdraws the frames on all.
            let mut of_pod = self.world.links.values().filter(|d| {
                let is_same = d.peer.map(|p| p.nsid) == device.peer.map(|p| p.nsid);
                d.serial == device.serial || (d.peer.is_some() && is_same)
            });
            let is_certain = of_pod.all(|d| {
                !d.ever.contains(&claim.address) || d.addresses.contains_key(&claim.address)
            });
            if claim.tentative || !known || !is_certain || self.stage == SyncStage::Losing {
                return Ok(());
            }
            self.world.now
        };
        let contested = claim.tentative && self.world.is_contested(&claim);
        match self.world.receive_frame(claim, at, contested) {
            Some(observation) => self.deliver_at(at, observation),
            None => Ok(()),
        }
    }

    pub(super) fn wait(&mut self, time: Duration) -> TestCaseResult {
        let until = self.world.now + time;
        while let Some(next) = self.engine.next_deadline().filter(|next| *next <= until) {
            self.world.now = self.world.now.max(next);
            let mut effects = Vec::new();
            self.engine.step(
                self.world.now,
                TimedObservation::new(self.world.now, Observation::DeadlineReached),
                &mut effects,
            );
            self.check(effects)?;
        }
        self.world.now = until;
        self.check(Vec::new())
    }
}
