//! One cluster: submissions, looks, ends, acknowledgements.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use driver_sdk::{
    DriverConfig as _, DriverState, Ensure, Ensured, Instance, InstanceState, Observation, Page, RemoteError,
    RemoteHandle,
};
use hpc::Answer;
use hpc::command::{Commands, Said, last_lines};
use hpc::rights::as_owner;
use hpc::users::User;
use hpc::{files, script};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::accounts::{Accounts, Known, NotAsked};
use crate::config::{PluginConfig, TaskOptions};
use crate::look::{self, Step};
use crate::place::{self, About, Base, Claim, Files, Place};
use crate::queue::{Jobs, Queue};
use crate::rest::Rest;
use crate::submit::{Submission, Submissions};
use crate::tables::{self, JobId, Phase};
use crate::{answer, gate, plan, users};

mod stop;

pub(crate) use stop::is_signal;

/// How long a submission waits for a start that comes at once.
const AT_ONCE: Duration = Duration::from_secs(3);
/// How many submissions wait so at a time.
const WAITS: usize = 4;
/// Work on files at a time. What hangs with its file system holds a thread.
const ON_DISK: usize = 16;
/// Fewer tasks say nothing of what a look takes: the answer of the controller does.
const MANY: usize = 200;
/// How often a stop looks for the exit result.
const STOP_LOOK: Duration = Duration::from_millis(100);
/// How long a command beside a task, or a signal to it, waits for its start.
const CLAIMS_WITHIN: Duration = Duration::from_secs(10);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Work on files, which may block for long.
pub(crate) async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> Answer<T> + Send + 'static) -> Answer<T> {
    static TURNS: Semaphore = Semaphore::const_new(ON_DISK);
    let _turn = TURNS.acquire().await.map_err(RemoteError::could_not_ask)?;
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|why| Err(RemoteError::could_not_ask(why)))
}

/// The token that finds an instance again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandleV1 {
    /// Identity of the runtime's directory.
    pub(crate) runtime: String,
    /// Idempotency key.
    pub(crate) key: String,
    /// Cluster id.
    pub(crate) owner: String,
}

impl DriverState for HandleV1 {
    const VERSION: u16 = 1;
}

/// What the files of an instance said, and when.
#[derive(Clone)]
struct Dated {
    about: About,
    /// The last change of the directory before they were read.
    changed: SystemTime,
    read: Instant,
    /// How old they may be.
    patience: Duration,
    files: Files,
}

impl Dated {
    fn fresh(&self) -> bool {
        self.read.elapsed() < self.patience
    }
}

/// What is known of the instance in the directory of a name without reading its files: it ran or waited at the last
/// look, and the directory is as it was then.
fn known(lately: &Mutex<HashMap<String, Dated>>, base: &Base, name: &str) -> Option<About> {
    let (changed, about) = {
        let lately = lock(lately);
        // Keys are names of their own, as a rule.
        let dated = lately.get(name).filter(|dated| dated.fresh() && files::name(&dated.about.key) == name)?;
        (dated.changed, dated.about.clone())
    };
    place::changed(&base.dir(name)).is_some_and(|now| now == changed).then_some(about)
}

/// One cluster as this process reaches it.
pub(crate) struct Site {
    pub(crate) config: PluginConfig,
    pub(crate) base: Base,
    pub(crate) commands: Commands,
    /// slurmrestd, in place of most commands.
    pub(crate) rest: Option<Arc<Rest>>,
    queue: Queue,
    starting: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    submissions: Arc<Submissions>,
    /// Instances that ran or waited at the last look, by key.
    lately: Arc<Mutex<HashMap<String, Dated>>>,
    /// Places to wait for a start that comes at once.
    waits: Semaphore,
    accounts: Accounts,
    /// What a look at many takes, in milliseconds.
    look_took: AtomicU64,
    tracking: OnceLock<String>,
}

impl Site {
    /// Opens the runtime's directory; blocks.
    pub(crate) fn open(config: &PluginConfig, root: &std::path::Path) -> Answer<Self> {
        let commands = config.commands();
        let rest = config.rest.as_ref().map(|rest| Rest::new(rest, config).map(Arc::new)).transpose()?;
        let several = config.has_users();
        let base = Base::open(root, several)?;
        Ok(Self {
            config: config.clone(),
            submissions: Arc::new(Submissions::new(commands.clone(), rest.clone(), base.root.clone(), config.arrays)),
            base,
            queue: Queue::new(commands.clone(), rest.clone(), several),
            accounts: Accounts::new(commands.clone(), rest.clone()),
            look_took: AtomicU64::new(0),
            commands,
            rest,
            starting: Mutex::default(),
            lately: Arc::default(),
            waits: Semaphore::new(WAITS),
            tracking: OnceLock::new(),
        })
    }

    /// Identity of the runtime, the same on every node that shares the directory.
    pub(crate) fn provider(&self) -> String {
        let cluster = self.config.cluster.as_deref().filter(|c| !c.is_empty()).unwrap_or("default");
        format!("slurm/{cluster}/{}", self.base.identity)
    }

    pub(crate) fn place(&self, key: &str) -> Place {
        self.base.place(&files::name(key))
    }

    pub(crate) fn handle(&self, key: &str, owner: &str) -> HandleV1 {
        HandleV1 { runtime: self.base.identity.clone(), key: key.to_owned(), owner: owner.to_owned() }
    }

    /// The place of a handle, if this is its runtime.
    pub(crate) fn resolve(&self, handle: &RemoteHandle) -> Answer<(HandleV1, Place)> {
        let handle = HandleV1::from_remote_handle(handle)?;
        if handle.runtime != self.base.identity {
            return Err(RemoteError::could_not_ask(format!(
                "the instance lives in the runtime {}, and `base` of this node is {}",
                handle.runtime, self.base.identity
            )));
        }
        let place = self.place(&handle.key);
        Ok((handle, place))
    }

    /// What the files of an existing instance say; `None` where there is none.
    pub(crate) async fn files(&self, handle: &HandleV1) -> Answer<Option<(About, Files)>> {
        let (base, place, handle) = (self.base.clone(), self.place(&handle.key), handle.clone());
        on_disk(move || {
            base.here()?;
            match place.about_of(&handle.key, &handle.owner)? {
                Some(about) => Ok(Some((about, place.files()?))),
                None => Ok(None),
            }
        })
        .await
    }

    /// Looks at several instances with one call of `squeue` as a rule. Of those that ran or waited at the last look the
    /// files are read again only if their directory has changed or Slurm says something else.
    pub(crate) async fn look(&self, handles: &[HandleV1]) -> Vec<Observation> {
        let begun = Instant::now();
        let seen = self.look_at_all(handles).await;
        if handles.len() >= MANY {
            // One look beside other work says little.
            let (took, before) = (begun.elapsed(), self.look_took.load(Ordering::Relaxed));
            let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            self.look_took.store(before / 4 * 3 + millis / 4, Ordering::Relaxed);
        }
        seen
    }

    /// How often to look, where all are looked at together.
    pub(crate) fn pace(&self) -> Duration {
        look::pace(self.config.poll_interval, Duration::from_millis(self.look_took.load(Ordering::Relaxed)))
    }

    async fn look_at_all(&self, handles: &[HandleV1]) -> Vec<Observation> {
        let unchanged = self.unchanged(handles).await;
        let mut read = self.dated_files(handles, &|n| !unchanged[n]).await;
        let open = |read: &Option<Answer<Option<Dated>>>| match read {
            Some(Ok(Some(dated))) => look::alone(&dated.files).is_none(),
            Some(_) => false,
            None => true,
        };
        // For what stands as it stood, a queue that is a moment old will do.
        let jobs = match (read.iter().any(open), read.iter().flatten().next().is_some()) {
            (false, _) => None,
            (true, false) => Some(self.queue.lately(self.config.poll_interval).await),
            (true, true) => Some(self.queue.now().await),
        };
        let staying: Vec<Option<Observation>> = {
            // What another look has made of it meanwhile will do as well. Nothing is copied: there may be thousands.
            let lately = lock(&self.lately);
            let stays = |(handle, unchanged): (&HandleV1, bool)| {
                let jobs = jobs.as_ref().filter(|_| unchanged)?.as_ref().ok()?;
                look::stays(&handle.key, &lately.get(&handle.key)?.files, jobs, &files::name(&handle.key))
            };
            handles.iter().zip(unchanged).map(stays).collect()
        };
        let again = self.dated_files(handles, &|n| read[n].is_none() && staying[n].is_none()).await;
        let doubted = again.iter().any(Option::is_some);
        for (read, again) in read.iter_mut().zip(again) {
            *read = read.take().or(again);
        }
        // Files are judged by the queue as it was read after them. A controller that does not answer is asked once.
        let jobs = match jobs {
            Some(Ok(_)) if doubted => Some(self.queue.now().await),
            jobs => jobs,
        };
        let accounts = match &jobs {
            Some(Ok(jobs)) => self.accounts.of(forgotten(handles, &read, jobs)).await,
            _ => Known::default(),
        };
        let mut seen = Vec::with_capacity(handles.len());
        for ((handle, staying), read) in handles.iter().zip(staying).zip(read) {
            let observed = match (staying, read) {
                (Some(staying), _) => Ok(staying),
                (None, Some(read)) => self.look_fully(handle, read, jobs.as_ref(), &accounts).await,
                (None, None) => Err(RemoteError::could_not_ask("it was not looked at")),
            };
            seen.push(observed.unwrap_or_else(|why| Observation::unknown(handle.key.as_str(), why)));
        }
        // Instances that nobody asks for any more.
        lock(&self.lately).retain(|_, dated| dated.read.elapsed() < 2 * dated.patience);
        seen
    }

    /// Which instances ran or waited at the last look, and have a directory that is as it was then.
    async fn unchanged(&self, handles: &[HandleV1]) -> Vec<bool> {
        let known: Vec<Option<(SystemTime, PathBuf)>> = {
            let lately = lock(&self.lately);
            let fresh = |handle: &HandleV1, dated: &Dated| dated.about.owner == handle.owner && dated.fresh();
            let of = |handle: &HandleV1| {
                let dated = lately.get(&handle.key).filter(|dated| fresh(handle, dated))?;
                Some((dated.changed, self.base.dir(&files::name(&handle.key))))
            };
            handles.iter().map(of).collect()
        };
        if known.iter().all(Option::is_none) {
            return vec![false; handles.len()];
        }
        let base = self.base.clone();
        let compared = on_disk(move || {
            base.here()?;
            let same = |(before, dir): (SystemTime, PathBuf)| place::changed(&dir).is_some_and(|now| now == before);
            Ok(known.into_iter().map(|known| known.is_some_and(same)).collect())
        });
        compared.await.unwrap_or_else(|_| vec![false; handles.len()])
    }

    /// As [`Site::files`] of those that are wanted, each with the time of the directory's last change before they were
    /// read.
    async fn dated_files(
        &self,
        handles: &[HandleV1],
        wanted: &(dyn Fn(usize) -> bool + Sync),
    ) -> Vec<Option<Answer<Option<Dated>>>> {
        let asked: Vec<Option<(HandleV1, Place)>> = (0..)
            .zip(handles)
            .map(|(n, handle)| wanted(n).then(|| (handle.clone(), self.place(&handle.key))))
            .collect();
        if asked.iter().all(Option::is_none) {
            return vec![None; handles.len()];
        }
        let base = self.base.clone();
        let none = asked.iter().map(Option::is_some).collect::<Vec<_>>();
        let all = on_disk(move || {
            base.here()?;
            let read = |(handle, place): &(HandleV1, Place)| -> Answer<Option<Dated>> {
                let (changed, read) = (place.changed().unwrap_or(SystemTime::UNIX_EPOCH), Instant::now());
                let Some(about) = place.about_of(&handle.key, &handle.owner)? else { return Ok(None) };
                Ok(Some(Dated { about, changed, read, patience: look::patience(false), files: place.files()? }))
            };
            Ok(asked.iter().map(|one| one.as_ref().map(read)).collect::<Vec<_>>())
        });
        all.await.unwrap_or_else(|why| none.into_iter().map(|asked| asked.then(|| Err(why.clone()))).collect())
    }

    async fn look_fully(
        &self,
        handle: &HandleV1,
        read: Answer<Option<Dated>>,
        jobs: Option<&Answer<Arc<Jobs>>>,
        accounts: &Known,
    ) -> Answer<Observation> {
        let before = lock(&self.lately).remove(&handle.key);
        let Some(mut dated) = read? else {
            return Ok(Observation {
                key: handle.key.clone(),
                state: InstanceState::Gone,
                reason: "there is no such run directory".to_owned(),
                ..Observation::default()
            });
        };
        dated.patience = look::patience(before.is_some_and(|before| before.changed == dated.changed));
        let observed = self.look_at(handle, &mut dated, jobs, accounts).await?;
        let stands = match dated.files.claim {
            Some(Claim::Job { .. }) => observed.state == InstanceState::Running,
            Some(_) => false,
            None => observed.state == InstanceState::Creating && dated.files.job.is_some(),
        };
        if stands {
            lock(&self.lately).insert(handle.key.clone(), dated);
        }
        Ok(observed)
    }

    /// One look, with the queue as it was read after the files; they may have to be read anew.
    async fn look_at(
        &self,
        handle: &HandleV1,
        dated: &mut Dated,
        jobs: Option<&Answer<Arc<Jobs>>>,
        accounts: &Known,
    ) -> Answer<Observation> {
        let (name, place) = (files::name(&handle.key), self.place(&handle.key));
        let queue = match (look::alone(&dated.files), jobs) {
            (Some(step), _) => return Ok(look::observation(&handle.key, &dated.files, None, &name, &step)),
            (None, Some(Ok(jobs))) => jobs.clone(),
            (None, Some(Err(why))) => return Err(why.clone()),
            (None, None) => self.queue.now().await?,
        };
        // The usual case, thousands of times: there is nothing to make sure of.
        if let Some(seen) = look::stays(&handle.key, &dated.files, &queue, &name) {
            return Ok(seen);
        }
        let mut step = look::together(&dated.files, &queue, &name);
        // A job may have claimed since its directory was read.
        if !matches!(step, Step::Known(InstanceState::Running | InstanceState::Unknown, _)) {
            let again = place.clone();
            (dated.changed, dated.files) = on_disk(move || again.files_for_sure_since()).await?;
            step = look::together(&dated.files, &queue, &name);
        }
        let mut files = dated.files.clone();
        if let Step::Absent { id, nodes } = &step {
            step = match accounts.entry(*id, &name, &files) {
                Ok(Some(job)) if job.phase() != Phase::Running => look::of_job(job, nodes),
                // The next look asks.
                Ok(Some(_)) | Err(NotAsked) => step,
                Ok(None) => Step::Ended {
                    why: format!("Slurm does not know the job {id} any more, and it has left no exit result"),
                    code: look::KILLED,
                    out_of_memory: false,
                    nodes: if nodes.is_empty() { "?".into() } else { nodes.clone() },
                },
            };
        }
        match step.clone() {
            Step::Close(why) => {
                let closing = place.clone();
                let closed = on_disk(move || closing.close(&Claim::Over(why))).await?;
                files.claim = Some(closed);
                step = look::alone(&files).unwrap_or(Step::Known(InstanceState::Running, String::new()));
            }
            Step::Ended { why, code, out_of_memory, nodes } if nodes.is_empty() || self.heard(&nodes).await => {
                let exit = look::without_result(why.clone(), (code, out_of_memory), SystemTime::now());
                let writing = place.clone();
                // A node that is heard again still has to end what the controller has given up.
                let ended = on_disk(move || match writing.alive()? {
                    true => Ok(None),
                    false => writing.ended(&exit).map(Some),
                });
                step = match ended.await? {
                    Some(exit) => Step::Exited(exit),
                    None => Step::Known(InstanceState::Unknown, format!("{why}; something of it still runs")),
                };
            }
            _ => {}
        }
        Ok(look::observation(&handle.key, &files, Some(&queue), &name, &step))
    }

    /// Whether the controller answers.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: it does not. With `rest` slurmrestd is asked, and nobody else.
    pub(crate) async fn ping(&self) -> Answer<()> {
        if let Some(rest) = &self.rest {
            return rest.ping().await;
        }
        let said = self.commands.run("scontrol", &["ping".to_owned()]).await?;
        match said.success {
            true => Ok(()),
            false => Err(RemoteError::could_not_ask(format!(
                "the controller does not answer: {}",
                last_lines(&format!("{}{}", said.stdout, said.stderr))
            ))),
        }
    }

    /// How the cluster finds the processes of a job (`ProctrackType`), asked once; `None` while it does not say.
    pub(crate) async fn tracking(&self) -> Option<String> {
        if let Some(known) = self.tracking.get() {
            return Some(known.clone());
        }
        let said = self.commands.run("scontrol", &["show", "config"].map(str::to_owned)).await.ok()?;
        let kind = tables::setting(&said.stdout, "ProctrackType").filter(|_| said.success)?.to_owned();
        Some(self.tracking.get_or_init(|| kind).clone())
    }

    /// Whether the controller hears all of these nodes: then it has ended what ran there.
    async fn heard(&self, nodes: &str) -> bool {
        if let Some(rest) = &self.rest {
            return rest.heard(nodes).await;
        }
        let args = ["-h", "-N", "-n", nodes, "-o", "%T"].map(str::to_owned);
        let said = self.commands.run("sinfo", &args).await;
        said.is_ok_and(|said| said.success && tables::all_heard(&said.stdout))
    }

    async fn one(&self, handle: &HandleV1) -> Answer<Observation> {
        match self.look(std::slice::from_ref(handle)).await.pop() {
            Some(seen) => Ok(seen),
            None => Err(RemoteError::could_not_ask("it was not looked at")),
        }
    }

    async fn existing(&self, handle: &HandleV1) -> Answer<Ensured> {
        let observed = self.one(handle).await?;
        match observed.state {
            InstanceState::Gone => Err(RemoteError::sealed(format!("the key {}: {}", handle.key, observed.reason))),
            _ => Ok(Ensured { handle: handle.remote_handle()?, observed, created: false }),
        }
    }

    /// Creates or gets.
    #[expect(clippy::await_holding_invalid_type, reason = "one start of a key at a time")]
    pub(crate) async fn ensure(&self, request: Ensure) -> Answer<Ensured> {
        let options = TaskOptions::decode(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        plan::refused(&request.task, &options)?;
        let user = self.user_of(&request.task.user).await?;
        request.bundle.verify()?;
        let turn = lock(&self.starting).entry(request.key.clone()).or_default().clone();
        let _turn = turn.lock().await;
        let ensured = self.start(request, options, user).await;
        let mut starting = lock(&self.starting);
        // Ours and the map's: nobody else waits.
        starting.retain(|_, turn| Arc::strong_count(turn) > 2);
        ensured
    }

    /// Whom a job of this task runs as; `None`: the user of the agent.
    async fn user_of(&self, named: &str) -> Answer<Option<User>> {
        let Some(name) = users::wanted(named, &self.config)? else { return Ok(None) };
        let user = hpc::users::look_up(&self.commands, name).await?;
        users::allowed(&user, &self.config, rustix::process::geteuid().as_raw())?;
        Ok(Some(user))
    }

    /// The user to whom a run directory was given; `None`: it is the agent's.
    pub(crate) async fn user_of_place(&self, place: &Place) -> Answer<Option<User>> {
        let place = place.clone();
        match on_disk(move || place.given_to()).await? {
            Some(uid) => hpc::users::look_up(&self.commands, &uid.to_string()).await.map(Some),
            None => Ok(None),
        }
    }

    async fn start(&self, request: Ensure, options: TaskOptions, user: Option<User>) -> Answer<Ensured> {
        let handle = self.handle(&request.key, &request.owner);
        let (place, name) = (self.place(&request.key), files::name(&request.key));
        let about = About {
            key: request.key.clone(),
            owner: request.owner.clone(),
            slot: request.slot.clone(),
            task: request.task.name.clone(),
        };
        let (base, making, epoch) = (self.base.clone(), place.clone(), request.epoch);
        let owner = user.as_ref().map(|user| user.owner);
        let found = on_disk(move || {
            base.here()?;
            making.make(&about, owner)?;
            making.under(epoch, || making.files_for_sure())
        })
        .await?;
        if found.acknowledged || found.claim.is_some() || found.job.is_some() {
            return self.existing(&handle).await;
        }
        // An earlier submission whose answer was lost.
        let asked = place.clone();
        if on_disk(move || Ok(asked.was_sending())).await?
            && let Some(id) = self.queue.now().await?.live(&name, &found)
        {
            let noting = place.clone();
            on_disk(move || noting.sent(id)).await?;
            return self.existing(&handle).await;
        }
        let laying = (place.clone(), request.clone(), options.clone());
        on_disk(move || {
            let (place, request, options) = laying;
            lay_out(&place, &request, &options)
        })
        .await?;
        let submission = Submission {
            place: place.clone(),
            name: name.clone(),
            owner: request.owner.clone(),
            key: request.key.clone(),
            epoch: request.epoch,
            user,
            options: plan::shared(&request.task, &options, &self.config),
        };
        self.submissions.submit(submission).await?;
        // What starts at once is answered as running, with its start. Where many start, those behind must not wait for
        // that.
        let waits = self.waits.try_acquire();
        let begun = Instant::now();
        let files = loop {
            let reading = place.clone();
            let files = on_disk(move || reading.files()).await?;
            if files.claim.is_some() || waits.is_err() || begun.elapsed() > AT_ONCE {
                break files;
            }
            tokio::time::sleep(STOP_LOOK / 2).await;
        };
        drop(waits);
        let step = look::alone(&files).unwrap_or_else(|| match files.claim {
            Some(_) => Step::Known(InstanceState::Running, String::new()),
            None => Step::Known(InstanceState::Creating, "the job has been submitted".to_owned()),
        });
        let observed = look::observation(&request.key, &files, None, &name, &step);
        Ok(Ensured { handle: handle.remote_handle()?, observed, created: true })
    }

    /// Finds an instance by its key.
    pub(crate) async fn find(
        &self,
        key: &str,
        owner: &str,
        create_follows: bool,
    ) -> Answer<(RemoteHandle, Observation)> {
        let handle = self.handle(key, owner);
        let gone = |why: &str| Err(RemoteError::gone(format!("{} has no instance {key}: {why}", self.provider())));
        let Some((_, files)) = self.files(&handle).await? else {
            return gone("no run directory");
        };
        if files.claim.is_none() && files.job.is_none() {
            let place = self.place(key);
            if !on_disk(move || Ok(place.was_sending())).await? {
                return gone("nothing was submitted");
            }
            match self.queue.now().await?.live(&files::name(key), &files) {
                Some(id) => {
                    let place = self.place(key);
                    on_disk(move || place.sent(id)).await?;
                }
                // Any number of submissions make one instance.
                None if create_follows => return gone("the queue shows no submission"),
                None => {}
            }
        }
        let observed = self.one(&handle).await?;
        match observed.state {
            InstanceState::Gone => gone(&observed.reason),
            _ => Ok((handle.remote_handle()?, observed)),
        }
    }

    /// Instances of an owner, or of all, after a name.
    pub(crate) async fn list(&self, owner: &str, after: &str, size: usize) -> Answer<Page> {
        let (base, owner, after) = (self.base.clone(), owner.to_owned(), after.to_owned());
        let (size, keep) = (size.max(1), self.config.keep_sealed);
        let agent = rustix::process::geteuid().as_raw();
        let lately = self.lately.clone();
        let (listed, more, incomplete) = on_disk(move || {
            base.here()?;
            let (mut listed, mut incomplete): (Vec<(String, About)>, String) = (Vec::new(), String::new());
            // What comes before was read for an earlier page.
            for name in base.names()?.into_iter().filter(|name| *name > after) {
                let place = base.place(&name);
                let read = match known(&lately, &base, &name) {
                    Some(about) => Ok(Some((about, None))),
                    None => place.about_and_files(&name).map(|both| both.map(|(about, files)| (about, Some(files)))),
                };
                let (about, files) = match read {
                    Ok(Some(both)) => both,
                    Ok(None) => continue,
                    // What another user makes of a directory is no reason to show nobody's.
                    Err(why) if place.owner()?.is_some_and(|owner| owner.uid != agent) => {
                        incomplete = why.to_string();
                        continue;
                    }
                    Err(why) => return Err(why),
                };
                let closed = |files: &Files| files.acknowledged || files.claim == Some(Claim::Sealed);
                if files.as_ref().is_some_and(closed) {
                    if place.closed_for().is_some_and(|age| age > keep) {
                        // What cannot be removed hides nothing else.
                        if let Err(why) = place.remove() {
                            tracing::info!(name, %why, "a run directory whose time is over stays");
                        }
                    }
                    continue;
                }
                let asked_for = |files: &Files| files.claim.is_some() || files.job.is_some() || place.was_sending();
                if !files.as_ref().is_none_or(asked_for) || !(owner.is_empty() || about.owner == owner) {
                    continue;
                }
                if listed.len() == size {
                    return Ok((listed, true, incomplete));
                }
                listed.push((name, about));
            }
            Ok((listed, false, incomplete))
        })
        .await?;
        let handles: Vec<HandleV1> = listed.iter().map(|(_, about)| self.handle(&about.key, &about.owner)).collect();
        let seen = self.look(&handles).await;
        let mut page = Page { incomplete, ..Page::default() };
        if more {
            page.next_page_token = listed.last().map(|(name, _)| name.clone()).unwrap_or_default();
        }
        for (((_, about), handle), observed) in listed.into_iter().zip(handles).zip(seen) {
            if observed.state == InstanceState::Gone {
                continue;
            }
            page.instances.push(Instance {
                key: about.key,
                owner: about.owner,
                slot: about.slot,
                epoch: observed.epoch,
                handle: handle.remote_handle()?,
                observed,
            });
        }
        Ok(page)
    }

    /// Makes sure that nothing starts with a key that has nothing yet.
    pub(crate) async fn seal(&self, key: &str, epoch: u64, owner: &str) -> Answer<Option<(RemoteHandle, Observation)>> {
        let (base, place) = (self.base.clone(), self.place(key));
        let about = About { key: key.to_owned(), owner: owner.to_owned(), slot: String::new(), task: String::new() };
        let sealed = on_disk(move || {
            base.here()?;
            place.make(&about, None)?;
            place.under(epoch, || {
                let files = place.files_for_sure()?;
                let sealed = match (&files.claim, files.job) {
                    _ if files.acknowledged => true,
                    (None, None) => place.close(&Claim::Sealed)? == Claim::Sealed,
                    (claim, _) => *claim == Some(Claim::Sealed),
                };
                if sealed
                    && !files.acknowledged
                    && let Err(why) = place.strip()
                {
                    tracing::warn!(%why, "files of a sealed key stay");
                }
                Ok((sealed, files))
            })
        })
        .await?;
        let (sealed, files) = sealed;
        if sealed {
            self.cancel(key, &files).await;
            return Ok(None);
        }
        let handle = self.handle(key, owner);
        let seen = self.one(&handle).await?;
        match seen.state {
            InstanceState::Gone => Ok(None),
            _ => Ok(Some((handle.remote_handle()?, seen))),
        }
    }

    /// Takes submissions that cannot start anything any more out of the queue. `files` are those of the run directory.
    async fn cancel(&self, key: &str, files: &Files) {
        // slurmrestd ends jobs by number: those with the key's own name are looked for as well.
        let own = self.rest.as_ref().map_or_else(String::new, |_| files::name(key));
        if own.is_empty() && !files.only_arrays {
            let user = files.user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
            self.cancel_with(key, &[format!("--name={}", files::name(key)), format!("--user={user}")]).await;
        }
        if own.is_empty() && files.arrays.is_empty() {
            return;
        }
        // The name of an array stands for all of it.
        let jobs = match self.queue.now().await {
            Ok(jobs) => jobs,
            Err(why) => return tracing::info!(key, %why, "submissions of a closed key stay in the queue"),
        };
        let left = jobs.of_instance(&own, files).filter(|job| job.phase() != Phase::Ended);
        if let Some(rest) = &self.rest {
            for job in left {
                if let Err(why) = rest.signal(job.id, "KILL").await {
                    tracing::info!(key, %why, "submissions of a closed key stay in the queue");
                }
            }
            return;
        }
        let left: Vec<String> = left.map(|job| job.id.to_string()).collect();
        if !left.is_empty() {
            self.cancel_with(key, &left).await;
        }
    }

    async fn cancel_with(&self, key: &str, args: &[String]) {
        match self.commands.run("scancel", args).await {
            Ok(said) if said.success || answer::no_such_job(&said.stderr) => {}
            Ok(said) => tracing::info!(key, said.stderr, "submissions of a closed key stay in the queue"),
            Err(why) => tracing::info!(key, %why, "submissions of a closed key stay in the queue"),
        }
    }

    /// A signal to the job that has the claim of a run directory: to its script and everything below it.
    pub(crate) async fn send(&self, place: &Place, id: JobId, signal: &str) -> Answer<()> {
        if let Some(rest) = &self.rest {
            return rest.signal(id, signal).await;
        }
        let said = self.scancel(place, &["--full", &format!("--signal={signal}"), &id.to_string()]).await?;
        if said.stderr.contains("Unknown job signal") || said.stderr.contains("Invalid job signal") {
            return Err(RemoteError::wrong_request(format!("Slurm does not know the signal {signal:?}")));
        }
        match said.success || answer::no_such_job(&said.stderr) {
            true => Ok(()),
            false => said.output("scancel").map(drop),
        }
    }

    /// `scancel` with the rights of the directory's user, who may have written somebody else's number into the claim.
    async fn scancel(&self, place: &Place, args: &[&str]) -> Answer<Said> {
        let user = self.user_of_place(place).await?;
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        self.commands.run_in((user.as_ref(), "/".as_ref()), "scancel", &args, "").await
    }

    /// The job that has the claim, if any, and its own number, after the epoch was accepted.
    pub(crate) async fn claimant(&self, handle: &HandleV1, epoch: u64) -> Answer<(JobId, u64)> {
        let Some((_, files)) = self.files(handle).await? else {
            return Err(RemoteError::gone(format!("there is no instance {}", handle.key)));
        };
        if files.acknowledged {
            return Err(RemoteError::gone(format!("the end of {} was acknowledged", handle.key)));
        }
        let place = self.place(&handle.key);
        on_disk(move || place.under(epoch, || Ok(()))).await?;
        // What was just submitted runs in a moment.
        let begun = Instant::now();
        let mut files = files;
        loop {
            match (&files.claim, &files.exit) {
                (Some(Claim::Job { id, number, .. }), None) => return Ok((*id, *number)),
                (None, _) if begun.elapsed() < CLAIMS_WITHIN => {}
                (None, _) => {
                    return Err(RemoteError::could_not_ask(format!("the instance {} has not started yet", handle.key)));
                }
                _ => return Err(RemoteError::wrong_request(format!("the instance {} does not run", handle.key))),
            }
            tokio::time::sleep(STOP_LOOK).await;
            let place = self.place(&handle.key);
            files = on_disk(move || place.files()).await?;
        }
    }

    /// Forgets an ended instance; its key stays sealed.
    pub(crate) async fn acknowledge(&self, handle: &HandleV1, epoch: u64) -> Answer<()> {
        let seen = self.one(handle).await?;
        match seen.state {
            InstanceState::Gone => return Ok(()),
            InstanceState::Exited => {}
            InstanceState::Unknown => return Err(RemoteError::could_not_ask(seen.reason)),
            InstanceState::Creating | InstanceState::Running => {
                return Err(RemoteError::wrong_request(format!(
                    "instance {} has not ended; stop it before its result is acknowledged",
                    handle.key
                )));
            }
        }
        let place = self.place(&handle.key);
        let files = on_disk(move || {
            place.under(epoch, || {
                let files = place.files()?;
                place.acknowledge().map(|()| files)
            })
        });
        let files = files.await?;
        self.cancel(&handle.key, &files).await;
        Ok(())
    }

    /// Use of CPU (seconds) and memory (bytes) of the running job with this number of its own.
    pub(crate) async fn usage(&self, number: u64) -> Answer<Option<(f64, u64)>> {
        let args = ["-n", "-P", "-j", &format!("{number}.batch"), "-o", "avecpu,maxrss"].map(str::to_owned);
        let said = self.commands.run("sstat", &args).await?;
        Ok(said.stdout.lines().find_map(|line| {
            let (cpu, memory) = line.trim().split_once('|')?;
            Some((tables::seconds(cpu)?, tables::bytes(memory)?))
        }))
    }
}

/// Jobs that have claimed and that the controller does not know any more.
fn forgotten(handles: &[HandleV1], read: &[Option<Answer<Option<Dated>>>], jobs: &Jobs) -> Vec<JobId> {
    let job = |(handle, read): (&HandleV1, &Option<Answer<Option<Dated>>>)| match read {
        Some(Ok(Some(dated))) => match look::together(&dated.files, jobs, &files::name(&handle.key)) {
            Step::Absent { id, .. } => Some(id),
            _ => None,
        },
        _ => None,
    };
    handles.iter().zip(read).filter_map(job).collect()
}

/// Everything that a job needs, before it is submitted.
fn lay_out(place: &Place, request: &Ensure, options: &TaskOptions) -> Answer<()> {
    as_owner(&place.dir, || lay_out_as_owner(place, request, options))
}

fn lay_out_as_owner(place: &Place, request: &Ensure, options: &TaskOptions) -> Answer<()> {
    files::lay_out(&place.dir, &request.bundle)?;
    let (task, alloc) = (place.dir.join("task"), place.dir.join("alloc"));
    let work_dir = match options.work_dir.as_deref().filter(|d| !d.is_empty()) {
        None => task.clone(),
        Some(dir) => task.join(dir),
    };
    if work_dir.starts_with(&task) {
        let unclear = |why| RemoteError::could_not_ask(format!("could not make {}: {why}", work_dir.display()));
        std::fs::create_dir_all(&work_dir).map_err(unclear)?;
    }
    let mut env: BTreeMap<String, String> = request.task.env.clone().into_iter().collect();
    // The manager's paths of these directories do not exist there.
    let dirs: [(&str, PathBuf); 3] =
        [("TASK", task.join("local")), ("SECRETS", task.join("secrets")), ("ALLOC", alloc)];
    for (name, dir) in dirs {
        env.insert(format!("NOMAD_{name}_DIR"), dir.display().to_string());
    }
    // What stands in it is searched for programs; the cluster's own comes without one.
    let put = |name: &str, mode: u32, text: String| files::put(&place.dir.join(name), mode, text.as_bytes());
    put("env", 0o600, script::environment(&env))?;
    put("task.sh", 0o700, gate::task(&place.dir, &work_dir, options))?;
    put("beside.sh", 0o700, script::beside(&place.dir, &work_dir))?;
    put("gate.sh", 0o700, gate::gate(&place.dir))
}
