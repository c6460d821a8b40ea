//! The process: its clocks, threads, timers and log, its name and its lock on the node, and what it takes of the system.

pub mod clock;
pub mod descriptors;
pub mod instance;
pub(crate) mod log_budget;
pub mod logging;
pub mod mailbox;
pub mod memory;
pub mod node;
pub mod threads;
pub mod timer;
pub(crate) mod token_bucket;
