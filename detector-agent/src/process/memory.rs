//! Memory that is only needed at the start.

/// Returns freed memory to the kernel. Reading the kernel's BTF takes some 20 MiB in small pieces, and the first snapshot
/// some KiB for each pod, which the allocator would otherwise keep.
pub fn release_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) is thread-safe and only touches free memory.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
