//! How host names are resolved.

/// Resolves host names by /etc/hosts and DNS only, in a static executable.
///
/// glibc would load the modules that /etc/nsswitch.conf names (`resolve`, `mymachines`, `sss`) as shared libraries, which
/// were built for the glibc of the system, not for the one that is linked statically.
pub fn use_built_in_modules() {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
    {
        use std::ffi::{c_char, c_int};

        unsafe extern "C" {
            // nss.h
            fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
        }
        // SAFETY: both strings end with a zero byte, and no other thread resolves names yet.
        let result = unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
        // It fails for an unknown database or a malformed list, which these are not.
        debug_assert_eq!(result, 0);
    }
}
