//! The node agent: observes the kernel, keeps who claims which address, reports conflicts.
//!
//! The folders are the flow: [`observe`] → [`detect`] → [`identify`] → [`report`] → people ([`http`]).

pub mod agent;
pub mod cli;
pub mod detect;
pub mod identify;
pub mod observe;
pub mod report;
