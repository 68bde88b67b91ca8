//! An array that snapshots share in pieces: a change copies one small piece instead of all of it.

use std::{ops::Index, sync::Arc};

/// Entries of a piece: few enough to copy with each change, many enough for fast iteration.
const PIECE: usize = 64;

/// An array with cheap clones and cheap changes after a clone.
#[derive(Clone, Debug)]
pub(crate) struct Column<T> {
    pieces: Arc<Vec<Arc<[T; PIECE]>>>,
    len: usize,
}

impl<T> Default for Column<T> {
    fn default() -> Self {
        Self { pieces: Arc::default(), len: 0 }
    }
}

impl<T: Clone + Default> Column<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        // The rest of the last piece was never written.
        if at < self.len { Some(&self[at]) } else { None }
    }
    /// The entry, mutable.
    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        if at >= self.len {
            return None;
        }
        let piece = Arc::make_mut(&mut self.pieces).get_mut(at / PIECE)?;
        Some(&mut Arc::make_mut(piece)[at % PIECE])
    }
    /// Adds an entry and returns its position.
    pub(crate) fn push(&mut self, value: T) -> usize {
        let at = self.len;
        if at.is_multiple_of(PIECE) {
            Arc::make_mut(&mut self.pieces).push(Arc::new(std::array::from_fn(|_| T::default())));
        }
        self.len += 1;
        if let Some(entry) = self.get_mut(at) {
            *entry = value;
        }
        at
    }
    /// The positions where pieces that the two do not share differ, up to the length of the shorter.
    pub(crate) fn differing<'a>(
        &'a self,
        other: &'a Self,
        differs: impl Fn(&T, &T) -> bool + 'a,
    ) -> impl Iterator<Item = usize> + 'a {
        let pieces = self.pieces.iter().zip(&*other.pieces).enumerate();
        let apart = pieces.filter(|(_, (a, b))| !Arc::ptr_eq(a, b));
        let entries = apart.flat_map(|(n, (a, b))| a.iter().zip(&**b).zip(n * PIECE..));
        entries.filter(move |((a, b), _)| differs(a, b)).map(|(_, at)| at)
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flat_map(|piece| piece.iter()).take(self.len)
    }
}

impl<T> Index<usize> for Column<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.pieces[at / PIECE][at % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Column;

    proptest! {
        /// After any changes it equals a plain array, and a clone keeps its content.
        #[test]
        fn agrees_with_an_array(changes in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(),
            any::<u16>()), 0..400)) {
            let (mut column, mut plain) = (Column::default(), Vec::new());
            let mut kept = (column.clone(), plain.clone());
            for (n, (push, at, value)) in changes.into_iter().enumerate() {
                if push || plain.is_empty() {
                    prop_assert_eq!(column.push(value), plain.len());
                    plain.push(value);
                } else {
                    let at = at.index(plain.len());
                    *column.get_mut(at).unwrap() = value;
                    plain[at] = value;
                }
                if n % 50 == 0 {
                    kept = (column.clone(), plain.clone());
                }
            }
            for (column, plain) in [(&column, &plain), (&kept.0, &kept.1)] {
                prop_assert_eq!(column.iter().copied().collect::<Vec<_>>(), plain.clone());
                prop_assert_eq!(column.get(plain.len()), None);
                prop_assert!((0..plain.len()).all(|at| column.get(at) == plain.get(at)));
            }
            let differ: Vec<usize> = column.differing(&kept.0, |a, b| a != b).filter(|at| *at < kept.1.len()).collect();
            let expected: Vec<usize> = (0..kept.1.len()).filter(|at| plain[*at] != kept.1[*at]).collect();
            prop_assert_eq!(differ, expected);
        }
    }
}
