//! Workloads that do not want to be held.

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use serde_json::json;

use super::{
    fault::Fault,
    world::{BOUND, Spec, World, driver},
};
use crate::local::until;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "double-fork",
        what: "a workload leaves daemons behind, in sessions of their own, without environment, and ends or is stopped",
        would_show: "daemons that outlive their task",
        run: double_fork,
    },
    Fault {
        name: "ignores-sigterm",
        what: "a workload and its children ignore SIGTERM and SIGINT when they are stopped",
        would_show: "a stop that never ends, children that stay",
        run: ignores_sigterm,
    },
    Fault {
        name: "fills-its-log",
        what: "a workload writes as fast as it can, the agent is killed meanwhile",
        would_show: "files beyond their limit, a stop that waits for output",
        run: fills_its_log,
    },
    Fault {
        name: "closes-its-pipes",
        what: "a workload closes its input and output, and ends later",
        would_show: "an end that is told too early, or with another code",
        run: closes_its_pipes,
    },
    Fault {
        name: "fork-bomb",
        what: "a workload of `exec` forks without end within its limit of processes, and is stopped",
        would_show: "a node that can start nothing any more, forks that escape the kill",
        run: fork_bomb,
    },
];

/// Two daemons that nothing but their cgroup or their ancestry gives away, told by an argument that nobody else has.
fn double_fork(world: &mut World, n: usize) -> Result<()> {
    let mark = 4_000_000 + std::process::id() % 100_000 * 10 + u32::try_from(n % 10)?;
    let daemons = format!("(setsid sleep {mark} &); (cd /; exec setsid env -i /bin/sleep {mark} &); ");
    let end = if n % 4 < 2 {
        "exec sleep 98765"
    } else {
        "while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.05; done; exit 21"
    };
    let (job, process) = world.start_task(&Spec::new(format!("{daemons}{end}")).driver(driver(n)))?;
    until("both daemons", BOUND, || Ok((sleepers(mark).len() == 2).then_some(())))?;
    if n % 4 < 2 {
        world.node.crash_and_restart()?;
        world.wait_for_node()?;
        world.must_run_on_with(&job, process, 3)?;
        ensure!(sleepers(mark).len() == 2, "daemons of a running task were ended");
        world.stop(&job)?;
    } else {
        world.go(&job)?;
        world.must_end_with(&job, 21)?;
    }
    let left = sleepers(mark);
    if !left.is_empty() {
        world.leaked(format!("{job} has ended and its daemons {left:?} live"));
    }
    Ok(())
}

fn sleepers(mark: u32) -> Vec<u32> {
    let ending = format!("sleep\0{mark}\0");
    let pids = crate::local::pids();
    pids.filter(|pid| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).ends_with(&ending))
    })
    .collect()
}

fn ignores_sigterm(world: &mut World, n: usize) -> Result<()> {
    let mut spec =
        Spec::new("trap '' TERM INT; (while :; do sleep 0.1; done) & while :; do sleep 0.1; done").driver(driver(n));
    spec.kill_timeout = Duration::from_millis(400);
    let (job, process) = world.start_task(&spec)?;
    world.stop(&job)?;
    if process.is_alive() {
        world.leaked(format!("{job} is stopped, by its status, and process {} lives", process.pid));
    }
    world.must_end_with(&job, 137)
}

fn fills_its_log(world: &mut World, n: usize) -> Result<()> {
    let mut spec = Spec::new("exec yes 0123456789012345678901234567890123456789").driver(driver(n));
    spec.logs = (3, 1);
    let (job, process) = world.start_task(&spec)?;
    let logs = world.alloc_dir(&job)?.join("alloc/logs");
    let highest = || {
        let names = fs::read_dir(&logs)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|e| e.file_name().to_str().map(str::to_owned));
        names.filter_map(|name| name.strip_prefix("t.stdout.")?.parse::<u32>().ok()).max().unwrap_or(0)
    };
    until("a rotated log", BOUND, || Ok((highest() > 5).then_some(())))?;
    world.node.crash_and_restart()?;
    let before = highest();
    until("rotation after the restart", BOUND, || Ok((highest() > before + 3).then_some(())))?;
    world.wait_for_node()?;
    world.must_run_on(&job, process)?;
    world.stop(&job)?;
    let sizes: Vec<u64> = fs::read_dir(&logs)?
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("t.stdout."))
        .filter_map(|e| Some(e.metadata().ok()?.len()))
        .collect();
    if sizes.len() > 3 || sizes.iter().any(|size| *size > 1 << 20) {
        world.leaked(format!("{job}: log files of {sizes:?} bytes where three of 1 MiB are allowed"));
    }
    Ok(())
}

fn closes_its_pipes(world: &mut World, n: usize) -> Result<()> {
    let script = "exec <&- >&- 2>&-; while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.05; done; exit 23";
    let (job, process) = world.start_task(&Spec::new(script).driver(driver(n)))?;
    world.node.crash_and_restart()?;
    world.wait_for_node()?;
    world.must_run_on(&job, process)?;
    world.go(&job)?;
    world.must_end_with(&job, 23)
}

fn fork_bomb(world: &mut World, n: usize) -> Result<()> {
    // The first process forks once, while it still can: a shell that cannot fork ends. Should the node's limit not
    // hold, the user's own does before the machine is lost (the option's name differs between shells).
    let script = "ulimit -p 400 2>/dev/null || ulimit -u 400 || exit 9; bomb() { bomb | bomb & }; bomb 2>/dev/null; \
        exec sleep 98765";
    let mut spec = Spec::new(script).driver("exec");
    spec.config = json!({"pids_limit": 60});
    spec.kill_timeout = Duration::from_millis(300);
    let (job, process) = world.start_task(&spec)?;
    std::thread::sleep(Duration::from_millis(300));
    let (calm, second) = world.start_task(&Spec::endless().driver(driver(n)))?;
    if n % 2 == 1 {
        world.node.crash_and_restart()?;
        world.wait_for_node()?;
    }
    world.must_run_on(&calm, second)?;
    world.stop(&job)?;
    if process.is_alive() {
        world.leaked(format!("{job} is stopped, by its status, and process {} lives", process.pid));
    }
    Ok(())
}
