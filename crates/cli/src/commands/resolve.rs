//! What an operand stands for. Where an allocation's id is taken, the beginning of an id will do, a job's name as
//! well, and an allocation's own name (`hello.greet[0]`); where a node's id is taken, its name.

use anyhow::{Result, bail};
use api::{call, shapes::JobListStub};
use model::{Allocation, ClientStatus, Node};

use super::{id_prefix, which_job};
use crate::{
    conn::Conn,
    output::{self, Table, lower},
    when,
};

/// What is done with the allocation decides which of a job's is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Something is read of it: it need not run any more.
    Read,
    /// A command is run in it.
    Enter,
    /// Something is done to it: it must be clear which one is meant.
    Change,
}

/// An operand as it was typed, with the flags that narrow it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    /// As it was typed.
    pub(crate) text: &'a str,
    /// It names a job, whatever it looks like (`-job`).
    pub(crate) job: bool,
    /// Only allocations of this group (`-group`).
    pub(crate) group: Option<&'a str>,
    /// What for.
    pub(crate) intent: Intent,
}

impl<'a> Operand<'a> {
    /// An operand without flags.
    pub(crate) fn new(text: &'a str, intent: Intent) -> Self {
        Self { text, job: false, group: None, intent }
    }
}

/// The allocation that an operand stands for. When a job has several, a note on standard error says which one was
/// taken.
///
/// # Errors
/// When there is none, or it is not clear which one is meant: then with a table of the candidates.
pub(crate) async fn allocation(conn: &Conn, operand: Operand<'_>) -> Result<Allocation> {
    if !operand.job {
        if let Ok(prefix) = id_prefix(operand.text) {
            let all = conn.ask(call::allocs().in_namespace("*").with("prefix", prefix)).await?;
            let wanted = operand.text.trim_end_matches('*').to_ascii_lowercase();
            let found: Vec<Allocation> = all.into_iter().filter(|a| a.id.to_string().starts_with(&wanted)).collect();
            match found.as_slice() {
                [] => {}
                [one] => return Ok(one.clone()),
                many => bail!(
                    "{} allocation ids start with {:?}; give more of the id:\n{}",
                    many.len(),
                    operand.text,
                    candidates(many, when::now_ns())
                ),
            }
        }
        if operand.text.ends_with(']') {
            let named = conn.ask(call::allocs().with("filter", format!("Name == {:?}", operand.text))).await?;
            if !named.is_empty() {
                return taken(choose(named, operand.intent), &format!("allocation {}", operand.text));
            }
        }
    }
    let job = job(conn, operand).await?;
    let mut allocs = conn.ask(call::job_allocations(&job.id).in_namespace(&job.namespace)).await?;
    if let Some(group) = operand.group {
        let groups: std::collections::BTreeSet<String> = allocs.iter().map(|a| a.task_group.to_string()).collect();
        allocs.retain(|a| *a.task_group == *group);
        if allocs.is_empty() && !groups.is_empty() {
            let groups: Vec<String> = groups.into_iter().collect();
            bail!("job {:?} has no allocations of group {group:?}; those it has are of: {}", job.id, groups.join(", "));
        }
    }
    taken(choose(allocs, operand.intent), &format!("job {}", job.id))
}

/// The task of an allocation that has just one.
pub(crate) async fn only_task(conn: &Conn, alloc: &Allocation) -> Result<String> {
    let job = conn.ask(call::alloc(alloc.id)).await?.extra.job;
    let group = job.as_ref().and_then(|job| job.group(&alloc.task_group));
    let names: Vec<&str> = group.into_iter().flat_map(|g| &g.tasks).map(|t| &*t.name).collect();
    match names.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => bail!("allocation {} has no tasks", alloc.id),
        many => bail!("allocation {} has several tasks, name one: {}", alloc.id.short(), many.join(", ")),
    }
}

/// The job of that name, else the only one whose name begins so.
async fn job(conn: &Conn, operand: Operand<'_>) -> Result<JobListStub> {
    let jobs = conn.ask(call::jobs().with("prefix", operand.text)).await?;
    if let Some(exact) = which_job::exact(&jobs, operand.text)? {
        return Ok(exact.clone());
    }
    match jobs.as_slice() {
        [one] if !operand.text.is_empty() => Ok(one.clone()),
        [] | [_] => {
            let all = conn.ask(call::jobs()).await?;
            let near = hcl_lang::nearest(operand.text, all.iter().map(|j| j.id.as_str()));
            let near = near.map(|n| format!("; did you mean job {n:?}?")).unwrap_or_default();
            let what = match operand.text {
                _ if operand.job => "no job has this name",
                one if one.len() == 1 && one.chars().all(|c| c.is_ascii_hexdigit()) => {
                    "no job has this name; give at least two digits of an allocation id"
                }
                _ => "no allocation id has this prefix, and no job has this name",
            };
            bail!(
                "{:?}: {what}{near}\n`drover ps` lists the jobs, `drover alloc status` the allocations.",
                operand.text
            )
        }
        many => {
            let several = conn.namespace() == "*";
            let namespace: &[&str] = if several { &["Namespace"] } else { &[] };
            let mut table = Table::new([&["Job"], namespace, &["Type", "Status"]].concat());
            for j in many {
                let ids = [Some(j.id.as_str()), several.then_some(j.namespace.as_str())].into_iter().flatten();
                table.row(ids.chain([j.kind.as_str(), &j.status]));
            }
            bail!(
                "{} job names start with {:?}; give more of the name:\n{}",
                many.len(),
                operand.text,
                table.render().join("\n")
            )
        }
    }
}

/// Which of several allocations is meant.
#[derive(Debug, PartialEq)]
enum Choice {
    /// The only one that can be.
    One(Box<Allocation>),
    /// The newest of that many that run.
    Newest(Box<Allocation>, usize),
    /// None runs; this one was the last that did.
    Ended(Box<Allocation>),
    /// It is not clear.
    Unclear(Vec<Allocation>),
    /// There are none.
    Nothing,
}

fn choose(mut allocs: Vec<Allocation>, intent: Intent) -> Choice {
    allocs.sort_by_key(|a| std::cmp::Reverse((a.create_index, a.create_time)));
    let running: Vec<&Allocation> = allocs.iter().filter(|a| a.client_status == ClientStatus::Running).collect();
    match (running.as_slice(), intent) {
        ([one], _) => Choice::One(Box::new((*one).clone())),
        ([_, ..], Intent::Change) => Choice::Unclear(running.into_iter().cloned().collect()),
        ([newest, ..], _) => Choice::Newest(Box::new((*newest).clone()), running.len()),
        ([], _) => match (allocs.into_iter().next(), intent) {
            (None, _) => Choice::Nothing,
            (Some(newest), Intent::Read) => Choice::One(Box::new(newest)),
            (Some(newest), _) => Choice::Ended(Box::new(newest)),
        },
    }
}

/// What a choice comes to; `whose` names the job.
fn taken(choice: Choice, whose: &str) -> Result<Allocation> {
    match choice {
        Choice::One(alloc) => Ok(*alloc),
        Choice::Newest(alloc, of) => {
            output::note(&format!(
                "[{whose} has {of} running allocations; this is the newest, {} on {}. `drover alloc status` \
                    lists them]",
                alloc.id.short(),
                alloc.node_name
            ));
            Ok(*alloc)
        }
        Choice::Ended(alloc) => bail!(
            "{whose} has no running allocation: the newest, {}, is {}. `drover alloc status {}` says more.",
            alloc.id.short(),
            lower(&alloc.client_status),
            alloc.id.short()
        ),
        Choice::Unclear(many) => {
            bail!(
                "{whose} has {} running allocations; choose one by id:\n{}",
                many.len(),
                candidates(&many, when::now_ns())
            )
        }
        Choice::Nothing => bail!("{whose} has no allocations"),
    }
}

/// The allocations that may have been meant.
fn candidates(allocs: &[Allocation], now: i64) -> String {
    let mut table = Table::new(["ID", "Name", "Node", "Version", "Desired", "Status", "Created"]);
    for a in allocs {
        table.row([
            a.id.short().to_string(),
            a.name.to_string(),
            a.node_name.to_string(),
            a.job_version.to_string(),
            lower(&a.desired_status),
            lower(&a.client_status),
            when::ago(a.create_time, now),
        ]);
    }
    table.render().join("\n")
}

/// The node whose id begins so, or that has that name. Only the row of the list.
///
/// # Errors
/// When there is none or more than one.
pub(crate) async fn node(conn: &Conn, text: &str) -> Result<Node> {
    let nodes = conn.ask(call::nodes()).await?;
    match pick_node(&nodes, text) {
        Ok(node) => Ok(node.clone()),
        Err(many) if many.is_empty() => {
            let near = hcl_lang::nearest(text, nodes.iter().map(|n| &*n.name));
            let near = near.map(|n| format!("; did you mean {n:?}?")).unwrap_or_default();
            bail!("no node name or id prefix matches {text:?}{near}\n`drover node status` lists the nodes.")
        }
        Err(many) => {
            let mut table = Table::new(["ID", "Name", "DC", "Node Pool", "Status"]);
            for n in &many {
                table.row([
                    n.id.to_string(),
                    n.name.to_string(),
                    n.datacenter.clone(),
                    n.pool.clone(),
                    lower(&n.status),
                ]);
            }
            bail!("{} nodes match {text:?}; give more of the id:\n{}", many.len(), table.render().join("\n"))
        }
    }
}

/// The node of that name or whose id begins so, or the agent's own.
pub(crate) async fn node_or_own(conn: &Conn, id: Option<&str>, this: bool) -> Result<Node> {
    let id = match (id, this) {
        (Some(id), _) => id.to_owned(),
        (None, true) => {
            let me = conn.ask(call::agent_self()).await?;
            match me.stats.get("client").and_then(|group| group.get("node_id")) {
                Some(id) if !id.is_empty() => id.clone(),
                _ => bail!("this agent is not a node; give the name or id of one"),
            }
        }
        (None, false) => bail!("give a node, or use -self for the node of this agent"),
    };
    let stub = node(conn, &id).await?;
    conn.ask(call::node(stub.id)).await
}

/// The id of the node that an operand names, if there is one.
pub(crate) async fn node_id(conn: &Conn, operand: Option<&str>) -> Result<Option<model::NodeId>> {
    Ok(match operand {
        Some(_) => Some(node_or_own(conn, operand, false).await?.id),
        None => None,
    })
}

/// The node of a list that is meant, else those that may be. Ids come first: scripts have them.
fn pick_node<'a>(nodes: &'a [Node], text: &str) -> Result<&'a Node, Vec<&'a Node>> {
    let prefix = text.trim_end_matches('*').to_ascii_lowercase();
    let by_id: Vec<&Node> = if id_prefix(text).is_ok() {
        nodes.iter().filter(|n| n.id.to_string().starts_with(&prefix)).collect()
    } else {
        Vec::new()
    };
    let by_name: Vec<&Node> = nodes.iter().filter(|n| *n.name == *text).collect();
    match (by_id.as_slice(), by_name.as_slice()) {
        ([one], _) | ([], [one]) => Ok(one),
        // Some ids begin with what is the whole name of a node.
        ([_, ..], [one]) => Ok(one),
        ([], _) => Err(by_name),
        _ => Err(by_id),
    }
}

#[cfg(test)]
mod tests {
    use model::{AllocId, Allocation, ClientStatus, Node, NodeId};

    use super::{Choice, Intent, candidates, choose, pick_node, taken};

    fn alloc(n: u8, status: ClientStatus, index: u64) -> Allocation {
        let id: AllocId = format!("{n:02x}{n:02x}{n:02x}{n:02x}-0000-4000-8000-000000000000").parse().expect("an id");
        Allocation { id, name: "web.g[0]".into(), client_status: status, create_index: index, ..Allocation::default() }
    }

    #[test]
    fn of_a_jobs_allocations_the_newest_running_one_is_read_and_only_a_clear_one_is_changed() {
        use ClientStatus::{Complete, Failed, Running};
        for (statuses, read, enter, change) in [
            (&[][..], "nothing", "nothing", "nothing"),
            (&[Running], "one 0", "one 0", "one 0"),
            (&[Running, Complete], "one 0", "one 0", "one 0"),
            (&[Running, Running], "newest 1 of 2", "newest 1 of 2", "unclear 2"),
            (&[Complete, Failed], "one 1", "ended 1", "ended 1"),
        ] {
            let allocs: Vec<Allocation> = statuses
                .iter()
                .enumerate()
                .map(|(i, s)| alloc(u8::try_from(i).expect("few"), *s, i as u64 + 10))
                .collect();
            for (intent, wanted) in [(Intent::Read, read), (Intent::Enter, enter), (Intent::Change, change)] {
                let text = match choose(allocs.clone(), intent) {
                    Choice::One(a) => format!("one {}", a.create_index - 10),
                    Choice::Newest(a, of) => format!("newest {} of {of}", a.create_index - 10),
                    Choice::Ended(a) => format!("ended {}", a.create_index - 10),
                    Choice::Unclear(many) => format!("unclear {}", many.len()),
                    Choice::Nothing => "nothing".to_owned(),
                };
                assert_eq!(text, wanted, "{statuses:?} {intent:?}");
            }
        }
    }

    #[test]
    fn what_is_not_clear_is_shown_as_a_table() {
        let many = vec![alloc(1, ClientStatus::Running, 1), alloc(2, ClientStatus::Running, 2)];
        let lines = candidates(&many, 0);
        assert_eq!(lines.lines().count(), 3);
        assert!(lines.lines().nth(1).is_some_and(|l| l.starts_with("01010101  web.g[0]")), "{lines}");
        let error = taken(choose(many, Intent::Change), "job web").expect_err("unclear").to_string();
        assert!(error.starts_with("job web has 2 running allocations; choose one by id:\nID"), "{error}");
        let error = taken(choose(vec![alloc(7, ClientStatus::Complete, 1)], Intent::Enter), "job web")
            .expect_err("ended")
            .to_string();
        assert_eq!(
            error,
            "job web has no running allocation: the newest, 07070707, is complete. `drover alloc status 07070707` \
                says more."
        );
    }

    #[test]
    fn nodes_are_known_by_id_and_by_name() {
        let node = |id: &str, name: &str| Node {
            id: format!("{id}-0000-4000-8000-000000000000").parse::<NodeId>().expect("an id"),
            name: name.into(),
            ..Node::default()
        };
        let nodes = [
            node("abcd0000", "n1"),
            node("abce0000", "n2"),
            node("00000000", "abc"),
            node("00000001", "twin"),
            node("00000002", "twin"),
        ];
        for (text, wanted) in [
            ("n1", Ok("n1")),
            ("abcd", Ok("n1")),
            ("ABCE0", Ok("n2")),
            ("abc", Ok("abc")),
            ("ab", Err(2)),
            ("twin", Err(2)),
            ("n3", Err(0)),
        ] {
            let got = pick_node(&nodes, text).map(|n| &*n.name).map_err(|many| many.len());
            assert_eq!(got, wanted, "{text}");
        }
    }
}
