//! Where our filter has to be among those on a device's ingress side to run first.
//!
//! The kernel runs filters by priority, and those that share one from the newest to the oldest. Only `bpf` filters for all
//! protocols can share a priority with ours: the kernel refuses another kind or protocol in a priority that is in use.

use super::tc::{Place, TcFilter};

/// Our priority as long as no other filter has a lower one. The kernel gives filters without a priority the numbers from
/// 0xC000 down to 0x8000, so none of them runs before ours. The low numbers stay free for others: the kernel
/// refuses a filter of another kind at a priority that we use.
const LAST_PRIORITY: u16 = 0x7fff;
/// The first of our handles, far from those that the kernel and other tools count up from 1, so that no `tc filter replace …
/// handle 1` of others replaces ours.
const HANDLE: u32 = 0x4950_4344;

/// A free place for a filter of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreePlace {
    pub(super) place: Place,
    /// How many filters of others run before it.
    pub(super) preceded_by: usize,
}

/// The first free place among `filters`, which are all of a device, in the order in which they run. `ours` is the index of our
/// present filter, which will be removed.
pub(super) fn first_free(filters: &[TcFilter], ours: Option<usize>) -> FreePlace {
    let (priority, preceded_by) = first_priority(filters, ours);
    let is_free = |handle: &u32| {
        let place = Place {
            priority,
            handle: *handle,
        };
        filters.iter().all(|filter| filter.place != place)
    };
    let handle = (HANDLE..).find(is_free).unwrap_or(HANDLE);
    FreePlace {
        place: Place { priority, handle },
        preceded_by,
    }
}

/// The first priority that a filter of ours can have, and how many filters of others run before it then.
fn first_priority(filters: &[TcFilter], ours: Option<usize>) -> (u16, usize) {
    let mut passed = 0;
    let mut preceded_by = 0;
    let others = filters.iter().enumerate();
    for (_, other) in others.filter(|(index, _)| Some(*index) != ours) {
        let priority = other.place.priority;
        if priority > passed {
            let before = priority.saturating_sub(1).min(LAST_PRIORITY);
            if before > passed {
                return (before, preceded_by);
            }
            if other.is_for_any_bpf() {
                return (priority, preceded_by);
            }
            passed = priority;
        }
        preceded_by += 1;
    }
    (LAST_PRIORITY.max(passed.saturating_add(1)), preceded_by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::ebpf::tc::ALL_PROTOCOLS;

    fn filter(priority: u16, handle: u32, kind: &str) -> TcFilter {
        TcFilter {
            place: Place { priority, handle },
            protocol: ALL_PROTOCOLS,
            kind: kind.to_owned(),
            name: None,
        }
    }

    /// The free place's priority and what precedes it, among filters with these priorities and kinds.
    fn free(others: &[(u16, &str)]) -> (u16, usize) {
        let filters: Vec<_> = others
            .iter()
            .map(|(priority, kind)| filter(*priority, 1, kind))
            .collect();
        let free = first_free(&filters, None);
        assert_eq!(free.place.handle, HANDLE);
        (free.place.priority, free.preceded_by)
    }

    #[test]
    fn kernel_chosen_priorities_leave_room() {
        assert_eq!(free(&[]), (LAST_PRIORITY, 0));
        assert_eq!(free(&[(0xc000, "bpf")]), (LAST_PRIORITY, 0));
        assert_eq!(free(&[(0x8000, "u32")]), (LAST_PRIORITY, 0));
    }

    #[test]
    fn place_is_just_before_the_first_filter() {
        assert_eq!(free(&[(0x7fff, "bpf")]), (0x7ffe, 0));
        assert_eq!(free(&[(7, "u32"), (9, "bpf")]), (6, 0));
        assert_eq!(free(&[(2, "u32")]), (1, 0));
    }

    #[test]
    fn priority_1_is_shared_with_bpf_filters_only() {
        assert_eq!(free(&[(1, "bpf"), (5, "u32")]), (1, 0));
        assert_eq!(free(&[(1, "u32")]), (LAST_PRIORITY, 1));
        assert_eq!(free(&[(1, "u32"), (1, "u32"), (5, "u32")]), (4, 2));
        assert_eq!(free(&[(1, "u32"), (2, "bpf")]), (2, 1));
        assert_eq!(free(&[(1, "u32"), (2, "flower")]), (LAST_PRIORITY, 2));
        let for_arp = TcFilter {
            protocol: 0x0806_u16.to_be(),
            ..filter(1, 1, "bpf")
        };
        assert_eq!(first_free(&[for_arp], None).preceded_by, 1);
    }

    #[test]
    fn our_present_filter_is_no_obstacle_but_keeps_its_handle() {
        let preempted = [filter(1, 9, "bpf"), filter(1, HANDLE, "bpf")];
        let free = first_free(&preempted, Some(1));
        let place = Place {
            priority: 1,
            handle: HANDLE + 1,
        };
        assert_eq!((free.place, free.preceded_by), (place, 0));
        let first = [filter(6, HANDLE, "bpf"), filter(7, 1, "u32")];
        assert_eq!(
            first_free(&first, Some(0)).place,
            Place {
                handle: HANDLE + 1,
                priority: 6
            }
        );
        // Another program replaced ours: its filter has our handle.
        assert_eq!(
            first_free(&first, None).place,
            Place {
                handle: HANDLE,
                priority: 5
            }
        );
    }

    #[test]
    fn every_priority_may_be_taken() {
        let full: Vec<_> = (1..=u16::MAX)
            .map(|priority| filter(priority, 1, "u32"))
            .collect();
        assert_eq!(first_free(&full, None).preceded_by, full.len());
    }
}
