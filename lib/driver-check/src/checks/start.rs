//! StartTask: the handle, repetition, failure.

use std::sync::Arc;
use std::time::Duration;

use driver_proto::driver::*;
use driver_proto::errors::is_task_not_found;

use crate::check::table;
use crate::kit::Work;
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold};
use crate::procs;
use crate::task::{ended_by_itself, processes};

table! {
    "start/handle", "H37", "StartTask answers with a handle: version at least 1, the configuration echoed",
        "after the next restart of the agent the task cannot be found again and is started a second time", handle;
    "start/two-tasks", "D6", "tasks are told apart: the end of one is not the end of another",
        "with several tasks on a node, the wrong one is stopped or reported", two_tasks;
    "start/twice", "D6", "a second StartTask with an id that runs is refused, and the first goes on",
        "when a start is repeated after a broken connection the workload runs twice", twice;
    "start/failure", "D5", "a failed start is an error with a text, and leaves no process and no task behind",
        "failed starts fill the machine with processes that nobody stops", failure;
    "start/after-failure", "D6", "after a failed start the same id can be started",
        "a task whose first start failed can never run on this node", after_failure;
    "start/network", "D6", "an address in the answer comes with a port map that means something",
        "services are registered with an address at which nobody answers", network;
    "start/inspect", "H37", "InspectTask tells id, state, times and result, all of them present",
        "Nomad agents crash on a missing one", inspect;
}

async fn handle(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let prepared = lab.prepare(Work::Runs)?;
    let id = prepared.id().to_owned();
    let request = StartTaskRequest { task: Some(prepared.config.clone()) };
    lab.remember_task(&TaskHandle { config: Some(prepared.config), ..TaskHandle::default() });
    let answer = lab.call(&plugin, "StartTask", plugin.driver().start_task(request)).await?;
    let Some(handle) = answer.handle.clone() else {
        return failed("StartTask answered without a handle");
    };
    lab.remember_task(&handle);
    hold!(
        answer.result() == start_task_response::Result::Success,
        "the answer is no error and says {:?}",
        answer.result()
    );
    hold!(handle.version >= 1, "the handle's version is {}; 0 is reserved", handle.version);
    let echoed = handle.config.unwrap_or_default().id;
    hold!(echoed == id, "the handle's configuration has the id {echoed:?}, the task's is {id:?}");
    hold!(handle.state != TaskState::Exited as i32, "the handle of a task that runs says EXITED");
    lab.destroy(&plugin, &id).await
}

async fn two_tasks(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let long = lab.task(&plugin, Work::Runs).await?;
    let mut waiting = lab.waiting(&plugin, &long.id);
    let short = lab.task(&plugin, Work::Exits).await?;
    ended_by_itself(&lab.wait(&plugin, &short.id).await?)?;
    lab.destroy(&plugin, &short.id).await?;
    if let Ok(answer) = tokio::time::timeout(lab.pace().hold, &mut waiting).await {
        return failed(format!("when another task ended, WaitTask of the one that runs answered {answer:?}"));
    }
    waiting.abort();
    lab.destroy(&plugin, &long.id).await
}

async fn twice(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let prepared = lab.prepare(Work::Runs)?;
    let config = prepared.config.clone();
    let task = lab.start(&plugin, prepared).await?;
    let waiting = lab.waiting(&plugin, &task.id);
    let before = processes(&task.id).len();
    let again =
        lab.answer(&plugin, "StartTask", plugin.driver().start_task(StartTaskRequest { task: Some(config) })).await?;
    hold!(again.is_err(), "StartTask with the id of a task that runs was answered as a success");
    tokio::time::sleep(Duration::from_millis(100)).await;
    hold!(!waiting.is_finished(), "the refused second start ended the first task: {:?}", waiting.await);
    waiting.abort();
    let after = processes(&task.id);
    hold!(after.len() <= before.max(1), "the second start made processes: {}", procs::names(&after));
    lab.destroy(&plugin, &task.id).await
}

async fn failure(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let prepared = lab.prepare(Work::Fails)?;
    let id = prepared.id().to_owned();
    // In case that it does start.
    lab.remember_task(&TaskHandle { config: Some(prepared.config.clone()), ..TaskHandle::default() });
    let request = StartTaskRequest { task: Some(prepared.config) };
    let Err(status) = lab.answer(&plugin, "StartTask", plugin.driver().start_task(request)).await? else {
        return failed("a task that cannot start was answered as a success");
    };
    lab.forget_task(&id);
    hold!(!status.message().trim().is_empty(), "the error ({:?}) has no text", status.code());
    match lab.answered("WaitTask", lab.waiting(&plugin, &id)).await? {
        Err(status) if is_task_not_found(&status) => {}
        other => return failed(format!("after its failed start the task is still known: WaitTask says {other:?}")),
    }
    lab.until("processes of the failed task do not go away", || processes(&id).is_empty()).await
}

async fn after_failure(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let fails = lab.prepare(Work::Fails)?;
    let good = lab.prepare(Work::Exits)?;
    let config =
        TaskConfig { msgpack_driver_config: good.config.msgpack_driver_config.clone(), ..fails.config.clone() };
    let request = StartTaskRequest { task: Some(fails.config.clone()) };
    let answer = lab.answer(&plugin, "StartTask", plugin.driver().start_task(request)).await?;
    hold!(answer.is_err(), "a task that cannot start was answered as a success");
    let task = lab.start(&plugin, crate::task::Prepared { config, ..fails }).await?;
    ended_by_itself(&lab.wait(&plugin, &task.id).await?)?;
    lab.destroy(&plugin, &task.id).await
}

async fn network(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let prepared = lab.prepare(Work::Exits)?;
    let id = prepared.id().to_owned();
    lab.remember_task(&TaskHandle { config: Some(prepared.config.clone()), ..TaskHandle::default() });
    let request = StartTaskRequest { task: Some(prepared.config) };
    let answer = lab.call(&plugin, "StartTask", plugin.driver().start_task(request)).await?;
    if let Some(network) = answer.network_override {
        hold!(
            !network.auto_advertise || !network.addr.is_empty(),
            "services shall be advertised at the task's address, which is empty"
        );
        if let Some((label, port)) = network.port_map.iter().find(|(_, port)| !(1..=65_535).contains(*port)) {
            return failed(format!("port {label:?} is {port}"));
        }
    }
    lab.wait(&plugin, &id).await?;
    lab.destroy(&plugin, &id).await
}

async fn inspect(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    let running = complete(&task.id, lab.inspect(&plugin, &task.id).await?)?;
    hold!(running.state() == TaskState::Running, "a task that runs has the state {:?}", running.state());
    lab.destroy(&plugin, &task.id).await?;
    let task = lab.task(&plugin, Work::Exits).await?;
    lab.wait(&plugin, &task.id).await?;
    let ended = complete(&task.id, lab.inspect(&plugin, &task.id).await?)?;
    hold!(ended.state() == TaskState::Exited, "a task that has ended has the state {:?}", ended.state());
    let code = ended.result.unwrap_or_default().exit_code;
    hold!(
        code == crate::kit::EXIT_CODE,
        "the result's exit code is {code}, the task ended with {}",
        crate::kit::EXIT_CODE
    );
    // Whole seconds: the start may be noted when the answer to it comes, and a short task has ended by then.
    let at = |time: &Option<driver_proto::Timestamp>| time.as_ref().map(|t| t.seconds).unwrap_or_default();
    hold!(
        at(&ended.completed_at) + 1 >= at(&ended.started_at),
        "it completed at {:?}, before it started",
        ended.completed_at
    );
    lab.destroy(&plugin, &task.id).await
}

fn complete(id: &str, answer: InspectTaskResponse) -> Outcome<TaskStatus> {
    let Some(task) = answer.task else {
        return failed("InspectTask answers without the task");
    };
    hold!(task.id == id, "InspectTask of {id:?} tells of {:?}", task.id);
    hold!(task.result.is_some(), "the task's result is missing (state {:?})", task.state());
    hold!(task.started_at.is_some(), "the task's started_at is missing");
    hold!(task.completed_at.is_some(), "the task's completed_at is missing; not set is the first second of year 1");
    let began = task.started_at.as_ref().map(|t| t.seconds).unwrap_or_default();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let off = began.abs_diff(i64::try_from(now).unwrap_or_default());
    hold!(off < 3600, "the task's started_at is {began} seconds, {off} seconds from now");
    Ok(task)
}
