//! `drover job action`: runs a command that the job file gives a name.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::call;
use serde_json::Value;

use super::common::find;
use crate::commands::{
    ApiArgs,
    alloc_exec::{Session, attached},
    resolve::{Intent, Operand, allocation},
};

/// Arguments of `job action`.
#[derive(Debug, clap::Args)]
pub(crate) struct Action {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    session: Session,
    /// The job
    #[arg(long)]
    job: String,
    /// The task; optional if only one has an action of that name
    #[arg(long)]
    task: Option<String>,
    /// Choose an allocation of this task group
    #[arg(long)]
    group: Option<String>,
    /// The allocation, by its id or prefix; the newest one that runs if none is given
    #[arg(long)]
    alloc: Option<String>,
    /// The name of the action
    name: String,
}

/// An action of a job, as its list says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    name: String,
    task: String,
    group: String,
}

/// Runs it; the command's exit code becomes ours.
pub(crate) async fn run(args: Action) -> Result<ExitCode> {
    let tty = args.session.tty()?;
    let conn = args.api.conn()?;
    let (conn, job) = find(&conn, &args.job).await?;
    let text = |action: &Value, name: &str| action[name].as_str().unwrap_or_default().to_owned();
    let of_job = conn.ask(call::job_actions(&job)).await?;
    let of_job: Vec<Found> = of_job
        .iter()
        .map(|a| Found { name: text(a, "Name"), task: text(a, "TaskName"), group: text(a, "TaskGroupName") })
        .collect();
    let found = chosen(&of_job, &args.name, args.task.as_deref(), args.group.as_deref(), &job)?;
    let operand = match &args.alloc {
        Some(id) => Operand { text: id, job: false, group: None, intent: Intent::Enter },
        None => Operand { text: &job, job: true, group: Some(&found.group), intent: Intent::Enter },
    };
    let alloc = allocation(&conn, operand).await?;
    let call = call::job_action(&job)
        .with("action", &args.name)
        .with("allocID", alloc.id.to_string())
        .with("task", &found.task)
        .with("group", &found.group)
        .with("tty", tty)
        .in_namespace(&alloc.namespace);
    attached(&conn, call, &args.session, tty).await
}

/// The action that is meant.
fn chosen<'a>(
    of_job: &'a [Found],
    name: &str,
    task: Option<&str>,
    group: Option<&str>,
    job: &str,
) -> Result<&'a Found> {
    let meant = |a: &&Found| {
        a.name == name && task.is_none_or(|task| a.task == task) && group.is_none_or(|group| a.group == group)
    };
    let found: Vec<&Found> = of_job.iter().filter(meant).collect();
    let shown = |a: &&Found| format!("{} of task {} in group {}", a.name, a.task, a.group);
    match found[..] {
        [only] => Ok(only),
        [] if of_job.is_empty() => bail!("job {job:?} has no actions; a task has them with an action block"),
        [] => {
            let all: Vec<String> = of_job.iter().map(|a| shown(&a)).collect();
            bail!("job {job:?} has no such action; it has {}", all.join(", "))
        }
        _ => {
            let all: Vec<String> = found.iter().map(shown).collect();
            bail!("several tasks have that action, name one with -task or -group: {}", all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, chosen};

    #[test]
    fn an_action_is_named_as_far_as_it_must_be() {
        let found = |name: &str, task: &str, group: &str| Found {
            name: name.to_owned(),
            task: task.to_owned(),
            group: group.to_owned(),
        };
        let all = [found("flush", "web", "a"), found("flush", "web", "b"), found("dump", "db", "a")];
        assert_eq!(chosen(&all, "dump", None, None, "j").expect("the only one"), &all[2]);
        assert_eq!(chosen(&all, "flush", None, Some("b"), "j").expect("by its group"), &all[1]);
        let said = |name, task, group| chosen(&all, name, task, group, "j").expect_err("refused").to_string();
        assert!(said("flush", Some("web"), None).contains("name one with -task or -group"));
        assert!(said("dump", Some("web"), None).contains("it has flush of task web in group a"));
        assert!(chosen(&[], "x", None, None, "j").expect_err("none").to_string().contains("has no actions"));
    }
}
