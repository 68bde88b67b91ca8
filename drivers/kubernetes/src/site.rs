//! One namespace as this node uses it: pods by key and by handle, creates, ends, acknowledgements. What ends a key
//! without an instance is in `seal.rs`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use driver_sdk::{
    DriverState, Ensure, Ensured, Instance, InstanceState, Observation, Page, RemoteError, RemoteHandle, StopTask,
};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};

use crate::answer::{Answer, Trouble};
use crate::api::{Api, PAGE};
use crate::cluster::Intent;
use crate::config::PluginConfig;
use crate::look::{self, observation};
use crate::marks::{self, Marks};
use crate::options::TaskOptions;
use crate::plan;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tries of a change that somebody else gets in the way of.
pub(crate) const TRIES: usize = 8;
/// How often a stop looks whether the pod has ended.
const STOP_LOOK: Duration = Duration::from_millis(400);
/// What a kubelet may need beyond the grace period.
const STOP_SLACK: Duration = Duration::from_secs(60);
/// Handles that are always looked at one by one.
const FEW: usize = 8;
/// A node that takes over thousands asks for them in parts, all at the same time.
const GATHER: Duration = Duration::from_millis(10);
/// A listing of so many pods costs as much as a look at one.
const LISTED_FOR_A_LOOK: usize = 8;
/// Tries of a listing whose pages expire while it is read.
const LISTINGS: usize = 3;
/// Looks at single pods at the same time: each is a connection of its own, and the API server has other clients.
const LOOKS: usize = 16;

/// The token that finds an instance again. Name and UID are its identity: the same name with another UID is another
/// instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandleV1 {
    /// UID of the cluster.
    pub(crate) cluster: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) key: String,
    pub(crate) owner: String,
}

impl DriverState for HandleV1 {
    const VERSION: u16 = 1;
}

/// The namespace and what this node knows of it.
pub(crate) struct Site {
    pub(crate) api: Api,
    pub(crate) config: PluginConfig,
    /// UID of the cluster.
    pub(crate) cluster: String,
    /// Whether this node's account may read that UID.
    pub(crate) verified: bool,
    /// UIDs of pods whose end this process has seen.
    ended: Mutex<HashSet<String>>,
    /// About how many pods there are, to choose between a listing and looks one by one.
    pub(crate) present: AtomicUsize,
    /// Requests that wait for the next look at many.
    asked: Mutex<Vec<Asked>>,
    /// The turn of such a look: what is asked for meanwhile shares the next one.
    looking: Semaphore,
}

/// A request for observations of many.
struct Asked {
    handles: Vec<HandleV1>,
    answer: oneshot::Sender<Vec<Observation>>,
}

/// One operation of a JSON patch on an annotation.
pub(crate) fn annotation(operation: &str, name: &str, value: &str) -> Value {
    json!({"op": operation, "path": format!("/metadata/annotations/{}", name.replace('/', "~1")), "value": value})
}

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Why nothing is made with a key any more.
pub(crate) fn sealed(marks: &Marks) -> RemoteError {
    let done = marks.done.as_deref().unwrap_or_default();
    RemoteError::sealed(format!("the key is {done}; a new start needs a new key"))
}

/// Selects what this owner has and is not done with; all owners for an empty one.
pub(crate) fn selector(owner: &str) -> String {
    let owner =
        if owner.is_empty() { marks::OWNER.to_owned() } else { format!("{}={}", marks::OWNER, marks::label(owner)) };
    format!("{owner},!{}", marks::DONE)
}

impl Site {
    pub(crate) fn new(api: Api, config: PluginConfig, cluster: String, verified: bool) -> Self {
        let (ended, present) = (Mutex::default(), AtomicUsize::new(0));
        let (asked, looking) = (Mutex::default(), Semaphore::new(1));
        Self { api, config, cluster, verified, ended, present, asked, looking }
    }

    pub(crate) fn provider(&self) -> String {
        crate::cluster::provider(&self.cluster, &self.api.namespace)
    }

    /// The address may lead to another cluster than it did: then nothing that it says of absence counts.
    pub(crate) async fn same_cluster(&self) -> Answer<()> {
        if !self.verified {
            return Ok(());
        }
        let here = self.api.namespace_uid("kube-system").await?;
        if here == self.cluster {
            return Ok(());
        }
        Err(RemoteError::could_not_ask(format!(
            "the address leads to the cluster {here} now, this node manages {}; run `drover node drivers reload` if \
                that is meant",
            self.cluster
        )))
    }

    fn place(&self) -> Intent {
        Intent { cluster: self.cluster.clone(), namespace: self.api.namespace.clone() }
    }

    /// Whether creates of the key went here, as far as that is kept.
    pub(crate) fn goes_here(&self, kept: &[u8]) -> Answer<()> {
        match Intent::read(kept)? {
            Some(went) if went != self.place() => Err(RemoteError::could_not_ask(format!(
                "a create of the task may have been sent to {}, this node reaches {}: let a node reach that cluster, \
                    or forget the task if that cluster is lost for good (drover remote forget)",
                crate::cluster::provider(&went.cluster, &went.namespace),
                self.provider()
            ))),
            _ => Ok(()),
        }
    }

    /// What is to be kept before the create of this request is sent; `None` when it is kept already.
    pub(crate) fn intent(&self, request: &Ensure) -> Answer<Option<Vec<u8>>> {
        // Of what was never sent nothing can be there.
        if !request.intent.is_empty() && !request.first {
            return self.goes_here(&request.intent).map(|()| None);
        }
        match Intent::read(&request.intent)? {
            Some(kept) if kept == self.place() => Ok(None),
            _ => self.place().write().map(Some),
        }
    }

    pub(crate) fn resolve(&self, handle: &RemoteHandle) -> Answer<HandleV1> {
        let handle = HandleV1::from_remote_handle(handle)?;
        if (handle.cluster.as_str(), handle.namespace.as_str()) == (self.cluster.as_str(), self.api.namespace.as_str())
        {
            return Ok(handle);
        }
        Err(RemoteError::could_not_ask(format!(
            "the instance lives in {}, this node reaches {}",
            crate::cluster::provider(&handle.cluster, &handle.namespace),
            self.provider()
        )))
    }

    pub(crate) fn handle(&self, pod: &Pod, marks: &Marks) -> HandleV1 {
        HandleV1 {
            cluster: self.cluster.clone(),
            namespace: self.api.namespace.clone(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid(pod).to_owned(),
            key: marks.key.clone(),
            owner: marks.owner.clone(),
        }
    }

    /// What a pod says now.
    pub(crate) fn see(&self, pod: &Pod, marks: &Marks) -> Observation {
        let seen = observation(pod, marks, SystemTime::now());
        if seen.state == InstanceState::Exited {
            lock(&self.ended).insert(uid(pod).to_owned());
        }
        seen
    }

    /// The marks of a pod that must be of this key and owner.
    pub(crate) fn ours(pod: &Pod, key: &str, owner: &str) -> Answer<Marks> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        match Marks::of(pod) {
            Some(marks) if marks.key == key && marks.owner == owner => Ok(marks),
            Some(marks) => Err(RemoteError::wrong_request(format!(
                "the pod {name} is the cluster {:?}'s and of the key {:?}; it is not touched",
                marks.owner, marks.key
            ))),
            None => Err(RemoteError::wrong_request(format!(
                "a pod {name} exists that this driver did not make; it is not touched"
            ))),
        }
    }

    /// The pod of a handle; `None` when the store has no pod of that name and UID.
    pub(crate) async fn look_at(&self, handle: &HandleV1) -> Answer<Option<(Pod, Marks)>> {
        let Some(pod) = self.api.pod(&handle.name).await?.filter(|pod| uid(pod) == handle.uid) else {
            return Ok(None);
        };
        let marks = Self::ours(&pod, &handle.key, &handle.owner)?;
        Ok(Some((pod, marks)))
    }

    /// What to say of a pod that the store does not have.
    pub(crate) async fn missing(&self, handle: &HandleV1) -> Observation {
        if let Err(why) = self.same_cluster().await {
            return Observation::unknown(handle.key.as_str(), why);
        }
        if lock(&self.ended).contains(&handle.uid) {
            let reason = "the pod has ended and was removed".to_owned();
            return Observation {
                key: handle.key.clone(),
                state: InstanceState::Gone,
                reason,
                ..Observation::default()
            };
        }
        Observation::unknown(
            handle.key.as_str(),
            format!(
                "the pod {}/{} was removed although the driver held it, or the store was restored from a backup. \
                    Whether its container runs is not known: look at its node, then `drover remote forget`",
                handle.namespace, handle.name
            ),
        )
    }

    /// No change under an epoch that is older than one that was used.
    pub(crate) fn accept(marks: &Marks, epoch: u64) -> Answer<()> {
        if marks.epoch > epoch {
            return Err(RemoteError::StaleEpoch { given: epoch, accepted: marks.epoch });
        }
        Ok(())
    }

    /// Changes a pod under an epoch, in one request that the server refuses if the epoch or the pod is another by then.
    pub(crate) async fn change(
        &self,
        mut pod: Pod,
        mut marks: Marks,
        epoch: u64,
        operations: impl Fn(&Pod) -> Vec<Value>,
    ) -> Answer<(Pod, Marks)> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let mut refused = String::new();
        for _ in 0..TRIES {
            Self::accept(&marks, epoch)?;
            let mut all = vec![
                json!({"op": "test", "path": "/metadata/uid", "value": uid(&pod)}),
                annotation("test", marks::EPOCH, &marks.epoch.to_string()),
                annotation("replace", marks::EPOCH, &epoch.to_string()),
            ];
            let wanted = operations(&pod);
            if wanted.is_empty() && marks.epoch == epoch {
                return Ok((pod, marks));
            }
            all.extend(wanted);
            match self.api.patch_pod(&name, &all).await {
                Ok(changed) => {
                    let marks = Self::ours(&changed, &marks.key, &marks.owner)?;
                    return Ok((changed, marks));
                }
                // A test does not hold, or the object would not be valid: looking again tells which.
                Err(Trouble::Invalid(why)) => refused = why,
                Err(Trouble::Moved) => {}
                Err(other) => return Err(other.into()),
            }
            let before = (uid(&pod).to_owned(), pod.metadata.resource_version.clone());
            let Some(now) = self.api.pod(&name).await? else {
                return Err(RemoteError::could_not_ask(format!("the pod {name} was removed meanwhile")));
            };
            if uid(&now) != before.0 {
                return Err(RemoteError::could_not_ask(format!("the pod {name} is another one by now")));
            }
            if now.metadata.resource_version == before.1 && !refused.is_empty() {
                return Err(Trouble::Invalid(refused).into());
            }
            marks = Self::ours(&now, &marks.key, &marks.owner)?;
            pod = now;
        }
        Err(RemoteError::could_not_ask(format!("the pod {name} changes all the time ({refused}); it is tried again")))
    }

    /// The pod of a handle under this epoch, for what the server cannot refuse itself.
    pub(crate) async fn claim(&self, handle: &HandleV1, epoch: u64) -> Answer<(Pod, Marks)> {
        let Some((pod, marks)) = self.look_at(handle).await? else {
            return Err(match self.missing(handle).await {
                seen if seen.state == InstanceState::Gone => RemoteError::gone(seen.reason),
                seen => RemoteError::could_not_ask(seen.reason),
            });
        };
        if marks.done.is_some() {
            return Err(RemoteError::gone(format!("there is no instance {}", handle.key)));
        }
        self.change(pod, marks, epoch, |_| Vec::new()).await
    }

    fn plan(&self, request: &Ensure) -> Answer<plan::Plan> {
        let options = TaskOptions::read(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        plan::plan(request, &options, &self.config)
    }

    pub(crate) async fn ensure(&self, request: Ensure) -> Answer<Ensured> {
        let plan = match self.plan(&request) {
            Ok(plan) => plan,
            Err(why) => return self.refused_here(&request, why).await,
        };
        self.goes_here(&request.intent)?;
        self.same_cluster().await?;
        let answered = self.api.create_pod(&plan.name, &plan.pod).await;
        let new = answered.is_ok();
        let (pod, created) = match answered {
            Ok(pod) => (pod, true),
            Err(why @ (Trouble::Invalid(_) | Trouble::Wrong(_))) => {
                (self.refused(&request, why.into()).await?.0, false)
            }
            // Taken; or the answer is lost, and the pod may be there.
            Err(trouble) => match self.api.pod(&plan.name).await {
                Ok(Some(pod)) => (pod, request.first && trouble != Trouble::Taken),
                _ => return Err(trouble.into()),
            },
        };
        let marks = Self::ours(&pod, &request.key, &request.owner)?;
        if marks.done.is_some() {
            return Err(match self.keep_done(&pod, &marks).await? {
                true => sealed(&marks),
                false => RemoteError::could_not_ask(format!("the pod {} is another one by now", plan.name)),
            });
        }
        let (pod, marks) = self.change(pod, marks, request.epoch, |_| Vec::new()).await?;
        let (pod, marks) = self.begin(pod, marks, request.epoch, &plan, new).await?;
        let handle = self.handle(&pod, &marks).remote_handle()?;
        Ok(Ensured { handle, observed: self.see(&pod, &marks), created })
    }

    /// Brings what the pod mounts, and lets it be placed. It waits until then, so a manager that dies in between leaves
    /// nothing that runs, and the next one goes on from there. `new`: the pod is as the server has just made it.
    async fn begin(&self, pod: Pod, marks: Marks, epoch: u64, plan: &plan::Plan, new: bool) -> Answer<(Pod, Marks)> {
        if marks.stop || pod.metadata.deletion_timestamp.is_some() {
            return Ok((pod, marks));
        }
        if !look::is_gated(&pod) {
            // What was let go on has its secret for as long as it is not acknowledged.
            let waits = !plan.secret.is_empty() && self.see(&pod, &marks).state == InstanceState::Creating;
            if waits && (new || self.api.secret(&plan.name).await?.is_none()) {
                return self.give_up(pod, marks, epoch).await;
            }
            return Ok((pod, marks));
        }
        let made = match plan.secret.is_empty() {
            true => None,
            false => self.put_secret(&pod, &marks, epoch, &plan.secret).await?,
        };
        let open = |pod: &Pod| match look::gate(pod) {
            Some(at) if pod.metadata.deletion_timestamp.is_none() => vec![
                json!({"op": "test", "path": format!("/spec/schedulingGates/{at}/name"), "value": marks::GATE}),
                json!({"op": "remove", "path": format!("/spec/schedulingGates/{at}")}),
            ],
            _ => Vec::new(),
        };
        let opened = match self.change(pod.clone(), marks, epoch, open).await {
            Ok((_, marks)) if marks.done.is_some() => Err(sealed(&marks)),
            opened => opened,
        };
        if let (Some(made), Err(why)) = (made, &opened) {
            self.take_back(&pod, &made, why).await;
        }
        opened
    }

    /// Gives up a pod that came without the driver's gate, and would wait for its secret for ever: nothing of it has
    /// run, since a container does not begin without.
    async fn give_up(&self, pod: Pod, marks: Marks, epoch: u64) -> Answer<(Pod, Marks)> {
        let name = marks::name(&marks.key);
        let (pod, _) = self.change(pod, marks, epoch, |_| self.done("sealed")).await?;
        self.bury(&pod).await?;
        Err(RemoteError::wrong_request(format!(
            "the pod {name} was made without its scheduling gate {}: something in the cluster takes it away, most \
                often an admission webhook; exempt pods with the label app.kubernetes.io/managed-by=drover from it \
                (`drover driver doctor kubernetes` shows whether that helps)",
            marks::GATE
        )))
    }

    pub(crate) async fn find(&self, key: &str, owner: &str, intent: &[u8]) -> Answer<(RemoteHandle, Observation)> {
        self.goes_here(intent)?;
        let none = || RemoteError::gone(format!("{} has no pod of the key {key}", self.provider()));
        let Some(pod) = self.api.pod(&marks::name(key)).await? else {
            self.same_cluster().await?;
            return Err(none());
        };
        let marks = Self::ours(&pod, key, owner)?;
        if marks.done.is_some() {
            return Err(none());
        }
        Ok((self.handle(&pod, &marks).remote_handle()?, self.see(&pod, &marks)))
    }

    pub(crate) async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Answer<Page> {
        let size = if page_size == 0 { PAGE } else { page_size.min(PAGE) };
        let listed = self.api.list_pods(&selector(owner), size, page_token).await?;
        if page_token.is_empty() {
            self.same_cluster().await?;
        }
        let mut page = Page { next_page_token: listed.next, ..Page::default() };
        for pod in &listed.pods {
            let Some(marks) = Marks::of(pod).filter(|m| owner.is_empty() || m.owner == owner) else { continue };
            page.instances.push(Instance {
                handle: self.handle(pod, &marks).remote_handle()?,
                observed: self.see(pod, &marks),
                key: marks.key,
                owner: marks.owner,
                slot: marks.slot,
                epoch: marks.epoch,
            });
        }
        Ok(page)
    }

    async fn look_one(&self, handle: &HandleV1) -> Observation {
        self.found(handle, self.look_at(handle).await).await
    }

    async fn found(&self, handle: &HandleV1, looked: Answer<Option<(Pod, Marks)>>) -> Observation {
        match looked {
            Ok(Some((pod, marks))) => self.see(&pod, &marks),
            Ok(None) => self.missing(handle).await,
            Err(why) => Observation::unknown(handle.key.as_str(), why),
        }
    }

    /// Tells of all pods of an owner that are not done, page after page: thousands are never held at once. Gives the
    /// version from which a watch goes on.
    pub(crate) async fn each(&self, owner: &str, mut tell: impl FnMut(Pod)) -> Result<String, Trouble> {
        let (mut seen, mut next) = (0, String::new());
        loop {
            let listed = self.api.list_pods(&selector(owner), PAGE, &next).await?;
            seen += listed.pods.len();
            listed.pods.into_iter().for_each(&mut tell);
            next = listed.next;
            if next.is_empty() {
                self.present.store(seen, Ordering::Relaxed);
                return Ok(listed.version);
            }
        }
    }

    /// Like [`Site::each`], and begins anew when the server has thrown the version of the pages away. What a first try
    /// has told of, and the next one does not, was there after the call began.
    async fn each_anew(&self, owner: &str, mut tell: impl FnMut(Pod)) -> Result<String, Trouble> {
        let mut tries = 1;
        loop {
            match self.each(owner, &mut tell).await {
                Err(Trouble::Expired) if tries < LISTINGS => tries += 1,
                listed => return listed,
            }
        }
    }

    /// One observation for each handle, in the order asked, as the store has it now. Who asks for many while others do
    /// shares their look. Cancel safe: when the one that looks for all is given up, another of them looks.
    pub(crate) async fn observe(&self, handles: &[HandleV1]) -> Vec<Observation> {
        if handles.len() <= FEW {
            return futures::future::join_all(handles.iter().map(|handle| self.look_one(handle))).await;
        }
        loop {
            let (answer, mut answered) = oneshot::channel();
            lock(&self.asked).push(Asked { handles: handles.to_vec(), answer });
            let turn = tokio::select! {
                biased;
                // Another's look was for this request, too.
                seen = &mut answered => match seen {
                    Ok(seen) => return seen,
                    // It was given up in the middle of it.
                    Err(_) => continue,
                },
                // Nobody closes it.
                turn = self.looking.acquire() => turn,
            };
            tokio::time::sleep(GATHER).await;
            let mut asked = std::mem::take(&mut *lock(&self.asked));
            asked.retain(|one| !one.answer.is_closed());
            let all: Vec<HandleV1> = asked.iter().flat_map(|one| one.handles.iter().cloned()).collect();
            let mut seen = self.look_at_many(&all).await.into_iter();
            for one in asked {
                let _ = one.answer.send(seen.by_ref().take(one.handles.len()).collect());
            }
            // After the answers: whoever gets the turn next has none.
            drop(turn);
            if let Ok(seen) = answered.await {
                return seen;
            }
        }
    }

    async fn look_at_many(&self, handles: &[HandleV1]) -> Vec<Observation> {
        let mut known = HashMap::new();
        if !handles.is_empty() && handles.len() * LISTED_FOR_A_LOOK >= self.present.load(Ordering::Relaxed) {
            let wanted: HashSet<&str> = handles.iter().map(|h| h.uid.as_str()).collect();
            let owners: HashSet<&str> = handles.iter().map(|h| h.owner.as_str()).collect();
            for owner in owners {
                let look = |pod: Pod| {
                    if let Some(marks) = Marks::of(&pod).filter(|_| wanted.contains(uid(&pod))) {
                        known.insert(uid(&pod).to_owned(), self.see(&pod, &marks));
                    }
                };
                if let Err(why) = self.each_anew(owner, look).await {
                    let why = RemoteError::from(why);
                    return handles.iter().map(|h| Observation::unknown(h.key.as_str(), &why)).collect();
                }
            }
        }
        // A server that does not answer is not asked for each of thousands.
        let failed: Mutex<(usize, String)> = Mutex::default();
        let looks = handles.iter().map(|handle| {
            let (seen, failed) = (known.get(&handle.uid).cloned(), &failed);
            async move {
                if let Some(seen) = seen {
                    return seen;
                }
                let given_up = Some(lock(failed)).filter(|f| f.0 >= FEW).map(|f| f.1.clone());
                if let Some(why) = given_up {
                    return Observation::unknown(handle.key.as_str(), why);
                }
                let looked = self.look_at(handle).await;
                if let Err(why @ RemoteError::CouldNotAsk(_)) = &looked {
                    let mut failed = lock(failed);
                    *failed = (failed.0 + 1, why.to_string());
                }
                self.found(handle, looked).await
            }
        });
        futures::stream::iter(looks.collect::<Vec<_>>()).buffered(LOOKS).collect().await
    }

    pub(crate) async fn stop(&self, handle: &HandleV1, epoch: u64, stop: &StopTask) -> Answer<Observation> {
        let begun = Instant::now();
        let mut told: Option<Instant> = None;
        let mut signalled = false;
        let mut deadline = begun + stop.timeout + STOP_SLACK;
        loop {
            let Some((pod, marks)) = self.look_at(handle).await? else {
                return match self.missing(handle).await {
                    seen if seen.state == InstanceState::Unknown => Err(RemoteError::could_not_ask(seen.reason)),
                    seen => Ok(seen),
                };
            };
            let seen = self.see(&pod, &marks);
            if matches!(seen.state, InstanceState::Exited | InstanceState::Gone) {
                // That nobody orders it under an older epoch any more.
                Self::accept(&marks, epoch)?;
                return Ok(seen);
            }
            Self::accept(&marks, epoch)?;
            let placed = look::node(&pod).is_some();
            // With a signal of choice the time is over already.
            let grace = if signalled { 1 } else { stop.timeout.as_secs_f64().ceil().max(1.0) as u64 };
            if told.is_none() && placed && !signalled && !matches!(stop.signal.as_str(), "" | "SIGTERM" | "SIGKILL") {
                signalled = true;
                self.change(pod, marks, epoch, |_| Vec::new()).await?;
                self.signal_and_wait(handle, stop).await;
                continue;
            }
            match told {
                None if self.order(pod, marks, epoch, grace).await? => {
                    told = Some(Instant::now());
                    deadline = Instant::now() + stop.timeout + STOP_SLACK;
                }
                // The pod has changed meanwhile, or is told already.
                None | Some(_) => {}
            }
            if Instant::now() > deadline {
                let why = if seen.reason.is_empty() { format!("{:?}", seen.state) } else { seen.reason };
                return Err(RemoteError::could_not_ask(format!(
                    "the stop is ordered and stands in the pod {}, and no kubelet has confirmed an end yet: {why}",
                    handle.name
                )));
            }
            tokio::time::sleep(STOP_LOOK).await;
        }
    }

    /// Sends a signal of choice and waits for the end that it leads to. The kubelet itself sends only the one that the
    /// image names.
    async fn signal_and_wait(&self, handle: &HandleV1, stop: &StopTask) {
        let name = stop.signal.trim_start_matches("SIG");
        if let Err(why) = crate::exec::signal(&self.api, &handle.name, name).await {
            tracing::warn!(pod = handle.name, signal = stop.signal, %why, "the signal cannot be sent; the pod ends");
            return;
        }
        let begun = Instant::now();
        while begun.elapsed() < stop.timeout {
            tokio::time::sleep(STOP_LOOK).await;
            match self.look_at(handle).await {
                Ok(Some((pod, marks))) if self.see(&pod, &marks).state == InstanceState::Running => {}
                _ => return,
            }
        }
    }

    /// Orders the end in the pod itself, where it stands whoever manages it. False: the pod has changed, look again.
    ///
    /// A deadline ends the container as a deletion would, and leaves its log, but takes the grace period with which the
    /// pod was made. A deletion brings its own, and takes the log with it.
    async fn order(&self, pod: Pod, marks: Marks, epoch: u64, grace: u64) -> Answer<bool> {
        let by_deadline = |pod: &Pod| {
            let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
            look::node(pod).is_some() && own.and_then(|own| u64::try_from(own).ok()) == Some(grace)
        };
        let is_due = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.active_deadline_seconds) == Some(1);
        let mark = |pod: &Pod| {
            let mut all = Vec::new();
            if !Marks::of(pod).is_some_and(|m| m.stop) {
                all.push(annotation("add", marks::STOP, &epoch.to_string()));
            }
            // It counts from the start on a node; a pod without a node is deleted below.
            if by_deadline(pod) && !is_due(pod) {
                all.push(json!({"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 1}));
            }
            all
        };
        let (pod, _) = self.change(pod, marks, epoch, mark).await?;
        if by_deadline(&pod) {
            return Ok(is_due(&pod));
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let placed = look::node(&pod).is_some();
        // Only as it was seen: it must not be placed meanwhile. A pod on a node changes all the time, and stays there.
        let version = pod.metadata.resource_version.as_deref().filter(|_| !placed);
        match self.api.delete_pod(name, uid(&pod), version, placed.then_some(grace)).await {
            Ok(()) => Ok(true),
            Err(Trouble::Moved | Trouble::Absent) => Ok(false),
            Err(other) => Err(other.into()),
        }
    }

    /// Deletes what is done with. The object stays, held, and keeps the name.
    pub(crate) async fn bury(&self, pod: &Pod) -> Answer<()> {
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        match self.api.delete_pod(name, uid(pod), None, None).await {
            Ok(()) | Err(Trouble::Absent | Trouble::Moved) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }

    pub(crate) async fn acknowledge(&self, handle: &HandleV1, epoch: u64) -> Answer<()> {
        let Some((pod, marks)) = self.look_at(handle).await? else {
            return match self.missing(handle).await {
                seen if seen.state == InstanceState::Unknown => Err(RemoteError::could_not_ask(seen.reason)),
                _ => Ok(()),
            };
        };
        let (pod, _) = if marks.done.is_some() {
            self.api.delete_secret(&handle.name).await?;
            self.keep_done(&pod, &marks).await?;
            (pod, marks)
        } else {
            let seen = self.see(&pod, &marks);
            match seen.state {
                InstanceState::Exited | InstanceState::Gone => {}
                InstanceState::Unknown => return Err(RemoteError::could_not_ask(seen.reason)),
                _ => {
                    return Err(RemoteError::wrong_request(format!("the instance {} has not ended", handle.key)));
                }
            }
            let (pod, marks) = self.change(pod, marks, epoch, |_| Vec::new()).await?;
            // Before anything says that this is done: nobody comes back to what is, and the pod stays for long.
            self.api.delete_secret(&handle.name).await?;
            self.change(pod, marks, epoch, |_| self.done("acknowledged")).await?
        };
        self.bury(&pod).await?;
        lock(&self.ended).remove(&handle.uid);
        Ok(())
    }
}
