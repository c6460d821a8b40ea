//! Shared by the tests, the demo, the benchmarks and the soak: network namespaces that act as a node and its pods, frames
//! sent from inside a pod, real CNI plugins and containerd, a running agent whose events are read, fake Kubernetes and webhook
//! servers, and published incidents as data.
//!
//! It uses the agent only from outside: its binary, command line, endpoints and event lines. Waiting is always with a
//! deadline: [`until`] polls any condition; [`Agent`], [`Receiver`] and [`KubeApi`] have waits of their own that do not poll.

pub mod agent;
pub mod alertmanager;
pub mod barrier;
pub mod browser;
pub mod cluster;
pub mod cni;
mod command;
pub mod container;
pub mod containerd;
pub mod contract;
mod cri;
pub mod daemon;
pub mod event;
pub mod frames;
pub mod golden;
pub mod http;
pub mod image;
pub mod kube_api;
mod leftovers;
pub mod mac;
pub mod mounts;
pub mod netns;
pub mod node;
pub mod open_conflicts;
pub mod pause_image;
pub mod pod_clients;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod random;
pub mod receiver;
pub mod scenario;
pub mod tls;
pub mod traffic;
mod wait;

pub use agent::{
    Agent, AgentCommand, DEADLINE, EventLines, LOOK_ARGS, Outcome, RUN_ARGS, ReceivedEvent,
};
pub use barrier::Barrier;
pub use cluster::Cluster;
pub use cni::{Cni, CniPod};
pub use container::{Container, ContainerSpec, HostMount, Seccomp};
pub use containerd::Containerd;
pub use event::Event;
pub use frames::{ArpOperation, ExtensionHeader, Frame, FrameSender, NaFlags, announce};
pub use kube_api::KubeApi;
pub use mac::MacAddress;
pub use mounts::PrivateMounts;
pub use netns::{Netns, remove_all_namespaces};
pub use node::{Node, POD_DEVICE, Pod, PodSpec};
pub use open_conflicts::{
    OpenConflicts, conflicts_from_api, conflicts_from_check, conflicts_from_events,
};
pub use pod_clients::{ClientBehaviour, PodClients, send_half_open};
pub use receiver::{Behaviour, ReceivedRequest, Receiver};
pub use traffic::wait_reachable;
pub use wait::until;
