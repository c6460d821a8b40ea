//! The `detector-agent` binary.

fn main() {}
