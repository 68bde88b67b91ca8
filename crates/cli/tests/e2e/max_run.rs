//! `max_run_duration`: allocations that the clock ends.

use std::time::{Duration, Instant};

use crate::agent::{Agent, until};

fn job(id: &str, seconds: u32, script: &str) -> String {
    let raw_exec = "driver = \"raw_exec\"";
    format!(
        "job {id:?} {{\n  type = \"batch\"\n  group \"g\" {{\n    max_run_duration = \"{seconds}s\"\n    \
         task \"t\" {{\n      {raw_exec}\n      config {{\n        command = \"/bin/sh\"\n        \
         args = [\"-c\", {script:?}]\n      }}\n    }}\n    task \"after\" {{\n      {raw_exec}\n      \
         lifecycle {{\n        hook = \"poststop\"\n      }}\n      config {{\n        \
         command = \"/bin/true\"\n      }}\n    }}\n  }}\n}}\n"
    )
}

#[test]
fn the_clock_ends_an_allocation_also_one_whose_agent_was_dead_meanwhile() {
    let mut agent = Agent::start("");
    agent.run(&job("short", 2, "exec sleep 600"));
    let ended = agent.alloc("short", "complete");
    assert_eq!(ended["ClientDescription"], "allocation exceeded max_run_duration");
    assert_eq!(ended["TaskStates"]["after"]["StartedAt"], serde_json::Value::Null, "{ended}");
    let id = ended["ID"].as_str().expect("an id");
    let text = agent.cli_ok(&["alloc", "status", id]);
    assert!(text.contains("allocation exceeded max_run_duration"), "{text}");
    until("the job is dead", || (agent.get("/v1/job/short")?["Status"] == "dead").then_some(()));
    assert_eq!(agent.allocs("short").len(), 1, "nothing replaces it");

    // Its time passes while nobody looks.
    let began = Instant::now();
    agent.run(&job("alone", 10, "exec sleep 600"));
    agent.alloc("alone", "running");
    agent.kill();
    assert_eq!(agent.executors().len(), 1, "the task goes on");
    while began.elapsed() < Duration::from_secs(11) {
        std::thread::sleep(Duration::from_millis(50));
    }
    agent.launch();
    let ended = agent.alloc("alone", "complete");
    assert_eq!(ended["ClientDescription"], "allocation exceeded max_run_duration");
    until("no task is left", || agent.executors().is_empty().then_some(()));
}
