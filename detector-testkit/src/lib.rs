//! What tests, the demo and the benches stand on: namespaces that play a node and its pods, frames sent from inside a
//! pod, real CNI plugins, a running agent whose events are read as they come, and incidents from the field as data.
//!
//! It knows the agent only from outside: its binary, its command line and the event lines it writes.

pub mod frames;
pub mod mac;
pub mod netns;
pub mod node;

pub use frames::{ArpOperation, Frame, FrameSender, NaFlags};
pub use mac::Mac;
pub use netns::{Netns, remove_living_namespaces};
pub use node::{Node, POD_DEVICE, Pod, PodSpec};
