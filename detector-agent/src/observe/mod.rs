//! Turns the kernel's events and state into [`Observation`](detector_engine::Observation)s.
//!
//! The readers of [`ebpf`] and [`netlink`] never block; [`worker`] does on its own thread what may wait for kernel locks:
//! attaching programs and taking snapshots.

pub mod ebpf;
pub mod netlink;
pub mod worker;
