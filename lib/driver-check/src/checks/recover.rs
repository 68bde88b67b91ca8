//! RecoverTask: a new plugin process takes over what the last one left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use driver_proto::driver::*;

use crate::check::table;
use crate::kit::{EXIT_CODE, Work};
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold};
use crate::plugin::Plugin;
use crate::task::{STOP_TIMEOUT, Task, processes};

table! {
    "recover/running", "H40", "after SIGKILL of the plugin a new process takes the running task over: the same one, \
        and it can be stopped",
        "each crash of the driver ends or doubles all its workloads", running;
    "recover/empty-config", "H40", "that works as well when the handle comes without the driver's configuration of \
        the task",
        "Nomad agents do not keep that configuration: after their restart every task is started anew", empty_config;
    "recover/finished", "H40", "a task that ended meanwhile is reported with its result, and not run again",
        "batch jobs run twice after a restart of the agent", finished;
    "recover/known", "D6", "RecoverTask of a task that it knows is a success and changes nothing",
        "an agent that asks twice takes a task that runs for lost", known;
    "recover/other-version", "H40", "a handle of a version that it does not know is refused",
        "after a downgrade the driver misreads what it finds, and acts on the wrong workload", other_version;
    "recover/junk", "H40", "a handle that cannot be read is refused, and the process lives on",
        "one damaged record ends the driver for all tasks", junk;
    "recover/twice-killed", "H40", "so often as the plugin is killed, the task is one and the same",
        "with each crash a little more is lost", twice_killed;
}

/// Between two looks for the processes of a task.
const LOOK: Duration = Duration::from_millis(10);

/// How the task looks to whoever could confuse it with another: since when it runs, and its processes here.
async fn identity(lab: &Lab, plugin: &Plugin, task: &Task) -> (Option<i64>, Vec<i32>) {
    let seen = lab.inspect(plugin, &task.id).await.ok().and_then(|seen| seen.task?.started_at);
    let pids = processes(&task.id).into_iter().map(|process| process.pid).collect();
    (seen.map(|at| at.seconds), pids)
}

/// A task that runs, under a plugin process of its second life.
async fn taken_over(lab: &Arc<Lab>, change: impl Fn(&mut TaskHandle), kills: usize) -> Outcome {
    let mut plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    // The command may come to be after the answer, and while a process executes it, nobody can tell whose it is.
    tokio::time::sleep(Duration::from_millis(100)).await;
    // A runtime may have the task in its queue for some time.
    let begun = Instant::now();
    while identity(lab, &plugin, &task).await.0.is_none_or(|since| since <= 0) && begun.elapsed() < lab.pace().patience
    {
        tokio::time::sleep(LOOK).await;
    }
    let limit = if lab.kit()?.script.is_some() { lab.pace().limit(Duration::from_millis(200)) } else { Duration::ZERO };
    // Looks and not the clock: a machine that stalls looks as often.
    let mut looks = limit.as_millis() / LOOK.as_millis();
    while processes(&task.id).is_empty() && looks > 0 {
        tokio::time::sleep(LOOK).await;
        looks -= 1;
    }
    let before = identity(lab, &plugin, &task).await;
    let mut handle = task.handle.clone();
    change(&mut handle);
    for n in 1..=kills {
        plugin.process.kill().await;
        plugin = lab.plugin().await?;
        lab.recover(&plugin, &handle).await?;
        let after = identity(lab, &plugin, &task).await;
        hold!(
            after == before,
            "after SIGKILL number {n} the task (began, processes) = {before:?} has become {after:?}"
        );
    }
    let waiting = lab.waiting(&plugin, &task.id);
    tokio::time::sleep(Duration::from_millis(150)).await;
    hold!(!waiting.is_finished(), "the recovered task is said to have ended: {:?}", waiting.await);
    lab.stop(&plugin, &task.id, "", STOP_TIMEOUT).await?;
    match lab.answered("WaitTask of the recovered task after StopTask", waiting).await? {
        Ok(_) => lab.destroy(&plugin, &task.id).await,
        Err(status) => failed(format!(
            "WaitTask of the recovered task was answered with {:?}: {}",
            status.code(),
            status.message()
        )),
    }
}

async fn running(lab: &Arc<Lab>) -> Outcome {
    taken_over(lab, |_| (), 1).await
}

async fn empty_config(lab: &Arc<Lab>) -> Outcome {
    let without = |handle: &mut TaskHandle| {
        if let Some(config) = &mut handle.config {
            config.msgpack_driver_config.clear();
        }
    };
    taken_over(lab, without, 1).await
}

async fn twice_killed(lab: &Arc<Lab>) -> Outcome {
    taken_over(lab, |_| (), 3).await
}

async fn finished(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::ExitsLater).await?;
    let began = lab.inspect(&plugin, &task.id).await.ok().and_then(|seen| seen.task?.started_at);
    plugin.process.kill().await;
    // The tasks that end later do so after a second.
    tokio::time::sleep(Duration::from_millis(1300)).await;
    lab.until("the task did not end by itself", || processes(&task.id).is_empty()).await?;
    let next = lab.plugin().await?;
    lab.recover(&next, &task.handle).await?;
    let answer = lab.wait(&next, &task.id).await?;
    let result = answer.result.unwrap_or_default();
    hold!(
        result.exit_code == EXIT_CODE,
        "the task ended with exit code {EXIT_CODE} meanwhile, it is reported with {result:?} {:?}",
        answer.err
    );
    let again = lab.inspect(&next, &task.id).await.ok().and_then(|seen| seen.task?.started_at);
    hold!(began.is_none() || began == again, "the task was run again: it began at {began:?}, now it says {again:?}");
    lab.destroy(&next, &task.id).await
}

async fn known(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    let waiting = lab.waiting(&plugin, &task.id);
    lab.recover(&plugin, &task.handle).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    hold!(!waiting.is_finished(), "RecoverTask ended the task that was known: {:?}", waiting.await);
    waiting.abort();
    lab.destroy(&plugin, &task.id).await
}

async fn refused(lab: &Arc<Lab>, change: impl Fn(&mut TaskHandle), what: &str) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    plugin.process.kill().await;
    let next = lab.plugin().await?;
    let mut handle = task.handle.clone();
    change(&mut handle);
    let request = RecoverTaskRequest { task_id: String::new(), handle: Some(handle) };
    let answer = lab.answer(&next, "RecoverTask", next.driver().recover_task(request)).await?;
    let Err(status) = answer else {
        return failed(format!("RecoverTask with {what} was answered as a success"));
    };
    hold!(!status.message().is_empty(), "the refusal of {what} has no text");
    lab.still_works(&next, &format!("RecoverTask with {what}")).await?;
    // With the true handle it is found: the refusal has cost nothing.
    lab.recover(&next, &task.handle).await?;
    lab.destroy(&next, &task.id).await
}

async fn other_version(lab: &Arc<Lab>) -> Outcome {
    refused(lab, |handle| handle.version = 99, "a handle of version 99").await
}

async fn junk(lab: &Arc<Lab>) -> Outcome {
    refused(lab, |handle| handle.driver_state = vec![0xc1, 0xff, 0x00], "an unreadable driver state").await
}
