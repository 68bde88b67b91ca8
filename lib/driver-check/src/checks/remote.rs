//! Our remote extension: create or get, epochs, looking, finding.

use std::sync::Arc;

use driver_proto::driver::TaskConfig;
use driver_proto::errors::accepted_epoch;
use driver_proto::remote::*;
use tonic::{Code, Status};

use crate::check::table;
use crate::kit::Work;
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold, not_applicable};
use crate::plugin::Plugin;

table! {
    "remote/describe", "remote", "Describe names the runtime, the same each time, and the driver declares remote_tasks",
        "nodes do not know that they reach the same instances: a replacement starts everything anew", describe;
    "remote/ensure-twice", "remote", "a second Ensure with the same key gets the instance of the first",
        "each repeated start makes another instance that nobody manages", ensure_twice;
    "remote/ensure-racing", "remote", "of several Ensure calls at a time with one key, one creates",
        "a start that is repeated while the first is under way makes two instances", ensure_racing;
    "remote/stale-epoch", "remote", "a call with an older epoch is refused with ABORTED and the accepted epoch, and \
        changes nothing",
        "a node that has lost its lease stops or changes what is managed elsewhere", stale_epoch;
    "remote/observe", "remote", "Observe answers for each handle in the order asked: running, and GONE for one that \
        is no more",
        "the state of one task is taken for that of another", observe;
    "remote/unknown-handle", "remote", "a handle that it cannot read is a wrong request or an UNKNOWN observation, \
        never GONE",
        "a task is replaced although it runs, because the driver claimed what it could not know", unknown_handle;
    "remote/find", "remote", "Find finds an instance by its key, and says NOT_FOUND of a key that has none",
        "an instance whose handle was lost is started a second time", find;
    "remote/list", "remote", "List tells exactly the owner's instances, page by page",
        "instances that were forgotten are never found, or those of another cluster are stopped", list;
    "remote/watch", "remote", "Watch sends the state of each handle at once, and the end when it comes",
        "the end of a task is noticed only with the next poll, or never", watch;
}

/// The owner in all calls of a check.
pub(super) fn owner(lab: &Lab) -> String {
    format!("owner-{}", lab.mark)
}

/// The extension as this plugin describes it.
pub(super) fn offered(lab: &Lab) -> Outcome<DescribeResponse> {
    match &lab.profile().remote {
        Some(described) => Ok(described.clone()),
        None => not_applicable("the driver does not serve the remote extension"),
    }
}

/// A request for a fresh key.
pub(super) fn request(lab: &Lab, work: Work<'_>, epoch: u64) -> Outcome<EnsureRequest> {
    let task: TaskConfig = lab.prepare(work)?.config;
    Ok(EnsureRequest {
        key: task.id.replace('/', "-"),
        epoch,
        owner: owner(lab),
        slot: format!("default/check.g[0]/{}", lab.number()),
        task: Some(task),
        bundle: Some(Bundle::default()),
        ..EnsureRequest::default()
    })
}

/// Ensures, and what comes back is usable.
pub(super) async fn ensure(
    lab: &Lab,
    plugin: &Plugin,
    request: &EnsureRequest,
) -> Outcome<(Handle, Observation, bool)> {
    let answer = lab.call(plugin, "Ensure", plugin.remote().ensure(request.clone())).await?;
    usable(lab, request, answer)
}

fn usable(lab: &Lab, request: &EnsureRequest, answer: EnsureResponse) -> Outcome<(Handle, Observation, bool)> {
    let (Some(handle), Some(observed)) = (answer.handle, answer.observed) else {
        return failed("Ensure answers without a handle or without an observation");
    };
    lab.remember_instance(&request.key, &handle, request.epoch);
    hold!(handle.data.len() <= 16 << 10, "the handle has {} bytes, at most 16 KiB are kept", handle.data.len());
    hold!(observed.key == request.key, "Ensure of key {:?} answers with key {:?}", request.key, observed.key);
    Ok((handle, observed, answer.created))
}

pub(super) async fn look(lab: &Lab, plugin: &Plugin, handle: &Handle) -> Outcome<Observation> {
    let request = ObserveRequest { handles: vec![handle.clone()] };
    let mut seen = lab.call(plugin, "Observe", plugin.remote().observe(request)).await?.observations;
    hold!(seen.len() == 1, "Observe of one handle answers {} observations", seen.len());
    Ok(seen.remove(0))
}

/// Looks until it is in this state.
pub(super) async fn becomes(lab: &Lab, plugin: &Plugin, handle: &Handle, state: InstanceState) -> Outcome<Observation> {
    let begun = std::time::Instant::now();
    loop {
        let seen = look(lab, plugin, handle).await?;
        if seen.state() == state {
            return Ok(seen);
        }
        let late = begun.elapsed() > lab.pace().patience;
        hold!(!late, "the instance is {:?} ({:?}), expected is {state:?}", seen.state(), seen.reason);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

pub(super) async fn stop(lab: &Lab, plugin: &Plugin, handle: &Handle, epoch: u64) -> Outcome<Observation> {
    let request = stop_request(handle, epoch);
    let told = crate::task::STOP_TIMEOUT;
    let answer = lab.call_after(plugin, "Stop", told, plugin.remote().stop(request)).await?;
    match answer.observed {
        Some(seen) => Ok(seen),
        None => failed("Stop answers without an observation"),
    }
}

fn stop_request(handle: &Handle, epoch: u64) -> StopRequest {
    let timeout = Some(driver_proto::build::duration(crate::task::STOP_TIMEOUT));
    StopRequest { handle: Some(handle.clone()), epoch, signal: String::new(), timeout }
}

pub(super) async fn acknowledge(lab: &Lab, plugin: &Plugin, key: &str, handle: &Handle, epoch: u64) -> Outcome {
    let request = AcknowledgeRequest { handle: Some(handle.clone()), epoch };
    lab.call(plugin, "Acknowledge", plugin.remote().acknowledge(request)).await?;
    lab.forget_instance(key);
    Ok(())
}

/// Stops and acknowledges.
pub(super) async fn clear(lab: &Lab, plugin: &Plugin, key: &str, handle: &Handle, epoch: u64) -> Outcome {
    stop(lab, plugin, handle, epoch).await?;
    acknowledge(lab, plugin, key, handle, epoch).await
}

async fn describe(lab: &Arc<Lab>) -> Outcome {
    let described = offered(lab)?;
    let plugin = lab.plugin().await?;
    let now = lab.call(&plugin, "Describe", plugin.remote().describe(DescribeRequest {})).await?;
    hold!(!now.provider.is_empty(), "the runtime has no name");
    let again = lab.call(&plugin, "Describe", plugin.remote().describe(DescribeRequest {})).await?;
    hold!(now == again, "Describe answers differently each time");
    let (min, max) = (described.handle_schema_min, described.handle_schema_max);
    hold!(1 <= min && min <= max, "the handle layouts {min} to {max} are no range from 1 on");
    hold!(lab.profile().capabilities.remote_tasks, "the capabilities do not declare remote_tasks");
    Ok(())
}

async fn ensure_twice(lab: &Arc<Lab>) -> Outcome {
    offered(lab)?;
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Runs, 1)?;
    let (first, seen, created) = ensure(lab, &plugin, &request).await?;
    hold!(created, "the first Ensure says that the instance existed");
    let again = EnsureRequest { epoch: 2, ..request.clone() };
    let (second, seen_again, created) = ensure(lab, &plugin, &again).await?;
    hold!(!created, "the second Ensure with the same key says that it created an instance");
    let (one, other) = (&seen.provider_id, &seen_again.provider_id);
    hold!(one == other, "the same key led to instance {one:?} and then to {other:?}");
    becomes(lab, &plugin, &first, InstanceState::Running).await?;
    clear(lab, &plugin, &request.key, &second, 2).await
}

async fn ensure_racing(lab: &Arc<Lab>) -> Outcome {
    offered(lab)?;
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Runs, 1)?;
    let callers = (0..5).map(|_| {
        let (mut remote, request) = (plugin.remote(), request.clone());
        async move { remote.ensure(request).await.map(tonic::Response::into_inner) }
    });
    let limit = lab.pace().patience;
    let Ok(answers) = tokio::time::timeout(limit, futures::future::join_all(callers)).await else {
        return failed(format!("five Ensure calls at a time were not answered within {limit:?}"));
    };
    let mut made = 0;
    let mut ids = std::collections::BTreeSet::new();
    let mut last = None;
    for answer in answers {
        match answer {
            Ok(answer) => {
                let (handle, seen, created) = usable(lab, &request, answer)?;
                made += usize::from(created);
                ids.insert(seen.provider_id);
                last = Some(handle);
            }
            // Could not ask, or tried meanwhile: to be repeated.
            Err(status) if matches!(status.code(), Code::Unavailable | Code::Aborted | Code::ResourceExhausted) => {}
            Err(status) => {
                return failed(format!("Ensure was answered with {:?}: {}", status.code(), status.message()));
            }
        }
    }
    hold!(made <= 1 && ids.len() <= 1, "five Ensure calls with one key created {made} instances: {ids:?}");
    let Some(handle) = last else {
        return failed("none of five Ensure calls was answered with an instance");
    };
    clear(lab, &plugin, &request.key, &handle, 1).await
}

fn aborted<T>(what: &str, answer: Result<T, Status>, accepted: u64) -> Outcome {
    match answer {
        Ok(_) => failed(format!("{what} with an older epoch was answered as a success")),
        Err(status) => {
            let (code, text) = (status.code(), status.message());
            hold!(code == Code::Aborted, "{what} with an older epoch was answered with {code:?}: {text}");
            let told = accepted_epoch(&status);
            hold!(told == Some(accepted), "the refusal of {what} tells of epoch {told:?}, accepted was {accepted}");
            Ok(())
        }
    }
}

async fn stale_epoch(lab: &Arc<Lab>) -> Outcome {
    offered(lab)?;
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Runs, 5)?;
    let (handle, ..) = ensure(lab, &plugin, &request).await?;
    becomes(lab, &plugin, &handle, InstanceState::Running).await?;
    let older = EnsureRequest { epoch: 3, ..request.clone() };
    aborted("Ensure", lab.answer(&plugin, "Ensure", plugin.remote().ensure(older)).await?, 5)?;
    aborted("Stop", lab.answer(&plugin, "Stop", plugin.remote().stop(stop_request(&handle, 3))).await?, 5)?;
    let signal = SignalRequest { handle: Some(handle.clone()), epoch: 3, signal: "SIGTERM".into() };
    if offered(lab)?.signals {
        aborted("Signal", lab.answer(&plugin, "Signal", plugin.remote().signal(signal)).await?, 5)?;
    }
    if offered(lab)?.refresh {
        let refresh = super::remote_life::refresh_request(&handle, 3, "local/check", "stale");
        aborted("Refresh", lab.answer(&plugin, "Refresh", plugin.remote().refresh(refresh)).await?, 5)?;
    }
    let acknowledge = AcknowledgeRequest { handle: Some(handle.clone()), epoch: 3 };
    let answer = lab.answer(&plugin, "Acknowledge", plugin.remote().acknowledge(acknowledge)).await?;
    hold!(answer.is_err(), "Acknowledge with an older epoch was answered as a success");
    let seen = look(lab, &plugin, &handle).await?;
    hold!(seen.state() == InstanceState::Running, "after refused calls the instance is {:?}", seen.state());
    clear(lab, &plugin, &request.key, &handle, 5).await
}

async fn observe(lab: &Arc<Lab>) -> Outcome {
    offered(lab)?;
    let plugin = lab.plugin().await?;
    let (gone, stays) = (request(lab, Work::Runs, 1)?, request(lab, Work::Runs, 1)?);
    let (gone_handle, ..) = ensure(lab, &plugin, &gone).await?;
    let (handle, ..) = ensure(lab, &plugin, &stays).await?;
    becomes(lab, &plugin, &handle, InstanceState::Running).await?;
    clear(lab, &plugin, &gone.key, &gone_handle, 1).await?;
    for order in [[&gone_handle, &handle, &handle], [&handle, &gone_handle, &handle]] {
        let asked = ObserveRequest { handles: order.iter().map(|handle| (*handle).clone()).collect() };
        let seen = lab.call(&plugin, "Observe", plugin.remote().observe(asked)).await?.observations;
        let states: Vec<InstanceState> = seen.iter().map(Observation::state).collect();
        let wanted: Vec<InstanceState> = order
            .iter()
            .map(|asked| if *asked == &gone_handle { InstanceState::Gone } else { InstanceState::Running })
            .collect();
        hold!(states == wanted, "Observe answers {states:?}, expected is {wanted:?}");
    }
    clear(lab, &plugin, &stays.key, &handle, 1).await
}

async fn unknown_handle(lab: &Arc<Lab>) -> Outcome {
    let described = offered(lab)?;
    let plugin = lab.plugin().await?;
    let handles = [
        ("junk", Handle { schema: described.handle_schema_max, data: vec![0xc1, 0xff] }),
        ("layout 999", Handle { schema: 999, data: vec![0x80] }),
        ("nothing", Handle::default()),
    ];
    for (what, handle) in handles {
        let request = ObserveRequest { handles: vec![handle] };
        match lab.answer(&plugin, "Observe", plugin.remote().observe(request)).await? {
            Err(status) => {
                let wrong = matches!(status.code(), Code::InvalidArgument | Code::FailedPrecondition);
                hold!(wrong, "a handle of {what} is answered with {:?}: {}", status.code(), status.message());
            }
            Ok(answer) => {
                let states: Vec<InstanceState> = answer.observations.iter().map(Observation::state).collect();
                hold!(
                    states == [InstanceState::Unknown],
                    "a handle of {what} is answered with {states:?}, expected is UNKNOWN"
                );
            }
        }
        lab.still_works(&plugin, &format!("a handle of {what}")).await?;
    }
    Ok(())
}

async fn find(lab: &Arc<Lab>) -> Outcome {
    if !offered(lab)?.find {
        return not_applicable("the driver does not declare find");
    }
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Runs, 1)?;
    let nobody = FindRequest { key: "no-such-key".into(), owner: owner(lab), ..FindRequest::default() };
    match lab.answer(&plugin, "Find", plugin.remote().find(nobody)).await? {
        Err(status) if status.code() == Code::NotFound => {}
        other => {
            return failed(format!(
                "Find of a key without an instance is answered with {other:?}, expected is NOT_FOUND"
            ));
        }
    }
    let (handle, seen, _) = ensure(lab, &plugin, &request).await?;
    let found = lab
        .call(
            &plugin,
            "Find",
            plugin.remote().find(FindRequest { key: request.key.clone(), owner: owner(lab), ..FindRequest::default() }),
        )
        .await?;
    let id = found.observed.unwrap_or_default().provider_id;
    hold!(id == seen.provider_id, "Find leads to instance {id:?}, created was {:?}", seen.provider_id);
    let Some(by_key) = found.handle else {
        return failed("Find answers without a handle");
    };
    becomes(lab, &plugin, &by_key, InstanceState::Running).await?;
    clear(lab, &plugin, &request.key, &handle, 1).await
}

async fn pages(lab: &Lab, plugin: &Plugin, owner: &str, page_size: u32) -> Outcome<Vec<ListedInstance>> {
    let (mut all, mut page_token) = (Vec::new(), String::new());
    for _ in 0..100 {
        let request = ListRequest { owner: owner.into(), page_token, page_size };
        let page = lab.call(plugin, "List", plugin.remote().list(request)).await?;
        all.extend(page.instances);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(all);
        }
    }
    failed("a list of few instances has more than a hundred pages")
}

async fn list(lab: &Arc<Lab>) -> Outcome {
    if !offered(lab)?.list {
        return not_applicable("the driver does not declare list");
    }
    let plugin = lab.plugin().await?;
    let mut made = std::collections::BTreeMap::new();
    for _ in 0..3 {
        let request = request(lab, Work::Runs, 4)?;
        let (handle, ..) = ensure(lab, &plugin, &request).await?;
        made.insert(request.key, handle);
    }
    let keys: Vec<&String> = made.keys().collect();
    for size in [0, 1, 2] {
        let mut listed: Vec<ListedInstance> = pages(lab, &plugin, &owner(lab), size).await?;
        listed.sort_by(|a, b| a.key.cmp(&b.key));
        let seen: Vec<&String> = listed.iter().map(|instance| &instance.key).collect();
        hold!(seen == keys, "with pages of {size}, List tells {seen:?}, there are {keys:?}");
        let complete =
            listed.iter().all(|i| i.handle.is_some() && i.observed.is_some() && i.owner == owner(lab) && i.epoch == 4);
        hold!(complete, "the list lacks handles, observations, owners or epochs: {listed:?}");
    }
    let others = pages(lab, &plugin, "somebody-else", 0).await?;
    let ours = others.iter().filter(|instance| made.contains_key(&instance.key)).count();
    hold!(ours == 0, "List of another owner tells {ours} of ours");
    if offered(lab)?.list_owners {
        let all = pages(lab, &plugin, "", 2).await?;
        let ours =
            all.iter().filter(|instance| made.contains_key(&instance.key) && instance.owner == owner(lab)).count();
        hold!(ours == made.len(), "List of all owners tells {ours} of our {} with their owner", made.len());
    }
    for (key, handle) in &made {
        clear(lab, &plugin, key, handle, 4).await?;
    }
    Ok(())
}

async fn watch(lab: &Arc<Lab>) -> Outcome {
    offered(lab)?;
    let plugin = lab.plugin().await?;
    let request = request(lab, Work::Runs, 1)?;
    let (handle, ..) = ensure(lab, &plugin, &request).await?;
    becomes(lab, &plugin, &handle, InstanceState::Running).await?;
    let mut remote = plugin.remote();
    let asked = ObserveRequest { handles: vec![handle.clone()] };
    let (told, mut heard) = tokio::sync::mpsc::channel(16);
    // The headers may come with the first observation only.
    let watching = tokio::spawn(async move {
        let mut stream = remote.watch(asked).await?.into_inner();
        while let Some(seen) = stream.message().await? {
            let _ = told.send(seen).await;
        }
        Ok::<_, Status>(())
    });
    let limit = lab.pace().patience;
    let outcome = async {
        let Ok(Some(first)) = tokio::time::timeout(limit, heard.recv()).await else {
            return failed(format!("Watch sent nothing within {limit:?}, or ended"));
        };
        hold!(
            first.state() == InstanceState::Running && first.key == request.key,
            "Watch begins with {:?} of {:?}",
            first.state(),
            first.key
        );
        stop(lab, &plugin, &handle, 1).await?;
        loop {
            match tokio::time::timeout(limit, heard.recv()).await {
                Ok(Some(seen)) if matches!(seen.state(), InstanceState::Exited | InstanceState::Gone) => return Ok(()),
                Ok(Some(_)) => {}
                Ok(None) => return failed("Watch ended before it told of the end of the instance"),
                Err(_) => return failed(format!("{limit:?} after its end Watch has not told of it")),
            }
        }
    };
    let outcome = outcome.await;
    watching.abort();
    outcome?;
    acknowledge(lab, &plugin, &request.key, &handle, 1).await
}
