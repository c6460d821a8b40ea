//! Messages of other threads to the event loop.

use std::net::IpAddr;

use detector_engine::PoolUpdate;
use detector_event::SubjectId;

use super::Query;
use crate::{
    fleet::FleetMessage, observe::worker::WorkerEvent, pods::LookupUpdate,
    process::mailbox::MailboxSender,
};

/// A message to the event loop.
#[derive(Debug)]
pub enum LoopMessage {
    /// From the kernel worker.
    Worker(WorkerEvent),
    /// A query of the current state.
    Query(Query),
    /// Pods behind devices, or networks of devices, became known.
    Lookups(LookupUpdate),
    /// An IPAM pool was read or removed.
    Pool(PoolUpdate),
    /// A conflict or an anomaly about this address was explained; whether that is news.
    Diagnosed(SubjectId, IpAddr, bool),
    /// The state of conflicts across nodes.
    Fleet(FleetMessage),
    /// End the loop.
    Stop,
}

/// Sends messages to the event loop.
pub type EventLoopHandle = MailboxSender<LoopMessage>;
