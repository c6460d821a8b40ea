//! The kernel's tables by netlink: snapshots ([`NetlinkReader`]) and notifications of changes ([`NetlinkListener`]).
//!
//! Pods are read from outside, by the id that the agent's namespace gives to theirs; no namespace is ever entered.
//! What these messages mean is decided in [`detector_engine`].

mod decode;
mod dumps;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod internal_interfaces;
mod listener;
mod namespace;
mod request;
mod route_lookup;
mod selection;
mod snapshot;
mod socket;
mod wire;

pub use dumps::MAX_OBJECTS;
pub use listener::{DrainedSocket, ListenerError, ListenerOptions, NetlinkListener};
pub(crate) use namespace::open_namespace;
pub use request::ReadError;
pub(in crate::observe) use request::{RequestError, RequestSocket};
pub use route_lookup::{NodeRoute, RouteLookup, RoutedLink};
pub use selection::{DeviceSelector, LinkDriver, PatternError};
pub use snapshot::{BoundedSnapshot, MAX_PER_POD, NetlinkReader, NodeWithoutNeighbours, Omitted};
pub use socket::OpenError;
pub(in crate::observe) use socket::{MAX_DATAGRAM, RouteSocket};
pub(in crate::observe) use wire::{RawMessage, RawMessages, Undecodable, for_each_attribute, text};
