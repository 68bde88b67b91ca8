//! SIGKILL for agent, plugins and executors, alone and together, while tasks run, start, stop, run commands and write
//! logs.

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{
    fault::Fault,
    world::{BOUND, Process, Spec, World, driver},
};
use crate::{interop::cluster::program, local::until};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "agent",
        what: "kill -9 of the agent while tasks run and one ends",
        would_show: "an exit code that nobody kept, a second start after recovery",
        run: |world, n| running(world, n, &[Victim::Agent]),
    },
    Fault {
        name: "plugins",
        what: "kill -9 of all plugins while tasks run and one ends",
        would_show: "tasks that fail with their driver",
        run: |world, n| running(world, n, &[Victim::Plugins]),
    },
    Fault {
        name: "agent+plugins",
        what: "kill -9 of agent and plugins at once while tasks run and one ends",
        would_show: "handles that only lived in memory",
        run: |world, n| running(world, n, &[Victim::Agent, Victim::Plugins]),
    },
    Fault {
        name: "executor",
        what: "kill -9 of a task's executor",
        would_show: "a workload that runs on unattended, beside its successor",
        run: |world, n| executors(world, n, &[Victim::Executors]),
    },
    Fault {
        name: "everything",
        what: "kill -9 of agent, plugins and executors at once",
        would_show: "workloads of a former life beside new ones",
        run: |world, n| executors(world, n, &[Victim::Agent, Victim::Plugins, Victim::Executors]),
    },
    Fault {
        name: "agent-in-start",
        what: "kill -9 of the agent while tasks are being started",
        would_show: "a start that is not known and is made again",
        run: |world, n| starting(world, n, Victim::Agent),
    },
    Fault {
        name: "plugins-in-start",
        what: "kill -9 of the plugins while tasks are being started",
        would_show: "executors that no plugin knows",
        run: |world, n| starting(world, n, Victim::Plugins),
    },
    Fault {
        name: "executor-in-start",
        what: "kill -9 of executors while tasks are being started",
        would_show: "cgroups and workloads without an executor",
        run: |world, n| starting(world, n, Victim::Executors),
    },
    Fault {
        name: "agent-in-stop",
        what: "kill -9 of the agent while a task is being stopped",
        would_show: "a task that is started again, or never ends",
        run: |world, n| stopping(world, n, Victim::Agent),
    },
    Fault {
        name: "plugins-in-stop",
        what: "kill -9 of the plugins while a task is being stopped",
        would_show: "a stop that is forgotten",
        run: |world, n| stopping(world, n, Victim::Plugins),
    },
    Fault {
        name: "executor-in-stop",
        what: "kill -9 of the executor while its task is being stopped",
        would_show: "a stop that waits for ever, a workload that outlives it",
        run: |world, n| stopping(world, n, Victim::Executors),
    },
    Fault {
        name: "agent-in-exec",
        what: "kill -9 of the agent while a command runs beside a task",
        would_show: "a command that lives on without anybody at its other end",
        run: |world, n| in_exec(world, n, Victim::Agent),
    },
    Fault {
        name: "plugins-in-exec",
        what: "kill -9 of the plugins while a command runs beside a task",
        would_show: "a command that lives on without anybody at its other end",
        run: |world, n| in_exec(world, n, Victim::Plugins),
    },
    Fault {
        name: "executor-in-exec",
        what: "kill -9 of the executor while a command runs beside its task",
        would_show: "a command that outlives the task",
        run: |world, n| in_exec(world, n, Victim::Executors),
    },
    Fault {
        name: "logs",
        what: "kill -9 of agent and plugins while log files are rotated",
        would_show: "lines that are missing or there twice",
        run: logs,
    },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Agent,
    Plugins,
    Executors,
}

impl Victim {
    fn kill(self, world: &mut World) -> Result<()> {
        match self {
            Self::Agent => world.node.crash(),
            Self::Plugins => world.kill_plugins(),
            Self::Executors => world.kill_executors(),
        }
    }
}

/// What was killed and does not come back by itself is started again.
fn recover(world: &mut World, victims: &[Victim]) -> Result<()> {
    if victims.contains(&Victim::Agent) {
        world.restart_node()?;
    }
    Ok(())
}

/// A pause that differs from run to run, so that all moments are met. Nothing waits for it.
fn at_some_moment(n: usize) {
    let ms = u64::try_from(n * 37 % 160).unwrap_or(0);
    std::thread::sleep(Duration::from_millis(ms));
}

/// One task runs on; one ends while nobody looks.
fn running(world: &mut World, n: usize, victims: &[Victim]) -> Result<()> {
    let code = i32::try_from(3 + n % 100)?;
    let (stays, process) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let (other, second) = world.start_task(&Spec::endless().driver(driver(n + 1)))?;
    let (ends, _) = world.start_task(&Spec::until_go(code).driver(driver(n)))?;
    for victim in victims {
        victim.kill(world)?;
    }
    world.go(&ends)?;
    at_some_moment(n);
    recover(world, victims)?;
    world.must_run_on(&stays, process)?;
    world.must_run_on(&other, second)?;
    world.must_end_with(&ends, code.into())?;
    world.must_not_be_doubled(&ends, 1)
}

/// Tasks whose executor dies end, that is told, and they are started again once if their job wants it.
fn executors(world: &mut World, n: usize, victims: &[Victim]) -> Result<()> {
    let (once, first) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let (again, second) = world.start_task(&Spec::endless().driver(driver(n + 1)).restarts(1))?;
    for victim in victims {
        victim.kill(world)?;
    }
    let killed = Instant::now();
    if victims.contains(&Victim::Agent) {
        at_some_moment(n);
        // Nobody is left who could end anything before the agent is back.
        world.node.restart()?;
        until("an answer of the node", BOUND, || Ok(world.node.get("/v1/client/metadata").is_ok().then_some(())))?;
        world.wait_for_node()?;
        let back = Instant::now();
        world.must_be_contained(&once, first, back);
        world.must_be_contained(&again, second, back);
    } else {
        world.must_be_contained(&once, first, killed);
        world.must_be_contained(&again, second, killed);
    }
    until("the end of the task without restarts", BOUND, || {
        Ok(world.alloc(&once)?.is_some_and(|a| a["ClientStatus"] == "failed").then_some(()))
    })?;
    world.must_be_told(&once, "executor lost")?;
    world.must_not_be_doubled(&once, 1)?;
    let dir = world.alloc_dir(&again)?;
    let successor =
        until("the second start", BOUND, || Ok((world.starts(&dir) == 2).then(|| world.workload(&dir)).flatten()))?;
    ensure!(successor != second, "the successor has the identity of the first workload");
    world.must_be_told(&again, "executor lost")?;
    world.must_not_be_doubled(&again, 2)
}

/// Several tasks are under way in their starts.
fn starting(world: &mut World, n: usize, victim: Victim) -> Result<()> {
    // A killed executor costs a start; whoever else is killed does not.
    let restarts = if victim == Victim::Executors { 5 } else { 0 };
    let spec = |k: usize| Spec::endless().driver(driver(k)).restarts(restarts);
    let jobs: Vec<String> = (0..4).map(|k| world.submit(&spec(k))).collect::<Result<_>>()?;
    at_some_moment(n);
    victim.kill(world)?;
    recover(world, &[victim])?;
    for job in &jobs {
        let process = world.running(job)?;
        let starts = if victim == Victim::Executors { 6 } else { 1 };
        // A plugin that dies in a start may have come as far as the first instruction: the node ends that before it
        // tries again.
        let starts = if victim == Victim::Executors { starts } else { starts + 1 };
        world.must_not_be_doubled(job, starts)?;
        ensure!(process.is_alive() || victim == Victim::Executors, "{job} does not run");
    }
    Ok(())
}

/// A task that takes its time to end is stopped.
fn stopping(world: &mut World, n: usize, victim: Victim) -> Result<()> {
    let mut spec =
        Spec::new("trap 'sleep 0.3; exit 9' TERM; trap 'sleep 0.3; exit 9' INT; while :; do sleep 0.05; done")
            .driver(driver(n));
    // A machine that stands still must not make an orderly end a killed one.
    spec.kill_timeout = Duration::from_secs(30);
    let (job, process) = world.start_task(&spec)?;
    world.server.delete(&format!("/v1/job/{job}"))?;
    at_some_moment(n);
    victim.kill(world)?;
    let killed = Instant::now();
    if victim == Victim::Executors {
        world.must_be_contained(&job, process, killed);
    }
    recover(world, &[victim])?;
    world.wait_stopped(&job)?;
    if process.is_alive() {
        world.leaked(format!("{job} is stopped, by its status, and process {} lives", process.pid));
    }
    if victim != Victim::Executors {
        world.must_end_with(&job, 9)?;
    }
    world.must_not_be_doubled(&job, 1)
}

/// The command line's end of an exec session.
struct Session(Child);

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn in_exec(world: &mut World, n: usize, victim: Victim) -> Result<()> {
    let (job, process) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let dir = world.alloc_dir(&job)?;
    let mark = dir.join("alloc/data/command");
    let script = "echo $$ > $NOMAD_ALLOC_DIR/data/command; exec sleep 54321";
    let alloc = world.alloc_id(&job)?;
    let session = Command::new(program())
        .args([
            "alloc",
            "exec",
            "-address",
            &world.server.address(),
            "-i=false",
            "-t=false",
            "-task",
            "t",
            &alloc,
            "/bin/sh",
            "-c",
            script,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("could not run `drover alloc exec`")?;
    let mut session = Session(session);
    until("the command's first instruction", BOUND, || Ok(mark.exists().then_some(())))?;
    let command = until("the command", BOUND, || Ok(commands(&job).first().copied()))?;
    at_some_moment(n);
    victim.kill(world)?;
    let killed = Instant::now();
    while command.is_alive() && killed.elapsed() < BOUND {
        std::thread::sleep(Duration::from_millis(5));
    }
    if command.is_alive() {
        world.leaked(format!("{job}: the command of a session (process {}) outlives it", command.pid));
    }
    until("the end of the session's near side", BOUND, || Ok(session.0.try_wait()?))?;
    recover(world, &[victim])?;
    if victim == Victim::Executors {
        world.must_be_contained(&job, process, killed);
        world.must_be_told(&job, "executor lost")?;
        world.must_not_be_doubled(&job, 1)
    } else {
        world.must_run_on(&job, process)
    }
}

/// Commands of sessions beside a task.
fn commands(job: &str) -> Vec<Process> {
    let wanted = format!("NOMAD_JOB_ID={job}\0");
    let pids = crate::local::pids();
    let ours = |pid: &u32| {
        let read = |file: &str| {
            String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()).into_owned()
        };
        read("cmdline").starts_with("sleep\u{0}54321") && read("environ").contains(&wanted)
    };
    pids.filter(ours).filter_map(Process::of).collect()
}

/// Numbered lines must all be there, once, in their order.
fn logs(world: &mut World, n: usize) -> Result<()> {
    let mut spec = Spec::new(
        "i=0; while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do i=$((i + 1)); printf '%0199d\\n' $i; [ $((i % 1000)) != 0 ] \
            || sleep 0.02; done; \
         echo $i > $NOMAD_ALLOC_DIR/data/last; exit 6",
    )
    .driver(driver(n));
    spec.logs = (200, 1);
    let (job, _) = world.start_task(&spec)?;
    let dir = world.alloc_dir(&job)?;
    until("the third file", BOUND, || Ok(dir.join("alloc/logs/t.stdout.2").exists().then_some(())))?;
    for victim in [Victim::Plugins, Victim::Agent] {
        at_some_moment(n);
        victim.kill(world)?;
    }
    at_some_moment(n + 3);
    recover(world, &[Victim::Agent])?;
    world.go(&job)?;
    world.must_end_with(&job, 6)?;
    let last: u64 = fs::read_to_string(dir.join("alloc/data/last"))?.trim().parse()?;
    let mut expected = 1;
    let mut files = 0;
    while let Ok(text) = fs::read_to_string(dir.join(format!("alloc/logs/t.stdout.{files}"))) {
        for line in text.lines() {
            let number: u64 =
                line.parse().with_context(|| format!("file {files} has a line that is torn: {line:?}"))?;
            if number > expected {
                world.lost(format!("{job}: lines {expected} to {} of its log", number - 1));
            } else if number < expected {
                world.duplicated(format!("{job}: line {number} of its log"));
            }
            expected = number + 1;
        }
        files += 1;
    }
    if expected != last + 1 {
        world.lost(format!("{job}: the log ends with line {} of {last}", expected - 1));
    }
    Ok(())
}
