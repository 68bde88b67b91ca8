//! `cargo xtask bench`: measures a release build of Drover, and in the same run a stock Nomad when `NOMAD_BIN` names
//! one, and the build of another commit when `DROVER_BEFORE` does. `DROVER_ON_ETCD=1` measures ours with its state in
//! three members of etcd, too.
//!
//! Both are driven by the same requests over the same HTTP API. Figures are medians with their spread; nothing here is
//! asserted: the table is the result.

mod access;
mod agent;
mod drivers;
mod kubernetes;
mod load;
mod measure;
mod members;
mod remote;
mod scale;
mod sessions;
mod slurm;
mod table;
mod variables;
mod volume;

use anyhow::{Result, bail};

use self::{agent::Kind, table::Row};
use crate::{process::Run, workspace};

/// Builds the agent and the drivers of clusters, always together: with other packages beside, dependencies have other
/// features, and all is built anew.
const DRIVERS: [&str; 8] = ["build", "--release", "-p", "cli", "-p", "kubernetes", "-p", "slurm"];

/// One bench: its name and what it measures on a kind of agent.
type Bench = (&'static str, fn(Kind) -> Result<Vec<Row>>);

const BENCHES: &[Bench] = &[
    ("idle", measure::idle),
    ("latency", measure::latency),
    ("tasks", measure::tasks),
    ("batch", measure::batch),
    ("exec-tasks", measure::exec_tasks),
    ("exec-batch", measure::exec_batch),
    ("logs", measure::logs),
    ("volume", volume::volume),
    ("sessions", sessions::sessions),
    ("reattach", measure::reattach),
    ("drivers", drivers::drivers),
    ("placements", measure::placements),
    ("leases", measure::leases),
    ("periodic", measure::periodic),
    ("access", access::access),
    ("variables", variables::variables),
    ("remote", remote::remote),
    ("remote-scale", remote::scale),
];

/// Runs the benches of these names, or all of them.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    // Its figures have goals, and nobody else's are beside them.
    if let ["scale", args @ ..] = names {
        return scale::run(args);
    }
    // They have peers of their own.
    match names {
        ["kubernetes"] => return kubernetes::run(),
        ["slurm"] => return slurm::run(),
        _ => {}
    }
    for name in names {
        if !BENCHES.iter().any(|(n, _)| n == name) {
            bail!("no bench {name:?}; there are {}", BENCHES.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", "));
        }
    }
    let root = workspace::root();
    Run::new("cargo", ["build", "--release", "-p", "cli"]).dir(&root).run()?;
    let mut kinds = vec![Kind::drover()];
    kinds.extend(std::env::var_os("DROVER_ON_ETCD").map(|_| Kind::on_etcd()));
    kinds.extend(std::env::var_os("DROVER_BEFORE").map(|path| Kind::before(path.into())));
    match std::env::var_os("NOMAD_BIN") {
        Some(path) => kinds.push(Kind::nomad(path.into())),
        None => eprintln!(
            "xtask: NOMAD_BIN is not set, only Drover is measured (`cargo xtask peer nomad OUT` builds a peer)"
        ),
    }
    let mut rows = Vec::new();
    for (name, bench) in BENCHES {
        if !names.is_empty() && !names.contains(name) {
            continue;
        }
        for kind in &kinds {
            eprintln!("xtask: {name} on {}", kind.name());
            match bench(kind.clone()) {
                Ok(measured) => {
                    measured.iter().for_each(|row| eprintln!("xtask:   {}", row.brief()));
                    rows.extend(measured);
                }
                Err(error) => rows.push(Row::failed(name, kind.name(), &format!("{error:#}"))),
            }
        }
    }
    table::print(&rows);
    Ok(())
}
