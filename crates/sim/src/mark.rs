//! What a server remembers of the shared store in a file of its own, which outlives its processes and the store's data.

use store::Lost;

/// What is remembered. The cluster and the generation of the simulated store never change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) revision: u64,
    pub(crate) index: u64,
}

impl Mark {
    /// What the mark knows and the store lacks, which stands at this index and this revision.
    pub(crate) fn missing(self, index: u64, revision: u64) -> Option<Lost> {
        let lost = self.index > index || self.revision > revision;
        lost.then_some(Lost { found: index, acknowledged: self.index.max(index) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_behind_the_mark_has_lost_something() {
        let mark = Mark { revision: 20, index: 10 };
        assert_eq!((mark.missing(10, 20), mark.missing(11, 25)), (None, None));
        assert_eq!(mark.missing(8, 30), Some(Lost { found: 8, acknowledged: 10 }));
        assert_eq!(mark.missing(12, 19), Some(Lost { found: 12, acknowledged: 12 }));
    }
}
