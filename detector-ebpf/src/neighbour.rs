//! Reads a `struct neighbour`.
//!
//! Rust emits no relocations against kernel types, so the offsets are globals that the loader sets from the running kernel's
//! BTF.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    Global,
    helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_kernel},
};
use detector_common::{
    IgnoreReason, NEIGHBOUR_GONE, NEIGHBOUR_UPDATE, NeighbourRecord, frame::WireFormat,
};

use crate::{log, maps::NETNS_INODE, publish};

/// Validity of an entry without a usable hardware address.
pub(crate) const INVALID: u8 = 0;
/// Validity of an entry that was configured.
const PERMANENT: u8 = 1;
/// Validity of an entry confirmed recently.
const REACHABLE: u8 = 2;
/// Validity of an entry that was not confirmed recently.
const UNCONFIRMED: u8 = 3;
/// Validity of an entry that needs no resolution. Unlike a PERMANENT one it says nothing about who has the address.
const NOARP: u8 = 4;

/// `NUD_*` of `include/uapi/linux/neighbour.h`.
mod nud {
    pub(crate) const REACHABLE: u8 = 0x02;
    pub(crate) const STALE: u8 = 0x04;
    pub(crate) const DELAY: u8 = 0x08;
    pub(crate) const PROBE: u8 = 0x10;
    pub(crate) const NOARP: u8 = 0x40;
    pub(crate) const PERMANENT: u8 = 0x80;
}

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

/// Declares the offsets as globals, which the loader sets by name.
macro_rules! offsets {
    ($($name:ident),* $(,)?) => {
        $(// SAFETY: no other symbol of the object has this name.
        #[unsafe(no_mangle)]
        static $name: Global<u32> = Global::new(0);)*
    };
}

offsets! {
    OFFSET_NEIGHBOUR_DEV,
    OFFSET_NEIGHBOUR_TBL,
    OFFSET_NEIGHBOUR_NUD_STATE,
    OFFSET_NEIGHBOUR_HA,
    OFFSET_NEIGHBOUR_PRIMARY_KEY,
    OFFSET_NEIGH_TABLE_FAMILY,
    OFFSET_NET_DEVICE_IFINDEX,
    OFFSET_NET_DEVICE_ADDR_LEN,
    OFFSET_NET_DEVICE_NET,
    OFFSET_NET_INODE,
}

/// Reads the value at `offset` of a kernel object; `None` if the memory cannot be read.
#[inline(always)]
fn read<T: WireFormat>(object: *const c_void, offset: &Global<u32>, value: &mut T) -> Option<()> {
    let address = object.wrapping_byte_add(offset.load() as usize);
    // SAFETY: the helper fails on an invalid kernel address; it writes `size_of::<T>()` bytes to `value`, for which every
    // bit pattern is valid.
    let error = unsafe {
        bpf_probe_read_kernel(ptr::from_mut(value).cast(), size_of::<T>() as u32, address)
    };
    (error == 0).then_some(())
}

/// Follows a pointer member.
#[inline(always)]
fn follow(object: *const c_void, offset: &Global<u32>) -> Option<*const c_void> {
    let mut address = [0_u8; 8];
    read(object, offset, &mut address)?;
    Some(usize::from_ne_bytes(address) as *const c_void)
}

/// Publishes the current state of `neighbour` if it belongs to the agent's network namespace.
#[inline(always)]
pub(crate) fn observe(neighbour: *const c_void, gone: bool) -> Option<()> {
    let device = follow(neighbour, &OFFSET_NEIGHBOUR_DEV)?;
    let net = follow(device, &OFFSET_NET_DEVICE_NET)?;
    let mut inode = 0_u32;
    read(net, &OFFSET_NET_INODE, &mut inode)?;
    if inode != NETNS_INODE.load() {
        log::ignored_neighbour(IgnoreReason::OtherNetns, inode);
        return None;
    }
    let table = follow(neighbour, &OFFSET_NEIGHBOUR_TBL)?;
    let mut family = 0_u32;
    read(table, &OFFSET_NEIGH_TABLE_FAMILY, &mut family)?;
    let mut record = NeighbourRecord {
        // Before the state is read: of two records, the later one then has the later state, whichever CPU publishes first.
        // SAFETY: the helper has no arguments. (The coarse clock is not available to tracing programs.)
        at: unsafe { bpf_ktime_get_ns() },
        tag: if gone {
            NEIGHBOUR_GONE
        } else {
            NEIGHBOUR_UPDATE
        },
        ip_version: 0,
        state: 0,
        has_lladdr: 0,
        ifindex: 0,
        address: [0; 16],
        lladdr: [0; 6],
        reserved: 0,
    };
    match family {
        AF_INET => {
            let mut address = [0_u8; 4];
            read(neighbour, &OFFSET_NEIGHBOUR_PRIMARY_KEY, &mut address)?;
            let [a, b, c, d] = address;
            record.ip_version = 4;
            record.address = [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        }
        AF_INET6 => {
            record.ip_version = 6;
            read(
                neighbour,
                &OFFSET_NEIGHBOUR_PRIMARY_KEY,
                &mut record.address,
            )?;
        }
        _ => {
            log::ignored_neighbour(IgnoreReason::OtherFamily, family);
            return None;
        }
    }
    read(device, &OFFSET_NET_DEVICE_IFINDEX, &mut record.ifindex)?;
    read(neighbour, &OFFSET_NEIGHBOUR_NUD_STATE, &mut record.state)?;
    let validity = if gone {
        INVALID
    } else {
        validity(record.state)
    };
    if validity != INVALID {
        let mut addr_len = 0_u8;
        read(device, &OFFSET_NET_DEVICE_ADDR_LEN, &mut addr_len)?;
        if addr_len == 6 {
            read(neighbour, &OFFSET_NEIGHBOUR_HA, &mut record.lladdr)?;
            record.has_lladdr = 1;
        }
    }
    if let Err(event) = publish::neighbour(&record, validity) {
        log::unpublished_neighbour(&record, event);
    }
    Some(())
}

#[inline(always)]
fn validity(state: u8) -> u8 {
    if state & nud::PERMANENT != 0 {
        PERMANENT
    } else if state & nud::NOARP != 0 {
        NOARP
    } else if state & nud::REACHABLE != 0 {
        REACHABLE
    } else if state & (nud::STALE | nud::DELAY | nud::PROBE) != 0 {
        UNCONFIRMED
    } else {
        INVALID
    }
}
