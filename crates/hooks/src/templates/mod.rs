//! Templates of a task: rendered before the call of its driver, watched while it runs.
//!
//! ```text
//! start ── render until nothing is missing ── write ── remember ── driver
//! running ─ files, services, variables or tokens that were read have changed ─ render ─ write ─ splay ─ restart |
//! signal | script ─ remember
//! ```
//!
//! A result counts as applied once its change has been made. If an agent dies in between, the next one makes the change
//! again.

mod plan;
mod reads;
mod record;
mod watch;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use driver_host::{BundleFile, Capabilities};
use host::{
    clock::now_ns,
    dirs::TaskDirs,
    env::PathView,
    node_env::{NodeEnv, TaskSpec},
    seeds::Seeds,
};
use lifecycle::alloc::{events, machine::StartFailure};
use model::Task;
use node_config::TemplateConfig;

pub use self::plan::TaskData;
pub(crate) use self::plan::denied;
use self::plan::{Attempt, Directories, Plan};
pub use self::reads::TaskReads;
pub use crate::hook::Unbundled;
use crate::{
    cluster_watch::ClusterWatches,
    drivers::Drivers,
    hook::{Given, Hook, Prepared, Starting},
    place::TaskPlace,
    secrets, task_config,
    token_record::TokenVariables,
};

/// How long data may be missing before an event tells people, and before a running task's templates render without
/// services.
const TELL_AFTER: Duration = Duration::from_secs(3);

/// Renders the templates of tasks.
pub struct Templates {
    /// The agent's template settings.
    pub config: TemplateConfig,
    /// Source of the function `env`.
    pub env: NodeEnv,
    /// Source of the functions of services and variables.
    pub watches: ClusterWatches,
    /// Pass changes on to tasks: signals, scripts.
    pub drivers: Arc<Drivers>,
    /// Spread changes over time.
    pub seeds: Seeds,
}

impl Hook for Templates {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, given: &'a mut Given) -> Prepared<'a> {
        Box::pin(async {
            given.env.extend(self.render(starting).await?);
            Ok(())
        })
    }
}

impl Templates {
    /// Plans a task's templates on this node.
    fn plan_of(&self, place: &TaskPlace, spec: TaskSpec<'_>, capabilities: &Capabilities) -> Result<Plan, String> {
        let view = task_config::path_view(capabilities);
        let dirs = place.task_dirs();
        let region = self.env.region().to_owned();
        let (alloc, namespace) = (place.alloc.id, place.alloc.namespace.clone());
        let reads = TaskReads::new(self.watches.clone(), alloc, &spec.task.name, namespace, region.clone());
        let tokens = TokenVariables::of_record(spec.task, &dirs.root);
        let kept = if spec.task.secrets.is_empty() { BTreeMap::new() } else { secrets::load(&dirs.root) };
        let env = self.env.with_secrets(&kept);
        let (of_task, of_node) = (env.vars(spec, &dirs, view), env.vars(spec, &dirs, PathView::Host));
        let data = TaskData { node: self.env.node(), region, tokens, reads };
        Plan::new(spec.task, &self.config, &dirs, view, &of_task, &of_node, data)
    }

    /// Renders everything before a start and waits for missing data. Returns the variables of templates with `env`.
    async fn render(&self, starting: &Starting<'_>) -> Result<BTreeMap<String, String>, StartFailure> {
        let Starting { place, spec, capabilities, interrupted, .. } = *starting;
        if spec.task.templates.is_empty() {
            return Ok(BTreeMap::new());
        }
        let failed = |why: String, recoverable| StartFailure::Setup { why, recoverable };
        let plan = Arc::new(self.plan_of(place, spec, capabilities).map_err(|why| failed(why, false))?);
        let begin = tokio::time::Instant::now();
        let mut told = String::new();
        let mut version = plan.reads.version();
        loop {
            version.mark_unchanged();
            let now = now_ns();
            let work = plan.clone();
            let outcome = blocking::spawn(move || first(&work, now)).await;
            let missing = match outcome.unwrap_or_else(|e| Err((format!("rendering broke off: {e}"), true))) {
                Ok(First::Done(variables)) => return Ok(variables),
                Ok(First::Missing(missing)) => missing,
                Err((why, recoverable)) => return Err(failed(why, recoverable)),
            };
            if missing != told && begin.elapsed() >= TELL_AFTER {
                place.tell(events::template(now_ns(), &format!("Missing: {missing}")));
                told = missing;
            }
            tokio::select! {
                () = interrupted.cancelled() => return Err(StartFailure::Interrupted),
                () = tokio::time::sleep(self.config.poll) => {}
                Ok(()) = version.changed() => {}
            }
        }
    }
}

enum First {
    Done(BTreeMap<String, String>),
    Missing(String),
}

/// Renders all templates once, in order: one may read the output of another. Blocking.
fn first(plan: &Plan, now: i64) -> Result<First, (String, bool)> {
    let directories =
        Directories::open(&plan.dirs).map_err(|e| (format!("open the task's directories for templates: {e}"), true))?;
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
            // The next attempt may find other files.
            Attempt::Failed(why, _) => return Err((why, true)),
        };
        if planned.env {
            variables.extend(plan::variables(planned, &rendered.content).map_err(|why| (why, true))?);
        }
        let written =
            directories.root(&planned.destination).write(&planned.destination.path, &rendered.content, planned.look);
        written.map_err(|e| (format!("template {:?}: {e}", planned.name), true))?;
        applied.insert(planned.name.clone(), record::Applied { digest: rendered.digest, now_ns: now, begun: false });
    }
    if !missing.is_empty() {
        return Ok(First::Missing(missing.into_iter().collect::<Vec<_>>().join(", ")));
    }
    record::save(&plan.dirs.root, &applied).map_err(|e| (format!("remember what was rendered: {e}"), true))?;
    Ok(First::Done(variables))
}

/// The output for a task that runs elsewhere: files that travel with it, and variables.
pub(crate) type Bundled = (Vec<BundleFile>, BTreeMap<String, String>);

/// Renders templates of a task that runs elsewhere. Waits for their data only briefly: the caller asks again. Later
/// changes do not reach the task, so this refuses a template of services or variables whose job wants a reaction to
/// changes.
///
/// # Errors
/// Which template cannot travel, and whether it could later.
pub async fn bundle(
    task: &Task,
    config: &TemplateConfig,
    dirs: &TaskDirs,
    view: PathView,
    vars: &hcl_lang::Vars,
    data: TaskData,
) -> Result<Bundled, Unbundled> {
    let plan = Arc::new(Plan::new(task, config, dirs, view, vars, vars, data).map_err(Unbundled::Refused)?);
    let begin = tokio::time::Instant::now();
    let mut version = plan.reads.version();
    loop {
        version.mark_unchanged();
        let work = plan.clone();
        let bundled = blocking::spawn(move || {
            let mut unknown = false;
            (bundle_now(&work, &mut unknown), unknown)
        });
        let broke = |e| (Err(Unbundled::Later(format!("rendering broke off: {e}"))), false);
        match bundled.await.unwrap_or_else(broke) {
            (Err(Unbundled::Later(_)), true) if begin.elapsed() < TELL_AFTER => {
                let _ = tokio::time::timeout(TELL_AFTER, version.changed()).await;
            }
            (bundled, _) => return bundled,
        }
    }
}

/// Renders them once; `unknown`: what one has read was still on its way. Blocking.
fn bundle_now(plan: &Plan, unknown: &mut bool) -> Result<Bundled, Unbundled> {
    let now = now_ns();
    let mut files = Vec::new();
    let mut variables = BTreeMap::new();
    for planned in &plan.templates {
        let named = |why: &str| format!("template {:?}: {why}", planned.name);
        let refused = |why: &str| Unbundled::Refused(named(why));
        if planned.destination.shared {
            return Err(refused(
                "the task runs where no directory is shared with others; choose a destination below local or secrets",
            ));
        }
        if planned.look.uid.is_some() || planned.look.gid.is_some() {
            return Err(refused(
                "uid and gid are users of this node and mean nothing where the task runs; leave them out",
            ));
        }
        let follows = planned.change != plan::Change::Noop && !planned.once;
        let attempt = plan::render(plan, planned, None, now);
        *unknown |= attempt.inputs().unknown();
        if follows && !attempt.inputs().asked.is_empty() {
            let why = "it reads services or variables, and nothing follows their changes where the task runs";
            return Err(refused(&format!(
                "{why}; write change_mode = \"noop\" (or once = true), or let the workload ask the servers"
            )));
        }
        let rendered = match attempt {
            Attempt::Ready(rendered) => rendered,
            Attempt::Waiting(what, inputs) => {
                let why = format!("waits for {}", what.into_iter().collect::<Vec<_>>().join(", "));
                // Services and variables may appear later; files do not.
                return Err(if inputs.asked.is_empty() { refused(&why) } else { Unbundled::Later(named(&why)) });
            }
            Attempt::Failed(why, _) => return Err(refused(&why)),
        };
        if planned.env {
            variables.extend(plan::variables(planned, &rendered.content).map_err(Unbundled::Refused)?);
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

    async fn bundled(one: Template) -> Result<Bundled, Unbundled> {
        let task = Task { name: "t".into(), templates: vec![one], ..Task::default() };
        let vars = hcl_lang::Vars { env: [("WHO".to_owned(), "me".to_owned())].into(), ..hcl_lang::Vars::default() };
        let dirs = host::dirs::AllocDirs::new(Path::new("/d"), AllocId(uuid::Uuid::from_u128(1))).task("t");
        let discovery = crate::discovery::Discovery::new("global".into(), Arc::new(|| None));
        let watches =
            ClusterWatches::new(discovery, crate::tokens::Tokens::new().0, crate::vault::Vaults::new(None, TELL_AFTER));
        let reads = TaskReads::new(watches, AllocId::default(), "t", "default".into(), "global".into());
        let tokens = TokenVariables::Given([("NOMAD_TOKEN".to_owned(), "e30".to_owned())].into());
        let node = model::Node {
            name: "n1".into(),
            attributes: [("kernel.name".into(), "linux".into())].into(),
            ..model::Node::default()
        };
        let data = TaskData { node: Arc::new(node), region: "global".into(), tokens, reads };
        bundle(&task, &TemplateConfig::default(), &dirs, PathView::Host, &vars, data).await
    }

    fn template(destination: &str, data: &str) -> Template {
        Template {
            destination: Some(destination.into()),
            data: Some(data.into()),
            perms: Some("0600".into()),
            ..Template::default()
        }
    }

    #[tokio::test]
    async fn templates_of_remote_tasks_travel_with_them() {
        let with_env = Template {
            env: Some(true),
            ..template("secrets/x", "A={{ env \"WHO\" }}{{ env \"NOMAD_TOKEN\" }}-{{ env \"attr.kernel.name\" }}")
        };
        let (files, variables) = bundled(with_env).await.expect("bundled");
        assert_eq!(
            files.iter().map(|f| (f.path.as_str(), f.mode, f.data.as_slice())).collect::<Vec<_>>(),
            [("secrets/x", 0o600, &b"A=mee30-linux"[..])]
        );
        assert_eq!(variables, [("A".to_owned(), "mee30-linux".to_owned())].into());
        for (one, part) in [
            (template("local/x", "{{ file \"local/y\" }}"), "no directory for it"),
            (
                Template { source: Some("local/y".into()), data: None, ..template("local/x", "") },
                "its source is a file",
            ),
            (template("local/x", "{{ nomadServices }}"), "nothing follows their changes"),
            (template("local/x", "{{ nomadVarList }}"), "nothing follows their changes"),
            (template("local/x", "{{ nomadVar \"a@b.eu\" }}"), "variables of the region \"eu\" cannot be read here"),
            (template("local/x", "{{ nomadService \"web@eu\" }}"), "belongs to the region \"global\""),
            (Template { uid: Some(0), ..template("local/x", "") }, "users of this node"),
            (template("/d/00000000-0000-0000-0000-000000000001/alloc/x", ""), "shared"),
        ] {
            let refused = bundled(one).await;
            assert!(matches!(&refused, Err(Unbundled::Refused(why)) if why.contains(part)), "{part}: {refused:?}");
        }
        // No server answers here: the creation is repeated.
        for (data, part) in [
            ("{{ nomadService \"web\" }}", "nomadService(web), services cannot be read"),
            ("{{ nomadVar \"a\" }}", "nomadVar(a), variables cannot be read"),
        ] {
            let later = bundled(Template { change_mode: Some("noop".into()), ..template("local/x", data) }).await;
            assert!(matches!(&later, Err(Unbundled::Later(why)) if why.contains(part)), "{part}: {later:?}");
        }
    }
}
