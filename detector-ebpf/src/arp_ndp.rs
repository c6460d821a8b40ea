//! tc ingress of every pod device: what the pod claims by ARP and Neighbour Discovery.

use core::mem::MaybeUninit;

use aya_ebpf::{macros::classifier, programs::TcContext};
use detector_common::{
    Counter,
    frame::{Seen, examine},
};

use crate::{asks, emit, maps::count, skb::Skb};

/// `TC_ACT_UNSPEC`, which is `TCX_NEXT` too: the next filter or program decides, as if this one were not there.
const GO_ON: i32 = -1;

/// Publishes claims; always lets the packet go on.
#[classifier]
pub(crate) fn ipconflict_arp_ndp(ctx: TcContext) -> i32 {
    let skb = Skb::new(ctx.skb.skb);
    let mut claim = MaybeUninit::uninit();
    match examine(&skb, &mut claim) {
        Seen::Other => {}
        Seen::Claim => {
            // SAFETY: where there is a claim it has been filled in.
            let claim = unsafe { claim.assume_init_mut() };
            claim.ifindex = skb.ifindex();
            emit::claim(claim);
            asks::heed(&skb, claim);
        }
        Seen::Rejected(reason) => count(Counter::Rejected(reason)),
    }
    GO_ON
}
