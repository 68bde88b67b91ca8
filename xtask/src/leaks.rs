//! `cargo xtask leaks [PACKAGE …]`: runs the tests of packages and compares what is on the machine before and after:
//! processes, cgroups, mounts, network namespaces, sockets and files. A binary that leaves something behind is run
//! again test by test, so that the test is named.
//!
//! Whose a process is, is certain: this program adopts every orphan that the tests leave. Files and sockets are found
//! in a temporary folder that only the tests have. Cgroups are shared by the machine: what appears, stays, and holds no
//! process of somebody else counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

use crate::{
    process::Run,
    test_programs::{self, TestProgram},
};

/// Packages whose tests start processes.
const DEFAULT: [&str; 9] =
    ["executor", "executor-client", "driver-host", "host", "client", "raw-exec", "exec", "remote-exec", "cli"];
/// What tests end in an orderly way may take this long to be gone.
const SETTLE: Duration = Duration::from_secs(8);

/// What is left of one run.
#[derive(Default)]
struct Leaks {
    processes: BTreeMap<i32, String>,
    rest: BTreeSet<String>,
}

impl Leaks {
    fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.rest.is_empty()
    }
    fn print(&self, of: &str) {
        for (pid, line) in &self.processes {
            println!("leak: {of}: process {pid} {line}");
        }
        for what in &self.rest {
            println!("leak: {of}: {what}");
        }
    }
}

/// Runs the tests of these packages, or of all that start processes; fails when anything stays.
pub(crate) fn run(packages: &[&str]) -> Result<()> {
    let packages = if packages.is_empty() { &DEFAULT[..] } else { packages };
    set_child_subreaper(Some(getpid())).context("cannot adopt what the tests leave")?;
    let mut leaking = 0;
    for package in packages {
        for binary in test_programs::build(["-p", *package])? {
            let (passed, leaks) = watched(&binary, &[])?;
            println!(
                "leaks {package} {}: tests {}, {}",
                binary.name,
                verdict(passed),
                if leaks.is_empty() { "nothing left" } else { "LEAKS" }
            );
            if leaks.is_empty() {
                continue;
            }
            leaking += 1;
            leaks.print(&binary.name);
            for test in tests(&binary)? {
                let (passed, leaks) = watched(&binary, &["--exact", &test])?;
                if !leaks.is_empty() {
                    println!("leaks {package} {} {test}: test {}, LEAKS", binary.name, verdict(passed));
                    leaks.print(&test);
                }
            }
        }
    }
    if leaking > 0 {
        bail!("{leaking} test programs leave something behind");
    }
    Ok(())
}

fn verdict(passed: bool) -> &'static str {
    if passed { "pass" } else { "FAIL" }
}

fn tests(binary: &TestProgram) -> Result<Vec<String>> {
    let listed = Run::new(binary.path.as_os_str(), ["--list", "--format", "terse"]).dir(&binary.dir).output()?;
    Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Runs a test program, and tells what it leaves.
fn watched(binary: &TestProgram, args: &[&str]) -> Result<(bool, Leaks)> {
    // Short, because addresses of sockets are.
    let temporary = PathBuf::from(format!("/tmp/dl-{}", std::process::id()));
    fs::create_dir_all(&temporary)?;
    let before = shared();
    let mut child = Command::new(&binary.path)
        .args(args)
        .current_dir(&binary.dir)
        .env("TMPDIR", &temporary)
        .env("CARGO_MANIFEST_DIR", &binary.dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("could not start {}", binary.path.display()))?;
    let passed = child.wait()?.success();
    let until = Instant::now() + SETTLE;
    let leaks = loop {
        // Adopted ones that have ended.
        while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        let mut leaks = Leaks { processes: descendants(), rest: shared().difference(&before).cloned().collect() };
        leaks.rest.extend(files(&temporary));
        if leaks.is_empty() || Instant::now() > until {
            break leaks;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    for pid in leaks.processes.keys().filter_map(|pid| Pid::from_raw(*pid)) {
        // It may have ended by now.
        let _ = kill_process(pid, Signal::KILL);
    }
    while matches!(wait(WaitOptions::empty()), Ok(Some(_))) {}
    crate::local::remove(&temporary);
    Ok((passed, leaks))
}

/// Everything below this process, with command lines.
fn descendants() -> BTreeMap<i32, String> {
    let all: Vec<(i32, i32, String)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
            let line = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).ok()?).replace('\0', " ");
            (state != "Z").then(|| (pid, parent, line.trim_end().to_owned()))
        })
        .collect();
    let mut found = BTreeMap::new();
    let mut parents = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        for (pid, _, line) in all.iter().filter(|(_, of, _)| *of == parent) {
            if found.insert(*pid, line.clone()).is_none() {
                parents.push(*pid);
            }
        }
    }
    found
}

/// What all programs of the machine share.
fn shared() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for parent in fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .chain([PathBuf::from("/sys/fs/cgroup")])
    {
        cgroups(&parent, &mut found);
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    found.extend(mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| format!("mount {point}")));
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    found.extend(names.map(|entry| format!("network namespace {}", entry.path().display())));
    found
}

/// Cgroups of ours and of Go drivers, wherever they are, unless processes live there: then they are somebody's who runs
/// now.
fn cgroups(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        let path = entry.path();
        let ours =
            path.components().any(|part| matches!(part.as_os_str().to_str(), Some("drover" | "nomad" | "nomad.slice")));
        let used = fs::read_to_string(path.join("cgroup.procs")).is_ok_and(|procs| !procs.trim().is_empty());
        if ours && !used {
            found.insert(format!("cgroup {}", path.display()));
        }
        cgroups(&path, found);
    }
}

/// What lies in the temporary folder.
fn files(temporary: &Path) -> Vec<String> {
    let entries = fs::read_dir(temporary).into_iter().flatten().flatten();
    entries.map(|entry| format!("file {}", entry.path().display())).collect()
}
