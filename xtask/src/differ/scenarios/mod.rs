//! The scenarios, by what they are about.

mod jobs;
mod nodes;
mod placement;
mod preemption;
mod restarts;
mod services;
mod steps;
mod tasks;
mod updates;

use super::{random, scenario::Scenario};

/// Scenarios of the dice that have shown something which none of the others shows.
const FOUND: &[&str] = &["random-92002-85"];

/// All of them.
pub(super) fn all() -> Vec<Scenario> {
    let found = FOUND.iter().filter_map(|name| random::named(name)).collect();
    let all = [
        // Those on nodes of their own come first: there are few of these.
        nodes::scenarios(),
        found,
        placement::scenarios(),
        preemption::scenarios(),
        updates::scenarios(),
        restarts::scenarios(),
        tasks::scenarios(),
        services::scenarios(),
        jobs::scenarios(),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn scenarios_have_names_of_their_own_and_events_after_the_placement() {
        let mut names = BTreeSet::new();
        for scenario in all() {
            assert!(names.insert(scenario.name.clone()), "{} is there twice", scenario.name);
            assert!(scenario.steps.len() >= 2, "{} has no event", scenario.name);
        }
        assert!(names.len() >= 60, "there are {}", names.len());
    }
}
