//! `drover remote list|status|sweep|adopt|stop|restart|forget|gone`: the records of remote tasks, and what no record knows.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::shapes::{IndexResponse, RemoteSweep, RemoteTaskView};
use model::{Observed, RemoteInstance, RemoteTask, SlotKey};
use serde_json::{Value, json};

use super::{ApiArgs, Shape, eval::lower};
use crate::{
    conn::{Conn, encode},
    output::{self, Table},
    when,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List remote tasks
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Only those that no node manages now
        #[arg(long)]
        unmanaged: bool,
        /// Only those whose runtime could not be asked
        #[arg(long)]
        unknown: bool,
        /// Instead: instances of this cluster that no record knows, as the last sweep has found them
        #[arg(long, alias = "orphaned")]
        unbound: bool,
    },
    /// Ask every provider now what this cluster has there, and show what no record knows
    Sweep {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Order the stop of everything that no record knows
        #[arg(long)]
        stop: bool,
        /// Say what would be stopped, and stop nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Take an instance that no record knows for what its slot's job wants there; the instance is not touched
    Adopt {
        #[command(flatten)]
        api: ApiArgs,
        /// Key of the instance, or its beginning
        instance: String,
    },
    /// Stop an instance that no record knows; the order lasts until its absence is confirmed
    Stop {
        #[command(flatten)]
        api: ApiArgs,
        /// Key of the instance, or its beginning
        instance: String,
    },
    /// Stop the instance of a slot; another one of the same specification follows
    Restart {
        #[command(flatten)]
        api: ApiArgs,
        /// A slot (`namespace/job.group[index]/task`) or its beginning, the beginning of an incarnation's id, or a job that has only one
        slot: String,
    },
    /// Give up the record of a slot without confirmation, or hear no more of an instance that no record knows; instances are not touched
    Forget {
        #[command(flatten)]
        api: ApiArgs,
        /// As for `remote restart`, or the key of an instance that no record knows
        what: String,
    },
    /// Declare that the instance of a slot does not exist: the way out when its provider cannot tell
    Gone {
        #[command(flatten)]
        api: ApiArgs,
        /// A slot (`namespace/job.group[index]/task`) or its beginning, the beginning of an incarnation's id, or a job that has only one
        slot: String,
    },
    /// Show one remote task, or all of a job
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// A job, a slot (`namespace/job.group[index]/task`) or the beginning of an incarnation's id
        what: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, shape, unbound: true, .. } => show_unbound(&sweeps(&api.conn()?, false).await?, &shape),
        Command::Sweep { api, shape, stop, dry_run } => sweep(&api.conn()?, &shape, stop, dry_run).await,
        Command::Adopt { api, instance } => {
            let conn = api.conn()?;
            let found = one_unbound(&conn, &instance).await?;
            let _: IndexResponse = conn.put(&format!("/v1/remote/unbound/{}/adopt", encode(&found.key)), &json!({})).await?;
            output::line(&format!("Instance {} is adopted into slot {}", found.key, found.slot));
            Ok(ExitCode::SUCCESS)
        }
        Command::Stop { api, instance } => {
            let conn = api.conn()?;
            match one_unbound(&conn, &instance).await {
                Ok(found) => {
                    stop_unbound(&conn, &found).await?;
                    Ok(ExitCode::SUCCESS)
                }
                Err(unknown) => match one_slot(&conn, &instance).await {
                    Ok(task) => bail!(
                        "slot {} belongs to job {:?}: stop or scale the job, or replace the instance with `drover remote restart`",
                        task.slot,
                        task.slot.job_id.as_str()
                    ),
                    Err(_) => Err(unknown),
                },
            }
        }
        Command::Restart { api, slot } => {
            let conn = api.conn()?;
            let task = one_slot(&conn, &slot).await?;
            restart(&conn, &task.slot).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Gone { api, slot } => {
            let conn = api.conn()?;
            let task = one_slot(&conn, &slot).await?;
            let _: IndexResponse = conn.put(&format!("/v1/remote/gone/{}", in_path(&task.slot)), &json!({})).await?;
            output::line(&format!("Slot {} has no instance any more, by your word", task.slot));
            Ok(ExitCode::SUCCESS)
        }
        Command::Forget { api, what } => {
            let conn = api.conn()?;
            if let Ok(found) = one_unbound(&conn, &what).await {
                let _: Value = conn.delete(&format!("/v1/remote/unbound/{}", encode(&found.key))).await?;
                output::line(&format!("Instance {} of slot {} is reported no more until the servers start again", found.key, found.slot));
                return Ok(ExitCode::SUCCESS);
            }
            let task = one_slot(&conn, &what).await?;
            let _: Value = conn.delete(&format!("/v1/remote/task/{}", in_path(&task.slot))).await?;
            output::line(&format!(
                "The record of slot {} is given up; what lives at its provider lives on and is found by the sweep",
                task.slot
            ));
            Ok(ExitCode::SUCCESS)
        }
        Command::List { api, shape, unmanaged, unknown, unbound: false } => {
            let mut tasks = all(&api.conn()?).await?;
            tasks.retain(|t| (!unmanaged || t.manager.is_none()) && (!unknown || matches!(t.observed, Observed::Unknown { .. })));
            if shape.json {
                output::json(&tasks)?;
            } else if tasks.is_empty() {
                output::line("No remote tasks");
            } else {
                table(&tasks, &shape).print();
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Status { api, shape, what } => {
            let tasks: Vec<RemoteTaskView> = all(&api.conn()?).await?.into_iter().collect();
            let keys: Vec<[String; 4]> = tasks.iter().map(keys).collect();
            let meant = pick(&keys, &what);
            let tasks: Vec<&RemoteTaskView> = meant.iter().map(|i| &tasks[*i]).collect();
            if tasks.is_empty() {
                bail!("no remote task of a job, slot or incarnation {what:?}\n`drover remote list` shows them.");
            }
            if shape.json {
                output::json(&tasks)?;
                return Ok(ExitCode::SUCCESS);
            }
            for (i, task) in tasks.iter().enumerate() {
                if i > 0 {
                    output::line("");
                }
                show(task, &shape);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Has the servers replace the instance of a slot.
pub(crate) async fn restart(conn: &Conn, slot: &SlotKey) -> Result<()> {
    let _: IndexResponse = conn.put(&format!("/v1/remote/restart/{}", in_path(slot)), &json!({})).await?;
    output::line(&format!("The instance of slot {slot} is being stopped; another one follows"));
    Ok(())
}

async fn sweeps(conn: &Conn, anew: bool) -> Result<Vec<RemoteSweep>> {
    conn.get(&format!("/v1/remote/unbound?sweep={anew}")).await
}

/// Looks anew. Providers that could not be asked make the exit code 2: what they have is not known.
async fn sweep(conn: &Conn, shape: &Shape, stop: bool, dry_run: bool) -> Result<ExitCode> {
    let sweeps = sweeps(conn, true).await?;
    let code = show_unbound(&sweeps, shape)?;
    if stop {
        for instance in sweeps.iter().flat_map(|s| &s.unbound) {
            if dry_run {
                output::line(&format!("Would stop {} of slot {}", instance.key, instance.slot));
            } else {
                stop_unbound(conn, instance).await?;
            }
        }
    }
    Ok(code)
}

async fn stop_unbound(conn: &Conn, instance: &RemoteInstance) -> Result<()> {
    let _: IndexResponse = conn.put(&format!("/v1/remote/unbound/{}/stop", encode(&instance.key)), &json!({})).await?;
    output::line(&format!(
        "The stop of instance {} of slot {} is ordered; `drover remote list` shows how it goes",
        instance.key, instance.slot
    ));
    Ok(())
}

fn show_unbound(sweeps: &[RemoteSweep], shape: &Shape) -> Result<ExitCode> {
    if shape.json {
        output::json(&sweeps)?;
    } else {
        let mut table = Table::new(["Instance", "Slot", "Driver", "Provider", "Provider ID", "State", "Started"]);
        let mut unbound = 0;
        for s in sweeps {
            for i in &s.unbound {
                unbound += 1;
                table.row([
                    i.key.clone(),
                    i.slot.clone(),
                    s.driver.clone(),
                    s.provider.clone(),
                    i.provider_id.clone(),
                    observed(&i.observed),
                    when::ago(i.started_at, when::now_ns()),
                ]);
            }
        }
        if sweeps.is_empty() {
            output::line("No provider that can be listed has been reached yet");
        } else if unbound == 0 {
            output::line(&format!("{} providers, nothing that no record knows", sweeps.len()));
        } else {
            table.print();
        }
        for s in sweeps.iter().filter(|s| !s.error.is_empty()) {
            output::line(&format!("Provider {} of driver {:?} could not be asked: {}", s.provider, s.driver, s.error));
        }
    }
    Ok(ExitCode::from(if sweeps.iter().any(|s| !s.error.is_empty()) { 2 } else { 0 }))
}

/// The unbound instance whose key begins so.
async fn one_unbound(conn: &Conn, prefix: &str) -> Result<RemoteInstance> {
    let mut found: Vec<RemoteInstance> =
        sweeps(conn, false).await?.into_iter().flat_map(|s| s.unbound).filter(|i| i.key.starts_with(prefix)).collect();
    match (found.pop(), found.len()) {
        (Some(one), 0) if !prefix.is_empty() => Ok(one),
        (None, _) => bail!("no instance {prefix:?} is known that no record knows; `drover remote sweep` looks anew"),
        (_, more) => bail!("{prefix:?} is the beginning of {} instances: give more of the key", more + 1),
    }
}

/// The record of a slot by its name or the beginning of it, by the beginning of its incarnation's id, or by its job where that has only one.
async fn one_slot(conn: &Conn, what: &str) -> Result<RemoteTaskView> {
    let all = all(conn).await?;
    let keys: Vec<[String; 4]> = all.iter().map(keys).collect();
    match pick(&keys, what).as_slice() {
        [one] => Ok(all[*one].clone()),
        [] => {
            let near = hcl_lang::nearest(what, all.iter().map(|t| t.slot.job_id.as_str()));
            let near = near.map(|n| format!("; did you mean {n:?}?")).unwrap_or_default();
            bail!("{what:?} is no slot or job of a remote task, and no incarnation begins so{near}\n`drover remote list` shows them.")
        }
        many => {
            let tasks: Vec<RemoteTaskView> = many.iter().map(|i| all[*i].clone()).collect();
            let table = table(&tasks, &Shape::default()).render().join("\n");
            bail!("{} slots may be meant by {what:?}, give more of the name:\n{table}", many.len())
        }
    }
}

/// What a remote task may be called by: its slot, its incarnation's id, its job, its slot without the namespace.
fn keys(t: &RemoteTaskView) -> [String; 4] {
    let slot = t.slot.to_string();
    let bare = slot.split_once('/').map_or_else(String::new, |(_, rest)| rest.to_owned());
    [slot, t.incarnation.to_string(), t.slot.job_id.to_string(), bare]
}

/// Those that may be meant: by a whole name, else by the beginning of one.
fn pick(keys: &[[String; 4]], what: &str) -> Vec<usize> {
    let by = |fits: &dyn Fn(&String) -> bool| -> Vec<usize> {
        keys.iter().enumerate().filter(|(_, names)| names.iter().any(fits)).map(|(i, _)| i).collect()
    };
    if what.is_empty() {
        return Vec::new();
    }
    let whole = by(&|name| name == what);
    if whole.is_empty() { by(&|name| name.starts_with(what)) } else { whole }
}

/// The slot as paths name it.
fn in_path(slot: &SlotKey) -> String {
    slot.to_string().split('/').map(encode).collect::<Vec<_>>().join("/")
}

async fn all(conn: &Conn) -> Result<Vec<RemoteTaskView>> {
    conn.get("/v1/remote/tasks?namespace=*").await
}

/// An observation in one word or two.
pub(crate) fn observed(o: &Observed) -> String {
    match o {
        Observed::Intended => "intended".into(),
        Observed::Creating => "creating".into(),
        Observed::Running => "running".into(),
        Observed::Exited { code, signal: 0, .. } => format!("exited ({code})"),
        Observed::Exited { signal, .. } => format!("exited (signal {signal})"),
        Observed::Gone => "gone".into(),
        Observed::Unknown { .. } => "unknown".into(),
    }
}

fn table(tasks: &[RemoteTaskView], shape: &Shape) -> Table {
    let mut table = Table::new(["Slot", "Incarnation", "Driver", "Desired", "Observed", "Manager", "Epoch", "Hand-overs"]);
    for t in tasks {
        table.row([
            t.slot.to_string(),
            shape.id(t.incarnation),
            t.driver.to_string(),
            lower(&t.desired),
            observed(&t.observed),
            manager(t, shape),
            t.epoch.to_string(),
            t.handovers.to_string(),
        ]);
    }
    table
}

/// The managing node, or since when there is none.
pub(crate) fn manager(t: &RemoteTask, shape: &Shape) -> String {
    match &t.manager {
        Some(m) => shape.id(m.node_id),
        None if t.unmanaged_since > 0 => format!("none, for {}", when::span(when::now_ns() - t.unmanaged_since)),
        None => "none".into(),
    }
}

/// What is known of a remote task, without its history.
pub(crate) fn summary(t: &RemoteTaskView, shape: &Shape) -> Vec<(&'static str, String)> {
    let unknown = match &t.observed {
        Observed::Unknown { since, why } => format!("unknown since {}: {why}", when::stamp(*since)),
        Observed::Exited { reason, at, .. } => {
            format!("{} at {} {reason}", observed(&t.observed), when::stamp(*at))
        }
        other => observed(other),
    };
    let managed = match &t.extra.manager_name {
        name if name.is_empty() => manager(t, shape),
        name => format!("{} ({name})", manager(t, shape)),
    };
    let desired = match (&*t.stop_reason, &*t.unhealthy) {
        ("", "") => lower(&t.desired),
        ("", unhealthy) => format!("{}, but this instance is being stopped: {unhealthy}", lower(&t.desired)),
        (stop, _) => format!("{}: {stop}", lower(&t.desired)),
    };
    let guarantee = &t.extra.guarantee;
    let mut pairs = vec![
        ("Slot", t.slot.to_string()),
        ("Instance", t.incarnation.to_string()),
        ("Driver", t.driver.to_string()),
        ("Provider", t.provider.to_string()),
        ("Provider ID", t.provider_id.clone()),
        ("Job Version", t.job_version.to_string()),
        ("Desired", desired),
        ("Observed", unknown),
        ("Started", when::ago(t.started_at, when::now_ns())),
        ("Manager", managed),
        ("Epoch", t.epoch.to_string()),
        ("Hand-overs", t.handovers.to_string()),
        ("Restarts", t.restarts.to_string()),
        ("Address", t.address.clone()),
        ("Guarantee", format!("{}: {}", guarantee.level, guarantee.reason)),
    ];
    pairs.extend(guarantee.limits.iter().map(|limit| ("But", limit.clone())));
    pairs
}

fn show(t: &RemoteTaskView, shape: &Shape) {
    output::pairs(&summary(t, shape));
    if !t.attributes.is_empty() {
        output::heading("Attributes");
        for (k, v) in &t.attributes {
            output::line(&format!("{k} = {v}"));
        }
    }
    if !t.history.is_empty() {
        output::heading("History");
        let mut table = Table::new(["Time", "Epoch", "What"]);
        for e in t.history.iter().rev() {
            table.row([when::stamp(e.time), e.epoch.to_string(), e.message.to_string()]);
        }
        table.print();
    }
}

#[cfg(test)]
mod tests {
    use super::pick;

    #[test]
    fn a_remote_task_is_called_by_several_names() {
        let keys = |slot: &str, id: &str, job: &str| [format!("default/{slot}"), id.to_owned(), job.to_owned(), slot.to_owned()];
        let all = [
            keys("crunch.g[0]/t", "abcd", "crunch"),
            keys("pair.g[0]/t", "0123", "pair"),
            keys("pair.g[1]/t", "0145", "pair"),
            keys("pairing.g[0]/t", "ffff", "pairing"),
        ];
        for (what, wanted) in [
            ("crunch", &[0][..]),
            ("cru", &[0]),
            ("default/crunch.g[0]/t", &[0]),
            ("pair", &[1, 2]),
            ("pair.g[1]", &[2]),
            ("pairing.g[0]/t", &[3]),
            ("01", &[1, 2]),
            ("0123", &[1]),
            ("nobody", &[]),
            ("", &[]),
        ] {
            assert_eq!(pick(&all, what), wanted, "{what:?}");
        }
    }
}
