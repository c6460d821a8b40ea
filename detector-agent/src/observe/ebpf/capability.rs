//! The first capability that this thread is missing.

use std::fs;

const NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const SYS_ADMIN: u32 = 21;
const PERFMON: (u32, &str) = (38, "CAP_PERFMON");
const BPF: (u32, &str) = (39, "CAP_BPF");

/// The first missing capability of those that loading and attaching need. Also `None` if `/proc` cannot be read: the kernel
/// will then refuse the load.
pub(super) fn missing() -> Option<&'static str> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    missing_from(effective(&status)?)
}

fn effective(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn missing_from(effective: u64) -> Option<&'static str> {
    let has = |bit: u32| effective & (1 << bit) != 0;
    // CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON, which were split from it in Linux 5.8.
    [BPF, PERFMON]
        .into_iter()
        .find(|(bit, _)| !has(*bit) && !has(SYS_ADMIN))
        .or_else(|| Some(NET_ADMIN).filter(|(bit, _)| !has(*bit)))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_missing_capability_is_named() {
        let bit = |bits: &[u32]| bits.iter().fold(0_u64, |all, bit| all | 1 << bit);
        assert_eq!(missing_from(0), Some("CAP_BPF"));
        assert_eq!(missing_from(bit(&[39])), Some("CAP_PERFMON"));
        assert_eq!(missing_from(bit(&[39, 38])), Some("CAP_NET_ADMIN"));
        assert_eq!(missing_from(bit(&[21])), Some("CAP_NET_ADMIN"));
        assert_eq!(missing_from(bit(&[39, 38, 12])), None);
        assert_eq!(missing_from(bit(&[21, 12])), None);
    }

    #[test]
    fn effective_set_is_read_from_the_status_file() {
        assert_eq!(
            effective("Name:\tx\nCapPrm:\t00\nCapEff:\t000001ffffffffff\n"),
            Some(0x1ff_ffff_ffff)
        );
        assert_eq!(effective("Name:\tx\n"), None);
    }
}
