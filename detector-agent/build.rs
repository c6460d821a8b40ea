//! Copies the eBPF objects to `OUT_DIR`, from where the agent, and its tests and benchmarks, embed them.
//!
//! `cargo xtask` builds the objects and passes the path of the agent's in `DETECTOR_EBPF_OBJECT`; the one for tests and
//! benchmarks is beside it. Without the variable, empty stubs are embedded, so that the workspace can be compiled, linted and
//! unit-tested without a BPF toolchain; an agent with the stub refuses to `run`.

use std::{env, fs, io, path::Path};

const OBJECT_VARIABLE: &str = "DETECTOR_EBPF_OBJECT";
/// The agent's programs, and the empty program of tests and benchmarks.
const OBJECTS: [&str; 2] = ["detector-ebpf.o", "detector-ebpf-empty.o"];

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed={OBJECT_VARIABLE}");
    let out_dir = env::var("OUT_DIR").map_err(|error| format!("OUT_DIR: {error}"))?;
    let built = env::var_os(OBJECT_VARIABLE).filter(|value| !value.is_empty());
    for name in OBJECTS {
        let embedded = Path::new(&out_dir).join(name);
        match &built {
            Some(object) => {
                let object = Path::new(object).with_file_name(name);
                println!("cargo::rerun-if-changed={}", object.display());
                fs::copy(&object, &embedded).map(drop).map_err(|error| {
                    copy_failure(&object.display().to_string(), &embedded, &error)
                })?;
            }
            None => fs::write(&embedded, [])
                .map_err(|error| copy_failure("an empty object", &embedded, &error))?,
        }
    }
    Ok(())
}

fn copy_failure(from: &str, to: &Path, error: &io::Error) -> String {
    format!("cannot copy {from} to {}: {error}", to.display())
}
