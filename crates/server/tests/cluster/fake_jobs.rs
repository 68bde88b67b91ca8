//! Jobs for fake nodes.

use model::{
    Job,
    job::{TaskGroup, job_type},
    policy::{Migrate, Reschedule, Update},
    task::Task,
};

/// A job of one group `g` with one task `t`.
pub(crate) fn job(id: &str, count: i32) -> Job {
    let task = Task { name: "t".into(), driver: "mock_driver".to_owned(), ..Task::default() };
    let update = Update {
        min_healthy_time: Some(model::GoDuration::ZERO),
        health_check: Some("task_states".to_owned()),
        ..Update::default()
    };
    let group = TaskGroup {
        name: "g".into(),
        count: Some(count),
        tasks: vec![task],
        update: Some(update),
        migrate: Some(Migrate { health_check: Some("task_states".to_owned()), ..Migrate::default() }),
        reschedule: Some(Reschedule {
            delay: Some(model::GoDuration::from_secs(5)),
            delay_function: Some("constant".to_owned()),
            unlimited: Some(true),
            ..Reschedule::default()
        }),
        ..TaskGroup::default()
    };
    let mut job = Job {
        id: id.into(),
        name: id.to_owned(),
        kind: job_type::SERVICE.to_owned(),
        datacenters: vec!["dc1".to_owned()],
        task_groups: vec![group].into(),
        ..Job::default()
    };
    resources(&mut job, 10, 10);
    job
}

pub(crate) fn batch_job(id: &str, count: i32) -> Job {
    let mut job = job(id, count);
    job.kind = job_type::BATCH.to_owned();
    job.task_groups[0].update = None;
    job.task_groups[0].migrate = None;
    job.task_groups[0].reschedule = None;
    job
}

pub(crate) fn remote_job(id: &str, count: i32) -> Job {
    let mut job = job(id, count);
    job.task_groups[0].tasks[0].driver = "far".to_owned();
    job
}

pub(crate) fn resources(job: &mut Job, cpu: i64, memory_mb: i64) {
    let own = &mut job.task_groups[0].tasks[0].resources;
    own.cpu = Some(cpu);
    own.memory_mb = Some(memory_mb);
    job.task_groups[0].ephemeral_disk = Some(model::job::EphemeralDisk { size_mb: Some(10), ..Default::default() });
    job.task_groups[0].tasks[0].logs =
        Some(model::task::LogConfig { max_files: Some(1), max_file_size_mb: Some(1), ..Default::default() });
}

/// The same job in another version: its task has another environment.
pub(crate) fn changed(mut job: Job) -> Job {
    job.task_groups[0].tasks[0].env.insert("VERSION".to_owned(), "2".to_owned());
    job
}
