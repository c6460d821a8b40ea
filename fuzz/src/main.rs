//! Runs libFuzzer over the target named by `FUZZ_TARGET`. `cargo xtask fuzz` builds it with coverage and starts it.
#![no_main]

use std::{env, process, sync::OnceLock};

use detector_fuzz::{FuzzTarget, find};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<&'static FuzzTarget> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = env::var("FUZZ_TARGET").unwrap_or_default();
        find(&name).unwrap_or_else(|| {
            eprintln!("FUZZ_TARGET is `{name}`, which is not a target; use `cargo xtask fuzz`");
            process::exit(2)
        })
    });
    (target.run)(bytes);
});
