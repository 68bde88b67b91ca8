//! `drover job periodic …`, and when the clock launches a job.

use std::process::ExitCode;

use anyhow::Result;
use api::call;
use jiff::{Timestamp, tz::TimeZone};
use model::{GoDuration, Job, periodic::Schedule};

use super::common::{find, followed};
use crate::{
    commands::{ApiArgs, Shape},
    when,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Periodic {
    /// Launch a periodic job now
    Force {
        #[command(flatten)]
        api: ApiArgs,
        /// Print identifiers in full
        #[arg(long)]
        verbose: bool,
        /// Return at once instead of following the evaluation
        #[arg(long)]
        detach: bool,
        /// The periodic job
        id: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Periodic) -> Result<ExitCode> {
    let Periodic::Force { api, verbose, detach, id } = command;
    let conn = api.conn()?;
    let (conn, id) = find(&conn, &id).await?;
    let made = conn.ask(call::job_periodic_force(&id)).await?;
    // The evaluation is the child's.
    let child = conn.ask(call::eval(made.eval_id)).await?.job_id.to_string();
    followed(&conn, &child, made.eval_id, detach, &Shape { verbose, ..Shape::default() }).await
}

/// The next launch of a job, for people; `now` in Unix ns. None: the clock does not launch it.
pub(crate) fn next_launch(job: &Job, now: i64) -> Option<String> {
    let schedule = Schedule::of(job.launches()?, |name| TimeZone::get(name).ok()).ok()?;
    Some(match schedule.next(now / 1_000_000_000) {
        Some(at) => told(at, now),
        None => "none: its times are over".to_owned(),
    })
}

/// A launch, for people; Unix seconds.
fn told(at: i64, now: i64) -> String {
    let ns = at.saturating_mul(1_000_000_000);
    const SECOND: i64 = 1_000_000_000;
    let left = ns.saturating_sub(now);
    format!("{} ({} from now)", when::stamp(ns), GoDuration(left - left % SECOND))
}

/// The same of a time in the format of the API.
pub(crate) fn next_launch_at(text: &str, now: i64) -> String {
    text.parse::<Timestamp>().map_or_else(|_| text.to_owned(), |at| told(at.as_second(), now))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_next_launch_is_told() {
        let of = |periodic| {
            let job =
                api::go_json::from_value(json!({"ID": "x", "Type": "batch", "Periodic": periodic})).expect("a job");
            next_launch(&job, 1_767_225_600_000_000_000)
        };
        assert!(
            of(json!({"Spec": "@hourly"})).is_some_and(|text| text.ends_with("(1h0m0s from now)")),
            "{:?}",
            of(json!({"Spec": "@hourly"}))
        );
        assert_eq!(of(json!({"Spec": "0 0 1 1 * 2020"})).as_deref(), Some("none: its times are over"));
        assert_eq!(of(json!({"Spec": "@hourly", "Enabled": false})), None);
        assert!(next_launch_at("2026-01-01T01:00:00Z", 1_767_225_600_000_000_000).ends_with("(1h0m0s from now)"));
    }
}
