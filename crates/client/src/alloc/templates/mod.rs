//! Templates of a task: rendered before its driver is called, watched while it runs.
//!
//! ```text
//! start ── render until nothing is missing ── write ── remember ── driver
//! running ─ files that were read have changed ─ render ─ write ─ splay ─ restart | signal | script ─ remember
//! ```
//!
//! A result counts as applied when the change it asks for has been made: an agent that dies in between makes it again.

mod files;
mod plan;
mod record;
mod watch;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use driver_host::{BundleFile, Capabilities};
use model::{Task, TaskGroup};
use tokio_util::sync::CancellationToken;

use self::plan::{Attempt, Directories, Plan};
pub(crate) use self::watch::watch;
use super::{
    effects::Subject,
    machine::{Event, StartFailure},
    run::AllocCommand,
    task_config,
};
use crate::{
    config::TemplateConfig,
    context::now_ns,
    dirs::TaskDirs,
    env::{EnvInput, PathView},
    events,
};

/// Data may be missing this long before people are told.
const TELL_AFTER: Duration = Duration::from_secs(3);

/// A task's templates on this node.
fn plan_of(subject: &Subject, group: &TaskGroup, task: &Task, capabilities: &Capabilities) -> Result<Plan, String> {
    let ctx = &subject.ctx;
    let node = ctx.node();
    let view = task_config::path_view(capabilities);
    let dirs = subject.dirs().task(&subject.task);
    let vars = |view| {
        crate::env::build(&EnvInput {
            alloc: &subject.alloc,
            job: &subject.job,
            group,
            task,
            node: &node,
            region: &ctx.config.region,
            dirs: &dirs,
            view,
            inherited: &ctx.inherited,
        })
    };
    Plan::new(task, &ctx.config.templates, &dirs, view, &vars(view), &vars(PathView::Host))
}

fn tell(subject: &Subject, event: model::TaskEvent) {
    // The loop may have ended.
    let _ = subject.notes.send(AllocCommand::Event(Event::Noted { task: subject.task.clone(), event: Box::new(event) }));
}

/// Renders everything before a start and waits for what is missing. Answers with the variables of templates with `env`.
pub(crate) async fn render(
    subject: &Subject,
    group: &TaskGroup,
    task: &Task,
    capabilities: &Capabilities,
    interrupted: &CancellationToken,
) -> Result<BTreeMap<String, String>, StartFailure> {
    if task.templates.is_empty() {
        return Ok(BTreeMap::new());
    }
    let failed = |why: String, recoverable| StartFailure::Setup { why, recoverable };
    let plan = Arc::new(plan_of(subject, group, task, capabilities).map_err(|why| failed(why, false))?);
    let begin = tokio::time::Instant::now();
    let mut told = String::new();
    loop {
        let now = now_ns();
        let work = plan.clone();
        let outcome = tokio::task::spawn_blocking(move || first(&work, now)).await;
        let missing = match outcome.unwrap_or_else(|e| Err((format!("rendering broke off: {e}"), true))) {
            Ok(First::Done(variables)) => return Ok(variables),
            Ok(First::Missing(missing)) => missing,
            Err((why, recoverable)) => return Err(failed(why, recoverable)),
        };
        if missing != told && begin.elapsed() >= TELL_AFTER {
            tell(subject, events::template(now_ns(), &format!("Missing: {missing}")));
            told = missing;
        }
        tokio::select! {
            () = interrupted.cancelled() => return Err(StartFailure::Interrupted),
            () = tokio::time::sleep(subject.ctx.config.templates.poll) => {}
        }
    }
}

enum First {
    Done(BTreeMap<String, String>),
    Missing(String),
}

/// One attempt at all of them, in their order: one may read what another has written. Blocking.
fn first(plan: &Plan, now: i64) -> Result<First, (String, bool)> {
    let directories = Directories::open(&plan.dirs).map_err(|e| (format!("open the task's directories for templates: {e}"), true))?;
    let mut missing = std::collections::BTreeSet::new();
    let mut variables = BTreeMap::new();
    let mut applied = record::Applications::new();
    for planned in &plan.templates {
        let rendered = match plan::render(plan, planned, Some(&directories), now) {
            Attempt::Ready(rendered) => rendered,
            Attempt::Waiting(what, _) => {
                missing.extend(what);
                continue;
            }
            // Another attempt may find other files.
            Attempt::Failed(why, _) => return Err((why, true)),
        };
        if planned.env {
            variables.extend(plan::variables(planned, &rendered.content).map_err(|why| (why, true))?);
        }
        let written = directories.root(&planned.destination).write(&planned.destination.path, &rendered.content, planned.look);
        written.map_err(|e| (format!("template {:?}: {e}", planned.name), true))?;
        applied.insert(planned.name.clone(), record::Applied { digest: rendered.digest, now_ns: now });
    }
    if !missing.is_empty() {
        return Ok(First::Missing(missing.into_iter().collect::<Vec<_>>().join(", ")));
    }
    record::save(&plan.dirs.root, &applied).map_err(|e| (format!("remember what was rendered: {e}"), true))?;
    Ok(First::Done(variables))
}

/// Templates of a task that runs elsewhere: files that travel with it, and variables. Their data cannot change there, so no change is ever made.
/// Blocking.
pub(crate) fn bundle(
    task: &Task,
    config: &TemplateConfig,
    dirs: &TaskDirs,
    view: PathView,
    vars: &hcl_lang::Vars,
) -> Result<(Vec<BundleFile>, BTreeMap<String, String>), String> {
    let plan = Plan::new(task, config, dirs, view, vars, vars)?;
    let now = now_ns();
    let mut files = Vec::new();
    let mut variables = BTreeMap::new();
    for planned in &plan.templates {
        let refused = |why: &str| format!("template {:?}: {why}", planned.name);
        if planned.destination.shared {
            return Err(refused("the task runs where no directory is shared with others; choose a destination below local or secrets"));
        }
        if planned.look.uid.is_some() || planned.look.gid.is_some() {
            return Err(refused("uid and gid are users of this node and mean nothing where the task runs; leave them out"));
        }
        let rendered = match plan::render(&plan, planned, None, now) {
            Attempt::Ready(rendered) => rendered,
            Attempt::Waiting(what, _) => return Err(refused(&format!("waits for {}", what.into_iter().collect::<Vec<_>>().join(", ")))),
            Attempt::Failed(why, _) => return Err(refused(&why)),
        };
        if planned.env {
            variables.extend(plan::variables(planned, &rendered.content)?);
        }
        let path = planned.destination.path.display().to_string();
        files.push(BundleFile { path, mode: planned.look.mode, data: rendered.content });
    }
    Ok((files, variables))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use model::{AllocId, task::Template};

    use super::*;

    fn bundled(one: Template) -> Result<(Vec<BundleFile>, BTreeMap<String, String>), String> {
        let task = Task { name: "t".into(), templates: vec![one], ..Task::default() };
        let vars = hcl_lang::Vars { env: [("WHO".to_owned(), "me".to_owned())].into(), ..hcl_lang::Vars::default() };
        let dirs = crate::dirs::AllocDirs::new(Path::new("/d"), AllocId(uuid::Uuid::from_u128(1))).task("t");
        bundle(&task, &TemplateConfig::default(), &dirs, PathView::Host, &vars)
    }

    fn template(destination: &str, data: &str) -> Template {
        Template { destination: Some(destination.into()), data: Some(data.into()), perms: Some("0600".into()), ..Template::default() }
    }

    #[test]
    fn templates_of_remote_tasks_travel_with_them() {
        let (files, variables) = bundled(Template { env: Some(true), ..template("secrets/x", "A={{ env \"WHO\" }}") }).expect("bundled");
        assert_eq!(
            files.iter().map(|f| (f.path.as_str(), f.mode, f.data.as_slice())).collect::<Vec<_>>(),
            [("secrets/x", 0o600, &b"A=me"[..])]
        );
        assert_eq!(variables, [("A".to_owned(), "me".to_owned())].into());
        for (one, part) in [
            (template("local/x", "{{ file \"local/y\" }}"), "no directory for it"),
            (Template { source: Some("local/y".into()), data: None, ..template("local/x", "") }, "its source is a file"),
            (Template { uid: Some(0), ..template("local/x", "") }, "users of this node"),
            (template("/d/00000000-0000-0000-0000-000000000001/alloc/x", ""), "shared"),
        ] {
            assert!(bundled(one).expect_err(part).contains(part), "{part}");
        }
    }
}
