//! Memory that is needed only at the start.

/// Gives back to the kernel what was freed. Reading the kernel's types takes some 40 MiB in small pieces, of which the
/// allocator would keep several MiB for as long as the agent lives.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks and touches only memory that nobody has (malloc_trim(3)).
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
