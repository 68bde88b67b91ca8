//! Calls to remote drivers, translated between the wire and the words of `lifecycle`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::node_rpc::{self, ListRemote, RemoteListed};
use driver_host::{
    Bundle, BundleFile, Driver, EnsureRequest, FsIsolation, InstanceState, ListedInstance, Observation, Remote, RemoteError,
    RemoteHandle as WireHandle, TaskConfig, proto::build,
};
use lifecycle::remote::{
    node::{Answer, Call, Sighting},
    parts,
};
use model::{ClusterId, IncarnationId, Observed, RemoteInstance, SlotKey, TimestampNs, node::RemoteProvider, remote::RemoteHandle};
use tokio::sync::Semaphore;

use super::{
    Interest,
    fetched::{self, Fetched},
    plain::Plain,
    prepared::Prepared,
};
use crate::{
    alloc::{artifacts::Fetching, identities, machine::StartFailure, task_config, templates},
    context::{NodeContext, now_ns},
    dirs::AllocDirs,
    env::EnvInput,
    network::TaskNetwork,
};

/// How long a call waits for a driver whose plugin is coming up.
const DRIVER_PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn wire_handle(handle: &RemoteHandle) -> WireHandle {
    WireHandle { schema: handle.schema, data: handle.data.clone() }
}

fn model_handle(handle: WireHandle) -> RemoteHandle {
    RemoteHandle { schema: handle.schema, data: handle.data }
}

fn nanos(t: Option<&driver_host::proto::Timestamp>) -> TimestampNs {
    build::system_time(t)
        .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
        .and_then(|d| i64::try_from(d.as_nanos()).ok())
        .unwrap_or(0)
}

/// What an observation of the driver says.
pub(crate) fn sighting(o: &Observation) -> Sighting {
    let observed = match o.state() {
        InstanceState::Unknown => Observed::Unknown { since: now_ns(), why: o.reason.as_str().into() },
        InstanceState::Creating => Observed::Creating,
        InstanceState::Running => Observed::Running,
        InstanceState::Exited => Observed::Exited {
            code: o.exit_code,
            signal: o.signal,
            oom_killed: o.oom_killed,
            reason: o.reason.as_str().into(),
            at: match nanos(o.finished_at.as_ref()) {
                0 => now_ns(),
                at => at,
            },
        },
        InstanceState::Gone => Observed::Gone,
    };
    Sighting {
        observed,
        provider_id: o.provider_id.clone(),
        attributes: o.attributes.clone().into_iter().collect(),
        address: o.address.clone(),
        port_map: o.port_map.clone().into_iter().collect(),
        started_at: nanos(o.started_at.as_ref()),
    }
}

/// An instance with its handle, unless that is too large to be kept.
pub(crate) fn bounded(handle: RemoteHandle, sighting: Sighting) -> Answer {
    if handle.data.len() > model::remote::MAX_HANDLE_BYTES {
        return Answer::CouldNotAsk(format!(
            "the driver's handle has {} bytes, at most {} are kept",
            handle.data.len(),
            model::remote::MAX_HANDLE_BYTES
        ));
    }
    Answer::Instance { handle, sighting: Box::new(sighting) }
}

fn instance(handle: RemoteHandle, observed: Option<&Observation>) -> Answer {
    match observed {
        Some(o) if o.state() == InstanceState::Unknown => Answer::CouldNotAsk(o.reason.clone()),
        Some(o) => bounded(handle, sighting(o)),
        None => Answer::CouldNotAsk("the driver answered without an observation".into()),
    }
}

fn trouble(error: RemoteError) -> Answer {
    match error {
        RemoteError::Gone(_) => Answer::Absent,
        RemoteError::CouldNotAsk(why) => Answer::CouldNotAsk(why),
        RemoteError::WrongRequest(why) => Answer::WrongRequest(why),
        RemoteError::StaleEpoch { accepted, .. } => Answer::StaleEpoch { accepted: accepted.unwrap_or(0) },
    }
}

/// How a remote driver is spoken to.
pub(super) enum Reached<'a> {
    /// By the remote extension.
    Extension(Remote),
    /// By the plain driver protocol: there is no more.
    Plain(Plain<'a>),
}

/// The way to a remote driver whose plugin runs; else why it cannot be asked.
pub(super) fn way(ctx: &NodeContext, driver: Driver) -> Result<Reached<'_>, String> {
    if let Some(remote) = driver.remote() {
        return Ok(Reached::Extension(remote));
    }
    match driver.capabilities() {
        Some(c) if c.remote_tasks => Ok(Reached::Plain(Plain { tasks: &ctx.remote.plain, driver })),
        _ => Err(format!("driver {:?} runs no remote tasks, or its plugin is not running", driver.name())),
    }
}

pub(super) async fn remote_of<'a>(ctx: &'a NodeContext, name: &str) -> Result<Reached<'a>, String> {
    let driver = ctx.drivers.get(name, DRIVER_PATIENCE).await?;
    if tokio::time::timeout(DRIVER_PATIENCE, driver.wait_ready(0)).await.is_err() {
        return Err(format!("the plugin of driver {name:?} is not running"));
    }
    way(ctx, driver)
}

/// What a call is about, besides the call.
#[derive(Clone)]
pub(crate) struct About {
    pub(crate) ctx: Arc<NodeContext>,
    pub(crate) cluster: ClusterId,
    pub(crate) slot: SlotKey,
    pub(crate) driver: String,
}

/// Carries out one call other than Observe, which goes in batches.
pub(crate) async fn call(about: &About, call: Call, prepared: Option<Result<Arc<Prepared>, String>>) -> Answer {
    let remote = match remote_of(&about.ctx, &about.driver).await {
        Ok(remote) => remote,
        // Nothing was asked and nothing was created.
        Err(why) => return Answer::NotSent(why),
    };
    if !call.mutates() {
        return match remote {
            Reached::Extension(remote) => look(about, &remote, call).await,
            Reached::Plain(plain) => match call {
                Call::Observe { handle } => plain.look(&handle).await,
                _ => Answer::CouldNotAsk("the plain driver protocol has no search by key".into()),
            },
        };
    }
    // Rule 3, once more right before the call, and again while it lasts: what outlasts the lease is given up, its outcome is then unknown.
    if !about.ctx.lease.held() {
        return Answer::NotSent("the lease has ended before the call".into());
    }
    let lease = about.ctx.lease.clone();
    let mutation = async {
        match &remote {
            Reached::Extension(remote) => mutate(about, remote, call, prepared).await,
            Reached::Plain(plain) => mutate_plainly(plain, &about.slot, call, prepared).await,
        }
    };
    tokio::select! {
        answer = mutation => answer,
        () = lease.lost() => Answer::CouldNotAsk("the lease ended during the call".into()),
    }
}

async fn look(about: &About, remote: &Remote, call: Call) -> Answer {
    let owner = about.cluster.to_string();
    match call {
        Call::Find { incarnation } => {
            let provider = about.ctx.drivers.provider(&about.driver).unwrap_or_default();
            if provider.find {
                return match remote.find(&incarnation.to_string(), &owner).await {
                    Ok((handle, observed)) => instance(model_handle(handle), Some(&observed)),
                    Err(e) => trouble(e),
                };
            }
            search(remote, &owner, incarnation).await
        }
        Call::Observe { handle } => match observe(remote, std::slice::from_ref(&handle)).await.pop() {
            Some(answer) => answer,
            None => Answer::CouldNotAsk("the driver answered without an observation".into()),
        },
        Call::Seal { .. } | Call::Ensure { .. } | Call::Stop { .. } | Call::Acknowledge { .. } => {
            Answer::CouldNotAsk("not a looking call".into())
        }
    }
}

/// Goes through everything of this cluster; absent only after the last page.
async fn search(remote: &Remote, owner: &str, incarnation: IncarnationId) -> Answer {
    let key = incarnation.to_string();
    let (mut token, mut missing) = (String::new(), Vec::new());
    loop {
        let page = match remote.list(owner, &token, 200).await {
            Ok(page) => page,
            Err(RemoteError::Gone(why)) => return Answer::CouldNotAsk(why),
            Err(e) => return trouble(e),
        };
        if let Some(found) = page.instances.into_iter().find(|i| i.key == key) {
            let Some(handle) = found.handle else {
                return Answer::CouldNotAsk("the driver listed an instance without a handle".into());
            };
            return instance(model_handle(handle), found.observed.as_ref());
        }
        if !page.incomplete.is_empty() {
            missing.push(page.incomplete);
        }
        if page.next_page_token.is_empty() {
            return if missing.is_empty() { Answer::Absent } else { Answer::CouldNotAsk(missing.join("; ")) };
        }
        token = page.next_page_token;
    }
}

/// Instances of one page of a listing.
const PAGE: u32 = 200;

/// One page of what the cluster has at a provider.
pub(crate) async fn list_page(ctx: &NodeContext, cluster: ClusterId, ask: ListRemote) -> RemoteListed {
    let failed = |error: String| RemoteListed { seq: ask.seq, error, ..RemoteListed::default() };
    let reached = ctx.drivers.provider(&ask.driver).map(|p| p.provider);
    if reached.as_deref() != Some(&*ask.provider) {
        let reached = reached.map_or_else(|| "none".to_owned(), |p| format!("{p:?}"));
        return failed(format!("driver {:?} of this node reaches provider {reached}, not {:?}", ask.driver, ask.provider));
    }
    let remote = match remote_of(ctx, &ask.driver).await {
        Ok(Reached::Extension(remote)) => remote,
        Ok(Reached::Plain(_)) => return failed("the plain driver protocol has no listing".to_owned()),
        Err(why) => return failed(why),
    };
    let owner = cluster.to_string();
    match remote.list(&owner, &ask.page_token, PAGE).await {
        Ok(page) => RemoteListed {
            seq: ask.seq,
            // Foreign objects are never touched, whatever a driver lists.
            instances_json: page.instances.into_iter().filter(|i| i.owner == owner).map(|i| node_rpc::to_json(&listed(i))).collect(),
            next_page_token: page.next_page_token,
            incomplete: page.incomplete,
            error: String::new(),
        },
        Err(e) => failed(e.to_string()),
    }
}

fn listed(i: ListedInstance) -> RemoteInstance {
    let seen = i.observed.as_ref().map(sighting).unwrap_or_else(|| Sighting {
        observed: Observed::Unknown { since: now_ns(), why: "listed without an observation".into() },
        ..Sighting::default()
    });
    let Sighting { observed, provider_id, attributes, address, port_map, started_at } = seen;
    let handle = i.handle.map(model_handle);
    RemoteInstance { key: i.key, slot: i.slot, epoch: i.epoch, handle, observed, provider_id, attributes, address, port_map, started_at }
}

/// One observation for each handle.
pub(crate) async fn observe(remote: &Remote, handles: &[RemoteHandle]) -> Vec<Answer> {
    match remote.observe(handles.iter().map(wire_handle).collect()).await {
        Ok(seen) if seen.len() == handles.len() => handles
            .iter()
            .zip(&seen)
            .map(|(handle, o)| match o.state() {
                InstanceState::Gone => Answer::Absent,
                _ => instance(handle.clone(), Some(o)),
            })
            .collect(),
        Ok(seen) => {
            let why = format!("the driver answered {} observations to {} questions", seen.len(), handles.len());
            handles.iter().map(|_| Answer::CouldNotAsk(why.clone())).collect()
        }
        // The whole question failed: that says nothing about any one instance.
        Err(RemoteError::Gone(why)) => handles.iter().map(|_| Answer::CouldNotAsk(why.clone())).collect(),
        Err(e) => handles.iter().map(|_| trouble(e.clone())).collect(),
    }
}

/// A batch of observations through a driver by name.
pub(crate) async fn observe_by_name(ctx: &NodeContext, driver: &str, handles: &[RemoteHandle]) -> Vec<Answer> {
    match remote_of(ctx, driver).await {
        Ok(Reached::Extension(remote)) => observe(&remote, handles).await,
        Ok(Reached::Plain(plain)) => futures::future::join_all(handles.iter().map(|handle| plain.look(handle))).await,
        Err(why) => handles.iter().map(|_| Answer::CouldNotAsk(why.clone())).collect(),
    }
}

/// The driver's process need not know the instance any more. Drivers of the extension are told nothing: they remember nothing.
pub(crate) async fn let_go(ctx: &NodeContext, driver: &str, handle: &RemoteHandle) {
    if let Some(driver) = ctx.drivers.now(driver)
        && let Ok(Reached::Plain(plain)) = way(ctx, driver)
    {
        plain.let_go(handle).await;
    }
}

/// What the allocation has prepared, or the answer that its absence is. What is kept stays, for the case that it has to be sent again.
async fn ready(prepared: Option<Result<Arc<Prepared>, String>>) -> Result<(TaskConfig, Bundle), Answer> {
    match prepared {
        Some(Ok(prepared)) => {
            let unpacked = if prepared.fetched_bytes() == 0 {
                prepared.unpack()
            } else {
                tokio::task::spawn_blocking(move || prepared.unpack()).await.unwrap_or_else(|e| Err(e.to_string()))
            };
            unpacked.map_err(|why| Answer::NotSent(format!("what was prepared cannot be read: {why}")))
        }
        // The job's own fault, found here: the provider was not asked and nothing was created.
        Some(Err(why)) => Err(Answer::WrongRequest(why)),
        None => Err(Answer::NotSent("the preparation was lost, it is done again".into())),
    }
}

async fn mutate_plainly(plain: &Plain<'_>, slot: &SlotKey, call: Call, prepared: Option<Result<Arc<Prepared>, String>>) -> Answer {
    match call {
        Call::Ensure { .. } => match ready(prepared).await {
            Ok((task, bundle)) => plain.start(slot, task, &bundle).await,
            Err(answer) => answer,
        },
        Call::Stop { handle, signal, timeout, .. } => plain.stop(&handle, &signal, timeout).await,
        Call::Acknowledge { handle, .. } => plain.forget(&handle).await,
        Call::Seal { .. } | Call::Find { .. } | Call::Observe { .. } => {
            Answer::CouldNotAsk("the plain driver protocol has no such call".into())
        }
    }
}

async fn mutate(about: &About, remote: &Remote, call: Call, prepared: Option<Result<Arc<Prepared>, String>>) -> Answer {
    match call {
        Call::Ensure { incarnation, epoch, first } => {
            let (task, bundle) = match ready(prepared).await {
                Ok(ready) => ready,
                Err(answer) => return answer,
            };
            let request = EnsureRequest {
                key: incarnation.to_string(),
                epoch,
                owner: about.cluster.to_string(),
                slot: about.slot.to_string(),
                task: Some(task),
                bundle: Some(bundle),
                first,
            };
            match remote.ensure(request).await {
                Ok(answer) => match answer.handle {
                    Some(handle) => {
                        let handle = model_handle(handle);
                        match answer.observed.as_ref().filter(|o| o.state() != InstanceState::Unknown) {
                            Some(o) => instance(handle, Some(o)),
                            None => Answer::Instance {
                                handle,
                                sighting: Box::new(Sighting { observed: Observed::Creating, ..Sighting::default() }),
                            },
                        }
                    }
                    None => Answer::CouldNotAsk("the driver answered a create without a handle".into()),
                },
                Err(RemoteError::Gone(why)) => Answer::CouldNotAsk(why),
                Err(e) => trouble(e),
            }
        }
        Call::Stop { handle, epoch, signal, timeout } => match remote.stop(wire_handle(&handle), epoch, &signal, timeout.to_std()).await {
            Ok(observed) => match observed.state() {
                InstanceState::Gone => Answer::Absent,
                _ => instance(handle, Some(&observed)),
            },
            Err(e) => trouble(e),
        },
        Call::Acknowledge { handle, epoch } => match remote.acknowledge(wire_handle(&handle), epoch).await {
            Ok(()) | Err(RemoteError::Gone(_)) => Answer::Absent,
            Err(e) => trouble(e),
        },
        Call::Seal { incarnation, epoch } => {
            match remote.seal(&incarnation.to_string(), epoch, &about.cluster.to_string()).await {
                Ok(None) => Answer::Absent,
                // It is there, and the order's stop goes on with its handle.
                Ok(Some((handle, observed))) => instance(model_handle(handle), Some(&observed)),
                Err(e) => trouble(e),
            }
        }
        Call::Find { .. } | Call::Observe { .. } => Answer::CouldNotAsk("not a changing call".into()),
    }
}

/// What one attempt of a preparation leaves for the next one.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// People have read that artifacts are fetched.
    told: bool,
    /// They are there, and something else was not.
    fetched: Option<Fetched>,
}

impl Progress {
    /// Something else has to be waited for: others may fetch theirs meanwhile.
    pub(crate) fn wait(&self) {
        if let Some(fetched) = &self.fetched {
            fetched.end_turn();
        }
    }
}

/// Node-local preparation for a create: the task's configuration and the files that travel with it. Whoever has artifacts to fetch waits for a turn.
pub(crate) async fn prepare(
    ctx: Arc<NodeContext>,
    interest: Interest,
    incarnation: IncarnationId,
    fetches: Arc<Semaphore>,
    progress: &mut Progress,
) -> Result<Prepared, Preparation> {
    let Interest { alloc, job, task, commands, .. } = interest;
    let (Some(group), Some(spec)) = (job.group(&alloc.task_group), job.group(&alloc.task_group).and_then(|g| g.task(&task))) else {
        return Err(Preparation::Refused("the job has no such task".into()));
    };
    if let Some(why) = task_config::refused(spec) {
        return Err(Preparation::Refused(why));
    }
    if let Some(network) = group.networks.first() {
        let refuse = |what: &str| {
            let why = format!("driver {:?} runs tasks that are not in the network of their group", spec.driver);
            Err(Preparation::Refused(format!("{why}: {what} cannot be honoured; use mode \"host\" and what the runtime has of its own")))
        };
        if !matches!(network.mode.as_str(), "" | "host") {
            return refuse(&format!("network mode {:?}", network.mode));
        }
        if network.dns.is_some() {
            return refuse("network.dns");
        }
    }
    let driver = ctx.drivers.get(&spec.driver, Duration::from_secs(20)).await.map_err(Preparation::Later)?;
    if tokio::time::timeout(Duration::from_secs(20), driver.wait_ready(0)).await.is_err() {
        return Err(Preparation::Later(format!("driver {:?} has not become ready", spec.driver)));
    }
    let capabilities = driver.capabilities().unwrap_or_default();
    // Refused at submission already, unless the job came before any node could tell.
    let provider = ctx.drivers.provider(&spec.driver).unwrap_or_default();
    let undeliverable = parts::undeliverable(spec, &RemoteProvider { no_signals: !capabilities.send_signals, ..provider });
    if !undeliverable.is_empty() {
        return Err(Preparation::Refused(undeliverable.join("; ")));
    }
    let node = ctx.node();
    let run = format!("{}/{}/{}", alloc.id, task, incarnation.short());
    let nothing = BTreeMap::new();
    let view = task_config::path_view(&capabilities);
    let alloc_dirs = AllocDirs::new(&ctx.config.alloc_dir, alloc.id);
    let dirs = alloc_dirs.task(&task);
    let vars = crate::env::build(&EnvInput {
        alloc: &alloc,
        job: &job,
        group,
        task: spec,
        node: &node,
        region: &ctx.config.region,
        dirs: &dirs,
        view,
        inherited: &nothing,
    });
    let services = templates::TaskServices::new(ctx.services.clone(), alloc.namespace.clone(), ctx.config.region.clone());
    let unbundled = |unbundled| match unbundled {
        templates::Unbundled::Refused(why) => Preparation::Refused(why),
        templates::Unbundled::Later(why) => Preparation::Later(why),
    };
    if !spec.artifacts.is_empty() && progress.fetched.is_none() {
        let lost = |e| Preparation::Later(format!("wait for a turn to fetch artifacts: {e}"));
        let turn = fetches.acquire_owned().await.map_err(lost)?;
        let tell = (!std::mem::replace(&mut progress.told, true)).then_some(&commands);
        let isolation = FsIsolation::Image;
        let fetching =
            Fetching { ctx: &ctx, alloc: &alloc, job: &job, group, task: spec, dirs: alloc_dirs, isolation, travels: true, tell };
        progress.fetched = Some(fetched::fetch(fetching, &run, turn).await?);
    }
    // After what takes long: tokens end.
    let tokens = identities::bundle(&ctx, alloc.id, spec).await.map_err(unbundled)?;
    let given = identities::TokenVariables::Given(tokens.variables.clone());
    let data = templates::TaskData { node: node.clone(), region: ctx.config.region.clone(), tokens: given, services };
    let bundled = templates::bundle(spec, &ctx.config.templates, &dirs, view, &vars, data).await;
    let (mut files, mut template_env) = bundled.map_err(unbundled)?;
    files.extend(tokens.files);
    for (name, value) in tokens.variables {
        template_env.entry(name).or_insert(value);
    }
    let (mut config, _) = task_config::build(&task_config::Input {
        config: &ctx.config,
        node: &node,
        cpu: &ctx.cpu,
        // The agent's own environment means nothing over there.
        inherited: &nothing,
        alloc: &alloc,
        job: &job,
        group,
        task: spec,
        run: &run,
        driver: &driver,
        capabilities: &capabilities,
        cgroup: None,
        template_env: &template_env,
        network: &TaskNetwork::default(),
        elsewhere: true,
    })
    .map_err(|failure| match failure {
        StartFailure::Validation(why)
        | StartFailure::Setup { why, .. }
        | StartFailure::Artifact { why, .. }
        | StartFailure::Driver { why, .. } => Preparation::Refused(why),
        StartFailure::Interrupted => Preparation::Later("the preparation was interrupted".into()),
    })?;
    // Paths of this node would be lies at the provider.
    config.alloc_dir = String::new();
    config.stdout_path = String::new();
    config.stderr_path = String::new();
    if let Some(log) = &mut config.drover_log {
        log.dir = String::new();
    }
    if let Some(payload) = &spec.dispatch_payload {
        use base64::{Engine, prelude::BASE64_STANDARD};
        let data = BASE64_STANDARD
            .decode(job.payload.as_deref().unwrap_or_default())
            .map_err(|e| Preparation::Refused(format!("the dispatch payload is not base64: {e}")))?;
        files.push(BundleFile { path: format!("local/{}", payload.file), mode: 0o644, data });
    }
    Prepared::pack(&config, files, progress.fetched.take(), tokens.due).map_err(Preparation::Refused)
}

/// Why a preparation has no result.
#[derive(Debug)]
pub(crate) enum Preparation {
    /// It will never have one.
    Refused(String),
    /// It is tried again.
    Later(String),
}
