//! Each rule of the model catches a fault: a decider of the product, or the provider, does one thing wrong.

use std::collections::BTreeSet;

use model::{IncarnationId, Observed, RemoteTask, RemoteVerdict};
use uuid::Uuid;

use crate::{
    explore::{Search, explore},
    levels::level,
    scenarios::{running, start_until},
    world::{Action, Budget, Config, Fault, Rule, World},
};

/// How a fault comes to light: by every order of so many events, or by a story.
enum Way {
    Orders(Budget, fn() -> Config),
    Story(fn(Fault) -> World),
}

fn faulty(cfg: Config, fault: Fault) -> Config {
    Config { fault: Some(fault), steps: 400, ..cfg }
}

/// The first create is on its way when its manager is lost; another one manages the slot, whose job is replaced.
/// Gives the incarnation of the first create.
fn replaced(w: &mut World) -> IncarnationId {
    let first = w.records[&0].incarnation;
    // The first node stays away, frozen in its call if it has one.
    let frozen = |a: &Action| matches!(a, Action::Execute(0, _) | Action::LetGo(0, _));
    let elsewhere = |w: &mut World| {
        w.run(|a| !frozen(a) && !matches!(a, Action::Connect(_) | Action::Lapse(_) | Action::Expire(_)))
    };
    w.apply(&Action::Expire(0));
    elsewhere(w);
    w.apply(&Action::UpdateJob);
    elsewhere(w);
    assert!(w.records[&0].incarnation != first && w.alive(0).len() == 1, "{:?}", w.records);
    first
}

fn at_the_create(cfg: Config) -> World {
    start_until(cfg, |w| w.enabled().contains(&Action::Execute(0, 0)))
}

/// Two instances live in the slot: the record's, and one that came late and that a sweep has found.
fn two_live(fault: Fault) -> World {
    let mut w = at_the_create(faulty(Config { seal: false, fenced: false, ..Config::default() }, fault));
    w.crash(0);
    replaced(&mut w);
    w.apply(&Action::Late(0));
    w.run(|a| !matches!(a, Action::StopUnbound(_)));
    assert_eq!((w.alive(0).len(), w.unbound.len()), (2, 1));
    w
}

fn end_of(w: &mut World, own: bool) {
    let key = w.records[&0].incarnation;
    let at = w.provider.instances.iter().position(|i| (i.key == key) == own);
    w.exit(at.expect("it lives"), 1);
}

/// The manager is frozen in its create, beyond its lease and the time that seals last.
fn frozen(fault: Fault) -> World {
    let mut w = at_the_create(faulty(level("keys and seals"), fault));
    w.apply(&Action::Disconnect(0));
    w.apply(&Action::Lapse(0));
    replaced(&mut w);
    w.apply(&Action::Wait);
    w.apply(&Action::Execute(0, 0));
    w
}

fn later_than_late(fault: Fault) -> World {
    let mut w = at_the_create(faulty(level("keys and seals, lease bounds calls"), fault));
    w.crash(0);
    replaced(&mut w);
    w.apply(&Action::Wait);
    // By then no call takes effect any more.
    if w.enabled().contains(&Action::Late(0)) {
        w.apply(&Action::Late(0));
    }
    w
}

fn own_ends_beside_another(fault: Fault) -> World {
    let mut w = two_live(fault);
    end_of(&mut w, true);
    w.run(|a| !matches!(a, Action::StopUnbound(_)));
    w
}

fn other_ends(fault: Fault) -> World {
    let mut w = two_live(fault);
    end_of(&mut w, false);
    w.run_as_is();
    w.check_quiet();
    w
}

fn other_is_stopped(fault: Fault) -> World {
    let mut w = two_live(fault);
    w.run_as_is();
    w.check_quiet();
    w
}

/// The servers know another incarnation, which has ended, than the one that runs.
fn begins_beside(fault: Fault) -> World {
    let mut w = running(faulty(Config { nodes: 1, ..Config::default() }, fault));
    let ended = RemoteTask {
        incarnation: IncarnationId(Uuid::from_u128(77)),
        observed: Observed::Exited { code: 1, signal: 0, oom_killed: false, reason: "".into(), at: 1 },
        exit_acknowledged: true,
        forgotten: true,
        verdict: RemoteVerdict::Restarting { at: 1, reason: "".into() },
        handle: None,
        ..w.records[&0].clone()
    };
    w.records.insert(0, ended);
    w.apply(&Action::Sweep);
    w.apply(&Action::Tick(0));
    w
}

fn begins_unswept(fault: Fault) -> World {
    let mut w = running(faulty(Config { nodes: 1, ..Config::default() }, fault));
    w.apply(&Action::RestartServers);
    w.exit(0, 1);
    w.run(|a| !matches!(a, Action::Sweep | Action::Lapse(_) | Action::Expire(_)));
    w
}

/// Servers that begin on an older state, with the node that knows more connected, and the provider swept.
fn recovering(fault: Fault) -> World {
    let mut w = World::new(faulty(Config { nodes: 1, slots: 2, ..Config::default() }, fault));
    let calm = |a: &Action| !matches!(a, Action::Place(1, _) | Action::Lapse(_) | Action::Expire(_));
    w.place(0, 0);
    w.run(calm);
    w.apply(&Action::BackUp);
    w.apply(&Action::RestartOrder(0));
    w.run(calm);
    w.apply(&Action::Restore);
    w.run(|a| matches!(a, Action::Connect(_) | Action::Sweep));
    assert!(w.meta.recovery.is_some() && w.swept, "{:?}", w.meta);
    w
}

/// An allocation is placed while the servers recover.
fn begins_in_a_recovery(fault: Fault) -> World {
    let mut w = recovering(fault);
    w.place(1, 0);
    w
}

fn recovers(fault: Fault) -> World {
    let mut w = recovering(fault);
    w.run(|a| !matches!(a, Action::Lapse(_) | Action::Expire(_)));
    w.check_quiet();
    w
}

/// The former leader hears from a node that another one has replaced since.
fn former_leader_hears(fault: Fault) -> World {
    let mut w = start_until(faulty(Config::default(), fault), |w| w.enabled().contains(&Action::ToServers(0)));
    let before = w.records[&0].epoch;
    w.apply(&Action::TakeOver(0));
    w.apply(&Action::Lapse(0));
    w.apply(&Action::Expire(0));
    // The first node does not learn of it, the other one does.
    let first = |a: &Action| matches!(a, Action::LeaveFormer(0) | Action::ToServers(0) | Action::ToNode(0));
    w.run(|a| !first(a) && !matches!(a, Action::FormerEnds | Action::Lapse(_)));
    assert!(w.records[&0].epoch > before, "{:?}", w.records);
    w.apply(&Action::ToServers(0));
    w
}

/// Two agents with one directory: the second one comes while the first one is connected.
fn copied(fault: Fault) -> World {
    let mut w = running(faulty(Config::default(), fault));
    w.apply(&Action::CopyDisk(0));
    w.apply(&Action::StartTwin(0));
    w.apply(&Action::Twin(0, Box::new(Action::Connect(0))));
    w
}

fn does_not_rest(fault: Fault) -> World {
    let mut w = running(Config { nodes: 1, ..Config::default() });
    w.cfg = faulty(Config::clone(&w.cfg), fault).into();
    w.settle(|_| 0);
    w
}

#[test]
fn each_rule_catches_its_fault() {
    let none = Budget::default;
    let usual = Config::default;
    let crash = || Budget { crashes: 1, ..none() };
    let exit = || Budget { exits: 1, ..none() };
    let stop = || Budget { stops: 1, ..none() };
    let take_over = || Budget { take_overs: 1, slow: 1, ..none() };
    let unkeyed = || level("search and epochs");
    let rows: Vec<(Rule, Fault, Way)> = vec![
        (Rule::OneLives, Fault::IgnoresKeys, Way::Orders(Budget { crashes: 1, lost_replies: 1, ..none() }, usual)),
        (Rule::OneLivesAsPromised, Fault::PromisesTooMuch, Way::Story(frozen)),
        (Rule::WantedLives, Fault::StopIsNotSent, Way::Orders(stop(), usual)),
        (Rule::EndedGoes, Fault::ForgetsNoEnds, Way::Orders(exit(), usual)),
        (Rule::RecordGoes, Fault::RecordStays, Way::Orders(stop(), usual)),
        (Rule::StopBesideEnds, Fault::TombstoneStays, Way::Story(other_is_stopped)),
        (Rule::NothingIsUnbound, Fault::FindingsStay, Way::Story(other_ends)),
        (Rule::BecomesQuiet, Fault::TicksForEver, Way::Story(does_not_rest)),
        (Rule::LeaseBeforeChange, Fault::LeaseLastsForEver, Way::Orders(Budget { partitions: 1, ..none() }, usual)),
        (Rule::StoppedByOrder, Fault::DrainStops, Way::Orders(Budget { drains: 1, ..none() }, usual)),
        (Rule::EndsBeforeNext, Fault::NextTooEarly, Way::Orders(crash(), usual)),
        (Rule::StrayIsSaid, Fault::ForgetsSeals, Way::Orders(Budget { stops: 1, crashes: 1, ..none() }, usual)),
        (Rule::StrayIsSaid, Fault::SaysNoLimits, Way::Story(frozen)),
        (Rule::StrayInTime, Fault::CarriesOutLater, Way::Story(later_than_late)),
        (Rule::OutputFirst, Fault::KeepsNoOutput, Way::Orders(exit(), usual)),
        (Rule::IntentFirst, Fault::OrdersBeforeCommit, Way::Orders(none(), usual)),
        (Rule::OfItsVersion, Fault::OrdersAnotherVersion, Way::Orders(none(), usual)),
        (Rule::OneCreate, Fault::CarriesOutTwice, Way::Orders(none(), unkeyed)),
        (Rule::OneIsTheFirst, Fault::EveryCreateIsTheFirst, Way::Orders(Budget { lost_replies: 1, ..none() }, usual)),
        (Rule::OneCall, Fault::CallsTwice, Way::Orders(exit(), usual)),
        (Rule::OneAgent, Fault::TakesEveryAgent, Way::Story(copied)),
        (Rule::EffectsAgree, Fault::EffectsDiffer, Way::Orders(none(), usual)),
        (Rule::EpochNeverFalls, Fault::EpochFalls, Way::Orders(crash(), usual)),
        (Rule::EpochOfAManager, Fault::EpochStays, Way::Orders(crash(), usual)),
        (Rule::HandleStays, Fault::HandleErased, Way::Orders(crash(), usual)),
        (Rule::CountedOnce, Fault::CountsTwice, Way::Orders(Budget { exits: 1, crashes: 1, ..none() }, usual)),
        (Rule::RestartHasAnEnd, Fault::RestartsWithoutEnd, Way::Orders(none(), usual)),
        (Rule::BeginsAlone, Fault::HoldsNothing, Way::Story(begins_beside)),
        (Rule::BeginsBesideNothingUnbound, Fault::HoldsNothing, Way::Story(own_ends_beside_another)),
        (Rule::SweptFirst, Fault::HoldsNothing, Way::Story(begins_unswept)),
        (Rule::NotInARecovery, Fault::CommitsInRecovery, Way::Story(begins_in_a_recovery)),
        (Rule::RecoveryEnds, Fault::RecoveryGoesOn, Way::Story(recovers)),
        (Rule::RecoveryStopsNothing, Fault::RecoveryStops, Way::Orders(Budget { empties: 1, ..none() }, usual)),
        (Rule::TakenOverAbove, Fault::RecoversBelow, Way::Orders(Budget { empties: 1, ..none() }, usual)),
        (Rule::OneCluster, Fault::TakesEveryCluster, Way::Orders(Budget { swaps: 1, ..none() }, usual)),
        (Rule::LostAfterLease, Fault::LeasesNotAwaited, Way::Orders(take_over(), usual)),
        (Rule::LostAfterLease, Fault::FormerLeaderGrants, Way::Orders(take_over(), usual)),
        (Rule::IntentFirst, Fault::TellsBeforeDurable, Way::Orders(take_over(), usual)),
        (Rule::IntentFirst, Fault::DoubtIsYes, Way::Orders(take_over(), usual)),
        (Rule::EpochNeverFalls, Fault::FenceAdmits, Way::Story(former_leader_hears)),
    ];
    let mut wrong = Vec::new();
    for (rule, fault, way) in &rows {
        let found = match way {
            Way::Orders(budget, cfg) => {
                let cfg = faulty(Config { budget: *budget, placements: 3, ..cfg() }, *fault);
                match explore(Search { cfg, states: 20_000, waiting: 20_000, seed: 1 }, |_| false) {
                    Ok(found) => format!("nothing in {} states", found.states),
                    Err(broken) if broken.violation.rule == *rule => String::new(),
                    Err(broken) => broken.to_string(),
                }
            }
            Way::Story(tell) => match tell(*fault).violations.first() {
                None => "nothing".to_owned(),
                Some(violation) if violation.rule == *rule => String::new(),
                Some(violation) => violation.to_string(),
            },
        };
        if !found.is_empty() {
            wrong.push(format!("{fault:?} is to be caught by {rule:?}, found is {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let shown: BTreeSet<Rule> = rows.iter().map(|(rule, _, _)| *rule).collect();
    let missing: Vec<&Rule> = Rule::ALL.iter().filter(|rule| !shown.contains(rule)).collect();
    assert!(missing.is_empty(), "no fault shows that these catch anything: {missing:?}");
}

/// The stories themselves break nothing: what a rule catches is the fault.
#[test]
fn without_a_fault_the_same_stories_break_nothing() {
    // A fault that these stories never meet.
    let none = Fault::TakesEveryCluster;
    let stories = [
        frozen,
        later_than_late,
        own_ends_beside_another,
        other_ends,
        other_is_stopped,
        begins_beside,
        begins_unswept,
        begins_in_a_recovery,
        recovers,
        copied,
        former_leader_hears,
        does_not_rest,
    ];
    for tell in stories {
        tell(none).assert_ok();
    }
}
