//! Test harness: to come.
