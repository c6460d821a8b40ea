//! From conflicts to what people and machines read.

pub mod event;
pub mod lines;
pub mod metrics;
