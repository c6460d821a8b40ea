//! Frames that the agent sees.

use super::*;

impl World {
    /// The agent sees a frame received at `at`. A probe counts only if the address is `contested`.
    pub(in super::super) fn receive_frame(
        &mut self,
        claim: FrameClaim,
        at: Timestamp,
        contested: bool,
    ) -> Option<Observation> {
        let device = self.pod(claim.ifindex)?;
        let removed = device.removed.get(&claim.address);
        let untagged = claim.vlan == Vlan::default();
        let refuted = untagged && removed.is_some_and(|removed| at <= *removed);
        if at >= device.since && !refuted && (!claim.tentative || contested) {
            let key = |c: &FrameClaim| (c.ifindex, c.address, c.vlan, c.kind);
            match self
                .frames
                .iter_mut()
                .find(|h| key(&h.claim) == key(&claim))
            {
                Some(known) => {
                    known.last = known.last.max(at);
                    known.claim.tentative &= claim.tentative;
                }
                None => self.frames.push(SeenFrame { claim, last: at }),
            }
        }
        Some(Observation::Frame(claim))
    }

    /// An expired frame is gone for good, even if the address is assigned afterwards.
    pub(in super::super) fn drop_expired_frames(&mut self) {
        let live: Vec<_> = self.frames.iter().map(|f| self.is_live(f)).collect();
        let mut live = live.into_iter();
        self.frames.retain(|_| live.next() == Some(true));
    }
}
