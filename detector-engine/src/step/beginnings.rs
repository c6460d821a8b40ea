//! What is known of when something began that a live update or a snapshot reports for the first time.

use std::net::IpAddr;

use crate::{
    mirror::links::LinkState,
    model::{AssignedAddress, Beginning, Timestamp, UnknownBeginning},
    step::Engine,
};

impl Engine {
    /// Of an address in a pod.
    pub(super) fn address_beginning(
        &self,
        link: &LinkState,
        info: &AssignedAddress,
        at: Timestamp,
        live: bool,
    ) -> Beginning {
        if is_late(info, live) {
            Beginning::unknown(UnknownBeginning::AfterDetection)
        } else if link.awaits_first_read {
            // It may be reported again after it was added, for example when it is no longer tentative.
            Beginning::seen()
        } else if live
            && self.mirror.links.is_complete()
            && link.is_namespace_readable()
            && !self.reads.schedule.is_incomplete(link.link.ifindex)
        {
            Beginning::at(at)
        } else {
            self.unknown_beginning()
        }
    }

    /// Of what a snapshot finds on internal interfaces of a pod.
    pub(super) fn internal_beginning(&self, link: Option<&LinkState>) -> Beginning {
        match link {
            Some(link) if link.awaits_first_read => Beginning::seen(),
            Some(LinkState {
                internal_changed: Some(changed),
                ..
            }) => Beginning {
                unknown: None,
                not_before: Some(*changed),
            },
            _ => self.unknown_beginning(),
        }
    }

    /// Of an address of the node.
    pub(super) fn host_beginning(
        &self,
        info: &AssignedAddress,
        at: Timestamp,
        live: bool,
    ) -> Beginning {
        if is_late(info, live) {
            Beginning::unknown(UnknownBeginning::AfterDetection)
        } else if live && self.mirror.links.is_complete() {
            Beginning::at(at)
        } else {
            self.unknown_beginning()
        }
    }

    /// Of a neighbour entry; `link` is the pod device that it is on.
    pub(super) fn neighbour_beginning(&self, link: Option<&LinkState>, live: bool) -> Beginning {
        let is_first_read = link.is_some_and(|link| link.awaits_first_read);
        if (live && self.mirror.links.is_complete()) || is_first_read {
            Beginning::seen()
        } else {
            self.unknown_beginning()
        }
    }

    /// Of a claim in frames. Where the namespace shows that the pod does not have the address, the claim is the frame's alone,
    /// and began with it, if the device was observed all the time. Elsewhere a pod may have been silent about its address.
    pub(super) fn frame_beginning(
        &self,
        link: &LinkState,
        address: IpAddr,
        at: Timestamp,
    ) -> Beginning {
        let has_address = || {
            let facts = self.mirror.facts.get(address);
            facts.is_some_and(|facts| facts.is_held_by(&link.link))
        };
        if link.appeared.is_some()
            && self.claim_context().is_authoritative(link, address)
            && !has_address()
        {
            Beginning::at(at)
        } else {
            Beginning::seen()
        }
    }

    fn unknown_beginning(&self) -> Beginning {
        Beginning::unknown(if self.mirror.is_complete {
            UnknownBeginning::FoundBySnapshot
        } else {
            UnknownBeginning::BeforeStart
        })
    }
}

/// Whether an address that is reported for the first time was there before. What a snapshot finds may have been reported.
fn is_late(info: &AssignedAddress, live: bool) -> bool {
    info.dad_failed || (live && !info.is_just_added())
}
