//! A frame that lies in memory, as captured or made by a test.

use network_types::eth::EthHdr;

use super::{Frame, Wire};

/// A frame in memory, with the tag that the kernel would hold apart.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    /// The frame from its Ethernet header on.
    pub frame: &'a [u8],
    /// The tag held apart (`skb->vlan_tci`).
    pub outer_tag: Option<u16>,
}

impl Frame for Bytes<'_> {
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

    fn read<T: Wire>(&self, offset: usize) -> Option<T> {
        self.load(offset)
    }

    fn load<T: Wire>(&self, offset: usize) -> Option<T> {
        let end = offset.checked_add(size_of::<T>())?;
        let bytes = self.frame.get(offset..end)?;
        // SAFETY: `bytes` is as long as `T`, which is valid for every bit pattern; the read does not ask for alignment.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}
