//! The last claimant of each shared address (`--allow`): a repeated claim of the same device is published only now and then,
//! but a move between devices is published every time.
//!
//! Without shared addresses the loader leaves [`SHARED_ADDRESSES`] at 0, and the verifier removes this code.

use aya_ebpf::{
    Global,
    macros::map,
    maps::{LpmTrie, LruHashMap, lpm_trie},
};
use detector_common::{AddressKey, RawClaim, address_key};

/// Whether there are shared addresses.
// SAFETY: no other symbol of the object has this name.
#[unsafe(no_mangle)]
static SHARED_ADDRESSES: Global<u32> = Global::new(0);

/// The networks of shared addresses. The loader sets the size and fills it.
#[map]
static SHARED: LpmTrie<AddressKey, u32> = LpmTrie::with_max_entries(1, 0);

/// The device that last claimed each address. After an eviction the next claim is published once more.
#[map]
static HOLDERS: LruHashMap<HolderKey, u32> = LruHashMap::with_max_entries(4_096, 0);

/// Prefix length of a single address.
const ADDRESS_BITS: u32 = u8::BITS * size_of::<AddressKey>() as u32;

/// A shared address within one VLAN.
#[repr(C)]
#[derive(Clone, Copy)]
struct HolderKey {
    address: [u8; 16],
    tag: u32,
    vlan_outer: u16,
    vlan_inner: u16,
}

/// Whether the claim is of a shared address whose last known claimant is not this device.
#[inline(always)]
pub(crate) fn is_move(claim: &RawClaim) -> bool {
    if !is_shared(claim) {
        return false;
    }
    let Some(holder) = HOLDERS.get_ptr(key(claim)) else {
        return true;
    };
    // SAFETY: map memory stays valid while the program runs. If the entry is reused meanwhile, the value is another
    // address's holder: one record too many or too few.
    unsafe { holder.read_volatile() != claim.ifindex }
}

/// Records the device of a published claim as the holder of the address.
#[inline(always)]
pub(crate) fn set_holder(claim: &RawClaim) {
    if is_shared(claim) {
        // After a failure the next claim is published once more.
        let _ = HOLDERS.insert(key(claim), claim.ifindex, 0);
    }
}

#[inline(always)]
fn is_shared(claim: &RawClaim) -> bool {
    // A device that probes for an address does not hold it.
    if SHARED_ADDRESSES.load() == 0 || claim.tentative != 0 {
        return false;
    }
    let address = address_key(claim.tag, claim.address);
    SHARED
        .get(lpm_trie::Key::new(ADDRESS_BITS, address))
        .is_some()
}

#[inline(always)]
fn key(claim: &RawClaim) -> HolderKey {
    HolderKey {
        address: claim.address,
        tag: u32::from(claim.tag),
        vlan_outer: claim.vlan_outer,
        vlan_inner: claim.vlan_inner,
    }
}
