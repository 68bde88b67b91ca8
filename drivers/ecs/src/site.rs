//! One cluster as this node uses it: tasks by key and by handle, starts, ends, acknowledgements.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sdk_ecs::types::Task;
use driver_sdk::{
    DriverState as _, Ensure, Ensured, Error, InstanceState, Observation, RemoteError, StopTask, async_trait,
};

use crate::answer::{Meaning, not_placed};
use crate::api::{Api, BATCH, ClusterSeen, Listing, Ran};
use crate::budget;
use crate::config::PluginConfig;
use crate::definition::{Known, LogPlace, Made};
use crate::handle::HandleV1;
use crate::logs::{Ended, Places};
use crate::look::{Absence, absence, gone, observation};
use crate::marks::{self, Marks};
use crate::options::EcsTask;
use crate::plan;
use crate::poll::{Look, Poller};
use crate::sent::{Intent, Ledger};

pub(crate) type Answer<T> = Result<T, RemoteError>;

/// Longest time that a container may have for its end, and then some for the service's own.
const STOP_SLACK: Duration = Duration::from_secs(150);
/// How often a stop looks whether the task has ended.
const STOP_LOOK: Duration = Duration::from_secs(1);
/// The service tells of an ended task for about an hour.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3 * 3600);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was answered about the cluster.
#[derive(Clone)]
pub(crate) struct Health {
    at: std::time::Instant,
    pub(crate) answer: Answer<ClusterSeen>,
}

/// The cluster and what this node knows of it.
pub(crate) struct Site {
    pub(crate) api: Api,
    pub(crate) config: PluginConfig,
    pub(crate) poller: Arc<Poller>,
    pub(crate) places: Places,
    /// The last answer about the cluster, and when it came.
    pub(crate) health: Mutex<Option<Health>>,
    /// One question about the cluster at a time; who waits takes the answer.
    asking: tokio::sync::Mutex<()>,
    /// One start of a key at a time.
    starting: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// What was sent, or may have been.
    pub(crate) sent: Mutex<Ledger>,
    /// Tasks of each owner and key that listings have shown, by ARN, and when.
    shown: Mutex<HashMap<(String, String), HashMap<String, std::time::Instant>>>,
    /// Acknowledged tasks that the service did not let be tagged, and when.
    acknowledged: Mutex<HashMap<String, std::time::Instant>>,
}

fn error(error: Error) -> RemoteError {
    RemoteError::wrong_request(error)
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Site {
    pub(crate) fn new(api: Api, config: PluginConfig) -> Self {
        Self {
            api,
            config,
            poller: Poller::new(),
            places: Places::default(),
            health: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            starting: Mutex::default(),
            sent: Mutex::default(),
            shown: Mutex::default(),
            acknowledged: Mutex::default(),
        }
    }

    /// The cluster's ARN, asked for once and when it matters.
    #[expect(clippy::await_holding_invalid_type, reason = "the cluster is asked once for all who wait")]
    pub(crate) async fn cluster(&self, fresh: bool) -> Answer<String> {
        let known = || lock(&self.health).clone();
        let arn = |seen: ClusterSeen| seen.arn;
        if let Some(Health { answer: Ok(seen), .. }) = known()
            && !fresh
        {
            return Ok(arn(seen));
        }
        let begun = std::time::Instant::now();
        let _turn = self.asking.lock().await;
        if let Some(health) = known().filter(|h| h.at > begun) {
            return health.answer.map(arn);
        }
        let answer = self.api.cluster().await.map_err(RemoteError::from).and_then(|seen| self.of_account(seen));
        *lock(&self.health) = Some(Health { at: std::time::Instant::now(), answer: answer.clone() });
        answer.map(arn)
    }

    fn of_account(&self, seen: ClusterSeen) -> Answer<ClusterSeen> {
        let account = seen.arn.split(':').nth(4).unwrap_or_default();
        match &self.api.cluster.place {
            Some((_, wanted)) if wanted != account => Err(RemoteError::could_not_ask(format!(
                "the cluster {} is of account {account}, configured is {wanted}",
                seen.arn
            ))),
            _ => Ok(seen),
        }
    }

    /// Absence counts only in the cluster that had it.
    async fn same_cluster(&self, handle: &HandleV1, fresh: bool) -> Answer<()> {
        let here = self.cluster(fresh).await?;
        if handle.cluster == here {
            return Ok(());
        }
        Err(RemoteError::could_not_ask(format!(
            "the instance lives in the cluster {}, this node reaches {here}",
            handle.cluster
        )))
    }

    fn is_acknowledged(&self, arn: &str) -> bool {
        lock(&self.acknowledged).contains_key(arn)
    }

    /// What the tags of a task say; the handle's word where they are gone.
    pub(crate) fn marks(&self, task: &Task, handle: Option<&HandleV1>) -> Option<Marks> {
        let mut marks = match (Marks::of(task.tags()), handle) {
            (Some(marks), Some(handle)) if marks.key != handle.key => Marks { key: handle.key.clone(), ..marks },
            (Some(marks), _) => marks,
            (None, Some(handle)) => Marks {
                key: handle.key.clone(),
                owner: handle.owner.clone(),
                container: handle.container.clone(),
                ..Marks::default()
            },
            (None, None) => return None,
        };
        marks.acknowledged |= task.task_arn().is_some_and(|arn| self.is_acknowledged(arn));
        Some(marks)
    }

    pub(crate) async fn log_of(&self, task: &Task, container: &str) -> Answer<Option<LogPlace>> {
        let (Some(definition), Some(arn)) = (task.task_definition_arn(), task.task_arn()) else {
            return Ok(None);
        };
        Ok(self.api.definition(definition).await?.log(container, arn))
    }

    pub(crate) async fn handle(&self, task: &Task, marks: &Marks) -> Answer<HandleV1> {
        let arn = task.task_arn().filter(|arn| !arn.is_empty());
        let arn = arn.ok_or_else(|| RemoteError::could_not_ask("the service tells of a task without an ARN"))?;
        let log = match self.log_of(task, &marks.container).await {
            Ok(log) => log,
            // The instance is there; its log is looked for again when somebody reads it.
            Err(why) => {
                tracing::warn!(task = arn, %why, "where the log of the task is cannot be found out now");
                None
            }
        };
        let cluster = match task.cluster_arn() {
            Some(cluster) => cluster.to_owned(),
            None => self.cluster(false).await?,
        };
        // A task without a time counts as new: then its absence is believed late. Two handles of it may differ in this,
        // which nobody takes for two tasks.
        let created = task.created_at().and_then(|at| SystemTime::try_from(*at).ok()).unwrap_or_else(SystemTime::now);
        Ok(HandleV1 {
            cluster,
            arn: arn.to_owned(),
            key: marks.key.clone(),
            owner: marks.owner.clone(),
            created: seconds(created),
            container: marks.container.clone(),
            log,
        })
    }

    /// Tasks by ARN; what the service does not know is left out.
    pub(crate) async fn tasks(&self, arns: &[String]) -> Answer<Vec<Task>> {
        let mut tasks = Vec::with_capacity(arns.len());
        for batch in arns.chunks(BATCH) {
            tasks.extend(self.api.describe(batch.to_vec()).await?.0);
        }
        Ok(tasks)
    }

    /// Tasks of a listing that are wanted; stops reading when `enough`.
    async fn listed(
        &self,
        listing: Listing<'_>,
        wanted: impl Fn(&Marks) -> bool,
        enough: usize,
    ) -> Answer<Vec<(Task, Marks)>> {
        let (mut found, mut from) = (Vec::new(), None);
        loop {
            let (arns, next) = self.api.list(listing, from, BATCH).await?;
            for task in self.tasks(&arns).await? {
                if let Some(marks) = self.marks(&task, None).filter(&wanted) {
                    found.push((task, marks));
                }
            }
            from = next;
            if from.is_none() || found.len() >= enough {
                return Ok(found);
            }
        }
    }

    /// The live task of a key.
    async fn live(&self, key: &str, owner: &str) -> Answer<Option<(Task, Marks)>> {
        let started_by = marks::started_by(owner, key);
        let mut found =
            self.listed(Listing::OfKey(&started_by), |m| m.key == key && m.owner == owner, usize::MAX).await?;
        found.sort_by_key(|(task, _)| task.created_at().map(|at| at.secs()));
        if found.len() > 1 {
            let arns: Vec<&str> = found.iter().filter_map(|(task, _)| task.task_arn()).collect();
            tracing::error!(
                key,
                ?arns,
                "a key has several tasks; the oldest counts, the sweep shows the others: stop them (drover remote stop)"
            );
        }
        Ok(found.into_iter().next())
    }

    /// Those tasks of a page of a listing whose keys have other live tasks as well, on whichever page.
    pub(crate) async fn doubled(&self, page: &[(Task, Marks)]) -> Answer<HashSet<String>> {
        let now = std::time::Instant::now();
        let live = |task: &Task, marks: &Marks| {
            !matches!(observation(task, marks).state, InstanceState::Exited | InstanceState::Gone)
        };
        let here: HashMap<&str, (String, String)> = page
            .iter()
            .filter(|(task, marks)| live(task, marks))
            .filter_map(|(task, marks)| Some((task.task_arn()?, (marks.owner.clone(), marks.key.clone()))))
            .collect();
        let elsewhere: Vec<String> = {
            let mut shown = lock(&self.shown);
            shown.retain(|_, arns| {
                arns.retain(|_, at| at.elapsed() < FORGOTTEN_AFTER);
                !arns.is_empty()
            });
            for (arn, key) in &here {
                shown.entry(key.clone()).or_default().insert((*arn).to_owned(), now);
            }
            let of_page = here.values().filter_map(|key| shown.get(key)).flat_map(HashMap::keys);
            of_page.filter(|arn| !here.contains_key(arn.as_str())).cloned().collect()
        };
        let mut tasks: HashMap<(String, String), usize> = HashMap::new();
        for key in here.values() {
            *tasks.entry(key.clone()).or_default() += 1;
        }
        // Other pages have shown them. They may have ended meanwhile.
        for task in self.tasks(&elsewhere).await? {
            if let Some(marks) = self.marks(&task, None).filter(|marks| live(&task, marks)) {
                *tasks.entry((marks.owner, marks.key)).or_default() += 1;
            }
        }
        Ok(here
            .into_iter()
            .filter(|(_, key)| tasks.get(key).is_some_and(|tasks| *tasks > 1))
            .map(|(arn, _)| arn.to_owned())
            .collect())
    }

    /// The task of a key, also one that has ended lately and is not acknowledged.
    pub(crate) async fn search(&self, key: &str, owner: &str) -> Answer<Option<(Task, Marks)>> {
        if let Some((task, marks)) = self.live(key, owner).await?
            && observation(&task, &marks).state != InstanceState::Gone
        {
            return Ok(Some((task, marks)));
        }
        // The service lists by starter without a further filter only, and then live ones: those that have ended are
        // gone through.
        let ended = self.listed(Listing::Ended, |m| m.key == key && m.owner == owner && !m.acknowledged, 1).await?;
        Ok(ended.into_iter().next())
    }

    /// What to say of a task that the service calls missing.
    async fn missing(&self, handle: &HandleV1) -> Observation {
        let unknown = |why: &dyn std::fmt::Display| Observation::unknown(handle.key.as_str(), why);
        let window = self.config.consistency_window;
        let mut found = None;
        loop {
            match absence(handle.created(), SystemTime::now(), window, found) {
                Absence::TooEarly => {
                    return unknown(&format!(
                        "ECS does not know the task {} yet; it was made less than {} s ago, so this says nothing",
                        handle.arn,
                        window.as_secs()
                    ));
                }
                Absence::Search => {
                    if let Err(why) = self.same_cluster(handle, true).await {
                        return unknown(&why);
                    }
                    match self.search(&handle.key, &handle.owner).await {
                        Ok(seen) => found = Some(seen.is_some_and(|(task, _)| task.task_arn() == Some(&handle.arn))),
                        Err(why) => return unknown(&why),
                    }
                }
                Absence::Gone => {
                    if let Some(log) = &handle.log {
                        self.places.forget(log);
                    }
                    return gone(&handle.key);
                }
                Absence::Contradiction => {
                    return unknown(&format!("ECS lists the task {} and says that it does not know it", handle.arn));
                }
            }
        }
    }

    pub(crate) async fn look_at(&self, handle: &HandleV1) -> Answer<Option<(Task, Marks)>> {
        let (tasks, failures) = self.api.describe(vec![handle.arn.clone()]).await?;
        if let Some(task) = tasks.into_iter().find(|t| t.task_arn() == Some(&handle.arn)) {
            let marks = self.marks(&task, Some(handle)).unwrap_or_default();
            return Ok(Some((task, marks)));
        }
        match failures.iter().find(|f| f.arn() == Some(&handle.arn)).and_then(|f| f.reason()) {
            Some("MISSING") => Ok(None),
            Some(other) => Err(RemoteError::could_not_ask(format!("ECS says {other} of the task {}", handle.arn))),
            None => Err(RemoteError::could_not_ask(format!("ECS says nothing of the task {}", handle.arn))),
        }
    }

    /// No change under an epoch that is older than one that was used.
    fn accept(marks: &Marks, epoch: u64) -> Answer<()> {
        if marks.epoch > epoch {
            return Err(RemoteError::StaleEpoch { given: epoch, accepted: marks.epoch });
        }
        Ok(())
    }

    /// Takes the task over with this epoch. Between looking and tagging lies a moment, so it is looked at once more.
    async fn claim(&self, handle: &HandleV1, marks: &Marks, epoch: u64) -> Answer<()> {
        Self::accept(marks, epoch)?;
        if marks.epoch == epoch {
            return Ok(());
        }
        self.api.tag(&handle.arn, vec![marks::epoch_tag(epoch)]).await?;
        match self.look_at(handle).await? {
            Some((_, now)) => Self::accept(&now, epoch),
            None => Ok(()),
        }
    }

    async fn existing(&self, task: Task, marks: Marks, epoch: u64) -> Answer<Ensured> {
        let handle = self.handle(&task, &marks).await?;
        let mut observed = observation(&task, &marks);
        if observed.state == InstanceState::Gone {
            return Err(RemoteError::sealed(
                "the key has had its instance, whose end was acknowledged; a new start needs a new key",
            ));
        }
        if observed.state == InstanceState::Exited {
            Self::accept(&marks, epoch)?;
        } else {
            self.claim(&handle, &marks, epoch).await?;
            observed.epoch = observed.epoch.max(epoch);
        }
        Ok(Ensured { handle: handle.remote_handle()?, observed, created: false })
    }

    #[expect(clippy::await_holding_invalid_type, reason = "one start of a key at a time")]
    pub(crate) async fn ensure(&self, request: Ensure) -> Answer<Ensured> {
        plan::refused(&request)?;
        let options = EcsTask::decode(&request.task.msgpack_driver_config).map_err(error)?;
        let turn = lock(&self.starting).entry(request.key.clone()).or_default().clone();
        let _turn = turn.lock().await;
        let ensured = self.start(&request, &options).await;
        let mut starting = lock(&self.starting);
        // Ours, the map's: nobody else waits.
        if starting.get(&request.key).is_some_and(|entry| Arc::strong_count(entry) <= 2) {
            starting.remove(&request.key);
        }
        ensured
    }

    /// The definition that the job means now.
    async fn definition(&self, request: &Ensure, options: &EcsTask) -> Answer<Arc<Known>> {
        match (options.definition(), &options.container) {
            (Some(name), _) => Ok(self.api.definition(name).await?),
            (None, Some(container)) => {
                let made = Made::of(options, container, &request.task, &request.owner, &self.api.region)?;
                let owner = Marks { owner: request.owner.clone(), ..Marks::default() }
                    .tags()
                    .into_iter()
                    .filter(|t| t.key() == Some(marks::OWNER));
                self.api.made(&made, owner.collect()).await
            }
            (None, None) => {
                Err(RemoteError::wrong_request("config.task names neither a task_definition nor a container"))
            }
        }
    }

    /// What is to be kept before the start of this request is sent; `None` when that is kept already.
    pub(crate) async fn intent(&self, request: &Ensure) -> Answer<Option<Vec<u8>>> {
        plan::refused(request)?;
        if let Some(kept) = Intent::read(&request.intent)? {
            // What was refused for half a day, for want of room perhaps, has used up no token.
            let anew = kept.is_old(SystemTime::now()) && lock(&self.sent).heard(&request.key, request.epoch);
            if !anew {
                return Ok(None);
            }
        }
        let options = EcsTask::decode(&request.task.msgpack_driver_config).map_err(error)?;
        let known = self.definition(request, &options).await?;
        let container = known.container(options.container_name.as_deref())?;
        Intent::new(request.epoch, marks::client_token(&request.key), known.arn.clone(), container).write().map(Some)
    }

    async fn start(&self, request: &Ensure, options: &EcsTask) -> Answer<Ensured> {
        if let Some((task, marks)) = self.live(&request.key, &request.owner).await? {
            lock(&self.sent).found(&request.key);
            return self.existing(task, marks, request.epoch).await;
        }
        let plan = match Intent::read(&request.intent)? {
            None => {
                let known = self.definition(request, options).await?;
                let container = known.container(options.container_name.as_deref())?;
                plan::plan(request, options, &container, &known.arn)?
            }
            // As it was sent, or was about to be, by whichever manager: the token, the definition, the tags.
            Some(kept) => {
                if kept.is_over(SystemTime::now())
                    && !request.first
                    && !lock(&self.sent).heard(&request.key, request.epoch)
                {
                    return Err(RemoteError::sealed(
                        "a start with this key may have been sent a day ago, ECS keeps its token no longer and has no \
                            such task now: what came of it \
                         is not known, and a new start needs a new key",
                    ));
                }
                let as_sent = Ensure { epoch: kept.epoch.min(request.epoch), ..request.clone() };
                let plan = plan::plan(&as_sent, options, &kept.container, &kept.definition)?;
                plan::Plan { client_token: kept.token, ..plan }
            }
        };
        // Whatever ends this call before its answer: the task may exist.
        let heard = lock(&self.sent).begin(&request.key, &request.owner, request.epoch, request.first);
        let ran = self.api.run(&plan).await;
        let nothing = match &ran {
            Err(trouble) => trouble.meaning() != Meaning::CouldNotAsk,
            Ok(Ran::NotPlaced(failures)) => !failures.is_empty(),
            Ok(Ran::Task(_) | Ran::Taken(_)) => false,
        };
        if nothing {
            lock(&self.sent).nothing(&request.key, heard);
        }
        match ran? {
            Ran::Task(task) => {
                let handle = self.handle(&task, &plan.marks).await?;
                // The answer to a repetition shows the tags as they were sent first. Another manager may have taken the
                // task over since.
                let seen = if request.first { None } else { self.look_at(&handle).await? };
                let marks = seen.map_or_else(|| plan.marks.clone(), |(_, marks)| marks);
                self.claim(&handle, &marks, request.epoch).await?;
                lock(&self.sent).found(&request.key);
                // The answer to a repetition is that to the first request; how the task is now is another question, and
                // not this one's.
                let mut observed = observation(&task, &plan.marks);
                observed.epoch = observed.epoch.max(request.epoch);
                Ok(Ensured { handle: handle.remote_handle()?, observed, created: true })
            }
            Ran::NotPlaced(failures) => Err(not_placed(&failures)),
            // An earlier start of this key, by another manager or under another epoch.
            Ran::Taken(arns) => {
                let mut tasks = self.tasks(&arns).await?.into_iter().filter_map(|task| {
                    let marks = self.marks(&task, None)?;
                    (marks.key == request.key && marks.owner == request.owner).then_some((task, marks))
                });
                match tasks.next() {
                    Some((task, marks)) => {
                        lock(&self.sent).found(&request.key);
                        self.existing(task, marks, request.epoch).await
                    }
                    None => Err(RemoteError::could_not_ask(format!(
                        "ECS says that the key has the tasks {arns:?} already, and does not show them; nothing \
                            was started"
                    ))),
                }
            }
        }
    }

    pub(crate) async fn stop(&self, handle: &HandleV1, epoch: u64, stop: &StopTask) -> Answer<Observation> {
        budget::first(self.same_cluster(handle, false)).await?;
        // No job file comes here with another one: it is refused before the create.
        if !matches!(stop.signal.as_str(), "" | "SIGTERM") {
            tracing::warn!(
                signal = stop.signal,
                task = handle.arn,
                "ECS sends the signal that the image names; no other can be chosen"
            );
        }
        let deadline = std::time::Instant::now() + stop.timeout + STOP_SLACK;
        let mut told = false;
        loop {
            // Until it is told to end. Waiting for many ends is not more urgent than what others ask for.
            let look = self.look_at(handle);
            let Some((task, marks)) = (if told { look.await? } else { budget::first(look).await? }) else {
                return match self.missing(handle).await {
                    seen if seen.state == InstanceState::Unknown => Err(RemoteError::could_not_ask(seen.reason)),
                    seen => Ok(seen),
                };
            };
            let seen = observation(&task, &marks);
            match seen.state {
                InstanceState::Gone => return Ok(seen),
                InstanceState::Exited => return Self::accept(&marks, epoch).map(|()| seen),
                InstanceState::Unknown => return Err(RemoteError::could_not_ask(seen.reason)),
                InstanceState::Creating | InstanceState::Running => {}
            }
            if !told {
                budget::first(async {
                    self.claim(handle, &marks, epoch).await?;
                    Ok::<_, RemoteError>(self.api.stop(&handle.arn, "stopped by the job's scheduler").await?)
                })
                .await?;
                told = true;
                continue;
            }
            if std::time::Instant::now() > deadline {
                let status = task.last_status().unwrap_or_default();
                return Err(RemoteError::could_not_ask(format!(
                    "the task {} was told to end and is still {status} after {} s",
                    handle.arn,
                    (stop.timeout + STOP_SLACK).as_secs()
                )));
            }
            tokio::time::sleep(STOP_LOOK).await;
        }
    }

    pub(crate) async fn acknowledge(&self, handle: &HandleV1, epoch: u64) -> Answer<()> {
        self.same_cluster(handle, false).await?;
        let Some((task, marks)) = self.look_at(handle).await? else {
            return match self.missing(handle).await {
                seen if seen.state == InstanceState::Unknown => Err(RemoteError::could_not_ask(seen.reason)),
                _ => Ok(()),
            };
        };
        let seen = observation(&task, &marks);
        match seen.state {
            InstanceState::Gone => return Ok(()),
            InstanceState::Exited => Self::accept(&marks, epoch)?,
            _ => {
                return Err(RemoteError::wrong_request(format!(
                    "instance {} has not ended; stop it before its result is acknowledged",
                    handle.key
                )));
            }
        }
        let tags = vec![marks::epoch_tag(epoch), marks::acknowledged_tag()];
        match self.api.tag(&handle.arn, tags).await {
            Ok(()) => {}
            // The service may take no tags for what has ended. It forgets it within the hour; until then this node
            // remembers.
            Err(trouble)
                if ["InvalidParameterException", "ResourceNotFoundException", "ClientException"]
                    .iter()
                    .any(|c| trouble.is(c)) =>
            {
                tracing::debug!(task = handle.arn, %trouble, "an ended task is not tagged as acknowledged");
                let mut acknowledged = lock(&self.acknowledged);
                acknowledged.retain(|_, at| at.elapsed() < FORGOTTEN_AFTER);
                acknowledged.insert(handle.arn.clone(), std::time::Instant::now());
            }
            Err(trouble) => return Err(trouble.into()),
        }
        if let Some(log) = &handle.log {
            self.places.forget(log);
        }
        Ok(())
    }
}

#[async_trait]
impl Look for Site {
    async fn look(&self, handles: &[HandleV1]) -> Vec<Observation> {
        let mut seen = Vec::with_capacity(handles.len());
        for batch in handles.chunks(BATCH) {
            let arns: Vec<String> = batch.iter().map(|h| h.arn.clone()).collect();
            let (tasks, failures) = match self.api.describe(arns).await {
                Ok(answer) => answer,
                Err(why) => {
                    seen.extend(batch.iter().map(|h| Observation::unknown(h.key.as_str(), &why)));
                    continue;
                }
            };
            let tasks: HashMap<&str, &Task> = tasks.iter().filter_map(|t| Some((t.task_arn()?, t))).collect();
            for handle in batch {
                let failure = || failures.iter().find(|f| f.arn() == Some(&handle.arn)).and_then(|f| f.reason());
                let now = match (tasks.get(handle.arn.as_str()), failure()) {
                    (Some(task), _) => observation(task, &self.marks(task, Some(handle)).unwrap_or_default()),
                    (None, Some("MISSING")) => self.missing(handle).await,
                    (None, why) => Observation::unknown(
                        handle.key.as_str(),
                        format!("ECS says {} of the task {}", why.unwrap_or("nothing"), handle.arn),
                    ),
                };
                seen.push(now);
            }
        }
        seen
    }
}

/// One task, for what waits for its end.
pub(crate) struct OneTask<'a>(pub(crate) &'a Site, pub(crate) &'a HandleV1);

#[async_trait]
impl Ended for OneTask<'_> {
    async fn ended(&self) -> Answer<Option<Duration>> {
        let seen = self.0.look(std::slice::from_ref(self.1)).await;
        let ended = seen.first().filter(|s| matches!(s.state, InstanceState::Exited | InstanceState::Gone));
        // A clock that is ahead over there makes it just now; without a time it is long ago.
        Ok(ended.map(|s| s.finished_at.map_or(Duration::MAX, |at| at.elapsed().unwrap_or_default())))
    }
}
