//! Order of a group's tasks: which start now, which stop, and whether the allocation is done.
//!
//! ```text
//! prestart (once) ──ended well──┐
//! prestart (sidecar) ─running───┴─► main ──all running──► poststart
//!                                     │
//!                    all main dead ───┴─► sidecars are stopped ──all dead──► poststop ──► done
//! ```
//!
//! - A failed task stops the others; a dead leader stops the others; both leave poststop tasks to run.
//! - At any end of the group, leaders stop first, then the other tasks, then the sidecars. Last, poststop tasks run.
//!
//! Call [`next`] after every change of a task's state. It depends on states only, so calling it twice changes nothing.

use std::{collections::BTreeMap, sync::Arc};

use model::{ClientStatus, TaskGroup, TaskRunState, TaskState};

/// When a task runs relative to the main tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Before the main tasks, which wait until it has ended well.
    Prestart,
    /// Starts before the main tasks and runs beside them.
    PrestartSidecar,
    /// The work itself.
    Main,
    /// After the main tasks have started.
    Poststart,
    /// As poststart, and runs beside the main tasks.
    PoststartSidecar,
    /// After all others have ended.
    Poststop,
}

/// The properties of a task that affect the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSpec {
    /// Name.
    pub name: Arc<str>,
    /// Phase.
    pub phase: Phase,
    /// Its end stops the other tasks.
    pub leader: bool,
    /// This node lets go of it (a remote task) and does not end it, so no other task waits for its end.
    pub let_go: bool,
}

impl TaskSpec {
    /// Whether it accompanies the other tasks and ends after them.
    fn sidecar(&self) -> bool {
        matches!(self.phase, Phase::PrestartSidecar | Phase::PoststartSidecar)
    }
}

/// The specs of a group's tasks. An unknown hook counts as main; validation refuses it at submission.
#[must_use]
pub fn specs(group: &TaskGroup) -> Vec<TaskSpec> {
    group
        .tasks
        .iter()
        .map(|t| TaskSpec {
            name: t.name.clone(),
            phase: match t.lifecycle.as_ref().map(|l| (l.hook.as_str(), l.sidecar)) {
                Some(("prestart", false)) => Phase::Prestart,
                Some(("prestart", true)) => Phase::PrestartSidecar,
                Some(("poststart", false)) => Phase::Poststart,
                Some(("poststart", true)) => Phase::PoststartSidecar,
                Some(("poststop", _)) => Phase::Poststop,
                _ => Phase::Main,
            },
            leader: t.leader,
            let_go: false,
        })
        .collect()
}

/// Why a whole group ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The servers or the node want the allocation stopped.
    Stopped,
    /// Its `max_run_duration` is over: poststop tasks do not run either.
    Expired,
}

/// Why a task is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The servers want the allocation stopped.
    AllocStopped,
    /// The group's `max_run_duration` is over.
    Expired,
    /// Another task has failed.
    SiblingFailed(Arc<str>),
    /// The leader has ended.
    LeaderDead(Arc<str>),
    /// All main tasks have ended: a sidecar has nothing left to accompany.
    MainTasksDead,
}

impl StopReason {
    /// One line for a task event.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::AllocStopped => {
                "Sent interrupt. Waiting for the task to stop because the allocation is stopped".to_owned()
            }
            Self::Expired => model::MAX_RUN_EXCEEDED.to_owned(),
            Self::SiblingFailed(name) => format!("Task's sibling \"{name}\" failed"),
            Self::LeaderDead(name) => format!("Leader Task in Group dead: \"{name}\""),
            Self::MainTasksDead => "Main tasks in the group died".to_owned(),
        }
    }
}

/// The next steps of the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// Pending tasks that may start now. Repeated until their state changes; the caller must start idempotently.
    pub start: Vec<Arc<str>>,
    /// Tasks to stop now. A task that is still pending is marked dead without being started.
    pub stop: Vec<(Arc<str>, StopReason)>,
    /// Nothing runs, and nothing will.
    pub done: bool,
}

/// Decides from the tasks' states. `ending`: why the whole group is to end; `None` = it is not.
#[must_use]
pub fn next(specs: &[TaskSpec], states: &BTreeMap<Arc<str>, TaskState>, ending: Option<Ending>) -> Orders {
    let state = |t: &TaskSpec| states.get(&t.name).map_or(TaskRunState::Pending, |s| s.state);
    let failed = |t: &TaskSpec| states.get(&t.name).is_some_and(|s| s.failed);
    let dead = |t: &TaskSpec| state(t) == TaskRunState::Dead;
    let in_phase = |p: Phase| specs.iter().filter(move |t| t.phase == p);
    let mut orders = Orders::default();

    let before_poststop = || specs.iter().filter(|t| t.phase != Phase::Poststop);
    let failed_sibling = before_poststop().find(|t| dead(t) && failed(t));
    let dead_leader = before_poststop().find(|t| t.leader && dead(t));
    // The event names the cause even if the whole allocation stops.
    let end = if ending == Some(Ending::Expired) {
        Some(StopReason::Expired)
    } else if let Some(t) = dead_leader.filter(|_| ending.is_some() || failed_sibling.is_none()) {
        Some(StopReason::LeaderDead(t.name.clone()))
    } else if let Some(t) = failed_sibling {
        Some(StopReason::SiblingFailed(t.name.clone()))
    } else if ending.is_some() {
        Some(StopReason::AllocStopped)
    } else {
        None
    };

    // Sidecars stop after everything that they accompany: the others may talk through them.
    let accompanied = before_poststop().any(|t| !t.sidecar() && !dead(t) && !t.let_go);
    if let Some(reason) = end {
        // The leader goes first, so that it can still talk to the others while it ends.
        let leaders: Vec<_> =
            before_poststop().filter(|t| t.leader && state(t) == TaskRunState::Running && !t.let_go).collect();
        let live = before_poststop().filter(|t| !dead(t));
        let targets: Vec<_> = match (leaders.is_empty(), accompanied) {
            (false, _) => leaders,
            (true, true) => live.filter(|t| !t.sidecar()).collect(),
            (true, false) => live.collect(),
        };
        let reason =
            if reason == StopReason::AllocStopped && !accompanied && specs.iter().any(|t| !t.sidecar() && dead(t)) {
                StopReason::MainTasksDead
            } else {
                reason
            };
        orders.stop.extend(targets.into_iter().map(|t| (t.name.clone(), reason.clone())));
    } else if in_phase(Phase::Main).all(dead)
        && (has_main(specs) || (!accompanied && before_poststop().any(|t| !t.sidecar())))
    {
        // A poststart task that runs once may finish, accompanied. One that has not begun has nothing left to follow.
        let goes = |t: &&TaskSpec| match state(t) {
            TaskRunState::Pending => true,
            TaskRunState::Running => t.sidecar() && !accompanied,
            TaskRunState::Dead => false,
        };
        orders.stop.extend(before_poststop().filter(goes).map(|t| (t.name.clone(), StopReason::MainTasksDead)));
    } else {
        let pending = |t: &&TaskSpec| state(t) == TaskRunState::Pending;
        let start = |p: Phase, out: &mut Vec<Arc<str>>| out.extend(in_phase(p).filter(pending).map(|t| t.name.clone()));
        start(Phase::Prestart, &mut orders.start);
        start(Phase::PrestartSidecar, &mut orders.start);
        // A sidecar that ended well before the main tasks started does not hold them back.
        let prepared = in_phase(Phase::Prestart).all(dead)
            && in_phase(Phase::PrestartSidecar).all(|t| state(t) != TaskRunState::Pending);
        if prepared {
            start(Phase::Main, &mut orders.start);
        }
        if prepared && in_phase(Phase::Main).all(|t| state(t) != TaskRunState::Pending) {
            start(Phase::Poststart, &mut orders.start);
            start(Phase::PoststartSidecar, &mut orders.start);
        }
    }

    let poststop = || in_phase(Phase::Poststop).filter(|t| !dead(t)).map(|t| t.name.clone());
    if ending == Some(Ending::Expired) {
        orders.stop.extend(poststop().map(|name| (name, StopReason::Expired)));
    } else if before_poststop().all(dead) {
        orders
            .start
            .extend(in_phase(Phase::Poststop).filter(|t| state(t) == TaskRunState::Pending).map(|t| t.name.clone()));
    }
    orders.done = specs.iter().all(dead);
    orders
}

/// A group without main tasks does its work in those before and after them.
fn has_main(specs: &[TaskSpec]) -> bool {
    specs.iter().any(|t| t.phase == Phase::Main)
}

/// The client status of an allocation and its description, from its tasks' states.
///
/// An allocation with a failed task stays `running` until its last task has ended. A terminal status frees its
/// resources at the servers, which is too early while siblings still stop.
#[must_use]
pub fn client_status(specs: &[TaskSpec], states: &BTreeMap<Arc<str>, TaskState>) -> (ClientStatus, &'static str) {
    let state = |t: &TaskSpec| states.get(&t.name).map_or(TaskRunState::Pending, |s| s.state);
    let any = |wanted: TaskRunState| specs.iter().any(|t| state(t) == wanted);
    let failed = specs.iter().any(|t| states.get(&t.name).is_some_and(|s| s.state == TaskRunState::Dead && s.failed));
    let work = |t: &&TaskSpec| t.phase == Phase::Main || !has_main(specs);
    let main_over = specs.iter().filter(work).any(|t| state(t) == TaskRunState::Dead);
    if any(TaskRunState::Running) {
        (ClientStatus::Running, "Tasks are running")
    } else if any(TaskRunState::Pending) {
        if main_over || failed {
            (ClientStatus::Running, "Tasks are ending")
        } else {
            (ClientStatus::Pending, "No tasks have started")
        }
    } else if failed {
        (ClientStatus::Failed, "Failed tasks")
    } else {
        (ClientStatus::Complete, "All tasks have completed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `name:phase[!][~]` – phases p, P (sidecar), m, s, S (sidecar), x (poststop); `!` marks the leader, `~` a task
    /// that is let go.
    fn group(text: &str) -> Vec<TaskSpec> {
        text.split_whitespace()
            .map(|t| {
                let (name, phase) = t.split_once(':').expect("name:phase");
                TaskSpec {
                    name: name.into(),
                    phase: match &phase[..1] {
                        "p" => Phase::Prestart,
                        "P" => Phase::PrestartSidecar,
                        "m" => Phase::Main,
                        "s" => Phase::Poststart,
                        "S" => Phase::PoststartSidecar,
                        _ => Phase::Poststop,
                    },
                    leader: phase.contains('!'),
                    let_go: phase.contains('~'),
                }
            })
            .collect()
    }

    /// `name=r` running, `=d` dead, `=f` failed; others are pending.
    fn states(text: &str) -> BTreeMap<Arc<str>, TaskState> {
        text.split_whitespace()
            .map(|t| {
                let (name, state) = t.split_once('=').expect("name=state");
                let state = match state {
                    "r" => TaskState { state: TaskRunState::Running, ..TaskState::default() },
                    "d" => TaskState { state: TaskRunState::Dead, ..TaskState::default() },
                    _ => TaskState { state: TaskRunState::Dead, failed: true, ..TaskState::default() },
                };
                (name.into(), state)
            })
            .collect()
    }

    /// `+a` start, `-a` stop, `.` done.
    fn shown(o: &Orders) -> String {
        let mut words: Vec<String> = o.start.iter().map(|n| format!("+{n}")).collect();
        words.extend(o.stop.iter().map(|(n, _)| format!("-{n}")));
        if o.done {
            words.push(".".to_owned());
        }
        words.join(" ")
    }

    #[test]
    fn order_of_a_group() {
        let all = "init:p proxy:P web:m db:m warm:s tail:S clean:x";
        for (specs, at, stopping, expected, why) in [
            ("a:m b:m", "", false, "+a +b", "main tasks start together"),
            (all, "", false, "+init +proxy", "prestart first"),
            (all, "init=d", false, "+proxy", "the sidecar must be up, too"),
            (all, "init=r proxy=r", false, "", "main waits for the prestart task to end"),
            (all, "init=d proxy=r", false, "+web +db", "main after prestart"),
            (all, "init=d proxy=r web=r", false, "+db", "poststart waits for all main tasks"),
            (all, "init=d proxy=r web=r db=r", false, "+warm +tail", "poststart"),
            (all, "init=d proxy=r web=r db=r warm=d tail=r", false, "", "all is well"),
            (all, "init=d proxy=r web=d db=r warm=d tail=r", false, "", "one main task still runs"),
            (all, "init=d proxy=r web=d db=d warm=d tail=r", false, "-proxy -tail", "sidecars end with the main tasks"),
            (all, "init=d proxy=r web=d db=d warm=r tail=d", false, "", "a poststart task may finish, accompanied"),
            (all, "init=d proxy=r web=d db=d warm=d tail=d", false, "-proxy", "then the sidecar goes"),
            (all, "init=d proxy=r web=d db=d", false, "-warm -tail", "what has not begun has nothing left to follow"),
            (
                all,
                "init=d proxy=r web=r db=r warm=r tail=r",
                true,
                "-web -db -warm",
                "sidecars accompany what is stopped",
            ),
            (all, "init=d proxy=r web=d db=r warm=d tail=r", true, "-db", "to the last of it"),
            (all, "init=d proxy=r web=d db=d warm=d tail=r", true, "-proxy -tail", "then they go"),
            ("a:m! b:m s:S c:x", "a=r b=r s=r", true, "-a", "leader"),
            ("a:m! b:m s:S c:x", "a=d b=r s=r", true, "-b", "followers"),
            ("a:m! b:m s:S c:x", "a=d b=d s=r", true, "-s", "sidecars"),
            ("a:m! b:m s:S c:x", "a=d b=d s=d", true, "+c", "poststop"),
            ("a:m! b:m s:S", "a=d b=r s=r", false, "-b", "a dead leader leaves the sidecar to the followers"),
            ("s:P!", "s=r", true, "-s", "a sidecar may lead"),
            (all, "init=d proxy=d web=d db=d warm=d tail=d", false, "+clean", "poststop last"),
            (all, "init=d proxy=d web=d db=d warm=d tail=d clean=r", false, "", "poststop runs"),
            (all, "init=d proxy=d web=d db=d warm=d tail=d clean=d", false, ".", "done"),
            (all, "init=f proxy=r", false, "-web -db -warm", "a failed prestart task ends the rest unstarted"),
            (all, "init=f proxy=r web=d db=d warm=d", false, "-proxy -tail", "and its sidecar"),
            (all, "init=f proxy=d web=d db=d warm=d tail=d", false, "+clean", "and poststop still runs"),
            (all, "init=d proxy=r web=f db=r warm=d tail=r", false, "-db", "a failed task ends its siblings"),
            ("a:m! b:m", "a=d b=r", false, "-b", "a dead leader ends the others"),
            ("a:m! b:m", "a=r b=d", false, "", "a dead follower does not"),
            ("a:m! b:m c:x", "a=r b=r", true, "-a", "on a stop the leader goes first"),
            ("a:m! b:m c:x", "a=d b=r", true, "-b", "then the others"),
            ("a:m! b:m c:x", "a=d b=d", true, "+c", "then poststop runs"),
            ("a:m!~ b:m s:S", "a=r b=r s=r", true, "-a -b", "nothing waits for what is let go"),
            ("a:m!~ b:m s:S", "a=r b=d s=r", true, "-a -s", "sidecars neither"),
            ("a:m b:m", "", true, "-a -b", "what has not started is ended unstarted"),
            ("a:m", "a=d", true, ".", "done"),
            ("init:p a:m", "init=d a=d", false, ".", "a batch group is done when its tasks are"),
            ("init:p", "", false, "+init", "without main tasks the work is done in the others"),
            ("init:p", "init=d", false, ".", "and then the group is done"),
            (
                "init:p proxy:P late:s",
                "init=d proxy=r",
                false,
                "+late",
                "poststart tasks have no main task to wait for",
            ),
            (
                "init:p proxy:P late:s",
                "init=d proxy=r late=d",
                false,
                "-proxy",
                "the sidecar goes when nothing else is left",
            ),
        ] {
            let orders = next(&group(specs), &states(at), ending(stopping));
            assert_eq!(shown(&orders), expected, "{why}: {specs} at {at:?}");
        }
    }

    #[test]
    fn what_is_told_of_a_stop() {
        let all = "lead:m! web:m side:S";
        for (specs, at, stopping, expected) in [
            (all, "lead=r web=r side=r", true, StopReason::AllocStopped),
            (all, "lead=d web=r side=r", true, StopReason::LeaderDead("lead".into())),
            (all, "lead=d web=d side=r", true, StopReason::LeaderDead("lead".into())),
            ("web:m side:S", "web=r side=r", true, StopReason::AllocStopped),
            ("web:m side:S", "web=d side=r", true, StopReason::MainTasksDead),
            ("web:m db:m side:S", "web=f db=r side=r", false, StopReason::SiblingFailed("web".into())),
            ("web:m db:m side:S", "web=f db=d side=r", false, StopReason::SiblingFailed("web".into())),
        ] {
            let orders = next(&group(specs), &states(at), ending(stopping));
            assert!(
                !orders.stop.is_empty() && orders.stop.iter().all(|(_, why)| *why == expected),
                "{specs} at {at:?}: {:?}",
                orders.stop
            );
        }
    }

    #[test]
    fn status_of_the_allocation() {
        for (specs, at, expected) in [
            ("a:m", "", ClientStatus::Pending),
            ("i:p a:m", "i=d", ClientStatus::Pending),
            ("i:p a:m", "i=r", ClientStatus::Running),
            ("a:m b:m", "a=r", ClientStatus::Running),
            ("a:m b:m", "a=f b=r", ClientStatus::Running),
            ("a:m b:m", "a=f b=d", ClientStatus::Failed),
            ("a:m b:m", "a=d b=d", ClientStatus::Complete),
            ("a:m c:x", "a=d", ClientStatus::Running),
            ("a:m c:x", "a=d c=f", ClientStatus::Failed),
        ] {
            assert_eq!(client_status(&group(specs), &states(at)).0, expected, "{specs} at {at:?}");
        }
    }

    fn ending(stopping: bool) -> Option<Ending> {
        stopping.then_some(Ending::Stopped)
    }

    #[test]
    fn at_its_deadline_a_group_ends_without_poststop_tasks() {
        for (specs, at, expected) in [
            ("a:m! b:m c:x", "a=r b=r", "-a -c"),
            ("a:m! b:m c:x", "a=d b=r", "-b -c"),
            ("a:m b:m s:S c:x", "a=r b=r s=r", "-a -b -c"),
            ("i:p a:m c:x", "i=r", "-i -a -c"),
            ("a:m c:x", "a=d c=r", "-c"),
            ("a:m c:x", "a=d c=d", "."),
        ] {
            let orders = next(&group(specs), &states(at), Some(Ending::Expired));
            assert_eq!(shown(&orders), expected, "{specs} at {at:?}");
            assert!(orders.stop.iter().all(|(_, why)| *why == StopReason::Expired), "{specs} at {at:?}");
        }
    }

    proptest! {
        /// For any group and any failing tasks, following the orders ends: nothing starts twice or out of order, and a
        /// stop ends it.
        #[test]
        fn following_the_orders_ends(
            phases in proptest::collection::vec((0u8..6, any::<bool>()), 1..7),
            fates in proptest::collection::vec((any::<bool>(), 0u8..4), 64),
            stop_at in 0usize..40,
        ) {
            let mut text: Vec<String> = phases
                .iter()
                .enumerate()
                .map(|(i, (p, leader))| format!("t{i}:{}{}", ["p", "P", "m", "s", "S", "x"][*p as usize], if *leader
                    && *p == 2 { "!" } else { "" }))
                .collect();
            text.push("main:m".to_owned());
            let specs = group(&text.join(" "));
            let mut now: BTreeMap<Arc<str>, TaskState> = BTreeMap::new();
            for step in 0..200 {
                let stopping = step >= stop_at;
                let orders = next(&specs, &now, ending(stopping));
                if orders.done {
                    prop_assert!(client_status(&specs, &now).0.terminal());
                    return Ok(());
                }
                for name in &orders.start {
                    prop_assert!(!now.contains_key(name), "{name} is started twice");
                    now.insert(name.clone(), TaskState { state: TaskRunState::Running, ..TaskState::default() });
                }
                for (name, _) in &orders.stop {
                    now.entry(name.clone()).or_default().state = TaskRunState::Dead;
                }
                // Some running task ends, well or badly; sidecars and main tasks may also go on until the stop.
                let (failed, which) = fates[step % fates.len()];
                let running: Vec<_> =
                    now.iter().filter(|(_, s)| s.state == TaskRunState::Running).map(|(n, _)| n.clone()).collect();
                if !running.is_empty() {
                    let name = &running[which as usize % running.len()];
                    let state = now.get_mut(name).expect("it runs");
                    state.state = TaskRunState::Dead;
                    state.failed = failed;
                }
            }
            prop_assert!(false, "it does not end: {specs:?} {now:?}");
        }
    }
}
