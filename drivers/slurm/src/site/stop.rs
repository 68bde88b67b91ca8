//! Stops: the task's signal, then SIGKILL, until nothing of it runs.

use std::time::{Duration, Instant};

use driver_sdk::{InstanceState, Observation, RemoteError, StopTask};
use hpc::Answer;

use super::{HandleV1, STOP_LOOK, Site, on_disk};
use crate::place::{Claim, Files};
use crate::tables::{JobId, Phase};
use crate::{answer, look};

/// How long after SIGKILL an end may take before a stop is given up and asked for again.
const STOP_SLACK: Duration = Duration::from_secs(60);
/// How often a stop that has not ended the job says so again.
const STOP_AGAIN: Duration = Duration::from_secs(5);

impl Site {
    /// Ends an instance; answers when it has ended.
    pub(crate) async fn stop(&self, handle: &HandleV1, epoch: u64, stop: &StopTask) -> Answer<Observation> {
        let Some((_, files)) = self.files(handle).await? else {
            return self.one(handle).await;
        };
        if files.acknowledged {
            return self.one(handle).await;
        }
        let place = self.place(&handle.key);
        let closing = place.clone();
        let claim = on_disk(move || {
            closing.under(epoch, || closing.close(&Claim::Over("it was stopped before it started".to_owned())))
        })
        .await?;
        let Claim::Job { id, .. } = claim else {
            self.cancel(&handle.key, &files).await;
            return self.one(handle).await;
        };
        let mut name = if stop.signal.is_empty() { "TERM" } else { stop.signal.trim_start_matches("SIG") };
        if !is_signal(name) {
            tracing::warn!(key = handle.key, signal = stop.signal, "it is no name of a signal; SIGTERM is sent");
            name = "TERM";
        }
        let begun = Instant::now();
        let (mut told, mut killed): (bool, Option<Instant>) = (false, None);
        loop {
            if let Some((_, files)) = self.files(handle).await?
                && let Some(step) = look::alone(&files)
                // Children that it has left end with the job.
                && self.left(&handle.key, &files, id).await?
            {
                return Ok(look::observation(&handle.key, &files, None, &hpc::files::name(&handle.key), &step));
            }
            if !told {
                match self.send(&place, id, name).await {
                    // The task has to end all the same.
                    Err(RemoteError::WrongRequest(why)) if name != "TERM" => {
                        tracing::warn!(key = handle.key, why, "SIGTERM is sent");
                        name = "TERM";
                        continue;
                    }
                    sent => sent?,
                }
                told = true;
            }
            let seen = self.one(handle).await?;
            if seen.state == InstanceState::Gone
                || (seen.state == InstanceState::Exited && self.left(&handle.key, &files, id).await?)
            {
                return Ok(seen);
            }
            let waited = begun.elapsed();
            if waited > stop.timeout + STOP_SLACK {
                return Err(RemoteError::could_not_ask(format!(
                    "the job {id} was killed and has not ended after {} s: {}",
                    waited.as_secs(),
                    if seen.reason.is_empty() { "something of it still runs" } else { &seen.reason }
                )));
            }
            if waited > stop.timeout && killed.is_none_or(|at| at.elapsed() > STOP_AGAIN) {
                self.send(&place, id, "KILL").await?;
                // Also the steps, and whatever the site does at the end of a job. By slurmrestd KILL does that.
                if self.rest.is_none() {
                    let said = self.scancel(&place, &[&id.to_string()]).await?;
                    if !said.success && !answer::no_such_job(&said.stderr) {
                        said.output("scancel")?;
                    }
                }
                killed = Some(Instant::now());
            }
            tokio::time::sleep(STOP_LOOK).await;
        }
    }

    /// Whether a job has ended with all its processes.
    async fn left(&self, key: &str, files: &Files, id: JobId) -> Answer<bool> {
        let jobs = self.queue.now().await?;
        if jobs.job(&hpc::files::name(key), files, id).is_some_and(|job| job.phase() == Phase::Running) {
            return Ok(false);
        }
        let place = self.place(key);
        on_disk(move || Ok(!place.alive()?)).await
    }
}

/// Whether this can be the name of a signal, without `SIG`.
pub(crate) fn is_signal(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric())
}
