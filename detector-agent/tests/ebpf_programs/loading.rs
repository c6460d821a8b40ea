//! What loading needs.

use std::io::Write;

use detector_agent::observe::ebpf::{BtfProblem, EbpfOptions, LoadError, Programs};

fn load_with_btf(content: Option<&[u8]>) -> LoadError {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content.unwrap_or_default()).unwrap();
    let path = file.path().to_owned();
    if content.is_none() {
        drop(file);
    }
    let options = EbpfOptions {
        btf: Some(path.clone()),
        ..EbpfOptions::default()
    };
    let error = Programs::load(&options).unwrap_err();
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
    assert!(!error.to_string().contains('\n'), "{error}");
    error
}

#[test]
fn a_kernel_without_type_information_is_named() {
    assert!(matches!(
        load_with_btf(Some(&[])),
        LoadError::Btf {
            problem: BtfProblem::Empty,
            ..
        }
    ));
    assert!(matches!(
        load_with_btf(None),
        LoadError::Btf {
            problem: BtfProblem::Unreadable(_),
            ..
        }
    ));
}

#[test]
fn broken_type_information_is_named() {
    let whole = std::fs::read("/sys/kernel/btf/vmlinux").unwrap();
    for broken in [
        &b"not BTF at all"[..],
        &whole[..4096],
        &whole[..whole.len() / 2],
        &[0; 4096],
    ] {
        assert!(matches!(
            load_with_btf(Some(broken)),
            LoadError::Btf {
                problem: BtfProblem::Unusable(_),
                ..
            }
        ));
    }
}

#[test]
fn a_copy_of_the_type_information_serves() {
    let options = EbpfOptions {
        btf: Some("/sys/kernel/btf/vmlinux".into()),
        ..EbpfOptions::default()
    };
    let (programs, _) = Programs::load(&options).unwrap();
    assert!(programs.neighbour_events());
}

#[test]
fn a_ring_of_any_size_is_rounded_to_one_the_kernel_takes() {
    for ring_bytes in [0, 1, 4096, 5000, 1 << 20, (1 << 20) + 1] {
        let options = EbpfOptions {
            ring_bytes,
            ..EbpfOptions::default()
        };
        Programs::load(&options).unwrap();
    }
}
