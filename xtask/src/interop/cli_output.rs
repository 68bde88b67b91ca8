//! Our command line beside the stock one, asking the same agent at the same moment: what scripts cut out of the output
//! of one they find in that of the other.
//!
//! Each line of the stock's standard output must begin a line of ours, in the same order, however many blanks stand
//! between its words. So a column keeps its number and a name keeps its place, and we may say more: behind a line, or
//! in lines of our own. JSON means the same, what is empty left out. Exit codes are the same. What is said on standard
//! error is for people, and in our words.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use regex::Regex;
use serde_json::Value;

use super::{
    api::text,
    cluster::{self, Agent},
    stock_cli::{Cli, Printed},
};
use crate::{
    local::{BOUND, until},
    packages, peer,
};

/// A service with what `job` and `alloc` show most of, on its second version.
const WEB: &str = r#"
job "web" {
  meta {
    owner = "me"
  }
  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }
  group "g" {
    count = COUNT
    scaling {
      max = 5
    }
    update {
      min_healthy_time = "100ms"
      auto_revert      = true
    }
    network {
      port "http" {
        to = 80
      }
    }
    service {
      provider = "nomad"
      name     = "websvc"
      port     = "http"
      tags     = ["a", "b"]
      check {
        type      = "tcp"
        interval  = "1h"
        timeout   = "1s"
        on_update = "ignore"
      }
    }
    task "prepare" {
      lifecycle {
        hook = "prestart"
      }
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        cpu    = 10
        memory = 10
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo started; echo problem >&2; while true; do sleep 1; done"]
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
"#;

/// A batch job that somebody else makes jobs of; BLOCK says who.
const TEMPLATE: &str = r#"
job "NAME" {
  type = "batch"
  BLOCK
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
"#;

/// A job that fits nowhere.
const BIG: &str = r#"
job "big" {
  group "g" {
    count = 2
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        cpu = 500000
      }
    }
  }
  group "elsewhere" {
    constraint {
      attribute = "${attr.kernel.name}"
      value     = "plan9"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
"#;

/// What is asked; names in capitals are put in.
const ASKED: &[&str] = &[
    "agent-info",
    "alloc checks ALLOC",
    "alloc exec ALLOC /bin/echo hello",
    "alloc fs -H ALLOC alloc/logs",
    "alloc fs -stat ALLOC alloc/logs/t.stdout.0",
    "alloc fs ALLOC",
    "alloc fs ALLOC absent",
    "alloc fs ALLOC alloc/logs/t.stdout.0",
    "alloc logs -stderr ALLOC t",
    "alloc logs ALLOC absent",
    "alloc logs ALLOC t",
    "alloc status -json ALLOC",
    "alloc status -short ALLOC",
    "alloc status -stats ALLOC",
    "alloc status -verbose ALLOC",
    "alloc status 00000000",
    "alloc status ALLOC",
    "deployment list",
    "deployment list -json",
    "deployment list -verbose",
    "deployment status -json DEPLOYMENT",
    "deployment status -verbose DEPLOYMENT",
    "deployment status 00000000",
    "deployment status DEPLOYMENT",
    "eval list",
    "eval list -json",
    "eval list -verbose",
    "eval status -verbose EVAL",
    "eval status 00000000",
    "eval status EVAL",
    "eval status WAITING",
    "job allocs -json web",
    "job allocs -verbose web",
    "job allocs web",
    "job deployments -latest web",
    "job deployments web",
    "job history -json web",
    "job history -p web",
    "job history web",
    "job inspect web",
    "job plan -verbose WEB",
    "job plan BIG",
    "job plan -verbose CHANGED",
    "job plan WEB",
    "job scaling-events -verbose web",
    "job scaling-events web",
    "job status",
    "job status -all-allocs web",
    "job status -evals web",
    "job status -json web",
    "job status -namespace=*",
    "job status -short web",
    "job status -verbose big",
    "job status -verbose web",
    "job status absent",
    "job status big",
    "job status param",
    "job status tick",
    "job status web",
    "job validate WEB",
    "namespace inspect dev",
    "namespace list",
    "namespace status dev",
    "node config -servers",
    "node meta read -node-id=NODE",
    "node pool info default",
    "node pool jobs default",
    "node pool list",
    "node pool nodes default",
    "node status",
    "node status -allocs",
    "node status -json NODE",
    "node status -os -verbose",
    "node status -self",
    "node status -short NODE",
    "node status -stats NODE",
    "node status -verbose NODE",
    "node status 00000000",
    "node status NODE",
    "operator api -X GET /v1/status/leader",
    "operator autopilot health",
    "operator raft list-peers",
    "operator root keyring list",
    "operator scheduler get-config",
    "scaling policy list",
    "server members",
    "server members -detailed",
    "service info -verbose websvc",
    "service info absent",
    "service info websvc",
    "service list",
    "status",
    "status ALLOC",
    "status web",
    "system reconcile summaries",
    "var get -out=table nomad/jobs/web",
    "var get absent",
    "var get nomad/jobs/web",
    "var list",
    "var list -out=json",
    "volume status",
];

/// Lines of the stock's that ours do not have: the command begins so, and the line; and why.
const LISTED: &[(&str, &str, &str)] = &[
    ("alloc status -stats", "PERCENT PERCENT 0 0 PERCENT", "times and frequencies have their units"),
    ("job plan", "To submit the job with version verification run:", OWN_WORDS),
    ("job plan", "When running the job with the check-index flag,", OWN_WORDS),
    ("job plan", "job modify index given matches", OWN_WORDS),
    ("job plan", "changed, another user has modified", OWN_WORDS),
    ("job plan", "potentially invalid.", OWN_WORDS),
    ("job plan", "KillTimeout: \"5000000000\"", "durations are shown as a job file has them"),
    ("job status", "Task Group \"elsewhere\":", "the line says how many could not be placed"),
    ("job status", "Task Group \"g\":", "the line says how many could not be placed"),
    ("node status -short", "Drivers = exec,raw_exec", "the name is Driver Status, as without -short"),
    ("volume status", "Container Storage Interface", "there are no CSI volumes"),
];

const OWN_WORDS: &str = "sentences are in our words";

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_go()?;
    let program = peer::nomad_cached(&peer::NOMAD_1_9)?;
    let mut agent = Agent::start("cli-output", &[], "")?;
    let answered =
        asked(&agent, &program).with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()));
    let answered = answered?;
    agent.stop()?;
    eprintln!(
        "  {answered} commands say what those of the stock command line say, {} lines differ as listed",
        LISTED.len()
    );
    Ok(())
}

/// What the words in capitals stand for.
struct Names(Vec<(&'static str, String)>);

impl Names {
    fn put_in(&self, command: &str) -> Vec<String> {
        let word =
            |word: &str| self.0.iter().find(|(name, _)| *name == word).map_or(word, |(_, value)| value).to_owned();
        command.split(' ').map(word).collect()
    }
}

/// Makes what there is to see.
fn prepared(agent: &Agent) -> Result<Names> {
    agent.until_healthy(&["raw_exec"], 1)?;
    let write = |name: &str, content: &str| -> Result<String> {
        let path = agent.dir().join(format!("{name}.nomad.hcl"));
        fs::write(&path, content)?;
        Ok(path.display().to_string())
    };
    let ours = |args: &[&str]| cluster::drover(&agent.address(), args);
    let web = write("web", &WEB.replace("COUNT", "2"))?;
    let changed = write("changed", &WEB.replace("COUNT", "2").replace("echo started", "echo changed"))?;
    let big = write("big", BIG)?;
    let template = |name: &str, block: &str| write(name, &TEMPLATE.replace("NAME", name).replace("BLOCK", block));
    let param = template("param", "parameterized {\n    meta_optional = [\"a\"]\n  }")?;
    let tick = template("tick", "periodic {\n    cron = \"0 0 1 1 *\"\n  }")?;
    ours(&["job", "run", &web])?;
    ours(&["job", "tag", "apply", "-name", "first", "web"])?;
    ours(&["job", "scale", "web", "g", "3"])?;
    ours(&["job", "scale", "web", "g", "2"])?;
    for file in [&param, &tick, &big] {
        ours(&["job", "run", "-detach", file])?;
    }
    ours(&["job", "dispatch", "param"])?;
    ours(&["var", "put", "nomad/jobs/web", "key=value"])?;
    ours(&["namespace", "apply", "-description", "For the check", "dev"])?;
    let waiting = until("an evaluation that waits for room", BOUND, || {
        let evals = agent.get("/v1/job/big/evaluations")?;
        let waits = |eval: &&Value| eval["Status"] == "blocked";
        Ok(evals.as_array().and_then(|all| all.iter().find(waits)).map(|eval| text(&eval["ID"])))
    })?;
    let alloc = until("that all of web has come to rest", BOUND, || {
        let allocs = agent.allocs("web")?;
        let running: Vec<&Value> =
            allocs.iter().filter(|a| a["ClientStatus"] == "running" && a["DesiredStatus"] == "run").collect();
        let healthy = running.iter().all(|a| a["DeploymentStatus"]["Healthy"] == true);
        let ended = allocs.iter().filter(|a| a["ClientStatus"] == "complete").count();
        Ok((running.len() == 2 && healthy && ended == 1).then(|| running[0].clone()))
    })?;
    // Both command lines have to see the same. The deployment of big is left out: it fits nowhere, and waits.
    until("that nothing is under way any more", BOUND, || {
        let (jobs, evals) = (agent.list("/v1/jobs")?, agent.list("/v1/evaluations")?);
        let under_way = [
            agent.list("/v1/job/web/deployments")?.iter().filter(|one| !deployed(one)).count(),
            evals.iter().filter(|eval| eval["Status"] == "pending").count(),
            jobs.iter().filter(|job| job["ParentID"] == "param" && job["Status"] != "dead").count(),
        ];
        ensure!(under_way == [0; 3], "{under_way:?} deployments of web, evaluations and dispatched jobs");
        Ok(Some(()))
    })?;
    let deployments = agent.get("/v1/job/web/deployments")?;
    let short = |id: &Value| text(id)[..8].to_owned();
    Ok(Names(vec![
        ("WEB", web),
        ("CHANGED", changed),
        ("BIG", big),
        ("ALLOC", short(&alloc["ID"])),
        ("NODE", short(&alloc["NodeID"])),
        ("EVAL", short(&alloc["EvalID"])),
        ("WAITING", waiting[..8].to_owned()),
        ("DEPLOYMENT", short(&deployments[0]["ID"])),
    ]))
}

/// Whether nothing becomes of a deployment any more.
fn deployed(deployment: &Value) -> bool {
    ["successful", "failed", "cancelled"].iter().any(|status| deployment["Status"] == *status)
}

fn asked(agent: &Agent, stock: &Path) -> Result<usize> {
    let names = prepared(agent)?;
    let cli = |program: &Path| Cli { program: program.to_owned(), address: agent.address(), token: String::new() };
    let (stock, ours) = (cli(stock), cli(&cluster::program()));
    let mut wrong = Vec::new();
    let mut needed = vec![false; LISTED.len()];
    for command in ASKED {
        let args = names.put_in(command);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (of_stock, of_ours) = (stock.run(&args, b"")?, ours.run(&args, b"")?);
        let mut lacks = missing(&of_stock, &of_ours);
        lacks.retain(|line| {
            let known = LISTED.iter().position(|(of, begins, _)| command.starts_with(of) && line.starts_with(begins));
            known.is_none_or(|known| {
                needed[known] = true;
                false
            })
        });
        if of_stock.code != of_ours.code {
            lacks.push(format!("exit code {}, and ours is {}: {}", of_stock.code, of_ours.code, of_ours.err));
        }
        if !lacks.is_empty() {
            wrong.push(format!("`{command}` lacks\n    {}\n  in\n{}", lacks.join("\n    "), of_ours.out));
        }
    }
    for (listed, _) in LISTED.iter().zip(needed).filter(|(_, needed)| !needed) {
        wrong.push(format!("no answer needs {listed:?}"));
    }
    ensure!(wrong.is_empty(), "{} of {} commands:\n{}", wrong.len(), ASKED.len(), wrong.join("\n"));
    Ok(ASKED.len())
}

/// What of the stock's answer ours has not.
fn missing(stock: &Printed, ours: &Printed) -> Vec<String> {
    let json = |text: &str| serde_json::from_str(text).ok().map(meant);
    if let (Some(stock), Some(ours)) = (json(&stock.out), json(&ours.out)) {
        let mut lacks = Vec::new();
        within(&stock, &ours, "", &mut lacks);
        return lacks;
    }
    let ours = lines(&ours.out);
    let mut rest = ours.iter();
    let mut lacks = Vec::new();
    for line in lines(&stock.out) {
        let before = rest.clone();
        if !rest.any(|ours| ours.starts_with(&line)) {
            rest = before;
            lacks.push(line);
        }
    }
    lacks
}

/// Tells where ours does not have what the stock's has.
fn within(stock: &Value, ours: &Value, at: &str, lacks: &mut Vec<String>) {
    match (stock, ours) {
        (Value::Object(stock), Value::Object(ours)) => {
            for (name, value) in stock {
                within(value, ours.get(name).unwrap_or(&Value::Null), &format!("{at}.{name}"), lacks);
            }
        }
        (Value::Array(stock), Value::Array(ours)) if stock.len() == ours.len() => {
            for (n, (stock, ours)) in stock.iter().zip(ours).enumerate() {
                within(stock, ours, &format!("{at}[{n}]"), lacks);
            }
        }
        _ if stock == ours => {}
        _ => lacks.push(format!("{at}: {stock}, and ours: {ours}")),
    }
}

/// The value without what says nothing.
fn meant(value: Value) -> Value {
    let says = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        Value::Bool(true) => true,
    };
    match value {
        Value::Array(all) => all.into_iter().map(meant).collect(),
        Value::Object(all) => {
            all.into_iter().map(|(name, value)| (name, meant(value))).filter(|(_, value)| says(value)).collect()
        }
        other => other,
    }
}

/// The lines that say something, with one blank between words, and without what passes between two questions.
fn lines(text: &str) -> Vec<String> {
    const PASSES: &[(&str, &str)] = &[
        // Ages and measurements. A line of sizes alone is what a task used at that moment.
        (r"^[\d.]+ ([KMGT]iB|B)( [\d.]+ ([KMGT]iB|B))+$", "SIZES"),
        (r"(\d+(d|h|ms|m|s))+ (ago|from now)", "AGE"),
        (r"\b[\d.]+(/[\d.]+ (MHz|[KMGT]iB|B))", "USED$1"),
        (r"\b[\d.]+ ([KMGT]iB|B)(/[\d.]+ ([KMGT]iB|B))", "USED$2"),
        // The disk that a node has to give is what was free when its agent started.
        (r"^(USED/\S+ MHz USED/\S+ \SiB) USED/\S+ \SiB$", "$1 FREE"),
        (r"[\d.]+%", "PERCENT"),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( \+0000 UTC|Z)", "TIME"),
        (r"^(last_heartbeat|Uptime|Available|Used|Free|Inodes Percent) = .*", "$1"),
        // Counters of the server: its loops go on.
        (r"^(applied_index|commit_index|last_log_index|commits|syncs|bytes_written) = .*", "$1"),
        // What a program calls itself.
        (r"\bnomad\b", "drover"),
    ];
    let passes: Vec<(Regex, &str)> =
        PASSES.iter().filter_map(|(found, put)| Some((Regex::new(found).ok()?, *put))).collect();
    // A map of Go has another order each time.
    let sorted = |word: &str| {
        let mut pairs: Vec<&str> = word.split(',').collect();
        if pairs.len() > 1 && pairs.iter().all(|pair| pair.contains([':', '='])) {
            pairs.sort_unstable();
        }
        pairs.join(",")
    };
    let squeezed = text.lines().map(|line| line.split_whitespace().map(sorted).collect::<Vec<_>>().join(" "));
    squeezed
        .filter(|line| !line.is_empty())
        .map(|line| passes.iter().fold(line, |line, (found, put)| found.replace_all(&line, *put).into_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(out: &str) -> Printed {
        Printed { code: 0, out: out.to_owned(), err: String::new() }
    }

    #[test]
    fn we_may_say_more_and_not_less() {
        let lacks = |stock: &str, ours: &str| missing(&printed(stock), &printed(ours));
        assert!(lacks("ID  Status\na   running\n", "ID   Status   Name\n\nNote\na    running  x\n").is_empty());
        assert_eq!(lacks("a  b\nc\n", "c\na b\n"), ["c"], "in the same order");
        assert_eq!(lacks("ID  Type\n", "ID  Namespace  Type\n"), ["ID Type"]);
        assert!(lacks("5m3s ago  3/50 MHz  1.5 MiB/32 MiB", "5m4s ago  17/50 MHz  12 MiB/32 MiB").is_empty());
        assert_eq!(lacks("3/50 MHz", "3/60 MHz"), ["USED/50 MHz"]);
        let stats = |index| format!("raft\n  applied_index = {index}\n  num_peers = 0\n  last_log_index = {index}\n");
        assert!(lacks(&stats(40), &stats(41)).is_empty());
        assert_eq!(lacks(&stats(40), "raft\n  num_peers = 0\n"), ["applied_index", "last_log_index"]);
        assert!(lacks("0 B  432 KiB  3.3 MiB", "0 B  436 KiB  3.2 MiB").is_empty());
        let node = |memory, disk| format!("4/5198 MHz  84 MiB/{memory} GiB  600 MiB/{disk} GiB\n");
        assert!(lacks(&node(24, 36), &node(24, 37)).is_empty());
        assert_eq!(lacks(&node(24, 36), &node(25, 36)), ["USED/5198 MHz USED/24 GiB FREE"]);
    }

    #[test]
    fn json_means_the_same_or_does_not() {
        let lacks = |stock: &str, ours: &str| missing(&printed(stock), &printed(ours)).len();
        assert_eq!(lacks(r#"{"a": 1, "b": null, "c": []}"#, r#"{"c": {}, "a": 1}"#), 0);
        assert_eq!(lacks(r#"{"a": 1}"#, r#"{"a": 2}"#), 1);
        assert_eq!(lacks(r#"[{"a": 1}]"#, r#"[{"a": 1, "b": 2}]"#), 0);
        assert_eq!(lacks(r#"[{"a": 1}]"#, r#"[{"a": 1}, {"b": 2}]"#), 1);
    }
}
