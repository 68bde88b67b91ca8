//! StopTask, SignalTask and DestroyTask: what must die, and what must not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use driver_proto::driver::*;

use crate::check::table;
use crate::kit::Work;
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold, not_applicable};
use crate::plugin::Plugin;
use crate::procs;
use crate::task::{STOP_TIMEOUT, Task, processes};

table! {
    "stop/ends", "H39", "StopTask with no signal named ends the task, and answers when it is dead",
        "stopping a job takes its whole kill timeout, or the next start meets the old process", ends;
    "stop/signal", "H39", "StopTask delivers the signal that is named",
        "workloads that stop in order at a signal of their choice are killed instead and lose data", signal;
    "stop/timeout", "H39", "a task that ignores the signal is killed when the timeout is over, not before",
        "a stuck workload blocks its job for ever, or a slow one is killed in the middle of its work", timeout;
    "stop/tree", "H39", "with the task die its children, also those in sessions of their own",
        "stopped jobs leave processes that hold ports and files", tree;
    "stop/ended", "D6", "StopTask of a task that has ended is answered at once",
        "stopping a job that has just ended fails and is retried for minutes", ended;
    "stop/result", "D6", "death by a signal is told as exit code 128 + n and signal n",
        "restart policies and people are told of an ordinary failure", result;
    "signal/delivers", "D6", "SignalTask delivers the signal and the task goes on",
        "reloading a configuration by signal does nothing, or ends the workload", delivers;
    "destroy/again", "H39", "DestroyTask is answered with success however often it is asked",
        "an agent that repeats it after a broken connection takes the task for one that cannot be cleaned up", again;
    "destroy/running", "H39", "DestroyTask without force refuses a task that runs, and the task goes on",
        "a mistake in the agent kills a workload", running;
    "destroy/force", "H39", "DestroyTask with force ends a task that runs, with its tree, and all who wait for it are \
        answered",
        "after a failed recovery the old workload runs on beside the new one", force;
}

async fn ends(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    let waiting = lab.waiting(&plugin, &task.id);
    lab.stop(&plugin, &task.id, "", STOP_TIMEOUT).await?;
    let seen = lab.inspect(&plugin, &task.id).await?.task.unwrap_or_default();
    hold!(seen.state() == TaskState::Exited, "StopTask was answered while the task has the state {:?}", seen.state());
    let left = processes(&task.id);
    hold!(left.is_empty(), "StopTask was answered while there are processes {}", procs::names(&left));
    let answer = lab.answered("WaitTask after StopTask", waiting).await?;
    hold!(answer.is_ok(), "WaitTask of the stopped task was answered with {answer:?}");
    lab.destroy(&plugin, &task.id).await
}

/// A task that says when its traps are set.
async fn ready(lab: &Lab, plugin: &Plugin, script: &str) -> Outcome<Task> {
    let task = lab.task(plugin, Work::Script(script)).await?;
    lab.printed(&task, "ready").await?;
    Ok(task)
}

async fn signal(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let script =
        "trap 'exit 33' USR1; trap 'exit 34' INT; trap 'exit 35' TERM; echo ready; while :; do sleep 0.05; done";
    for (name, code) in [("SIGUSR1", 33), ("SIGTERM", 35)] {
        let task = ready(lab, &plugin, script).await?;
        lab.stop(&plugin, &task.id, name, STOP_TIMEOUT).await?;
        let result = lab.wait(&plugin, &task.id).await?.result.unwrap_or_default();
        hold!(result.exit_code == code, "at {name} the task exits with {code}; it ended with {result:?}");
        lab.destroy(&plugin, &task.id).await?;
    }
    Ok(())
}

async fn timeout(lab: &Arc<Lab>) -> Outcome {
    // So long that an answer which did not wait for it comes well before, also from a busy machine.
    let timeout = lab.pace().limit(Duration::from_millis(1500));
    let plugin = lab.plugin().await?;
    let task = match &lab.kit()?.stubborn {
        None if lab.kit()?.script.is_some() => {
            ready(lab, &plugin, "trap '' INT TERM; echo ready; while :; do sleep 1; done").await?
        }
        _ => {
            let task = lab.task(&plugin, Work::Stubborn).await?;
            // Time for the task to begin to ignore signals.
            tokio::time::sleep(lab.pace().hold.min(Duration::from_millis(300))).await;
            task
        }
    };
    let begun = Instant::now();
    lab.stop(&plugin, &task.id, "SIGTERM", timeout).await?;
    let took = begun.elapsed();
    hold!(took >= timeout.mul_f64(0.8), "with a timeout of {timeout:?} StopTask was answered after {took:?}");
    match lab.answered("WaitTask after StopTask", lab.waiting(&plugin, &task.id)).await? {
        Ok(answer) => {
            let result = answer.result.unwrap_or_default();
            hold!(result.signal == 9, "killed after its timeout, the task is said to have ended with {result:?}");
        }
        Err(status) => return failed(format!("WaitTask was answered with {:?}: {}", status.code(), status.message())),
    }
    let left = processes(&task.id);
    hold!(left.is_empty(), "after the timeout there are processes {}", procs::names(&left));
    lab.destroy(&plugin, &task.id).await
}

/// Starts children that leave the session and the parent, and a child that does not.
const FAMILY: &str =
    "setsid sh -c 'sleep 3601 & sleep 3602' & (sleep 3603 &) ; sleep 3604 & echo ready; exec sleep 3605";

async fn family(lab: &Lab, plugin: &Plugin) -> Outcome<Task> {
    let task = ready(lab, plugin, FAMILY).await?;
    if processes(&task.id).is_empty() {
        drop(lab.destroy(plugin, &task.id).await);
        return not_applicable("the processes of a task cannot be seen from here");
    }
    let grown = || processes(&task.id).iter().filter(|process| process.command.starts_with("sleep 36")).count() >= 5;
    lab.until("the task's five processes did not appear", grown).await?;
    Ok(task)
}

async fn nobody_left(lab: &Lab, task: &Task, after: &str) -> Outcome {
    // The kernel takes a moment after the signal.
    let begun = Instant::now();
    let limit = lab.pace().limit(Duration::from_millis(500));
    while !processes(&task.id).is_empty() && begun.elapsed() < limit {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let left = processes(&task.id);
    hold!(left.is_empty(), "after {after} there are processes {}", procs::names(&left));
    Ok(())
}

async fn tree(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = family(lab, &plugin).await?;
    lab.stop(&plugin, &task.id, "SIGTERM", Duration::from_secs(1)).await?;
    nobody_left(lab, &task, "StopTask").await?;
    lab.destroy(&plugin, &task.id).await
}

async fn ended(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Exits).await?;
    lab.wait(&plugin, &task.id).await?;
    let begun = Instant::now();
    lab.stop(&plugin, &task.id, "", Duration::from_secs(30)).await?;
    let limit = lab.pace().limit(Duration::from_secs(2));
    hold!(begun.elapsed() < limit, "StopTask of a task that has ended took {:?}", begun.elapsed());
    // It is still known, and so is its result.
    crate::task::ended_by_itself(&lab.wait(&plugin, &task.id).await?)?;
    lab.destroy(&plugin, &task.id).await
}

async fn result(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Script("kill -KILL $$; echo still-there; exec sleep 3600")).await?;
    let waiting = lab.waiting(&plugin, &task.id);
    lab.until("the task neither ended nor went on", || {
        waiting.is_finished() || task.out.text().contains("still-there")
    })
    .await?;
    if !waiting.is_finished() {
        // The first process of a pid namespace can be killed from outside only.
        if !lab.profile().capabilities.send_signals {
            waiting.abort();
            lab.destroy(&plugin, &task.id).await?;
            return not_applicable(
                "tasks cannot end themselves by a signal, and the driver does not declare send_signals",
            );
        }
        let request = SignalTaskRequest { task_id: task.id.clone(), signal: "SIGKILL".into() };
        lab.call(&plugin, "SignalTask(SIGKILL)", plugin.driver().signal_task(request)).await?;
    }
    let answer = match lab.answered("WaitTask", waiting).await? {
        Ok(answer) => answer,
        Err(status) => return failed(format!("WaitTask was answered with {:?}: {}", status.code(), status.message())),
    };
    let result = answer.result.unwrap_or_default();
    hold!(
        (result.exit_code, result.signal) == (137, 9),
        "killed by signal 9, the task is said to have ended with {result:?}"
    );
    lab.destroy(&plugin, &task.id).await
}

async fn delivers(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    if !lab.profile().capabilities.send_signals {
        return not_applicable("the driver does not declare send_signals");
    }
    let script = "trap 'echo got-usr1' USR1; trap 'echo got-hup' HUP; echo ready; while :; do sleep 0.05; done";
    let task = match lab.kit()?.config(Work::Script(script)) {
        Ok(_) => ready(lab, &plugin, script).await?,
        Err(_) => lab.task(&plugin, Work::Runs).await?,
    };
    for (name, wanted) in [("SIGUSR1", "got-usr1"), ("SIGHUP", "got-hup")] {
        let request = SignalTaskRequest { task_id: task.id.clone(), signal: name.into() };
        lab.call(&plugin, &format!("SignalTask({name})"), plugin.driver().signal_task(request)).await?;
        if lab.kit()?.script.is_some() {
            lab.printed(&task, wanted).await?;
        }
    }
    let waiting = lab.waiting(&plugin, &task.id);
    tokio::time::sleep(Duration::from_millis(50)).await;
    hold!(!waiting.is_finished(), "SignalTask ended the task: {:?}", waiting.await);
    waiting.abort();
    lab.destroy(&plugin, &task.id).await
}

async fn again(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Exits).await?;
    lab.wait(&plugin, &task.id).await?;
    lab.destroy(&plugin, &task.id).await?;
    let request = DestroyTaskRequest { task_id: task.id.clone(), force: true };
    lab.call(&plugin, "the second DestroyTask", plugin.driver().destroy_task(request)).await?;
    Ok(())
}

async fn running(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    let waiting = lab.waiting(&plugin, &task.id);
    let request = DestroyTaskRequest { task_id: task.id.clone(), force: false };
    let answer = lab.answer(&plugin, "DestroyTask", plugin.driver().destroy_task(request)).await?;
    hold!(answer.is_err(), "DestroyTask without force of a task that runs was answered as a success");
    tokio::time::sleep(Duration::from_millis(100)).await;
    hold!(!waiting.is_finished(), "the refused DestroyTask ended the task: {:?}", waiting.await);
    waiting.abort();
    lab.destroy(&plugin, &task.id).await
}

async fn force(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = match lab.kit()?.config(Work::Script(FAMILY)) {
        Ok(_) => family(lab, &plugin).await?,
        Err(_) => lab.task(&plugin, Work::Runs).await?,
    };
    let waiting = lab.waiting(&plugin, &task.id);
    lab.arrived(&plugin, &task.id).await?;
    lab.destroy(&plugin, &task.id).await?;
    // With a result or with an error: what counts is that nobody waits for ever.
    drop(lab.answered("WaitTask of a task that was destroyed", waiting).await?);
    nobody_left(lab, &task, "DestroyTask(force)").await
}
