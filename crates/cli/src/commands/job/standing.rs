//! What it means that an evaluation has changed nothing: the job is as it should be, or nothing will be done for it
//! until somebody changes it.

use anyhow::Result;
use api::call;
use model::{Allocation, ClientStatus, Deployment, DeploymentStatus, DesiredStatus, Job, job::job_type};

use crate::{
    commands::monitor::Voice,
    conn::{Conn, namespace_flag},
};

/// Why nothing will be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Idle {
    /// For people.
    pub(crate) text: String,
    /// It is not what the job asks for.
    pub(crate) failed: bool,
}

/// Decides it. `earlier` is the newest other version that may be returned to.
fn idle(job: &Job, latest: Option<&Deployment>, allocs: &[Allocation], earlier: Option<u64>) -> Option<Idle> {
    if job.stop || job.is_template() {
        return None;
    }
    let version = job.version;
    let wanted: usize = job.task_groups.iter().map(|g| usize::try_from(g.count()).unwrap_or(0)).sum();
    let own = || allocs.iter().filter(|a| a.job_version == version);
    let live = own().filter(|a| a.desired_status == DesiredStatus::Run && !a.client_terminal()).count();
    let batch = job.kind == job_type::BATCH || job.kind == job_type::SYSBATCH;
    if batch {
        // Its last attempts count; those that were replaced do not.
        let last: Vec<&Allocation> = own().filter(|a| a.next_allocation.is_nil()).collect();
        if job.status != "dead" || live > 0 || last.is_empty() {
            return None;
        }
        let failed = last.iter().filter(|a| a.client_status != ClientStatus::Complete).count();
        let how = if failed == 0 {
            "has run to its end".to_owned()
        } else {
            format!("has ended, {failed} of {} allocations failed", last.len())
        };
        let text = format!(
            "version {version} {how}; nothing runs again until the job changes: edit it, or dispatch a \
                parameterized job"
        );
        return Some(Idle { text, failed: failed > 0 });
    }
    if let Some(d) =
        latest.filter(|d| d.job_version == version && d.status == DeploymentStatus::Failed && live < wanted)
    {
        let flag = namespace_flag(job.namespace.as_str());
        let way = earlier.map(|v| format!(", or `drover job revert{flag} {} {v}`", job.id)).unwrap_or_default();
        let why = if d.status_description.is_empty() { String::new() } else { format!(" ({})", d.status_description) };
        let text = format!(
            "version {version} failed its deployment{why}; nothing will be placed until the job changes: edit it{way}"
        );
        return Some(Idle { text, failed: true });
    }
    // System jobs wait for nodes; a service that has nothing and waits for nothing is over.
    if job.kind == job_type::SERVICE && job.status == "dead" && wanted > 0 && live == 0 {
        let text = format!(
            "version {version} is dead and nothing of it waits for a place; nothing will be placed until the \
                job changes"
        );
        return Some(Idle { text, failed: true });
    }
    None
}

/// Says why nothing was done, when it is so; the exit code.
pub(crate) async fn told(conn: &Conn, id: &str, voice: Voice) -> Result<u8> {
    let job = conn.ask(call::job(id)).await?;
    let latest = conn.ask(call::job_deployment(id)).await?;
    let allocs = conn.ask(call::job_allocations(id)).await?;
    let versions = conn.ask(call::job_versions(id)).await?.versions;
    let earlier = versions.iter().find(|v| v.stable && v.version != job.version).map(|v| v.version);
    let Some(idle) = idle(&job, latest.as_ref(), &allocs, earlier) else { return Ok(0) };
    voice.line(&format!("==> {}", idle.text));
    Ok(u8::from(idle.failed))
}

#[cfg(test)]
mod tests {
    use model::job::TaskGroup;

    use super::*;

    fn job(kind: &str, status: &str, count: i32) -> Job {
        let group = TaskGroup { name: "g".into(), count: Some(count), ..TaskGroup::default() };
        Job {
            id: "web".into(),
            kind: kind.into(),
            status: status.into(),
            version: 2,
            task_groups: vec![group].into(),
            ..Job::default()
        }
    }

    fn alloc(status: ClientStatus) -> Allocation {
        Allocation { job_version: 2, client_status: status, ..Allocation::default() }
    }

    #[test]
    fn a_job_for_which_nothing_is_done_says_why() {
        let failed = Deployment {
            job_version: 2,
            status: DeploymentStatus::Failed,
            status_description: "Failed due to progress deadline".into(),
            ..Deployment::default()
        };
        let told = |job: &Job, d: Option<&Deployment>, allocs: &[Allocation]| idle(job, d, allocs, Some(1));
        let dead = told(&job("service", "dead", 1), Some(&failed), &[]).expect("a reason");
        assert!(dead.failed);
        assert_eq!(
            dead.text,
            "version 2 failed its deployment (Failed due to progress deadline); nothing will be placed until the job \
                changes: edit it, \
             or `drover job revert web 1`"
        );
        // Older allocations run on: still nothing comes of this version.
        let older = Allocation { job_version: 1, client_status: ClientStatus::Running, ..Allocation::default() };
        assert!(told(&job("service", "running", 1), Some(&failed), &[older]).is_some());
        // The deployment of another version says nothing about this one; all that is wanted runs.
        let other = Deployment { job_version: 1, ..failed.clone() };
        assert_eq!(told(&job("service", "running", 1), Some(&other), &[alloc(ClientStatus::Running)]), None);
        assert_eq!(told(&job("service", "running", 1), Some(&failed), &[alloc(ClientStatus::Running)]), None);
        assert!(told(&job("service", "dead", 1), None, &[]).expect("a reason").failed);
        assert_eq!(told(&job("service", "dead", 0), None, &[]), None);
        assert_eq!(told(&Job { stop: true, ..job("service", "dead", 1) }, Some(&failed), &[]), None);
        assert_eq!(told(&job("system", "pending", 1), None, &[]), None);
        // A batch that has run is done, and says so.
        assert!(!told(&job("batch", "dead", 1), None, &[alloc(ClientStatus::Complete)]).expect("a reason").failed);
        assert!(told(&job("batch", "dead", 1), None, &[alloc(ClientStatus::Failed)]).expect("a reason").failed);
        assert_eq!(told(&job("batch", "running", 1), None, &[alloc(ClientStatus::Running)]), None);
    }
}
