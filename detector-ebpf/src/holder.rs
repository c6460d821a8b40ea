//! Who claimed a shared address (`--allow`) last: that one device claims it again and again needs telling only now and
//! then, that it goes back and forth between two needs telling each time.
//!
//! Nothing here is even looked at without shared addresses: the loader then leaves [`SHARED_ADDRESSES`] at 0, and the
//! verifier drops what hangs on it.

use aya_ebpf::{
    Global,
    macros::map,
    maps::{LpmTrie, LruHashMap, lpm_trie},
};
use detector_common::{Claim, SharedAddress, shared_address};

/// Whether there are any.
#[unsafe(no_mangle)]
static SHARED_ADDRESSES: Global<u32> = Global::new(0);

/// The networks they are of. The loader sets the size and fills it.
#[map]
static SHARED: LpmTrie<SharedAddress, u32> = LpmTrie::with_max_entries(1, 0);

/// The device that claimed each last. One that falls out is only published once more.
#[map]
static HOLDERS: LruHashMap<HolderKey, u32> = LruHashMap::with_max_entries(4_096, 0);

/// Bits of a whole address.
const WHOLE: u32 = u8::BITS * size_of::<SharedAddress>() as u32;

/// A shared address where it is one: in one VLAN.
#[repr(C)]
#[derive(Clone, Copy)]
struct HolderKey {
    address: [u8; 16],
    tag: u32,
    vlan_outer: u16,
    vlan_inner: u16,
}

/// Whether this claim is of a shared address that another device, or none that is remembered, claimed last.
#[inline(always)]
pub(crate) fn is_move(claim: &Claim) -> bool {
    if !is_shared(claim) {
        return false;
    }
    // SAFETY: a value read while the entry is reused is at worst another address's holder: one record too many or too few.
    let holder = unsafe { HOLDERS.get(key(claim)) };
    holder.is_none_or(|holder| *holder != claim.ifindex)
}

/// The claim is published: its device holds the address now.
#[inline(always)]
pub(crate) fn note(claim: &Claim) {
    if is_shared(claim) {
        // A holder that is not remembered is published once more.
        let _ = HOLDERS.insert(key(claim), claim.ifindex, 0);
    }
}

#[inline(always)]
fn is_shared(claim: &Claim) -> bool {
    // Who only asks for an address does not hold it.
    if SHARED_ADDRESSES.load() == 0 || claim.tentative != 0 {
        return false;
    }
    let address = shared_address(claim.tag, claim.address);
    SHARED.get(lpm_trie::Key::new(WHOLE, address)).is_some()
}

#[inline(always)]
fn key(claim: &Claim) -> HolderKey {
    HolderKey {
        address: claim.address,
        tag: u32::from(claim.tag),
        vlan_outer: claim.vlan_outer,
        vlan_inner: claim.vlan_inner,
    }
}
