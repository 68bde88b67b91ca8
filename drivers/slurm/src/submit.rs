//! Submissions. Those of one kind that come together are one job array: one call of `sbatch` or of slurmrestd, whatever
//! their number, and one record at the controller until they start.
//!
//! ```text
//! a submission ── joins the queue ── gets one of a few turns ── takes all of its kind from the queue
//!     a few ──▶ `sbatch`, one by one
//!     many  ──▶ `sending` of each names the array ──▶ `sbatch --array` ──▶ `job` of each
//! ```
//!
//! The first ones find a turn at once and are alone; the others gather while these are on their way.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use driver_sdk::RemoteError;
use hpc::Answer;
use hpc::command::Commands;
use hpc::files::unique;
use hpc::users::User;
use tokio::sync::{Semaphore, oneshot};

use crate::answer::Refusal;
use crate::place::{Member, Place};
use crate::rest::{Rest, Unsent};
use crate::site::{lock, on_disk};
use crate::tables::JobId;
use crate::{answer, gate, plan};

/// Calls of `sbatch` at a time: the controller takes them one after the other.
const CALLS: usize = 4;
/// Fewer are submitted one by one, each with the name of its key.
const MANY: usize = 8;
/// Jobs of an array, unless the cluster takes fewer: Slurm's own limit is 1001, a site's `MaxArraySize`.
const AT_MOST: usize = 1000;

/// One submission.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) place: Place,
    pub(crate) name: String,
    pub(crate) owner: String,
    pub(crate) key: String,
    pub(crate) epoch: u64,
    /// Whom the job runs as; `None`: the user of the agent.
    pub(crate) user: Option<User>,
    /// What [`plan::shared`] says of its task.
    pub(crate) options: Vec<String>,
}

struct Waiting {
    submission: Submission,
    tell: oneshot::Sender<Answer<()>>,
}

/// All submissions of this process.
pub(crate) struct Submissions {
    commands: Commands,
    rest: Option<Arc<Rest>>,
    /// Where arrays are submitted from.
    root: PathBuf,
    queue: Mutex<Vec<Waiting>>,
    calls: Semaphore,
    /// Jobs of an array that the operator and the cluster take; 1: no arrays.
    largest: AtomicUsize,
}

/// What became of a call of `sbatch`.
enum Sent {
    Taken(u64),
    /// Slurm itself has refused: nothing was taken.
    Refused(Refusal, RemoteError),
    Unclear(RemoteError),
}

impl Submissions {
    pub(crate) fn new(commands: Commands, rest: Option<Arc<Rest>>, root: PathBuf, arrays: bool) -> Self {
        let largest = AtomicUsize::new(if arrays { AT_MOST } else { 1 });
        Self { commands, rest, root, queue: Mutex::default(), calls: Semaphore::new(CALLS), largest }
    }

    /// Submits, and notes the job in the run directory. A run directory that has never had a submission is removed when
    /// Slurm refuses.
    ///
    /// # Errors
    /// As [`answer::submit`] says, or [`RemoteError::StaleEpoch`].
    ///
    /// A drop leaves the submission to others: it may still happen.
    pub(crate) async fn submit(self: &Arc<Self>, submission: Submission) -> Answer<()> {
        let (tell, mut told) = oneshot::channel();
        lock(&self.queue).push(Waiting { submission, tell });
        let lost = |_| RemoteError::could_not_ask("the submission was given up");
        loop {
            let _turn = tokio::select! {
                biased;
                said = &mut told => return said.map_err(lost)?,
                turn = self.calls.acquire() => turn,
            };
            let batch = self.take();
            if batch.is_empty() {
                // Ours is on its way.
                break;
            }
            let this = self.clone();
            // Others wait for this as well: it goes on when the caller has gone.
            let sent = tokio::spawn(async move { this.send(batch).await });
            sent.await.map_err(RemoteError::could_not_ask)?;
        }
        told.await.map_err(lost)?
    }

    /// The oldest submission, and all of its kind when they are many.
    fn take(&self) -> Vec<Waiting> {
        let mut queue = lock(&self.queue);
        queue.retain(|waiting| !waiting.tell.is_closed());
        let Some(first) = queue.first() else { return Vec::new() };
        let kind = (first.submission.user.clone(), first.submission.options.clone());
        let alike = |waiting: &Waiting| (&waiting.submission.user, &waiting.submission.options) == (&kind.0, &kind.1);
        let mut left = self.largest.load(Ordering::Relaxed);
        if queue.iter().filter(|waiting| alike(waiting)).count() < MANY || left == 1 {
            return vec![queue.remove(0)];
        }
        queue
            .extract_if(.., |waiting| {
                let takes = left > 0 && alike(waiting);
                left -= usize::from(takes);
                takes
            })
            .collect()
    }

    async fn send(&self, mut batch: Vec<Waiting>) {
        let mut size = batch.len();
        while !batch.is_empty() {
            let part: Vec<Waiting> = batch.drain(..size.min(batch.len())).collect();
            let many = part.len();
            let Some((mut part, refusal, why)) = self.send_together(part).await else { continue };
            match refusal {
                // A cluster that is nearly full takes a part.
                Refusal::Full if many > 1 => size = many / 2,
                Refusal::Array if many > 1 => {
                    size = many / 2;
                    self.largest.fetch_min(size, Ordering::Relaxed);
                }
                _ => {
                    if refusal == Refusal::Full {
                        part.append(&mut batch);
                    }
                    for waiting in part {
                        self.refuse(waiting, why.clone()).await;
                    }
                    continue;
                }
            }
            batch.splice(..0, part);
        }
    }

    /// One call of `sbatch`. Returns what Slurm has refused; everybody else is told.
    async fn send_together(&self, part: Vec<Waiting>) -> Option<(Vec<Waiting>, Refusal, RemoteError)> {
        let array = (part.len() > 1).then(|| format!("array.{}", unique()));
        let part = self.note(part, array.as_deref()).await;
        let first = &part.first()?.1.submission;
        let mut args = first.options.clone();
        let user = first.user.as_ref();
        let sent = match &array {
            None => {
                let (dir, comment) =
                    (&first.place.dir, format!("drover;{};{};{}", first.owner, first.key, first.epoch));
                args.extend(plan::own(&first.name, &comment, dir, &dir.join("gate.log")));
                self.call((user, dir), args, &gate::gate(dir), Some(&dir.join("gate.sh"))).await
            }
            Some(array) => {
                let dirs: Vec<_> = part.iter().map(|(n, waiting)| (*n, &*waiting.submission.place.dir)).collect();
                let indices: Vec<String> = dirs.iter().map(|(n, _)| n.to_string()).collect();
                let comment = format!("drover;{};array", first.owner);
                args.extend(plan::own(array, &comment, &self.root, "/dev/null".as_ref()));
                args.push(format!("--array={}", indices.join(",")));
                self.call((user, &self.root), args, &gate::array(&dirs), None).await
            }
        };
        let places: Vec<_> = part.iter().map(|(n, waiting)| (*n, waiting.submission.place.clone())).collect();
        match sent {
            Sent::Refused(refusal, why) => {
                let unsent = on_disk(move || {
                    for (index, place) in places {
                        let member = array.as_ref().map(|array| Member { array: array.clone(), index });
                        // What stays noted was perhaps taken: that is asked before the next submission.
                        let _ = place.unsent(member.as_ref());
                    }
                    Ok(())
                });
                let _ = unsent.await;
                return Some((part.into_iter().map(|(_, waiting)| waiting).collect(), refusal, why));
            }
            Sent::Unclear(why) => part.into_iter().for_each(|(_, waiting)| drop(waiting.tell.send(Err(why.clone())))),
            Sent::Taken(number) => {
                let many = array.is_some();
                let sent = move |(n, place): &(u32, Place)| place.sent(JobId { number, index: many.then_some(*n) });
                let noted = on_disk(move || Ok(places.iter().map(sent).collect::<Vec<_>>()));
                let noted = noted.await.unwrap_or_else(|why| vec![Err(why); part.len()]);
                part.into_iter().zip(noted).for_each(|((_, waiting), noted)| drop(waiting.tell.send(noted)));
            }
        }
        None
    }

    /// Notes in each run directory that it is about to be submitted, and its index if that is in an array; tells and
    /// leaves out those where that fails.
    async fn note(&self, part: Vec<Waiting>, array: Option<&str>) -> Vec<(u32, Waiting)> {
        let array = array.map(str::to_owned);
        let places: Vec<_> =
            part.iter().map(|waiting| (waiting.submission.place.clone(), waiting.submission.epoch)).collect();
        let noted = on_disk(move || {
            // An index is not given twice, for where the note failed it may be in the file.
            let note = |(index, (place, epoch)): (u32, &(Place, u64))| {
                let member = array.as_ref().map(|array| Member { array: array.clone(), index });
                place.under(*epoch, || place.sending(member.as_ref()))
            };
            Ok((0..).zip(&places).map(note).collect::<Vec<_>>())
        });
        let noted = noted.await.unwrap_or_else(|why| vec![Err(why); part.len()]);
        let mut good = Vec::with_capacity(part.len());
        for (index, (waiting, noted)) in (0..).zip(part.into_iter().zip(noted)) {
            match noted {
                Ok(()) => good.push((index, waiting)),
                // Who waits may have gone.
                Err(why) => drop(waiting.tell.send(Err(why))),
            }
        }
        good
    }

    /// Submits a script, which may lie in a file as well.
    async fn call(
        &self,
        (user, dir): (Option<&User>, &Path),
        mut args: Vec<String>,
        script: &str,
        file: Option<&Path>,
    ) -> Sent {
        if let Some(rest) = &self.rest {
            return match rest.submit(dir, &args, script).await {
                Ok(number) => Sent::Taken(number),
                Err(Unsent { refusal: Some(refusal), why }) => Sent::Refused(refusal, why),
                Err(Unsent { refusal: None, why }) => Sent::Unclear(why),
            };
        }
        args.insert(0, "--parsable".to_owned());
        args.extend(file.map(|file| file.display().to_string()));
        let typed = if file.is_some() { "" } else { script };
        let said = match self.commands.run_in((user, dir), "sbatch", &args, typed).await {
            Ok(said) => said,
            Err(why) => return Sent::Unclear(why),
        };
        // A complaint beside a number is none.
        let id = said.stdout.lines().rev().find_map(|line| line.trim().split(';').next()?.parse::<u64>().ok());
        match (id.filter(|_| said.success), answer::refusal(&said.stderr)) {
            (Some(id), _) => Sent::Taken(id),
            (None, Some(refusal)) => Sent::Refused(refusal, answer::submit(&said.stderr)),
            (None, None) => Sent::Unclear(answer::submit(&said.stderr)),
        }
    }

    /// Tells of a refusal. Nothing has to stay of what was never taken; where an earlier submission may have been, the
    /// refusal of this one says nothing of the instance.
    async fn refuse(&self, waiting: Waiting, why: RemoteError) {
        let Waiting { submission, tell } = waiting;
        let removed = on_disk(move || submission.place.remove_if_unsent());
        let answer = match (removed.await, why) {
            (Ok(false), RemoteError::WrongRequest(why)) => {
                RemoteError::could_not_ask(format!("{why}; an earlier submission may have been taken, or still be"))
            }
            (Ok(_), why) | (Err(why), _) => why,
        };
        // Who waits may have gone.
        let _ = tell.send(Err(answer));
    }
}
