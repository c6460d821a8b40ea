//! The kernel's own tables: what they hold ([`Requests`]) and how they change ([`Live`]).
//!
//! Pods are read from outside, by the id that the agent's namespace gives to theirs; none is entered, except by a short-lived
//! thread for what the kernel does not tell from outside: a pod's neighbours and routes ([`inside`]).
//! What is told is what the kernel says, in its order; meaning is made of it in [`crate::detect`].

mod decode;
pub(crate) mod fuzzing;
mod lists;
mod live;
mod pod_netns_probe;
mod request;
mod selection;
mod snapshot;
mod socket;

pub use lists::MAX_KEPT;
pub use live::{Drained, Live, LiveError, LiveOptions, Source};
pub(crate) use pod_netns_probe::open_namespace;
pub use request::ReadError;
pub use selection::{DeviceSelector, Driver, PatternError};
pub use snapshot::{LeftOut, MAX_PER_POD, Reading, Requests};
pub use socket::OpenError;
