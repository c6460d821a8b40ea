//! Turns what the kernel tells into [`Observation`](crate::detect::Observation)s.

pub mod ebpf;
pub mod netlink;
