//! Conditions for servers whose state may be from the past: which slots wait for sweeps, and when a recovery is over.

use std::time::Duration;

use model::{IncarnationId, RemoteTask, SlotKey, SlotParts, TimestampNs};

/// Facts from sweeps about a slot and the provider of its next incarnation.
#[derive(Clone, Copy, Debug, Default)]
pub struct SweepFacts<'a> {
    /// A live orphaned instance of the slot.
    pub unbound: Option<&'a str>,
    /// A person has ordered the stop of an instance beside the slot's own record, and its end is not confirmed.
    pub stopping: bool,
    /// This process founded the cluster: no history can be lost.
    pub new_cluster: bool,
    /// The provider can be listed.
    pub can_list: bool,
    /// A sweep that counts has covered it since the servers started or a recovery began: see [`sweeps_count_after`].
    pub swept: bool,
    /// It was swept, too early to count.
    pub early: bool,
    /// The wait for it is over.
    pub waited: bool,
}

/// Why no incarnation may begin in the slot now, neither a first nor a next one; `None` = one may.
#[must_use]
pub fn holds(known: &SweepFacts<'_>) -> Option<String> {
    if let Some(key) = known.unbound {
        return Some(format!("orphaned instance {key} of this slot is alive: adopt, stop or forget it"));
    }
    if known.stopping {
        return Some(
            "the stop of an orphaned instance of this slot, by an operator's order, is not confirmed yet".to_owned(),
        );
    }
    let waits = !known.new_cluster && known.can_list && !known.swept && !known.waited;
    waits.then(|| {
        if known.early { EARLY } else { "the servers have not swept the provider since their start" }.to_owned()
    })
}

/// Why a sweep does not count yet.
pub const EARLY: &str = "the provider may not list yet what was created until the servers started";

/// How long after their start servers count no sweep of a provider. A list that begins earlier may miss instances of a
/// history that these servers do not know.
///
/// `unheard`: how long managers of former servers may act; `stale`: how long a new instance may be missing from the
/// provider's answers.
#[must_use]
pub fn sweeps_count_after(unheard: Duration, stale: Duration) -> Duration {
    if stale.is_zero() { Duration::ZERO } else { unheard.saturating_add(stale) }
}

/// The place of a tombstone beside a slot that has a record of its own.
#[must_use]
pub fn place_beside(slot: &SlotKey, incarnation: IncarnationId) -> SlotKey {
    SlotParts { task: format!("{}#{incarnation}", slot.task).into(), ..SlotParts::clone(slot) }.into()
}

/// The slot that the record is a tombstone beside; None when it is none.
#[must_use]
pub fn beside(record: &RemoteTask) -> Option<SlotKey> {
    let (task, incarnation) = record.slot.task.rsplit_once('#')?;
    let beside = incarnation.parse() == Ok(record.incarnation);
    beside.then(|| SlotParts { task: task.into(), ..SlotParts::clone(&record.slot) }.into())
}

/// The slot that waits for the end of this tombstone beside it; None when the record is none, or the end is confirmed.
#[must_use]
pub fn waits_for(tombstone: &RemoteTask) -> Option<SlotKey> {
    if tombstone.settled() { None } else { beside(tombstone) }
}

/// What a recovery still waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Awaited {
    /// Only a person can end it: the state cannot tell which nodes have yet to answer.
    pub by_hand: bool,
    /// Nodes without an inventory so far.
    pub nodes: usize,
    /// Providers with a list but without a sweep since it began.
    pub providers: usize,
    /// It does not end by itself before this time, Unix ns: nodes unknown to the state need this long to connect.
    pub not_before: TimestampNs,
}

/// Whether the recovery ends by itself: everything has answered.
#[must_use]
pub fn is_over(awaited: &Awaited, now: TimestampNs) -> bool {
    !awaited.by_hand && awaited.nodes == 0 && awaited.providers == 0 && now >= awaited.not_before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_begins_beside_what_no_record_knows_or_before_the_provider_was_swept() {
        let swept = SweepFacts { can_list: true, swept: true, ..SweepFacts::default() };
        let unswept = SweepFacts { swept: false, ..swept };
        for (case, known, expected) in [
            ("swept, and nothing is unbound", swept, None),
            ("an unbound instance lives", SweepFacts { unbound: Some("k"), ..swept }, Some("orphaned instance k")),
            ("one is being stopped", SweepFacts { stopping: true, ..swept }, Some("is not confirmed yet")),
            (
                "also in a new cluster",
                SweepFacts { unbound: Some("k"), new_cluster: true, ..swept },
                Some("orphaned instance k"),
            ),
            ("not swept yet", unswept, Some("have not swept the provider")),
            ("swept too early", SweepFacts { early: true, ..unswept }, Some(EARLY)),
            ("waited for long enough", SweepFacts { waited: true, ..unswept }, None),
            ("nothing could have been lost", SweepFacts { new_cluster: true, ..unswept }, None),
            ("what cannot be listed", SweepFacts { can_list: false, ..unswept }, None),
        ] {
            let why = holds(&known);
            assert_eq!(why.is_some(), expected.is_some(), "{case}: {why:?}");
            assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()), "{case}");
        }
    }

    #[test]
    fn a_sweep_counts_when_the_provider_shows_what_former_managers_could_create_last() {
        let seconds = Duration::from_secs;
        assert_eq!(sweeps_count_after(seconds(11), seconds(300)), seconds(311));
        assert_eq!(sweeps_count_after(seconds(11), Duration::ZERO), Duration::ZERO, "it shows at once what there is");
        assert_eq!(sweeps_count_after(seconds(11), Duration::MAX), Duration::MAX);
    }

    #[test]
    fn a_slot_waits_for_the_tombstone_beside_it() {
        let parts =
            SlotParts { namespace: "n".into(), job_id: "j".into(), group: "g".into(), index: 3, task: "a#b".into() };
        let (slot, incarnation) = (SlotKey::from(parts), IncarnationId(uuid::Uuid::from_u128(7)));
        let tombstone = RemoteTask { slot: place_beside(&slot, incarnation), incarnation, ..RemoteTask::default() };
        assert_eq!(waits_for(&tombstone), Some(slot.clone()));
        let own = RemoteTask { slot, incarnation, ..RemoteTask::default() };
        assert_eq!(waits_for(&own), None, "a task whose name looks like it");
        let ended =
            RemoteTask { observed: model::Observed::Gone, exit_acknowledged: true, forgotten: true, ..tombstone };
        assert!(ended.settled() && waits_for(&ended).is_none());
        assert!(beside(&ended).is_some(), "its end is what the slot has waited for");
    }

    #[test]
    fn a_recovery_is_over_when_all_have_answered_and_not_before() {
        let all = Awaited { not_before: 5, ..Awaited::default() };
        for (case, awaited, now, over) in [
            ("all have answered", all, 5, true),
            ("unknown nodes may come", all, 4, false),
            ("a node has not answered", Awaited { nodes: 1, ..all }, 9, false),
            ("a provider has not been swept", Awaited { providers: 1, ..all }, 9, false),
            ("only a person knows", Awaited { by_hand: true, ..all }, 9, false),
        ] {
            assert_eq!(is_over(&awaited, now), over, "{case}");
        }
    }
}
