//! The conformance suite for driver plugins: starts any plugin program as an agent would and checks what agents rely
//! on.
//!
//! For: authors of drivers in any language (`drover driver check PATH`), and for a driver's own tests ([`run`]). Each
//! check is a value ([`Check`]) with what it means when it fails; a check that needs something the plugin does not
//! offer is reported as not applicable, with the reason. After every check no process, socket or fifo of the plugin may
//! be left. Must never know: the server, the agent, how a host supervises. It has a small client of its own, so that it
//! sees what a tolerant host hides. Start reading at [`check`], then any file in `checks/`.
//!
//! ```no_run
//! # async fn example() {
//! let subject = driver_check::Subject::new("target/debug/my-driver");
//! let report = driver_check::run(subject, &driver_check::Selection::default()).await;
//! assert!(report.passed(), "{report}");
//! # }
//! ```

pub mod check;
mod checks;
mod encode;
mod kit;
mod lab;
mod outcome;
mod plugin;
mod procs;
mod raw;
mod report;
mod subject;
mod task;

pub use check::Check;
pub use checks::all;
pub use encode::encode_json;
pub use kit::{EXIT_CODE, KitError, TaskKit};
pub use outcome::Verdict;
pub use report::{Finding, Report};
pub use subject::{EncodeConfig, Pace, Profile, Subject, Surroundings};

use std::sync::Arc;

use futures::StreamExt;

/// Which checks to run.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Ids, groups (what stands before the slash of an id) or sections; empty for all.
    pub only: Vec<String>,
    /// How many at a time; 0 for twice the number of processors.
    pub parallel: usize,
}

impl Selection {
    /// Whether a check is among them.
    pub fn has(&self, check: &Check) -> bool {
        let fits = |wanted: &String| {
            wanted == check.id || wanted == check.group() || wanted.eq_ignore_ascii_case(check.section)
        };
        self.only.is_empty() || self.only.iter().any(fits)
    }

    /// What fits no check.
    pub fn unknown(&self) -> Vec<String> {
        let fits =
            |wanted: &String| all().any(|check| Selection { only: vec![wanted.clone()], parallel: 0 }.has(check));
        self.only.iter().filter(|wanted| !fits(wanted)).cloned().collect()
    }
}

/// Runs the selected checks against a plugin.
pub async fn run(subject: Subject, selection: &Selection) -> Report {
    run_with(subject, selection, |_| {}).await
}

/// As [`run`], and tells each finding at once.
pub async fn run_with(subject: Subject, selection: &Selection, tell: impl Fn(&Finding)) -> Report {
    let (profile, trouble) = lab::profile(&subject).await;
    let subject = Arc::new(subject.with_profile(profile));
    let parallel = match selection.parallel {
        0 => 2 * std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
        n => n,
    };
    let chosen = all().filter(|check| selection.has(check)).enumerate();
    let mut findings: Vec<(usize, Finding)> = futures::stream::iter(chosen)
        .map(|(at, check)| {
            let subject = subject.clone();
            async move { (at, lab::carry_out(check, subject).await) }
        })
        .buffer_unordered(parallel)
        .inspect(|(_, finding)| tell(finding))
        .collect()
        .await;
    findings.sort_by_key(|(at, _)| *at);
    let profile = subject.profile();
    Report {
        driver: profile.name.clone(),
        trouble,
        findings: findings.into_iter().map(|(_, finding)| finding).collect(),
    }
}
