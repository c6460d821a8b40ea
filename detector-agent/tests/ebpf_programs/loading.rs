//! Loading, and errors of loading.

use std::io::Write;

use detector_agent::observe::ebpf::{BtfProblem, EbpfOptions, KernelLog, LoadError, Programs};

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
fn kernel_without_btf_is_reported() {
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
fn malformed_btf_is_reported() {
    let complete = std::fs::read("/sys/kernel/btf/vmlinux").unwrap();
    for broken in [
        &b"not BTF at all"[..],
        &complete[..4096],
        &complete[..complete.len() / 2],
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
fn btf_may_come_from_another_file() {
    let options = EbpfOptions {
        btf: Some("/sys/kernel/btf/vmlinux".into()),
        ..EbpfOptions::default()
    };
    let (programs, _) = Programs::load(&options).unwrap();
    assert!(programs.has_neighbour_events());
}

#[test]
fn any_ring_size_is_rounded_to_a_valid_one() {
    for ring_bytes in [0, 1, 4096, 5000, 1 << 20, (1 << 20) + 1] {
        let options = EbpfOptions {
            ring_bytes,
            ..EbpfOptions::default()
        };
        Programs::load(&options).unwrap();
    }
}

#[test]
fn verifier_removes_the_kernel_log_while_it_is_off() {
    let sizes = |kernel_log| {
        let options = EbpfOptions {
            kernel_log,
            ..EbpfOptions::default()
        };
        let (programs, _) = Programs::load(&options).unwrap();
        programs.translated_sizes().unwrap()
    };
    let sizes = sizes(KernelLog::Off).into_iter().zip(sizes(KernelLog::All));
    for ((name, without), (other_name, with)) in sizes {
        assert_eq!(name, other_name);
        // The code that writes a line is far larger than what checks the switch.
        assert!(
            without > 0 && without + 4_000 < with,
            "{name}: {without}, {with}"
        );
    }
}

/// The verifier follows every path: one branch more in a loop of the parser can multiply its work, and the time of a start.
#[test]
fn verifier_work_is_bounded() {
    let (programs, _) = Programs::load(&EbpfOptions::default()).unwrap();
    let verified = programs.verified_instructions().unwrap();
    println!("verified instructions: {verified:?}");
    // The largest needs about 38,000 on Linux 6.18 and 63,000 on 6.1.
    assert!(
        verified
            .iter()
            .all(|(_, count)| (1..100_000).contains(count)),
        "{verified:?}"
    );
}
