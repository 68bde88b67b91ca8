//! One place of a service as this node uses it: instances by key and by handle, ends, acknowledgements, listings, logs.
//! Starts are the driver's own: each service has its own way to make one of many.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use driver_sdk::health::Health;
use driver_sdk::turns::Turns;
use driver_sdk::{
    DriverState as _, Ensure, Ensured, Instance, InstanceState, LogChunk, LogsQuery, Lookup, Observation,
    ObservationSink, Page, RemoteError, RemoteHandle, StopTask, async_trait,
};
use tokio::sync::mpsc;

use crate::absence::{Absence, Undescribed, absence, gone};
use crate::handle::HandleV1;
use crate::logs::{Ended, Places};
use crate::marks::{self, Marks};
use crate::poll::{Look, Poller};
use crate::provider::{Described, Place as _, Provider};
use crate::sent::{Ledger, Unlisted};
use crate::twice::{Shown, doubled};
use crate::{Answer, LogPlace, accept, budget, lock, pages, seconds};

/// Longest time that a container may have for its end, and then some for the service's own.
const STOP_SLACK: Duration = Duration::from_secs(150);
/// How often a stop looks whether the instance has ended.
const STOP_LOOK: Duration = Duration::from_secs(1);
/// How long this node remembers an acknowledgement that the service did not take.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(8 * 24 * 3600);
/// How often a reader asks whether an instance that has no log yet has one.
const LOG_LOOK: Duration = Duration::from_secs(2);

/// The place and what this node knows of it.
pub struct Site<P: Provider> {
    /// The service.
    pub provider: P,
    /// Identity of the runtime, for people.
    pub name: String,
    /// How old what the service shows may be.
    pub window: Duration,
    /// Looks at all watched instances.
    pub poller: Arc<Poller<HandleV1>>,
    /// What was answered about the place.
    pub health: Health<P::Place>,
    /// One start of a key at a time.
    pub starting: Turns,
    /// What was sent, or may have been.
    pub sent: Mutex<Ledger>,
    places: Places,
    /// Live instances that listings have shown.
    shown: Shown,
    /// Ended instances that listings have shown and the service does not describe.
    undescribed: Mutex<Undescribed>,
    /// Acknowledged instances that the service did not let be tagged, and when.
    acknowledged: Mutex<HashMap<String, Instant>>,
}

impl<P: Provider> Site<P> {
    /// Asks nothing yet.
    pub fn new(provider: P, name: String, window: Duration) -> Self {
        Self {
            provider,
            name,
            window,
            poller: Poller::new(),
            health: Health::default(),
            starting: Turns::default(),
            sent: Mutex::default(),
            places: Places::default(),
            shown: Shown::default(),
            undescribed: Mutex::default(),
            acknowledged: Mutex::default(),
        }
    }

    /// The place, asked for once and when it matters.
    ///
    /// # Errors
    /// Those of [`Provider::place`].
    pub async fn place(&self, fresh: bool) -> Answer<P::Place> {
        self.health.answer(fresh, self.provider.place()).await
    }

    /// Absence counts only in the place that had the instance.
    async fn same_place(&self, handle: &HandleV1, fresh: bool) -> Answer<()> {
        let here = self.place(fresh).await?;
        if handle.cluster == here.arn() {
            return Ok(());
        }
        Err(RemoteError::could_not_ask(format!(
            "the instance lives in the {} {}, this node reaches {}",
            P::PLACE,
            handle.cluster,
            here.arn()
        )))
    }

    /// Where a create may have been sent, it is looked for and repeated: a place of the same name in another account
    /// knows nothing of it.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: this node reaches another place, or none.
    pub async fn intended_here(&self, intent: &[u8]) -> Answer<()> {
        if P::intended_place(intent)?.is_empty() {
            return Ok(());
        }
        let here = self.place(true).await?;
        Self::intended(intent, here.arn())
    }

    /// The same of a place that is known.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: it is another one.
    pub fn intended(intent: &[u8], here: &str) -> Answer<()> {
        let intended = P::intended_place(intent)?;
        match intended.is_empty() || intended == here {
            true => Ok(()),
            false => Err(RemoteError::could_not_ask(format!(
                "a start of the task may have been sent to the {} {intended}, this node reaches {here}",
                P::PLACE
            ))),
        }
    }

    /// What the tags of an instance say; the handle's word where they are gone.
    pub fn marks(&self, task: &P::Task, handle: Option<&HandleV1>) -> Option<Marks> {
        let mut marks = match (P::marks(task), handle) {
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
        marks.acknowledged |= P::id(task).is_some_and(|id| lock(&self.acknowledged).contains_key(id));
        Some(marks)
    }

    fn is_over(task: &P::Task, marks: &Marks) -> bool {
        matches!(P::observation(task, marks).state, InstanceState::Exited | InstanceState::Gone)
    }

    /// The handle of an instance.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: the service tells no id, or its place cannot be asked for.
    pub async fn handle(&self, task: &P::Task, marks: &Marks) -> Answer<HandleV1> {
        let id = P::id(task).filter(|id| !id.is_empty());
        let id =
            id.ok_or_else(|| RemoteError::could_not_ask(format!("the service tells of a {} without an ARN", P::NOUN)))?;
        let log = match self.provider.log_of(task, &marks.container).await {
            Ok(log) => log,
            // The instance is there; its log is looked for again when somebody reads it.
            Err(why) => {
                tracing::warn!(task = id, %why, "where the log of the task is cannot be found out now");
                None
            }
        };
        let cluster = match P::place_of(task) {
            Some(place) => place.to_owned(),
            None => self.place(false).await?.arn().to_owned(),
        };
        // An instance without a time counts as new: then its absence is believed late. Two handles of it may differ in
        // this, which nobody takes for two instances.
        let created = P::created(task).unwrap_or_else(SystemTime::now);
        Ok(HandleV1 {
            cluster,
            arn: id.to_owned(),
            key: marks.key.clone(),
            owner: marks.owner.clone(),
            created: seconds(created),
            container: marks.container.clone(),
            log,
        })
    }

    /// Instances by id; what the service does not know is left out.
    ///
    /// # Errors
    /// Those of [`Provider::describe`].
    pub async fn tasks(&self, ids: &[String]) -> Answer<Vec<P::Task>> {
        Ok(self.described(ids).await?.tasks)
    }

    async fn described(&self, ids: &[String]) -> Answer<Described<P::Task>> {
        let mut all = Described { tasks: Vec::with_capacity(ids.len()), missing: Vec::new(), failed: Vec::new() };
        for batch in ids.chunks(P::BATCH) {
            let one = self.provider.describe(batch.to_vec()).await?;
            all.tasks.extend(one.tasks);
            all.missing.extend(one.missing);
            all.failed.extend(one.failed);
        }
        Ok(all)
    }

    /// The instance of a key: the oldest one that lives, else one that has ended and is not acknowledged, else any.
    ///
    /// # Errors
    /// Those of [`Provider::of_key`]; [`RemoteError::CouldNotAsk`] while none lives and one is listed that the service
    /// does not describe.
    pub async fn of_key(&self, key: &str, owner: &str) -> Answer<Option<(P::Task, Marks)>> {
        let ids = pages::all(usize::MAX, |from| self.provider.of_key(key, owner, from)).await?;
        let seen = self.described(&ids).await?;
        // A listed instance exists: it is new to what describes it, or its service is about to forget it. Services list
        // by key what they also describe (ECS what lives, Batch also ended jobs while it keeps them), so this passes.
        // Where it does not, a person decides about this key, and no other one waits.
        let undescribed = undescribed::<P>(&ids, &seen).into_iter().next();
        let marked = seen.tasks.into_iter().filter_map(|task| {
            let marks = self.marks(&task, None).filter(|m| m.key == key && m.owner == owner)?;
            Some((task, marks))
        });
        let mut found: Vec<(P::Task, Marks)> = marked.collect();
        found.sort_by_key(|(task, marks)| (Self::is_over(task, marks), marks.acknowledged, P::created(task)));
        let live = found.iter().filter(|(task, marks)| !Self::is_over(task, marks));
        let live: Vec<&str> = live.filter_map(|(task, _)| P::id(task)).collect();
        if live.len() > 1 {
            tracing::error!(
                key,
                ids = ?live,
                "a key has several tasks; the oldest counts, the sweep shows the others: stop them (drover remote stop)"
            );
        }
        if let (true, Some(id)) = (live.is_empty(), undescribed) {
            return Err(RemoteError::could_not_ask(not_described::<P>(id)));
        }
        Ok(found.into_iter().next())
    }

    /// The instance of a key, also one that has ended lately and is not acknowledged. `own` is the id that the key is
    /// known to have, where one is.
    ///
    /// # Errors
    /// Those of [`Site::of_key`] and [`Provider::ended`]; [`RemoteError::CouldNotAsk`] while an ended one that is
    /// listed and not described may be the key's.
    async fn search(&self, key: &str, owner: &str, own: Option<&str>) -> Answer<Option<(P::Task, Marks)>> {
        if let Some((task, marks)) = self.of_key(key, owner).await?
            && P::observation(&task, &marks).state != InstanceState::Gone
        {
            return Ok(Some((task, marks)));
        }
        let in_doubt = Mutex::new(None);
        let page = async |from| {
            let (ids, next) = self.provider.ended(from).await?;
            let seen = self.described(&ids).await?;
            let doubted = undescribed::<P>(&ids, &seen).into_iter().find(|id| self.is_in_doubt(id, own, &seen));
            if let Some(id) = doubted {
                lock(&in_doubt).get_or_insert_with(|| id.clone());
            }
            let wanted = |m: &Marks| m.key == key && m.owner == owner && !m.acknowledged;
            let marked = seen.tasks.into_iter().filter_map(|task| {
                let marks = self.marks(&task, None).filter(wanted)?;
                Some((task, marks))
            });
            Ok::<_, RemoteError>((marked.collect::<Vec<_>>(), next))
        };
        if let Some(found) = pages::all(1, page).await?.into_iter().next() {
            return Ok(Some(found));
        }
        match lock(&in_doubt).take() {
            Some(id) => Err(RemoteError::could_not_ask(not_described::<P>(&id))),
            None => Ok(None),
        }
    }

    /// Whether an ended instance that is listed and not described may be the one that is searched for. The listing of
    /// ended ones has those of all keys.
    fn is_in_doubt(&self, id: &str, own: Option<&str>, seen: &Described<P::Task>) -> bool {
        if own == Some(id) {
            return true;
        }
        // Ended and missing: the service has forgotten it, which in a large cluster happens between every two calls, so
        // it must not count. It need not: one that is too new to be described is younger than the window, and while a
        // start may be so young the ledger and the handle's age keep absence from being believed.
        let forgotten = seen.missing.iter().any(|missing| missing == id);
        !forgotten && lock(&self.undescribed).may_be_of_any_key(id, Instant::now(), self.window)
    }

    /// [`driver_sdk::RemoteDriver::look_up`].
    ///
    /// # Errors
    /// [`RemoteError::Gone`] once listings must show what was sent; before, [`RemoteError::CouldNotAsk`].
    pub async fn look_up(&self, lookup: Lookup) -> Answer<(RemoteHandle, Observation)> {
        if let Some((task, marks)) = self.search(&lookup.key, &lookup.owner, None).await? {
            lock(&self.sent).found(&lookup.key);
            return Ok((self.handle(&task, &marks).await?.remote_handle()?, P::observation(&task, &marks)));
        }
        let unlisted = lock(&self.sent).unlisted(&lookup, self.window);
        match unlisted {
            Unlisted::Absent => {
                self.intended_here(&lookup.intent).await?;
                Err(RemoteError::gone(format!("{} has no {} of the key {}", self.name, P::NOUN, lookup.key)))
            }
            Unlisted::NotYet => Err(RemoteError::could_not_ask(self.not_yet())),
        }
    }

    /// Why an empty listing says nothing.
    pub fn not_yet(&self) -> String {
        format!(
            "a start of the task may have been sent, and {} may show it up to {} s later: until then that it is not \
                listed says nothing",
            P::NAME,
            self.window.as_secs()
        )
    }

    /// [`driver_sdk::RemoteDriver::list`]: a page of ours is one of the service's. What has ended lives no more, and is
    /// found by key and by handle.
    ///
    /// # Errors
    /// Those of [`Provider::live`] and [`Provider::describe`].
    pub async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Answer<Page> {
        let from = (!page_token.is_empty()).then(|| page_token.to_owned());
        let ending = P::are_ending(from.as_deref());
        let (ids, next) = self.provider.live(from, page_size).await?;
        let mut page = Page { next_page_token: next.unwrap_or_default(), ..Page::default() };
        let seen = self.described(&ids).await?;
        let mut missing = Vec::new();
        let mut undescribed = undescribed::<P>(&ids, &seen);
        undescribed.retain(|id| !ending || self.is_in_doubt(id, None, &seen));
        if let [id, ..] = undescribed[..] {
            missing.push(format!("{} lists the {} {id} and does not describe it", P::NAME, P::NOUN));
        }
        let tasks = seen.tasks.into_iter().filter_map(|task| {
            let marks = self.marks(&task, None).filter(|m| owner.is_empty() || m.owner == owner)?;
            (!ending || !Self::is_over(&task, &marks)).then_some((task, marks))
        });
        let tasks: Vec<(P::Task, Marks)> = tasks.collect();
        // A key may have two instances, against every care. Each gets a key of its own here: the servers see which one
        // their record means, and show the other to a person, whose stop reaches it by its handle.
        let doubled = self.doubled(&tasks).await?;
        for (task, mut marks) in tasks {
            if let Some(id) = P::id(&task).filter(|id| doubled.contains(*id)) {
                marks.key = marks::key_of_one(&marks.key, id);
            }
            let observed = P::observation(&task, &marks);
            page.instances.push(Instance {
                handle: self.handle(&task, &marks).await?.remote_handle()?,
                epoch: marks.epoch,
                owner: marks.owner,
                slot: marks.slot,
                key: marks.key,
                observed,
            });
        }
        let unsettled = lock(&self.sent).unsettled(owner, self.window);
        if page.next_page_token.is_empty() && unsettled > 0 {
            missing.push(format!(
                "the answers to {unsettled} starts are unknown; {} may not list yet what they have started",
                P::NAME
            ));
        }
        page.incomplete = missing.join("; ");
        Ok(page)
    }

    /// Those of a page of a listing whose keys have other live instances as well, on whichever page.
    async fn doubled(&self, page: &[(P::Task, Marks)]) -> Answer<HashSet<String>> {
        let here: HashMap<String, (String, String)> = page
            .iter()
            .filter(|(task, marks)| !Self::is_over(task, marks))
            .filter_map(|(task, marks)| Some((P::id(task)?.to_owned(), (marks.owner.clone(), marks.key.clone()))))
            .collect();
        // Other pages have shown them. They may have ended meanwhile.
        let elsewhere = self.tasks(&self.shown.elsewhere(&here)).await?;
        let of_keys = elsewhere.iter().filter_map(|task| {
            self.marks(task, None).filter(|marks| !Self::is_over(task, marks)).map(|marks| (marks.owner, marks.key))
        });
        Ok(doubled(here, of_keys))
    }

    /// What to say of an instance that the service does not know.
    async fn missing(&self, handle: &HandleV1) -> Observation {
        let unknown = |why: &dyn std::fmt::Display| Observation::unknown(handle.key.as_str(), why);
        let (name, noun) = (P::NAME, P::NOUN);
        let mut found = None;
        loop {
            match absence(handle.created(), SystemTime::now(), self.window, found) {
                Absence::TooEarly => {
                    return unknown(&format!(
                        "{name} does not know the {noun} {} yet; it was made less than {} s ago, so this says nothing",
                        handle.arn,
                        self.window.as_secs()
                    ));
                }
                Absence::Search => {
                    if let Err(why) = self.same_place(handle, true).await {
                        return unknown(&why);
                    }
                    match self.search(&handle.key, &handle.owner, Some(&handle.arn)).await {
                        Ok(seen) => found = Some(seen.is_some_and(|(task, _)| P::id(&task) == Some(&handle.arn))),
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
                    return unknown(&format!(
                        "{name} lists the {noun} {} and says that it does not know it",
                        handle.arn
                    ));
                }
            }
        }
    }

    /// Looks at one instance; `None` = the service does not know it.
    ///
    /// # Errors
    /// Those of [`Provider::describe`].
    pub async fn look_at(&self, handle: &HandleV1) -> Answer<Option<(P::Task, Marks)>> {
        let seen = self.provider.describe(vec![handle.arn.clone()]).await?;
        if let Some(task) = seen.tasks.into_iter().find(|t| P::id(t) == Some(&handle.arn)) {
            let marks = self.marks(&task, Some(handle)).unwrap_or_default();
            return Ok(Some((task, marks)));
        }
        if seen.missing.contains(&handle.arn) {
            return Ok(None);
        }
        Err(RemoteError::could_not_ask(said(P::NAME, P::NOUN, &seen.failed, handle)))
    }

    /// Takes the instance over with this epoch. Between looking and tagging lies a moment, so it is looked at once
    /// more.
    ///
    /// # Errors
    /// [`RemoteError::StaleEpoch`] under an epoch that is older than one that was used.
    pub async fn claim(&self, handle: &HandleV1, marks: &Marks, epoch: u64) -> Answer<()> {
        accept(marks, epoch)?;
        if marks.epoch == epoch {
            return Ok(());
        }
        self.provider.tag(&handle.arn, vec![marks::epoch_tag(epoch)]).await?;
        match self.look_at(handle).await? {
            Some((_, now)) => accept(&now, epoch),
            None => Ok(()),
        }
    }

    /// Sends a start. Whatever ends it before its answer: the instance may exist. `nothing` says of an answer that it
    /// is certain to have started none.
    pub async fn send<T>(
        &self,
        request: &Ensure,
        start: impl Future<Output = T>,
        nothing: impl FnOnce(&T) -> bool,
    ) -> T {
        let heard = lock(&self.sent).begin(&request.key, &request.owner, request.epoch, request.first);
        let answer = start.await;
        if nothing(&answer) {
            lock(&self.sent).nothing(&request.key, heard);
        }
        answer
    }

    /// The answer to a start whose key has an instance; `None` when the service shows none.
    ///
    /// # Errors
    /// Those of [`Provider::of_key`] and [`Site::existing`].
    pub async fn taken(&self, request: &Ensure) -> Answer<Option<Ensured>> {
        match self.of_key(&request.key, &request.owner).await? {
            Some((task, marks)) => self.existing(task, marks, request.epoch).await.map(Some),
            None => Ok(None),
        }
    }

    /// The answer to a start whose key has an instance already.
    ///
    /// # Errors
    /// [`RemoteError::Sealed`] for a key whose end was acknowledged; [`RemoteError::StaleEpoch`].
    pub async fn existing(&self, task: P::Task, marks: Marks, epoch: u64) -> Answer<Ensured> {
        lock(&self.sent).found(&marks.key);
        let handle = self.handle(&task, &marks).await?;
        let mut observed = P::observation(&task, &marks);
        if observed.state == InstanceState::Gone {
            return Err(RemoteError::sealed(
                "the key has had its instance, whose end was acknowledged; a new start needs a new key",
            ));
        }
        if observed.state == InstanceState::Exited {
            accept(&marks, epoch)?;
        } else {
            self.claim(&handle, &marks, epoch).await?;
            observed.epoch = observed.epoch.max(epoch);
        }
        Ok(Ensured { handle: handle.remote_handle()?, observed, created: false })
    }

    /// [`driver_sdk::RemoteDriver::observe`].
    ///
    /// # Errors
    /// None; what cannot be seen is unknown.
    pub async fn observe(&self, handles: &[RemoteHandle]) -> Answer<Vec<Observation>> {
        let read: Vec<Answer<HandleV1>> = handles.iter().map(HandleV1::from_remote_handle).collect();
        let asked: Vec<HandleV1> = read.iter().flatten().cloned().collect();
        let mut seen = self.look(&asked).await.into_iter();
        let mut answer = |handle: Answer<HandleV1>| match handle {
            Ok(handle) => seen.next().unwrap_or_else(|| Observation::unknown(handle.key, "it was not looked at")),
            Err(why) => Observation::unknown("", why),
        };
        Ok(read.into_iter().map(&mut answer).collect())
    }

    /// [`driver_sdk::RemoteDriver::watch`].
    ///
    /// # Errors
    /// [`RemoteError::WrongRequest`]: a handle cannot be read.
    pub async fn watch(&self, handles: &[RemoteHandle], sink: ObservationSink) -> Answer<()> {
        let handles: Vec<HandleV1> = handles.iter().map(HandleV1::from_remote_handle).collect::<Answer<_>>()?;
        self.poller.watch(handles, sink).await;
        Ok(())
    }

    /// [`driver_sdk::RemoteDriver::stop`].
    ///
    /// # Errors
    /// [`RemoteError::StaleEpoch`]; [`RemoteError::CouldNotAsk`] until the end is seen.
    pub async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: &StopTask) -> Answer<Observation> {
        let handle = &HandleV1::from_remote_handle(handle)?;
        budget::first(self.same_place(handle, false)).await?;
        self.provider.about_to_stop(&handle.arn, stop);
        let deadline = Instant::now() + stop.timeout + STOP_SLACK;
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
            let seen = P::observation(&task, &marks);
            match seen.state {
                InstanceState::Gone => return Ok(seen),
                InstanceState::Exited => return accept(&marks, epoch).map(|()| seen),
                InstanceState::Unknown => return Err(RemoteError::could_not_ask(seen.reason)),
                InstanceState::Creating | InstanceState::Running => {}
            }
            if !told {
                budget::first(async {
                    self.claim(handle, &marks, epoch).await?;
                    Ok::<_, RemoteError>(self.provider.stop(&handle.arn, epoch).await?)
                })
                .await?;
                told = true;
                continue;
            }
            if Instant::now() > deadline {
                return Err(RemoteError::could_not_ask(format!(
                    "the {} {} was told to end and is still {} after {} s",
                    P::NOUN,
                    handle.arn,
                    seen.attributes.get("status").map(String::as_str).unwrap_or_default(),
                    (stop.timeout + STOP_SLACK).as_secs()
                )));
            }
            tokio::time::sleep(STOP_LOOK).await;
        }
    }

    /// [`driver_sdk::RemoteDriver::acknowledge`].
    ///
    /// # Errors
    /// [`RemoteError::WrongRequest`] for one that runs; [`RemoteError::StaleEpoch`].
    pub async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Answer<()> {
        let handle = &HandleV1::from_remote_handle(handle)?;
        self.same_place(handle, false).await?;
        let Some((task, marks)) = self.look_at(handle).await? else {
            return match self.missing(handle).await {
                seen if seen.state == InstanceState::Unknown => Err(RemoteError::could_not_ask(seen.reason)),
                _ => Ok(()),
            };
        };
        match P::observation(&task, &marks).state {
            InstanceState::Gone => return Ok(()),
            InstanceState::Exited => accept(&marks, epoch)?,
            _ => {
                return Err(RemoteError::wrong_request(format!(
                    "instance {} has not ended; stop it before its result is acknowledged",
                    handle.key
                )));
            }
        }
        let tags = vec![marks::epoch_tag(epoch), marks::acknowledged_tag()];
        match self.provider.tag(&handle.arn, tags).await {
            Ok(()) => {}
            // The service may take no tags for what has ended. It forgets it in time; until then this node remembers.
            Err(trouble) if P::takes_no_tags(&trouble) => {
                tracing::debug!(task = handle.arn, %trouble, "an ended task is not tagged as acknowledged");
                let mut acknowledged = lock(&self.acknowledged);
                acknowledged.retain(|_, at| at.elapsed() < FORGOTTEN_AFTER);
                acknowledged.insert(handle.arn.clone(), Instant::now());
            }
            Err(trouble) => return Err(trouble.into()),
        }
        if let Some(log) = &handle.log {
            self.places.forget(log);
        }
        Ok(())
    }

    /// Where the output of an instance is, as far as the service tells now; and whether more may come.
    async fn log(&self, handle: &HandleV1) -> Answer<(Option<LogPlace>, bool)> {
        if let Some(log) = &handle.log {
            return Ok((Some(log.clone()), true));
        }
        match self.look_at(handle).await? {
            Some((task, marks)) => {
                let log = self.provider.log_of(&task, &marks.container).await?;
                let late = P::LOG_COMES_LATE && P::observation(&task, &marks).state == InstanceState::Creating;
                Ok((log, late))
            }
            None => Ok((None, false)),
        }
    }

    /// [`driver_sdk::RemoteDriver::logs`].
    ///
    /// # Errors
    /// [`RemoteError::WrongRequest`] for one without a log.
    pub async fn logs(&self, handle: &RemoteHandle, query: LogsQuery, sink: mpsc::Sender<LogChunk>) -> Answer<()> {
        let handle = &HandleV1::from_remote_handle(handle)?;
        let log = loop {
            match self.log(handle).await? {
                (Some(log), _) => break log,
                // What does not run yet has said nothing.
                (None, true) if !query.follow => return Ok(()),
                (None, true) => tokio::select! {
                    () = sink.closed() => return Ok(()),
                    () = tokio::time::sleep(LOG_LOOK) => {}
                },
                (None, false) => return Err(RemoteError::wrong_request(P::no_log())),
            }
        };
        self.places.send(self.provider.session(), &log, query, &sink, &OneTask(self, handle)).await
    }
}

/// Those of `listed` that the service does not describe.
fn undescribed<'l, P: Provider>(listed: &'l [String], seen: &Described<P::Task>) -> Vec<&'l String> {
    let described: HashSet<&str> = seen.tasks.iter().filter_map(P::id).collect();
    listed.iter().filter(|id| !described.contains(id.as_str())).collect()
}

/// Why a lookup that has found nothing else does not know whether the key has an instance.
fn not_described<P: Provider>(id: &str) -> String {
    let (name, noun) = (P::NAME, P::NOUN);
    format!(
        "{name} lists the {noun} {id} and does not describe it, so it may be the one of this key; this usually passes \
            within seconds, else look at the {noun} in AWS's console (`drover remote gone` if there is none)"
    )
}

/// What the service says of an instance instead of telling how it is.
fn said(name: &str, noun: &str, failed: &[(String, String)], handle: &HandleV1) -> String {
    let why = failed.iter().find(|(id, _)| *id == handle.arn).map_or("nothing", |(_, why)| why);
    format!("{name} says {why} of the {noun} {}", handle.arn)
}

#[async_trait]
impl<P: Provider> Look<HandleV1> for Site<P> {
    async fn look(&self, handles: &[HandleV1]) -> Vec<Observation> {
        let mut seen = Vec::with_capacity(handles.len());
        for batch in handles.chunks(P::BATCH) {
            let described = match self.provider.describe(batch.iter().map(|h| h.arn.clone()).collect()).await {
                Ok(described) => described,
                Err(why) => {
                    seen.extend(batch.iter().map(|h| Observation::unknown(h.key.as_str(), &why)));
                    continue;
                }
            };
            let tasks: HashMap<&str, &P::Task> = described.tasks.iter().filter_map(|t| Some((P::id(t)?, t))).collect();
            for handle in batch {
                seen.push(match tasks.get(handle.arn.as_str()) {
                    Some(task) => P::observation(task, &self.marks(task, Some(handle)).unwrap_or_default()),
                    None if described.missing.contains(&handle.arn) => self.missing(handle).await,
                    None => {
                        Observation::unknown(handle.key.as_str(), said(P::NAME, P::NOUN, &described.failed, handle))
                    }
                });
            }
        }
        seen
    }
}

/// One instance, for what waits for its end.
struct OneTask<'a, P: Provider>(&'a Site<P>, &'a HandleV1);

#[async_trait]
impl<P: Provider> Ended for OneTask<'_, P> {
    async fn ended(&self) -> Answer<Option<Duration>> {
        let seen = self.0.look(std::slice::from_ref(self.1)).await;
        let ended = seen.first().filter(|s| matches!(s.state, InstanceState::Exited | InstanceState::Gone));
        // A clock that is ahead over there makes it just now; without a time it is long ago.
        Ok(ended.map(|s| s.finished_at.map_or(Duration::MAX, |at| at.elapsed().unwrap_or_default())))
    }
}
