//! A remote driver of ours under a stock Nomad: the instance stays the same while plugin and agent are killed.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    cluster::Agent,
    remote::{RUNTIME, allocation},
};
use crate::{
    local::{BOUND, kill, until},
    packages, peer,
};

/// A driver and one job named `far`.
pub(super) struct Subject<'a> {
    pub(super) driver: &'a str,
    pub(super) plugin: &'a Path,
    /// Body of the plugin's `config`.
    pub(super) config: &'a str,
    pub(super) job: &'a Value,
}

/// `one` names the instance at the runtime. The log has to go on after each event.
pub(super) fn check(subject: &Subject<'_>, one: impl Fn() -> Result<String>) -> Result<()> {
    packages::need_root("everything passed but the part under a stock Nomad, which runs tasks as root only")?;
    packages::need_go()?;
    let program = peer::nomad_cached(&peer::NOMAD_1_9)?;
    let Subject { driver, plugin, config, .. } = subject;
    let more = format!("plugin {driver:?} {{\n  config {{\n{config}\n  }}\n}}");
    let mut agent = Agent::start_stock(&program, &format!("{driver}-nomad"), &[(driver, plugin)], None, &more)?;
    let result = story(&mut agent, subject, one);
    result.with_context(|| format!("under a stock Nomad; the end of its log:\n{}", agent.log_tail()))
}

fn story(agent: &mut Agent, subject: &Subject<'_>, one: impl Fn() -> Result<String>) -> Result<()> {
    agent.until_healthy(&[subject.driver], 1)?;
    agent.submit(subject.job)?;
    let alloc = until("a running allocation", RUNTIME, || agent.serving("far"))?;
    let lines = |agent: &Agent| agent.output(&alloc, "stdout").unwrap_or_default().lines().count();
    let goes_on = |agent: &Agent, after: &str| {
        let before = until(&format!("a log after {after}"), BOUND, || Ok(Some(lines(agent)).filter(|n| *n > 0)))?;
        until(&format!("further lines after {after}"), BOUND, || Ok((lines(agent) > before).then_some(())))
    };
    goes_on(agent, "the start")?;
    let first = one()?;
    let same = |agent: &Agent, after: &str| -> Result<()> {
        goes_on(agent, after)?;
        ensure!(one()? == first, "another instance than {first} after {after}");
        ensure!(allocation(agent)? == alloc, "another allocation than {alloc} after {after}");
        Ok(())
    };
    let program = format!("plugins/{}", subject.driver);
    agent.pids(|command| command.contains(&program)).into_iter().try_for_each(kill)?;
    same(agent, "kill -9 of the plugin")?;
    agent.crash_and_restart()?;
    agent.until_healthy(&[subject.driver], 1)?;
    same(agent, "kill -9 of Nomad")?;
    agent.delete("/v1/job/far")?;
    until("the end of its allocation", RUNTIME, || agent.alloc("far", "complete")).map(drop)
}
