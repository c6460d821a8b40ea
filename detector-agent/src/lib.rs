//! The node agent: observes the kernel, tracks which device claims which address, and reports conflicts.
//!
//! The modules follow the data flow: [`observe`] → [`detector_engine`] → [`detector_event`] → [`sinks`] and
//! [`http`]; [`pods`] looks up the pod of each device.

pub mod agent;
pub mod check;
pub mod cleanup;
pub mod cli;
pub mod config;
mod diagnosis;
pub mod event_loop;
pub mod explain;
pub mod fleet;
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod health;
pub mod http;
pub mod ipam;
pub mod kube_client;
pub mod metrics;
pub mod observe;
pub mod persist;
pub mod pods;
pub mod process;
pub mod sinks;
pub mod watch;
