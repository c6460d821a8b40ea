//! How much is claimed, kept as it changes: counting it again would cost too much to do it with every event.

use std::net::IpAddr;

use crate::hash::HashMap;

/// How many live claims each address had when it was last decided about, and all of them together.
#[derive(Debug, Default)]
pub(crate) struct ClaimCounts {
    /// No address has as many claims as would need more bits.
    by_address: HashMap<IpAddr, u32>,
    total: usize,
}

impl ClaimCounts {
    pub(crate) fn set(&mut self, address: IpAddr, claims: usize) {
        let claims = u32::try_from(claims).unwrap_or(u32::MAX);
        let before = if claims == 0 {
            self.by_address.remove(&address)
        } else {
            self.by_address.insert(address, claims)
        };
        self.total = self.total - before.unwrap_or_default() as usize + claims as usize;
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }
}
