//! The kernel's own tables: what they hold ([`Requests`]) and how they change ([`Live`]).
//!
//! Pods are read from outside, by the id that the agent's namespace gives to theirs; no namespace is ever entered.
//! What these messages mean is decided in [`crate::engine`].

mod decode;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod lists;
mod live;
mod namespace;
mod request;
mod selection;
mod snapshot;
mod socket;

pub use lists::MAX_KEPT;
pub use live::{Drained, Live, LiveError, LiveOptions, Source};
pub(crate) use namespace::open_namespace;
pub use request::ReadError;
pub use selection::{DeviceSelector, Driver, PatternError};
pub use snapshot::{LeftOut, MAX_PER_POD, Reading, Requests};
pub use socket::OpenError;
