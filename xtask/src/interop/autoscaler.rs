//! The stock Nomad Autoscaler, unedited, with the plugins that it brings: it reads policies and measurements from our
//! agent, and scales.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    cluster::{Agent, drover},
    stock_suites::Place,
};
use crate::{
    local::{BOUND, free_ports, until},
    packages, peer,
};

/// A job whose one check asks the agent for what the tasks use, with this strategy.
fn job(strategy: &str) -> String {
    format!(
        "job \"web\" {{\n  group \"g\" {{\n    count = 1\n    scaling {{\n      min = 1\n      max = 4\n      \
         policy {{\n        evaluation_interval = \"1s\"\n        cooldown = \"1s\"\n        check \"c\" {{\n          \
         source = \"nomad-apm\"\n          query = \"avg_cpu\"\n          {strategy}\n        }}\n      }}\n    \
         }}\n    update {{\n      min_healthy_time = \"100ms\"\n    }}\n    task \"t\" {{\n      \
         driver = \"raw_exec\"\n      config {{\n        command = \"/bin/sleep\"\n        args = [\"600\"]\n      \
         }}\n      resources {{\n        cpu = 20\n        memory = 32\n      }}\n    }}\n  }}\n}}\n"
    )
}

fn strategy(name: &str, setting: &str) -> String {
    format!("strategy {name:?} {{\n            {setting}\n          }}")
}

/// The running autoscaler. It ends with its value.
struct Autoscaler(Child);

impl Drop for Autoscaler {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Autoscaler {
    fn start(program: &Path, agent: &Agent, place: &Place) -> Result<Self> {
        let [port] = free_ports()?;
        let config = format!(
            "log_level = \"DEBUG\"\nhttp {{\n  bind_port = {port}\n}}\nnomad {{\n  address = {:?}\n}}\npolicy {{\n  \
             default_evaluation_interval = \"1s\"\n  default_cooldown = \"1s\"\n}}\napm \"nomad-apm\" {{\n  \
             driver = \"nomad-apm\"\n}}\nstrategy \"fixed-value\" {{\n  driver = \"fixed-value\"\n}}\nstrategy \
             \"target-value\" {{\n  driver = \"target-value\"\n}}\n",
            agent.address()
        );
        let file = place.path("autoscaler.hcl");
        fs::write(&file, config)?;
        let log = File::create(place.path("autoscaler.log"))?;
        let mut command = Command::new(program);
        command.args(["agent", "-config"]).arg(file).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Self(command.spawn().context("could not start the autoscaler")?))
    }
}

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_go()?;
    let program = peer::autoscaler()?;
    let agent = Agent::start("autoscaler", &[], "")?;
    let place = Place::new("autoscaler-files")?;
    let told = story(&program, &agent, &place);
    let log = fs::read_to_string(place.path("autoscaler.log")).unwrap_or_default();
    let end: Vec<&str> = log.lines().rev().take(20).collect();
    told.with_context(|| format!("the end of its log, newest first:\n{}", end.join("\n")))
}

fn story(program: &Path, agent: &Agent, place: &Place) -> Result<()> {
    let file = place.path("web.nomad.hcl");
    let submit = |text: String| -> Result<()> {
        fs::write(&file, text)?;
        let name = file.to_str().context("a path that is no text")?;
        drover(&agent.address(), &["job", "run", "-detach", "-preserve-counts", name]).map(drop)
    };
    let running = |n: u64| {
        until(&format!("{n} allocations that run"), BOUND, || {
            let summary: Value = agent.get("/v1/job/web/summary")?;
            Ok((summary["Summary"]["g"]["Running"] == n).then_some(()))
        })
    };
    until("a ready node", BOUND, || {
        let nodes: Value = agent.get("/v1/nodes")?;
        Ok((nodes[0]["Status"] == "ready").then_some(()))
    })?;
    submit(job(&strategy("fixed-value", "value = 3")))?;
    let autoscaler = Autoscaler::start(program, agent, place)?;
    running(3)?;
    // It hears of a changed policy.
    submit(job(&strategy("fixed-value", "value = 2")))?;
    running(2)?;
    // What it measures of tasks that sleep is below this target, so it goes to the bound.
    submit(job(&strategy("target-value", "target = 1000000")))?;
    running(1)?;
    drop(autoscaler);
    let events: Value = agent.get("/v1/job/web/scale")?;
    let events = events["TaskGroups"]["g"]["Events"].as_array().cloned().unwrap_or_default();
    let counts: Vec<_> = events.iter().filter_map(|event| event["Count"].as_i64()).collect();
    ensure!([3, 2, 1].iter().all(|n| counts.contains(n)), "its requests are on record: {counts:?}");
    ensure!(
        events.iter().all(|event| event["Error"] == false && event["Message"].as_str().is_some_and(|m| !m.is_empty())),
        "each with its reason: {events:?}"
    );
    Ok(())
}
