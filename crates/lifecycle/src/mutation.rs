//! Deliberate breaks of the rules, to show that the proofs catch each.
//!
//! A mutation breaks one rule at the very place that keeps it. The feature `mutations`, which no shipped build has,
//! makes them choosable: one for the whole process. Without it [`mutated`] is the constant `false`, and nothing of a
//! mutation is compiled. `cargo xtask mutations` chooses each in turn and plays the model, the walks and the faults on
//! real processes until one of them says that something is wrong.

macro_rules! mutations {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// A break of one rule. The number is that of the rule in the README of [`crate::remote`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation { $($(#[doc = $doc])* $name),* }

        impl Mutation {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

mutations! {
    /// 1: the order to create leaves before the incarnation is committed.
    OrderBeforeCommit,
    /// 1: a node does not store that it has tried a create.
    CreateUnrecorded,
    /// 1: the next manager is not told what a create that may be under way was made of.
    IntentForgotten,
    /// 2: a provider that could not be asked counts as one without the instance.
    UnknownIsAbsent,
    /// 2: the servers take an unknown state for an end.
    UnknownIsAnEnd,
    /// 3: a node without a lease goes on changing things.
    LeaseIgnored,
    /// 3: an order from before the loss of the lease counts after it.
    OrderOutlivesLease,
    /// 4: a new manager acts under the epoch of the old one.
    EpochNotRaised,
    /// 4: a node follows an order of an earlier epoch.
    StaleOrderFollowed,
    /// 4: the servers believe a report of an earlier epoch.
    StaleReportBelieved,
    /// 5: a node that is to let go stops the instance.
    ReleaseStops,
    /// 6: an unmanaged task is forgotten instead of stopped.
    TombstoneDropped,
    /// 6: a stop is confirmed by an absence that was seen before it was ordered.
    AbsenceBeforeStop,
    /// 7: an adoption waits for the preparation of a create.
    AdoptionPrepares,
    /// 7: a new manager creates without a look.
    CreateWithoutLook,
    /// 8: management moves before the successor has observed.
    BreakBeforeMake,
    /// 9: an instance of another specification is adopted as it is.
    SpecificationIgnored,
    /// 9: the next incarnation begins before the end of the present one is confirmed.
    NextBeforeEnd,
    /// An end is counted each time that it is reported.
    EndCountedAgain,
    /// The provider forgets an ended instance before its output is kept.
    ForgottenBeforeKept,
    /// A report without a handle erases it.
    HandleErased,
    /// A search that was made under an earlier order is believed.
    StaleAbsence,
    /// A stop without a handle looks instead of sealing the key.
    KeyNotSealed,
    /// Something begins in a slot where an orphaned instance may live.
    HoldIgnored,
    /// A recovery continues below an epoch under which a manager has acted.
    RecoveryBelowEpoch,
    /// A node follows servers whose state is older than what it has acted on.
    PastServersFollowed,
    /// A second agent on a copied directory takes the session of the first.
    RivalAccepted,
    /// Every provider is said to refuse stale calls.
    GuaranteeOverstated,
}

/// Whether this break is chosen.
#[cfg(not(feature = "mutations"))]
#[must_use]
#[inline]
pub const fn mutated(_: Mutation) -> bool {
    false
}

#[cfg(feature = "mutations")]
pub use chosen::{choose, mutated};

#[cfg(feature = "mutations")]
mod chosen {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::Mutation;

    /// 0 = none, otherwise the place in [`Mutation::ALL`] and one.
    static CHOSEN: AtomicUsize = AtomicUsize::new(0);

    /// Chooses the break of that name for this process; an empty name chooses none.
    ///
    /// # Errors
    /// No mutation has that name; the text lists those that exist.
    pub fn choose(name: &str) -> Result<(), String> {
        let found = Mutation::ALL.iter().position(|mutation| format!("{mutation:?}") == name);
        if found.is_none() && !name.is_empty() {
            return Err(format!("no mutation {name:?}; there are {:?}", Mutation::ALL));
        }
        CHOSEN.store(found.map_or(0, |at| at + 1), Relaxed);
        Ok(())
    }

    /// Whether this break is chosen.
    #[must_use]
    pub fn mutated(mutation: Mutation) -> bool {
        Mutation::ALL.get(CHOSEN.load(Relaxed).wrapping_sub(1)) == Some(&mutation)
    }
}
