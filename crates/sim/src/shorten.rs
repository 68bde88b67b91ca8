//! A failing plan without the steps that it does not need to fail.

use crate::{Outcome, plan::Plan, play};

/// Leaves out steps while the plan goes on failing: first many at a time, then single ones. Plays at most `plays`
/// times. The answer is the shortest failing plan with its outcome; None when the plan does not fail.
#[must_use]
pub fn shorten(plan: &Plan, plays: usize) -> Option<(Plan, Outcome)> {
    let mut left = plays;
    shorten_by(plan, |plan| {
        left = left.checked_sub(1)?;
        let outcome = play(plan);
        outcome.violation.is_some().then_some(outcome)
    })
}

/// `fails` plays a plan, and says how it fails.
fn shorten_by<T>(plan: &Plan, mut fails: impl FnMut(&Plan) -> Option<T>) -> Option<(Plan, T)> {
    let mut failing = (plan.clone(), fails(plan)?);
    let mut size = plan.steps.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < failing.0.steps.len() {
            let mut shorter = failing.0.clone();
            let until = (from + size).min(shorter.steps.len());
            shorter.steps.drain(from..until);
            match fails(&shorter) {
                Some(outcome) => failing = (shorter, outcome),
                None => from += size,
            }
        }
        size /= 2;
    }
    Some(failing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_that_are_needed_remain() {
        let plan = Plan::of(1);
        let needed = [plan.steps[3].clone(), plan.steps[17].clone(), plan.steps[40].clone()];
        let fails = |plan: &Plan| needed.iter().all(|step| plan.steps.contains(step)).then_some(());
        let (short, ()) = shorten_by(&plan, fails).expect("it fails");
        assert_eq!(short.steps, needed);
        assert!(shorten_by(&plan, |_| None::<()>).is_none(), "nothing fails");
    }
}
