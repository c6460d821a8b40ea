//! Forwarding tables of the bridges: which port a hardware address stands behind (rule 3).

use std::collections::HashMap;

use super::observation::{FdbEntry, IfIndex, Mac};

/// What a change of the table touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FdbChange {
    /// The hardware address stands behind another port than before, or behind none any more.
    Moved,
    /// Nothing changed.
    Same,
    /// The table is full; the entry is not followed.
    Refused,
}

#[derive(Debug, Default)]
pub(super) struct Fdb {
    ports: HashMap<(IfIndex, Mac), (IfIndex, Option<u16>)>,
    /// The last port an address stood behind: a quiet pod's entry ages out, the pod stays where it is.
    last: HashMap<(IfIndex, Mac), IfIndex>,
}

impl Fdb {
    /// The port that `mac` stands, or last stood, behind.
    pub(super) fn port(&self, bridge: IfIndex, mac: Mac) -> Option<IfIndex> {
        self.ports
            .get(&(bridge, mac))
            .map(|(port, _)| *port)
            .or_else(|| self.last.get(&(bridge, mac)).copied())
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = FdbEntry> + '_ {
        self.ports
            .iter()
            .map(|((bridge, mac), (port, vlan))| FdbEntry {
                bridge: *bridge,
                port: *port,
                mac: *mac,
                vlan: *vlan,
            })
    }

    pub(super) fn set(&mut self, entry: FdbEntry, bound: usize) -> FdbChange {
        let key = (entry.bridge, entry.mac);
        let before = self.port(entry.bridge, entry.mac);
        if !self.ports.contains_key(&key) && self.ports.len() >= bound {
            return FdbChange::Refused;
        }
        self.ports.insert(key, (entry.port, entry.vlan));
        self.last.remove(&key);
        if before == Some(entry.port) {
            FdbChange::Same
        } else {
            FdbChange::Moved
        }
    }

    pub(super) fn unset(&mut self, entry: FdbEntry, bound: usize) -> FdbChange {
        let key = (entry.bridge, entry.mac);
        match self.ports.get(&key) {
            // An entry of another VLAN or port may be told gone after the address moved: the newer word stays.
            Some((port, _)) if *port == entry.port => {
                self.ports.remove(&key);
                if self.last.len() < bound {
                    self.last.insert(key, entry.port);
                }
                FdbChange::Same
            }
            _ => FdbChange::Same,
        }
    }

    /// A link is gone: as a port, or as the bridge itself. Gives what stood behind it.
    pub(super) fn forget_link(&mut self, ifindex: IfIndex) -> Vec<(IfIndex, Mac)> {
        let mut touched = Vec::new();
        let mut keep = |key: &(IfIndex, Mac), port: IfIndex| {
            let gone = key.0 == ifindex || port == ifindex;
            if gone {
                touched.push(*key);
            }
            !gone
        };
        self.ports.retain(|key, (port, _)| keep(key, *port));
        self.last.retain(|key, port| keep(key, *port));
        touched
    }
}
