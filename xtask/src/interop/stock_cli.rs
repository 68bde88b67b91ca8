//! The stock command line against a Drover agent: what scripts and people's fingers know goes on to work.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{
    api::{events_of, text},
    cluster::{self, Agent},
};
use crate::{
    local::{BOUND, until},
    packages, peer,
};

const JOB: &str = r#"
job "web" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'echo got-usr1' USR1; echo started; echo problem >&2; while true; do sleep 0.1; done"]
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }
    update {
      min_healthy_time = "100ms"
    }
  }
}
"#;

/// The stock command line, asking one agent.
pub(super) struct Cli {
    pub(super) program: PathBuf,
    pub(super) address: String,
    /// Empty = none.
    pub(super) token: String,
}

/// What a command printed.
pub(super) struct Printed {
    pub(super) code: i32,
    pub(super) out: String,
    pub(super) err: String,
}

impl Cli {
    /// Runs a command to its end.
    pub(super) fn run(&self, args: &[&str], input: &[u8]) -> Result<Printed> {
        self.finish(Command::new(&self.program).args(args), input)
    }
    /// The same on a terminal of its own.
    pub(super) fn run_on_terminal(&self, args: &[&str], input: &[u8]) -> Result<Printed> {
        let quoted: Vec<String> = args.iter().map(|a| format!("'{a}'")).collect();
        let line = format!("{} {}", self.program.display(), quoted.join(" "));
        self.finish(Command::new("script").args(["-qec", &line, "/dev/null"]), input)
    }
    fn finish(&self, command: &mut Command, input: &[u8]) -> Result<Printed> {
        let mut child = command
            .env("NOMAD_ADDR", &self.address)
            .env("NOMAD_TOKEN", &self.token)
            .env("TERM", "dumb")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("could not start the stock command line")?;
        // A command that does not read its input may have ended already.
        if let Some(mut stdin) = child.stdin.take() {
            drop(stdin.write_all(input));
        }
        let output = child.wait_with_output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Printed { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) })
    }
}

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_go()?;
    let program = peer::nomad_cached(&peer::NOMAD_1_9)?;
    // The same with access control and its first token.
    std::thread::scope(|scope| {
        let runs = [("cli", ""), ("cli-acl", cluster::SECURED)].map(|(name, config)| {
            let program = program.clone();
            scope.spawn(move || one(name, config, program).with_context(|| name.to_owned()))
        });
        runs.into_iter().try_for_each(|run| run.join().unwrap_or_else(|_| bail!("a thread of the check died")))
    })
}

fn one(name: &str, config: &str, program: PathBuf) -> Result<()> {
    let mut agent = Agent::start(name, &[], config)?;
    let token = if config.is_empty() { String::new() } else { agent.bootstrap()? };
    let cli = Cli { program, address: agent.address(), token };
    let mut asked = Asked { cli, wrong: Vec::new(), count: 0 };
    story(&agent, &mut asked).with_context(|| {
        format!("before that: {:#?}\nthe end of the agent's log:\n{}", asked.wrong, agent.log_tail())
    })?;
    ensure!(asked.wrong.is_empty(), "{} of {} commands:\n{}", asked.wrong.len(), asked.count, asked.wrong.join("\n"));
    eprintln!("  {name}: {} commands answered as they do with a stock agent", asked.count);
    Ok(())
}

/// Commands and what was wrong with their answers: all are tried.
struct Asked {
    cli: Cli,
    wrong: Vec<String>,
    count: usize,
}

impl Asked {
    /// A command that must end with this code and print all of these.
    fn ends(&mut self, code: i32, args: &[&str], prints: &[&str]) -> Result<String> {
        self.count += 1;
        let done = self.cli.run(args, b"")?;
        let missing: Vec<&&str> =
            prints.iter().filter(|p| !done.out.contains(**p) && !done.err.contains(**p)).collect();
        if done.code != code || !missing.is_empty() {
            let (out, err) = (&done.out, &done.err);
            self.wrong.push(format!(
                "`nomad {}` ended with {} (not {code}), lacks {missing:?}:\n{out}{err}",
                args.join(" "),
                done.code
            ));
        }
        Ok(done.out)
    }
    fn fine(&mut self, args: &[&str], prints: &[&str]) -> Result<String> {
        self.ends(0, args, prints)
    }
}

fn first(value: &Value, what: &str) -> Result<String> {
    value[0]["ID"].as_str().map(str::to_owned).with_context(|| format!("there is no {what}: {value}"))
}

fn running(agent: &Agent, not: &str) -> Result<String> {
    until("a running allocation", BOUND, || {
        let serves = |a: &&Value| a["ClientStatus"] == "running" && a["DesiredStatus"] == "run" && a["ID"] != not;
        Ok(agent.allocs("web")?.iter().find(serves).map(|a| text(&a["ID"])))
    })
}

fn story(agent: &Agent, nomad: &mut Asked) -> Result<()> {
    agent.until_healthy(&["raw_exec"], 1)?;
    let node = first(&agent.get("/v1/nodes")?, "node")?;
    let file = agent.dir().join("web.nomad.hcl");
    fs::write(&file, JOB)?;
    let file = file.to_string_lossy().into_owned();
    let file = file.as_str();

    nomad.fine(&["job", "validate", file], &["Job validation successful"])?;
    nomad.ends(
        1,
        &["job", "plan", file],
        &["+ Job: \"web\"", "All tasks successfully allocated", "Job Modify Index: 0"],
    )?;
    nomad.fine(
        &["job", "run", file],
        &["Evaluation triggered by job \"web\"", "finished with status \"complete\"", "Deployment", "successful"],
    )?;
    nomad.fine(&["job", "plan", file], &["Job: \"web\""])?;
    nomad.fine(&["job", "status"], &["web", "service", "running"])?;
    nomad.fine(&["job", "status", "web"], &["= web", "= running", "Summary", "Latest Deployment", "Allocations"])?;
    nomad.fine(&["job", "status", "-json", "web"], &["\"JobID\": \"web\""])?;
    nomad.fine(&["job", "inspect", "web"], &["\"ID\": \"web\"", "\"Driver\": \"raw_exec\""])?;
    nomad.fine(&["job", "inspect", "-hcl", "web"], &["driver = \"raw_exec\""])?;
    nomad.fine(&["job", "history", "web"], &["Version", "= 0", "Stable"])?;
    nomad.fine(&["job", "allocs", "web"], &["running"])?;
    nomad.fine(&["job", "deployments", "web"], &["successful"])?;
    nomad.ends(1, &["job", "status", "nothing"], &["No job(s) with prefix or ID \"nothing\" found"])?;
    nomad.fine(&["status"], &["web"])?;
    nomad.fine(&["status", "web"], &["= web"])?;

    let alloc = running(agent, "")?;
    let short = &alloc[..8];
    nomad.fine(
        &["alloc", "status", short],
        &[&alloc, "Task \"t\" is \"running\"", "Task started by client", "Recent Events"],
    )?;
    nomad.fine(&["alloc", "status", "-stats", short], &["Memory Stats", "CPU Stats"])?;
    nomad.fine(&["alloc", "status", "-json", short], &["\"ClientStatus\": \"running\""])?;
    // The task runs before it has written anything.
    until("its first lines", BOUND, || {
        let written = agent.output(&alloc, "stdout")?.contains("started");
        Ok((written && agent.output(&alloc, "stderr")?.contains("problem")).then_some(()))
    })?;
    nomad.fine(&["alloc", "logs", short], &["started"])?;
    nomad.fine(&["alloc", "logs", "-stderr", short, "t"], &["problem"])?;
    nomad.fine(&["alloc", "logs", "-tail", "-n", "1", short], &["started"])?;
    nomad.fine(&["alloc", "logs", "-job", "web"], &["started"])?;
    nomad.fine(&["alloc", "fs", short], &["alloc/", "t/"])?;
    nomad.fine(&["alloc", "fs", short, "alloc/logs/"], &["t.stdout.0"])?;
    nomad.fine(&["alloc", "fs", short, "alloc/logs/t.stdout.0"], &["started"])?;
    nomad.fine(&["alloc", "fs", "-stat", short, "alloc/logs/t.stdout.0"], &["t.stdout.0", "Mode"])?;
    nomad.fine(&["alloc", "signal", "-s", "SIGUSR1", short, "t"], &[])?;
    until("the answer to the signal", BOUND, || {
        let text = agent.output(&alloc, "stdout")?;
        if text.contains("got-usr1") { Ok(Some(())) } else { bail!("the log reads {text:?}") }
    })?;
    nomad.ends(
        3,
        &["alloc", "exec", "-i=false", "-t=false", short, "/bin/sh", "-c", "echo beside; exit 3"],
        &["beside"],
    )?;
    nomad.fine(&["alloc", "checks", short], &[])?;
    nomad.fine(&["alloc", "restart", short], &[])?;
    until("the restart", BOUND, || {
        let state = agent.task(&alloc)?;
        let starts = events_of(&state).iter().filter(|e| e["Type"] == "Started").count();
        Ok((state["State"] == "running" && starts == 2).then_some(()))
    })?;
    nomad.ends(1, &["alloc", "status", "00000000"], &["No allocation(s) with prefix or id \"00000000\" found"])?;

    nomad.fine(&["node", "status"], &["ready", "eligible"])?;
    nomad.fine(
        &["node", "status", &node[..8]],
        &["Drivers", "raw_exec", "Allocated Resources", "Allocations", "running"],
    )?;
    nomad.fine(&["node", "status", "-verbose", &node], &["Attributes", "driver.raw_exec"])?;
    nomad.fine(&["node", "status", "-json", &node], &["\"SchedulingEligibility\": \"eligible\""])?;
    nomad.fine(&["node", "eligibility", "-disable", &node], &["scheduling eligibility set: ineligible"])?;
    nomad.fine(&["node", "eligibility", "-enable", &node], &["scheduling eligibility set: eligible"])?;

    let evaluation = first(&agent.get("/v1/job/web/evaluations")?, "evaluation")?;
    nomad.fine(&["eval", "status", &evaluation[..8]], &["complete", "job-register"])?;
    nomad.fine(&["eval", "list"], &["complete"])?;
    let deployment = first(&agent.get("/v1/deployments")?, "deployment")?;
    nomad.fine(&["deployment", "list"], &["successful", "web"])?;
    nomad.fine(&["deployment", "status", &deployment[..8]], &["successful", "Deployed"])?;

    let stopped = nomad.fine(&["alloc", "stop", short], &["finished with status \"complete\""])?;
    ensure!(!stopped.is_empty(), "alloc stop says what it does");
    let next = running(agent, &alloc)?;
    nomad.fine(&["job", "eval", "-detach", "web"], &["Created eval ID"])?;
    nomad.fine(&["job", "scale", "-detach", "web", "g", "2"], &["Evaluation ID"])?;
    until("two allocations", BOUND, || {
        Ok((agent.allocs("web")?.iter().filter(|a| a["ClientStatus"] == "running").count() == 2).then_some(()))
    })?;
    nomad.fine(&["job", "scaling-events", "web"], &[])?;
    nomad.fine(&["job", "revert", "-detach", "web", "0"], &["Evaluation ID"])?;
    nomad.fine(&["node", "drain", "-enable", "-yes", "-detach", "-deadline", "30s", &node], &["drain"])?;
    until("the end of the drained allocation", BOUND, || {
        Ok((agent.get(&format!("/v1/allocation/{next}"))?["ClientStatus"] == "complete").then_some(()))
    })?;
    nomad.fine(&["node", "drain", "-disable", "-yes", &node], &[])?;

    nomad.fine(&["server", "members"], &["alive", "global"])?;
    nomad.fine(&["agent-info"], &["client", "nomad"])?;
    nomad.fine(&["system", "gc"], &[])?;
    nomad.fine(&["system", "reconcile", "summaries"], &[])?;
    nomad.fine(&["operator", "api", "-X", "GET", "/v1/status/leader"], &["127.0.0.1"])?;
    nomad.fine(&["namespace", "list"], &["default"])?;
    nomad.fine(&["node", "pool", "list"], &["default", "all"])?;
    nomad.fine(&["job", "stop", "-yes", "web"], &["finished with status \"complete\""])?;
    nomad.fine(&["job", "stop", "-yes", "-purge", "-detach", "web"], &[])?;
    until("the end of the job", BOUND, || {
        Ok(agent.get("/v1/jobs")?.as_array().is_some_and(Vec::is_empty).then_some(()))
    })?;
    nomad.fine(&["job", "status"], &["No running jobs"])?;
    Ok(())
}
