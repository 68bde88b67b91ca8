//! Follows an evaluation, and the deployment that it belongs to, live: until the work is healthy, or it is clear why
//! not. Allocations are followed as well: what ends or fails on the way is told with its cause, and so are checks
//! that fail.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::Result;
use api::call;
use model::{
    AllocId, Allocation, CheckResult, ClientStatus, Deployment, DeploymentId, DeploymentStatus, DesiredStatus, EvalId,
    EvalStatus, Evaluation, StoreIndex,
};

use super::{Shape, cause, placement, promotion};
use crate::{
    conn::Conn,
    output::{self, lower},
    when,
};

/// Exit code when something was submitted but not everything found a place (as Nomad's CLI does).
const INCOMPLETE: u8 = 2;
/// Between two looks at allocations and checks, while the deployment itself stays as it is.
const LOOK: Duration = Duration::from_secs(1);
/// Allocations whose checks are asked for in one look.
const CHECKED: usize = 8;

/// Where a follower speaks: beside the output of tasks it is heard on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Voice {
    /// Standard output.
    #[default]
    Out,
    /// Standard error.
    Err,
}

impl Voice {
    /// One line.
    pub(crate) fn line(self, text: &str) {
        match self {
            Self::Out => output::line(text),
            Self::Err => output::note(text),
        }
    }
    /// What has happened just now.
    pub(crate) fn say(self, text: &str) {
        let now = when::stamp(when::now_ns());
        self.line(&format!("    {}: {text}", now.get(11..19).unwrap_or(&now)));
    }
}

/// What came of an evaluation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// The exit code that tells it.
    pub(crate) code: u8,
    /// The evaluation has placed, stopped or changed nothing, and nothing waits for room.
    pub(crate) nothing: bool,
}

/// Follows an evaluation to its end, then its deployment.
pub(crate) async fn follow(conn: &Conn, id: EvalId, shape: &Shape) -> Result<ExitCode> {
    Ok(ExitCode::from(Follower::new(conn, shape, Voice::Out).eval(id).await?.code))
}

/// Follows a deployment to its end.
pub(crate) async fn follow_deployment(conn: &Conn, id: DeploymentId, shape: &Shape) -> Result<ExitCode> {
    Ok(ExitCode::from(Follower::new(conn, shape, Voice::Out).deployment(id).await?))
}

/// What was told already.
#[derive(Debug, Default)]
struct Told {
    /// When the evaluation was made that is followed: allocations that are older were there before it.
    since: StoreIndex,
    states: BTreeMap<AllocId, String>,
    /// When the last cause of a task was.
    causes: BTreeMap<(AllocId, String), i64>,
    checks: BTreeMap<(AllocId, String), Failing>,
}

/// A check that fails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Failing {
    /// Time of the last run that was seen, Unix seconds.
    at: i64,
    times: u32,
    output: String,
}

impl Failing {
    /// Takes a result in. Whether it is worth a line: it says something new, or it has said the same twice as often
    /// as when it was told last.
    fn see(&mut self, check: &CheckResult) -> bool {
        if check.timestamp == self.at && self.times > 0 {
            return false;
        }
        let new = self.times == 0 || self.output != check.output;
        (self.at, self.times) = (check.timestamp, self.times + 1);
        self.output.clone_from(&check.output);
        new || self.times.is_power_of_two()
    }
}

/// Tells what happens to work that was submitted.
pub(crate) struct Follower<'a> {
    conn: &'a Conn,
    shape: &'a Shape,
    voice: Voice,
    told: Told,
}

impl<'a> Follower<'a> {
    /// One that has told nothing yet.
    pub(crate) fn new(conn: &'a Conn, shape: &'a Shape, voice: Voice) -> Self {
        Self { conn, shape, voice, told: Told::default() }
    }

    /// Follows an evaluation to its end, then its deployment.
    pub(crate) async fn eval(&mut self, id: EvalId) -> Result<Outcome> {
        let (voice, mut id) = (self.voice, id);
        let mut outcome = Outcome { code: 0, nothing: true };
        loop {
            let shown = self.shape.id(id);
            voice.line(&format!("==> Following evaluation {shown}"));
            let eval = self.one_eval(id).await?;
            outcome.nothing &=
                self.told.states.is_empty() && eval.status == EvalStatus::Complete && eval.next_eval.is_nil();
            if !eval.failed_groups.is_empty() {
                outcome = Outcome { code: INCOMPLETE, nothing: false };
                voice.line(&format!(
                    "==> Evaluation {shown} finished with status \"{}\" but failed to place all allocations:",
                    lower(&eval.status)
                ));
                for text in placement::explained(self.conn, &eval.failed_groups).await {
                    voice.line(&format!("    {text}"));
                }
                if !eval.blocked_eval.is_nil() {
                    voice.line(&format!(
                        "    Evaluation {} waits for room to place the rest",
                        self.shape.id(eval.blocked_eval)
                    ));
                }
            } else if eval.status == EvalStatus::Canceled && !eval.next_eval.is_nil() {
                voice.line(&format!("==> Evaluation {shown} was superseded by a newer one of the job"));
            } else {
                voice.line(&format!("==> Evaluation {shown} finished with status \"{}\"", lower(&eval.status)));
            }
            if eval.status == EvalStatus::Failed {
                voice.line(&format!("    {}", eval.status_description));
                return Ok(Outcome { code: 1, nothing: false });
            }
            // A rolling update without a deployment goes on in the next evaluation; one that waits for a time is left
            // to itself.
            if !eval.next_eval.is_nil() && eval.deployment_id.is_nil() {
                let next = self.conn.ask(call::eval(eval.next_eval)).await?;
                if next.wait_until == 0 {
                    id = next.id;
                    continue;
                }
            }
            if !eval.deployment_id.is_nil() {
                let code = self.deployment(eval.deployment_id).await?;
                outcome = Outcome { code: if code == 0 { outcome.code } else { code }, nothing: false };
            }
            return Ok(outcome);
        }
    }

    async fn one_eval(&mut self, id: EvalId) -> Result<Evaluation> {
        let mut index = 0;
        let mut announced = false;
        loop {
            let (eval, next) = self.conn.ask_at(call::eval(id), index).await?;
            index = next;
            if !announced {
                self.voice.say(&format!("Evaluation triggered by {}, job {:?}", lower(&eval.trigger), eval.job_id));
                announced = true;
            }
            self.told.since = eval.create_index;
            let allocs = self.conn.ask(call::eval_allocations(id)).await?;
            self.allocs(&allocs).await;
            if eval.status.terminal() || eval.status == EvalStatus::Blocked {
                if !eval.deployment_id.is_nil() {
                    self.voice.say(&format!("Evaluation within deployment {}", self.shape.id(eval.deployment_id)));
                }
                return Ok(eval);
            }
        }
    }

    /// Tells what is new about allocations, with the causes of what went wrong.
    pub(crate) async fn allocs(&mut self, allocs: &[Allocation]) {
        for a in allocs {
            let (id, name) = (self.shape.id(a.id), &a.name);
            let state = format!("{} {}", lower(&a.desired_status), lower(&a.client_status));
            let new = match self.told.states.insert(a.id, state.clone()) {
                None if a.desired_status == DesiredStatus::Run => {
                    let what = if a.create_index < self.told.since { "updated" } else { "placed" };
                    self.voice.say(&format!(
                        "Allocation {id} ({name}) {what} on node {} ({})",
                        self.shape.id(a.node_id),
                        a.node_name
                    ));
                    true
                }
                None => true,
                Some(old) => old != state,
            };
            if new && a.client_status != ClientStatus::Pending {
                self.voice.say(&format!("Allocation {id} ({name}) is {}", lower(&a.client_status)));
            }
            for cause in cause::causes(a) {
                let key = (a.id, cause.task.clone());
                if self.told.causes.insert(key, cause.at) != Some(cause.at) {
                    for (i, line) in cause::explained(self.conn, a.id, &cause).await.iter().enumerate() {
                        self.voice.say(&if i == 0 {
                            format!("Allocation {id} ({name}): {line}")
                        } else {
                            line.clone()
                        });
                    }
                }
            }
        }
    }

    /// Tells of the failing checks of allocations that are not healthy yet.
    async fn checks(&mut self, allocs: &[Allocation]) {
        let waiting = allocs.iter().filter(|a| {
            a.client_status == ClientStatus::Running
                && a.desired_status == DesiredStatus::Run
                && a.healthy() != Some(true)
        });
        for a in waiting.take(CHECKED) {
            for check in cause::failing_checks(self.conn, a.id).await {
                let seen = self.told.checks.entry((a.id, check.id.clone())).or_default();
                if seen.see(&check) {
                    let text = cause::check_text(&check, seen.times);
                    self.voice.say(&format!("Allocation {} ({}): {text}", self.shape.id(a.id), a.name));
                }
            }
        }
    }

    /// Follows a deployment to its end; the exit code that tells it.
    pub(crate) async fn deployment(&mut self, id: DeploymentId) -> Result<u8> {
        let (voice, short) = (self.voice, self.shape.id(id));
        voice.line(&format!("==> Following deployment {short}"));
        let mut index = 0;
        let mut shown = String::new();
        let (mut asked, mut held) = (false, false);
        loop {
            let (d, next) = self.conn.ask_within(call::deployment(id), index, LOOK).await?;
            index = next;
            let text = progress(&d);
            if text != shown {
                voice.say(&text);
                shown = text;
            }
            let allocs = self.conn.ask(call::deployment_allocations(id)).await?;
            self.allocs(&allocs).await;
            let paused = d.status == DeploymentStatus::Paused;
            if held && (d.status == DeploymentStatus::Successful || d.status.active() && !paused) {
                voice.say("The deployment goes on");
            }
            if !d.status.active() {
                voice.line(&format!("==> Deployment {short} is {}: {}", lower(&d.status), d.status_description));
                return Ok(u8::from(d.status != DeploymentStatus::Successful));
            }
            if paused && !held {
                voice.say("The deployment is paused; it goes on when somebody resumes it");
                voice.line(&format!("    next: {}", promotion::resume_command(d.id, self.shape)));
            }
            held = paused;
            let awaits = promotion::promotion(&d) == promotion::Promotion::Awaited;
            if awaits && !asked {
                voice.say("The canaries are healthy; the rest waits for their promotion");
                voice.line(&format!("    next: {}", promotion::promote_command(d.id, self.shape)));
            }
            asked = awaits;
            self.checks(&allocs).await;
        }
    }
}

/// How far each group is.
fn progress(d: &Deployment) -> String {
    let groups: Vec<String> = d
        .groups
        .iter()
        .map(|(n, g)| {
            format!(
                "{n}: {} placed, {} healthy, {} unhealthy of {}",
                g.placed_allocs, g.healthy_allocs, g.unhealthy_allocs, g.desired_total
            )
        })
        .collect();
    groups.join("; ")
}

#[cfg(test)]
mod tests {
    use model::CheckResult;

    use super::Failing;

    #[test]
    fn a_failing_check_is_told_now_and_then() {
        let mut seen = Failing::default();
        let run =
            |at: i64, output: &str| CheckResult { timestamp: at, output: output.into(), ..CheckResult::default() };
        // A look without a new run in between counts nothing.
        let told: Vec<(i64, u32)> = [1, 1, 2, 3, 4, 5, 6, 7, 8, 9]
            .into_iter()
            .filter_map(|at| seen.see(&run(at, "refused")).then_some((at, seen.times)))
            .collect();
        assert_eq!(told, [(1, 1), (2, 2), (4, 4), (8, 8)]);
        assert!(seen.see(&run(10, "timed out")), "something new is told at once");
    }
}
