//! What must be true, each rule by a name. `faults.rs` shows for each of them a fault that it catches.

use std::fmt;

use super::World;

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A rule of the model.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Rule { $($(#[$doc])* $name),* }

        impl Rule {
            /// All of them.
            pub(crate) const ALL: &[Rule] = &[$(Rule::$name),*];
        }
    };
}

rules! {
    /// I1: one instance of a slot lives, beside those whose end was believed.
    OneLives,
    /// I1: one at all lives, where that is promised.
    OneLivesAsPromised,
    /// I2: when things are quiet what the job wants lives, and nothing else.
    WantedLives,
    /// I2: when things are quiet no ended instance remains at the provider.
    EndedGoes,
    /// I2: when things are quiet no record of an unwanted slot remains.
    RecordGoes,
    /// I2: a stop beside a slot, ordered by a person, ends.
    StopBesideEnds,
    /// When things are quiet a sweep finds nothing that no record knows.
    NothingIsUnbound,
    /// Things become quiet.
    BecomesQuiet,
    /// I3: who changes something has a lease and a confirmed order.
    LeaseBeforeChange,
    /// The servers take a node for lost only when its lease has ended by its own clock.
    LostAfterLease,
    /// I4: an instance is stopped by order only.
    StoppedByOrder,
    /// I1, I2: the next incarnation comes after the end of the one before.
    EndsBeforeNext,
    /// An instance whose end was believed lives only where the guarantee says so.
    StrayIsSaid,
    /// It appears no later than calls may be late.
    StrayInTime,
    /// Output is kept before the instance is acknowledged.
    OutputFirst,
    /// The intent is committed before the create.
    IntentFirst,
    /// An incarnation is created from the version that it is of.
    OfItsVersion,
    /// One create of a key takes effect where the provider knows no keys.
    OneCreate,
    /// One create of a key is called the first one.
    OneIsTheFirst,
    /// A node has one call of a slot under way.
    OneCall,
    /// One agent of a node has a session.
    OneAgent,
    /// A step's effects lead to its record.
    EffectsAgree,
    /// Epochs never fall.
    EpochNeverFalls,
    /// The manager changes with the epoch.
    EpochOfAManager,
    /// Handles are never erased.
    HandleStays,
    /// An end is counted once.
    CountedOnce,
    /// Each restart has an end before it.
    RestartHasAnEnd,
    /// Nothing begins beside an instance that lives.
    BeginsAlone,
    /// Nothing begins beside what no record knows.
    BeginsBesideNothingUnbound,
    /// Nothing begins before the provider was swept.
    SweptFirst,
    /// Nothing begins in a recovery.
    NotInARecovery,
    /// A recovery ends.
    RecoveryEnds,
    /// A recovery stops nothing.
    RecoveryStopsNothing,
    /// What a recovery takes over it takes over above every epoch that is known.
    TakenOverAbove,
    /// A node belongs to one cluster.
    OneCluster,
}

/// A rule that was broken, and how.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

impl World {
    pub(super) fn violation(&mut self, rule: Rule, text: impl Into<String>) {
        self.violations.push(Violation { rule, text: text.into() });
    }
}
