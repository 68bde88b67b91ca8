//! A provider of each level that a guarantee may have, by the product's own rules.

use lifecycle::remote::guarantee;
use model::remote::GuaranteeLevel;

use crate::{
    scenarios::start_until,
    world::{Action, Config, World},
};

/// Each kind of provider, with the level that is promised of it.
pub(crate) fn levels() -> [(&'static str, GuaranteeLevel, Config); 14] {
    use GuaranteeLevel::{ExactlyOne, ExactlyOneBySearch, HandleOnly, Held, KeyedOnly, Unfenced};
    let all = Config::default();
    // Without sealing a create that comes late is the known gap.
    let search = Config { keyed: false, seal: false, ..all.clone() };
    let nothing = Config { find: false, ..search.clone() };
    [
        ("keys, seals and epochs", ExactlyOne, all.clone()),
        ("keys and epochs", KeyedOnly, Config { seal: false, ..all.clone() }),
        ("keys and seals", KeyedOnly, Config { fenced: false, ..all.clone() }),
        ("keys and seals, lease bounds calls", KeyedOnly, Config { fenced: false, frozen: false, ..all.clone() }),
        (
            "keys, search is stale",
            KeyedOnly,
            Config { fenced: false, seal: false, frozen: false, stale: true, ..all.clone() },
        ),
        ("keys without seals", KeyedOnly, Config { fenced: false, seal: false, ..all.clone() }),
        ("keys, forgetful", KeyedOnly, Config { fenced: false, seal: false, forgetful: true, ..all.clone() }),
        ("keys without search", KeyedOnly, Config { fenced: false, seal: false, find: false, ..all.clone() }),
        ("search, seals and epochs", ExactlyOneBySearch, Config { seal: true, ..search.clone() }),
        ("search and epochs", Unfenced, search.clone()),
        ("search", Unfenced, Config { fenced: false, ..search.clone() }),
        ("stale search", Unfenced, Config { fenced: false, frozen: false, stale: true, ..search }),
        ("nothing", Held, Config { fenced: false, ..nothing.clone() }),
        ("handles", HandleOnly, Config { fenced: false, plain: true, ..nothing }),
    ]
}

pub(crate) fn level(name: &str) -> Config {
    let found = levels().into_iter().find(|(level, _, _)| *level == name);
    found.map(|(_, _, cfg)| cfg).expect("a level")
}

#[test]
fn the_providers_of_the_model_have_the_levels_that_it_is_about() {
    for (name, level, cfg) in levels() {
        assert_eq!(guarantee(Some(&cfg.caps())).level, level, "{name}");
    }
}

/// What the limits say of a second instance: nothing of the product ends it, and nothing else begins in its slot.
#[test]
fn a_second_instance_lives_until_a_person_stops_it() {
    let cfg = Config { seal: false, fenced: false, ..Config::default() };
    let mut w = start_until(cfg, |w| w.enabled().contains(&Action::Execute(0, 0)));
    let first = w.records[&0].incarnation;
    // The create is on its way when its manager is lost; the job is replaced; then the create takes effect.
    w.kill_and_expire(0);
    w.apply(&Action::UpdateJob);
    w.run_as_is();
    let second = w.records[&0].incarnation;
    assert!(second != first && w.alive(0).len() == 1, "{:?}", w.records);
    w.apply(&Action::Late(0));
    let by_itself = |w: &mut World| w.run(|a| !matches!(a, Action::StopUnbound(_)));
    by_itself(&mut w);
    let unbound = |w: &World| w.unbound.keys().copied().collect::<Vec<_>>();
    assert_eq!(
        (w.alive(0).len(), unbound(&w), w.provider.stops),
        (2, vec![first], 0),
        "the sweep reports it, nobody stops it"
    );
    // The slot's own one ends: nothing follows it beside the other.
    let own = w.provider.instances.iter().position(|i| i.key == second).expect("the slot's own one");
    w.exit(own, 1);
    by_itself(&mut w);
    assert_eq!(w.alive(0).iter().map(|i| i.key).collect::<Vec<_>>(), [first]);
    w.run_as_is();
    assert!(
        w.alive(0).len() == 1 && w.alive(0)[0].key != first,
        "a person has stopped it, and the slot goes on: {:?}",
        w.records
    );
    assert_eq!((unbound(&w).len(), w.provider.stops), (0, 1));
    w.assert_ok();
}

/// Where a provider refuses no stale call, the create of a manager that has yet to hear of its drain is as late as that
/// of a lost one: the next manager has looked, and its finding is on its way.
#[test]
fn a_manager_that_has_yet_to_hear_of_its_drain_may_leave_a_second_instance() {
    let mut w = start_until(level("search"), |w| w.enabled().contains(&Action::Execute(0, 0)));
    let first = w.records[&0].incarnation;
    w.apply(&Action::Drain(0));
    w.apply(&Action::ForceDrain(0));
    w.apply(&Action::UpdateJob);
    let of_others = |a: &Action| !matches!(a, Action::Execute(0, _) | Action::LetGo(0, _) | Action::ToNode(0));
    let calm = |a: &Action| of_others(a) && !matches!(a, Action::Lapse(_) | Action::Expire(_) | Action::StopUnbound(_));
    w.run(|a| calm(a) && !matches!(a, Action::ToServers(1)));
    w.apply(&Action::Execute(0, 0));
    w.run(calm);
    assert!(w.records[&0].incarnation != first && w.alive(0).len() == 2, "{:?}", w.records);
    assert_eq!(w.unbound.keys().copied().collect::<Vec<_>>(), [first], "the sweep finds it");
    w.assert_ok();
}

/// A create takes effect between the look that finds nothing and its report, and its instance ends at once. Its remains
/// are the provider's to forget, as with any late create.
#[test]
fn what_came_late_and_has_ended_by_then_belongs_to_no_record() {
    let mut w =
        start_until(Config { seal: false, ..Config::default() }, |w| w.enabled().contains(&Action::Execute(0, 0)));
    w.kill_and_expire(0);
    w.apply(&Action::StopJob);
    w.run(|a| !matches!(a, Action::ToServers(_) | Action::Connect(_) | Action::Lapse(_) | Action::Expire(_)));
    w.apply(&Action::Late(0));
    w.exit(0, 1);
    w.run_as_is();
    w.check_quiet();
    assert!(w.records.is_empty() && w.provider.instances.len() == 1, "{:?}", w.records);
    w.assert_ok();
}
