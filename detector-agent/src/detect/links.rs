//! The links of the agent's namespace, and which of them are pod devices now.
//!
//! Invariant: at most one pod device per peer; a generation is never given twice.

use std::collections::HashMap;

use super::observation::{IfIndex, Link, LinkKind, Peer, Timestamp};

/// A pod device: what the attach worker and the pod lookups need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its index.
    pub ifindex: IfIndex,
    /// Tells devices apart that had the same index one after the other.
    pub generation: u64,
    /// Its name.
    pub name: String,
    /// Its alias.
    pub alias: Option<String>,
    /// The pod's end of it.
    pub peer: Option<Peer>,
}

#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) link: Link,
    pub(super) generation: u64,
    pub(super) since: Timestamp,
    /// Whether the addresses in its pod's namespace could be read; unknown until the first reading.
    pub(super) namespace_readable: Option<bool>,
    /// The hardware address of the pod's end, once read.
    pub(super) peer_mac: Option<super::Mac>,
}

impl LinkState {
    pub(super) fn is_pod(&self) -> bool {
        self.link.kind == LinkKind::Pod
    }

    pub(super) fn device(&self) -> Device {
        Device {
            ifindex: self.link.ifindex,
            generation: self.generation,
            name: self.link.name.clone(),
            alias: self.link.alias.clone(),
            peer: self.link.peer,
        }
    }
}

/// What an upsert changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LinkChange {
    /// A link that was not there.
    New,
    /// Another device took the index without a word of the old one's end; its facts are to be dropped first.
    Replaced(Box<Link>),
    /// Something that claims depend on changed (kind, peer, master, name).
    Changed {
        /// The link as it was.
        before: Box<Link>,
    },
    /// Nothing of interest.
    Same,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    by_index: HashMap<IfIndex, LinkState>,
    by_peer: HashMap<Peer, IfIndex>,
    generations: u64,
}

impl Links {
    pub(super) fn len(&self) -> usize {
        self.by_index.len()
    }

    pub(super) fn get(&self, ifindex: IfIndex) -> Option<&LinkState> {
        self.by_index.get(&ifindex)
    }

    pub(super) fn get_mut(&mut self, ifindex: IfIndex) -> Option<&mut LinkState> {
        self.by_index.get_mut(&ifindex)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LinkState> {
        self.by_index.values()
    }

    /// The pod device whose other end is `peer`.
    pub(super) fn pod_by_peer(&self, peer: Peer) -> Option<&LinkState> {
        self.by_peer
            .get(&peer)
            .and_then(|ifindex| self.by_index.get(ifindex))
    }

    /// The pod device of this index.
    pub(super) fn pod(&self, ifindex: IfIndex) -> Option<&LinkState> {
        self.get(ifindex).filter(|l| l.is_pod())
    }

    pub(super) fn is_bridge(&self, ifindex: IfIndex) -> bool {
        self.get(ifindex)
            .is_some_and(|l| l.link.kind == LinkKind::Bridge)
    }

    /// The bridge a link is a port of.
    pub(super) fn bridge_of(&self, ifindex: IfIndex) -> Option<IfIndex> {
        self.get(ifindex)?
            .link
            .master
            .filter(|master| self.is_bridge(*master))
    }

    /// The L2 domain of a link: its bridge, or itself.
    pub(super) fn domain(&self, ifindex: IfIndex) -> IfIndex {
        self.bridge_of(ifindex).unwrap_or(ifindex)
    }

    pub(super) fn upsert(&mut self, mut link: Link, now: Timestamp) -> LinkChange {
        if let Some(state) = self.by_index.get_mut(&link.ifindex) {
            // A message without the peer (an early or partial one) does not make us forget it.
            if link.peer.is_none() && link.kind == state.link.kind {
                link.peer = state.link.peer;
            }
            if state.link == link {
                return LinkChange::Same;
            }
            let moved_peer = matches!((state.link.peer, link.peer), (Some(a), Some(b)) if a != b);
            if moved_peer && state.link.name != link.name {
                let old = self.remove(link.ifindex);
                self.insert(link, now);
                return match old {
                    Some(old) => LinkChange::Replaced(Box::new(old.link)),
                    None => LinkChange::New,
                };
            }
            if moved_peer {
                state.namespace_readable = None;
                state.peer_mac = None;
            }
            let before = std::mem::replace(&mut state.link, link);
            let (peer, is_pod, ifindex) = (state.link.peer, state.is_pod(), state.link.ifindex);
            self.unindex(&before);
            if let Some(peer) = peer.filter(|_| is_pod) {
                self.by_peer.insert(peer, ifindex);
            }
            return LinkChange::Changed {
                before: Box::new(before),
            };
        }
        self.insert(link, now);
        LinkChange::New
    }

    fn insert(&mut self, link: Link, now: Timestamp) {
        self.generations += 1;
        if let Some(peer) = link.peer.filter(|_| link.kind == LinkKind::Pod) {
            self.by_peer.insert(peer, link.ifindex);
        }
        let state = LinkState {
            generation: self.generations,
            since: now,
            namespace_readable: None,
            peer_mac: None,
            link,
        };
        self.by_index.insert(state.link.ifindex, state);
    }

    pub(super) fn remove(&mut self, ifindex: IfIndex) -> Option<LinkState> {
        let state = self.by_index.remove(&ifindex)?;
        self.unindex(&state.link);
        Some(state)
    }

    fn unindex(&mut self, link: &Link) {
        if let Some(peer) = link.peer
            && self.by_peer.get(&peer) == Some(&link.ifindex)
        {
            self.by_peer.remove(&peer);
        }
    }
}
