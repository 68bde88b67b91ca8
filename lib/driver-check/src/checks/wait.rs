//! WaitTask, and what is said of tasks that do not exist.

use std::sync::Arc;
use std::time::Duration;

use driver_proto::build;
use driver_proto::driver::*;
use driver_proto::errors::TASK_NOT_FOUND;
use tonic::{Code, Status};

use crate::check::table;
use crate::kit::{EXIT_CODE, Work};
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold};
use crate::plugin::Plugin;
use crate::task::{Task, ended_by_itself};

table! {
    "wait/exit-code", "H37", "WaitTask answers with the result of the task: its exit code, no signal, no error",
        "batch jobs that succeeded are restarted, failed ones count as done; without a result Nomad \
            agents crash", exit_code;
    "wait/concurrent", "H38", "ten callers wait at a time, none is answered before the end, all hear the same",
        "after a restart of the agent, or a second question, the end of a task is never noticed", concurrent;
    "wait/cancelled", "H38", "a caller who goes away disturbs neither the others nor the task",
        "the end of a task is lost when the agent reconnects", cancelled;
    "wait/after-exit", "H38", "of a task that has ended WaitTask tells the result at once, as often as it is asked",
        "a task that ended while the agent was away counts as running for ever", after_exit;
    "wait/unknown", "D5", "of a task that does not exist every call says \"task not found for given id\"",
        "hosts retry a stop for minutes because they cannot tell a missing task from a failure", unknown;
    "wait/destroyed", "H38", "so it is with a task that was destroyed",
        "an agent takes a task for alive that it has destroyed", destroyed;
}

async fn exit_code(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Exits).await?;
    let answer = lab.wait(&plugin, &task.id).await?;
    hold!(answer.result.is_some(), "WaitTask answers without a result (error {:?})", answer.err);
    ended_by_itself(&answer)?;
    lab.destroy(&plugin, &task.id).await
}

/// How many seconds tasks run that end by themselves: on a busy machine one may end before it is asked about, so the
/// next takes longer.
const LENGTHS: [u32; 4] = [1, 4, 16, 64];

async fn ends_after(lab: &Lab, plugin: &Plugin, seconds: u32) -> Outcome<Task> {
    let script = format!("sleep {seconds}; exit {EXIT_CODE}");
    let scripted = seconds > LENGTHS[0] && lab.kit()?.script.is_some();
    lab.task(plugin, if scripted { Work::Script(&script) } else { Work::ExitsLater }).await
}

async fn runs(lab: &Lab, plugin: &Plugin, task: &Task) -> Outcome<bool> {
    Ok(lab.inspect(plugin, &task.id).await?.task.is_some_and(|task| task.state() == TaskState::Running))
}

async fn concurrent(lab: &Arc<Lab>) -> Outcome {
    const CALLERS: usize = 10;
    let plugin = lab.plugin().await?;
    for seconds in LENGTHS {
        let task = ends_after(lab, &plugin, seconds).await?;
        let callers: Vec<_> = (0..CALLERS).map(|_| lab.waiting(&plugin, &task.id)).collect();
        tokio::time::sleep(Duration::from_millis(150)).await;
        let early = callers.iter().filter(|caller| caller.is_finished()).count();
        let still = runs(lab, &plugin, &task).await?;
        hold!(early == 0 || !still, "{early} of {CALLERS} callers were answered while the task runs");
        for (n, caller) in callers.into_iter().enumerate() {
            match lab.answered(&format!("WaitTask of caller {}", n + 1), caller).await? {
                Ok(answer) => ended_by_itself(&answer)?,
                Err(status) => {
                    return failed(format!(
                        "caller {} of {CALLERS} was answered with {:?}: {}",
                        n + 1,
                        status.code(),
                        status.message()
                    ));
                }
            }
        }
        lab.destroy(&plugin, &task.id).await?;
        if still {
            break;
        }
    }
    Ok(())
}

async fn cancelled(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    for seconds in LENGTHS {
        let task = ends_after(lab, &plugin, seconds).await?;
        let (gone, stays) = (lab.waiting(&plugin, &task.id), lab.waiting(&plugin, &task.id));
        lab.arrived(&plugin, &task.id).await?;
        gone.abort();
        let still = runs(lab, &plugin, &task).await?;
        match lab.answered("WaitTask", stays).await? {
            Ok(answer) => ended_by_itself(&answer)?,
            Err(status) => {
                return failed(format!("the other caller was answered with {:?}: {}", status.code(), status.message()));
            }
        }
        lab.destroy(&plugin, &task.id).await?;
        if still {
            break;
        }
    }
    Ok(())
}

async fn after_exit(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Exits).await?;
    ended_by_itself(&lab.wait(&plugin, &task.id).await?)?;
    for _ in 0..3 {
        ended_by_itself(&lab.wait(&plugin, &task.id).await?)?;
    }
    lab.destroy(&plugin, &task.id).await
}

fn not_found<T>(what: &str, answer: Result<T, Status>) -> Outcome {
    match answer {
        Ok(_) => failed(format!("{what} of a task that does not exist was answered as a success")),
        Err(status) => {
            let (code, text) = (status.code(), status.message());
            hold!(
                matches!(code, Code::Unknown | Code::NotFound),
                "{what} was answered with {code:?}: {text}, expected is NOT_FOUND or UNKNOWN"
            );
            hold!(
                text.contains(TASK_NOT_FOUND),
                "{what} was answered with the text {text:?}, expected is {TASK_NOT_FOUND:?}"
            );
            Ok(())
        }
    }
}

async fn all_say_not_found(lab: &Lab, plugin: &Plugin, id: &str) -> Outcome {
    let capabilities = &lab.profile().capabilities;
    let task_id = id.to_owned();
    not_found("WaitTask", lab.answered("WaitTask", lab.waiting(plugin, id)).await?)?;
    let request = InspectTaskRequest { task_id: task_id.clone() };
    not_found("InspectTask", lab.answer(plugin, "InspectTask", plugin.driver().inspect_task(request)).await?)?;
    let timeout = Some(build::duration(Duration::from_secs(1)));
    let request = StopTaskRequest { task_id: task_id.clone(), timeout, signal: String::new() };
    not_found("StopTask", lab.answer(plugin, "StopTask", plugin.driver().stop_task(request)).await?)?;
    if capabilities.send_signals {
        let request = SignalTaskRequest { task_id: task_id.clone(), signal: "SIGUSR1".into() };
        not_found("SignalTask", lab.answer(plugin, "SignalTask", plugin.driver().signal_task(request)).await?)?;
    }
    if capabilities.exec {
        let request = ExecTaskRequest { task_id: task_id.clone(), command: vec!["true".into()], timeout };
        not_found("ExecTask", lab.answer(plugin, "ExecTask", plugin.driver().exec_task(request)).await?)?;
    }
    let request = TaskStatsRequest { task_id, collection_interval: timeout };
    let stats =
        async { plugin.driver().task_stats(request).await?.into_inner().message().await.map(tonic::Response::new) };
    not_found("TaskStats", lab.answer(plugin, "TaskStats", stats).await?)
}

async fn unknown(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    all_say_not_found(lab, &plugin, "no-such-alloc/t/00000000").await
}

async fn destroyed(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Exits).await?;
    lab.wait(&plugin, &task.id).await?;
    lab.destroy(&plugin, &task.id).await?;
    all_say_not_found(lab, &plugin, &task.id).await
}
