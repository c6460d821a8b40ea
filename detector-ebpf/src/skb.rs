//! A packet at tc ingress as a [`Frame`].

use core::mem::MaybeUninit;

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_skb_load_bytes};
use detector_common::frame::{Frame, Wire};

/// The packet. Its bytes are read in place where that is cheap, else copied by the kernel, which also reads parts that do
/// not lie in the linear area. It is never written.
pub(crate) struct Skb {
    skb: *mut __sk_buff,
}

impl Skb {
    /// The packet of a classifier's context.
    #[inline(always)]
    pub(crate) fn new(skb: *mut __sk_buff) -> Self {
        Self { skb }
    }

    /// The device it came in on.
    #[inline(always)]
    pub(crate) fn ifindex(&self) -> u32 {
        // SAFETY: the context is valid while the program runs.
        unsafe { (*self.skb).ifindex }
    }
}

impl Frame for Skb {
    #[inline(always)]
    fn protocol(&self) -> u16 {
        // SAFETY: as above. The field holds 16 bits in network order.
        unsafe { (*self.skb).protocol as u16 }
    }

    #[inline(always)]
    fn outer_tag(&self) -> Option<u16> {
        // SAFETY: as above.
        unsafe { ((*self.skb).vlan_present != 0).then(|| (*self.skb).vlan_tci as u16) }
    }

    #[inline(always)]
    fn length(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.skb).len as usize }
    }

    #[inline(always)]
    fn peek(&self, offset: usize) -> Option<u8> {
        // SAFETY: as above; the byte is read only where it lies before the end of the linear area.
        unsafe {
            let place = (*self.skb).data as usize + offset;
            if place < (*self.skb).data_end as usize {
                return Some(*(place as *const u8));
            }
        }
        self.load(offset)
    }

    #[inline(always)]
    fn read<T: Wire>(&self, offset: usize) -> Option<T> {
        // SAFETY: as above; in place, a `T` is read only where it ends before the linear area does, and every bit pattern is
        // one.
        unsafe {
            let place = (*self.skb).data as usize + offset;
            if place + size_of::<T>() <= (*self.skb).data_end as usize {
                return Some((place as *const T).read_unaligned());
            }
        }
        self.load(offset)
    }

    #[inline(always)]
    fn load<T: Wire>(&self, offset: usize) -> Option<T> {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the helper writes `size_of::<T>()` bytes or none, and then says so; every bit pattern is a `T`.
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
