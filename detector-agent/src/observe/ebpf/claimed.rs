//! The kernel programs' table of claimed addresses.

use std::{collections::HashSet, io::ErrorKind, net::IpAddr};

use aya::maps::{HashMap, MapData, MapError};
use detector_common::{CLAIMED_ADDRESSES, ClaimedAddress, SEVERAL_HOLDERS};

use super::Programs;
use crate::engine::{AddressHolder, ClaimedUpdate, MAX_CLAIMED_ADDRESSES};

const _: () = assert!(MAX_CLAIMED_ADDRESSES == CLAIMED_ADDRESSES as usize);

/// The table of claimed addresses could not be written: some entries may be missing or outdated.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the table of claimed addresses: {0}")]
pub struct ClaimedError(#[from] MapError);

/// The table, which the agent alone writes.
pub(super) type ClaimedMap = HashMap<MapData, ClaimedAddress, u32>;

impl Programs {
    /// Writes what changed in the table of claimed addresses.
    ///
    /// # Errors
    /// The kernel refuses an entry; those before it are written.
    pub fn write_claimed(&mut self, update: &ClaimedUpdate) -> Result<(), ClaimedError> {
        let map = &mut self.claimed;
        match update {
            ClaimedUpdate::Changed(entries) => {
                // Removed first: the table may be full.
                for (address, holder) in entries {
                    if holder.is_none() {
                        remove(map, &key(*address))?;
                    }
                }
                for (address, holder) in entries {
                    if let Some(holder) = holder {
                        map.insert(key(*address), value(*holder), 0)?;
                    }
                }
            }
            ClaimedUpdate::All(entries) => {
                let wanted: HashSet<_> = entries.iter().map(|(address, _)| key(*address)).collect();
                let present = map.keys().collect::<Result<Vec<_>, _>>()?;
                for outdated in present.iter().filter(|key| !wanted.contains(*key)) {
                    remove(map, outdated)?;
                }
                for (address, holder) in entries {
                    map.insert(key(*address), value(*holder), 0)?;
                }
            }
        }
        Ok(())
    }
}

/// Removes an entry, if there is one.
fn remove(map: &mut ClaimedMap, key: &ClaimedAddress) -> Result<(), MapError> {
    match map.remove(key) {
        Err(MapError::SyscallError(error)) if error.io_error.kind() == ErrorKind::NotFound => {
            Ok(())
        }
        result => result,
    }
}

fn key(address: IpAddr) -> ClaimedAddress {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn value(holder: AddressHolder) -> u32 {
    match holder {
        AddressHolder::Device(ifindex) => ifindex,
        AddressHolder::Several => SEVERAL_HOLDERS,
    }
}
