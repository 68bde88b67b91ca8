//! Whether a server goes on from the newest state of its cluster, or may have been given one from the past.
//!
//! A running server keeps a mark where no backup reaches: what it has made durable last, and since when the cluster's
//! state has gone on unbroken. The next server on the same state compares. Only a state that the mark confirms counts
//! as unbroken; whatever is missing, unlike or silent for too long confirms nothing.

use std::{fmt, time::Duration};

use model::{ClusterId, GenerationId, StoreIndex, TimestampNs};
use state::{ClusterMeta, Mark};

/// How far the machine's two clocks may drift apart while nothing was restored, hibernated or set.
const DRIFT: Duration = Duration::from_secs(10);

/// Both clocks of the machine at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// Time since the machine has started.
    pub boot: Duration,
    /// The machine's time of day, Unix ns.
    pub day: TimestampNs,
}

impl Clocks {
    /// The time from an earlier instant to this one; `None` when the clocks disagree about it. A machine that was set
    /// back to a snapshot with its memory goes on with the boot clock of then, and with the time of day of now.
    #[must_use]
    pub fn since(self, earlier: Self) -> Option<Duration> {
        let by_boot = self.boot.checked_sub(earlier.boot)?;
        let by_day = i128::from(self.day) - i128::from(earlier.day);
        let apart = by_day - i128::try_from(by_boot.as_nanos()).ok()?;
        (apart.unsigned_abs() <= DRIFT.as_nanos()).then_some(by_boot)
    }
}

/// The mark of a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunMark {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its generation, with the newest durable index: nobody has heard of a later one.
    pub mark: Mark,
    /// Since when the state goes on unbroken, as time since the machine's start; `None` = since the founding of the
    /// cluster.
    pub since: Option<Duration>,
    /// When it was written.
    pub at: Clocks,
}

impl RunMark {
    /// The mark of a server that starts now on a state with this verdict.
    #[must_use]
    pub fn begin(cluster: ClusterId, verdict: &Result<Unbroken, Doubt>, now: Clocks) -> Self {
        let since = match verdict {
            Ok(Unbroken::SinceFounded) => None,
            Ok(Unbroken::For(time)) => Some(now.boot.saturating_sub(*time)),
            Err(_) => Some(now.boot),
        };
        Self { cluster, mark: Mark::default(), since, at: now }
    }

    /// The server is alive. When the clocks have jumped, its state may be from the past from now on: the machine may
    /// have been set back with its memory.
    #[must_use]
    pub fn beat(self, now: Clocks) -> Self {
        let since = if now.since(self.at).is_some() { self.since } else { Some(now.boot) };
        Self { since, at: now, ..self }
    }

    /// This is durable.
    #[must_use]
    pub fn durable(self, generation: GenerationId, index: StoreIndex, now: Clocks) -> Self {
        Self { mark: Mark { generation, index }, ..self.beat(now) }
    }
}

/// A state that is not from the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbroken {
    /// It has gone on since the cluster was founded.
    SinceFounded,
    /// It has gone on for this long, at the start of the server.
    For(Duration),
}

impl Unbroken {
    /// For how long.
    #[must_use]
    pub fn time(self) -> Duration {
        match self {
            Self::SinceFounded => Duration::MAX,
            Self::For(time) => time,
        }
    }
}

/// What a server finds where its predecessor has kept its mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A mark.
    Mark(RunMark),
    /// None.
    Nothing,
    /// One that cannot be read.
    Unreadable,
    /// No mark can be kept, for this reason.
    NoPlace(String),
}

/// Why a state may be from the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// There is no mark.
    NoMark,
    /// It cannot be read.
    Unreadable,
    /// No mark can be kept.
    NoPlace(String),
    /// The servers recover.
    Recovers,
    /// The mark is of another cluster.
    OtherCluster(ClusterId),
    /// The state **is** from the past: it lacks what the mark has.
    Behind {
        /// Newest index of the state.
        has: StoreIndex,
        /// Of the mark.
        durable: StoreIndex,
    },
    /// Another server has gone on from the mark.
    OtherServer,
    /// The server was silent for so long that another one may have gone on from a copy.
    Silent(Duration),
    /// The clocks disagree about the time since the mark was written.
    ClocksJumped,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMark => f.write_str("no server has left a mark of this state here since the machine's start"),
            Self::Unreadable => f.write_str("the mark of the server before cannot be read"),
            Self::NoPlace(why) => write!(f, "no mark of a running server is kept: {why}"),
            Self::Recovers => f.write_str("the servers recover"),
            Self::OtherCluster(other) => write!(f, "the mark is of cluster {other}"),
            Self::Behind { has, durable } => {
                write!(
                    f,
                    "a server has made index {durable} durable here, which this state, up to index {has}, does not have"
                )
            }
            Self::OtherServer => f.write_str("another server has written the state since"),
            Self::Silent(time) => write!(
                f,
                "the server before has been silent for {} s, and another one may have gone on from a copy",
                time.as_secs()
            ),
            Self::ClocksJumped => {
                f.write_str("the machine's clocks disagree about the time since the server before, as after a snapshot")
            }
        }
    }
}

/// Whether the state goes on from what a former server has made durable.
///
/// `latest`: the newest index of the store. `within`: a server that was silent for longer is not believed. It must not
/// be longer than a server without a mark waits before it lets anything be created: until then no server that runs on
/// a copy elsewhere can have done what this state does not know.
///
/// # Errors
/// Why the state may be from the past.
pub fn unbroken(
    found: Found,
    meta: &ClusterMeta,
    latest: StoreIndex,
    now: Clocks,
    within: Duration,
) -> Result<Unbroken, Doubt> {
    let before = match found {
        Found::Mark(mark) => mark,
        Found::Nothing => return Err(Doubt::NoMark),
        Found::Unreadable => return Err(Doubt::Unreadable),
        Found::NoPlace(why) => return Err(Doubt::NoPlace(why)),
    };
    if before.cluster != meta.cluster_id {
        return Err(Doubt::OtherCluster(before.cluster));
    }
    // A mark without a generation says nothing of any state.
    if before.mark.generation.is_nil() {
        return Err(Doubt::Unreadable);
    }
    if !meta.knows(before.mark, latest) {
        return Err(Doubt::Behind { has: latest, durable: before.mark.index });
    }
    if meta.recovery.is_some() {
        return Err(Doubt::Recovers);
    }
    if before.mark.generation != meta.generation {
        return Err(Doubt::OtherServer);
    }
    let silent = now.since(before.at).ok_or(Doubt::ClocksJumped)?;
    if silent > within {
        return Err(Doubt::Silent(silent));
    }
    Ok(match before.since {
        None => Unbroken::SinceFounded,
        Some(since) => Unbroken::For(now.boot.saturating_sub(since)),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use state::{Ancestor, Recovery};
    use uuid::Uuid;

    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const WITHIN: Duration = Duration::from_secs(60);

    fn at(boot: u64, day: i64) -> Clocks {
        Clocks { boot: Duration::from_secs(boot), day: day * SECOND }
    }

    fn generation(n: u128) -> GenerationId {
        GenerationId(Uuid::from_u128(n))
    }

    fn mark(generation: u128, index: StoreIndex) -> Mark {
        Mark { generation: self::generation(generation), index }
    }

    #[test]
    fn only_a_state_that_the_mark_confirms_is_unbroken() {
        let cluster = ClusterId(Uuid::from_u128(7));
        let meta = ClusterMeta {
            cluster_id: cluster,
            generation: generation(2),
            ancestors: Arc::new(vec![Ancestor { generation: generation(1), until: 50 }]),
            ..ClusterMeta::default()
        };
        let recovers = ClusterMeta { recovery: Some(Arc::new(Recovery::default())), ..meta.clone() };
        // Written 5 s ago, 400 s after its server began.
        let before = RunMark { cluster, mark: mark(2, 100), since: Some(Duration::from_secs(595)), at: at(995, 5_000) };
        let now = at(1_000, 5_005);
        let found = |of: RunMark| Found::Mark(of);
        let of = |m: Mark| Found::Mark(RunMark { mark: m, ..before });
        let other = ClusterId(Uuid::from_u128(8));
        for (case, found, meta, latest, now, expected) in [
            ("the newest", found(before), &meta, 100, now, Ok(Unbroken::For(Duration::from_secs(405)))),
            ("killed before it wrote the mark", found(before), &meta, 101, now, {
                Ok(Unbroken::For(Duration::from_secs(405)))
            }),
            ("of a cluster that began with it", found(RunMark { since: None, ..before }), &meta, 100, now, {
                Ok(Unbroken::SinceFounded)
            }),
            ("a minute of silence", found(before), &meta, 100, at(1_055, 5_060), {
                Ok(Unbroken::For(Duration::from_secs(460)))
            }),
            ("a backup of its time", found(before), &meta, 99, now, Err(Doubt::Behind { has: 99, durable: 100 })),
            ("a backup of an earlier server", of(mark(3, 120)), &meta, 100, now, {
                Err(Doubt::Behind { has: 100, durable: 120 })
            }),
            ("the same, with more commits", of(mark(3, 90)), &meta, 100, now, {
                Err(Doubt::Behind { has: 100, durable: 90 })
            }),
            ("a branch from an earlier index", of(mark(1, 51)), &meta, 100, now, {
                Err(Doubt::Behind { has: 100, durable: 51 })
            }),
            ("back from another machine", of(mark(1, 50)), &meta, 100, now, Err(Doubt::OtherServer)),
            ("no mark, as after a start of the machine", Found::Nothing, &meta, 100, now, Err(Doubt::NoMark)),
            ("a torn one", Found::Unreadable, &meta, 100, now, Err(Doubt::Unreadable)),
            ("one that says nothing", of(Mark::default()), &meta, 100, now, Err(Doubt::Unreadable)),
            ("no tmpfs", Found::NoPlace("x".into()), &meta, 100, now, Err(Doubt::NoPlace("x".into()))),
            ("another cluster's", found(RunMark { cluster: other, ..before }), &meta, 100, now, {
                Err(Doubt::OtherCluster(other))
            }),
            ("in a recovery", found(before), &recovers, 100, now, Err(Doubt::Recovers)),
            ("long silent", found(before), &meta, 100, at(1_056, 5_061), {
                Err(Doubt::Silent(Duration::from_secs(61)))
            }),
            ("a machine set back with its memory, an hour later", found(before), &meta, 100, at(1_000, 8_605), {
                Err(Doubt::ClocksJumped)
            }),
            ("clock set back", found(before), &meta, 100, at(1_000, 4_990), Err(Doubt::ClocksJumped)),
            ("another start of the machine", found(before), &meta, 100, at(30, 5_035), Err(Doubt::ClocksJumped)),
        ] {
            assert_eq!(unbroken(found, meta, latest, now, WITHIN), expected, "{case}");
        }
    }

    #[test]
    fn a_start_on_doubt_counts_as_the_beginning_and_the_next_start_goes_on_counting() {
        let cluster = ClusterId(Uuid::from_u128(7));
        let meta = ClusterMeta { cluster_id: cluster, generation: generation(2), ..ClusterMeta::default() };
        let next = |mark: RunMark, now: Clocks| unbroken(Found::Mark(mark), &meta, 9, now, WITHIN);
        let first =
            RunMark::begin(cluster, &Err(Doubt::NoMark), at(100, 1_000)).durable(generation(2), 9, at(101, 1_001));
        let verdict = next(first, at(120, 1_020));
        assert_eq!(verdict, Ok(Unbroken::For(Duration::from_secs(20))), "since the start that waited, not more");
        let second = RunMark::begin(cluster, &verdict, at(120, 1_020)).durable(generation(2), 9, at(121, 1_021));
        assert_eq!(next(second, at(150, 1_050)), Ok(Unbroken::For(Duration::from_secs(50))));
        let founded = RunMark::begin(cluster, &Ok(Unbroken::SinceFounded), at(100, 1_000));
        assert_eq!(founded.since, None);
        assert_eq!((Unbroken::SinceFounded.time(), Unbroken::For(WITHIN).time()), (Duration::MAX, WITHIN));
    }

    #[test]
    fn a_server_whose_clocks_have_jumped_counts_from_then() {
        let began = RunMark::begin(ClusterId::default(), &Ok(Unbroken::SinceFounded), at(100, 1_000));
        assert_eq!(began.beat(at(105, 1_005)).since, None);
        assert_eq!(began.beat(at(105, 1_014)).since, None, "the time of day was put right");
        let back = began.beat(at(105, 5_000));
        assert_eq!((back.since, back.at), (Some(Duration::from_secs(105)), at(105, 5_000)));
        assert_eq!(back.beat(at(110, 5_005)).since, back.since, "and no later");
    }
}
