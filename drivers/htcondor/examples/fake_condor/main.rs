//! Of the driver's tests: an HTCondor that is a directory (`CONDOR_CONFIG`) and processes of this machine. The first
//! argument is the command. It says what HTCondor 23 says on Debian trixie, word by word where the driver reads words.
//!
//! Files in the directory are what a test wants: `down` (no schedd), `no_machines` (jobs stay idle), `slow_ends`
//! (children outlive the main process for a while), `forgotten_run_on` (what leaves the queue does not end), and for a
//! command NAME `NAME.hangs`, `NAME.says` (it prints that and ends well), `NAME.fails` (it prints that as an error) and
//! `NAME.loses` (it is done, and the answer is lost). `fake_*` are what happens to jobs: see [`happens`].

mod condition;
mod queue;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use condition::{Expression, Is, attribute};
use queue::{Job, Jobs, Pool, now};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value};

/// What the driver asked and the fake does not know.
#[derive(Debug)]
pub(crate) struct Loud(pub(crate) String);

/// Exit code and both outputs.
type Said = (u8, String, String);

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    let (code, out, err) = said(&command, &args).unwrap_or_else(|why| (1, String::new(), format!("{}\n", why.0)));
    let _ = std::io::stdout().write_all(out.as_bytes());
    let _ = std::io::stderr().write_all(err.as_bytes());
    ExitCode::from(code)
}

fn said(command: &str, args: &[String]) -> Result<Said, Loud> {
    if command == "condor_version" {
        let text = "$CondorVersion: 23.9.6 2024-08-08 BuildID: Debian-23.9.6+dfsg-2.1 $\n\
            $CondorPlatform: X86_64-Debian_13 $\n";
        return Ok((0, text.to_owned(), String::new()));
    }
    if args.iter().any(|arg| arg == "-help") {
        return Ok((0, format!("Usage: {command} [options]\n"), String::new()));
    }
    let dir = std::env::var_os("CONDOR_CONFIG").ok_or_else(|| Loud("CONDOR_CONFIG is not set".to_owned()))?;
    let pool = Pool(PathBuf::from(dir));
    if command == "fake_run" {
        let id = args.first().and_then(|id| id.parse().ok()).ok_or_else(|| Loud("fake_run ID".to_owned()))?;
        return run(&pool, id).map(|()| (0, String::new(), String::new()));
    }
    if command.starts_with("fake_") {
        return happens(&pool, command, args);
    }
    if let Ok(mut calls) = fs::OpenOptions::new().append(true).open(pool.0.join("calls")) {
        let _ = writeln!(calls, "{command}");
    }
    if pool.switch(&format!("{command}.hangs")).is_some() {
        std::thread::sleep(Duration::from_secs(600));
    }
    if pool.switch("down").is_some() {
        return Ok((1, String::new(), down(command, args)));
    }
    if let Some(text) = pool.switch(&format!("{command}.says")) {
        return Ok((0, text, String::new()));
    }
    if let Some(text) = pool.switch(&format!("{command}.fails")) {
        return Ok((1, String::new(), text));
    }
    let done = match command {
        "condor_submit" => submit(&pool, args)?,
        "condor_q" => list(&pool, args)?,
        "condor_qedit" => edit(&pool, args)?,
        "condor_release" | "condor_rm" => act(&pool, command, args)?,
        _ => return Err(Loud(format!("the fake has no command {command}"))),
    };
    match pool.switch(&format!("{command}.loses")) {
        Some(_) => Ok((1, String::new(), down(command, args))),
        None => Ok(done),
    }
}

/// What commands say when they reach no schedd.
fn down(command: &str, args: &[String]) -> String {
    let at = "<127.0.0.1:9618?addrs=127.0.0.1-9618&alias=localhost>";
    match command {
        "condor_q" => {
            format!("\n-- Failed to fetch ads from: {at} : localhost\nCEDAR:6001:Failed to connect to {at}\n")
        }
        "condor_qedit" => format!("Failed to connect to queue manager {at}\n"),
        "condor_submit" => {
            format!("\nERROR: Failed to connect to local queue manager\nCEDAR:6001:Failed to connect to {at}\n")
        }
        _ => {
            let verb = if command == "condor_rm" { "remove" } else { "release" };
            let condition = option(args, "-constraint").unwrap_or_default();
            format!(
                "DCSchedd::actOnJobs:6001:Failed to connect to schedd\n\
                Couldn't find/{verb} all jobs matching constraint ({condition})\n"
            )
        }
    }
}

fn option(args: &[String], name: &str) -> Option<String> {
    let at = args.iter().position(|arg| arg == name)?;
    args.get(at + 1).cloned()
}

/// The arguments that are neither among these flags nor these options with a value.
fn others(args: &[String], flags: &[&str], valued: &[&str]) -> Result<Vec<String>, Loud> {
    let (mut rest, mut all) = (Vec::new(), args.iter());
    while let Some(arg) = all.next() {
        if arg == "-name" || arg == "-pool" || valued.contains(&arg.as_str()) {
            all.next().ok_or_else(|| Loud(format!("{arg} has no value")))?;
        } else if arg.starts_with('-') && arg != "-" {
            if !flags.contains(&arg.as_str()) {
                return Err(Loud(format!("the fake does not know {arg}")));
            }
        } else {
            rest.push(arg.clone());
        }
    }
    Ok(rest)
}

/// Who calls.
fn user() -> String {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = entries.find(|fields| fields.get(2) == Some(&uid.as_str()));
    found.map_or(uid.clone(), |fields| fields[0].to_owned())
}

fn may_act(job: &Job) -> bool {
    rustix::process::geteuid().is_root() || job.text("Owner") == user()
}

fn submit(pool: &Pool, args: &[String]) -> Result<Said, Loud> {
    let from = others(args, &["-terse"], &[])?;
    if from != ["-"] {
        return Err(Loud(format!("the fake reads a description from its input, and not from {from:?}")));
    }
    let owner = user();
    if owner == "root" {
        let why = "\nERROR: Submitting jobs as user/group 0 (root) is not allowed for security reasons.\n";
        return Ok((1, String::new(), why.to_owned()));
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|why| Loud(why.to_string()))?;
    let vars: Vec<String> = std::env::vars().map(|(name, value)| format!("{name}={value}\n")).collect();
    let _ = fs::write(pool.0.join("submit.env"), vars.concat());
    let id = pool.with(|jobs| {
        Ok(describe(&text)?.map(|mut job| {
            job.set("Owner", owner.clone());
            job.set("User", format!("{owner}@localhost"));
            jobs.add(job)
        }))
    })?;
    Ok(match id {
        Ok(id) => (0, format!("{id}.0 - {id}.0\n"), String::new()),
        Err(why) => (1, String::new(), why),
    })
}

/// A description as a job, or as what `condor_submit` says of it. `$(Cluster)` is filled in when the job starts.
fn describe(text: &str) -> Result<Result<Job, String>, Loud> {
    let mut job = Job::default();
    let (mut queued, mut all) = (false, BTreeMap::new());
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        if line.trim() == "queue" {
            queued = true;
            continue;
        }
        let name_and_value = line.split_once('=').filter(|(name, _)| !name.trim().contains(char::is_whitespace));
        let Some((name, value)) = name_and_value else {
            let line = at + 1;
            return Ok(Err(format!(
                "\nERROR: on Line {line} of submit file: \n\nERROR: Failed to parse command file (line {line}).\n"
            )));
        };
        all.insert(name.trim().to_owned(), macros(value.trim())?);
    }
    if !queued {
        return Ok(Err("\nERROR: no queue statement\n".to_owned()));
    }
    let mut take = |name: &str| all.remove(name).unwrap_or_default();
    job.program = take("executable");
    job.arguments = take("arguments").split_whitespace().map(str::to_owned).collect();
    (job.dir, job.output, job.error) = (take("initialdir"), take("output"), take("error"));
    (job.leave_in_queue, job.periodic_remove) = (take("leave_in_queue"), take("periodic_remove"));
    job.vacate_seconds = take("job_max_vacate_time").parse().unwrap_or(600);
    let hold = take("hold");
    for (name, wanted) in [("universe", "vanilla"), ("transfer_executable", "False"), ("should_transfer_files", "NO")] {
        let is = take(name);
        if is != wanted {
            return Err(Loud(format!("the fake wants {name} = {wanted}, and not {is:?}")));
        }
    }
    for (name, what) in [("requirements", "Requirements"), ("rank", "Rank")] {
        let is = take(name);
        if !is.is_empty() && Expression::read(&is).is_err() {
            let why = format!("\nERROR: Parse error in expression: \n\t{what} = {is}\n\t");
            return Ok(Err(why + "\n\nERROR: Failed to parse command file (line 1).\n"));
        }
        job.set(what, is);
    }
    for name in ["request_cpus", "request_memory", "request_disk", "request_gpus", "accounting_group"] {
        if let Some(is) = all.remove(name) {
            job.set(name, is);
        }
    }
    for (name, is) in all {
        let Some(name) = name.strip_prefix("My.") else {
            return Err(Loud(format!("the fake does not know {name} = {is}")));
        };
        job.set(name, Expression::read(&is)?.value(&Map::new(), now())?.json());
    }
    job.set("QDate", now());
    job.set("JobRunCount", 0);
    job.set("NumShadowStarts", 0);
    job.become_status(if hold == "True" { 5 } else { 1 });
    if hold == "True" {
        job.set("HoldReasonCode", 15);
        job.set("HoldReason", "submitted on hold at user's request");
    }
    Ok(Ok(job))
}

fn macros(value: &str) -> Result<String, Loud> {
    let (mut all, mut rest) = (String::new(), value);
    while let Some((before, after)) = rest.split_once("$(") {
        let (name, after) = after.split_once(')').ok_or_else(|| Loud(format!("a macro is open: {value}")))?;
        all.push_str(before);
        match name {
            "DOLLAR" => all.push('$'),
            "Cluster" | "ClusterId" => all.push_str("\u{1}cluster"),
            other => return Err(Loud(format!("the fake has no macro {other}"))),
        }
        rest = after;
    }
    Ok(all + rest)
}

fn list(pool: &Pool, args: &[String]) -> Result<Said, Loud> {
    if let Some(other) = others(args, &["-allusers", "-json"], &["-constraint", "-attributes"])?.first() {
        return Err(Loud(format!("the fake does not know what {other} is to condor_q")));
    }
    let text = option(args, "-constraint").unwrap_or_else(|| "true".to_owned());
    let Ok(condition) = Expression::read(&text) else {
        return Ok((1, String::new(), format!("\n-- Parse error in constraint expression \"{text}\"\n")));
    };
    let names = option(args, "-attributes").unwrap_or_default();
    let (own, all) = (user(), args.iter().any(|arg| arg == "-allusers"));
    let found = pool.with(|jobs| {
        let mut found = Vec::new();
        for job in jobs.jobs.values() {
            if (all || job.text("Owner") == own) && condition.holds(&job.ad, now())? {
                let named = names.split(',').filter_map(|name| {
                    let name = name.trim();
                    Some((name.to_owned(), attribute(&job.ad, name)?.clone()))
                });
                found.push(Value::Object(named.collect()));
            }
        }
        Ok(found)
    })?;
    if found.is_empty() {
        return Ok((0, String::new(), String::new()));
    }
    let ads: Vec<String> = found.iter().map(|ad| serde_json::to_string_pretty(ad).unwrap_or_default()).collect();
    Ok((0, format!("[\n{}\n]\n", ads.join(",\n")), String::new()))
}

fn edit(pool: &Pool, args: &[String]) -> Result<Said, Loud> {
    let text = option(args, "-constraint").ok_or_else(|| Loud("condor_qedit without -constraint".to_owned()))?;
    let condition = Expression::read(&text)?;
    let pairs = others(args, &[], &["-constraint"])?;
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(Loud(format!("condor_qedit with {pairs:?}")));
    }
    let edited = pool.with(|jobs| {
        let mut edited = 0;
        for job in jobs.jobs.values_mut() {
            if may_act(job) && condition.holds(&job.ad, now())? {
                for pair in pairs.chunks(2) {
                    let value = Expression::read(&pair[1])?.value(&job.ad, now())?;
                    job.set(&pair[0], value.json());
                }
                edited += 1;
            }
        }
        Ok(edited)
    })?;
    Ok(match edited {
        0 => {
            let first = &pairs[0];
            let why = format!("Failed to set attribute \"{first}\" by constraint: ( ({text}) )\n");
            (1, String::new(), why + "Queue transaction failed.  No attributes were set.\n")
        }
        n => {
            let line = |pair: &[String]| format!("Set attribute \"{}\" for {n} matching jobs.\n", pair[0]);
            (0, pairs.chunks(2).map(line).collect(), String::new())
        }
    })
}

fn act(pool: &Pool, command: &str, args: &[String]) -> Result<Said, Loud> {
    let text = option(args, "-constraint").ok_or_else(|| Loud(format!("{command} without -constraint")))?;
    let condition = Expression::read(&text)?;
    let rest = others(args, &["-totals"], &["-constraint", "-reason"])?;
    if !rest.is_empty() || !args.iter().any(|arg| arg == "-totals") {
        return Err(Loud(format!("{command} with {args:?}")));
    }
    let (released, done) = pool.with(|jobs| {
        let (mut released, mut done) = (Vec::new(), 0);
        for (id, job) in &mut jobs.jobs {
            // Actions have a condition of their own.
            let applies = if command == "condor_release" { job.status() == 5 } else { job.status() != 3 };
            if !(may_act(job) && applies && condition.holds(&job.ad, now())?) {
                continue;
            }
            done += 1;
            if command == "condor_release" {
                job.become_status(1);
                for name in ["HoldReason", "HoldReasonCode"] {
                    job.ad.remove(name);
                }
                job.set("ReleaseReason", format!("via condor_release (by user {})", user()));
                released.push(*id);
            } else {
                job.become_status(3);
                job.set("RemoveReason", format!("via condor_rm (by user {})", user()));
                tell_to_end(job);
            }
        }
        Ok((released, done))
    })?;
    for id in released {
        begin(pool, id)?;
    }
    let totals =
        format!("{done} Succeeded, 0 Failed, 0 Not Found, 0 Bad Status, 0 Already Done, 0 Permission Denied\n");
    if done > 0 {
        return Ok((0, totals, String::new()));
    }
    let verb = if command == "condor_rm" { "remove" } else { "release" };
    Ok((1, totals, format!("\nCouldn't find/{verb} all jobs matching constraint ({text})\n")))
}

/// The signal reaches the main process only; what is left after a while is killed.
fn tell_to_end(job: &mut Job) {
    if let Some(pid) = job.pid.and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
        job.kill_at = Some(now().saturating_add(job.vacate_seconds));
    }
}

/// Starts the shadow of a job, which outlives this command.
fn begin(pool: &Pool, id: u64) -> Result<(), Loud> {
    let failed = |why: std::io::Error| Loud(format!("the shadow cannot be started: {why}"));
    let mut command = Command::new("setsid");
    command.arg("-f").arg(std::env::current_exe().map_err(failed)?).arg("fake_run").arg(id.to_string());
    command.env("CONDOR_CONFIG", &pool.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(drop).map_err(failed)
}

/// What tests do to a job: `fake_evict`, `fake_lose` (the node: its process runs on), `fake_hold`, `fake_oom`,
/// `fake_forget` (as `condor_rm -forcex`), `fake_kill` (its processes).
fn happens(pool: &Pool, what: &str, args: &[String]) -> Result<Said, Loud> {
    let id: u64 = args.first().and_then(|id| id.parse().ok()).ok_or_else(|| Loud(format!("{what} ID")))?;
    pool.with(|jobs: &mut Jobs| {
        if what == "fake_forget" {
            return Ok(jobs.jobs.remove(&id).map(drop));
        }
        let Some(job) = jobs.jobs.get_mut(&id) else { return Ok(None) };
        match what {
            "fake_evict" => job.evicted = true,
            "fake_lose" => job.lost = true,
            "fake_kill" => {}
            "fake_hold" => {
                job.become_status(5);
                job.set("HoldReason", "via condor_hold (by user somebody)");
                job.set("HoldReasonCode", 1);
                tell_to_end(job);
            }
            "fake_oom" => {
                job.become_status(5);
                job.set("HoldReason", "Error from slot1@n1: Job has gone over cgroup memory limit of 128 megabytes.");
                job.set("HoldReasonCode", 34);
            }
            _ => return Err(Loud(format!("the fake does not know {what}"))),
        }
        Ok(Some(()))
    })?
    .ok_or_else(|| Loud(format!("there is no job {id}")))?;
    if matches!(what, "fake_evict" | "fake_oom" | "fake_kill") {
        kill_all(&of_job(pool, id));
    }
    Ok((0, String::new(), String::new()))
}

/// What each process of a job has in its environment.
fn of_job(pool: &Pool, id: u64) -> String {
    format!("FAKE_JOB={}/{id}.0", pool.0.display())
}

/// What each process of one start of it has.
fn of_start(pool: &Pool, id: u64, start: i64) -> String {
    format!("FAKE_START={}/{id}.0/{start}", pool.0.display())
}

/// Kills what has this in its environment, whatever session it is in.
fn kill_all(mark: &str) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        if let Some(pid) = pid
            && environ.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Starts the process of an idle job. `None`: it is none.
fn start(pool: &Pool, jobs: &mut Jobs, id: u64) -> Result<Option<(Child, String)>, Loud> {
    let Some(job) = jobs.jobs.get_mut(&id).filter(|job| job.status() == 1 && !job.has_host()) else {
        return Ok(None);
    };
    let failed = |why: std::io::Error| Loud(format!("the job {id} cannot be started: {why}"));
    let text = |text: &str| text.replace("\u{1}cluster", &id.to_string());
    let open = |path: &str| fs::OpenOptions::new().create(true).append(true).open(text(path)).map_err(failed);
    let mut command = Command::new("setsid");
    command.arg(text(&job.program)).args(job.arguments.iter().map(|arg| text(arg))).current_dir(text(&job.dir));
    command.env_clear().env("BATCH_SYSTEM", "HTCondor").env("_CONDOR_SLOT", "slot1");
    let starts = job.int("NumShadowStarts") + 1;
    command.envs([of_job(pool, id), of_start(pool, id, starts)].iter().filter_map(|mark| mark.split_once('=')));
    command.stdin(Stdio::null()).stdout(open(&job.output)?).stderr(open(&job.error)?);
    let child = command.spawn().map_err(failed)?;
    job.pid = i32::try_from(child.id()).ok();
    job.become_status(2);
    job.set("RemoteHost", "slot1@n1");
    job.set("JobCurrentStartDate", now());
    job.set("JobRunCount", job.int("JobRunCount") + 1);
    job.set("NumShadowStarts", starts);
    for name in ["LastRejMatchReason", "VacateReason", "VacateReasonCode"] {
        job.ad.remove(name);
    }
    Ok(Some((child, of_start(pool, id, starts))))
}

/// Whether the requirements are not false; what they ask of machines is undefined here.
fn matches(job: &Job) -> bool {
    let text = job.text("Requirements");
    text.is_empty()
        || Expression::read(text).and_then(|is| is.value(&job.ad, now())).is_ok_and(|is| is != Is::Bool(false))
}

/// The shadow of a job: starts its process, and again after an eviction, and tells the queue of its end.
fn run(pool: &Pool, id: u64) -> Result<(), Loud> {
    loop {
        let child = loop {
            match pool.switch("no_machines") {
                Some(why) => pool.with(|jobs| {
                    let idle = jobs.jobs.get_mut(&id).filter(|job| job.status() == 1);
                    Ok(idle.map(|job| job.set("LastRejMatchReason", why)))
                })?,
                // What matches no machine stays idle.
                None if pool.peek(id)?.is_some_and(|job| !matches(&job)) => None,
                None => break pool.with(|jobs| start(pool, jobs, id))?,
            };
            if pool.peek(id)?.is_none_or(|job| job.status() != 1) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let Some((mut child, mark)) = child else { return Ok(()) };
        let (mut lost, mut forgotten) = (false, false);
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|why| Loud(why.to_string()))? {
                break Some(status);
            }
            match pool.peek(id)? {
                Some(job) if job.lost => {
                    lost = true;
                    break None;
                }
                Some(job) if job.kill_at.is_some_and(|at| at <= now()) => kill_all(&mark),
                Some(_) => {}
                // Out of the queue at once, and ended a moment later.
                None if forgotten => {}
                None => {
                    forgotten = true;
                    if pool.switch("forgotten_run_on").is_none() {
                        kill_all(&mark);
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(15));
        };
        if !lost {
            // Between the end of the main process and that of its children.
            if pool.switch("slow_ends").is_some() {
                std::thread::sleep(Duration::from_millis(700));
            }
            kill_all(&mark);
        }
        pool.with(|jobs| {
            let Some(job) = jobs.jobs.get_mut(&id) else { return Ok(()) };
            job.leave_host();
            let evicted = std::mem::take(&mut job.evicted);
            if lost || evicted {
                job.lost = false;
                if job.status() == 2 {
                    job.become_status(1);
                }
                let why = if lost { "Job disconnected too long" } else { "Job not found at execution machine" };
                job.set("VacateReason", why);
                job.set("VacateReasonCode", 1008);
                return Ok(());
            }
            if let Some(status) = status {
                job.set("ExitBySignal", status.signal().is_some());
                match (status.signal(), status.code()) {
                    (Some(signal), _) => job.set("ExitSignal", signal),
                    (None, code) if job.status() == 2 => job.set("ExitCode", code.unwrap_or_default()),
                    _ => {}
                }
            }
            if job.status() == 2 {
                job.become_status(4);
                job.set("CompletionDate", now());
            }
            Ok(())
        })?;
    }
}
