//! How long things take: what metrics call samples. Each is kept for intervals of ten seconds, of which people are
//! shown the last that is complete, and as a sum since the start, which collectors make rates of.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How long an interval is.
const INTERVAL: Duration = Duration::from_secs(10);

/// Names of the samples, as a stock server has them where it has the same.
pub(crate) mod name {
    /// Requests of the HTTP API that did not wait for a change.
    pub(crate) const HTTP: &str = "drover.http.request";
    /// What the scheduler thinks about an evaluation, by its type.
    pub(crate) fn scheduler(kind: &str) -> &'static str {
        match kind {
            "batch" => "nomad.nomad.worker.invoke_scheduler.batch",
            "system" => "nomad.nomad.worker.invoke_scheduler.system",
            "sysbatch" => "nomad.nomad.worker.invoke_scheduler.sysbatch",
            _ => "nomad.nomad.worker.invoke_scheduler.service",
        }
    }
    /// A plan from its hand-over until it is durable.
    pub(crate) const PLAN_SUBMIT: &str = "nomad.nomad.plan.submit";
    /// Its check against the newest state.
    pub(crate) const PLAN_EVALUATE: &str = "nomad.nomad.plan.evaluate";
    /// A commit from its hand-over to the store until it is durable.
    pub(crate) const STORE_COMMIT: &str = "drover.store.commit";
}

/// Values of an interval, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Values {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// Sum of their squares.
    pub squares: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Values {
    fn add(&mut self, value: f64) {
        (self.min, self.max) =
            if self.count == 0 { (value, value) } else { (self.min.min(value), self.max.max(value)) };
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// Mean.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "metrics are read as floats")]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    /// Standard deviation of a sample.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "metrics are read as floats")]
    pub fn deviation(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let n = self.count as f64;
        // Rounding may make the difference of nearly equal numbers negative.
        ((n * self.squares - self.sum * self.sum) / (n * (n - 1.0))).max(0.0).sqrt()
    }
}

/// What one name stands for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Name.
    pub name: &'static str,
    /// Values of the last complete interval, or of the running one while there is none.
    pub shown: Values,
    /// Since the start: how many.
    pub total_count: u64,
    /// Since the start: their sum in milliseconds.
    pub total_sum: f64,
}

impl Sample {
    /// Sum per second of an interval.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.shown.sum / INTERVAL.as_secs_f64()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Series {
    /// Number of the interval that runs.
    interval: u64,
    running: Values,
    last: Values,
    total_count: u64,
    total_sum: f64,
}

impl Series {
    /// Goes on to an interval.
    fn turn(&mut self, interval: u64) {
        if interval > self.interval {
            // Of an interval in which nothing happened there is nothing to show.
            self.last = if interval == self.interval + 1 { self.running } else { Values::default() };
            self.running = Values::default();
            self.interval = interval;
        }
    }
}

/// The samples of a server.
#[derive(Debug)]
pub(crate) struct Samples {
    begun: Instant,
    series: Mutex<BTreeMap<&'static str, Series>>,
}

impl Default for Samples {
    fn default() -> Self {
        Self { begun: Instant::now(), series: Mutex::default() }
    }
}

impl Samples {
    /// Something that has begun then is done.
    pub(crate) fn since(&self, name: &'static str, begun: Instant) {
        self.took(name, begun.elapsed());
    }

    /// Something is done that took so long.
    pub(crate) fn took(&self, name: &'static str, time: Duration) {
        self.add(name, time, self.begun.elapsed());
    }

    fn add(&self, name: &'static str, took: Duration, age: Duration) {
        let value = took.as_secs_f64() * 1000.0;
        let mut all = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let series = all.entry(name).or_default();
        series.turn(interval(age));
        series.running.add(value);
        series.total_count += 1;
        series.total_sum += value;
    }

    /// Everything that was ever measured.
    pub(crate) fn all(&self) -> Vec<Sample> {
        self.at(self.begun.elapsed())
    }

    fn at(&self, age: Duration) -> Vec<Sample> {
        let mut all = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let show = |(name, series): (&&'static str, &mut Series)| {
            series.turn(interval(age));
            let shown = if series.last.count > 0 { series.last } else { series.running };
            Sample { name, shown, total_count: series.total_count, total_sum: series.total_sum }
        };
        all.iter_mut().map(show).collect()
    }
}

fn interval(age: Duration) -> u64 {
    age.as_secs() / INTERVAL.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_complete_interval_is_shown_and_the_sum_of_all() {
        let samples = Samples::default();
        let add = |ms: u64, at: u64| samples.add("x", Duration::from_millis(ms), Duration::from_secs(at));
        let shown = |at: u64| samples.at(Duration::from_secs(at))[0].clone();
        for ms in [2, 4, 4, 4, 5, 5, 7, 9] {
            add(ms, 1);
        }
        let first = shown(5);
        assert_eq!(
            (first.shown.count, first.shown.sum, first.shown.min, first.shown.max),
            (8, 40.0, 2.0, 9.0),
            "none is complete yet"
        );
        assert_eq!((first.shown.mean(), first.rate()), (5.0, 4.0));
        assert!((first.shown.deviation() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-9);
        add(100, 11);
        assert_eq!(shown(12).shown, first.shown, "the running interval is not complete");
        let second = shown(21);
        assert_eq!((second.shown.count, second.shown.sum, second.shown.deviation()), (1, 100.0, 0.0));
        let quiet = shown(60);
        assert_eq!((quiet.shown, quiet.total_count, quiet.total_sum), (Values::default(), 9, 140.0));
    }
}
