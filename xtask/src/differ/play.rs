//! One scenario on both systems at once: each step happens on both, both settle, what is seen is compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;
use serde_json::{Map, Value, json};

use super::{
    health::Health,
    lists, normal,
    observe::{Seen, is_live, short_name},
    scenario::{Act, Look, Scenario, Step, Until},
    settle,
    system::System,
    tree::{self, Difference},
};
use crate::local::until;

/// Nobody has it.
const NO_ALLOCATION: &str = "00000000-0000-0000-0000-00000000dead";

/// The answer to what happens to an allocation or a node that is not there.
const NOTHING_THERE: &str = "there is none";

/// Both are asked so often.
const POLL: Duration = Duration::from_millis(300);
/// A step that changes nothing is believed after this long.
const NOTHING: Duration = Duration::from_millis(2_500);
/// What differs may become the same within this time after both have settled.
const PATIENCE: Duration = Duration::from_secs(15);
/// A step takes at most this long.
const BOUND: Duration = Duration::from_secs(75);

/// A system as one scenario sees it.
struct Side<'a> {
    system: &'a System,
    /// Nodes whose agents were killed: name and id.
    away: BTreeMap<String, String>,
    drained: Option<String>,
    /// Nodes that were drained at some time.
    drains: BTreeSet<String>,
    touched: Vec<String>,
    /// Further jobs of the scenario.
    others: Vec<String>,
    /// Why it has refused something last.
    refusal: String,
    seen: Seen,
}

/// Plays a scenario in a lane, for the so many-th time; what differs, each difference once.
pub(super) fn play(scenario: &Scenario, lane: &str, systems: [&System; 2], time: usize) -> Result<Vec<Difference>> {
    // What is left of the job of an earlier time is none of this one's.
    let job = if time == 0 { scenario.name.clone() } else { format!("{}-again-{time}", scenario.name) };
    let side = |system| Side {
        system,
        away: BTreeMap::new(),
        drained: None,
        drains: BTreeSet::new(),
        touched: Vec::new(),
        others: Vec::new(),
        refusal: String::new(),
        seen: Seen::default(),
    };
    let mut sides = systems.map(side);
    let health = if uses_health(scenario) { Some(Health::start()?) } else { None };
    let mut told = BTreeSet::new();
    let mut found = Vec::new();
    let mut result = Ok(());
    for (n, step) in scenario.steps.iter().enumerate() {
        let label = format!("{} {}", n + 1, step.act.label());
        let news = |trees: &[Value; 2]| {
            let mut differences = tree::compare(&trees[0], &trees[1]).into_iter();
            differences.any(|d| {
                let known = told.contains(&(d.path.clone(), d.stock.clone(), d.ours.clone()));
                let placed = Difference { path: format!("{label}/{}", d.path), ..d };
                !known && lists::explain(&scenario.name, &found, &placed).is_none()
            })
        };
        match play_step((scenario, &job), step, lane, &mut sides, health.as_ref(), news).with_context(|| label.clone())
        {
            Ok([stock, ours]) => {
                let parted = stock.get("job").is_none() && step.until != Until::Quiet;
                for mut difference in tree::compare(&stock, &ours) {
                    if difference.path.starts_with("answer") {
                        for (answer, side) in [&mut difference.stock, &mut difference.ours].into_iter().zip(&sides) {
                            if let Some(text) =
                                answer.as_mut().filter(|text| difference.path == "answer/refused" && *text == "true")
                            {
                                text.push_str(&format!(" ({})", side.refusal));
                            }
                        }
                    }
                    if told.insert((difference.path.clone(), difference.stock.clone(), difference.ours.clone())) {
                        found.push(Difference { path: format!("{label}/{}", difference.path), ..difference });
                    }
                }
                if parted {
                    break;
                }
            }
            Err(error) => {
                let why = sides
                    .each_ref()
                    .map(|side| format!("{} last refused: {}", side.system.kind.name(), side.refusal))
                    .join("; ");
                result = Err(error.context(why));
                break;
            }
        }
    }
    let cleaned: Result<()> = sides.iter_mut().try_for_each(|side| side.clean_up(&job));
    result.and(cleaned).map(|()| found)
}

fn uses_health(scenario: &Scenario) -> bool {
    scenario.steps.iter().any(|step| matches!(&step.act, Act::Run(hcl) if hcl.contains("HEALTH")))
}

fn play_step(
    (scenario, job): (&Scenario, &str),
    step: &Step,
    lane: &str,
    sides: &mut [Side<'_>; 2],
    health: Option<&Health>,
    // Whether something differs that was not told before and stands on no list.
    news: impl Fn(&[Value; 2]) -> bool,
) -> Result<[Value; 2]> {
    let nodes = scenario.nodes_count;
    let before = [sides[0].tree(nodes), sides[1].tree(nodes)];
    let mut answers = [Value::Null, Value::Null];
    for (side, answer) in sides.iter_mut().zip(&mut answers) {
        *answer = side.act(&step.act, job, lane, health)?;
    }
    // Where one alone refuses, they part: that is the difference, and nothing is waited for.
    if (answers[0]["refused"] == true) != (answers[1]["refused"] == true) {
        return Ok(answers.map(|answer| json!({ "answer": answer })));
    }
    let begun = Instant::now();
    let mut last = before.clone();
    let mut same = 0;
    let mut settled_since: Option<Instant> = None;
    let (mut trees, reasons) = loop {
        let mut reasons = [None, None];
        for (side, reason) in sides.iter_mut().zip(&mut reasons) {
            side.seen = Seen::ask(side.system, job)?;
            *reason = side.on_its_way(step.until)?;
            for look in &step.looks {
                if let (Look::Job(other), None) = (look, &*reason) {
                    *reason = side.other_on_its_way(&format!("{job}-{other}"))?;
                }
            }
        }
        let trees = [sides[0].tree(nodes), sides[1].tree(nodes)];
        same = if trees == last { same + 1 } else { 0 };
        last = trees.clone();
        let elapsed = begun.elapsed();
        if let Until::Seconds(seconds) = step.until {
            if elapsed.as_secs_f64() >= seconds && (trees[0] == trees[1] || elapsed.as_secs_f64() >= seconds + 2.0) {
                break (looked(step, job, sides, &trees)?, [None, None]);
            }
        } else if reasons.iter().all(Option::is_none) {
            let since = *settled_since.get_or_insert_with(Instant::now);
            let nothing = if answers.iter().all(|a| a["refused"] == true) { POLL } else { NOTHING };
            let happened = (trees[0] != before[0] && trees[1] != before[1]) || elapsed > nothing;
            let late = since.elapsed() > PATIENCE;
            if happened && same >= 3 && (late || !news(&trees)) {
                // What is looked at besides may come later than the job's own state: a check's result, a line of a log.
                match looked(step, job, sides, &trees) {
                    Ok(whole) if late || !news(&whole) => break (whole, reasons),
                    Err(error) if late => return Err(error),
                    _ => {}
                }
            }
        } else {
            settled_since = None;
        }
        if elapsed > BOUND {
            // Those of a seed may come to where nothing ends on either: what is seen is compared all the same.
            if let ([Some(stock), Some(ours)], false) = (&reasons, scenario.is_random()) {
                bail!("neither has settled: on the stock there is {stock}, on ours {ours}");
            }
            let both = reasons.iter().all(Option::is_some);
            break (looked(step, job, sides, &trees)?, if both { [None, None] } else { reasons });
        }
        std::thread::sleep(POLL);
    };
    for ((tree, answer), reason) in trees.iter_mut().zip(answers).zip(reasons) {
        tree["answer"] = answer;
        tree["unsettled"] = reason.map_or(Value::Null, Value::String);
    }
    Ok(trees)
}

/// The trees with what the step looks at besides.
fn looked(step: &Step, job: &str, sides: &mut [Side<'_>; 2], trees: &[Value; 2]) -> Result<[Value; 2]> {
    let mut trees = trees.clone();
    for (side, tree) in sides.iter_mut().zip(&mut trees) {
        for look in &step.looks {
            let (name, what) = side.look(look, job)?;
            tree[name] = what;
        }
    }
    Ok(trees)
}

impl Side<'_> {
    fn tree(&self, nodes: bool) -> Value {
        self.seen.tree(self.system.known(), nodes)
    }

    fn on_its_way(&self, wanted: Until) -> Result<Option<String>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let away = self.away.values().cloned().collect();
        if !settle::is_met(wanted, &self.seen) {
            return Ok(Some(format!("not yet {wanted:?}")));
        }
        if let Some(reason) = settle::on_its_way(&self.seen, &away, now) {
            return Ok(Some(reason));
        }
        if let Some(node) = &self.drained {
            let node = self.node(node)?;
            if !node["DrainStrategy"].is_null() {
                return Ok(Some("a drain".into()));
            }
        }
        Ok(None)
    }

    fn other_on_its_way(&self, job: &str) -> Result<Option<String>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(settle::on_its_way(&Seen::ask(self.system, job)?, &self.away.values().cloned().collect(), now))
    }

    fn node(&self, name: &str) -> Result<Value> {
        self.system.get(&format!("/v1/node/{}", self.system.node_id(name)?))
    }

    fn newest(&self, alloc: &str) -> Result<&Value> {
        self.seen.newest(alloc).with_context(|| format!("{}: there is no allocation {alloc}", self.system.kind.name()))
    }

    /// None: there is no such allocation, as jobs of the dice may have it.
    fn node_of(&self, alloc: &str) -> Option<String> {
        self.seen.newest(alloc)?["NodeName"].as_str().map(str::to_owned)
    }

    /// Words of paths and bodies.
    fn filled(&self, text: &str, job: &str) -> String {
        let id = |value: Option<&Value>| value.and_then(|v| v["ID"].as_str()).unwrap_or("none").to_owned();
        let allocs = self.seen.everything();
        let live = allocs.filter(|a| a["DesiredStatus"] == "run" && is_live(a)).last();
        let alloc = live.or_else(|| self.seen.allocs.last());
        let text = text.replace("DEPLOYMENT", &id(self.seen.deployments.last())).replace("ALLOC", &id(alloc));
        text.replace("JOB", job)
    }

    /// Does it; what the answer said, as far as it is compared.
    fn act(&mut self, act: &Act, job: &str, lane: &str, health: Option<&Health>) -> Result<Value> {
        match act {
            Act::Run(hcl) => self.register(hcl, job, lane, health, &json!({})),
            Act::RunWith(hcl, fields) => self.register(hcl, job, lane, health, fields),
            Act::Plan(hcl) => {
                let parsed = match self.parsed(hcl, job, lane, health)? {
                    Ok(parsed) => parsed,
                    Err(refused) => return Ok(refused),
                };
                let (status, answer, text) = self.system.ask(
                    "POST",
                    &format!("/v1/job/{job}/plan"),
                    Some(&json!({"Job": parsed, "Diff": false})),
                )?;
                Ok(if status == 200 { plan(&answer) } else { self.refused(status, &text) })
            }
            Act::Stop { purge } => self.request("DELETE", &format!("/v1/job/{job}?purge={purge}"), None),
            Act::Scale(group, n) => {
                let body = json!({"Count": n, "Target": {"Group": group}, "Message": "asked"});
                self.request("POST", &format!("/v1/job/{job}/scale"), Some(&body))
            }
            Act::Revert(version) => {
                let body = json!({"JobID": job, "JobVersion": version});
                self.request("POST", &format!("/v1/job/{job}/revert"), Some(&body))
            }
            Act::Dispatch { payload, meta } => {
                let payload = (!payload.is_empty()).then_some(*payload);
                self.request(
                    "POST",
                    &format!("/v1/job/{job}/dispatch"),
                    Some(&json!({"Payload": payload, "Meta": meta})),
                )
            }
            Act::Tell(alloc, task, code) => {
                let alloc = self.newest(alloc)?.clone();
                self.tell(&alloc, task, *code)?;
                Ok(Value::Null)
            }
            Act::TellAll(name, task, code) => {
                let runs = |a: &&Value| a["ClientStatus"] == "running" && a["TaskStates"][*task]["State"] == "running";
                let all: Vec<Value> =
                    self.seen.allocs.iter().filter(|a| short_name(a) == *name).filter(runs).cloned().collect();
                all.iter().try_for_each(|alloc| self.tell(alloc, task, *code))?;
                Ok(json!(all.len()))
            }
            Act::Health(good) => {
                health.context("the job has no check of HEALTH")?.set(*good);
                Ok(Value::Null)
            }
            Act::NodeDown(alloc) => {
                let Some(name) = self.node_of(alloc) else { return Ok(json!(NOTHING_THERE)) };
                self.system.agent(&name)?.crash()?;
                self.away.insert(name.clone(), self.system.node_id(&name)?.to_owned());
                self.touched.push(name.clone());
                until("the node is missed", BOUND, || {
                    std::thread::sleep(POLL);
                    Ok((self.node(&name)?["Status"] != "ready").then_some(()))
                })?;
                Ok(Value::Null)
            }
            Act::NodeUp => self.bring_back().map(|()| Value::Null),
            Act::Drain(alloc, spec) => {
                let Some(name) = self.node_of(alloc) else { return Ok(json!(NOTHING_THERE)) };
                let path = format!("/v1/node/{}/drain", self.system.node_id(&name)?);
                self.drained = Some(name.clone());
                self.drains.insert(name.clone());
                self.touched.push(name);
                self.request("PUT", &path, Some(&json!({"DrainSpec": spec})))
            }
            Act::Undrain => {
                let Some(name) = self.drained.take() else { return Ok(json!(NOTHING_THERE)) };
                let path = format!("/v1/node/{}/drain", self.system.node_id(&name)?);
                self.request("PUT", &path, Some(&json!({"DrainSpec": null, "MarkEligible": true})))
            }
            Act::Eligible(alloc, eligible) => {
                let name = match self.touched.last() {
                    Some(name) if *eligible => name.clone(),
                    _ => match self.node_of(alloc) {
                        Some(name) => name,
                        None => return Ok(json!(NOTHING_THERE)),
                    },
                };
                let path = format!("/v1/node/{}/eligibility", self.system.node_id(&name)?);
                self.touched.push(name);
                let word = if *eligible { "eligible" } else { "ineligible" };
                self.request("PUT", &path, Some(&json!({"Eligibility": word})))
            }
            Act::Request(method, path, body) => {
                let body = (!body.is_null()).then(|| self.filled(&body.to_string(), job));
                let body = body.map(|text| serde_json::from_str::<Value>(&text)).transpose()?;
                self.request(method, &self.filled(path, job), body.as_ref())
            }
            Act::Alloc(alloc, method, path, body) => {
                // A job of the dice may have none: both are asked of one that does not exist.
                let id =
                    self.seen.newest(alloc).and_then(|found| found["ID"].as_str()).unwrap_or(NO_ALLOCATION).to_owned();
                self.request(method, &path.replace("ALLOC", &id), (!body.is_null()).then_some(body))
            }
            Act::Pass => Ok(Value::Null),
        }
    }

    /// A request; whether it was taken.
    fn request(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let (status, _, text) = self.system.ask(method, path, body)?;
        Ok(if status == 200 { json!("taken") } else { self.refused(status, &text) })
    }

    /// A refusal. The codes of the stock are not to be relied on, and the sentences are our own: they are told where
    /// one system alone refuses.
    fn refused(&mut self, status: u16, text: &str) -> Value {
        self.refusal = format!("{status}: {}", text.trim());
        json!({"refused": true})
    }

    fn parsed(&mut self, hcl: &str, job: &str, lane: &str, health: Option<&Health>) -> Result<Result<Value, Value>> {
        let hcl = hcl.replace("JOB", job).replace("HEALTH", &health.map_or(0, Health::port).to_string());
        let (status, mut parsed, text) =
            self.system.ask("POST", "/v1/jobs/parse", Some(&json!({"JobHCL": hcl, "Canonicalize": false})))?;
        if status != 200 {
            return Ok(Err(self.refused(status, &text)));
        }
        if parsed["Datacenters"].as_array().is_none_or(|d| d.is_empty() || d[0] == "*") {
            parsed["Datacenters"] = json!([lane]);
        }
        Ok(Ok(parsed))
    }

    fn register(&mut self, hcl: &str, job: &str, lane: &str, health: Option<&Health>, fields: &Value) -> Result<Value> {
        let parsed = match self.parsed(hcl, job, lane, health)? {
            Ok(parsed) => parsed,
            Err(refused) => return Ok(refused),
        };
        let id = parsed["ID"].as_str().unwrap_or_default().to_owned();
        if id != job && !self.others.contains(&id) {
            self.others.push(id);
        }
        let mut body = json!({ "Job": parsed });
        for (name, value) in fields.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let (status, answer, text) = self.system.ask("POST", "/v1/jobs", Some(&body))?;
        if status != 200 {
            return Ok(self.refused(status, &text));
        }
        let warns = answer["Warnings"].as_str().is_some_and(|w| !w.is_empty());
        Ok(json!({"taken": true, "warns": warns}))
    }

    /// Tells a task to end with a code, as soon as it listens.
    fn tell(&self, alloc: &Value, task: &str, code: i32) -> Result<()> {
        let (node, id) = (alloc["NodeName"].as_str().unwrap_or_default(), alloc["ID"].as_str().unwrap_or_default());
        let pipe = self.system.alloc_dir(node, id)?.join(task).join("local/tell");
        let open = || {
            OpenOptions::new().write(true).custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0)).open(&pipe)
        };
        let mut pipe = until(&format!("{}: task {task} listens", self.system.kind.name()), BOUND, || {
            // A pipe that nobody reads refuses to be opened.
            Ok(Some(open()?))
        })?;
        pipe.write_all(format!("{code}\n").as_bytes())?;
        Ok(())
    }

    fn look(&mut self, look: &Look, job: &str) -> Result<(String, Value)> {
        let system = self.system;
        let known = system.known();
        match look {
            Look::Get(path) => {
                let (status, answer, text) = self.system.ask("GET", &self.filled(path, job), None)?;
                let name = format!("GET {}", path.trim_start_matches("/v1/").replace('/', " "));
                let what = if status == 200 { normal::answer(&answer, known) } else { self.refused(status, &text) };
                Ok((name, what))
            }
            Look::Log { alloc, task, stream, sorted } => {
                let id = self.newest(alloc)?["ID"].as_str().unwrap_or_default().to_owned();
                let path = format!("/v1/client/fs/logs/{id}?task={task}&type={stream}&plain=true");
                let (status, _, text) = self.system.ask("GET", &path, None)?;
                ensure!(status == 200, "{}: {path} answered {status}: {text}", self.system.kind.name());
                let mut lines: Vec<String> = text.lines().map(|line| normal::text(line, known)).collect();
                if *sorted {
                    lines.sort();
                }
                Ok((format!("{stream} of {alloc} {task}"), json!(lines)))
            }
            Look::Job(other) => {
                let seen = Seen::ask(self.system, &format!("{job}-{other}"))?;
                Ok((format!("job {other}"), seen.tree(known, false)))
            }
            Look::Nodes => {
                let mut nodes = Map::new();
                // On which node an allocation of the dice was is chance, and so is what has happened to that node
                // before.
                let random = job.starts_with("random-");
                let from = if random { self.touched.len().saturating_sub(1) } else { 0 };
                let mut named: Vec<&String> = Vec::new();
                for name in &self.touched[from..] {
                    if !named.contains(&name) {
                        named.push(name);
                    }
                }
                for (n, name) in named.into_iter().enumerate() {
                    let node = self.node(name)?;
                    // What the scenario before has left is none of this one's.
                    let last = if self.drains.contains(name) && (!random || self.drained.as_ref() == Some(name)) {
                        node["LastDrain"]["Status"].clone()
                    } else {
                        Value::Null
                    };
                    let tree = json!({
                        "Status": node["Status"],
                        "SchedulingEligibility": node["SchedulingEligibility"],
                        "Drain": !node["DrainStrategy"].is_null(),
                        "LastDrain": last,
                    });
                    nodes.insert(format!("touched {n}"), tree);
                }
                Ok(("nodes".into(), Value::Object(nodes)))
            }
        }
    }

    fn bring_back(&mut self) -> Result<()> {
        for name in std::mem::take(&mut self.away).into_keys() {
            self.system.agent(&name)?.restart()?;
            until("the node is back", BOUND, || {
                std::thread::sleep(POLL);
                let node = self.node(&name)?;
                Ok((node["Status"] == "ready").then_some(()))
            })
            .with_context(|| self.system.agent(&name).map(|a| a.log_tail()).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Leaves the system as it was: no work, all nodes up and eligible.
    fn clean_up(&mut self, job: &str) -> Result<()> {
        self.bring_back()?;
        for name in std::mem::take(&mut self.touched) {
            let id = self.system.node_id(&name)?;
            if self.drains.contains(&name) {
                let drain = json!({"DrainSpec": null, "MarkEligible": true});
                self.system.ask("PUT", &format!("/v1/node/{id}/drain"), Some(&drain))?;
            }
            self.system.ask("PUT", &format!("/v1/node/{id}/eligibility"), Some(&json!({"Eligibility": "eligible"})))?;
        }
        let mut jobs = self.others.clone();
        jobs.push(job.to_owned());
        jobs.iter().try_for_each(|job| self.remove(job))
    }

    fn remove(&self, job: &str) -> Result<()> {
        let seen = Seen::ask(self.system, job)?;
        for child in &seen.children {
            self.system.ask("DELETE", &format!("/v1/job/{}", child.job["ID"].as_str().unwrap_or_default()), None)?;
        }
        self.system.ask("DELETE", &format!("/v1/job/{job}"), None)?;
        until(&format!("{}: {job} is gone", self.system.kind.name()), BOUND, || {
            std::thread::sleep(POLL);
            let seen = Seen::ask(self.system, job)?;
            Ok((!seen.everything().any(is_live)).then_some(()))
        })?;
        for child in &seen.children {
            self.system.ask(
                "DELETE",
                &format!("/v1/job/{}?purge=true", child.job["ID"].as_str().unwrap_or_default()),
                None,
            )?;
        }
        self.system.ask("DELETE", &format!("/v1/job/{job}?purge=true"), None)?;
        Ok(())
    }
}

/// What a plan promises.
fn plan(answer: &Value) -> Value {
    let mut failed = Map::new();
    for (group, metric) in answer["FailedTGAllocs"].as_object().into_iter().flatten() {
        let keys =
            |name: &str| metric[name].as_object().map(|o| o.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
        let what = json!({
            "ConstraintFiltered": keys("ConstraintFiltered"),
            "DimensionExhausted": keys("DimensionExhausted"),
        });
        failed.insert(group.clone(), what);
    }
    json!({"updates": normal::answer(&answer["Annotations"]["DesiredTGUpdates"], &[]), "failed": failed})
}
