//! A set that nearly always has one or two elements: a pod has one address and a link-local one, an address one claimant. One element
//! needs no allocation of its own, and few are a list of exactly that length; more are kept in a tree, so that a set which a pod makes
//! grow stays fast.

use std::{collections::BTreeSet, slice};

/// The most elements of a list.
const FEW: usize = 8;

/// See the module.
#[expect(
    clippy::box_collection,
    reason = "a tree is larger than any element, and rare"
)]
#[derive(Clone, Debug, Default)]
pub(super) enum SmallSet<T> {
    #[default]
    Empty,
    One(T),
    /// Two to [`FEW`], sorted.
    Few(Box<[T]>),
    /// Any number; rare.
    Many(Box<BTreeSet<T>>),
}

impl<T: Ord> SmallSet<T> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Many(all) => all.len(),
            few => few.few().len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements that are not in a tree.
    fn few(&self) -> &[T] {
        match self {
            Self::One(only) => slice::from_ref(only),
            Self::Few(few) => few,
            Self::Empty | Self::Many(_) => &[],
        }
    }

    pub(super) fn contains(&self, wanted: &T) -> bool {
        match self {
            Self::Many(all) => all.contains(wanted),
            few => few.few().contains(wanted),
        }
    }

    /// `true` if it was not in the set.
    pub(super) fn insert(&mut self, new: T) -> bool {
        if let Self::Many(all) = self {
            return all.insert(new);
        }
        if self.contains(&new) {
            return false;
        }
        *self = match std::mem::take(self) {
            Self::One(only) if only < new => Self::Few(Box::new([only, new])),
            Self::One(only) => Self::Few(Box::new([new, only])),
            Self::Few(few) if few.len() < FEW => {
                let place = few.partition_point(|known| *known < new);
                let mut few = few.into_vec();
                few.insert(place, new);
                Self::Few(few.into_boxed_slice())
            }
            Self::Few(few) => Self::Many(Box::new(few.into_iter().chain([new]).collect())),
            Self::Empty | Self::Many(_) => Self::One(new),
        };
        true
    }

    /// `true` if it was in the set.
    pub(super) fn remove(&mut self, old: &T) -> bool {
        if !self.contains(old) {
            return false;
        }
        match self {
            Self::Many(all) => {
                all.remove(old);
            }
            Self::Few(few) => {
                let mut left = std::mem::take(few).into_vec();
                left.retain(|known| known != old);
                *few = left.into_boxed_slice();
            }
            Self::One(_) | Self::Empty => *self = Self::Empty,
        }
        if self.is_empty() {
            *self = Self::Empty;
        }
        true
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        let all = match self {
            Self::Many(all) => Some(all.iter()),
            _ => None,
        };
        self.few().iter().chain(all.into_iter().flatten())
    }

    pub(super) fn last(&self) -> Option<&T> {
        self.iter().next_back()
    }
}

impl<T: Ord + Copy> SmallSet<T> {
    pub(super) fn pop_first(&mut self) -> Option<T> {
        let first = self.iter().next().copied()?;
        self.remove(&first);
        Some(first)
    }
}

impl<T: Ord> Extend<T> for SmallSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.insert(item);
        }
    }
}

impl<'a, T: Ord + Copy + 'a> Extend<&'a T> for SmallSet<T> {
    fn extend<I: IntoIterator<Item = &'a T>>(&mut self, items: I) {
        self.extend(items.into_iter().copied());
    }
}

/// Adds to a list that nearly always has one element, without room for more until there are more.
pub(super) fn push_compact<T>(list: &mut Vec<T>, item: T) {
    if list.is_empty() {
        list.reserve_exact(1);
    }
    list.push(item);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_tree_set(ops in proptest::collection::vec((0..5_u8, 0..12_u8), 0..60)) {
            let (mut small, mut model) = (SmallSet::default(), BTreeSet::new());
            for (op, value) in ops {
                match op {
                    0..=2 => prop_assert_eq!(small.insert(value), model.insert(value)),
                    3 => prop_assert_eq!(small.remove(&value), model.remove(&value)),
                    _ => prop_assert_eq!(small.pop_first(), model.pop_first()),
                }
                prop_assert!(small.iter().eq(model.iter()));
                prop_assert_eq!(small.len(), model.len());
                prop_assert_eq!(small.is_empty(), model.is_empty());
                prop_assert_eq!(small.last(), model.last());
                prop_assert_eq!(small.contains(&value), model.contains(&value));
            }
        }
    }

    #[test]
    fn one_element_needs_no_room_for_more() {
        let mut list = Vec::new();
        push_compact(&mut list, 7_u64);
        assert_eq!(list.capacity(), 1);
        push_compact(&mut list, 8);
        assert_eq!(list, [7, 8]);
    }
}
