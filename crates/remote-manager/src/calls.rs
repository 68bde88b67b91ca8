//! Calls to remote drivers, translated between the wire and the types of `lifecycle`.

use std::{sync::Arc, time::Duration};

use api::node_rpc::{self, ListRemote, RemoteListed};
use driver_host::{
    Bundle, Driver, EnsureRequest, FindRequest, InstanceState, ListedInstance, Remote, RemoteError, SealRequest,
    TaskConfig,
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use host::clock::now_ns;
use lifecycle::remote::node::{Answer, Call, Sighting};
use model::{
    ClusterId, DesiredRemote, IncarnationId, Observed, RemoteInstance, RemoteOrder, SlotKey,
    remote::{RemoteHandle, RemoteRole},
};
use node_record::lease::Lease;

use crate::{
    attached::PlainTasks,
    plain::Plain,
    ports::Drivers,
    prepared::Prepared,
    wire::{instance, intended, model_handle, sighting, trouble, wire_handle},
};
/// How long a call waits for a driver whose plugin is starting.
const DRIVER_PATIENCE: Duration = Duration::from_secs(10);

/// The protocol of a remote driver.
pub(crate) enum Reached<'a> {
    /// The remote extension.
    Extension(Remote),
    /// The plain driver protocol: the driver has no extension.
    Plain(Plain<'a>),
}

/// Access to remote drivers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Providers {
    pub(crate) drivers: Arc<dyn Drivers>,
    pub(crate) plain: Arc<PlainTasks>,
}

/// The protocol of a remote driver whose plugin runs; else why it cannot be asked.
pub(crate) fn way(providers: &Providers, driver: Driver) -> Result<Reached<'_>, String> {
    if let Some(remote) = driver.remote() {
        return Ok(Reached::Extension(remote));
    }
    match driver.capabilities() {
        Some(c) if c.remote_tasks => Ok(Reached::Plain(Plain { tasks: &providers.plain, driver })),
        _ => Err(format!("driver {:?} runs no remote tasks, or its plugin is not running", driver.name())),
    }
}

pub(crate) async fn remote_of<'a>(providers: &'a Providers, name: &str) -> Result<Reached<'a>, String> {
    let driver = providers.drivers.get(name, DRIVER_PATIENCE).await?;
    if tokio::time::timeout(DRIVER_PATIENCE, driver.wait_ready(0)).await.is_err() {
        return Err(format!("the plugin of driver {name:?} is not running"));
    }
    way(providers, driver)
}

/// The context of a call.
#[derive(Clone)]
pub(crate) struct About {
    pub(crate) providers: Providers,
    pub(crate) lease: Lease,
    pub(crate) cluster: ClusterId,
    pub(crate) slot: SlotKey,
    pub(crate) driver: String,
    pub(crate) kept: Kept,
}

/// Facts that the order in force adds to a call by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The intent of the create, as the servers have stored it.
    intent: Vec<u8>,
    epoch: u64,
    /// The order wants the instance here: if there is none, a create with the same key follows.
    wanted: bool,
}

impl Kept {
    pub(crate) fn of(order: Option<&RemoteOrder>) -> Self {
        order.map_or_else(Self::default, |order| Self {
            intent: order.intent.clone().unwrap_or_default().0,
            epoch: order.epoch,
            wanted: order.role == RemoteRole::Manage && order.desired == DesiredRemote::Run && !order.acknowledge,
        })
    }
}

/// Carries out one call other than Observe, which goes in batches.
pub(crate) async fn call(about: &About, call: Call, prepared: Option<Result<Arc<Prepared>, String>>) -> Answer {
    let remote = match remote_of(&about.providers, &about.driver).await {
        Ok(remote) => remote,
        // The driver was not asked and nothing was created.
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
    // Rule 3, checked once more right before the call and then during it. A call that outlasts the lease is given up,
    // and its outcome is unknown.
    if !about.lease.held() {
        return Answer::NotSent("the lease has ended before the call".into());
    }
    let lease = about.lease.clone();
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
            let provider = about.providers.drivers.provider(&about.driver).unwrap_or_default();
            if provider.find {
                let Kept { intent, epoch, wanted } = about.kept.clone();
                let request = FindRequest {
                    key: incarnation.to_string(),
                    owner,
                    intent,
                    epoch,
                    create_follows: wanted && provider.keyed_create,
                };
                return match remote.look_up(request).await {
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

/// Searches all instances of this cluster; absent only after the last page.
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

/// One page of the instances of this cluster at a provider, or of all clusters there.
pub(crate) async fn list_page(providers: &Providers, cluster: ClusterId, ask: ListRemote) -> RemoteListed {
    let failed = |error: String| RemoteListed { seq: ask.seq, error, ..RemoteListed::default() };
    let known = providers.drivers.provider(&ask.driver);
    if ask.all_owners && !known.as_ref().is_some_and(|p| p.list_owners) {
        return failed(format!("driver {:?} lists the instances of one owner only", ask.driver));
    }
    let reached = known.map(|p| p.provider);
    if reached.as_deref() != Some(&*ask.provider) {
        let reached = reached.map_or_else(|| "none".to_owned(), |p| format!("{p:?}"));
        return failed(format!(
            "driver {:?} of this node reaches provider {reached}, not {:?}",
            ask.driver, ask.provider
        ));
    }
    let remote = match remote_of(providers, &ask.driver).await {
        Ok(Reached::Extension(remote)) => remote,
        Ok(Reached::Plain(_)) => return failed("the plain driver protocol has no listing".to_owned()),
        Err(why) => return failed(why),
    };
    let own = cluster.to_string();
    let asked = if ask.all_owners { "" } else { &*own };
    match remote.list(asked, &ask.page_token, PAGE).await {
        Ok(page) => RemoteListed {
            seq: ask.seq,
            // Foreign objects are never touched, whatever a driver lists. They have a label, and appear only on
            // request.
            instances_json: page
                .instances
                .into_iter()
                .filter(|i| i.owner == own || (ask.all_owners && !i.owner.is_empty()))
                .map(|i| node_rpc::to_json(&listed(i, &own)))
                .collect(),
            next_page_token: page.next_page_token,
            incomplete: page.incomplete,
            error: String::new(),
        },
        Err(e) => failed(e.to_string()),
    }
}

fn listed(i: ListedInstance, own: &str) -> RemoteInstance {
    let seen = i.observed.as_ref().map(sighting).unwrap_or_else(|| Sighting {
        observed: Observed::Unknown { since: now_ns(), why: "listed without an observation".into() },
        ..Sighting::default()
    });
    let Sighting { observed, provider_id, attributes, address, port_map, started_at, waiting: _ } = seen;
    let handle = i.handle.map(model_handle);
    let owner = if i.owner == own { String::new() } else { i.owner };
    RemoteInstance {
        key: i.key,
        slot: i.slot,
        owner,
        epoch: i.epoch,
        handle,
        observed,
        provider_id,
        attributes: attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(),
        address,
        port_map,
        started_at,
    }
}

/// One answer for each handle, in their order.
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
        // The whole call failed: that says nothing about any one instance.
        Err(RemoteError::Gone(why)) => handles.iter().map(|_| Answer::CouldNotAsk(why.clone())).collect(),
        Err(e) => handles.iter().map(|_| trouble(e.clone())).collect(),
    }
}

/// Observes a batch through a driver by name. Reports each answer, with its handle, as soon as it is there. With a
/// driver that observes one instance at a time, a slow one delays no other.
pub(crate) async fn observe_by_name(
    providers: &Providers,
    driver: &str,
    handles: &[RemoteHandle],
    mut tell: impl FnMut(usize, Answer),
) {
    let answers = match remote_of(providers, driver).await {
        Ok(Reached::Extension(remote)) => observe(&remote, handles).await,
        Ok(Reached::Plain(plain)) => {
            let look = async |(at, handle)| (at, plain.look(handle).await);
            let mut looks: FuturesUnordered<_> = handles.iter().enumerate().map(look).collect();
            while let Some((at, answer)) = looks.next().await {
                tell(at, answer);
            }
            return;
        }
        Err(why) => handles.iter().map(|_| Answer::CouldNotAsk(why.clone())).collect(),
    };
    answers.into_iter().enumerate().for_each(|(at, answer)| tell(at, answer));
}

/// Lets the driver's process forget the instance. Drivers of the extension keep no state, so they get no call.
pub(crate) async fn let_go(providers: &Providers, driver: &str, handle: &RemoteHandle) {
    if let Some(driver) = providers.drivers.now(driver)
        && let Ok(Reached::Plain(plain)) = way(providers, driver)
    {
        plain.let_go(handle).await;
    }
}

/// The allocation's preparation, or the answer that follows from its absence. Keeps it for another attempt.
async fn ready(prepared: Option<Result<Arc<Prepared>, String>>) -> Result<(TaskConfig, Bundle), Answer> {
    match prepared {
        Some(Ok(prepared)) => {
            let unpacked = if prepared.fetched_bytes() == 0 {
                prepared.unpack()
            } else {
                blocking::spawn(move || prepared.unpack()).await.unwrap_or_else(|e| Err(e.to_string()))
            };
            unpacked.map_err(|why| Answer::NotSent(format!("what was prepared cannot be read: {why}")))
        }
        // The job's own fault, found here: the provider was not asked and nothing was created.
        Some(Err(why)) => Err(Answer::WrongRequest(why)),
        None => Err(Answer::NotSent("the preparation was lost, it is done again".into())),
    }
}

async fn mutate_plainly(
    plain: &Plain<'_>,
    slot: &SlotKey,
    call: Call,
    prepared: Option<Result<Arc<Prepared>, String>>,
) -> Answer {
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
                intent: about.kept.intent.clone(),
                keeps_intent: true,
            };
            match remote.ensure(request).await {
                Ok(answer) if answer.handle.is_none() && !answer.intent.is_empty() => intended(answer.intent),
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
        Call::Stop { handle, epoch, signal, timeout } => {
            match remote.stop(wire_handle(&handle), epoch, &signal, timeout.to_std()).await {
                Ok(observed) => match observed.state() {
                    InstanceState::Gone => Answer::Absent,
                    _ => instance(handle, Some(&observed)),
                },
                Err(e) => trouble(e),
            }
        }
        Call::Acknowledge { handle, epoch } => match remote.acknowledge(wire_handle(&handle), epoch).await {
            Ok(()) | Err(RemoteError::Gone(_)) => Answer::Absent,
            Err(e) => trouble(e),
        },
        Call::Seal { incarnation, epoch } => {
            let request = SealRequest {
                key: incarnation.to_string(),
                epoch,
                owner: about.cluster.to_string(),
                intent: about.kept.intent.clone(),
            };
            match remote.seal(request).await {
                Ok(None) => Answer::Absent,
                // The instance exists, and the order's stop continues with its handle.
                Ok(Some((handle, observed))) => instance(model_handle(handle), Some(&observed)),
                Err(e) => trouble(e),
            }
        }
        Call::Find { .. } | Call::Observe { .. } => Answer::CouldNotAsk("not a changing call".into()),
    }
}
