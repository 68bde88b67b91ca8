//! `drover node drain`: moves everything off a node and tells how it goes. Remote tasks are not moved: their
//! management is handed over.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use api::{
    call,
    shapes::{NodeDrainRequest, RemoteTaskView},
};
use model::{AllocId, Allocation, DrainSpec, GoDuration, IncarnationId, Node, NodeId};

use super::{ApiArgs, confirm, node_preview, resolve::node_or_own};
use crate::{
    conn::Conn,
    output::{self, lower},
};

/// Between two looks while nothing changes at the node itself.
const LOOK: Duration = Duration::from_millis(500);
/// Looks after the end of the drain for the last nodes to take over.
const LAST_LOOKS: u32 = 6;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Start the drain
    #[arg(long, conflicts_with_all = ["disable", "monitor"])]
    enable: bool,
    /// Stop the drain
    #[arg(long, conflicts_with = "monitor")]
    disable: bool,
    /// Follow a running drain
    #[arg(long)]
    monitor: bool,
    /// Show what a drain would do, and start nothing
    #[arg(long, conflicts_with_all = ["enable", "disable", "monitor"])]
    preview: bool,
    /// Time after which the drain stops the remaining allocations
    #[arg(long, default_value = "1h")]
    deadline: GoDuration,
    /// Stop everything at once
    #[arg(long, conflicts_with = "deadline")]
    force: bool,
    /// Let the drain run without a deadline
    #[arg(long, conflicts_with_all = ["deadline", "force"])]
    no_deadline: bool,
    /// Leave system jobs on the node
    #[arg(long)]
    ignore_system: bool,
    /// With -disable: keep the node ineligible for scheduling
    #[arg(long)]
    keep_ineligible: bool,
    /// Return at once instead of following the drain
    #[arg(long, conflicts_with = "monitor")]
    detach: bool,
    /// Reason of the drain, kept with the node
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Metadata of the drain, kept with the node; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    meta: Vec<String>,
    /// Use the node of this agent
    #[arg(long = "self")]
    this: bool,
    /// Do not ask; a whole id or name never asks
    #[arg(short, long)]
    yes: bool,
    /// Node by name or id prefix
    #[arg(value_name = "NODE")]
    id: Option<String>,
}

/// Runs the verb.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    if !args.enable && !args.disable && !args.monitor && !args.preview {
        bail!("give -enable, -disable, -monitor or -preview");
    }
    let meta = meta(args.message.as_deref(), &args.meta)?;
    let conn = args.api.conn()?;
    let node = node_or_own(&conn, args.id.as_deref(), args.this).await?;
    let name = format!("Node {} ({})", node.id.short(), node.name);
    if args.preview {
        let call = call::node_preview(node.id).with("event", "drain").with("ignore_system_jobs", args.ignore_system);
        let preview = conn.ask(call).await?;
        output::line(&format!("If {} ({}) is drained:", node.id.short(), node.name));
        node_preview::show(&conn, &preview).await;
        return Ok(ExitCode::SUCCESS);
    }
    if args.monitor {
        if node.drain.is_none() {
            output::line(&format!("{name}: no drain is under way"));
            return Ok(ExitCode::SUCCESS);
        }
        let managed = managed_by(&remote(&conn).await, node.id);
        follow(&conn, &node, managed).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let (asks, left) = match args.enable {
        true => ("Drain node", "Not drained"),
        false => ("Stop the drain of node", "The drain goes on"),
    };
    let unsure = args.id.as_deref().is_some_and(|typed| is_beginning(typed, &node));
    if unsure && !args.yes && !confirm(&format!("{asks} {} ({})?", node.id, node.name))? {
        output::line(left);
        return Ok(ExitCode::SUCCESS);
    }
    let deadline = if args.force {
        GoDuration(-1)
    } else if args.no_deadline {
        GoDuration::ZERO
    } else {
        args.deadline
    };
    let request = NodeDrainRequest {
        node_id: node.id.to_string(),
        drain_spec: args.enable.then_some(DrainSpec { deadline, ignore_system_jobs: args.ignore_system }),
        mark_eligible: !args.enable && !args.keep_ineligible,
        meta,
        ..NodeDrainRequest::default()
    };
    let managed = managed_by(&remote(&conn).await, node.id);
    conn.ask(call::node_drain(node.id, &request)).await?;
    output::line(&format!("{name}: drain {}", if args.enable { "started" } else { "stopped" }));
    if args.enable && !args.detach {
        follow(&conn, &node, managed).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether an operand is less than the whole id or name of the node that was found: another one may be meant.
fn is_beginning(typed: &str, node: &Node) -> bool {
    !typed.eq_ignore_ascii_case(&node.id.to_string()) && *typed != *node.name
}

/// The metadata of a drain.
fn meta(message: Option<&str>, pairs: &[String]) -> Result<BTreeMap<String, String>> {
    let mut meta: BTreeMap<String, String> =
        message.map(|m| ("message".to_owned(), m.to_owned())).into_iter().collect();
    for pair in pairs {
        let Some((key, value)) = pair.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            bail!("-meta {pair:?} is not KEY=VALUE");
        };
        meta.insert(key.to_owned(), value.to_owned());
    }
    Ok(meta)
}

/// The records of remote tasks; none where they cannot be read, which only costs their lines.
async fn remote(conn: &Conn) -> Vec<RemoteTaskView> {
    conn.ask(call::remote_tasks().in_namespace("*")).await.unwrap_or_default()
}

/// The remote tasks that a node manages, and their instances.
fn managed_by(tasks: &[RemoteTaskView], node: NodeId) -> BTreeMap<String, IncarnationId> {
    let by_it = |t: &&RemoteTaskView| !t.observed.ended() && t.manager.as_ref().is_some_and(|m| m.node_id == node);
    tasks.iter().filter(by_it).map(|t| (t.slot.to_string(), t.incarnation)).collect()
}

/// Takes those out of `managed` that the node manages no more, and says what has become of them. One that nobody
/// manages yet is left in, until `last`.
fn handed(
    managed: &mut BTreeMap<String, IncarnationId>,
    tasks: &[RemoteTaskView],
    node: NodeId,
    last: bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    managed.retain(|slot, instance| {
        let short = slot.split_once('/').map_or(slot.as_str(), |(_, rest)| rest);
        let Some(t) = tasks.iter().find(|t| t.slot.to_string() == *slot) else {
            lines.push(format!("Remote task {short}: ended"));
            return false;
        };
        let line = match &t.manager {
            _ if t.incarnation != *instance => format!("replaced by a new instance, managed by {}", named(t)),
            _ if t.observed.ended() => "ended".to_owned(),
            Some(m) if m.node_id == node => return true,
            Some(_) => format!("handed to {}, same instance", named(t)),
            None if last => "managed by no node now; it runs on until one adopts it".to_owned(),
            None => return true,
        };
        lines.push(format!("Remote task {short}: {line}"));
        false
    });
    lines
}

fn named(t: &RemoteTaskView) -> String {
    match (&*t.extra.manager_name, &t.manager) {
        ("", Some(m)) => format!("node {}", m.node_id.short()),
        ("", None) => "no node yet".to_owned(),
        (name, _) => name.to_owned(),
    }
}

/// What is worth a line about an allocation of the drained node: not what had ended before, and not that of remote
/// tasks alone, whose hand-over is told.
fn told(a: &Allocation, before: Option<&str>) -> Option<String> {
    let all_remote = !a.resources.tasks.is_empty() && a.resources.tasks.values().all(|t| t.remote);
    let text =
        format!("{} ({}): wanted {}, is {}", a.id.short(), a.name, lower(&a.desired_status), lower(&a.client_status));
    let new = match before {
        None => !a.client_terminal(),
        Some(before) => before != text,
    };
    (new && !all_remote).then_some(text)
}

async fn follow(conn: &Conn, node: &Node, mut managed: BTreeMap<String, IncarnationId>) -> Result<()> {
    let mut known: BTreeMap<AllocId, String> = BTreeMap::new();
    let mut index = 0;
    let mut looks = 0;
    loop {
        let (now, next) = conn.ask_within(call::node(node.id), index, LOOK).await?;
        index = next;
        let allocs = conn.ask(call::node_allocations(node.id)).await?;
        for a in allocs {
            if let Some(text) = told(&a, known.get(&a.id).map(String::as_str)) {
                output::line(&format!("Allocation {text}"));
                known.insert(a.id, text);
            }
        }
        let over = now.drain.is_none();
        if !managed.is_empty() {
            let last = over && looks >= LAST_LOOKS;
            for line in handed(&mut managed, &remote(conn).await, node.id, last) {
                output::line(&line);
            }
            if last {
                managed.clear();
            }
        }
        if over && managed.is_empty() {
            output::line(&format!("Node {} ({}): drain complete", node.id.short(), node.name));
            return Ok(());
        }
        looks += u32::from(over);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::shapes::{RemoteExtra, RemoteTaskView};
    use model::{
        AllocatedResources, AllocatedTask, Allocation, ClientStatus, Node, NodeId, Observed, RemoteTask,
        remote::Manager,
    };

    use super::{handed, is_beginning, managed_by, meta, told};

    fn node(n: u8) -> NodeId {
        format!("{n:02x}000000-0000-4000-8000-000000000000").parse().expect("an id")
    }

    fn task(instance: u8, manager: Option<u8>) -> RemoteTaskView {
        let record = RemoteTask {
            slot: "default/crunch.g[0]/t".parse().expect("a slot"),
            incarnation: format!("{instance:02x}000000-0000-4000-8000-000000000000").parse().expect("an id"),
            observed: Observed::Running,
            manager: manager.map(|m| Manager { node_id: node(m), ..Manager::default() }),
            ..RemoteTask::default()
        };
        let extra = RemoteExtra {
            manager_name: manager.map(|m| format!("node{m}")).unwrap_or_default(),
            ..RemoteExtra::default()
        };
        RemoteTaskView { base: Arc::new(record), extra }
    }

    #[test]
    fn hand_overs_are_told_once_and_by_name() {
        for (after, last, wanted, left) in [
            (Some(task(1, Some(1))), false, None, 1),
            (Some(task(1, Some(2))), false, Some("Remote task crunch.g[0]/t: handed to node2, same instance"), 0),
            (
                Some(task(9, Some(2))),
                false,
                Some("Remote task crunch.g[0]/t: replaced by a new instance, managed by node2"),
                0,
            ),
            (Some(task(1, None)), false, None, 1),
            (
                Some(task(1, None)),
                true,
                Some("Remote task crunch.g[0]/t: managed by no node now; it runs on until one adopts it"),
                0,
            ),
            (None, false, Some("Remote task crunch.g[0]/t: ended"), 0),
        ] {
            let mut managed = managed_by(&[task(1, Some(1))], node(1));
            assert_eq!(managed.len(), 1);
            let after: Vec<RemoteTaskView> = after.into_iter().collect();
            let lines = handed(&mut managed, &after, node(1), last);
            assert_eq!((lines.first().map(String::as_str), managed.len()), (wanted, left));
        }
        assert!(managed_by(&[task(1, Some(2)), task(1, None)], node(1)).is_empty());
    }

    #[test]
    fn what_had_ended_before_is_not_told() {
        let alloc = |status, remote| {
            let given = AllocatedTask { remote, ..AllocatedTask::default() };
            let resources = AllocatedResources {
                tasks: [("t".into(), given)].into_iter().collect(),
                ..AllocatedResources::default()
            };
            Allocation { client_status: status, resources: Arc::new(resources), ..Allocation::default() }
        };
        assert!(told(&alloc(ClientStatus::Failed, false), None).is_none());
        let running = told(&alloc(ClientStatus::Running, false), None).expect("told");
        assert!(told(&alloc(ClientStatus::Running, false), Some(&running)).is_none());
        assert!(told(&alloc(ClientStatus::Complete, false), Some(&running)).is_some());
        assert!(told(&alloc(ClientStatus::Running, true), None).is_none(), "its hand-over is told");
    }

    #[test]
    fn only_the_beginning_of_an_id_is_asked_about() {
        let node = Node { id: node(0xab), name: "n1".into(), ..Node::default() };
        let whole = node.id.to_string();
        for (typed, asks) in [
            (whole.as_str(), false),
            (&whole.to_ascii_uppercase(), false),
            ("n1", false),
            ("ab00", true),
            ("ab*", true),
        ] {
            assert_eq!(is_beginning(typed, &node), asks, "{typed}");
        }
    }

    #[test]
    fn metadata_is_pairs() {
        let got = meta(Some("disk"), &["ticket=7".into()]).expect("pairs");
        assert_eq!(serde_json::to_string(&got).expect("JSON"), r#"{"message":"disk","ticket":"7"}"#);
        assert!(meta(None, &[]).expect("nothing").is_empty());
        assert!(meta(None, &["x".into()]).is_err() && meta(None, &["=x".into()]).is_err());
    }
}
