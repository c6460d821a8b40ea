//! Which connections may be open, and which one gives way to a new one.
//!
//! Invariants: connections of the node itself and those of others have slots of their own, so pods cannot take the
//! slots of the node's probes; one source has only a part of the others' slots; a new connection is refused only if its
//! source already has as many as any other one and all of them are being answered, or if too many are still being
//! closed. The connection that gives way is the one that has been waiting for a request the longest, of the source itself
//! at the source's bound, else of the sources with the most connections.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Connections at most: half of them for the node itself, half for others.
const MAX_CONNECTIONS: usize = 256;
/// Connections that are being closed, for the node itself and for others, if there are descriptors enough.
const MAX_CLOSING: usize = 1024;
/// Connections of one source other than the node.
const PER_SOURCE: usize = 16;
/// Bytes of complete responses that others have not read yet. One response is 3 MB at most.
const MAX_UNREAD: usize = 16 << 20;

/// Who is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ConnectionSource {
    /// The node itself: kubelet's probes, `kubectl port-forward` and `exec`, local scrapers.
    Node,
    /// A pod or another machine, by its address.
    Other(IpAddr),
}

impl ConnectionSource {
    /// Nothing but the node reaches it from a loopback address or from the address that it connects to.
    pub(super) fn new(peer: SocketAddr, local: SocketAddr) -> Self {
        let (peer, local) = (peer.ip().to_canonical(), local.ip().to_canonical());
        if peer.is_loopback() || peer == local {
            Self::Node
        } else {
            Self::Other(peer)
        }
    }
}

/// One connection.
#[derive(Debug)]
struct Connection {
    client: ConnectionSource,
    /// Waits for a request, or for the rest of one. Otherwise it is being answered.
    waiting: bool,
    /// Orders connections by their last change between waiting and being answered.
    changed: u64,
    /// Bytes of its response.
    unread: usize,
    /// Dropped to close the connection; `None` while it is being closed.
    close: Option<oneshot::Sender<()>>,
}

/// The connections that share a bound.
#[derive(Debug)]
struct Group {
    connections: HashMap<u64, Connection>,
    limit: usize,
    per_client: usize,
    /// How many more there may be while they are being closed.
    closing_limit: usize,
}

impl Group {
    /// Those that are not being closed.
    fn open(&self) -> impl Iterator<Item = &Connection> {
        let is_open = |connection: &&Connection| connection.close.is_some();
        self.connections.values().filter(is_open)
    }

    /// Makes room for a connection of `client`; `false` if there is none.
    fn make_room(&mut self, client: ConnectionSource) -> bool {
        let open = self.open().count();
        if self.connections.len() - open >= self.closing_limit {
            return false;
        }
        let own = self.open().filter(|c| c.client == client).count();
        if own >= self.per_client {
            return self.close_oldest(|c| c.client == client && c.waiting);
        }
        if open < self.limit {
            return true;
        }
        let mut counts = HashMap::new();
        for connection in self.open() {
            *counts.entry(connection.client).or_insert(0) += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let has_most = |c: &Connection| counts.get(&c.client) == Some(&most);
        self.close_oldest(|c| c.waiting && has_most(c))
            || (most > own && self.close_oldest(has_most))
    }

    /// Closes the connection that changed least recently of those that `may_close` accepts.
    fn close_oldest(&mut self, may_close: impl Fn(&Connection) -> bool) -> bool {
        let oldest = self
            .connections
            .values_mut()
            .filter(|connection| connection.close.is_some() && may_close(connection))
            .min_by_key(|connection| connection.changed);
        oldest
            .and_then(|connection| connection.close.take())
            .is_some()
    }

    /// Adds a response of `bytes`. Beyond the bound the sources with the most unread bytes lose their oldest responses,
    /// which may be this one.
    fn add_unread(&mut self, id: u64, bytes: usize) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.unread = bytes;
        }
        loop {
            let mut unread = HashMap::new();
            for connection in self.open() {
                *unread.entry(connection.client).or_insert(0) += connection.unread;
            }
            if unread.values().sum::<usize>() <= MAX_UNREAD {
                return;
            }
            let most = unread.values().copied().max();
            self.close_oldest(|c| c.unread > 0 && unread.get(&c.client).copied() == most);
        }
    }
}

#[derive(Debug)]
struct Table {
    node: Group,
    others: Group,
    /// Numbers connections and their changes.
    next: u64,
}

impl Table {
    fn group(&mut self, client: ConnectionSource) -> &mut Group {
        match client {
            ConnectionSource::Node => &mut self.node,
            ConnectionSource::Other(_) => &mut self.others,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// All connections to the endpoints.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    table: Arc<Mutex<Table>>,
}

impl Slots {
    /// With at most a quarter of the file descriptors, and as many again while they are being closed: netlink and the
    /// kernel programs take precedence.
    pub(super) fn new(descriptors: usize) -> Self {
        let limit = MAX_CONNECTIONS.min(descriptors / 4) / 2;
        let group = |per_client: usize| Group {
            connections: HashMap::new(),
            limit,
            per_client: per_client.min(limit),
            closing_limit: limit.max(MAX_CLOSING.min(descriptors / 8)),
        };
        Self {
            table: Arc::new(Mutex::new(Table {
                node: group(limit),
                others: group(PER_SOURCE),
                next: 0,
            })),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No code panics while holding the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a new connection, if need be that of another one, which is closed; `None` if none gives way.
    pub(super) fn admit(&self, client: ConnectionSource) -> Option<Slot> {
        let mut table = self.lock();
        if !table.group(client).make_room(client) {
            return None;
        }
        let id = table.number();
        let (close, closed) = oneshot::channel();
        let connection = Connection {
            client,
            waiting: true,
            changed: id,
            unread: 0,
            close: Some(close),
        };
        table.group(client).connections.insert(id, connection);
        let handle = SlotHandle {
            slots: self.clone(),
            client,
            id,
        };
        Some(Slot { handle, closed })
    }

    /// Closes one connection, because the process has no descriptor left; one of the others first, and one that waits.
    pub(super) fn shed(&self) -> bool {
        let mut table = self.lock();
        let Table { node, others, .. } = &mut *table;
        others.close_oldest(|c| c.waiting)
            || others.close_oldest(|_| true)
            || node.close_oldest(|c| c.waiting)
    }
}

/// The slot of a connection, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    handle: SlotHandle,
    closed: oneshot::Receiver<()>,
}

impl Slot {
    /// Follows the requests of the connection.
    pub(super) fn handle(&self) -> SlotHandle {
        self.handle.clone()
    }

    /// Returns once the connection has to give way.
    pub(super) async fn closed(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.closed).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let SlotHandle { slots, client, id } = &self.handle;
        slots.lock().group(*client).connections.remove(id);
    }
}

/// Notes what a connection does.
#[derive(Clone, Debug)]
pub(super) struct SlotHandle {
    slots: Slots,
    client: ConnectionSource,
    id: u64,
}

impl SlotHandle {
    /// Who is connected.
    pub(super) fn client(&self) -> ConnectionSource {
        self.client
    }

    /// From now on until the result is dropped, the connection is being answered.
    pub(super) fn answer(&self) -> Answering {
        self.change(false);
        Answering(self.clone())
    }

    fn change(&self, waiting: bool) {
        let mut table = self.slots.lock();
        let changed = table.number();
        if let Some(connection) = table.group(self.client).connections.get_mut(&self.id) {
            connection.waiting = waiting;
            connection.changed = changed;
            connection.unread = 0;
        }
    }
}

/// A connection is being answered.
#[derive(Debug)]
pub(super) struct Answering(SlotHandle);

impl Answering {
    /// Counts the bytes of a complete response until it is sent.
    pub(super) fn holds(&self, bytes: usize) {
        let SlotHandle { slots, client, id } = &self.0;
        slots.lock().group(*client).add_unread(*id, bytes);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.change(true);
    }
}

#[cfg(test)]
mod tests;
