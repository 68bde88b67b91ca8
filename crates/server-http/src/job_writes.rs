//! Changing jobs.

use std::sync::Arc;

use access::{Capability, HostVolumeCapability, Need};
use api::shapes::{
    AllocListStub, IndexResponse, JobDeregisterResponse, JobDispatchRequest, JobDispatchResponse, JobEvaluateRequest,
    JobParseRequest, JobPlanRequest, JobPlanResponse, JobRegisterRequest, JobRegisterResponse, JobRevertRequest,
    JobStabilityRequest, JobSubmission, JobTagRequest, JobTagResponse, JobValidateRequest, JobValidateResponse,
    PeriodicForceResponse, PlanAnnotations, ScaleRequest, eval_detail,
};
use http::StatusCode;
use model::{
    Allocation, Job, Namespace,
    dispatch::Dispatch,
    job::{VersionTag, job_type},
};
use server::{
    error::{ErrorClass, Refused, ServerError},
    requests::{DeregisterJob, DispatchJob, EvalCreated, PlanJob, RegisterJob, ScaleJob, Submission, TagVersion},
};

use crate::{
    caller::{READS_JOBS, Unchecked},
    reply::{HttpError, Reply},
    request::Ctx,
};

pub(crate) async fn register(ctx: Unchecked) -> Result<Reply, HttpError> {
    put_job(ctx, None).await
}

pub(crate) async fn register_named(ctx: Unchecked) -> Result<Reply, HttpError> {
    let name = ctx.said().param("id").to_owned();
    put_job(ctx, Some(name)).await
}

/// The job of a request: present, with an id, in the namespace and region that query or job name.
fn job_of(ctx: &Ctx, job: Option<Job>, name: Option<&str>) -> Result<Job, HttpError> {
    if job.as_ref().is_some_and(|job| job.id.is_empty()) {
        return Err(HttpError::bad_request("Job ID hasn't been provided"));
    }
    placed(ctx, job, name)
}

/// The same with or without an id.
fn placed(ctx: &Ctx, job: Option<Job>, name: Option<&str>) -> Result<Job, HttpError> {
    let mut job = job.ok_or_else(|| HttpError::bad_request("Job must be specified"))?;
    if name.is_some_and(|name| job.id != name) {
        return Err(HttpError::bad_request("Job ID does not match name"));
    }
    let asked = ctx.query.text("namespace");
    if !asked.is_empty() {
        job.namespace = Namespace::from(asked);
    } else if job.namespace.is_empty() {
        job.namespace = Namespace::from(state::DEFAULT_NAMESPACE);
    }
    ctx.about.says("job", &job.id, &job.namespace);
    if job.kind == job_type::SYSTEM && job.task_groups.iter().any(|group| group.scaling.is_some()) {
        return Err(HttpError::bad_request("Task groups with job type system do not support scaling blocks"));
    }
    let region = &ctx.server().config().region;
    match job.region.as_str() {
        // `global` is what Nomad's job files mean by "the region of the agent".
        "" | "global" => job.region.clone_from(region),
        other if other == region => {}
        _ => return Err(HttpError::internal("No path to region")),
    }
    Ok(job)
}

async fn put_job(ctx: Unchecked, name: Option<String>) -> Result<Reply, HttpError> {
    let request: JobRegisterRequest = ctx.said().json().await?;
    let job = job_of(ctx.said(), request.job, name.as_deref())?;
    let ctx = ctx.check_all(to_register(&job, &[Capability::SubmitJob, Capability::RegisterJob]))?;
    let submission = request.submission.map(|s| submission_of(&job, s));
    let made = ctx
        .server()
        .register_job(RegisterJob {
            job,
            enforce_index: request.enforce_index.then_some(request.job_modify_index),
            preserve_counts: request.preserve_counts,
            preserve_resources: request.preserve_resources,
            eval_priority: (request.eval_priority != 0).then_some(request.eval_priority),
            submission,
        })
        .await?;
    ctx.written(
        made.index,
        &JobRegisterResponse {
            eval_id: made.eval_id,
            eval_create_index: made.eval_create_index,
            job_modify_index: made.job_modify_index,
            warnings: warning_text(&made.warnings),
            index: made.index,
            ..JobRegisterResponse::default()
        },
    )
}

/// What a registration needs: one of these in the job's own namespace, and the mount of each host volume.
fn to_register<'j>(job: &'j Job, any_of: &'j [Capability]) -> impl Iterator<Item = Need<'j>> {
    std::iter::once(Need::Namespace { namespace: job.namespace.as_str(), any_of }).chain(mounts(job))
}

/// The mount of each host volume of a job.
fn mounts(job: &Job) -> impl Iterator<Item = Need<'_>> {
    use HostVolumeCapability::{MountReadonly, MountReadwrite};
    const READ: &[HostVolumeCapability] = &[MountReadonly, MountReadwrite];
    job.task_groups.iter().flat_map(model::volume::host_requests).map(|volume| Need::HostVolume {
        name: &volume.source,
        any_of: if volume.read_only { READ } else { &READ[1..] },
    })
}

fn submission_of(job: &Job, s: JobSubmission) -> Submission {
    Submission {
        namespace: job.namespace.clone(),
        job_id: job.id.clone(),
        source: s.source,
        format: s.format,
        variable_flags: s.variable_flags,
        variables: s.variables,
        ..Submission::default()
    }
}

/// Warnings in the layout that clients print as it is.
fn warning_text(warnings: &[String]) -> String {
    if warnings.is_empty() {
        return String::new();
    }
    let list: String = warnings.iter().map(|w| format!("\n* {w}")).collect();
    format!("{} warning{}:\n{list}", warnings.len(), if warnings.len() == 1 { "" } else { "s" })
}

fn eval_response(made: &EvalCreated) -> JobRegisterResponse {
    JobRegisterResponse {
        eval_id: made.eval_id,
        eval_create_index: made.eval_create_index,
        job_modify_index: made.job_modify_index,
        index: made.index,
        ..JobRegisterResponse::default()
    }
}

/// What clients expect of these verbs when there is no such job.
fn as_internal(error: ServerError) -> HttpError {
    if error.class() == ErrorClass::NotFound { HttpError::internal(error) } else { error.into() }
}

pub(crate) async fn deregister(ctx: Ctx) -> Result<Reply, HttpError> {
    if ctx.query.bool("global")? {
        return Err(HttpError::unsupported(
            "global=true",
            "it stops a job in several regions, and this server knows one; leave it out",
        ));
    }
    let request = DeregisterJob {
        key: ctx.job_key(),
        purge: ctx.query.bool("purge")?,
        eval_priority: ctx.query.number::<i32>("eval_priority")?.filter(|p| *p > 0),
        no_shutdown_delay: ctx.query.bool("no_shutdown_delay")?,
    };
    let made = ctx.server().deregister_job(request).await?;
    let response = JobDeregisterResponse {
        eval_id: made.eval_id,
        eval_create_index: made.eval_create_index,
        job_modify_index: made.job_modify_index,
        index: made.index,
        ..JobDeregisterResponse::default()
    };
    ctx.written(made.index, &response)
}

pub(crate) async fn evaluate(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: JobEvaluateRequest = ctx.json_or_default().await?;
    same_job(&ctx, &request.job_id)?;
    let made =
        ctx.server().evaluate_job(ctx.job_key(), request.eval_options.force_reschedule).await.map_err(as_internal)?;
    ctx.written(made.index, &eval_response(&made))
}

/// The body may name the job too; then it is the one of the path.
fn same_job(ctx: &Ctx, named: &str) -> Result<(), HttpError> {
    if named.is_empty() || named == ctx.param("id") {
        Ok(())
    } else {
        Err(HttpError::bad_request("Job ID does not match"))
    }
}

pub(crate) async fn revert(ctx: Unchecked) -> Result<Reply, HttpError> {
    let request: JobRevertRequest = ctx.said().json().await?;
    let key = ctx.said().job_key();
    // The version mounts what it mounted then, by the rights of whoever brings it back.
    let version = ctx.said().server().snapshot().job_version(&key, request.job_version).cloned();
    let any_of = &[Capability::SubmitJob, Capability::RevertJob];
    let reverts = Need::Namespace { namespace: key.namespace.as_str(), any_of };
    let ctx = ctx.check_all(std::iter::once(reverts).chain(version.iter().flat_map(|job| mounts(job))))?;
    same_job(&ctx, &request.job_id)?;
    let reverted = ctx.server().revert_job(ctx.job_key(), request.job_version, request.enforce_prior_version).await;
    let made = reverted.map_err(as_internal)?;
    ctx.written(made.index, &eval_response(&made))
}

pub(crate) async fn stable(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: JobStabilityRequest = ctx.json().await?;
    same_job(&ctx, &request.job_id)?;
    let index = ctx
        .server()
        .set_job_stability(ctx.job_key(), request.job_version, request.stable)
        .await
        .map_err(as_internal)?;
    ctx.written(index, &IndexResponse { index })
}

pub(crate) async fn tag(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: JobTagRequest = ctx.json().await?;
    if request.latest && request.version != 0 {
        return Err(HttpError::bad_request("Version and Latest name two versions: leave one of them out"));
    }
    let request = TagVersion {
        key: ctx.job_key(),
        name: ctx.param("name").to_owned(),
        description: request.description,
        version: (!request.latest).then_some(request.version),
    };
    let (tag, index) = ctx.server().tag_job_version(request).await.map_err(as_internal)?;
    let VersionTag { name, description, tagged_time } = tag;
    ctx.written(index, &JobTagResponse { name, description, tagged_time })
}

pub(crate) async fn untag(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().untag_job_version(ctx.job_key(), ctx.param("name").to_owned()).await;
    Ok(Reply::empty(StatusCode::OK).written_at(index.map_err(as_internal)?))
}

pub(crate) async fn scale(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: ScaleRequest = ctx.json().await?;
    let key = ctx.job_key();
    if request.target.get("Job").is_some_and(|job| key.id != **job) {
        return Err(HttpError::bad_request("job ID in payload did not match URL"));
    }
    let Some(group) = request.target.get("Group").filter(|g| !g.is_empty()) else {
        return Err(HttpError::bad_request("missing task group name for scaling action"));
    };
    if request.error && request.count.is_some() {
        return Err(HttpError::bad_request("scaling action should not contain count if error is true"));
    }
    if request.count.is_some_and(|c| c < 0) {
        return Err(HttpError::bad_request("scaling action count can't be negative"));
    }
    let made = ctx
        .server()
        .scale_job(ScaleJob {
            key,
            group: group.clone(),
            count: request.count,
            message: request.message,
            error: request.error,
            meta: request.meta,
            job_modify_index: (request.job_modify_index != 0).then_some(request.job_modify_index),
        })
        .await?;
    ctx.written(made.index, &JobRegisterResponse { known_leader: true, ..eval_response(&made) })
}

pub(crate) async fn dispatch(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: JobDispatchRequest = ctx.json_or_default().await?;
    same_job(&ctx, &request.job_id)?;
    dispatched(&ctx, request).await
}

/// The body is the payload.
pub(crate) async fn dispatch_payload(ctx: Ctx) -> Result<Reply, HttpError> {
    let payload = ctx.bytes().await?.to_vec();
    dispatched(&ctx, JobDispatchRequest { payload, ..JobDispatchRequest::default() }).await
}

async fn dispatched(ctx: &Ctx, request: JobDispatchRequest) -> Result<Reply, HttpError> {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let dispatch = Dispatch {
        payload: BASE64_STANDARD.encode(&request.payload),
        payload_bytes: request.payload.len(),
        meta: request.meta,
        id_prefix: request.id_prefix_template,
        idempotency_token: match ctx.query.text("idempotency_token") {
            "" => request.idempotency_token,
            token => token.to_owned(),
        },
        priority: (request.priority != 0).then_some(request.priority),
    };
    let made = ctx.server().dispatch_job(DispatchJob { key: ctx.job_key(), dispatch }).await.map_err(|e| match e {
        // Clients know it by this text.
        ServerError::Refused(Refused::NotFound { .. }) => HttpError::internal("parameterized job not found"),
        other => other.into(),
    })?;
    ctx.written(
        made.index,
        &JobDispatchResponse {
            dispatched_job_id: made.job_id.to_string(),
            eval_id: made.eval_id,
            eval_create_index: made.eval_create_index,
            job_create_index: made.job_create_index,
            index: made.index,
        },
    )
}

pub(crate) async fn force(ctx: Ctx) -> Result<Reply, HttpError> {
    let made = ctx.server().launch_job(ctx.job_key()).await?;
    let answer =
        PeriodicForceResponse { eval_id: made.eval_id, eval_create_index: made.eval_create_index, index: made.index };
    ctx.written(made.index, &answer)
}

pub(crate) async fn plan(ctx: Unchecked) -> Result<Reply, HttpError> {
    let name = ctx.said().param("id").to_owned();
    let request: JobPlanRequest = ctx.said().json().await?;
    let job = job_of(ctx.said(), request.job, Some(&name))?;
    let ctx = ctx.check_all(to_register(&job, &[Capability::SubmitJob, Capability::PlanJob]))?;
    let launch = ctx.server().next_launch_of(&job).and_then(|at| jiff::Timestamp::from_second(at).ok());
    let preview = ctx.server().plan_job(PlanJob { job, diff: request.diff }).await?;
    // Displaced are allocations of any namespace. The counts tell of all; who they are, only to whoever reads them.
    let reads = |alloc: &Allocation| {
        ctx.caller.may(&Need::Namespace { namespace: alloc.namespace.as_str(), any_of: READS_JOBS })
    };
    let shown = preview.displaced.iter().filter(|alloc| reads(alloc));
    let response = JobPlanResponse {
        annotations: Some(PlanAnnotations {
            desired_tg_updates: preview.desired_updates,
            preempted_allocs: shown.map(|a| AllocListStub::new(a, false, false)).collect(),
        }),
        failed_tg_allocs: preview.failed_groups,
        next_periodic_launch: launch.map(|at| at.to_string()),
        job_modify_index: preview.job_modify_index,
        created_evals: preview.created_evals.into_iter().map(|e| eval_detail(&Arc::new(e))).collect(),
        diff: preview.diff,
        warnings: warning_text(&preview.warnings),
        index: preview.index,
    };
    ctx.written(preview.index, &response)
}

pub(crate) async fn validate(ctx: Unchecked) -> Result<Reply, HttpError> {
    let request: JobValidateRequest = ctx.said().json().await?;
    // A missing id is something to be told with the rest.
    let job = placed(ctx.said(), request.job, None)?;
    let ctx = ctx.check(&Need::Namespace { namespace: job.namespace.as_str(), any_of: READS_JOBS })?;
    let nameless = job.id.is_empty();
    let mut verdict = ctx.server().validate_job(job).await?;
    if nameless {
        verdict.errors.insert(0, "Missing job ID".to_owned());
        verdict.error = format!("1 error occurred:\n\t* Missing job ID\n\n{}", verdict.error);
    }
    ctx.plain(&JobValidateResponse {
        driver_config_validated: verdict.drivers_checked,
        validation_errors: verdict.errors,
        error: verdict.error,
        warnings: warning_text(&verdict.warnings),
    })
}

pub(crate) async fn parse(ctx: Ctx) -> Result<Reply, HttpError> {
    let request: JobParseRequest = ctx.json().await?;
    if request.job_hcl.is_empty() {
        return Err(HttpError::bad_request("Job spec is empty"));
    }
    if request.hcl_v1 {
        return Err(HttpError::unsupported("HCLv1", "job files are read as HCL2 or JSON; leave the field out"));
    }
    // Evaluating a job file is bounded work, but too much for a thread that serves others.
    let parsed = tokio::task::spawn_blocking(move || parse_job(&request))
        .await
        .map_err(|e| HttpError::internal(format_args!("parsing the job failed inside the server: {e}")))?;
    ctx.plain(&parsed?)
}

/// Reads a job file: no environment, no functions that touch files.
fn parse_job(request: &JobParseRequest) -> Result<serde_json::Value, HttpError> {
    let mut input = jobspec::ParseInput::new("input.hcl", &request.job_hcl);
    // As in Nomad, variables may be given that the job file does not declare.
    input.strict = false;
    if !request.variables.is_empty() {
        input.var_files.push(jobspec::VarFile { path: "variables.hcl".to_owned(), text: request.variables.clone() });
    }
    let parsed = jobspec::parse(&input).map_err(|problems| {
        HttpError::bad_request(format_args!("Failed to parse job: {}", jobspec::render(&problems, false).trim_end()))
    })?;
    Ok(parsed.document(request.canonicalize))
}
