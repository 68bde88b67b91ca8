//! The plan of a task's templates on this node – texts, places, reactions to changes – and the rendering of one
//! template.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
    time::Duration,
};

use hcl_lang::{Vars, interpolate};
use host::{
    dirs::TaskDirs,
    env::{PathView, node_name},
};
use model::{
    Node, Task,
    template_rules::{change_mode, mode},
};
use node_config::TemplateConfig;
use sha2::{Digest, Sha256};
use template::{
    Lookup, Outcome, SecretData, SecretQuery, ServiceName, ServicePlace, ServiceQuery, Settings, Source, Syntax,
    Variable, VariableMeta, VariableQuery,
};

use super::reads::{Asked, TaskReads};
use crate::{
    cluster_watch::{ClusterData, ClusterKey},
    files::{Look, Root, Stamp},
    paths::{Place, place},
    token_record::TokenVariables,
};

/// The directories of a task that templates read and write.
#[derive(Debug)]
pub(super) struct Directories {
    task: Root,
    shared: Root,
}

impl Directories {
    pub(super) fn open(dirs: &TaskDirs) -> io::Result<Self> {
        Ok(Self { task: Root::open(&dirs.root)?, shared: Root::open_shared(&dirs.alloc)? })
    }

    pub(super) fn root(&self, place: &Place) -> &Root {
        if place.shared { &self.shared } else { &self.task }
    }
}

/// Source of a template's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Here(String),
    In(Place),
}

/// A script of the job, run in the task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Script {
    pub(super) command: Vec<String>,
    pub(super) timeout: Duration,
    pub(super) fail_on_error: bool,
    /// It also runs when the task has started.
    pub(super) at_start: bool,
}

/// The reaction to a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Noop,
    Restart,
    /// A restart when it is the allocation's turn in its group.
    Rolling,
    Signal(String),
    Script(Script),
}

/// One template block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    /// Name in errors and events.
    pub(super) name: String,
    pub(super) text: Text,
    pub(super) destination: Place,
    pub(super) look: Look,
    pub(super) syntax: Syntax,
    pub(super) strict: bool,
    pub(super) env: bool,
    pub(super) once: bool,
    pub(super) change: Change,
    pub(super) splay: Duration,
    pub(super) wait: (Duration, Duration),
}

/// The data of templates, besides files and the variables that every task has.
#[derive(Debug)]
pub struct TaskData {
    /// The node as it is registered.
    pub node: Arc<Node>,
    /// The node's region.
    pub region: String,
    /// Variables that hold tokens.
    pub tokens: TokenVariables,
    /// Services and variables that the templates may read.
    pub reads: TaskReads,
}

/// All templates of a task.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) templates: Vec<Planned>,
    /// Values of the function `env`, besides tokens and names of the node.
    pub(super) env: BTreeMap<String, String>,
    pub(super) node: Arc<Node>,
    pub(super) region: String,
    pub(super) tokens: TokenVariables,
    pub(super) dirs: TaskDirs,
    pub(super) view: PathView,
    pub(super) sandbox: bool,
    pub(super) reads: Arc<TaskReads>,
}

impl Plan {
    /// `vars` are the task's variables; `host` are the same with host paths.
    pub(super) fn new(
        task: &Task,
        config: &TemplateConfig,
        dirs: &TaskDirs,
        view: PathView,
        vars: &Vars,
        host: &Vars,
        data: TaskData,
    ) -> Result<Self, String> {
        let templates = task.templates.iter().map(|t| planned(t, task.vault.is_none(), config, dirs, view, host));
        let templates = templates.collect::<Result<_, _>>()?;
        let sandbox = !config.disable_file_sandbox;
        Ok(Self {
            templates,
            env: vars.env.clone(),
            node: data.node,
            region: data.region,
            tokens: data.tokens,
            dirs: dirs.clone(),
            view,
            sandbox,
            reads: Arc::new(data.reads),
        })
    }
}

fn planned(
    t: &model::task::Template,
    without_vault: bool,
    config: &TemplateConfig,
    dirs: &TaskDirs,
    view: PathView,
    host: &Vars,
) -> Result<Planned, String> {
    let text = |o: &Option<String>| o.clone().unwrap_or_default();
    let destination = interpolate(&text(&t.destination), host);
    let failed = |why: String| format!("template {destination:?}: {why}");
    let id = |id: Option<i64>| id.filter(|id| *id >= 0).and_then(|id| u32::try_from(id).ok());
    let change = match text(&t.change_mode).as_str() {
        change_mode::NOOP => Change::Noop,
        change_mode::SIGNAL => Change::Signal(text(&t.change_signal)),
        change_mode::SCRIPT => {
            let script = t.change_script.clone().unwrap_or_default();
            let words = [script.command.unwrap_or_default()].into_iter().chain(script.args.unwrap_or_default());
            Change::Script(Script {
                command: words.map(|w| interpolate(&w, host)).collect(),
                timeout: script.timeout.unwrap_or_default().to_std(),
                fail_on_error: script.fail_on_error == Some(true),
                at_start: script.run_on_first_render == Some(true),
            })
        }
        _ if t.rolling == Some(true) => Change::Rolling,
        _ => Change::Restart,
    };
    let wait = t.wait.as_ref().map(|w| (w.min.unwrap_or_default().to_std(), w.max.unwrap_or_default().to_std()));
    let source = text(&t.source);
    Ok(Planned {
        name: destination.clone(),
        text: if source.is_empty() {
            Text::Here(text(&t.data))
        } else {
            Text::In(place(&interpolate(&source, host), dirs, view).map_err(failed)?)
        },
        destination: place(&destination, dirs, view).map_err(failed)?,
        look: Look { mode: mode(&text(&t.perms)), uid: id(t.uid), gid: id(t.gid) },
        syntax: Syntax {
            left: text(&t.left_delimiter),
            right: text(&t.right_delimiter),
            denied: config.function_denylist.clone(),
            without_vault,
        },
        strict: t.error_on_missing_key == Some(true),
        env: t.env == Some(true),
        once: t.once == Some(true),
        change,
        splay: t.splay.unwrap_or_default().to_std(),
        wait: wait_of(wait, config),
    })
}

/// Shortest and longest time to gather changes: the job's, else the node's, within the node's bounds. The longest is
/// never below the shortest; zero = no longest.
fn wait_of(job: Option<(Duration, Duration)>, config: &TemplateConfig) -> (Duration, Duration) {
    let (min, max) = job.unwrap_or(config.wait);
    let (least, most) = config.wait_bounds;
    let min = least.map_or(min, |least| min.max(least));
    let max = most.map_or(max, |most| if max.is_zero() { most } else { max.min(most) });
    let min = most.map_or(min, |most| min.min(most));
    (min, if max.is_zero() { max } else { max.max(min) })
}

/// A template's result and its inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) content: Vec<u8>,
    /// Digest of the content.
    pub(super) digest: String,
    pub(super) inputs: Inputs,
}

/// Data that a template has read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inputs {
    /// Files with their stamps; `None` = absent.
    pub(super) files: BTreeMap<String, Option<Stamp>>,
    pub(super) asked: Asked,
    /// Renewed tokens, by variable; `None` = the task has none yet.
    pub(super) tokens: BTreeMap<String, Option<String>>,
}

impl Inputs {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.asked.is_empty() && self.tokens.is_empty()
    }

    /// Something was read whose first answer was still on its way, even if it has come since.
    pub(super) fn unknown(&self) -> bool {
        self.asked.values().any(Option::is_none)
    }
}

/// Outcome of a rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Ready(Rendered),
    Waiting(BTreeSet<String>, Inputs),
    /// It fails until one of its inputs changes.
    Failed(String, Inputs),
}

impl Attempt {
    pub(super) fn inputs(&self) -> &Inputs {
        match self {
            Attempt::Ready(Rendered { inputs, .. }) | Attempt::Waiting(_, inputs) | Attempt::Failed(_, inputs) => {
                inputs
            }
        }
    }
}

/// Template data from the task's environment and directories.
struct TaskSource<'a> {
    plan: &'a Plan,
    directories: Option<&'a Directories>,
    /// Take stamps of the files only.
    looking: bool,
    inputs: Inputs,
}

impl TaskSource<'_> {
    fn read(&self, root: &Root, path: &Path) -> io::Result<(Vec<u8>, Stamp)> {
        if self.looking { root.stamp(path).map(|stamp| (Vec::new(), stamp)) } else { root.read(path) }
    }
}

impl TaskSource<'_> {
    fn known(&mut self, key: ClusterKey) -> Option<Arc<ClusterData>> {
        // One rendering sees one state of a key.
        self.inputs.asked.entry(key).or_insert_with_key(|key| self.plan.reads.known(key).data).clone()
    }
}

impl Source for TaskSource<'_> {
    fn env(&mut self, name: &str) -> Lookup<Option<String>> {
        let plan = self.plan;
        let Some(token) = plan.tokens.find(name) else {
            // Names of the node (`node.…`, `attr.…`, `meta.…`) keep their values from the plan; the watch does not
            // follow their changes.
            let of_node = || node_name(&plan.node, &plan.region, name);
            return Lookup::Known(plan.env.get(name).cloned().or_else(of_node));
        };
        if token.renewed {
            self.inputs.tokens.insert(name.to_owned(), token.text.clone());
        }
        // A missing token is never an empty text.
        token.text.map_or(Lookup::Missing, |text| Lookup::Known(Some(text)))
    }

    fn file(&mut self, path: &str) -> Lookup<Vec<u8>> {
        let Some(directories) = self.directories else {
            return Lookup::Refused(
                "the task runs where this node has no directory for it, so there is no file to read".into(),
            );
        };
        let read = match place(path, &self.plan.dirs, self.plan.view) {
            Ok(place) => self.read(directories.root(&place), &place.path),
            // The operator lets templates read every file that the agent may read.
            Err(_) if !self.plan.sandbox && Path::new(path).is_absolute() => {
                let path = Path::new(path);
                let parent = path.parent().unwrap_or(Path::new("/"));
                Root::open_shared(&std::fs::canonicalize(parent).unwrap_or_else(|_| parent.to_owned()))
                    .and_then(|root| self.read(&root, Path::new(path.file_name().unwrap_or_default())))
            }
            Err(why) => return Lookup::Refused(why),
        };
        match read {
            Ok((content, stamp)) => {
                self.inputs.files.insert(path.to_owned(), Some(stamp));
                Lookup::Known(content)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                self.inputs.files.insert(path.to_owned(), None);
                Lookup::Missing
            }
            Err(e) => {
                self.inputs.files.insert(path.to_owned(), None);
                Lookup::Refused(format!("read {path:?}: {e}"))
            }
        }
    }

    fn service(&mut self, query: &ServiceQuery) -> Lookup<Vec<ServicePlace>> {
        let key = match self.plan.reads.places(query) {
            Ok(key) => key,
            Err(why) => return Lookup::Refused(why),
        };
        match self.known(key).as_deref() {
            Some(ClusterData::Places(places)) => Lookup::Known(places.clone()),
            _ => Lookup::Missing,
        }
    }

    fn service_names(&mut self, region: Option<&str>) -> Lookup<Vec<ServiceName>> {
        let key = match self.plan.reads.names(region) {
            Ok(key) => key,
            Err(why) => return Lookup::Refused(why),
        };
        match self.known(key).as_deref() {
            Some(ClusterData::Names(names)) => Lookup::Known(names.clone()),
            _ => Lookup::Missing,
        }
    }

    fn variable(&mut self, query: &VariableQuery) -> Lookup<Option<Variable>> {
        let key = match self.plan.reads.variable(query) {
            Ok(key) => key,
            Err(why) => return Lookup::Refused(why),
        };
        match self.known(key).as_deref() {
            Some(ClusterData::Variable(found)) => Lookup::Known(found.clone()),
            Some(ClusterData::Denied) => Lookup::Refused(denied(&query.path)),
            _ => Lookup::Missing,
        }
    }

    fn variables(&mut self, query: &VariableQuery) -> Lookup<Vec<VariableMeta>> {
        let key = match self.plan.reads.variables(query) {
            Ok(key) => key,
            Err(why) => return Lookup::Refused(why),
        };
        match self.known(key).as_deref() {
            Some(ClusterData::Variables(rows)) => Lookup::Known(rows.clone()),
            _ => Lookup::Missing,
        }
    }

    fn secret(&mut self, query: &SecretQuery) -> Lookup<Option<Arc<SecretData>>> {
        let key = self.plan.reads.secret(query);
        match self.known(key).as_deref() {
            Some(ClusterData::Secret(found)) => Lookup::Known(found.clone()),
            _ => Lookup::Missing,
        }
    }

    fn secret_names(&mut self, path: &str) -> Lookup<Vec<String>> {
        let key = self.plan.reads.secret_names(path);
        match self.known(key).as_deref() {
            Some(ClusterData::SecretNames(names)) => Lookup::Known(names.clone()),
            _ => Lookup::Missing,
        }
    }
}

/// Why a task may not read a variable.
pub(crate) fn denied(path: &str) -> String {
    format!(
        "the task may not read the variable {path:?}; it reads nomad/jobs, nomad/jobs/JOB and below by itself, and \
            others by an ACL policy of its job"
    )
}

/// Renders one template. Blocking. Without `directories` it can read no file.
pub(super) fn render(plan: &Plan, planned: &Planned, directories: Option<&Directories>, now_ns: i64) -> Attempt {
    let mut source = TaskSource { plan, directories, looking: false, inputs: Inputs::default() };
    let text = match (&planned.text, directories) {
        (Text::Here(text), _) => text.clone(),
        (Text::In(_), None) => {
            return Attempt::Failed(
                "its source is a file, and the task runs where this node has none for it".into(),
                source.inputs,
            );
        }
        (Text::In(place), Some(directories)) => match directories.root(place).read(&place.path) {
            Ok((bytes, _)) => match String::from_utf8(bytes) {
                Ok(text) => text,
                Err(_) => {
                    return Attempt::Failed(
                        format!("its source {} is not UTF-8 text", place.path.display()),
                        source.inputs,
                    );
                }
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Attempt::Waiting([format!("source({})", place.path.display())].into(), source.inputs);
            }
            Err(e) => return Attempt::Failed(format!("its source {}: {e}", place.path.display()), source.inputs),
        },
    };
    let settings = Settings { error_on_missing_key: planned.strict, now_ns, limits: template::Limits::default() };
    let parsed = match template::Template::parse(&planned.name, &text, &planned.syntax) {
        Ok(parsed) => parsed,
        Err(e) => return Attempt::Failed(e.to_string(), source.inputs),
    };
    match parsed.render(&mut source, &settings) {
        Ok(Outcome::Ready(content)) => {
            let digest = Sha256::digest(&content).iter().map(|b| format!("{b:02x}")).collect();
            Attempt::Ready(Rendered { content, digest, inputs: source.inputs })
        }
        Ok(Outcome::Waiting(what)) => Attempt::Waiting(plan.reads.explain(what, &source.inputs.asked), source.inputs),
        Err(e) => Attempt::Failed(e.to_string(), source.inputs),
    }
}

/// Whether a template with these inputs would have others now. Blocking.
pub(super) fn changed(plan: &Plan, directories: &Directories, inputs: &Inputs) -> bool {
    let mut source = TaskSource { plan, directories: Some(directories), looking: true, inputs: Inputs::default() };
    for path in inputs.files.keys() {
        source.file(path);
    }
    for variable in inputs.tokens.keys() {
        source.env(variable);
    }
    source.inputs.files != inputs.files || source.inputs.tokens != inputs.tokens || plan.reads.differ(&inputs.asked)
}

/// Parses a rendered environment file into variables.
pub(super) fn variables(planned: &Planned, content: &[u8]) -> Result<Vec<(String, String)>, String> {
    let text = std::str::from_utf8(content)
        .map_err(|_| format!("template {:?}: the result is not UTF-8 text", planned.name))?;
    template::parse_env(text).map_err(|why| format!("template {:?} with env = true: {why}", planned.name))
}

#[cfg(test)]
mod tests {
    #[test]
    fn waits_are_the_jobs_or_the_nodes_and_within_its_bounds() {
        use std::time::Duration;
        let seconds = |s: u64| Duration::from_secs(s);
        let config = |wait: (u64, u64), bounds: (Option<u64>, Option<u64>)| super::TemplateConfig {
            wait: (seconds(wait.0), seconds(wait.1)),
            wait_bounds: (bounds.0.map(seconds), bounds.1.map(seconds)),
            ..super::TemplateConfig::default()
        };
        for (job, node, bounds, expected) in [
            (None, (0, 0), (None, None), (0, 0)),
            (None, (5, 240), (None, None), (5, 240)),
            (Some((2, 10)), (5, 240), (None, None), (2, 10)),
            (Some((2, 10)), (5, 240), (Some(3), Some(8)), (3, 8)),
            (Some((20, 30)), (0, 0), (None, Some(8)), (8, 8)),
            (Some((2, 0)), (0, 0), (None, Some(8)), (2, 8)),
            (Some((2, 3)), (0, 0), (Some(5), None), (5, 5)),
        ] {
            let job = job.map(|(min, max): (u64, u64)| (seconds(min), seconds(max)));
            assert_eq!(
                super::wait_of(job, &config(node, bounds)),
                (seconds(expected.0), seconds(expected.1)),
                "{job:?} {node:?} {bounds:?}"
            );
        }
    }
}
