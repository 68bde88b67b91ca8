//! Exclusive cores of tasks, and the cores that all others share.

use std::collections::BTreeSet;

/// The exclusive cores and the shared ones. No core is shared when `given` names all.
#[must_use]
pub fn divide(all: &[u16], given: impl IntoIterator<Item = u16>) -> (BTreeSet<u16>, BTreeSet<u16>) {
    let reserved: BTreeSet<u16> = given.into_iter().collect();
    let shared = all.iter().copied().filter(|core| !reserved.contains(core)).collect();
    (reserved, shared)
}

/// The cores for a container without exclusive ones: those of its options that are shared.
#[must_use]
pub fn narrowed(wish: &BTreeSet<u16>, open: &BTreeSet<u16>) -> BTreeSet<u16> {
    let both: BTreeSet<u16> = wish.intersection(open).copied().collect();
    if both.is_empty() { open.clone() } else { both }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_not_shared() {
        let all = [0, 1, 2, 5];
        for (given, reserved, shared) in
            [(&[][..], &[][..], &all[..]), (&[1, 5, 0], &[0, 1, 5], &[2]), (&all, &all, &[])]
        {
            let (r, s) = divide(&all, given.iter().copied());
            assert_eq!(
                (r.into_iter().collect(), s.into_iter().collect()),
                (reserved.to_vec(), shared.to_vec()),
                "{given:?}"
            );
        }
    }

    #[test]
    fn wishes_are_kept_as_far_as_they_can_be() {
        for (wish, open, expected) in [
            (&[][..], &[0, 1, 2, 3][..], &[0, 1, 2, 3][..]),
            (&[1, 2], &[0, 1, 2, 3], &[1, 2]),
            (&[1, 2], &[0, 2], &[2]),
            (&[1], &[0, 2], &[0, 2]),
            (&[9], &[0], &[0]),
        ] {
            let set = |cores: &[u16]| cores.iter().copied().collect::<BTreeSet<u16>>();
            assert_eq!(narrowed(&set(wish), &set(open)), set(expected), "{wish:?} of {open:?}");
        }
    }
}
