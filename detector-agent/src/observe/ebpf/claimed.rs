//! The kernel programs' table of claimed addresses.

use std::{collections::HashSet, fmt, io::ErrorKind, net::IpAddr, ops::Range};

use aya::maps::{Array, HashMap, MapData, MapError};
use detector_common::{
    AddressKey, CLAIMED_ADDRESSES, RECENT_GROUP, RecentBucket, SEVERAL_HOLDERS, TAG_ARP, TAG_NDP,
    address_key, recent_group,
};
use detector_engine::{AddressHolder, ClaimedUpdate, MAX_CLAIMED_ADDRESSES};

use super::Programs;

const _: () = assert!(MAX_CLAIMED_ADDRESSES == CLAIMED_ADDRESSES as usize);

/// The table of claimed addresses could not be written: some entries may be missing or outdated.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the table of claimed addresses: {0}")]
pub struct ClaimedError(#[from] MapError);

/// The table, which the agent alone writes, and that of recently published claims.
pub(super) struct ClaimedTable {
    claimed: HashMap<MapData, AddressKey, u32>,
    recent: Array<MapData, RecentBucket>,
    seed: u64,
}

impl fmt::Debug for ClaimedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimedTable").finish_non_exhaustive()
    }
}

impl ClaimedTable {
    pub(super) fn new(
        claimed: HashMap<MapData, AddressKey, u32>,
        recent: Array<MapData, RecentBucket>,
        seed: u64,
    ) -> Self {
        Self {
            claimed,
            recent,
            seed,
        }
    }

    fn remove(&mut self, key: &AddressKey) -> Result<(), MapError> {
        match self.claimed.remove(key) {
            Err(MapError::SyscallError(error)) if error.io_error.kind() == ErrorKind::NotFound => {
                Ok(())
            }
            result => result,
        }
    }

    fn set(&mut self, address: IpAddr, holder: AddressHolder) -> Result<(), MapError> {
        self.claimed.insert(key(address), value(holder), 0)
    }

    /// Claims of the address that were published before are published again: the agent may have dropped them at a bound while
    /// nothing contested them, or ended them when the address was removed in the pod.
    fn clear_recent(&mut self, address: IpAddr) -> Result<(), MapError> {
        let first = recent_group(words(address), self.seed);
        self.clear_buckets(first..first + RECENT_GROUP)
    }

    fn clear_buckets(&mut self, buckets: Range<u32>) -> Result<(), MapError> {
        for bucket in buckets {
            self.recent.set(bucket, RecentBucket::default(), 0)?;
        }
        Ok(())
    }
}

impl Programs {
    /// Writes what changed in the table of claimed addresses.
    ///
    /// # Errors
    /// The kernel refuses an entry; those before it are written.
    pub fn write_claimed(&mut self, update: &ClaimedUpdate) -> Result<(), ClaimedError> {
        let table = &mut self.claimed;
        // Outdated entries first: the table may be full.
        match update {
            ClaimedUpdate::Changed(entries) => {
                for (address, holder) in entries {
                    if holder.is_none() {
                        table.remove(&key(*address))?;
                    }
                }
                for (address, holder) in entries {
                    if let Some(holder) = holder {
                        table.set(*address, *holder)?;
                    }
                    table.clear_recent(*address)?;
                }
            }
            ClaimedUpdate::All(entries) => {
                let wanted: HashSet<_> = entries.iter().map(|(address, _)| key(*address)).collect();
                let present = table.claimed.keys().collect::<Result<Vec<_>, _>>()?;
                for outdated in present.iter().filter(|key| !wanted.contains(*key)) {
                    table.remove(outdated)?;
                }
                for (address, holder) in entries {
                    table.set(*address, *holder)?;
                }
                let buckets = table.recent.len();
                table.clear_buckets(0..buckets)?;
            }
        }
        Ok(())
    }
}

fn key(address: IpAddr) -> AddressKey {
    let tag = if address.is_ipv4() { TAG_ARP } else { TAG_NDP };
    address_key(tag, bytes(address))
}

fn value(holder: AddressHolder) -> u32 {
    match holder {
        AddressHolder::Device(ifindex) => ifindex,
        AddressHolder::Several => SEVERAL_HOLDERS,
    }
}

/// An address as in a claim: for IPv4 the first four bytes.
fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn words(address: IpAddr) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes(address);
    [
        u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        u64::from_ne_bytes(rest),
    ]
}
