//! Copies the eBPF object to `OUT_DIR`, from where the agent embeds it.
//!
//! `cargo xtask` builds the object and passes its path in `DETECTOR_EBPF_OBJECT`. Without the variable
//! an empty stub is embedded, so that the workspace can be compiled, linted and unit-tested without a
//! BPF toolchain; an agent with the stub refuses to `run`.

use std::{env, fs, io, path::Path};

const OBJECT_VARIABLE: &str = "DETECTOR_EBPF_OBJECT";

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed={OBJECT_VARIABLE}");
    let out_dir = env::var("OUT_DIR").map_err(|error| format!("OUT_DIR: {error}"))?;
    let embedded = Path::new(&out_dir).join("detector-ebpf.o");
    match env::var_os(OBJECT_VARIABLE).filter(|value| !value.is_empty()) {
        Some(object) => {
            println!("cargo::rerun-if-changed={}", object.display());
            fs::copy(&object, &embedded)
                .map(drop)
                .map_err(|error| copy_failure(&object.display().to_string(), &embedded, &error))
        }
        None => fs::write(&embedded, [])
            .map_err(|error| copy_failure("an empty stub", &embedded, &error)),
    }
}

fn copy_failure(from: &str, to: &Path, error: &io::Error) -> String {
    format!("could not write {from} to {}: {error}", to.display())
}
