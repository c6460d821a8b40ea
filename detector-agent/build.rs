//! Puts the eBPF object where the agent includes it from.
//!
//! `cargo xtask` builds the object and names it in `DETECTOR_EBPF_OBJECT`. Without that variable an
//! empty stub takes its place, so that the workspace compiles, lints and unit-tests on a machine
//! without any BPF toolchain; an agent with the stub inside refuses to `run`.

use std::{env, fs, io, path::Path};

const VARIABLE: &str = "DETECTOR_EBPF_OBJECT";

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let out_dir = env::var("OUT_DIR").map_err(|error| format!("OUT_DIR: {error}"))?;
    let embedded = Path::new(&out_dir).join("detector-ebpf.o");
    match env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(object) => {
            println!("cargo::rerun-if-changed={}", object.display());
            fs::copy(&object, &embedded)
                .map(drop)
                .map_err(|error| not_copied(&object.display().to_string(), &embedded, &error))
        }
        None => {
            fs::write(&embedded, []).map_err(|error| not_copied("an empty stub", &embedded, &error))
        }
    }
}

fn not_copied(from: &str, to: &Path, error: &io::Error) -> String {
    format!("could not put {from} at {}: {error}", to.display())
}
