//! Search by the beginning of ids and by parts of names.

use std::collections::BTreeMap;

use access::{Capability, Level, Need, NodePoolCapability, VariableCapability};
use api::shapes::{FuzzyMatch, FuzzySearchResponse, SearchRequest, SearchResponse};
use model::task::Task;
use state::{State, Table, TableSet};

use crate::{
    caller::{Caller, READS_JOBS, Unchecked, Visible},
    reply::{HttpError, Reply},
    request::{Ctx, hyphenated},
};

/// Most finds of one kind by the beginning of an id.
const LIMIT: usize = 20;

/// Kinds that a prefix search knows. Of the last four there are no objects in this release.
const PREFIX_CONTEXTS: [&str; 12] = [
    "allocs",
    "deployment",
    "evals",
    "jobs",
    "nodes",
    "node_pools",
    "namespaces",
    "scaling_policy",
    "plugins",
    "vars",
    "volumes",
    "host_volumes",
];
/// Kinds that only a fuzzy search knows.
const FUZZY_CONTEXTS: [&str; 6] = ["groups", "services", "tasks", "images", "commands", "classes"];

pub(crate) async fn prefix(ctx: Unchecked) -> Result<Reply, HttpError> {
    let request: SearchRequest = ctx.said().json().await?;
    let mut contexts = contexts(&request.context, &PREFIX_CONTEXTS)?;
    let ctx = searching(ctx, &mut contexts)?;
    let tables = tables(&contexts);
    let (state, index) = ctx.watch_tables(tables).await?;
    let seen = Seen::by(&ctx, &state);
    ctx.beside(move |ctx| {
        let mut response = SearchResponse { index, known_leader: true, ..SearchResponse::default() };
        for context in contexts {
            let mut found = ids(&state, context, &seen, &request.prefix, LIMIT);
            response.truncations.insert(context.to_owned(), found.len() > LIMIT);
            found.truncate(LIMIT);
            response.matches.insert(context.to_owned(), (!found.is_empty()).then_some(found));
        }
        ctx.read(index, &response)
    })
    .await
}

/// Whether a caller may search a kind of objects.
fn may_search(caller: &Caller, context: &str, namespace: &str) -> bool {
    let within = |any_of| Need::Namespace { namespace, any_of };
    caller.may(&match context {
        "nodes" => Need::Node(Level::Read),
        "node_pools" => Need::AnyNodePool(NodePoolCapability::Read),
        "namespaces" => Need::AnyIn("*"),
        "plugins" => Need::Plugin(Level::List),
        "vars" => Need::AnyVariable { namespace, capability: VariableCapability::List },
        "volumes" => within(&[Capability::CsiListVolume, Capability::ListJobs]),
        "host_volumes" => within(&[Capability::HostVolumeRead]),
        // Policies, groups, tasks and what they are made of are parts of jobs.
        _ => within(READS_JOBS),
    })
}

/// Keeps the kinds that the caller may search; without any the search is refused.
fn searching(ctx: Unchecked, contexts: &mut Vec<&'static str>) -> Result<Ctx, HttpError> {
    let namespace = ctx.said().query.namespace();
    ctx.filtering(|caller| {
        contexts.retain(|context| may_search(caller, context, namespace.as_str()));
        !contexts.is_empty()
    })
}

/// What a search may find.
struct Seen {
    caller: Caller,
    /// Objects of jobs.
    jobs: Visible,
}

impl Seen {
    fn by(ctx: &Ctx, state: &State) -> Self {
        Self { caller: ctx.caller.clone(), jobs: ctx.visible(state, READS_JOBS) }
    }

    fn pool(&self, name: &str) -> bool {
        self.caller.may(&Need::NodePool { name, capability: NodePoolCapability::Read })
    }

    fn volume(&self, namespace: &str) -> bool {
        self.caller.may(&Need::Namespace { namespace, any_of: &[Capability::HostVolumeRead] })
    }

    fn namespace(&self, name: &str) -> bool {
        self.caller.may(&Need::AnyIn(name))
    }
}

/// Where objects of these kinds are: a blocking search waits for changes of these tables.
fn tables(contexts: &[&str]) -> TableSet {
    let table = |context: &&str| match *context {
        "allocs" => Table::Allocs,
        "deployment" => Table::Deployments,
        "evals" => Table::Evals,
        "nodes" => Table::Nodes,
        "node_pools" => Table::NodePools,
        "namespaces" => Table::Namespaces,
        "host_volumes" => Table::Volumes,
        // Policies, groups, tasks and what they are made of are parts of jobs.
        _ => Table::Jobs,
    };
    contexts.iter().map(table).collect()
}

fn contexts(asked: &str, known: &[&'static str]) -> Result<Vec<&'static str>, HttpError> {
    match asked {
        "" | "all" => Ok(known.to_vec()),
        one => known.iter().find(|k| **k == one).map(|k| vec![*k]).ok_or_else(|| {
            HttpError::internal(format_args!("context must be one of [{} all]; got {one:?}", known.join(" ")))
        }),
    }
}

/// Ids of one kind that begin with the text; one more than the limit tells that there are more.
fn ids(state: &State, context: &str, seen: &Seen, prefix: &str, most: usize) -> Vec<String> {
    // People type ids with and without hyphens, in any case.
    let digits: String = prefix.chars().filter(|c| *c != '-').collect();
    let uuid = digits.chars().all(|c| c.is_ascii_hexdigit()) && digits.len() <= 32;
    let id_prefix = hyphenated(&digits);
    let pick = |ids: &mut dyn Iterator<Item = String>, prefix: &str| -> Vec<String> {
        ids.filter(|id| id.starts_with(prefix)).take(most.saturating_add(1)).collect()
    };
    match context {
        "jobs" => pick(&mut state.jobs().filter(|j| seen.jobs.shows(&j.namespace)).map(|j| j.id.to_string()), prefix),
        "scaling_policy" => {
            let jobs = state.jobs().filter(|j| seen.jobs.shows(&j.namespace));
            pick(&mut jobs.flat_map(|j| model::scaling::policies(j).map(|p| p.id.clone())), prefix)
        }
        "node_pools" => {
            pick(&mut state.node_pools().filter(|p| seen.pool(&p.name)).map(|p| p.name.to_string()), prefix)
        }
        "namespaces" => pick(
            &mut state.namespaces().filter(|n| seen.namespace(n.name.as_str())).map(|n| n.name.to_string()),
            prefix,
        ),
        "allocs" if uuid => {
            pick(&mut state.allocs().filter(|a| seen.jobs.shows(&a.namespace)).map(|a| a.id.to_string()), &id_prefix)
        }
        "evals" if uuid => {
            pick(&mut state.evals().filter(|e| seen.jobs.shows(&e.namespace)).map(|e| e.id.to_string()), &id_prefix)
        }
        "deployment" if uuid => pick(
            &mut state.deployments().filter(|d| seen.jobs.shows(&d.namespace)).map(|d| d.id.to_string()),
            &id_prefix,
        ),
        "host_volumes" if uuid => pick(
            &mut state
                .volumes_onward(None, false)
                .filter(|v| seen.volume(v.namespace.as_str()))
                .map(|v| v.id.to_string()),
            &id_prefix,
        ),
        "nodes" if uuid => pick(&mut state.nodes().map(|n| n.id.to_string()), &id_prefix),
        _ => Vec::new(),
    }
}

pub(crate) async fn fuzzy(ctx: Unchecked) -> Result<Reply, HttpError> {
    let request: SearchRequest = ctx.said().json().await?;
    let known: Vec<&'static str> = PREFIX_CONTEXTS.iter().chain(&FUZZY_CONTEXTS).copied().collect();
    let mut wanted = contexts(&request.context, &known)?;
    let ctx = searching(ctx, &mut wanted)?;
    let limits = &ctx.server().config().search;
    if !limits.fuzzy {
        return Err(HttpError::internal("fuzzy search is not enabled (server.search.fuzzy_enabled)"));
    }
    let (length, shortest, most) = (request.text.chars().count(), limits.min_term, limits.results);
    if length < shortest {
        return Err(HttpError::internal(format_args!(
            "fuzzy search query must be at least {shortest} characters, got {length}"
        )));
    }
    let tables = tables(&wanted);
    let (state, index) = ctx.watch_tables(tables).await?;
    let seen = Seen::by(&ctx, &state);
    ctx.beside(move |ctx| {
        let mut finds = Finds { text: request.text.to_lowercase(), by_context: BTreeMap::new() };
        collect(&state, &seen, &request.text, most, &mut finds);
        let mut response = FuzzySearchResponse { index, known_leader: true, ..FuzzySearchResponse::default() };
        for context in wanted {
            let Some(mut found) = finds.by_context.remove(context) else {
                continue;
            };
            // The earlier the text stands in a name, the better the find.
            found.sort();
            let truncated = found.len() > most;
            found.truncate(most);
            response.truncations.insert(context.to_owned(), truncated);
            response.matches.insert(context.to_owned(), found.into_iter().map(|(_, m)| m).collect());
        }
        ctx.read(index, &response)
    })
    .await
}

struct Finds {
    text: String,
    by_context: BTreeMap<&'static str, Vec<(usize, FuzzyMatch)>>,
}

impl Finds {
    fn offer(&mut self, context: &'static str, name: &str, scope: &[&str]) {
        if let Some(position) = name.to_lowercase().find(&self.text) {
            let found = FuzzyMatch { id: name.to_owned(), scope: scope.iter().map(|s| (*s).to_owned()).collect() };
            self.by_context.entry(context).or_default().push((position, found));
        }
    }
}

fn collect(state: &State, seen: &Seen, text: &str, most: usize, finds: &mut Finds) {
    for node in state.nodes() {
        finds.offer("nodes", &node.name, &[&node.id.to_string()]);
    }
    for pool in state.node_pools().filter(|p| seen.pool(&p.name)) {
        finds.offer("node_pools", &pool.name, &[]);
    }
    for volume in state.volumes_onward(None, false).filter(|v| seen.volume(v.namespace.as_str())) {
        finds.offer("host_volumes", &volume.name, &[volume.namespace.as_str(), &volume.id.to_string()]);
    }
    for ns in state.namespaces().filter(|n| seen.namespace(n.name.as_str())) {
        finds.offer("namespaces", ns.name.as_str(), &[]);
    }
    for alloc in state.allocs().filter(|a| seen.jobs.shows(&a.namespace)) {
        finds.offer("allocs", &alloc.name, &[alloc.namespace.as_str(), &alloc.id.to_string()]);
    }
    // These have no names: they are found by the beginning of their id.
    for context in ["evals", "deployment", "scaling_policy"] {
        for id in ids(state, context, seen, text, most) {
            finds.by_context.entry(context).or_default().push((0, FuzzyMatch { id, scope: Vec::new() }));
        }
    }
    for job in state.jobs().filter(|j| seen.jobs.shows(&j.namespace)) {
        let (ns, id) = (job.namespace.as_str(), job.id.as_str());
        finds.offer("jobs", &job.name, &[ns, id]);
        for group in &job.task_groups {
            finds.offer("groups", &group.name, &[ns, id]);
            for service in &group.services {
                finds.offer("services", &service.name, &[ns, id, &group.name]);
            }
            for task in &group.tasks {
                finds.offer("tasks", &task.name, &[ns, id, &group.name]);
                for service in &task.services {
                    finds.offer("services", &service.name, &[ns, id, &group.name, &task.name]);
                }
                for (context, key) in [("images", "image"), ("commands", "command"), ("classes", "class")] {
                    if let Some(value) = config_text(task, key) {
                        finds.offer(context, value, &[ns, id, &group.name, &task.name]);
                    }
                }
            }
        }
    }
}

fn config_text<'t>(task: &'t Task, key: &str) -> Option<&'t str> {
    task.config.get(key).and_then(serde_json::Value::as_str)
}
