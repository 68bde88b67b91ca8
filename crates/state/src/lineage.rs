//! Lineage of a state: the cluster, the generations of its history, and whether it needs recovery.
//!
//! A generation is one stretch of history. It begins with each start of a server, and with the end of a recovery. A
//! node that has acted on a state keeps a [`Mark`] of it: the generation and the highest index. A mark is part of a
//! history that has the generation and reaches the index in it. Any other mark comes from a state unknown to this one.
//! Then this one is from the past (a backup, a snapshot of a machine), began empty, or has diverged since. An index
//! alone would not tell: a restored state continues to count.

use std::sync::Arc;

use model::ids::{ClusterId, GenerationId, StoreIndex, TimestampNs};
use serde::{Deserialize, Serialize};

/// Generations that a state remembers. For older ones, their last index is enough.
const KEPT: usize = 256;

/// How far indexes jump at the end of a recovery. They must never go back for a node that has seen the lost ones, and
/// not every such node has answered.
const JUMP: StoreIndex = 1_000_000;

/// How far beyond a state a credible mark may be: a thousand commits a second for 35 years. Indexes continue from the
/// highest mark of a recovery and never go back. A node that claims the largest number of all would leave the servers
/// none.
const FURTHEST: StoreIndex = 1 << 40;

/// The newest point of a state's history that a node has acted on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The generation; nil = none.
    pub generation: GenerationId,
    /// The highest index.
    pub index: StoreIndex,
}

/// Identity and lineage of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ClusterMeta {
    /// Its identity: the owner tag of everything created at providers.
    #[serde(rename = "ClusterID")]
    pub cluster_id: ClusterId,
    /// When it was founded, Unix ns.
    pub create_time: i64,
    /// The present generation; nil in a state of an older release without generations.
    pub generation: GenerationId,
    /// Earlier generations, oldest first. Shared: the list is long and changes at starts only.
    pub ancestors: Arc<Vec<Ancestor>>,
    /// Generations that ended up to this index are not remembered.
    pub forgotten: StoreIndex,
    /// The state began empty under a given identity: the cluster may have nodes unknown to it.
    pub began_empty: bool,
    /// The recovery under way.
    pub recovery: Option<Arc<Recovery>>,
}

/// A former generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Ancestor {
    /// The generation.
    pub generation: GenerationId,
    /// Its last index.
    pub until: StoreIndex,
}

/// The recovery of a state from the past, with the knowledge of nodes and providers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Recovery {
    /// The generation that begins at its end. Nodes' inventories are part of it.
    pub generation: GenerationId,
    /// Since when, Unix ns.
    pub since: TimestampNs,
    /// The reason, for people.
    pub cause: String,
    /// Only a person can end it: the state cannot tell which nodes have yet to answer.
    pub by_hand: bool,
    /// The highest index in any mark.
    pub highest: StoreIndex,
}

impl ClusterMeta {
    /// The highest index of a generation in this history; 0 = none. `latest` is the index of the state.
    #[must_use]
    pub fn history_of(&self, generation: GenerationId, latest: StoreIndex) -> StoreIndex {
        if generation == self.generation
            || self.recovery.as_ref().is_some_and(|recovery| recovery.generation == generation)
        {
            return latest;
        }
        let ancestor = self.ancestors.iter().find(|ancestor| ancestor.generation == generation);
        ancestor.map_or(self.forgotten, |ancestor| ancestor.until)
    }

    /// The generation of this history that an index belongs to; nil = one that is not remembered.
    #[must_use]
    pub fn generation_of(&self, index: StoreIndex) -> GenerationId {
        if index <= self.forgotten {
            return GenerationId::NIL;
        }
        let ancestor = self.ancestors.iter().find(|ancestor| index <= ancestor.until);
        ancestor.map_or(self.generation, |ancestor| ancestor.generation)
    }

    /// Whether the mark is part of this history.
    #[must_use]
    pub fn knows(&self, mark: Mark, latest: StoreIndex) -> bool {
        mark.generation.is_nil() || mark.index <= self.history_of(mark.generation, latest)
    }

    /// Whether a node of this cluster can have this mark. `latest` is the index of the state.
    #[must_use]
    pub fn can_be(mark: Mark, latest: StoreIndex) -> bool {
        mark.index <= latest.saturating_add(FURTHEST)
    }

    /// Begins a generation: later commits belong to it. `latest` is the index of the state.
    pub fn begin_generation(&mut self, fresh: GenerationId, latest: StoreIndex) {
        let ended = std::mem::replace(&mut self.generation, fresh);
        if ended.is_nil() {
            return;
        }
        let ancestors = Arc::make_mut(&mut self.ancestors);
        ancestors.push(Ancestor { generation: ended, until: latest });
        for old in ancestors.drain(..ancestors.len().saturating_sub(KEPT)) {
            self.forgotten = self.forgotten.max(old.until);
        }
    }

    /// Enters recovery, or records a higher index in it. False when nothing has changed. A deliberate restore calls it
    /// with index 0.
    pub fn enter_recovery(&mut self, fresh: GenerationId, cause: &str, highest: StoreIndex, now: TimestampNs) -> bool {
        match &mut self.recovery {
            Some(recovery) if recovery.highest >= highest => return false,
            Some(recovery) => Arc::make_mut(recovery).highest = highest,
            None => {
                let by_hand = self.began_empty;
                self.recovery = Some(Arc::new(Recovery {
                    generation: fresh,
                    since: now,
                    cause: cause.to_owned(),
                    by_hand,
                    highest,
                }));
            }
        }
        true
    }

    /// Ends the recovery: its generation begins. Returns the lowest index for that commit; `None` without a recovery.
    pub fn end_recovery(&mut self, latest: StoreIndex) -> Option<StoreIndex> {
        let recovery = self.recovery.take()?;
        self.began_empty = false;
        self.begin_generation(recovery.generation, latest);
        Some(latest.max(recovery.highest).saturating_add(JUMP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(n: u128) -> GenerationId {
        GenerationId(uuid::Uuid::from_u128(n))
    }

    fn mark(n: u128, index: StoreIndex) -> Mark {
        Mark { generation: generation(n), index }
    }

    #[test]
    fn a_mark_of_a_lost_history_is_told_from_one_of_the_own() {
        let mut meta = ClusterMeta::default();
        meta.begin_generation(generation(1), 1);
        assert!(meta.ancestors.is_empty(), "there was none before");
        meta.begin_generation(generation(2), 100);
        // A backup made at 150 is restored after the original has continued.
        let mut restored = meta.clone();
        restored.begin_generation(generation(3), 150);
        for (case, mark, known) in [
            ("nothing was acted on", Mark::default(), true),
            ("before the backup", mark(2, 150), true),
            ("an earlier generation", mark(1, 100), true),
            ("more of an earlier generation than there was", mark(1, 101), false),
            ("after the backup", mark(2, 151), false),
            ("after a start that came after the backup", mark(7, 160), false),
            ("the new history", mark(3, 400), true),
        ] {
            assert_eq!(restored.knows(mark, 400), known, "{case}, although the index is at 400 by now");
        }
    }

    #[test]
    fn an_index_belongs_to_the_generation_that_it_was_made_in() {
        let mut meta = ClusterMeta::default();
        for (n, until) in [(1, 0), (2, 100), (3, 150)] {
            meta.begin_generation(generation(n), until);
        }
        for (index, of) in [(1, 1), (100, 1), (101, 2), (150, 2), (151, 3), (9999, 3)] {
            assert_eq!(meta.generation_of(index), generation(of), "{index}");
        }
        meta.forgotten = 100;
        assert_eq!(meta.generation_of(100), GenerationId::NIL);
    }

    #[test]
    fn no_mark_may_use_up_the_indexes() {
        for (index, can_be) in
            [(0, true), (1_000_000_000_000, true), (FURTHEST + 7, true), (FURTHEST + 8, false), (u64::MAX, false)]
        {
            assert_eq!(ClusterMeta::can_be(mark(9, index), 7), can_be, "{index}");
        }
        assert!(ClusterMeta::can_be(mark(9, u64::MAX), u64::MAX - 5));
    }

    #[test]
    fn generations_that_are_long_over_are_known_by_their_index() {
        let mut meta = ClusterMeta::default();
        for n in 0..400 {
            meta.begin_generation(generation(1 + n), 10 * u64::try_from(n).unwrap());
        }
        assert_eq!((meta.ancestors.len(), meta.forgotten), (KEPT, 1430));
        assert!(meta.knows(mark(5, 50), 5000) && !meta.knows(mark(9999, 1500), 5000));
    }

    #[test]
    fn a_recovery_makes_what_was_told_in_it_part_of_the_history() {
        let mut meta = ClusterMeta { began_empty: true, ..ClusterMeta::default() };
        meta.begin_generation(generation(1), 1);
        assert!(meta.enter_recovery(generation(2), "a node knows more", 500, 7));
        assert!(!meta.enter_recovery(generation(3), "another one", 400, 8), "it goes on as it began");
        assert!(meta.enter_recovery(generation(3), "another one", 600, 8));
        let recovery = meta.recovery.clone().unwrap();
        assert_eq!(
            (recovery.generation, recovery.highest, recovery.since, recovery.by_hand),
            (generation(2), 600, 7, true)
        );
        assert!(meta.knows(mark(2, 20), 20), "whoever has told has a mark of the generation to come");
        assert!(!meta.knows(mark(9, 500), 20));
        assert_eq!(meta.end_recovery(25), Some(1_000_600));
        assert_eq!((meta.generation, meta.recovery.is_none(), meta.began_empty), (generation(2), true, false));
        assert!(meta.knows(mark(2, 20), 1_000_600) && meta.knows(mark(1, 25), 1_000_600));
        assert!(!meta.knows(mark(9, 500), 1_000_600), "who has not answered would bring another recovery");
        assert_eq!(meta.end_recovery(30), None);
    }
}
