//! libFuzzer over the target that `FUZZ_TARGET` names. Started by `cargo xtask fuzz`, which builds it with coverage.
#![no_main]

use std::{env, process, sync::OnceLock};

use detector_fuzz::{Target, find};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = env::var("FUZZ_TARGET").unwrap_or_default();
        find(&name).unwrap_or_else(|| {
            eprintln!("FUZZ_TARGET is `{name}`, which is no target; use `cargo xtask fuzz`");
            process::exit(2)
        })
    });
    (target.run)(bytes);
});
