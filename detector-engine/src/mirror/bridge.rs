//! Forwarding tables of the bridges: the port behind which a hardware address is
//! (`docs/detection-rules.md`, section 3).
//!
//! An entry that ages out is kept as long as a neighbour entry has its hardware address: a quiet
//! pod's entry ages out, but the pod stays where it is.

use std::collections::BTreeMap;

use crate::{
    index::Index,
    mirror::StoreOutcome,
    model::{FdbEntry, IfIndex, Mac},
};

/// Bridge, hardware address, VLAN.
type FdbKey = (IfIndex, Mac, Option<u16>);

#[derive(Clone, Copy, Debug)]
struct FdbPort {
    port: IfIndex,
    aged: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Fdb {
    entries: BTreeMap<FdbKey, FdbPort>,
    by_port: Index<IfIndex, FdbKey>,
}

impl Fdb {
    /// The port that `mac` is behind, or was last behind. If it is in several VLANs, the lowest one
    /// decides: the node itself uses that one unless configured otherwise.
    pub(crate) fn port(&self, bridge: IfIndex, mac: Mac) -> Option<IfIndex> {
        let mut known = self.of(bridge, mac);
        known
            .clone()
            .find(|(_, found)| !found.aged)
            .or_else(|| known.next())
            .map(|(_, found)| found.port)
    }

    /// The port behind which the kernel has `mac` in this VLAN now.
    pub(crate) fn live_port(
        &self,
        bridge: IfIndex,
        mac: Mac,
        vlan: Option<u16>,
    ) -> Option<IfIndex> {
        let found = self.entries.get(&(bridge, mac, vlan))?;
        (!found.aged).then_some(found.port)
    }

    fn of(&self, bridge: IfIndex, mac: Mac) -> impl Iterator<Item = (&FdbKey, &FdbPort)> + Clone {
        self.entries
            .range((bridge, mac, None)..=(bridge, mac, Some(u16::MAX)))
    }

    /// How many entries there are, those that aged out included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many of them are of one port.
    pub(crate) fn len_of_port(&self, port: IfIndex) -> usize {
        self.by_port.len_of(&port)
    }

    /// The kernel's entries, without those that aged out.
    pub(crate) fn entries(&self) -> impl Iterator<Item = FdbEntry> + '_ {
        let live = self.entries.iter().filter(|(_, found)| !found.aged);
        live.map(|((bridge, mac, vlan), found)| FdbEntry {
            bridge: *bridge,
            port: found.port,
            mac: *mac,
            vlan: *vlan,
        })
    }

    /// The hardware addresses that are, or last were, behind a port.
    pub(crate) fn behind_port(&self, port: IfIndex) -> Vec<(IfIndex, Mac)> {
        let keys = self.by_port.of(&port);
        keys.map(|(bridge, mac, _)| (*bridge, *mac)).collect()
    }

    /// Adds an entry; changed if the hardware address is behind another port than before. Within a bound on all entries and one on those of its port.
    pub(crate) fn set(&mut self, entry: FdbEntry, bound: usize, per_port: usize) -> StoreOutcome {
        let key = (entry.bridge, entry.mac, entry.vlan);
        let before = self.port(entry.bridge, entry.mac);
        let known = self.entries.get(&key).map(|found| found.port);
        let grows = known.is_none() && self.entries.len() >= bound;
        if grows || (known != Some(entry.port) && self.len_of_port(entry.port) >= per_port) {
            // Its new port is not stored, but it did leave the old one.
            self.remove(&key);
            return StoreOutcome::Refused;
        }
        self.put(key, entry.port, false);
        self.changed(entry.bridge, entry.mac, before)
    }

    /// The kernel's entry is gone; with `keep` its port is remembered until [`Fdb::remove_aged`].
    /// The kernel has one entry per hardware address and VLAN and reports a move only by the new
    /// one, so the port reported last is the one it was behind.
    pub(crate) fn unset(&mut self, entry: FdbEntry, keep: bool) -> StoreOutcome {
        let key = (entry.bridge, entry.mac, entry.vlan);
        let before = self.port(entry.bridge, entry.mac);
        if keep {
            self.put(key, entry.port, true);
        } else {
            self.remove(&key);
        }
        self.changed(entry.bridge, entry.mac, before)
    }

    /// Removes aged entries of a hardware address that no neighbour entry has any more.
    pub(crate) fn remove_aged(&mut self, bridge: IfIndex, mac: Mac) {
        let aged = self.of(bridge, mac).filter(|(_, found)| found.aged);
        for key in aged.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.remove(&key);
        }
    }

    /// A link was removed, as a port or as the bridge itself. Returns the hardware addresses that
    /// were behind it.
    pub(crate) fn remove_link(&mut self, ifindex: IfIndex) -> Vec<(IfIndex, Mac)> {
        let of_bridge = self
            .entries
            .range((ifindex, Mac::default(), None)..=(ifindex, Mac([u8::MAX; 6]), Some(u16::MAX)));
        let of_port = self.by_port.of(&ifindex);
        let keys: Vec<FdbKey> = of_bridge
            .map(|(key, _)| key)
            .chain(of_port)
            .copied()
            .collect();
        self.remove_all(&keys)
    }

    /// A port left a bridge. Returns the hardware addresses that were behind it.
    pub(crate) fn remove_port(&mut self, bridge: IfIndex, port: IfIndex) -> Vec<(IfIndex, Mac)> {
        let of_port = self.by_port.of(&port);
        let keys: Vec<FdbKey> = of_port.filter(|key| key.0 == bridge).copied().collect();
        self.remove_all(&keys)
    }

    fn remove_all(&mut self, keys: &[FdbKey]) -> Vec<(IfIndex, Mac)> {
        for key in keys {
            self.remove(key);
        }
        keys.iter()
            .map(|(bridge, mac, _)| (*bridge, *mac))
            .collect()
    }

    fn put(&mut self, key: FdbKey, port: IfIndex, aged: bool) {
        self.remove(&key);
        self.entries.insert(key, FdbPort { port, aged });
        self.by_port.insert(port, key);
    }

    fn remove(&mut self, key: &FdbKey) {
        if let Some(found) = self.entries.remove(key) {
            self.by_port.remove(found.port, key);
        }
    }

    fn changed(&self, bridge: IfIndex, mac: Mac, before: Option<IfIndex>) -> StoreOutcome {
        if self.port(bridge, mac) == before {
            StoreOutcome::Known
        } else {
            StoreOutcome::Changed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_entries_leave_nothing_behind() {
        let entry = FdbEntry {
            bridge: 9,
            port: 1,
            mac: Mac::default(),
            vlan: None,
        };
        let ends: [fn(&mut Fdb, FdbEntry); 4] = [
            |fdb, entry| assert_eq!(fdb.unset(entry, false), StoreOutcome::Changed),
            |fdb, _| assert_eq!(fdb.remove_link(1).len(), 1),
            |fdb, _| assert_eq!(fdb.remove_link(9).len(), 1),
            |fdb, _| assert_eq!(fdb.remove_port(9, 1).len(), 1),
        ];
        for end in ends {
            let mut fdb = Fdb::default();
            assert_eq!(fdb.set(entry, 1, 1), StoreOutcome::Changed);
            end(&mut fdb, entry);
            assert!(fdb.entries.is_empty());
            assert!(fdb.by_port.is_empty());
        }
    }
}
