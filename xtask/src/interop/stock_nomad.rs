//! Our drivers under a stock Nomad: the binaries of this workspace lie in its `plugin_dir` and serve jobs there. Each
//! story asks as an operator does, over the agent's HTTP API or with its own command line; after all of them nothing
//! may be left, and the agent must never have ended by itself.

mod exec;
mod local_tasks;
mod misbehaviour;
mod remote_tasks;
mod restarts;
mod stock;

use anyhow::{Context, Result};

use self::stock::Stock;
use crate::{
    builds, packages,
    peer::{self, Release},
};

type Story = (&'static str, fn(&mut Stock) -> Result<()>);

const STORIES: &[Story] = &[
    ("drivers load and are healthy, raw_exec instead of the agent's own", local_tasks::loads),
    ("exit code, logs and environment of a batch task", local_tasks::ends),
    ("signal, stats and log of a service", local_tasks::serves),
    ("exec: exit code, input, terminal", exec::sessions),
    ("stop ends the whole tree, by the job's signal", local_tasks::stops),
    ("a task is restarted in place, its log goes on", local_tasks::restarts_in_place),
    ("the same processes after kill -9 of plugin and agent and an orderly restart", restarts::keeps_processes),
    ("what ended while the agent was away is reported and not run again", restarts::ended_meanwhile),
    ("events, network address, exit by signal and by lack of memory, flood of logs", misbehaviour::reports),
    ("wrong requests, panics and crashes of a plugin cost their own task only", misbehaviour::contained),
    ("a remote task: start, logs, restart of everything, stop", remote_tasks::on_one_node),
    ("a remote task is handed over by drain and after the loss of its node", remote_tasks::handed_over),
];

/// Under the release that we are compatible with.
pub(crate) fn nomad_1_9() -> Result<()> {
    check(&peer::NOMAD_1_9)
}

/// Under the newest that the registry serves.
pub(crate) fn newest() -> Result<()> {
    check(&peer::NOMAD_NEWEST)
}

fn check(release: &'static Release) -> Result<()> {
    packages::need_root("a stock Nomad runs tasks as root only")?;
    packages::need_go()?;
    let program = peer::nomad_cached(release)?;
    builds::build(&[
        "drover-driver-raw-exec",
        "drover-driver-mock",
        "drover-driver-mock-remote",
        "drover-driver-remote-exec",
    ])?;
    let mut stock = Stock::start(release, program)?;
    let result = STORIES.iter().try_for_each(|(what, story)| {
        eprintln!("  {what}");
        story(&mut stock).and_then(|()| stock.is_well()).with_context(|| (*what).to_owned())
    });
    let result = result.and_then(|()| stock.nothing_is_left());
    if result.is_err() {
        eprintln!("the end of the agent's log:\n{}", stock.agent.log_tail());
    }
    result
}
