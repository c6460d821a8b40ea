//! A packet at tc ingress as a [`FrameReader`].

use core::mem::MaybeUninit;

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_skb_load_bytes};
use detector_common::frame::{FrameReader, WireFormat};

/// The packet. Bytes in the linear area are read in place where that is cheap; the kernel copies all others. The packet is
/// never written.
#[derive(Clone, Copy)]
pub(crate) struct Skb {
    skb: *mut __sk_buff,
}

impl Skb {
    /// The packet of a classifier's context.
    #[inline(always)]
    pub(crate) fn new(skb: *mut __sk_buff) -> Self {
        Self { skb }
    }

    /// Loads a value at any offset in place; zeros, and `false`, if the frame is shorter.
    #[inline(always)]
    pub(crate) fn load_into<T: WireFormat>(&self, offset: usize, value: &mut T) -> bool {
        // SAFETY: the helper writes `size_of::<T>()` bytes, even if it fails (`____bpf_skb_load_bytes` in
        // net/core/filter.c); every bit pattern is a valid `T`.
        let error = unsafe {
            bpf_skb_load_bytes(
                self.skb.cast(),
                offset as u32,
                core::ptr::from_mut(value).cast(),
                size_of::<T>() as u32,
            )
        };
        error == 0
    }

    /// The device that received the packet.
    #[inline(always)]
    pub(crate) fn ifindex(&self) -> u32 {
        // SAFETY: the context is valid while the program runs.
        unsafe { (*self.skb).ifindex }
    }
}

impl FrameReader for Skb {
    #[inline(always)]
    fn protocol(&self) -> u16 {
        // SAFETY: the context is valid while the program runs. The field holds 16 bits in network order.
        unsafe { (*self.skb).protocol as u16 }
    }

    #[inline(always)]
    fn outer_tag(&self) -> Option<u16> {
        // SAFETY: the context is valid while the program runs.
        unsafe { ((*self.skb).vlan_present != 0).then(|| (*self.skb).vlan_tci as u16) }
    }

    #[inline(always)]
    fn length(&self) -> usize {
        // SAFETY: the context is valid while the program runs.
        unsafe { (*self.skb).len as usize }
    }

    #[inline(always)]
    fn peek(&self, offset: usize) -> Option<u8> {
        // SAFETY: the context is valid while the program runs; the byte is read only if it lies in the linear area.
        unsafe {
            let start = (*self.skb).data as usize + offset;
            if start < (*self.skb).data_end as usize {
                return Some(*(start as *const u8));
            }
        }
        self.load(offset)
    }

    #[inline(always)]
    fn read<T: WireFormat>(&self, offset: usize) -> Option<T> {
        // SAFETY: the context is valid while the program runs; a `T`, for which every bit pattern is valid, is read only
        // if all of it lies in the linear area.
        unsafe {
            let start = (*self.skb).data as usize + offset;
            if start + size_of::<T>() <= (*self.skb).data_end as usize {
                return Some((start as *const T).read_unaligned());
            }
        }
        self.load(offset)
    }

    #[inline(always)]
    fn load<T: WireFormat>(&self, offset: usize) -> Option<T> {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the helper writes all `size_of::<T>()` bytes or returns an error; every bit pattern is a valid `T`.
        unsafe {
            let error = bpf_skb_load_bytes(
                self.skb.cast(),
                offset as u32,
                value.as_mut_ptr().cast(),
                size_of::<T>() as u32,
            );
            (error == 0).then(|| value.assume_init())
        }
    }
}
