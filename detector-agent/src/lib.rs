//! The node agent: observes the kernel, tracks which device claims which address, and reports conflicts.
//!
//! The modules follow the data flow: [`observe`] → [`detector_engine`] → [`detector_event`] → [`sinks`] and [`http`]; [`pods`] looks up the
//! pod of each device.
//!
//! Without the feature `node` only what `kubectl ipconflict` needs is left: it then depends neither on eBPF nor on netlink and
//! is meant for other systems than Linux, too.
#![cfg_attr(
    not(feature = "node"),
    allow(
        dead_code,
        reason = "parts of shared modules are used by the agent only"
    )
)]

#[cfg(feature = "node")]
pub mod agent;
pub mod agent_client;
#[cfg(feature = "node")]
pub mod check;
#[cfg(feature = "node")]
pub mod cleanup;
#[cfg(feature = "node")]
pub mod cli;
pub mod clock;
#[cfg(feature = "node")]
pub mod config;
#[cfg(feature = "node")]
pub mod descriptors;
#[cfg(feature = "node")]
pub mod event_loop;
#[cfg(feature = "node")]
pub mod fleet;
#[doc(hidden)]
#[cfg(all(feature = "node", feature = "fuzzing"))]
pub mod fuzzing;
pub mod health;
#[cfg(feature = "node")]
pub mod http;
#[cfg(feature = "node")]
pub mod instance;
#[cfg(feature = "node")]
pub mod ipam;
#[cfg(feature = "node")]
pub mod kube_client;
pub mod kubectl;
#[cfg(feature = "node")]
mod log_budget;
#[cfg(feature = "node")]
pub mod logging;
#[cfg(feature = "node")]
pub mod mailbox;
#[cfg(feature = "node")]
pub mod memory;
#[cfg(feature = "node")]
pub mod metrics;
pub mod name_service;
#[cfg(feature = "node")]
pub mod node;
#[cfg(feature = "node")]
pub mod observe;
pub mod packaging;
#[cfg(feature = "node")]
pub mod persist;
pub mod pods;
#[cfg(feature = "node")]
pub mod sinks;
#[cfg(feature = "node")]
pub mod threads;
#[cfg(feature = "node")]
pub mod timer;
#[cfg(feature = "node")]
pub mod watch;
