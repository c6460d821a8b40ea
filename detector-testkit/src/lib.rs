//! What tests, the demo and the benches stand on: namespaces that play a node and its pods, frames sent from inside a
//! pod, real CNI plugins, a running agent whose events are read as they come, and incidents from the field as data.
//!
//! It knows the agent only from outside: its binary, its command line and the event lines it writes.

pub mod agent;
pub mod barrier;
pub mod browser;
pub mod cni;
pub mod container;
pub mod containerd;
pub mod contract;
mod cri;
pub mod event;
pub mod frames;
pub mod http;
pub mod kube_api;
pub mod mac;
pub mod mounts;
pub mod netns;
pub mod node;
pub mod open;
pub mod pause;
pub mod process;
pub mod prometheus;
pub mod random;
pub mod receiver;
pub mod scenario;
pub mod server;
pub mod traffic;

pub use agent::{Agent, AgentCommand, DEADLINE, Outcome, RUN, Received};
pub use barrier::Barrier;
pub use cni::{Cni, CniPod};
pub use container::{Container, ContainerSpec, HostMount, Seccomp};
pub use containerd::Containerd;
pub use event::Event;
pub use frames::{ArpOperation, Frame, FrameSender, NaFlags, announce};
pub use kube_api::KubeApi;
pub use mac::Mac;
pub use mounts::PrivateMounts;
pub use netns::{Netns, remove_living_namespaces};
pub use node::{Node, POD_DEVICE, Pod, PodSpec};
pub use open::{Open, fresh_look, open_conflicts, told_open};
pub use receiver::{Mood, Posted, Receiver};
pub use traffic::reach;
