//! The modules of the engine follow its flow: each uses those before it only, so there is no circle between files of different ones.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test reads the source, and fails by panicking"
)]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// In the order of the flow, as in the documentation of the crate.
const MODULES: [&str; 6] = ["model", "limits", "mirror", "rules", "track", "step"];

/// Beside the flow: it uses the model alone, and no module of the flow uses it.
const DIAGNOSIS: &str = "diagnosis";

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// The paths below `crate::{…}` of the code, without the comments: `mirror`, `model`.
fn modules_used(source: &str) -> Vec<&'static str> {
    let all = MODULES.iter().chain([&DIAGNOSIS]).copied();
    all.filter(|module| is_used(module, source)).collect()
}

fn is_used(module: &str, source: &str) -> bool {
    let code: String = source
        .lines()
        .map(|line| line.split("//").next().unwrap())
        .collect();
    let code: String = code.split_whitespace().collect();
    let direct = format!("crate::{module}::");
    // Of a nested import, what begins a path: after a brace or a comma.
    let nested = code.split("usecrate::{").skip(1).any(|import| {
        let import = import.split(';').next().unwrap();
        let mut depth = 0;
        let mut at_begin = true;
        for (position, character) in import.char_indices() {
            if at_begin && depth == 0 && import[position..].starts_with(&format!("{module}::")) {
                return true;
            }
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            at_begin = character == ',';
        }
        false
    });
    code.contains(&direct) || nested
}

#[test]
fn modules_use_those_before_them_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (rank, module) in MODULES.iter().enumerate() {
        for file in sources(&source.join(module)) {
            let text = fs::read_to_string(&file).unwrap();
            for used in modules_used(&text) {
                assert_ne!(used, DIAGNOSIS, "{} uses it", file.display());
                let used_rank = MODULES.iter().position(|known| *known == used).unwrap();
                assert!(
                    used_rank <= rank,
                    "{} is in {module} and uses {used}",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn diagnosis_uses_the_model_alone() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&source.join(DIAGNOSIS)) {
        let used = modules_used(&fs::read_to_string(&file).unwrap());
        let foreign = |used: &&str| ![DIAGNOSIS, "model"].contains(used);
        assert!(
            !used.iter().any(foreign),
            "{} uses {used:?}",
            file.display()
        );
    }
}

#[test]
fn imports_are_recognised() {
    let source = "use crate::{\n    mirror::links::Links,\n    model::{conflict::Claimant, track::X},\n    step,\n};\n";
    assert_eq!(modules_used(source), ["model", "mirror"]);
    assert_eq!(
        modules_used("let x = crate::rules::f(); // crate::track::y"),
        ["rules"]
    );
    assert_eq!(modules_used("use crate::step::Engine;"), ["step"]);
}
