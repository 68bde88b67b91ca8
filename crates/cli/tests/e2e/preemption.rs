//! Preemption, from the operator's switch to the end of the displaced process.

use serde_json::json;
use testkit::Dir;

use crate::agent::{Agent, until};

/// A job of one task that takes 300 of the node's 500 MiB.
fn job(id: &str, priority: u32, script: &str) -> String {
    format!(
        "job {id:?} {{\n  priority = {priority}\n  group \"g\" {{\n    task \"t\" {{\n      \
         driver = \"raw_exec\"\n      kill_timeout = \"20s\"\n      config {{\n        command = \"/bin/sh\"\n        \
         args = [\"-c\", {script:?}]\n      }}\n      resources {{\n        cpu = 10\n        memory = 300\n      \
         }}\n    }}\n  }}\n}}\n"
    )
}

#[test]
fn a_job_of_higher_priority_takes_the_room_of_a_lower_one_and_gives_it_back() {
    let agent = Agent::start("client {\n  memory_total_mb = 500\n}");
    let dir = Dir::new("preemption");
    let (alive, overlap) = (dir.path().join("alive"), dir.path().join("overlap"));
    let (alive_text, overlap_text) = (alive.display(), overlap.display());
    // It takes its time to end, and only then the next one may begin.
    let low = format!("trap 'sleep 1; rm {alive_text}; exit 0' INT; touch {alive_text}; while :; do sleep 0.1; done");
    let high = format!("test ! -e {alive_text} || touch {overlap_text}; exec sleep 600");
    agent.run(&job("low", 20, &low));
    until("the low one", || alive.exists().then_some(()));
    let displaced = agent.alloc("low", "running");

    let file = dir.path().join("high.nomad.hcl");
    std::fs::write(&file, job("high", 70, &high)).expect("file");
    let file = file.display().to_string();
    let plan = || String::from_utf8_lossy(&agent.cli(&["job", "plan", &file]).stdout).into_owned();
    let text = plan();
    assert!(text.contains("WARNING: Failed to place all allocations") && !text.contains("Preemptions"), "{text}");
    agent.cli_ok(&["operator", "scheduler", "set-config", "-preempt-service-scheduler=true"]);
    let text = plan();
    let id = displaced["ID"].as_str().expect("an id");
    assert!(text.contains("All tasks successfully allocated") && text.contains("Preemptions:"), "{text}");
    assert!(text.contains(id), "{text}");

    agent.cli_ok(&["job", "run", "-detach", &file]);
    let placed = agent.alloc("high", "running");
    assert!(!alive.exists() && !overlap.exists(), "it began before the other had ended: {placed}");
    assert_eq!(placed["PreemptedAllocations"], json!([id]));
    let gone = until("the end of the displaced one", || {
        let alloc = agent.get(&format!("/v1/allocation/{id}"))?;
        (alloc["ClientStatus"] == "complete").then_some(alloc)
    });
    assert_eq!((&gone["DesiredStatus"], &gone["PreemptedByAllocation"]), (&json!("evict"), &placed["ID"]), "{gone}");
    let text = agent.cli_ok(&["alloc", "status", placed["ID"].as_str().expect("an id")]);
    assert!(text.contains(&format!("Waiting for the displaced allocation {}", &id[..8])), "{text}");
    // The end of the displaced one wakes the blocked evaluation, which finds that there is still no room.
    until("both evaluations of the displaced job", || {
        let evals = agent.get("/v1/job/low/evaluations")?;
        let of = |trigger: &str, status: &str| {
            let all = evals.as_array().expect("a list");
            all.iter().any(|eval| eval["TriggeredBy"] == trigger && eval["Status"] == status)
        };
        (of("preemption", "complete") && of("queued-allocs", "blocked")).then_some(())
    });

    // Both sides are explained.
    let text = agent.cli_ok(&["eval", "explain", placed["EvalID"].as_str().expect("an id")]);
    let row = text.lines().find(|line| line.contains("high.g[0]")).expect("the placement");
    assert!(row.contains("preemption 1") && row.contains("binpack") && row.ends_with('1'), "{text}");
    let text = until("why it waits", || {
        let text = agent.cli_ok(&["eval", "explain", "low"]);
        text.contains("of job \"low\": blocked").then_some(text)
    });
    assert!(text.contains("It waits for room on nodes of 1 class"), "{text}");
    assert!(text.contains("Without a place") && text.contains("memory"), "{text}");

    // When the higher one goes, the lower one comes back.
    agent.cli_ok(&["job", "stop", "-detach", "high"]);
    let back = agent.alloc("low", "running");
    assert_ne!(back["ID"], displaced["ID"]);
}
