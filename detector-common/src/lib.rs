//! The records the kernel programs and the agent share.
#![no_std]
