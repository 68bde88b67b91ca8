//! Our remote extension: stop, seal, acknowledge, logs; and the plain protocol over it.

use std::sync::Arc;
use std::time::Duration;

use driver_proto::driver::{TaskConfig, TaskState};
use driver_proto::handshake::DETACH_SIGNAL;
use driver_proto::remote::*;
use tonic::{Code, Status};

use super::remote::{acknowledge, becomes, clear, ensure, look, offered, owner, request, stop};
use crate::check::table;
use crate::kit::{EXIT_CODE, TaskKit, Work};
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold, not_applicable};
use crate::plugin::Plugin;
use crate::task::{STOP_TIMEOUT, excerpt};

table! {
    "remote/stop", "remote", "Stop is answered when the instance has ended, with how; a second Stop says the same",
        "a replacement starts while the old instance still runs", stops;
    "remote/exit-result", "remote", "how an instance ended is told, again and again, until it is acknowledged",
        "the result of a task that ended while no node managed it is lost", exit_result;
    "remote/acknowledge", "remote", "Acknowledge refuses what runs, is answered twice alike, and then the key has no \
        instance",
        "instances pile up at the provider, or one that runs is forgotten", acknowledges;
    "remote/seal", "remote", "after Seal an Ensure with that key never creates, and what exists is found",
        "a start that is still on its way creates an instance after its task was stopped", seal;
    "remote/seal-acknowledged", "remote", "an acknowledged key is sealed",
        "a late start runs a task a second time that had ended", seal_acknowledged;
    "remote/survives", "remote", "after SIGKILL of the plugin the instance runs, and a new process observes and stops \
        it by its handle",
        "remote tasks die with the node, which is what they exist to avoid", survives;
    "remote/logs", "remote", "Logs sends all bytes from any offset, and tells at which offset each chunk begins",
        "after each change of the managing node lines are missing or doubled", logs;
    "remote/refresh", "remote", "Refresh gives a running instance new files, each whole, and is refused of one that \
        has ended and for paths that lead out",
        "a task reads half of a token, or is refused everywhere once its first one has ended", refresh;
    "remote/detach", "remote", "StopTask with DETACH on the plain protocol answers those who wait and leaves the \
        instance running, also at DestroyTask",
        "draining a node stops its remote tasks", detach;
}

async fn stops(lab: &Arc<Lab>) -> Outcome {
    offered(lab)?;
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Runs, 1)?;
    let (handle, ..) = ensure(lab, &plugin, &request).await?;
    becomes(lab, &plugin, &handle, InstanceState::Running).await?;
    let ended = stop(lab, &plugin, &handle, 1).await?;
    hold!(ended.state() == InstanceState::Exited, "Stop is answered with {:?}, expected is EXITED", ended.state());
    let seen = look(lab, &plugin, &handle).await?;
    hold!(seen.state() == InstanceState::Exited, "after Stop the instance is {:?}", seen.state());
    let again = stop(lab, &plugin, &handle, 1).await?;
    let result = |seen: &Observation| (seen.exit_code, seen.signal);
    hold!(
        result(&again) == result(&ended),
        "the second Stop says {:?}, the first said {:?}",
        result(&again),
        result(&ended)
    );
    acknowledge(lab, &plugin, &request.key, &handle, 1).await
}

async fn exit_result(lab: &Arc<Lab>) -> Outcome {
    if !offered(lab)?.retained_exit_results {
        return not_applicable("the driver does not declare retained_exit_results");
    }
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Exits, 1)?;
    let (handle, ..) = ensure(lab, &plugin, &request).await?;
    becomes(lab, &plugin, &handle, InstanceState::Exited).await?;
    plugin.process.kill().await;
    let next = lab.plugin().await?;
    for _ in 0..2 {
        let seen = look(lab, &next, &handle).await?;
        hold!(
            seen.state() == InstanceState::Exited && seen.exit_code == EXIT_CODE,
            "it ended with code {EXIT_CODE}, Observe says {seen:?}"
        );
    }
    acknowledge(lab, &next, &request.key, &handle, 1).await
}

async fn acknowledges(lab: &Arc<Lab>) -> Outcome {
    let described = offered(lab)?;
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Runs, 1)?;
    let (handle, ..) = ensure(lab, &plugin, &request).await?;
    becomes(lab, &plugin, &handle, InstanceState::Running).await?;
    let early = AcknowledgeRequest { handle: Some(handle.clone()), epoch: 1 };
    let answer = lab.answer(&plugin, "Acknowledge", plugin.remote().acknowledge(early)).await?;
    hold!(answer.is_err(), "Acknowledge of an instance that runs was answered as a success");
    stop(lab, &plugin, &handle, 1).await?;
    for _ in 0..2 {
        acknowledge(lab, &plugin, &request.key, &handle, 1).await?;
    }
    if described.find {
        let find = FindRequest { key: request.key.clone(), owner: owner(lab), ..FindRequest::default() };
        let found = lab.answer(&plugin, "Find", plugin.remote().find(find)).await?;
        let gone = matches!(&found, Err(status) if status.code() == Code::NotFound);
        hold!(gone, "Find of an acknowledged key is answered with {found:?}, expected is NOT_FOUND");
    }
    Ok(())
}

fn sealed(what: &str, answer: Result<EnsureResponse, Status>) -> Outcome {
    match answer {
        Err(status) if status.code() == Code::FailedPrecondition => Ok(()),
        Err(status) => failed(format!("Ensure of {what} was answered with {:?}: {}", status.code(), status.message())),
        Ok(answer) => failed(format!("Ensure of {what} was answered with an instance (created: {})", answer.created)),
    }
}

async fn seal_key(lab: &Lab, plugin: &Plugin, key: &str, epoch: u64) -> Outcome<SealResponse> {
    let request = SealRequest { key: key.into(), epoch, owner: owner(lab), ..SealRequest::default() };
    lab.call(plugin, "Seal", plugin.remote().seal(request)).await
}

async fn late_ensure(lab: &Lab, plugin: &Plugin, request: &EnsureRequest) -> Outcome<Result<EnsureResponse, Status>> {
    let answer = lab.answer(plugin, "Ensure", plugin.remote().ensure(request.clone())).await?;
    if let Ok(EnsureResponse { handle: Some(handle), .. }) = &answer {
        lab.remember_instance(&request.key, handle, request.epoch);
    }
    Ok(answer)
}

async fn seal(lab: &Arc<Lab>) -> Outcome {
    if !offered(lab)?.seal {
        return not_applicable("the driver does not declare seal");
    }
    let plugin = lab.plugin().await?;
    let never = request(lab, Work::Runs, 2)?;
    for _ in 0..2 {
        let answer = seal_key(lab, &plugin, &never.key, 2).await?;
        let state = answer.observed.map(|seen| seen.state());
        hold!(state == Some(InstanceState::Gone), "Seal of a key that nobody has says {state:?}, expected is GONE");
        hold!(answer.handle.is_none(), "Seal of a key that nobody has answers with a handle");
    }
    sealed("a sealed key", late_ensure(lab, &plugin, &never).await?)?;
    let exists = request(lab, Work::Runs, 2)?;
    let (handle, before, _) = ensure(lab, &plugin, &exists).await?;
    becomes(lab, &plugin, &handle, InstanceState::Running).await?;
    let answer = seal_key(lab, &plugin, &exists.key, 3).await?;
    hold!(answer.handle.is_some(), "Seal of a key that has an instance answers without its handle");
    let seen = look(lab, &plugin, &handle).await?;
    hold!(seen.state() == InstanceState::Running, "Seal is no stop, and the instance is {:?}", seen.state());
    let again = EnsureRequest { epoch: 3, ..exists.clone() };
    let (_, after, created) = ensure(lab, &plugin, &again).await?;
    hold!(
        !created && after.provider_id == before.provider_id,
        "Ensure of a sealed key that has an instance did not get that one"
    );
    // The seal outlives the process that made it.
    plugin.process.kill().await;
    let next = lab.plugin().await?;
    sealed("a key that an earlier process sealed", late_ensure(lab, &next, &never).await?)?;
    clear(lab, &next, &exists.key, &handle, 3).await
}

async fn seal_acknowledged(lab: &Arc<Lab>) -> Outcome {
    if !offered(lab)?.seal {
        return not_applicable("the driver does not declare seal");
    }
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Exits, 1)?;
    let (handle, ..) = ensure(lab, &plugin, &request).await?;
    becomes(lab, &plugin, &handle, InstanceState::Exited).await?;
    acknowledge(lab, &plugin, &request.key, &handle, 1).await?;
    sealed("an acknowledged key", late_ensure(lab, &plugin, &request).await?)
}

async fn survives(lab: &Arc<Lab>) -> Outcome {
    offered(lab)?;
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Runs, 1)?;
    let (handle, ..) = ensure(lab, &plugin, &request).await?;
    let before = becomes(lab, &plugin, &handle, InstanceState::Running).await?;
    let provider = lab.call(&plugin, "Describe", plugin.remote().describe(DescribeRequest {})).await?.provider;
    plugin.process.kill().await;
    let next = lab.plugin().await?;
    let other = lab.call(&next, "Describe", next.remote().describe(DescribeRequest {})).await?.provider;
    hold!(provider == other, "the same runtime is called {provider:?} and then {other:?}");
    let after = look(lab, &next, &handle).await?;
    hold!(
        after.state() == InstanceState::Running,
        "after SIGKILL of the plugin the instance is {:?} ({})",
        after.state(),
        after.reason
    );
    let same = (&after.provider_id, &after.started_at) == (&before.provider_id, &before.started_at);
    hold!(same, "the instance has become another: {before:?}, now {after:?}");
    stop(lab, &next, &handle, 1).await?;
    acknowledge(lab, &next, &request.key, &handle, 1).await
}

async fn read_log(lab: &Lab, plugin: &Plugin, handle: &Handle, offset: u64) -> Outcome<String> {
    let request = LogsRequest {
        handle: Some(handle.clone()),
        stream: LogStream::Stdout as i32,
        offset,
        follow: false,
        from_end: false,
    };
    let reading = async {
        let (mut stream, mut at, mut text) = (plugin.remote().logs(request).await?.into_inner(), offset, Vec::new());
        while let Some(chunk) = stream.message().await? {
            if chunk.offset != at {
                return Ok(Err(format!("a chunk begins at offset {}, expected is {at}", chunk.offset)));
            }
            at += chunk.data.len() as u64;
            text.extend(chunk.data);
        }
        Ok::<_, Status>(Ok(String::from_utf8_lossy(&text).into_owned()))
    };
    match tokio::time::timeout(lab.pace().patience, reading).await {
        Err(_) => failed("Logs without follow does not end"),
        Ok(Err(status)) => failed(format!("Logs was answered with {:?}: {}", status.code(), status.message())),
        Ok(Ok(Err(why))) => failed(why),
        Ok(Ok(Ok(text))) => Ok(text),
    }
}

async fn logs(lab: &Arc<Lab>) -> Outcome {
    if !offered(lab)?.logs {
        return not_applicable("the driver does not declare logs");
    }
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Prints, 1)?;
    let (handle, ..) = ensure(lab, &plugin, &request).await?;
    becomes(lab, &plugin, &handle, InstanceState::Exited).await?;
    let wanted = TaskKit::text();
    for offset in [0, 7, wanted.len() as u64 - 3] {
        let seen = read_log(lab, &plugin, &handle, offset).await?;
        let rest = &wanted[offset as usize..];
        hold!(seen == rest, "from offset {offset} on Logs sends {:?}, expected is {:?}", excerpt(&seen), excerpt(rest));
    }
    acknowledge(lab, &plugin, &request.key, &handle, 1).await
}

/// Lines of the file that is renewed: too many to be written at once by chance.
const REFRESHED_LINES: usize = 20_000;
/// Below the task's directory.
const REFRESHED: &str = "secrets/check";

/// Reads the file all the time. Ends with code 7 once it has read the last one, and with 9 when it has read one that
/// nobody has sent.
fn reader() -> String {
    format!(
        "f=\"${{NOMAD_SECRETS_DIR:-secrets}}/check\"; \
         while s=$(sort \"$f\" | uniq -c | tr -s ' '); do case \"$s\" in \
         ' {REFRESHED_LINES} first'|' {REFRESHED_LINES} other') ;; ' {REFRESHED_LINES} last') exit {EXIT_CODE};; *) \
         exit 9;; esac; done"
    )
}

fn bundle(path: &str, word: &str) -> Bundle {
    let data = format!("{word}\n").repeat(REFRESHED_LINES).into_bytes();
    let digest = driver_proto::build::bundle_digest([(path, 0o600, data.as_slice())]);
    Bundle { digest, files: vec![BundleFile { path: path.into(), mode: 0o600, data }] }
}

pub(super) fn refresh_request(handle: &Handle, epoch: u64, path: &str, word: &str) -> RefreshRequest {
    RefreshRequest { handle: Some(handle.clone()), epoch, bundle: Some(bundle(path, word)) }
}

/// It must have been refused as a wrong request, or because there is no such instance.
fn refused(what: &str, answer: Result<RefreshResponse, Status>) -> Outcome {
    match answer {
        Err(status) if matches!(status.code(), Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound) => {
            Ok(())
        }
        Err(status) => failed(format!("Refresh {what} was answered with {:?}: {}", status.code(), status.message())),
        Ok(_) => failed(format!("Refresh {what} was answered as a success")),
    }
}

/// Renews the file; the instance runs for as long as it reads what was sent.
async fn renewed(lab: &Lab, plugin: &Plugin, handle: &Handle, word: &str) -> Outcome {
    let Err(status) =
        lab.answer(plugin, "Refresh", plugin.remote().refresh(refresh_request(handle, 1, REFRESHED, word))).await?
    else {
        return Ok(());
    };
    let seen = look(lab, plugin, handle).await?;
    let code = seen.exit_code;
    hold!(
        seen.state() != InstanceState::Exited,
        "the instance has read a file that nobody has sent (it has ended with code {code})"
    );
    failed(format!("Refresh was answered with {:?}: {}", status.code(), status.message()))
}

async fn refresh(lab: &Arc<Lab>) -> Outcome {
    let described = offered(lab)?;
    if !described.refresh {
        return not_applicable("the driver does not declare refresh");
    }
    let plugin = lab.plugin().await?;
    let script = reader();
    // Without a shell over there only the answers are looked at.
    let scripted = request(lab, Work::Script(&script), 1).ok().filter(|_| described.file_upload);
    let reads = scripted.is_some();
    let mut request = match scripted {
        Some(request) => request,
        None => request(lab, Work::Runs, 1)?,
    };
    if described.file_upload {
        request.bundle = Some(bundle(REFRESHED, "first"));
    }
    let (handle, ..) = ensure(lab, &plugin, &request).await?;
    becomes(lab, &plugin, &handle, InstanceState::Running).await?;
    for word in ["other", "other", "first", "other"] {
        renewed(lab, &plugin, &handle, word).await?;
    }
    for path in ["../x", "/x", "secrets/../../x"] {
        let answer =
            lab.answer(&plugin, "Refresh", plugin.remote().refresh(refresh_request(&handle, 1, path, "other"))).await?;
        refused(&format!("of {path:?}"), answer)?;
    }
    let mut damaged = refresh_request(&handle, 1, REFRESHED, "other");
    damaged.bundle.iter_mut().for_each(|bundle| bundle.digest = "00".into());
    refused("with another digest", lab.answer(&plugin, "Refresh", plugin.remote().refresh(damaged)).await?)?;
    renewed(lab, &plugin, &handle, "last").await?;
    if reads {
        let ended = becomes(lab, &plugin, &handle, InstanceState::Exited).await?;
        hold!(
            ended.exit_code == EXIT_CODE,
            "the instance has read a file that nobody has sent (code {})",
            ended.exit_code
        );
    } else {
        stop(lab, &plugin, &handle, 1).await?;
    }
    let late = lab
        .answer(&plugin, "Refresh", plugin.remote().refresh(refresh_request(&handle, 1, REFRESHED, "other")))
        .await?;
    refused("of an instance that has ended", late)?;
    acknowledge(lab, &plugin, &request.key, &handle, 1).await?;
    let gone = lab
        .answer(&plugin, "Refresh", plugin.remote().refresh(refresh_request(&handle, 1, REFRESHED, "other")))
        .await?;
    let not_found = matches!(&gone, Err(status) if status.code() == Code::NotFound);
    hold!(not_found, "Refresh of an acknowledged instance is answered with {gone:?}, expected is NOT_FOUND");
    Ok(())
}

async fn detach(lab: &Arc<Lab>) -> Outcome {
    if !lab.profile().capabilities.remote_tasks {
        return not_applicable("the driver does not declare remote_tasks");
    }
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    let waiting = lab.waiting(&plugin, &task.id);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = lab.inspect(&plugin, &task.id).await?.task.and_then(|task| task.started_at);
    lab.stop(&plugin, &task.id, DETACH_SIGNAL, STOP_TIMEOUT).await?;
    if lab.answered("WaitTask after DETACH", waiting).await?.is_err() {
        return failed("WaitTask was answered with an error after DETACH");
    }
    // A host destroys what it has detached; whatever happens, the sweep must find the task.
    lab.destroy(&plugin, &task.id).await?;
    lab.remember_task(&task.handle);
    plugin.process.kill().await;
    // Another node: a fresh id, and of the old start only version and state.
    let next = lab.plugin().await?;
    let config: TaskConfig = lab.prepare(Work::Runs)?.config;
    let id = config.id.clone();
    let mut handle = task.handle.clone();
    handle.config = Some(config);
    lab.recover(&next, &handle).await?;
    lab.forget_task(&task.id);
    lab.remember_task(&handle);
    let seen = lab.inspect(&next, &id).await?.task.unwrap_or_default();
    hold!(
        seen.state() == TaskState::Running,
        "after DETACH and DestroyTask the instance has the state {:?}",
        seen.state()
    );
    hold!(seen.started_at == began, "it is another instance: it began at {began:?}, now it says {:?}", seen.started_at);
    lab.stop(&next, &id, "", STOP_TIMEOUT).await?;
    lab.destroy(&next, &id).await
}
