//! Commands on jobs.

use control::{
    Refused,
    admission::{self, Admitted, admit, check_references},
    dispatch,
    jobs::{self, tags},
    periodic, plan, scaling,
};
use model::{Job, JobKey, StoreIndex, job::VersionTag};
use state::State;

use crate::{
    clock::{new_id, now_ns, seed, zone},
    config::ServerConfig,
    error::ServerError,
    handle::ServerHandle,
    requests::{
        DeregisterJob, DispatchJob, Dispatched, EvalCreated, JobVerdict, PlanJob, PlanPreview, RegisterJob, ScaleJob,
        TagVersion,
    },
};

/// What a person should know of the job in this cluster, although it is accepted.
fn cluster_warnings(state: &State, job: &Job, config: &ServerConfig) -> Vec<String> {
    let mut lines = admission::warnings(state, job, &config.times());
    lines.extend(super::drivers::unknown(state, job));
    lines
}

/// Every call answers after its commit is durable. A refusal changes nothing.
impl ServerHandle {
    /// Registers a job or a new version of it.
    ///
    /// # Errors
    /// When the job is invalid, uses what this release refuses, or the state is not as the request demands.
    pub async fn register_job(&self, request: RegisterJob) -> Result<EvalCreated, ServerError> {
        let (config, most) = (self.config(), self.config().job_max_count);
        let (mut request, mut warnings) = jobs::admit(request, &config.admission())?;
        warnings.extend(cluster_warnings(&self.snapshot(), &request.job, config));
        warnings.extend(self.fit_for_drivers(&request.job).await?);
        jobs::check_priority(request.eval_priority, config.job_max_priority)?;
        warnings.extend(jobs::drop_large_source(&mut request, config.job_max_source_bytes));
        let answer = self.decide(move |state, stamp, ids| jobs::register(state, request, most, stamp, ids)).await?;
        Ok(EvalCreated { warnings, ..answer })
    }

    /// Refuses a job whose tasks no driver would take as they are configured; what deserves a look else.
    async fn fit_for_drivers(&self, job: &Job) -> Result<Vec<String>, ServerError> {
        let verdict = self.check_drivers(job).await;
        if verdict.errors.0.is_empty() { Ok(verdict.warnings) } else { Err(Refused::Job(verdict.errors).into()) }
    }

    /// Checks a job without registering it; never fails for an invalid job.
    ///
    /// # Errors
    /// When the job is for another cluster.
    pub async fn validate_job(&self, job: Job) -> Result<JobVerdict, ServerError> {
        let mut canonical = job.clone();
        canonical.canonicalize();
        let mut verdict = JobVerdict { job: canonical, ..JobVerdict::default() };
        let admitted = admit(job, &self.config().admission());
        match admitted.and_then(|admitted| check_references(&self.snapshot(), &admitted.job).map(|()| admitted)) {
            Ok(Admitted { job, warnings }) => {
                let drivers = self.check_drivers(&job).await;
                verdict.drivers_checked = drivers.complete;
                verdict.warnings = warnings;
                verdict.warnings.extend(cluster_warnings(&self.snapshot(), &job, self.config()));
                verdict.warnings.extend(drivers.warnings);
                verdict.job = job;
                if !drivers.errors.0.is_empty() {
                    verdict.errors = drivers.errors.flat();
                    verdict.error = drivers.errors.to_string();
                }
            }
            Err(Refused::Job(errors)) => {
                verdict.errors = errors.flat();
                verdict.error = errors.to_string();
            }
            Err(error) => {
                verdict.errors = vec![error.to_string()];
                verdict.error = error.to_string();
            }
        }
        Ok(verdict)
    }

    /// What a registration would do.
    ///
    /// # Errors
    /// When the job is invalid or uses what this release refuses.
    pub async fn plan_job(&self, request: PlanJob) -> Result<PlanPreview, ServerError> {
        let Admitted { job, mut warnings } = admit(request.job, &self.config().admission())?;
        let state = self.snapshot();
        warnings.extend(cluster_warnings(&state, &job, self.config()));
        check_references(&state, &job)?;
        warnings.extend(self.fit_for_drivers(&job).await?);
        let (request, most) = (PlanJob { job, ..request }, self.config().most_of_a_job());
        // Scoring every node takes a while on large clusters.
        let preview = move || plan::preview(&state, request, most, (now_ns(), seed()), &mut new_id);
        let preview = blocking::spawn(preview).await.unwrap_or_else(|error| Err(error.to_string()));
        let preview = preview.map_err(|why| ServerError::Internal { what: "the dry run", why })?;
        Ok(PlanPreview { warnings, ..preview })
    }

    /// Stops a job, and forgets it when purged.
    ///
    /// # Errors
    /// When the priority of the evaluation is out of bounds.
    pub async fn deregister_job(&self, request: DeregisterJob) -> Result<EvalCreated, ServerError> {
        let highest = self.config().job_max_priority;
        self.decide(move |state, stamp, ids| jobs::deregister(state, request, highest, stamp, ids)).await
    }

    /// Schedules a job again; `force_reschedule` also replaces failed allocations before their time, or whose
    /// attempts are used up.
    ///
    /// # Errors
    /// When there is no such job, or it is one that is never scheduled itself.
    pub async fn evaluate_job(&self, key: JobKey, force_reschedule: bool) -> Result<EvalCreated, ServerError> {
        self.decide(move |state, stamp, ids| jobs::evaluate(state, &key, force_reschedule, stamp, ids)).await
    }

    /// Registers an older version again as the newest one.
    ///
    /// # Errors
    /// When there is no such job or version, it is the current one, or the current one is not the enforced one.
    pub async fn revert_job(
        &self,
        key: JobKey,
        version: u64,
        enforced: Option<u64>,
    ) -> Result<EvalCreated, ServerError> {
        let own = self.clone();
        self.decide(move |state, stamp, ids| {
            jobs::revert(state, &key, (version, enforced), &own.config().admission(), stamp, ids)
        })
        .await
    }

    /// Marks a version as stable or not.
    ///
    /// # Errors
    /// When there is no such job or version.
    pub async fn set_job_stability(&self, key: JobKey, version: u64, stable: bool) -> Result<StoreIndex, ServerError> {
        self.decide(move |state, stamp, _| jobs::mark(state, key, version, stable, stamp)).await
    }

    /// Names a version, which is kept from then on; the tag and the index.
    ///
    /// # Errors
    /// When there is no such job or version, another version has the name, or the description is too long.
    pub async fn tag_job_version(&self, request: TagVersion) -> Result<(VersionTag, StoreIndex), ServerError> {
        self.decide(move |state, stamp, _| tags::tag(state, request, stamp)).await
    }

    /// Takes a name away from the version that has it.
    ///
    /// # Errors
    /// When there is no such job, or none of its versions has the name.
    pub async fn untag_job_version(&self, key: JobKey, name: String) -> Result<StoreIndex, ServerError> {
        self.decide(move |state, stamp, _| tags::untag(state, key, &name, stamp)).await
    }

    /// Makes a job of a parameterized one and has it scheduled. The same idempotency token gives the same child,
    /// however often it is asked for.
    ///
    /// # Errors
    /// When there is no such job, it is no template, is stopped, or does not allow what the request brings.
    pub async fn dispatch_job(&self, request: DispatchJob) -> Result<Dispatched, ServerError> {
        let own = self.clone();
        self.decide(move |state, stamp, ids| dispatch::dispatch(state, &request, &own.config().admission(), stamp, ids))
            .await
    }

    /// Launches a periodic job now, whatever runs of it.
    ///
    /// # Errors
    /// When there is no such job, the clock does not launch it, or it was launched in this second.
    pub async fn launch_job(&self, key: JobKey) -> Result<EvalCreated, ServerError> {
        self.decide(move |state, stamp, ids| periodic::force(state, &key, stamp, ids)).await
    }

    /// When the clock launches this job next, in the state as it is or as the plan would make it; Unix seconds.
    #[must_use]
    pub fn next_launch(&self, key: &JobKey) -> Option<i64> {
        periodic::next(&self.snapshot(), key, zone)
    }

    /// When the clock would launch a job first that is registered now; Unix seconds.
    #[must_use]
    pub fn next_launch_of(&self, job: &Job) -> Option<i64> {
        periodic::next_of(job, now_ns(), zone)
    }

    /// Changes the count of a group, or records a message about it.
    ///
    /// # Errors
    /// When there is no such job or group, the count is out of bounds, the job is at another index, or it is rolling
    /// out a version.
    pub async fn scale_job(&self, request: ScaleJob) -> Result<EvalCreated, ServerError> {
        let own = self.clone();
        self.decide(move |state, stamp, ids| scaling::scale(state, request, &own.config().admission(), stamp, ids))
            .await
    }
}
