//! A frame in memory, captured or built by a test.

use network_types::eth::EthHdr;

use super::{FrameReader, WireFormat};

/// A frame in memory, with the VLAN tag that the kernel keeps outside of it.
#[derive(Clone, Copy, Debug)]
pub struct FrameSlice<'a> {
    /// The frame, starting at its Ethernet header.
    pub frame: &'a [u8],
    /// The tag kept outside the frame (`skb->vlan_tci`).
    pub outer_tag: Option<u16>,
}

impl FrameReader for FrameSlice<'_> {
    fn protocol(&self) -> u16 {
        self.read::<[u8; 2]>(EthHdr::LEN - 2)
            .map_or(0, u16::from_ne_bytes)
    }

    fn outer_tag(&self) -> Option<u16> {
        self.outer_tag
    }

    fn length(&self) -> usize {
        self.frame.len()
    }

    fn peek(&self, offset: usize) -> Option<u8> {
        self.frame.get(offset).copied()
    }

    fn read<T: WireFormat>(&self, offset: usize) -> Option<T> {
        self.load(offset)
    }

    fn load<T: WireFormat>(&self, offset: usize) -> Option<T> {
        let end = offset.checked_add(size_of::<T>())?;
        let bytes = self.frame.get(offset..end)?;
        // SAFETY: `bytes` is as long as `T`, which is valid for every bit pattern; the read does not require alignment.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}
