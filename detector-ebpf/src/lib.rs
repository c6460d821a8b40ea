//! Kernel programs: to come.
#![no_std]
