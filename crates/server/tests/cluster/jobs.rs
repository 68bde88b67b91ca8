//! Jobs from submission to their end.

use std::time::Duration;

use model::{ClientStatus, DeploymentStatus, DesiredStatus, EvalId, EvalStatus, JobId, job::job_status};
use server::{
    ErrorClass, ServerConfig, ServerError, ServerHandle,
    events::{EventFilter, Topic},
    requests::{PlanJob, RegisterJob, ScaleJob, SetHealth},
};
use state::Table;

use crate::fake::*;

async fn running(server: &ServerHandle, id: &str, count: usize) {
    until(server, &format!("{count} of {id} run"), |state| live(state, id, ClientStatus::Running).len() == count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_placed_runs_and_stops() {
    let server = start_patient().await.0;
    let s = server.handle();
    let node = FakeNode::join(s, node(1), Fate::Runs, &Provider::default()).await;
    let mut events =
        s.subscribe(EventFilter { topics: [(Topic::Job, vec!["web".to_owned()])].into(), namespace: None }, 0);

    let created = submit(s, job("web", 3)).await;
    assert!(created.eval_create_index == created.index && created.job_modify_index == created.index);
    running(s, "web", 3).await;
    let state =
        until(s, "the job is running", |state| state.job(&key("web")).is_some_and(|j| j.status == job_status::RUNNING))
            .await;
    let eval = state.eval(created.eval_id).unwrap();
    assert_eq!(eval.status, EvalStatus::Complete);
    assert_eq!(node.view().jobs_received, 1, "a job is sent once per session and version");
    assert_eq!(events.next().await.unwrap().events[0].kind, "JobRegistered");
    until(s, "the deployment is successful", |state| {
        state.latest_deployment(&key("web")).is_some_and(|d| d.status == DeploymentStatus::Successful)
    })
    .await;
    assert!(s.snapshot().job(&key("web")).unwrap().stable);

    stop(s, "web").await;
    let state = until(s, "the job is dead", |state| {
        state.job(&key("web")).is_some_and(|j| j.status == job_status::DEAD)
            && state.allocs_by_job(&key("web")).all(|a| a.client_status == ClientStatus::Complete)
    })
    .await;
    assert_eq!(state.allocs_by_job(&key("web")).filter(|a| a.desired_status == DesiredStatus::Stop).count(), 3);
    server.shutdown().await;
    node.until("the node is told that the server stops", |view| view.goodbye.as_ref().is_some_and(|(_, retry)| *retry))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_job_completes_in_few_commits() {
    let (s, _node) = &with_node(Fate::Completes).await;
    let before = s.stats().commits;
    submit(s, batch_job("sum", 200)).await;
    let state = until(s, "all are complete and the job is dead", |state| {
        live(state, "sum", ClientStatus::Complete).len() == 200
            && state.job(&key("sum")).is_some_and(|j| j.status == job_status::DEAD)
    })
    .await;
    let summary = state.job_summary(&key("sum")).unwrap().summary["g"];
    assert_eq!((summary.complete, summary.running, summary.failed), (200, 0, 0));
    let commits = s.stats().commits - before;
    assert!(commits < 40, "200 short tasks took {commits} commits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_finds_no_room_is_placed_when_a_node_comes() {
    let s = &start_patient().await;
    let created = submit(s, job("web", 2)).await;
    let state = until(s, "a blocked evaluation", |state| state.evals().any(|e| e.status == EvalStatus::Blocked)).await;
    let eval = state.eval(created.eval_id).unwrap();
    assert_eq!((eval.status, eval.queued.get("g")), (EvalStatus::Complete, Some(&2)));
    assert!(!eval.blocked_eval.is_nil() && eval.failed_groups.contains_key("g"));
    let _node = FakeNode::join(s, node(1), Fate::Runs, &Provider::default()).await;
    running(s, "web", 2).await;
    let state = until(s, "nothing is blocked", |state| state.evals().all(|e| e.status.terminal())).await;
    assert_eq!(state.job_summary(&key("web")).unwrap().summary["g"].queued, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_waits_for_room_outlives_its_progress_deadline() {
    let s = &start_patient().await;
    let deadline = model::GoDuration::from_millis(300);
    let mut waiting = job("web", 1);
    let update = waiting.task_groups[0].update.get_or_insert_default();
    update.healthy_deadline = Some(model::GoDuration::from_millis(200));
    update.progress_deadline = Some(deadline);
    submit(s, waiting).await;
    let state = until(s, "a deployment", |state| state.deployments().next().is_some()).await;
    let id = state.deployments().next().unwrap().id;
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(
        s.snapshot().deployment(id).unwrap().status,
        DeploymentStatus::Running,
        "no clock runs before the first is placed"
    );
    let _node = FakeNode::join(s, node(1), Fate::Runs, &Provider::default()).await;
    let state = until(s, "it runs", |state| live(state, "web", ClientStatus::Running).len() == 1).await;
    let (placed, d) = (live(&state, "web", ClientStatus::Running)[0].create_time, state.deployment(id).unwrap());
    // Whether the rest is done within so short a time is the machine's matter.
    assert!(d.groups["g"].require_progress_by_ns >= placed + deadline.nanos(), "it begins with the first: {d:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_allocation_makes_room_for_what_waits() {
    let s = &start_patient().await;
    let mut small = node(1);
    small.resources.memory.memory_mb = 100;
    let _node = FakeNode::join(s, small, Fate::Runs, &Provider::default()).await;
    let mut first = job("first", 1);
    resources(&mut first, 10, 80);
    let mut second = first.clone();
    second.id = JobId::from("second");
    submit(s, first).await;
    running(s, "first", 1).await;
    submit(s, second).await;
    until(s, "the second is blocked", |state| state.evals().any(|e| e.status == EvalStatus::Blocked)).await;
    purge(s, "first").await;
    running(s, "second", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_woken_in_vain_waits_on_as_the_same_evaluation() {
    let s = &start_patient().await;
    let mut small = node(1);
    small.resources.memory.memory_mb = 100;
    let _node = FakeNode::join(s, small, Fate::Completes, &Provider::default()).await;
    let mut large = job("large", 1);
    resources(&mut large, 10, 1000);
    submit(s, large).await;
    let blocked =
        |state: &state::State| state.evals_by_job(&key("large")).find(|e| e.status == EvalStatus::Blocked).cloned();
    let state = until(s, "it waits for room", |state| blocked(state).is_some()).await;
    let waiting = blocked(&state).unwrap();
    for name in ["a", "b", "c"] {
        submit(s, batch_job(name, 1)).await;
        let state = until(s, "it has made room", |state| live(state, name, ClientStatus::Complete).len() == 1).await;
        let ended = live(&state, name, ClientStatus::Complete)[0].modify_index;
        until(s, "it was looked at again", |state| blocked(state).is_some_and(|e| e.modify_index > ended)).await;
    }
    let state = s.snapshot();
    assert_eq!(blocked(&state).unwrap().id, waiting.id);
    assert_eq!(state.evals_by_job(&key("large")).count(), 2, "not one more for each time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_never_rescheduled_stays_as_it_is() {
    let (s, _node) = &with_node(Fate::Fails).await;
    let mut job = job("web", 1);
    job.task_groups[0].update.get_or_insert_default().max_parallel = Some(0);
    job.task_groups[0].reschedule =
        Some(model::Reschedule { attempts: Some(0), unlimited: Some(false), ..model::Reschedule::default() });
    submit(s, job).await;
    let state = until(s, "it has failed", |state| live(state, "web", ClientStatus::Failed).len() == 1).await;
    assert_eq!(state.evals().count(), 1, "there is nothing to decide");
    let forced = s.evaluate_job(key("web"), true).await.unwrap();
    until(s, "it was looked at", |state| state.eval(forced.eval_id).is_some_and(|e| e.status == EvalStatus::Complete))
        .await;
    assert_eq!(s.snapshot().alloc_count(), 1, "not by order either");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switches_of_preemption_are_kept_and_what_is_read_can_be_written() {
    let s = &start_patient().await;
    let read = || model::SchedulerConfig::clone(s.snapshot().scheduler_config());
    let set = |config| s.set_scheduler_config(server::requests::SetSchedulerConfig { config, cas: None });
    let mut config = read();
    config.scheduler_algorithm = "spread".to_owned();
    assert!(set(config).await.unwrap().updated);
    let mut config = read();
    config.preemption_config.system_scheduler_enabled = true;
    config.preemption_config.batch_scheduler_enabled = true;
    assert!(set(config).await.unwrap().updated);
    let config = read();
    let switches = &config.preemption_config;
    assert_eq!(
        (switches.system_scheduler_enabled, switches.batch_scheduler_enabled, switches.service_scheduler_enabled),
        (true, true, false)
    );
    assert_eq!(config.scheduler_algorithm, "spread");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_conditions_and_refusals() {
    let s = &start_patient().await;
    let register = |job, enforce_index| s.register_job(RegisterJob { job, enforce_index, ..RegisterJob::default() });
    let class = |result: Result<_, ServerError>| result.map(|_: server::requests::EvalCreated| ()).unwrap_err().class();

    let first = register(job("web", 1), Some(0)).await.unwrap();
    let again = register(job("web", 1), None).await.unwrap();
    assert_eq!(again.job_modify_index, first.job_modify_index, "the same specification is no new version");
    assert_eq!(s.snapshot().job(&key("web")).unwrap().version, 0);
    assert_eq!(class(register(job("web", 2), Some(0)).await), ErrorClass::Conflict);
    assert_eq!(class(register(job("web", 2), Some(first.job_modify_index + 1)).await), ErrorClass::Conflict);
    register(job("web", 2), Some(first.job_modify_index)).await.unwrap();
    assert_eq!(s.snapshot().job(&key("web")).unwrap().version, 1);

    s.revert_job(key("web"), 0, Some(1)).await.unwrap();
    let state = s.snapshot();
    let job_now = state.job(&key("web")).unwrap();
    assert_eq!((job_now.version, job_now.task_groups[0].count), (2, Some(1)));
    assert_eq!(class(s.revert_job(key("web"), 2, None).await), ErrorClass::Invalid);
    // Not NotFound: clients know it by 500.
    assert_eq!(class(s.revert_job(key("web"), 9, None).await), ErrorClass::Invalid);
    assert_eq!(class(s.revert_job(key("web"), 0, Some(0)).await), ErrorClass::Conflict);

    let mut invalid = job("bad", 1);
    invalid.task_groups[0].tasks[0].driver.clear();
    let verdict = s.validate_job(invalid.clone()).await.unwrap();
    assert!(verdict.errors.iter().any(|e| e.contains("driver")), "{verdict:?}");
    assert_eq!(class(register(invalid, None).await), ErrorClass::Invalid);
    let mut nowhere = job("nowhere", 1);
    nowhere.namespace = "missing".into();
    assert_eq!(class(register(nowhere, None).await), ErrorClass::Invalid);
    let mut periodic = job("periodic", 1);
    periodic.multiregion = Some(serde_json::json!({}));
    let error = register(periodic, None).await.unwrap_err();
    assert!(error.to_string().contains("multiregion"), "{error}");
    assert_eq!(class(s.evaluate_job(key("missing"), false).await), ErrorClass::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_changes_nothing() {
    let (s, _node) = &with_node(Fate::Runs).await;
    submit(s, job("web", 1)).await;
    running(s, "web", 1).await;
    until(s, "quiet", |state| {
        state.evals().all(|e| e.status.terminal()) && state.deployments().all(|d| !d.status.active())
    })
    .await;
    let before = s.snapshot().latest_index();
    let preview = s.plan_job(PlanJob { job: job("web", 3), diff: true }).await.unwrap();
    assert_eq!(preview.desired_updates["g"].place, 2, "{preview:?}");
    assert!(preview.diff.is_some());
    let too_large = {
        let mut job = job("large", 1);
        resources(&mut job, 10, 1_000_000);
        s.plan_job(PlanJob { job, diff: false }).await.unwrap()
    };
    assert!(too_large.failed_groups.contains_key("g"));
    assert_eq!(s.snapshot().latest_index(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_rolls_and_ends_successful() {
    let (s, _node) = &with_node(Fate::Runs).await;
    submit(s, job("web", 4)).await;
    running(s, "web", 4).await;
    let done = |version: u64| {
        move |state: &state::State| {
            state
                .latest_deployment(&key("web"))
                .is_some_and(|d| d.job_version == version && d.status == DeploymentStatus::Successful)
        }
    };
    until(s, "version 0 is rolled out", done(0)).await;
    submit(s, changed(job("web", 4))).await;
    let state = until(s, "version 1 is rolled out", done(1)).await;
    let runs = live(&state, "web", ClientStatus::Running);
    assert_eq!(runs.len(), 4);
    assert!(runs.iter().all(|a| a.job_version == 1 && a.healthy() == Some(true)));
    // One at a time: each batch was placed by an evaluation of its own.
    let evals: std::collections::BTreeSet<EvalId> = runs.iter().map(|a| a.eval_id).collect();
    assert_eq!(evals.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unhealthy_update_fails_and_stops_rolling() {
    let (server, node_1) = with_node(Fate::Runs).await;
    let s = &server;
    submit(s, job("web", 3)).await;
    until(s, "version 0 is rolled out", |state| state.deployments().any(|d| d.status == DeploymentStatus::Successful))
        .await;
    drop(node_1);
    let _node = FakeNode::join(s, node(1), Fate::Unhealthy, &Provider::default()).await;
    let mut next = changed(job("web", 3));
    next.task_groups[0].update.get_or_insert_default().progress_deadline = Some(model::GoDuration::ZERO);
    submit(s, next).await;
    let state = until(s, "the deployment has failed", |state| {
        state.latest_deployment(&key("web")).is_some_and(|d| d.job_version == 1 && d.status == DeploymentStatus::Failed)
    })
    .await;
    let d = state.latest_deployment(&key("web")).unwrap();
    assert_eq!(d.status_description, "Failed due to unhealthy allocations");
    assert!(!state.job(&key("web")).unwrap().stable);
    let old = state
        .allocs_by_job(&key("web"))
        .filter(|a| a.job_version == 0 && a.desired_status == DesiredStatus::Run)
        .count();
    assert_eq!(old, 2, "the rest stays at the old version");
    let id = d.id;
    let error = s.fail_deployment(id).await.unwrap_err();
    assert_eq!(error.to_string(), "can't fail terminal deployment");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_set_and_deployments_are_held_by_hand() {
    let (s, _node) = &with_node(Fate::Silent).await;
    submit(s, job("web", 1)).await;
    let state = until(s, "a deployment with its allocation", |state| {
        state.deployments().any(|d| state.allocs_by_deployment(d.id).next().is_some())
    })
    .await;
    let d = state.deployments().next().unwrap().id;
    let alloc = state.allocs().next().unwrap().id;
    s.pause_deployment(d, true).await.unwrap();
    assert_eq!(s.snapshot().deployment(d).unwrap().status, DeploymentStatus::Paused);
    s.pause_deployment(d, false).await.unwrap();
    assert_eq!(s.promote_deployment(d, None).await.unwrap_err().class(), ErrorClass::Conflict);
    s.set_deployment_health(SetHealth { deployment_id: d, healthy: vec![alloc], unhealthy: vec![] }).await.unwrap();
    until(s, "the deployment is successful", |state| {
        state.deployment(d).is_some_and(|d| d.status == DeploymentStatus::Successful)
    })
    .await;

    // Called unhealthy by a person, it ends its deployment, whatever time is left.
    let mut next = changed(job("web", 1));
    next.task_groups[0].update.get_or_insert_default().auto_revert = Some(true);
    submit(s, next).await;
    let state = until(s, "the next one", |state| {
        state
            .latest_deployment(&key("web"))
            .is_some_and(|d| d.job_version == 1 && state.allocs_by_deployment(d.id).next().is_some())
    })
    .await;
    let d = state.latest_deployment(&key("web")).unwrap().id;
    let alloc = state.allocs_by_deployment(d).next().unwrap().id;
    let set =
        s.set_deployment_health(SetHealth { deployment_id: d, healthy: vec![], unhealthy: vec![alloc] }).await.unwrap();
    assert_eq!(set.reverted_job_version, Some(0));
    let d = s.snapshot().deployment(d).unwrap().clone();
    let description = "Failed due to unhealthy allocations - rolling back to job version 0";
    assert_eq!((d.status, d.status_description.as_str()), (DeploymentStatus::Failed, description));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_allocation_waits_for_its_replacement() {
    let (s, _node) = &with_node(Fate::Fails).await;
    let mut job = job("web", 1);
    job.task_groups[0].update.get_or_insert_default().max_parallel = Some(0);
    job.task_groups[0].reschedule.get_or_insert_default().delay = Some(model::GoDuration::from_secs(3600));
    submit(s, job).await;
    let state = until(s, "a follow-up is waiting", |state| {
        state.evals().any(|e| e.wait_until > 0 && e.status == EvalStatus::Pending)
            && state.allocs().any(|a| a.client_status == ClientStatus::Failed && !a.followup_eval_id.is_nil())
    })
    .await;
    assert_eq!(state.alloc_count(), 1, "not replaced before its time");
    assert_eq!(s.stats().broker_waiting, 1);
    // An operator need not wait.
    s.evaluate_job(key("web"), true).await.unwrap();
    until(s, "it is replaced by order", |state| state.alloc_count() >= 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_scaled() {
    let (s, _node) = &with_node(Fate::Runs).await;
    submit(s, job("web", 1)).await;
    until(s, "rolled out", |state| state.deployments().any(|d| d.status == DeploymentStatus::Successful)).await;
    let scale = |count| {
        s.scale_job(ScaleJob { key: key("web"), group: "g".to_owned(), count: Some(count), ..ScaleJob::default() })
    };
    scale(3).await.unwrap();
    running(s, "web", 3).await;
    until(s, "quiet", |state| state.deployments().all(|d| !d.status.active())).await;
    scale(1).await.unwrap();
    running(s, "web", 1).await;
    assert_eq!(scale(-1).await.unwrap_err().class(), ErrorClass::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_queries_wake_for_their_table_only() {
    let s = &start_patient().await;
    let of_jobs = |_: &state::State| server::Watched::table(Table::Jobs);
    let before = s.snapshot().index(Table::Jobs);
    let waiting = {
        let s = ServerHandle::clone(s);
        tokio::spawn(async move {
            s.wait_for(before, PATIENCE, of_jobs, |state| state.index(Table::Jobs)).await.index(Table::Jobs)
        })
    };
    let _node = FakeNode::join(s, node(1), Fate::Silent, &Provider::default()).await;
    assert!(!waiting.is_finished(), "a node is no job");
    let created = submit(s, job("web", 1)).await;
    assert!(waiting.await.unwrap() >= created.index);
    let state = s.wait_for(u64::MAX - 1, Duration::from_millis(10), of_jobs, |state| state.index(Table::Jobs)).await;
    assert!(state.latest_index() >= created.index, "after the wait the newest state is given");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collection_removes_what_has_ended() {
    let (s, _node) = &with_node(Fate::Completes).await;
    submit(s, batch_job("sum", 3)).await;
    submit(s, job("web", 0)).await;
    until(s, "the batch job is dead", |state| state.job(&key("sum")).is_some_and(|j| j.status == job_status::DEAD))
        .await;
    let collected = s.collect_garbage().await.unwrap();
    assert_eq!((collected.jobs, collected.allocs), (1, 3), "{collected:?}");
    let state = s.snapshot();
    assert!(state.job(&key("sum")).is_none() && state.job(&key("web")).is_some());
    assert_eq!(state.alloc_count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_keeps_as_many_versions_of_a_job_as_it_is_told() {
    let server = start_with(ServerConfig { job_tracked_versions: 2, ..ServerConfig::default() }).await;
    let s = server.handle();
    for version in 0..4 {
        let mut job = job("web", 0);
        job.meta.insert("version".into(), version.to_string());
        submit(s, job).await;
    }
    let versions: Vec<u64> = s.snapshot().job_versions(&key("web")).map(|j| j.version).collect();
    assert_eq!(versions, [3, 2]);
    server.shutdown().await;
}
