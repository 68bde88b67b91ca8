//! Clocks that jump, and processes that stand still.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt as _, time::Duration};

use anyhow::{Context, Result, ensure};

use super::kit::{self, Agent, Attack, BOUND, Dir, LEASE, Role, job, node, pids, program, running, server, stays};
use crate::{local::until, process::Run};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "paused-server",
        does: "SIGSTOP for the server, for more than twice its lease",
        holds: "the same tasks, no evaluation because of a node, and it is said",
        run: paused_server,
    },
    Attack {
        name: "paused-node",
        does: "SIGSTOP for a node with remote tasks, beyond its lease, while another one can manage them",
        holds: "one instance for each slot; the frozen manager lets go when it wakes",
        run: paused_node,
    },
    Attack {
        name: "clock-jumps",
        does: "the wall clock of server and node jumps a day ahead, then two days back",
        holds: "what runs runs on, nobody is lost, new jobs run, indexes and times do not go back",
        run: clock_jumps,
    },
];

fn evaluations_of_nodes(server: &Agent) -> Result<usize> {
    let all = server.list("/v1/evaluations")?;
    Ok(all.iter().filter(|e| e["TriggeredBy"] == "node-update").count())
}

fn paused_server() -> Result<String> {
    const LINE: &str = "/bin/sleep 71201";
    let server = server("paused", "")?;
    let node = node(&server, "paused-node", "")?;
    server.put("/v1/jobs", &job("near", "raw_exec", 2, "/bin/sleep", &["71201"]))?;
    running(&server, "near", 2)?;
    let before: BTreeSet<u32> = pids(node.dir(), LINE).into_iter().collect();
    let evals = evaluations_of_nodes(&server)?;
    kit::freeze(server.pid(), LEASE * 9 / 4)?;
    stays("its tasks", LEASE * 3 / 2, || Ok(pids(node.dir(), LINE).into_iter().collect::<BTreeSet<u32>>() == before))?;
    kit::ready(&server, &node, "raw_exec")?;
    ensure!(evaluations_of_nodes(&server)? == evals, "nodes were taken for lost");
    ensure!(server.log().contains("stood still"), "nobody says that the server stood still");
    Ok(String::new())
}

fn paused_node() -> Result<String> {
    const LINE: &str = "/bin/sleep 71202";
    let dir = Dir::for_all("paused");
    let server = server("paused-remote", "")?;
    let nodes =
        [node(&server, "paused-a", &kit::runtime(dir.path()))?, node(&server, "paused-b", &kit::runtime(dir.path()))?];
    for node in &nodes {
        kit::ready(&server, node, "remote_exec")?;
    }
    server.put("/v1/jobs", &job("far", "remote_exec", 2, "/bin/sleep", &["71202"]))?;
    running(&server, "far", 2)?;
    until("both instances", BOUND, || Ok((pids(dir.path(), LINE).len() == 2).then_some(())))?;
    let before: BTreeSet<u32> = pids(dir.path(), LINE).into_iter().collect();
    let same = || Ok(pids(dir.path(), LINE).into_iter().collect::<BTreeSet<u32>>() == before);
    crate::local::signal(nodes[0].pid(), rustix::process::Signal::STOP)?;
    let taken = until("the other manager", BOUND, || {
        let records = server.get("/v1/remote/tasks")?;
        let other = |r: &serde_json::Value| r["ManagerName"] == nodes[1].name() && r["Observed"]["State"] == "Running";
        Ok(records.as_array().is_some_and(|all| all.len() == 2 && all.iter().all(other)).then_some(()))
    });
    crate::local::signal(nodes[0].pid(), rustix::process::Signal::CONT)?;
    taken?;
    stays("the same instances", Duration::from_secs(3), same)?;
    kit::ready(&server, &nodes[0], "remote_exec")?;
    ensure!(same()?, "an instance was replaced");
    Ok(String::new())
}

/// Takes the place of the C library's wall clock: what a file says is added to it.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long added(void) {
    char text[32] = {0};
    int before = errno, file = open(getenv("ATTACK_CLOCK"), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
        close(file);
    }
    errno = before;
    return atol(text);
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += added();
    return failed;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"#;

fn clock_jumps() -> Result<String> {
    const LINE: &str = "/bin/sleep 71203";
    const DAY: i64 = 86_400;
    let dir = Dir::for_all("clock");
    let (source, library, clock, script) = (dir.at("clock.c"), dir.at("clock.so"), dir.at("clock"), dir.at("drover"));
    fs::write(&source, CLOCK)?;
    Run::new("cc", ["-shared".as_ref(), "-fPIC".as_ref(), "-o".as_ref(), library.as_os_str(), source.as_os_str()])
        .run()?;
    fs::write(&clock, "0")?;
    let text = format!(
        "#!/bin/sh\nexport LD_PRELOAD={} ATTACK_CLOCK={}\nexec {} \"$@\"\n",
        library.display(),
        clock.display(),
        program().display()
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let server = Agent::start_program(&script, "attack-clock", Role::Server, kit::SHORT_LEASE)?;
    kit::answers(&server)?;
    let node = Agent::start_program(&script, "attack-clock-node", Role::Node(&server), "")?;
    kit::ready(&server, &node, "raw_exec")?;
    let jump = |seconds: i64| {
        // Whole or not at all.
        let draft = dir.at("clock.new");
        fs::write(&draft, seconds.to_string())?;
        fs::rename(&draft, &clock)
    };
    server.put("/v1/jobs", &job("near", "raw_exec", 2, "/bin/sleep", &["71203"]))?;
    running(&server, "near", 2)?;
    let before: BTreeSet<u32> = pids(node.dir(), LINE).into_iter().collect();
    let evals = evaluations_of_nodes(&server)?;
    let submitted = |id: &str| -> Result<(u64, i64)> {
        let job = server.get(&format!("/v1/job/{id}"))?;
        Ok((job["ModifyIndex"].as_u64().context("an index")?, job["SubmitTime"].as_i64().context("a time")?))
    };
    let mut last = submitted("near")?;
    let began = last.1;
    for (n, to) in [DAY, -DAY].into_iter().enumerate() {
        jump(to)?;
        stays("its tasks", LEASE * 3 / 2, || {
            Ok(pids(node.dir(), LINE).into_iter().collect::<BTreeSet<u32>>() == before)
        })
        .with_context(|| format!("after a jump to {to} s; the server's log ends with:\n{}", server.log_tail()))?;
        let id = format!("after-{n}");
        server.put("/v1/jobs", &job(&id, "raw_exec", 1, "/bin/sleep", &["71204"]))?;
        running(&server, &id, 1)?;
        let now = submitted(&id)?;
        ensure!(now.0 > last.0 && now.1 >= last.1, "index and time went from {last:?} to {now:?}");
        last = now;
    }
    ensure!(last.1 - began > DAY * 900_000_000, "the clock of the server has not jumped: the attack does not work");
    ensure!(evaluations_of_nodes(&server)? == evals, "nodes were taken for lost");
    server.delete("/v1/job/near")?;
    until("the end of the tasks", BOUND, || Ok(pids(node.dir(), LINE).is_empty().then_some(())))?;
    Ok(String::new())
}
