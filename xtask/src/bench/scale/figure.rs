//! The lines of the result: what, figure, goal, whether it is met.

use anyhow::Result;

use crate::bench::table::quantile;

/// Prints each figure as soon as it is known: a run that is broken off has told what it has found.
#[derive(Default)]
pub(super) struct Figures {
    missed: Vec<String>,
}

impl Figures {
    /// A figure without a goal.
    pub(super) fn tell(&mut self, what: &str, figure: f64, unit: &str) {
        println!("{what}, {figure:.2} {unit}, -, -");
    }

    /// A figure that should not be larger.
    pub(super) fn at_most(&mut self, what: &str, figure: f64, goal: f64, unit: &str) {
        self.judged(what, figure, &format!("<= {goal} {unit}"), unit, figure <= goal);
    }

    /// A figure that should not be smaller.
    pub(super) fn at_least(&mut self, what: &str, figure: f64, goal: f64, unit: &str) {
        self.judged(what, figure, &format!(">= {goal} {unit}"), unit, figure >= goal);
    }

    /// A quantile of samples that should not be larger; the median is told beside it.
    pub(super) fn quantile_at_most(&mut self, what: &str, samples: &[f64], q: f64, goal: f64, unit: &str) {
        let median = quantile(samples, 0.5).unwrap_or(f64::NAN);
        let what = format!("{what} (median {median:.2})");
        self.at_most(&what, quantile(samples, q).unwrap_or(f64::NAN), goal, unit);
    }

    fn judged(&mut self, what: &str, figure: f64, goal: &str, unit: &str, ok: bool) {
        println!("{what}, {figure:.2} {unit}, {}, {}", goal.trim_end(), if ok { "ok" } else { "misses" });
        if !ok {
            self.missed.push(what.trim().to_owned());
        }
    }

    /// The end of the run. Nothing is asserted: the lines are the result.
    pub(super) fn end(self) -> Result<()> {
        match self.missed.len() {
            0 => println!("all goals are met"),
            n => println!("{n} goals are missed: {}", self.missed.join("; ")),
        }
        Ok(())
    }
}
