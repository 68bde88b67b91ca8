//! An agent that dies leaves no image of its memory, where keys and tokens of the whole cluster are; nor do its plugins
//! and executors, through which the secrets of tasks pass.

use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
};

use rustix::process::Signal;

use crate::agent::{Agent, signal, until};

#[test]
fn an_agent_leaves_no_core_dump_and_its_tasks_may() {
    let mut agent = Agent::start_after("ulimit -c unlimited", "");
    // The limits of tasks are those of the agent, as ever.
    agent.run(
        "job \"t\" {\n  type = \"batch\"\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      \
         config {\n        command = \"/bin/sh\"\n        args = [\"-c\", \"ulimit -c\"]\n      }\n    }\n  }\n}\n",
    );
    let alloc = agent.alloc("t", "complete");
    until("the limit of the task", || (agent.logs(&alloc, "t").trim() == "unlimited").then_some(()));

    signal(agent.pid(), Signal::ABORT);
    let status = agent.ended();
    assert_eq!((status.signal(), status.core_dumped()), (Some(Signal::ABORT.as_raw()), false), "{status}");
}

/// Images of memory below a directory, with the names that a relative pattern gives them.
fn images(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => all.extend(images(&entry.path())),
            Ok(kind) if kind.is_file() && entry.file_name().to_string_lossy().starts_with("core") => {
                all.push(entry.path());
            }
            _ => {}
        }
    }
    all
}

const JOB: &str = r#"job "NAME" {
  type = "batch"
  group "g" {
    restart {
      attempts = 0
    }
    reschedule {
      attempts = 0
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "SCRIPT"]
      }
    }
  }
}
"#;

#[test]
fn plugins_and_executors_leave_no_core_dump_and_their_tasks_do() {
    if !rustix::process::geteuid().is_root() {
        skip::cannot("who may not trace other processes could not find them: there they leave dumps as always");
        return;
    }
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").expect("the pattern");
    if pattern.trim() != "core" {
        skip::cannot(&format!("core dumps go to {}, and not where processes run", pattern.trim()));
        return;
    }
    let agent = Agent::start_after("ulimit -c unlimited", "");
    let job = |name: &str, script: &str| {
        agent.run(&JOB.replace("NAME", name).replace("SCRIPT", script));
    };
    // The task may: so the others could.
    job("dies", "kill -ABRT $$");
    agent.alloc("dies", "failed");
    until("the image of the task", || (!images(agent.dir()).is_empty()).then_some(()));
    let of_task = images(agent.dir());
    assert!(of_task.iter().all(|path| path.starts_with(agent.dir().join("data/alloc"))), "{of_task:?}");

    job("goes-on", "exec sleep 71014");
    agent.alloc("goes-on", "running");
    let executors: Vec<i32> = agent.executors().into_keys().collect();
    assert_eq!(executors.len(), 1, "{:?}", agent.processes());
    signal(executors[0], Signal::ABORT);
    until("the end of the executor", || (!agent.executors().contains_key(&executors[0])).then_some(()));
    let plugins = agent.processes();
    let plugin = plugins.iter().find(|(_, line)| line.trim_end().ends_with("driver raw_exec")).expect("the plugin");
    // It runs where the agent does: outside of its directory, in that of the test.
    let place = fs::read_link(format!("/proc/{}/cwd", plugin.0)).expect("its directory");
    let image = place.join("core");
    assert!(!image.exists(), "left by somebody else: {}", image.display());
    signal(*plugin.0, Signal::ABORT);
    until("the end of the plugin", || {
        let log = agent.log();
        let line = log.lines().find(|line| line.contains("plugin process ended") && line.contains("raw_exec"))?;
        line.contains("signal 6").then_some(())
    });
    assert!(!image.exists(), "an image of the plugin: {}", image.display());
    assert_eq!(images(agent.dir()), of_task, "no image of what is not a task");
}
