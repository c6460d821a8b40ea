//! tc ingress of every pod device: claims by ARP and Neighbour Discovery.

use core::mem::MaybeUninit;

use aya_ebpf::{macros::classifier, programs::TcContext};
use detector_common::{
    Counter,
    frame::{Classification, parse},
};

use crate::{log, maps::count, publish, skb::Skb, unanswered};

/// `TC_ACT_UNSPEC`, equal to `TCX_NEXT`: the next filter or program decides.
const CONTINUE: i32 = -1;

/// Publishes claims; never affects the packet.
#[classifier]
pub(crate) fn ipconflict_arp_ndp(ctx: TcContext) -> i32 {
    let skb = Skb::new(ctx.skb.skb);
    let mut claim = MaybeUninit::uninit();
    match parse(&skb, &mut claim) {
        Classification::Other => {}
        Classification::Claim => {
            // SAFETY: `parse` initialises the claim for this classification.
            let claim = unsafe { claim.assume_init_mut() };
            claim.ifindex = skb.ifindex();
            if let Err(event) = publish::claim(claim) {
                log::unpublished_claim(claim, event);
            }
            if let Err(event) = unanswered::track_unanswered(&skb, claim) {
                log::unpublished_claim(claim, event);
            }
        }
        Classification::Rejected(reason) => {
            count(Counter::Rejected(reason));
            log::rejected_frame(skb, reason);
        }
    }
    CONTINUE
}
