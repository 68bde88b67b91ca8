//! What the node has written is old, damaged, gone, or cannot be written; the program is replaced.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    fault::Fault,
    world::{BOUND, Process, Spec, World, driver},
};
use crate::{
    interop::cluster::program,
    local::{kill, until},
    process::Run,
};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "upgrade",
        what: "the program is replaced by one with another hash, and the agent restarted, while tasks run",
        would_show: "tasks that end with the plugin or executor that they were started by",
        run: upgrade,
    },
    Fault {
        name: "power-loss",
        what: "everything is killed and the node's disk falls back to what had reached it",
        would_show: "ended tasks that run again, a node with a new identity, records that cannot be read",
        run: power_loss,
    },
    Fault {
        name: "pid-reuse",
        what: "records name pids that belong to somebody else by now",
        would_show: "a bystander that is killed",
        run: pid_reuse,
    },
    Fault {
        name: "disk-full",
        what: "the node's disk is full while tasks run, start and end",
        would_show: "results that are not kept",
        run: disk_full,
    },
    Fault {
        name: "read-only",
        what: "the node's disk cannot be written while tasks run and the agent is restarted",
        would_show: "tasks that are ended by an agent that cannot start",
        run: read_only,
    },
    Fault {
        name: "sockets",
        what: "all sockets below the node's directory are deleted, with the agent there or not",
        would_show: "tasks that nobody can reach any more",
        run: sockets,
    },
    Fault {
        name: "damaged-record",
        what: "the record of an executor is garbage, with the executor alive or killed",
        would_show: "an agent or plugin that does not come up, other tasks that suffer",
        run: damaged_record,
    },
    Fault {
        name: "damaged-database",
        what: "the node's record of one allocation is garbage when the agent starts",
        would_show: "a second instance beside the one that nobody knows, other tasks that suffer",
        run: damaged_database,
    },
];

fn upgrade(world: &mut World, n: usize) -> Result<()> {
    let (job, process) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let (ends, _) = world.start_task(&Spec::until_go(11).driver(driver(n)))?;
    let newer = world.node.dir().join(format!("drover-{n}"));
    fs::copy(program(), &newer)?;
    // What follows the last section of a program changes nothing but its hash.
    fs::OpenOptions::new().append(true).open(&newer)?.write_all(format!("release {n}").as_bytes())?;
    let plugin = world.plugin("raw_exec").context("no plugin of raw_exec")?;
    if n.is_multiple_of(2) {
        world.node.crash()?
    } else {
        world.node.stop()?
    }
    world.node.use_program(newer.clone());
    let restarted = world.restart_node();
    let told = restarted.and_then(|()| {
        world.must_run_on(&job, process)?;
        world.go(&ends)?;
        world.must_end_with(&ends, 11)?;
        until("plugins of the new release", BOUND, || {
            Ok(world.plugin("raw_exec").filter(|now| *now != plugin).map(drop))
        })
    });
    // Back again, which is a change as well.
    world.node.crash()?;
    world.node.use_program(program());
    world.restart_node()?;
    told?;
    world.must_run_on(&job, process)?;
    world.wait_for_node()?;
    fs::remove_file(newer)?;
    Ok(())
}

/// A small file system in a file.
struct Disk {
    image: PathBuf,
    point: PathBuf,
}

impl Disk {
    fn new(name: &str, n: usize) -> Result<Self> {
        let base = std::env::temp_dir().join(format!("drover-chaos-{name}-{}-{n}", std::process::id()));
        let disk = Self { image: base.with_extension("img"), point: base };
        fs::create_dir_all(&disk.point)?;
        File::create(&disk.image)?.set_len(192 << 20)?;
        Run::new("mkfs.ext4", ["-q".as_ref(), "-F".as_ref(), disk.image.as_os_str()]).quiet().run()?;
        disk.mount()?;
        Ok(disk)
    }
    fn mount(&self) -> Result<()> {
        Run::new("mount", ["-o".as_ref(), "loop".as_ref(), self.image.as_os_str(), self.point.as_os_str()]).run()
    }
    /// Nothing can be made, changed or removed here; what is open for writing already can be written.
    fn freeze(&self, frozen: bool) -> Result<()> {
        let flag = if frozen { "+i" } else { "-i" };
        // Sockets have no such flag, and say so.
        drop(
            Run::new(
                "chattr",
                [
                    "-R".as_ref(),
                    flag.as_ref(),
                    self.point.join("state").as_os_str(),
                    self.point.join("alloc").as_os_str(),
                ],
            )
            .quiet()
            .run(),
        );
        let probe = self.point.join("state/probe");
        let made = fs::write(&probe, "").is_ok();
        drop(fs::remove_file(&probe));
        ensure!(made != frozen, "the directory {} be written", if frozen { "can still" } else { "cannot" });
        Ok(())
    }
    /// Everything that the file system still holds back is gone: what is mounted again is what the image had before
    /// anybody unmounted it.
    fn lose_power(&self) -> Result<()> {
        let kept = self.image.with_extension("kept");
        Run::new("cp", ["--sparse=always".as_ref(), self.image.as_os_str(), kept.as_os_str()]).run()?;
        // With it goes what is mounted in it: secrets of tasks.
        until("the unmounting", BOUND, || Ok(crate::local::unmount(&self.point).then_some(())))?;
        fs::rename(kept, &self.image)?;
        self.mount()
    }
    fn fill(&self) -> Result<PathBuf> {
        let path = self.point.join("ballast");
        let mut file = File::create(&path)?;
        for block in [1 << 16, 1 << 12, 1] {
            while file.write(&vec![0_u8; block]).is_ok_and(|n| n == block) {}
        }
        Ok(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        crate::local::remove(&self.point);
        drop(fs::remove_file(&self.image));
        drop(fs::remove_file(self.image.with_extension("kept")));
    }
}

/// What had been stored before the last fsync is there afterwards, and more or less of what came later.
fn power_loss(world: &mut World, n: usize) -> Result<()> {
    let disk = Disk::new("power", n)?;
    world.with_node(&disk.point, |world| {
        let me = world.node_id()?;
        let mut done = Spec::new("exit 0");
        done.batch = true;
        let finished = world.submit(&done)?;
        world.must_end_with(&finished, 0)?;
        let (runs, process) = world.start_task(&Spec::endless().driver(driver(n)).restarts(2))?;
        // Some runs meet records that are on their way, some meet those that have arrived.
        std::thread::sleep(Duration::from_millis(u64::try_from(n * 700 % 6_000)?));
        let late = world.submit(&Spec::endless().driver(driver(n)).restarts(2))?;
        world.node.crash()?;
        crate::local::end_all(&disk.point)?;
        crate::local::end_all(world.node.dir())?;
        ensure!(!process.is_alive(), "a workload lives after everything was killed");
        disk.lose_power()?;
        world.restart_node()?;
        world.wait_for_node()?;
        let now = world.node_id()?;
        if me != now {
            world.lost(format!("the identity of the node: {me} is {now}"));
        }
        for job in [&runs, &late] {
            let successor = world.running(job)?;
            ensure!(successor != process, "{job} has the identity of a dead process");
            let instances = world.instances(job);
            if instances.len() != 1 {
                world.duplicated(format!("{job}: instances {instances:?} after the loss of power"));
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        if !world.instances(&finished).is_empty()
            || world.alloc(&finished)?.is_none_or(|a| a["ClientStatus"] != "complete")
        {
            world.duplicated(format!("{finished} had ended and was told, and runs again"));
        }
        Ok(())
    })
}

/// Somebody who has nothing to do with anything.
struct Bystander(Child);

impl Bystander {
    fn start() -> Result<Self> {
        Ok(Self(
            Command::new("setsid")
                .args(["sleep", "76543"])
                .stdin(Stdio::null())
                .spawn()
                .context("could not start a bystander")?,
        ))
    }
    /// As whoever gets the number of a process is.
    fn younger_than(process: Process) -> Result<Self> {
        until("a younger process", BOUND, || {
            let one = Self::start()?;
            Ok(Process::of(one.pid()).is_some_and(|seen| seen.is_younger_than(process)).then_some(one))
        })
    }
    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) -> Result<()> {
    let mut value: Value =
        serde_json::from_slice(&fs::read(path).with_context(|| format!("read {}", path.display()))?)?;
    change(&mut value);
    Ok(fs::write(path, value.to_string())?)
}

/// The numbers of executor, workload and plugin have been given to others while nobody looked.
fn pid_reuse(world: &mut World, n: usize) -> Result<()> {
    let (job, process) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let younger = || Bystander::younger_than(process);
    let mut bystanders = [younger()?, younger()?, younger()?];
    let record = record_of(world, &job)?;
    world.node.crash()?;
    world.kill_plugins()?;
    let executor = world.executor(&world.alloc_dir(&job)?).context("no executor")?;
    for pid in [executor.pid, process.pid] {
        kill(pid)?;
    }
    until(
        "the end of the task's processes",
        BOUND,
        || Ok((!process.is_alive() && !executor.is_alive()).then_some(())),
    )?;
    edit(&record, |record| {
        record["executor_pid"] = bystanders[0].pid().into();
        record["workload_pid"] = bystanders[1].pid().into();
    })?;
    for plugin in ["raw_exec", "exec"] {
        let path = world.state_dir().join(format!("plugins/{plugin}.reattach.json"));
        if path.exists() {
            edit(&path, |record| record["pid"] = bystanders[2].pid().into())?;
        }
    }
    world.restart_node()?;
    world.wait_for_node()?;
    world.must_be_told(&job, "executor lost")?;
    world.must_not_be_doubled(&job, 1)?;
    world.stop(&job)?;
    for bystander in &mut bystanders {
        if bystander.0.try_wait()?.is_some() {
            world.lost(format!("a bystander whose pid ({}) a record named was killed", bystander.pid()));
        }
    }
    Ok(())
}

fn record_of(world: &World, job: &str) -> Result<PathBuf> {
    let dir = world.alloc_dir(job)?.join("t/private/executor");
    let entry =
        fs::read_dir(&dir)?.flatten().next().with_context(|| format!("no state directory in {}", dir.display()))?;
    Ok(entry.path().join("executor.json"))
}

fn disk_full(world: &mut World, n: usize) -> Result<()> {
    let disk = Disk::new("full", n)?;
    world.with_node(&disk.point, |world| {
        let (job, process) = world.start_task(&Spec::endless().driver(driver(n)))?;
        let (ends, second) =
            world.start_task(&Spec::new("trap 'exit 13' USR1; while :; do sleep 0.05; done").driver(driver(n)))?;
        let ballast = disk.fill()?;
        let late = world.submit(&Spec::endless().driver(driver(n)).restarts(100))?;
        // Its result cannot be written before there is room.
        Run::new("kill", ["-USR1".to_owned(), second.pid.to_string()]).run()?;
        until("the end of the workload", BOUND, || Ok((!second.is_alive()).then_some(())))?;
        if n % 2 == 1 {
            world.node.crash()?;
            world.node.restart()?;
        }
        std::thread::sleep(Duration::from_millis(500));
        ensure!(process.is_alive(), "what ran on the full disk has ended");
        fs::remove_file(ballast)?;
        // An agent may refuse to begin on a full disk; it must begin when there is room.
        world.wait_for_node_that_refused()?;
        world.must_end_with(&ends, 13)?;
        world.must_run_on(&job, process)?;
        world.running(&late).map(drop)
    })
}

fn read_only(world: &mut World, n: usize) -> Result<()> {
    let disk = Disk::new("ro", n)?;
    world.with_node(&disk.point, |world| {
        let (job, process) = world.start_task(&Spec::endless().driver(driver(n)))?;
        // In turn: the agent is there and is asked for a start, or has to begin on such a disk.
        let restarted = n.is_multiple_of(2);
        if restarted {
            world.node.crash()?;
        }
        disk.freeze(true)?;
        let story = (|| {
            let late = match restarted {
                true => world.node.restart().map(|()| None)?,
                false => Some(world.submit(&Spec::endless().driver(driver(n)).restarts(100))?),
            };
            // It may refuse to begin, or begin and say what it cannot do; either way the task runs on.
            std::thread::sleep(Duration::from_millis(700));
            ensure!(process.is_alive(), "the task has ended on a disk that cannot be written");
            Ok(late)
        })();
        disk.freeze(false)?;
        let late = story?;
        if let Some(ended) = world.wait_for_node_that_refused()? {
            ensure!(
                world.node.log().contains("Operation not permitted"),
                "the agent ended with {ended} and does not say why it did not begin"
            );
        }
        world.must_run_on(&job, process)?;
        match late {
            Some(late) => world.running(&late).map(drop),
            None => Ok(()),
        }
    })
}

fn sockets(world: &mut World, n: usize) -> Result<()> {
    let (job, process) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let (ends, _) = world.start_task(&Spec::until_go(17).driver(driver(n + 1)))?;
    // So that executors have one.
    world.kill_plugins()?;
    world.must_run_on(&job, process)?;
    if n.is_multiple_of(2) {
        world.node.crash()?;
    }
    let found = Run::new(
        "find",
        [
            world.node.dir().join("data").as_os_str(),
            // Of plugins that are coming and going some may be gone before they are deleted.
            "-ignore_readdir_race".as_ref(),
            "-type".as_ref(),
            "s".as_ref(),
            "-print".as_ref(),
            "-delete".as_ref(),
        ],
    );
    let found = found.output()?;
    ensure!(!found.trim().is_empty(), "there was no socket to be deleted");
    if n.is_multiple_of(2) {
        world.restart_node()?;
    } else {
        world.node.crash_and_restart()?;
    }
    world.wait_for_node()?;
    world.must_run_on(&job, process)?;
    world.go(&ends)?;
    world.must_end_with(&ends, 17)
}

fn damaged_record(world: &mut World, n: usize) -> Result<()> {
    let (job, process) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let (other, second) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let record = record_of(world, &job)?;
    world.node.crash()?;
    world.kill_plugins()?;
    let killed = n % 4 >= 2;
    if killed {
        let executor = world.executor(&world.alloc_dir(&job)?).context("no executor")?;
        kill(executor.pid)?;
    }
    let text = fs::read_to_string(&record)?;
    let damaged =
        if n.is_multiple_of(2) { "{\"protocol\": 2, \"pid".to_owned() } else { text[..text.len() / 2].to_owned() };
    fs::write(&record, damaged)?;
    world.restart_node()?;
    world.wait_for_node()?;
    world.must_run_on(&other, second)?;
    if killed {
        until("the end of the workload", BOUND, || Ok((!process.is_alive()).then_some(())))?;
        until("the end of its task", BOUND, || {
            Ok(world.alloc(&job)?.is_some_and(|a| a["ClientStatus"] == "failed").then_some(()))
        })?;
        world.must_not_be_doubled(&job, 1)
    } else {
        // Its executor knows better than its file.
        world.must_run_on(&job, process)
    }
}

fn damaged_database(world: &mut World, n: usize) -> Result<()> {
    ensure!(Run::new("sqlite3", ["--version"]).succeeds(), "there is no sqlite3 to damage a record with: install it");
    let (job, process) = world.start_task(&Spec::endless().driver(driver(n)).restarts(1))?;
    let (other, second) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let alloc = world.alloc_id(&job)?;
    world.node.crash()?;
    let database = world.state_dir().join("node.sqlite");
    let statement = match n % 2 {
        0 => format!("UPDATE allocs SET record = 'garbage' WHERE id = '{alloc}'"),
        _ => format!("UPDATE tasks SET record = '{{\"run\": 7' WHERE alloc = '{alloc}'"),
    };
    Run::new("sqlite3", [database.as_os_str(), statement.as_ref()]).run()?;
    world.restart_node()?;
    world.wait_for_node()?;
    world.must_run_on(&other, second)?;
    // Nobody knows what ran: it is ended, and the servers' copy begins anew.
    until("the end of the unknown workload", BOUND, || Ok((!process.is_alive()).then_some(())))?;
    until("its successor", BOUND, || Ok((world.instances(&job).len() == 1).then_some(())))?;
    world.running(&job).map(drop)
}
