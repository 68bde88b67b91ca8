//! `drover remote list|status|sweep|adopt|stop|restart|forget|gone`: the records of remote tasks, and what no record
//! knows.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::{
    call::{self, Call},
    shapes::{RemoteSweep, RemoteTaskView},
};
use model::{Observed, RemoteInstance, RemoteTask, SlotKey};

use super::{ApiArgs, Shape};
use crate::{
    conn::Conn,
    output::{self, Table, lower},
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
        /// Only tasks that no node manages
        #[arg(long)]
        unmanaged: bool,
        /// Only tasks whose provider could not be asked
        #[arg(long)]
        unknown: bool,
        /// List the orphaned instances that the last sweep found instead
        #[arg(long, alias = "orphaned")]
        unbound: bool,
    },
    /// List the cluster's instances at every provider now, and show the orphaned ones
    Sweep {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Also show instances of other clusters
        #[arg(long)]
        all_owners: bool,
        /// Stop all orphaned instances of this cluster
        #[arg(long)]
        stop: bool,
        /// Print what -stop would stop, and stop nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Adopt an orphaned instance into the slot of its job; the instance keeps running
    Adopt {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        which: WhichArgs,
        /// Key of the instance, or its prefix
        instance: String,
    },
    /// Stop an orphaned instance; the order lasts until its absence is confirmed
    Stop {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        which: WhichArgs,
        /// Key of the instance, or its prefix
        instance: String,
    },
    /// Stop the instance of a slot; a new one with the same specification follows
    Restart {
        #[command(flatten)]
        api: ApiArgs,
        /// A slot (`namespace/job.group[index]/task`) or its prefix, an incarnation id or its prefix, or a job with
        /// one slot
        slot: String,
    },
    /// Delete the record of a slot without confirmation, or stop reporting an orphaned instance; instances keep
    /// running
    Forget {
        #[command(flatten)]
        api: ApiArgs,
        /// A slot as for `remote restart`, or the key of an orphaned instance
        what: String,
    },
    /// Declare that the instance of a slot does not exist, if its provider cannot tell
    Gone {
        #[command(flatten)]
        api: ApiArgs,
        /// A slot (`namespace/job.group[index]/task`) or its prefix, an incarnation id or its prefix, or a job with
        /// one slot
        slot: String,
    },
    /// Show a remote task, or all remote tasks of a job
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// A job, a slot (`namespace/job.group[index]/task`), or an incarnation id or its prefix
        what: String,
    },
}

/// What tells an instance from others.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct WhichArgs {
    /// Id of the instance's cluster, if it is another cluster whose servers and nodes are gone for good
    #[arg(long, value_name = "CLUSTER")]
    owner: Option<String>,
    /// Provider of the instance, if several providers list it
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<String>,
}

impl WhichArgs {
    fn fits(&self, sweep: &RemoteSweep) -> bool {
        self.provider.as_ref().is_none_or(|provider| *provider == sweep.provider)
    }

    /// The instance that a call is about.
    fn of<T>(&self, call: Call<T>) -> Call<T> {
        call.with_some("owner", self.owner.as_deref()).with_some("provider", self.provider.as_deref())
    }
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, shape, unbound: true, .. } => {
            show_unbound(&sweeps(&api.conn()?, false, false).await?, &shape)
        }
        Command::Sweep { api, shape, all_owners, stop, dry_run } => {
            sweep(&api.conn()?, &shape, all_owners, stop, dry_run).await
        }
        Command::Adopt { api, which, instance } => {
            let conn = api.conn()?;
            let found = one_unbound(&conn, &instance, &which).await?;
            if conn.ask(which.of(call::remote_unbound_adopt(&found.key))).await?.kept {
                output::line(&format!(
                    "No job wants slot {} yet. It is kept free for instance {} until the servers start again: \
                        register the job, then adopt the \
                     instance once more",
                    found.slot, found.key
                ));
            } else {
                output::line(&format!("Instance {} is adopted into slot {}", found.key, found.slot));
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Stop { api, which, instance } => {
            let conn = api.conn()?;
            match one_unbound(&conn, &instance, &which).await {
                Ok(found) => {
                    stop_unbound(&conn, &found, &which).await?;
                    Ok(ExitCode::SUCCESS)
                }
                Err(unknown) => match one_slot(&conn, &instance).await {
                    Ok(task) => bail!(
                        "slot {} belongs to job {:?}: stop or scale the job, or replace the instance with `drover \
                            remote restart`",
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
            conn.ask(call::remote_gone(&task.slot)).await?;
            output::line(&format!("Slot {} counts as without an instance, as you declared", task.slot));
            // Without a manager there is nobody who would ask.
            if task.seen() && task.manager.is_some() {
                output::line(&format!(
                    "What follows waits until the provider answers that it has no such instance. If it never can: \
                        drover remote forget {}",
                    task.slot
                ));
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Forget { api, what } => {
            let conn = api.conn()?;
            if let Ok(found) = one_unbound(&conn, &what, &WhichArgs::default()).await {
                conn.ask(call::remote_unbound_forget(&found.key)).await?;
                output::line(&format!(
                    "Sweeps no longer report instance {} of slot {}, until the servers start again",
                    found.key, found.slot
                ));
                return Ok(ExitCode::SUCCESS);
            }
            let task = one_slot(&conn, &what).await?;
            conn.ask(call::remote_forget(&task.slot)).await?;
            output::line(&format!(
                "The record of slot {} is given up; what lives at its provider lives on and is found by the sweep",
                task.slot
            ));
            Ok(ExitCode::SUCCESS)
        }
        Command::List { api, shape, unmanaged, unknown, unbound: false } => {
            let mut tasks = all(&api.conn()?).await?;
            tasks.retain(|t| {
                (!unmanaged || t.manager.is_none()) && (!unknown || matches!(t.observed, Observed::Unknown { .. }))
            });
            if shape.format.wanted() {
                shape.format.print(&tasks)?;
            } else if tasks.is_empty() {
                output::line("No remote tasks");
            } else {
                table(&tasks, &shape).print();
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Status { api, shape, what } => {
            let conn = api.conn()?;
            let tasks: Vec<RemoteTaskView> = all(&conn).await?.into_iter().collect();
            let keys: Vec<[String; 4]> = tasks.iter().map(keys).collect();
            let meant = pick(&keys, &what);
            let tasks: Vec<&RemoteTaskView> = meant.iter().map(|i| &tasks[*i]).collect();
            if tasks.is_empty() {
                bail!("no remote task of a job, slot or incarnation {what:?}\n`drover remote list` shows them.");
            }
            if shape.format.wanted() {
                shape.format.print(&tasks)?;
                return Ok(ExitCode::SUCCESS);
            }
            let sweeps = sweeps(&conn, false, false).await?;
            for (i, task) in tasks.iter().enumerate() {
                if i > 0 {
                    output::line("");
                }
                show(task, &beside(&sweeps, &task.slot), &shape);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Has the servers replace the instance of a slot.
pub(crate) async fn restart(conn: &Conn, slot: &SlotKey) -> Result<()> {
    conn.ask(call::remote_restart(slot)).await?;
    output::line(&format!("The instance of slot {slot} is being stopped; a new one follows"));
    Ok(())
}

async fn sweeps(conn: &Conn, anew: bool, all_owners: bool) -> Result<Vec<RemoteSweep>> {
    conn.ask(call::remote_unbound().with("sweep", anew).with("all_owners", all_owners)).await
}

/// Looks anew. Providers that could not be asked make the exit code 2: what they have is not known.
async fn sweep(conn: &Conn, shape: &Shape, all_owners: bool, stop: bool, dry_run: bool) -> Result<ExitCode> {
    let sweeps = sweeps(conn, true, all_owners).await?;
    let code = show_unbound(&sweeps, shape)?;
    if all_owners && !shape.format.wanted() {
        show_others(&sweeps);
    }
    if stop {
        for instance in sweeps.iter().flat_map(|s| &s.unbound) {
            if dry_run {
                output::line(&format!("Would stop {} of slot {}", instance.key, instance.slot));
            } else {
                stop_unbound(conn, instance, &WhichArgs::default()).await?;
            }
        }
    }
    Ok(code)
}

async fn stop_unbound(conn: &Conn, instance: &RemoteInstance, which: &WhichArgs) -> Result<()> {
    conn.ask(which.of(call::remote_unbound_stop(&instance.key))).await?;
    output::line(&format!(
        "The stop of instance {} of slot {} is ordered; `drover remote list` shows how it goes",
        instance.key, instance.slot
    ));
    Ok(())
}

fn show_unbound(sweeps: &[RemoteSweep], shape: &Shape) -> Result<ExitCode> {
    if shape.format.wanted() {
        shape.format.print(&sweeps)?;
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
            output::line(&format!("{} providers, no orphaned instances", sweeps.len()));
        } else {
            table.print();
        }
        for s in sweeps.iter().filter(|s| !s.error.is_empty()) {
            output::line(&format!("Provider {} of driver {:?} could not be asked: {}", s.provider, s.driver, s.error));
        }
    }
    Ok(ExitCode::from(if sweeps.iter().any(|s| !s.error.is_empty()) { 2 } else { 0 }))
}

/// What other clusters have, and where that could not be found out.
fn show_others(sweeps: &[RemoteSweep]) {
    output::heading("Instances of other clusters");
    let mut table = Table::new(["Instance", "Slot", "Owner", "Driver", "Provider", "Provider ID", "State", "Started"]);
    for (s, i) in sweeps.iter().flat_map(|s| s.others.iter().map(move |i| (s, i))) {
        table.row([
            i.key.clone(),
            i.slot.clone(),
            i.owner.clone(),
            s.driver.clone(),
            s.provider.clone(),
            i.provider_id.clone(),
            observed(&i.observed),
            when::ago(i.started_at, when::now_ns()),
        ]);
    }
    if sweeps.iter().all(|s| s.others.is_empty()) {
        output::line("None are known")
    } else {
        table.print()
    }
    for s in sweeps.iter().filter(|s| !s.others_error.is_empty()) {
        output::line(&format!(
            "Instances of other clusters at provider {} of driver {:?} are unknown: {}",
            s.provider, s.driver, s.others_error
        ));
    }
}

/// The instance without a record whose key begins so.
async fn one_unbound(conn: &Conn, prefix: &str, which: &WhichArgs) -> Result<RemoteInstance> {
    let sweeps = sweeps(conn, false, true).await?;
    let listed = sweeps.into_iter().filter(|s| which.fits(s)).flat_map(|s| s.unbound.into_iter().chain(s.others));
    let mut found: Vec<RemoteInstance> = listed.filter(|i| i.key.starts_with(prefix)).collect();
    match (found.pop(), found.len()) {
        (Some(one), 0) if !prefix.is_empty() => Ok(one),
        (None, _) => bail!(
            "no orphaned instance matches {prefix:?}; hint: `drover remote sweep` refreshes the list, -all-owners \
                includes other clusters"
        ),
        (_, more) => bail!("{prefix:?} matches {} instances; give more of the key", more + 1),
    }
}

/// The record of a slot by its name or the beginning of it, by the beginning of its incarnation's id, or by its job
/// where that has only one.
async fn one_slot(conn: &Conn, what: &str) -> Result<RemoteTaskView> {
    let all = all(conn).await?;
    let keys: Vec<[String; 4]> = all.iter().map(keys).collect();
    match pick(&keys, what).as_slice() {
        [one] => Ok(all[*one].clone()),
        [] => {
            let near = hcl_lang::nearest(what, all.iter().map(|t| t.slot.job_id.as_str()));
            let near = near.map(|n| format!("; did you mean {n:?}?")).unwrap_or_default();
            bail!(
                "no slot, job or incarnation of a remote task matches {what:?}{near}\n`drover remote list` lists them."
            )
        }
        many => {
            let tasks: Vec<RemoteTaskView> = many.iter().map(|i| all[*i].clone()).collect();
            let table = table(&tasks, &Shape::default()).render().join("\n");
            bail!("{} slots match {what:?}; give more of the name:\n{table}", many.len())
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

async fn all(conn: &Conn) -> Result<Vec<RemoteTaskView>> {
    conn.ask(call::remote_tasks().in_namespace("*")).await
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
    let mut table =
        Table::new(["Slot", "Incarnation", "Driver", "Desired", "Observed", "Manager", "Epoch", "Hand-overs"]);
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
        Observed::Creating if !t.waiting.is_empty() => format!("{}: {}", observed(&t.observed), t.waiting),
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
        ("Restarts", restarts(t)),
        ("Address", t.address.to_string()),
        ("Guarantee", format!("{}: {}", guarantee.level, guarantee.reason)),
    ];
    if let Some(why) = waits(t) {
        let at = pairs.iter().position(|(name, _)| *name == "Started").unwrap_or(pairs.len());
        pairs.insert(at, ("Waits For", why));
    }
    let spent = t.restart_charges.iter().map(|charge| format!("{} {}", when::stamp(charge.time), charge.cause));
    let at = pairs.iter().position(|(name, _)| *name == "Address").unwrap_or(pairs.len());
    pairs.splice(at..at, spent.map(|line| ("Spent On", line)));
    pairs.extend(guarantee.limits.iter().map(|limit| ("But", limit.clone())));
    pairs
}

/// What an instance that counts as ended waits for, before another one may follow.
fn waits(t: &RemoteTask) -> Option<String> {
    let held = t.observed.ended() && t.exit_acknowledged && !t.settled();
    held.then(|| match &t.observed {
        Observed::Gone => format!(
            "its provider, to answer that it has no such instance; if it never can: drover remote forget {}",
            t.slot
        ),
        _ => "its provider, to let it go".to_owned(),
    })
}

/// How often it was restarted, and what that has cost of its budget.
fn restarts(t: &RemoteTask) -> String {
    match t.restart_charges.len() {
        0 => t.restarts.to_string(),
        spent => format!("{}; attempts spent in this interval: {spent} of {}", t.restarts, t.policy.restart.attempts()),
    }
}

/// What the last sweep has found alive beside the record's instance of a slot, for people.
fn beside(sweeps: &[RemoteSweep], slot: &SlotKey) -> Vec<(&'static str, String)> {
    let slot = slot.to_string();
    let alive = sweeps.iter().flat_map(|s| &s.unbound).filter(|i| i.slot == slot && i.alive());
    alive
        .map(|i| {
            let id = if i.provider_id.is_empty() { String::new() } else { format!(" ({})", i.provider_id) };
            let what = format!(
                "{}{id} is {} as well: `drover remote stop {}` ends it and nothing else",
                i.key,
                observed(&i.observed),
                i.key
            );
            ("Orphaned", what)
        })
        .collect()
}

fn show(t: &RemoteTaskView, orphaned: &[(&'static str, String)], shape: &Shape) {
    let mut pairs = summary(t, shape);
    pairs.extend_from_slice(orphaned);
    output::pairs(&pairs);
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
    use model::remote::Manager;

    use super::*;

    #[test]
    fn the_status_of_a_slot_names_what_lives_beside_its_instance() {
        let slot: SlotKey = "default/j.g[0]/t".parse().expect("a slot");
        let instance = |key: &str, slot: &str, id: &str, observed: Observed| RemoteInstance {
            key: key.to_owned(),
            slot: slot.to_owned(),
            provider_id: id.to_owned(),
            observed,
            ..RemoteInstance::default()
        };
        let unbound = vec![
            instance("k1", "default/j.g[0]/t", "arn:2", Observed::Running),
            instance("k2", "default/j.g[1]/t", "", Observed::Running),
            instance("k3", "default/j.g[0]/t", "", Observed::Gone),
        ];
        let sweeps = [RemoteSweep { unbound, ..RemoteSweep::default() }];
        let [("Orphaned", line)] = &beside(&sweeps, &slot)[..] else { panic!("{:?}", beside(&sweeps, &slot)) };
        assert_eq!(line, "k1 (arn:2) is running as well: `drover remote stop k1` ends it and nothing else");
    }

    #[test]
    fn what_a_declaration_waits_for_is_told() {
        let manager = Some(Manager::default());
        let declared = RemoteTask {
            slot: "default/j.g[0]/t".parse().expect("a slot"),
            observed: Observed::Gone,
            exit_acknowledged: true,
            manager,
            ..RemoteTask::default()
        };
        let told = waits(&declared).expect("the provider has not answered");
        assert!(told.ends_with("drover remote forget default/j.g[0]/t"), "{told}");
        for over in [
            RemoteTask { forgotten: true, ..declared.clone() },
            RemoteTask { manager: None, ..declared.clone() },
            RemoteTask { observed: Observed::Running, ..declared.clone() },
        ] {
            assert_eq!(waits(&over), None, "{over:?}");
        }
        let exited = Observed::Exited { code: 0, signal: 0, oom_killed: false, reason: Default::default(), at: 1 };
        let ended = RemoteTask { observed: exited, ..declared };
        assert_eq!(waits(&ended).as_deref(), Some("its provider, to let it go"));
    }

    #[test]
    fn a_remote_task_is_called_by_several_names() {
        let keys = |slot: &str, id: &str, job: &str| {
            [format!("default/{slot}"), id.to_owned(), job.to_owned(), slot.to_owned()]
        };
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
