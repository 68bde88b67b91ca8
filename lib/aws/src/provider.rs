//! What a driver says of its service, so that [`crate::site::Site`] can do the rest.

use std::time::SystemTime;

use driver_sdk::{Observation, StopTask, async_trait};

use crate::answer::Trouble;
use crate::marks::{Marks, Tag};
use crate::pages::Paged;
use crate::{Answer, LogPlace, Session};

/// Where a service keeps instances: a cluster, a queue. It holds nothing that differs with each answer: a
/// host is told of an unlike one.
pub trait Place: Clone + PartialEq + Send + Sync + 'static {
    /// Its ARN.
    fn arn(&self) -> &str;
}

/// Answer of the service to a question about certain instances.
#[derive(Clone, Debug)]
pub struct Described<T> {
    /// Those that it knows.
    pub tasks: Vec<T>,
    /// Ids that it says it does not know.
    pub missing: Vec<String>,
    /// Of others: id and what it says.
    pub failed: Vec<(String, String)>,
}

/// A service with instances that carry tags. An id is what the service takes for one instance: its ARN.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Client of the service.
    type Client: Send + Sync + 'static;
    /// Where it keeps instances.
    type Place: Place;
    /// An instance as the service tells of it.
    type Task: Clone + Send + Sync + 'static;

    /// Name of the service.
    const NAME: &'static str;
    /// What the service calls an instance.
    const NOUN: &'static str;
    /// What the service calls the place: `cluster`.
    const PLACE: &'static str;
    /// Most ids in one question.
    const BATCH: usize;
    /// Where the log is shows only once the instance runs.
    const LOG_COMES_LATE: bool = false;

    /// Its calls.
    fn session(&self) -> &Session<Self::Client>;

    /// Asks for the place.
    async fn place(&self) -> Answer<Self::Place>;

    /// Id of an instance.
    fn id(task: &Self::Task) -> Option<&str>;
    /// What its tags say; `None` for one that is not ours.
    fn marks(task: &Self::Task) -> Option<Marks>;
    /// When it was made.
    fn created(task: &Self::Task) -> Option<SystemTime>;
    /// ARN of its place, where it tells.
    fn place_of(task: &Self::Task) -> Option<&str>;
    /// What it says about the instance of its key.
    fn observation(task: &Self::Task, marks: &Marks) -> Observation;

    /// Instances by id, at most [`Provider::BATCH`].
    async fn describe(&self, ids: Vec<String>) -> Result<Described<Self::Task>, Trouble>;
    /// A page of the ids of a key's instances: all that live, and those that have ended if the service finds both
    /// alike.
    async fn of_key(&self, key: &str, owner: &str, from: Option<String>) -> Answer<Paged<String>>;
    /// A page of the ids of all that have ended; for services whose [`Provider::of_key`] finds live ones only.
    async fn ended(&self, _from: Option<String>) -> Answer<Paged<String>> {
        Ok(Paged::default())
    }
    /// A page of the ids of live ones, among them those that were told to end and still run.
    async fn live(&self, from: Option<String>, size: usize) -> Answer<Paged<String>>;
    /// Whether that page of them is one of instances that were told to end: most have, and the service may have
    /// forgotten some when it is asked for them.
    fn are_ending(_from: Option<&str>) -> bool {
        false
    }

    /// Tells the instance to end.
    async fn stop(&self, id: &str, epoch: u64) -> Result<(), Trouble>;
    /// Logs what of a stop the service will not do as it is asked.
    fn about_to_stop(&self, id: &str, stop: &StopTask);
    /// Sets tags of an instance.
    async fn tag(&self, id: &str, tags: Vec<Tag>) -> Result<(), Trouble>;
    /// ARN of the place for which a create was decided, by what the servers keep of it; empty where they keep nothing,
    /// or what an older release wrote.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`](driver_sdk::RemoteError::CouldNotAsk): it cannot be read.
    fn intended_place(intent: &[u8]) -> Answer<String>;
    /// Whether this says that an instance that has ended takes no tags.
    fn takes_no_tags(trouble: &Trouble) -> bool;

    /// Where the output of an instance is; `None` = nowhere, or not known yet.
    async fn log_of(&self, task: &Self::Task, container: &str) -> Answer<Option<LogPlace>>;
    /// Why there is no log.
    fn no_log() -> &'static str;
}
