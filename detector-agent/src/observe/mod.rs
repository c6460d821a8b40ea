//! Turns what the kernel tells into [`Observation`](crate::detect::Observation)s.
//!
//! [`ebpf`] and [`netlink`] listen; [`worker`] does what may wait for the kernel's locks (attaching, reading tables) on a
//! thread of its own, so that listening never waits.

pub mod ebpf;
pub mod netlink;
pub mod worker;
