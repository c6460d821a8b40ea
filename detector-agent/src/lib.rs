//! The node agent: observes the kernel, keeps who claims which address, reports conflicts.
//!
//! The folders are the flow: [`observe`] → [`detect`] → [`identify`] → [`report`] → people ([`http`]).

pub mod agent;
pub mod check;
pub mod cli;
pub mod clock;
pub mod config;
pub mod detect;
pub mod detection;
#[doc(hidden)]
pub mod fuzzing;
pub mod health;
pub mod http;
pub mod identify;
pub mod instance;
pub mod ipam;
pub mod logging;
pub mod memory;
pub mod node;
pub mod observe;
pub mod report;
pub mod state;
pub mod store;
pub mod watch;
