//! `-wait`: follows work that ends to its end. What its tasks write is written here, and how they end is how the
//! command ends.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Result;
use api::call;
use model::{AllocId, Allocation, ClientStatus, DesiredStatus, Job, TaskState, job::job_type};
use tokio::{sync::Mutex, task::JoinSet};

use crate::{
    commands::{
        Shape, cause,
        monitor::{Follower, Voice},
        placement,
    },
    conn::Conn,
    output,
};

/// Between two looks at the allocations while the job itself stays as it is.
const LOOK: Duration = Duration::from_millis(500);
/// How long the rest of the output may take once the job has ended.
const REST: Duration = Duration::from_secs(10);
/// Attempts to go on with an output whose stream has broken, and the pause before each.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(300);

/// Whether a job of this kind ends by itself.
pub(crate) fn ends(kind: &str) -> bool {
    kind == job_type::BATCH || kind == job_type::SYSBATCH
}

/// How an allocation's tasks have ended, as an exit code: that of the task, 128 + the signal that killed it, 1 where
/// nothing was run.
fn code_of(a: &Allocation) -> u8 {
    let stopped = a.desired_status != DesiredStatus::Run;
    let task = |t: &TaskState| -> i32 {
        let last = t
            .events
            .iter()
            .rev()
            .find(|e| matches!(e.kind.as_str(), "Terminated" | "Driver Failure" | "Setup Failure"));
        let code = match last {
            Some(e) if e.kind == "Terminated" && e.signal != 0 => 128 + e.signal,
            Some(e) if e.kind == "Terminated" => e.exit_code,
            _ => 0,
        };
        match (t.failed, code) {
            // Failed for another reason than its exit.
            (true, 0) => 1,
            (true, code) => code,
            (false, code) if stopped => code,
            (false, _) => 0,
        }
    };
    let worst = a.task_states.values().map(task).max().unwrap_or(0);
    let at_least = i32::from(!matches!(a.client_status, ClientStatus::Complete));
    u8::try_from(worst.max(at_least).min(255)).unwrap_or(1)
}

/// The last attempt of each place of a job: of an index, and on each node of it where every node has one.
fn last_attempts<'a>(allocs: &'a [Allocation], job: &Job) -> Vec<&'a Allocation> {
    let mut last: BTreeMap<(&str, Option<model::NodeId>), &Allocation> = BTreeMap::new();
    for a in allocs.iter().filter(|a| a.job_version >= job.version) {
        let place = (&*a.name, (job.kind == job_type::SYSBATCH).then_some(a.node_id));
        let known = last.entry(place).or_insert(a);
        if a.create_index > known.create_index {
            *known = a;
        }
    }
    last.into_values().collect()
}

/// The exit code of all of it: the highest one.
fn verdict(allocs: &[Allocation], job: &Job) -> Option<u8> {
    last_attempts(allocs, job).into_iter().map(code_of).max()
}

/// How many tasks a job runs, as far as its file says it.
fn is_single(job: &Job) -> bool {
    job.kind != job_type::SYSBATCH && matches!(job.task_groups.as_slice(), [g] if g.count() == 1 && g.tasks.len() == 1)
}

/// Follows a job to its end. `follower` has told what happened so far.
pub(crate) async fn to_its_end(conn: &Conn, id: &str, shape: &Shape, follower: &mut Follower<'_>) -> Result<u8> {
    let mut outputs = Outputs::default();
    let mut index = 0;
    let mut told_waiting = Vec::new();
    let mut version = None;
    loop {
        let (job, next) = conn.ask_within(call::job(id), index, LOOK).await?;
        index = next;
        let first = *version.get_or_insert(job.version);
        let job = Job { version: first, ..job };
        // Read after the job: what has ended with it is among them.
        let allocs = conn.ask(call::job_allocations(id)).await?;
        let own: Vec<Allocation> = allocs.into_iter().filter(|a| a.job_version >= first).collect();
        follower.allocs(&own).await;
        outputs.begin(conn, &own, is_single(&job)).await;
        if job.status == "dead" {
            outputs.rest().await;
            let Some(code) = verdict(&own, &job) else {
                output::note(&format!("==> Job {id:?} has ended before anything of it was placed"));
                return Ok(1);
            };
            let failed: Vec<&Allocation> = last_attempts(&own, &job).into_iter().filter(|a| code_of(a) != 0).collect();
            for a in &failed {
                let why: Vec<String> = cause::causes(a).iter().map(|c| format!("{}: {}", c.task, c.text)).collect();
                let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
                output::note(&format!("==> Allocation {} ({}) did not end well{why}", shape.id(a.id), a.name));
            }
            let how = if code == 0 { "ended well".to_owned() } else { format!("ended with exit code {code}") };
            output::note(&format!("==> Job {id:?} has {how}"));
            return Ok(code);
        }
        if own.iter().all(Allocation::client_terminal) {
            let evals = conn.ask(call::job_evaluations(id)).await?;
            if let Some(failed) = placement::waiting(&evals) {
                let lines = placement::explained(conn, failed).await;
                if lines != told_waiting {
                    Voice::Err.say("Waiting for room:");
                    lines.iter().for_each(|l| Voice::Err.line(&format!("    {l}")));
                    told_waiting = lines;
                }
            }
        }
    }
}

/// One output of one task: where it has been read to. A remote task's goes on under the next allocation that manages
/// the same instance.
type Place = Arc<Mutex<i64>>;

/// All outputs that are written here.
#[derive(Default)]
struct Outputs {
    begun: BTreeMap<(AllocId, String), ()>,
    places: BTreeMap<(String, &'static str), Place>,
    readers: JoinSet<()>,
}

impl Outputs {
    /// Reads along with every task that has started since the last time.
    async fn begin(&mut self, conn: &Conn, allocs: &[Allocation], single: bool) {
        for a in allocs {
            let started = |t: &TaskState| t.events.iter().any(|e| e.kind == "Started" || e.kind == "Terminated");
            for (task, _) in a.task_states.iter().filter(|(_, t)| started(t)) {
                if self.begun.contains_key(&(a.id, task.to_string())) {
                    continue;
                }
                // The node may just be away: then it is tried at the next look.
                let Ok(detail) = conn.ask(call::alloc(a.id)).await else { continue };
                self.begun.insert((a.id, task.to_string()), ());
                let instance =
                    detail.extra.remote_tasks.iter().find(|r| r.slot.task == *task).map(|r| r.incarnation.to_string());
                let whose = instance.unwrap_or_else(|| format!("{}/{task}", a.id));
                let prefix = if single { String::new() } else { format!("{}/{task} | ", a.name) };
                for kind in ["stdout", "stderr"] {
                    let place = self.places.entry((whose.clone(), kind)).or_default().clone();
                    self.readers.spawn(read(conn.clone(), a.id, task.to_string(), kind, prefix.clone(), place));
                }
            }
        }
    }

    /// Waits for what is still on its way.
    async fn rest(&mut self) {
        let all = async { while self.readers.join_next().await.is_some() {} };
        if tokio::time::timeout(REST, all).await.is_err() {
            output::note("the rest of the output did not come in time; `drover alloc logs` shows what there is");
        }
    }
}

/// Writes an output here until the task has ended.
#[expect(
    clippy::await_holding_invalid_type,
    reason = "readers of one instance take turns, each for as long as it reads"
)]
async fn read(conn: Conn, alloc: AllocId, task: String, kind: &'static str, prefix: String, place: Place) {
    // Whoever reads the same instance under an earlier allocation comes first.
    let mut offset = place.lock().await;
    let mut lines = Lines { prefix, open: Vec::new(), kind };
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let logs = call::alloc_files("logs", alloc).with("task", &task).with("type", kind).with("follow", true);
        let Ok(mut frames) = conn.frames(logs.with("origin", "start").with("offset", *offset)).await else { continue };
        loop {
            match frames.next().await {
                Ok(Some(frame)) if frame.data.is_empty() => {}
                Ok(Some(frame)) => {
                    lines.write(&frame.data);
                    *offset = frame.offset;
                }
                Ok(None) => return lines.end(),
                Err(_) => break,
            }
        }
    }
    lines.end();
}

/// Writes to the output that a task has written to; with a prefix, in whole lines.
struct Lines {
    prefix: String,
    open: Vec<u8>,
    kind: &'static str,
}

impl Lines {
    fn write(&mut self, data: &[u8]) {
        if self.prefix.is_empty() {
            return self.put(data);
        }
        self.open.extend_from_slice(data);
        let Some(end) = self.open.iter().rposition(|b| *b == b'\n') else { return };
        let rest = self.open.split_off(end + 1);
        let whole = std::mem::replace(&mut self.open, rest);
        self.put(&prefixed(&self.prefix, &whole));
    }

    fn end(&mut self) {
        if !self.open.is_empty() {
            let mut last = std::mem::take(&mut self.open);
            last.push(b'\n');
            self.put(&prefixed(&self.prefix, &last));
        }
    }

    fn put(&self, data: &[u8]) {
        if self.kind == "stdout" {
            output::bytes(data);
        } else {
            // Nobody may be reading it.
            let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), data);
        }
    }
}

/// Each line with a prefix.
fn prefixed(prefix: &str, lines: &[u8]) -> Vec<u8> {
    lines.split_inclusive(|b| *b == b'\n').flat_map(|l| [prefix.as_bytes(), l].concat()).collect()
}

#[cfg(test)]
mod tests {
    use model::{Happening, NodeId};

    use super::*;

    fn ended(code: i32, signal: i32, failed: bool) -> TaskState {
        let event = Happening { kind: "Terminated".into(), exit_code: code, signal, ..Happening::default() }.at(1);
        TaskState { failed, events: vec![event], ..TaskState::default() }
    }

    fn alloc(name: &str, index: u64, status: ClientStatus, tasks: Vec<TaskState>) -> Allocation {
        let task_states = tasks.into_iter().enumerate().map(|(i, t)| (i.to_string().into(), t)).collect();
        Allocation {
            name: name.into(),
            create_index: index,
            client_status: status,
            task_states,
            ..Allocation::default()
        }
    }

    #[test]
    fn the_tasks_code_is_the_commands() {
        let failed = ClientStatus::Failed;
        let started_not = TaskState { failed: true, ..TaskState::default() };
        for (what, a, code) in [
            ("well", alloc("a", 1, ClientStatus::Complete, vec![ended(0, 0, false)]), 0),
            ("a code", alloc("a", 1, failed, vec![ended(4, 0, true)]), 4),
            ("a signal", alloc("a", 1, failed, vec![ended(0, 11, true)]), 139),
            ("the highest", alloc("a", 1, failed, vec![ended(4, 0, true), ended(7, 0, true), ended(0, 0, false)]), 7),
            ("never started", alloc("a", 1, failed, vec![started_not]), 1),
            ("no task", alloc("a", 1, failed, vec![]), 1),
            ("lost", alloc("a", 1, ClientStatus::Lost, vec![ended(0, 0, false)]), 1),
            ("too high a code", alloc("a", 1, failed, vec![ended(4711, 0, true)]), 255),
            // An attempt before the one that ended well.
            ("a restart", alloc("a", 1, ClientStatus::Complete, vec![ended(0, 0, false)]), 0),
        ] {
            assert_eq!(code_of(&a), code, "{what}");
        }
        let stopped = Allocation {
            desired_status: DesiredStatus::Stop,
            ..alloc("a", 1, ClientStatus::Complete, vec![ended(0, 15, false)])
        };
        assert_eq!(code_of(&stopped), 143);
    }

    #[test]
    fn the_last_attempt_of_each_place_counts() {
        let batch = Job { kind: "batch".into(), ..Job::default() };
        let bad = |name: &str, index| alloc(name, index, ClientStatus::Failed, vec![ended(3, 0, true)]);
        let good = |name: &str, index| alloc(name, index, ClientStatus::Complete, vec![ended(0, 0, false)]);
        assert_eq!(verdict(&[bad("a", 1), good("a", 2)], &batch), Some(0));
        assert_eq!(verdict(&[bad("a", 1), good("b", 2)], &batch), Some(3));
        assert_eq!(verdict(&[], &batch), None);
        // Allocations of an earlier version of the job are not this run's.
        assert_eq!(verdict(&[bad("a", 1)], &Job { version: 1, ..batch }), None);
        let on = |n: u64, a: Allocation| Allocation {
            node_id: format!("00000000-0000-0000-0000-{n:012}").parse::<NodeId>().expect("an id"),
            ..a
        };
        let each = Job { kind: "sysbatch".into(), ..Job::default() };
        assert_eq!(verdict(&[on(1, bad("a", 1)), on(2, good("a", 2))], &each), Some(3));
    }

    #[test]
    fn lines_carry_whose_they_are() {
        assert_eq!(prefixed("a | ", b"1\n2\n"), b"a | 1\na | 2\n");
    }
}
