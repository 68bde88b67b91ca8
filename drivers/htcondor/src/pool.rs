//! One schedd: creates, looks, stops, acknowledges.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use driver_sdk::turns::Turns;
use driver_sdk::{
    DriverConfig as _, DriverState, Ensure, Ensured, Instance, InstanceState, Observation, Page, RemoteError,
    RemoteHandle, StopTask,
};
use hpc::Answer;
use hpc::command::{Commands, Said, last_lines};
use hpc::users::User;
use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, Semaphore};

use crate::ads::{self, ATTRIBUTES, Job, Role, literal};
use crate::config::{PluginConfig, TaskOptions};
use crate::key::{self, Cleared, Step};
use crate::look::{self, Look};
use crate::place::{Base, Began, Files};
use crate::submit;

/// How often the jobs of a key are read before a create gives up: others may be making it as well.
const ROUNDS: usize = 24;
/// What a create waits for a multiple of, after another one has removed its candidate.
const AGAIN: Duration = Duration::from_millis(200);
/// Work on files at a time. What hangs with its file system holds a thread.
const ON_DISK: usize = 16;
/// How often a stop looks for the end.
const STOP_LOOK: Duration = Duration::from_millis(250);
/// How long after SIGKILL an end may take before a stop is given up and asked for again.
const STOP_SLACK: Duration = Duration::from_secs(60);

/// Work on files, which may block for long.
pub(crate) async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> Answer<T> + Send + 'static) -> Answer<T> {
    static TURNS: Semaphore = Semaphore::const_new(ON_DISK);
    let _turn = TURNS.acquire().await.map_err(RemoteError::could_not_ask)?;
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|why| Err(RemoteError::could_not_ask(why)))
}

/// The token that finds an instance again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandleV1 {
    /// Identity of the runtime.
    pub(crate) provider: String,
    /// Idempotency key.
    pub(crate) key: String,
    /// Cluster id of Drover.
    pub(crate) owner: String,
    /// Cluster id of the job.
    pub(crate) cluster: u64,
}

impl DriverState for HandleV1 {
    const VERSION: u16 = 1;
}

/// One schedd as this node uses it.
pub(crate) struct Pool {
    pub(crate) config: PluginConfig,
    pub(crate) commands: Commands,
    pub(crate) provider: String,
    pub(crate) schedd: String,
    pub(crate) base: Base,
    /// User of all jobs; `None`: that of the agent.
    pub(crate) user: Option<User>,
    /// Its name.
    name: OnceCell<String>,
    /// One decision of a key at a time: others would remove each other's candidates.
    turns: Turns,
    /// Where and when instances began that run, by key: it is read once.
    claims: Mutex<HashMap<String, Began>>,
}

impl Pool {
    /// Opens the directory and looks the user up; asks HTCondor nothing.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: what is missing.
    pub(crate) async fn open(config: &PluginConfig, root: &std::path::Path, schedd: &str) -> Answer<Self> {
        let commands = config.commands();
        let root_agent = rustix::process::geteuid().is_root();
        let user = match config.user.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => Some(hpc::users::look_up(&commands, name).await?),
            None if root_agent => {
                return Err(RemoteError::could_not_ask(
                    "HTCondor takes no jobs of root; set `user` in the plugin's configuration, or run the agent as \
                        another user",
                ));
            }
            None => None,
        };
        let other = user.as_ref().is_some_and(|user| user.owner.uid != rustix::process::geteuid().as_raw());
        if other && !root_agent {
            return Err(RemoteError::could_not_ask(
                "only an agent that runs as root submits as another user; leave `user` out, or run the agent as root",
            ));
        }
        let provider = config.pool.as_ref().map_or_else(|| schedd.to_owned(), |pool| format!("{pool}/{schedd}"));
        let base = Base::new(root, &provider, user.as_ref().map(|user| user.owner).filter(|_| other));
        let (opened, user) = (base.clone(), user.filter(|_| other));
        on_disk(move || opened.open()).await?;
        let (config, schedd) = (config.clone(), schedd.to_owned());
        Ok(Self {
            config,
            commands,
            provider,
            schedd,
            base,
            user,
            name: OnceCell::new(),
            turns: Turns::default(),
            claims: Mutex::default(),
        })
    }

    pub(crate) fn resolve(&self, handle: &RemoteHandle) -> Answer<HandleV1> {
        let handle = HandleV1::from_remote_handle(handle)?;
        match handle.provider == self.provider {
            true => Ok(handle),
            false => Err(RemoteError::could_not_ask(format!(
                "the instance is in the queue of {}, and this node asks {}",
                handle.provider, self.provider
            ))),
        }
    }

    /// Runs a command as the user of the jobs.
    pub(crate) async fn run(&self, name: &str, args: &[&str], input: &str) -> Answer<Said> {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        self.commands.run_in((self.user.as_ref(), std::path::Path::new("/")), name, &args, input).await
    }

    /// Name of the user of the jobs.
    async fn user(&self) -> Answer<&str> {
        let look_up = async || match &self.user {
            Some(user) => Ok(user.name.clone()),
            None => {
                let agent = rustix::process::geteuid().as_raw().to_string();
                hpc::users::look_up(&self.commands, &agent).await.map(|user| user.name)
            }
        };
        self.name.get_or_try_init(look_up).await.map(String::as_str)
    }

    /// The jobs that meet a condition, of this user: anybody may give a job these attributes.
    async fn jobs(&self, condition: &str) -> Answer<Vec<Job>> {
        // `==` takes no notice of the case of letters.
        self.jobs_of_anybody(&format!("Owner =?= {} && {condition}", literal(self.user().await?))).await
    }

    async fn jobs_of_anybody(&self, condition: &str) -> Answer<Vec<Job>> {
        let args = ["-allusers", "-json", "-constraint", condition, "-attributes", ATTRIBUTES];
        let said = self.run("condor_q", &args, "").await?;
        ads::jobs(&said.output("condor_q")?).map_err(RemoteError::could_not_ask)
    }

    async fn of_key(&self, key: &str, owner: &str) -> Answer<Vec<Job>> {
        self.jobs(&format!("DroverKey =?= {} && DroverOwner =?= {}", literal(key), literal(owner))).await
    }

    /// Does something with the jobs that meet a condition at that moment; how many there were.
    async fn act(&self, command: &str, condition: &str) -> Answer<u64> {
        let said = self.run(command, &["-totals", "-constraint", condition], "").await?;
        match ads::totals(&said.stdout) {
            Some((done, 0)) => Ok(done),
            Some((_, refused)) => Err(RemoteError::could_not_ask(format!(
                "{command}: the schedd refused it for {refused} jobs; may the user of the jobs change them?"
            ))),
            None => Err(RemoteError::could_not_ask(format!("{command}: {}", last_lines(&said.stderr)))),
        }
    }

    /// Removes the run directory of a key for which nothing has begun and nothing will.
    async fn discard(&self, key: &str) {
        let (base, place) = (self.base.clone(), self.base.place(key));
        if let Err(why) = on_disk(move || base.here().and_then(|()| place.discard())).await {
            tracing::info!(key, %why, "a run directory that is not needed stays");
        }
    }

    /// Changes attributes of the jobs that meet a condition at that moment; whether there were any.
    async fn edit(&self, condition: &str, values: &[(&str, &str)]) -> Answer<bool> {
        let values = values.iter().flat_map(|(name, value)| [*name, *value]);
        let args: Vec<&str> = ["-constraint", condition].into_iter().chain(values).collect();
        let said = self.run("condor_qedit", &args, "").await?;
        match said.success {
            true => Ok(true),
            false if said.stderr.contains("Failed to set attribute") => Ok(false),
            false => Err(RemoteError::could_not_ask(format!("condor_qedit: {}", last_lines(&said.stderr)))),
        }
    }

    async fn submit(&self, description: &str) -> Answer<u64> {
        let said = self.run("condor_submit", &["-terse", "-"], description).await?;
        match submit::cluster(&said.stdout).filter(|_| said.success) {
            Some(cluster) => Ok(cluster),
            // Nothing begins by it, so a repetition makes no second instance.
            None if said.stderr.contains("Failed to parse") || said.stderr.contains("Parse error") => {
                Err(RemoteError::wrong_request(format!("condor_submit: {}", last_lines(&said.stderr))))
            }
            None => Err(RemoteError::could_not_ask(format!("condor_submit: {}", last_lines(&said.stderr)))),
        }
    }

    /// Brings the jobs of a key to a decision. `sealing`: the key is to be sealed; else `own` makes a candidate.
    async fn decide(&self, key: &str, owner: &str, epoch: u64, own: Own<'_>) -> Answer<(Option<Job>, bool)> {
        let of_key = format!("DroverKey =?= {} && DroverOwner =?= {}", literal(key), literal(owner));
        // Not one that is being removed. A person may have released one, which then matches no machine.
        let waits = "(JobStatus == 5 || JobStatus == 1)";
        let candidates = format!("{of_key} && {waits} && DroverState == {}", literal(Role::Candidate.text()));
        let (mut mine, mut cleared) = (None, Cleared::No);
        for _ in 0..ROUNDS {
            let jobs = self.of_key(key, owner).await?;
            let accepted = key::epoch(&jobs);
            if epoch < accepted {
                self.withdraw(&candidates, mine).await;
                return Err(RemoteError::StaleEpoch { given: epoch, accepted });
            }
            let step = key::step(&jobs, mine, cleared);
            cleared = Cleared::No;
            match (step, &own) {
                (Step::Instance(job), _) => {
                    if mine != Some(job.cluster()) {
                        self.withdraw(&candidates, mine).await;
                    }
                    let (job, again) = self.taken_over(*job, epoch).await?;
                    if !again {
                        let made = mine == Some(job.cluster());
                        return Ok((Some(job), made));
                    }
                }
                (Step::Clear { sealed }, _) => {
                    let others = mine.map_or_else(String::new, |mine| format!(" && ClusterId != {mine}"));
                    self.act("condor_rm", &format!("{candidates}{others}")).await?;
                    cleared = if sealed { Cleared::UnderSeal } else { Cleared::Yes };
                }
                (Step::Begin, _) => {
                    let condition = format!("{candidates} && ClusterId == {}", mine.unwrap_or_default());
                    self.edit(&condition, &[("DroverState", &literal(Role::Begun.text()))]).await?;
                }
                (Step::Sealed, _) => {
                    self.withdraw(&candidates, mine).await;
                    self.discard(key).await;
                    return Ok((None, false));
                }
                (Step::Nothing, Own::Seal) => {
                    self.submit(&submit::seal(key, owner, epoch, self.config.keep_sealed)).await?;
                }
                (Step::Nothing, Own::Task(request, options)) => {
                    // Another manager has removed the candidate: one of both waits longer, and then looks again.
                    if let Some(lost) = mine.take() {
                        self.is_ours(lost).await?;
                        tokio::time::sleep(AGAIN * u32::try_from(lost % 8).unwrap_or_default()).await;
                        continue;
                    }
                    let place = self.base.place(key);
                    let dir = place.dir.clone();
                    let (asked, chosen) = ((*request).clone(), (*options).clone());
                    let base = self.base.clone();
                    on_disk(move || base.here().and_then(|()| place.lay_out(&asked, &chosen))).await?;
                    let submitted = self.submit(&submit::candidate(request, options, &self.config, &dir)).await;
                    if matches!(submitted, Err(RemoteError::WrongRequest(_))) {
                        self.discard(key).await;
                    }
                    mine = Some(submitted?);
                }
            }
        }
        Err(RemoteError::could_not_ask(format!("others are making {key} at the same time, again and again")))
    }

    /// Whether the schedd knows a job that was submitted here as one of this node's user.
    async fn is_ours(&self, cluster: u64) -> Answer<()> {
        let name = self.user().await?;
        match self.jobs_of_anybody(&format!("ClusterId == {cluster}")).await?.first() {
            Some(job) if job.user() != name => Err(RemoteError::could_not_ask(format!(
                "the schedd takes the jobs of the user {name:?} for those of {:?}; let its authentication map this \
                 node to {name:?}, or set `user`",
                job.user()
            ))),
            _ => Ok(()),
        }
    }

    /// Removes the own candidate; if that fails, the schedd does so within the hour.
    async fn withdraw(&self, candidates: &str, mine: Option<u64>) {
        if let Some(mine) = mine
            && let Err(why) = self.act("condor_rm", &format!("{candidates} && ClusterId == {mine}")).await
        {
            tracing::info!(job = mine, %why, "a candidate that is not needed stays for a while");
        }
    }

    /// An instance under this epoch, and released; whether it has to be read again, since something has changed.
    async fn taken_over(&self, job: Job, epoch: u64) -> Answer<(Job, bool)> {
        let (mut again, condition) = (false, format!("ClusterId == {}", job.cluster()));
        if job.waits_on_hold() {
            self.act("condor_release", &format!("{condition} && HoldReasonCode == 15")).await?;
            again = true;
        }
        if job.epoch() < epoch {
            self.edit(&format!("{condition} && DroverEpoch <= {epoch}"), &[("DroverEpoch", &epoch.to_string())])
                .await?;
            again = true;
        }
        Ok((job, again))
    }

    /// Creates the instance of a key, or returns the one that there is.
    pub(crate) async fn ensure(&self, request: Ensure) -> Answer<Ensured> {
        let options = TaskOptions::decode(&request.task.msgpack_driver_config).map_err(RemoteError::wrong_request)?;
        submit::refused(&request.task, &options)?;
        let name = self.user().await?;
        if !request.task.user.is_empty() && request.task.user != name {
            return Err(RemoteError::wrong_request(format!(
                "user {:?}: the jobs of this node are those of the user {name:?}; leave `user` out",
                request.task.user
            )));
        }
        let own = Own::Task(&request, &options);
        let decide = self.decide(&request.key, &request.owner, request.epoch, own);
        match self.turns.alone(&request.key, decide).await? {
            (Some(job), created) if !job.acknowledged() => {
                Ok(Ensured { handle: self.handle(&job)?, observed: self.seen(&job).await?, created })
            }
            _ => Err(RemoteError::sealed(format!("the key {} is sealed or has been acknowledged", request.key))),
        }
    }

    /// Seals a key; the instance, if there is one.
    pub(crate) async fn seal(&self, key: &str, epoch: u64, owner: &str) -> Answer<Option<(RemoteHandle, Observation)>> {
        match self.turns.alone(key, self.decide(key, owner, epoch, Own::Seal)).await? {
            (Some(job), _) if !job.acknowledged() => Ok(Some((self.handle(&job)?, self.seen(&job).await?))),
            _ => Ok(None),
        }
    }

    fn handle(&self, job: &Job) -> Answer<RemoteHandle> {
        let (key, owner) = (job.key().to_owned(), job.owner().to_owned());
        HandleV1 { provider: self.provider.clone(), key, owner, cluster: job.cluster() }.remote_handle()
    }

    async fn seen(&self, job: &Job) -> Answer<Observation> {
        let handle = HandleV1 {
            provider: String::new(),
            key: job.key().into(),
            owner: job.owner().into(),
            cluster: job.cluster(),
        };
        self.observed(&handle, Some(job)).await
    }

    /// The instance of a key.
    pub(crate) async fn find(&self, key: &str, owner: &str) -> Answer<(RemoteHandle, Observation)> {
        let jobs = self.of_key(key, owner).await?;
        match key::step(&jobs, None, Cleared::No) {
            Step::Instance(job) if !job.acknowledged() => {
                // Whoever has begun it may have died before it was released.
                self.taken_over((*job).clone(), 0).await?;
                Ok((self.handle(&job)?, self.seen(&job).await?))
            }
            _ => Err(RemoteError::gone(format!("{} has no instance {key}", self.provider))),
        }
    }

    /// Instances of an owner, or of all, after a job.
    pub(crate) async fn list(&self, owner: &str, after: &str, size: usize) -> Answer<Page> {
        let whose = if owner.is_empty() { "true".to_owned() } else { format!("DroverOwner =?= {}", literal(owner)) };
        let after: u64 = after.parse().unwrap_or_default();
        let begun = literal(Role::Begun.text());
        let condition =
            format!("{whose} && DroverState == {begun} && isUndefined(DroverAcknowledged) && ClusterId > {after}");
        let mut jobs = self.jobs(&condition).await?;
        jobs.sort_by_key(Job::cluster);
        let more = jobs.len() > size.max(1);
        jobs.truncate(size.max(1));
        let mut page = Page::default();
        if more {
            page.next_page_token = jobs.last().map(|job| job.cluster().to_string()).unwrap_or_default();
        }
        for job in jobs {
            page.instances.push(Instance {
                key: job.key().to_owned(),
                owner: job.owner().to_owned(),
                slot: job.slot().to_owned(),
                epoch: job.epoch(),
                handle: self.handle(&job)?,
                // One bad directory hides nothing else.
                observed: self.seen(&job).await.unwrap_or_else(|why| Observation::unknown(job.key(), why)),
            });
        }
        Ok(page)
    }

    /// The job of a handle, if the queue has it, whoever has changed it.
    pub(crate) async fn job(&self, handle: &HandleV1) -> Answer<Option<Job>> {
        let jobs =
            self.jobs(&format!("ClusterId == {} && DroverKey =?= {}", handle.cluster, literal(&handle.key))).await?;
        Ok(jobs.into_iter().next())
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<String, Began>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a job and its files say. A result that the gate could not leave is kept, so that it stays the same.
    async fn observed(&self, handle: &HandleV1, job: Option<&Job>) -> Answer<Observation> {
        let state = |state, why: &str| Look::State(state, why.to_owned());
        let none = Files::default();
        let observation = |files: &Files, look: &Look| look::observation(&handle.key, handle.cluster, job, files, look);
        if job.is_some_and(Job::acknowledged) {
            drop(self.claims().remove(&handle.key));
            return Ok(observation(&none, &state(InstanceState::Gone, "its end was acknowledged")));
        }
        let runs = job.is_some_and(look::runs);
        if runs && let Some(claim) = self.claims().get(&handle.key).cloned() {
            let files = Files { claim: Some(claim), ..none };
            return Ok(observation(&files, &state(InstanceState::Running, "")));
        }
        let (base, place) = (self.base.clone(), self.base.place(&handle.key));
        let job_of = job.cloned();
        let (files, look) = on_disk(move || {
            base.here()?;
            let judged = |files: Files| {
                let look = look::look(job_of.as_ref(), &files, SystemTime::now());
                (files, look)
            };
            let (files, look) = judged(place.files()?);
            if !matches!(&look, Look::Ended(_) | Look::State(InstanceState::Gone, _)) {
                return Ok((files, look));
            }
            // That a file is missing may be old news.
            let (files, look) = judged(place.files_for_sure()?);
            let Look::Ended(exit) = &look else { return Ok((files, look)) };
            place.conclude(exit)?;
            // The gate may have left one at the same moment.
            Ok(judged(place.files()?))
        })
        .await?;
        // A gate that has left its result is about to go, and the queue hears of it later.
        match files.claim.clone().filter(|_| runs && files.exit.is_none()) {
            Some(claim) => drop(self.claims().insert(handle.key.clone(), claim)),
            None => drop(self.claims().remove(&handle.key)),
        }
        Ok(observation(&files, &look))
    }

    /// Looks at several instances with one call of `condor_q`.
    pub(crate) async fn look(&self, handles: &[HandleV1]) -> Vec<Observation> {
        let condition = match handles {
            [] => return Vec::new(),
            [one] => format!("DroverKey =?= {}", literal(&one.key)),
            // What somebody has written there by hand counts as begun.
            _ => format!(
                "DroverKey =!= undefined && DroverState =!= {} && DroverState =!= {}",
                literal(Role::Candidate.text()),
                literal(Role::Sealed.text())
            ),
        };
        let jobs = match self.jobs(&condition).await {
            Ok(jobs) => jobs.into_iter().map(|job| (job.cluster(), job)).collect::<HashMap<u64, Job>>(),
            Err(why) => return handles.iter().map(|handle| Observation::unknown(handle.key.as_str(), &why)).collect(),
        };
        let mut seen = Vec::with_capacity(handles.len());
        for handle in handles {
            let job = jobs.get(&handle.cluster).filter(|job| job.key() == handle.key);
            let observed = self.observed(handle, job).await;
            seen.push(observed.unwrap_or_else(|why| Observation::unknown(handle.key.as_str(), why)));
        }
        seen
    }

    async fn one(&self, handle: &HandleV1) -> Answer<(Option<Job>, Observation)> {
        let job = self.job(handle).await?;
        let seen = self.observed(handle, job.as_ref()).await?;
        Ok((job, seen))
    }

    /// Takes over the epoch of an instance that is in the queue.
    pub(crate) async fn under(&self, handle: &HandleV1, epoch: u64) -> Answer<()> {
        let condition = format!("ClusterId == {} && DroverKey =?= {}", handle.cluster, literal(&handle.key));
        if self.edit(&format!("{condition} && DroverEpoch <= {epoch}"), &[("DroverEpoch", &epoch.to_string())]).await? {
            return Ok(());
        }
        match self.job(handle).await? {
            Some(job) if job.epoch() > epoch => Err(RemoteError::StaleEpoch { given: epoch, accepted: job.epoch() }),
            Some(_) => Err(RemoteError::could_not_ask("the schedd did not take the epoch over")),
            None => Ok(()),
        }
    }

    /// Whether the job has left its machine and nothing holds the lock.
    async fn left(&self, handle: &HandleV1, job: Option<&Job>) -> Answer<bool> {
        if job.is_some_and(|job| job.host().is_some()) {
            return Ok(false);
        }
        let place = self.base.place(&handle.key);
        on_disk(move || Ok(!place.files()?.alive)).await
    }

    /// Ends an instance; answers when it has ended.
    pub(crate) async fn stop(&self, handle: &HandleV1, epoch: u64, stop: &StopTask) -> Answer<Observation> {
        self.under(handle, epoch).await?;
        let asked = stop.signal.to_ascii_uppercase();
        let name = asked.strip_prefix("SIG").unwrap_or(&asked);
        let known = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric());
        let signal = if known { name.to_owned() } else { "TERM".to_owned() };
        let (begun, mut told) = (Instant::now(), false);
        loop {
            // What a task has made of its files does not keep it from its end.
            let job = self.job(handle).await?;
            let why = match self.observed(handle, job.as_ref()).await {
                Ok(seen) if seen.state == InstanceState::Gone => return Ok(seen),
                Ok(seen) if seen.state == InstanceState::Exited && self.left(handle, job.as_ref()).await? => {
                    return Ok(seen);
                }
                Ok(seen) => seen.reason,
                Err(why) => why.to_string(),
            };
            if !told {
                self.end(handle, epoch, signal.clone(), stop.timeout).await?;
                told = true;
            }
            if begun.elapsed() > stop.timeout + STOP_SLACK {
                return Err(RemoteError::could_not_ask(format!(
                    "the job {}.0 was removed and has not ended after {} s: {}",
                    handle.cluster,
                    begun.elapsed().as_secs(),
                    if why.is_empty() { "something of it still runs" } else { &why }
                )));
            }
            tokio::time::sleep(STOP_LOOK).await;
        }
    }

    /// Tells a job to end, by this signal and after so long by SIGKILL.
    async fn end(&self, handle: &HandleV1, epoch: u64, signal: String, timeout: Duration) -> Answer<()> {
        let place = self.base.place(&handle.key);
        // Without the note, on a full disk for one, the gate sends SIGTERM.
        if let Err(why) = on_disk(move || place.note_stop(&signal, timeout)).await {
            tracing::warn!(key = handle.key, %why, "SIGTERM is sent");
        }
        // HTCondor would make *removed* of *completed*.
        let condition = format!("ClusterId == {} && DroverEpoch == {epoch} && JobStatus != 4", handle.cluster);
        match self.act("condor_rm", &condition).await? {
            // Another manager may have taken it over meanwhile.
            0 => self.under(handle, epoch).await,
            _ => Ok(()),
        }
    }

    /// Forgets an ended instance; its key stays sealed.
    pub(crate) async fn acknowledge(&self, handle: &HandleV1, epoch: u64) -> Answer<()> {
        let (job, seen) = self.one(handle).await?;
        match seen.state {
            InstanceState::Gone => {}
            InstanceState::Exited => {}
            InstanceState::Unknown => return Err(RemoteError::could_not_ask(seen.reason)),
            InstanceState::Creating | InstanceState::Running => {
                return Err(RemoteError::wrong_request(format!("the instance {} has not ended", handle.key)));
            }
        }
        let condition = format!("ClusterId == {} && DroverEpoch <= {epoch}", handle.cluster);
        match &job {
            Some(job) if !job.acknowledged() => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().to_string();
                let values = [("DroverEpoch", epoch.to_string()), ("DroverAcknowledged", now)];
                let values = values.each_ref().map(|(name, value)| (*name, value.as_str()));
                if !self.edit(&condition, &values).await? {
                    self.under(handle, epoch).await?;
                    return Err(RemoteError::could_not_ask("the schedd did not take the acknowledgement"));
                }
            }
            Some(_) => {}
            None => {
                // The key may have been made again since somebody took this job out of the queue.
                let jobs = self.of_key(&handle.key, &handle.owner).await?;
                let accepted = key::epoch(&jobs);
                match key::step(&jobs, None, Cleared::No) {
                    _ if epoch < accepted => return Err(RemoteError::StaleEpoch { given: epoch, accepted }),
                    Step::Instance(other) if !other.acknowledged() => return Ok(()),
                    _ => {}
                }
            }
        }
        if job.is_some() {
            // One that was evicted or put on hold would wait in the queue for ever, or be started again.
            let goes_on = "DroverAcknowledged =!= undefined && (JobStatus == 1 || JobStatus == 2 || JobStatus == 5)";
            self.act("condor_rm", &format!("{condition} && {goes_on}")).await?;
        }
        let place = self.base.place(&handle.key);
        on_disk(move || place.remove()).await
    }

    /// Submits a seal and removes it; the user that it was submitted as.
    pub(crate) async fn try_submission(&self) -> Answer<&str> {
        let key = format!("doctor.{}", hpc::files::unique());
        let job = self.submit(&submit::seal(&key, "doctor", 0, self.config.keep_sealed)).await?;
        let ours = self.is_ours(job).await;
        self.act("condor_rm", &format!("ClusterId == {job} && DroverKey =?= {}", literal(&key))).await?;
        ours?;
        self.user().await
    }

    /// Whether the schedd answers.
    pub(crate) async fn ping(&self) -> Answer<()> {
        self.jobs("ClusterId == 0").await.map(drop)
    }
}

/// What a decision is made with.
enum Own<'a> {
    /// A task that may begin.
    Task(&'a Ensure, &'a TaskOptions),
    /// Nothing: the key is to be sealed.
    Seal,
}
