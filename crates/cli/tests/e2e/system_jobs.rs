//! Deployments of system jobs on a real node: tried, promoted, and taken back.

use serde_json::Value;

use crate::agent::{Agent, until};

fn job(word: &str, command: &str) -> String {
    format!(
        "job \"agent\" {{\n  type = \"system\"\n  update {{\n    max_parallel = 1\n    canary = 100\n    \
         auto_revert = true\n    min_healthy_time = \"200ms\"\n    healthy_deadline = \"60s\"\n    \
         progress_deadline = \"90s\"\n  }}\n  group \"g\" {{\n    restart {{\n      attempts = 0\n      \
         mode = \"fail\"\n    }}\n    task \"t\" {{\n      driver = \"raw_exec\"\n      env {{\n        \
         WORD = {word:?}\n      }}\n      config {{\n        command = \"/bin/sh\"\n        \
         args = [\"-c\", {command:?}]\n      }}\n    }}\n  }}\n}}\n"
    )
}

fn deployment(agent: &Agent, version: u64, status: &str) -> Value {
    until(&format!("the deployment of version {version} is {status}"), || {
        let all = agent.get("/v1/job/agent/deployments")?.as_array()?.clone();
        all.into_iter().find(|d| d["JobVersion"] == version && d["Status"] == status)
    })
}

#[test]
fn a_version_is_tried_promoted_and_taken_back() {
    let agent = Agent::start("");
    agent.run(&job("first", "exec sleep 600"));
    assert_eq!(deployment(&agent, 0, "successful")["TaskGroups"]["g"]["DesiredTotal"], 1);

    agent.run(&job("second", "exec sleep 600"));
    let d = until("the canary is healthy", || {
        let d = agent.get("/v1/job/agent/deployment")?;
        (d["JobVersion"] == 1 && d["TaskGroups"]["g"]["HealthyAllocs"] == 1).then_some(d)
    });
    let group = &d["TaskGroups"]["g"];
    assert_eq!((&group["DesiredCanaries"], &group["Promoted"]), (&1.into(), &false.into()), "{d}");
    assert_eq!(d["StatusDescription"], "Deployment is running but requires manual promotion");
    agent.cli_ok(&["job", "promote", "agent"]);
    deployment(&agent, 1, "successful");

    // On a busy machine it lives for a while, and is not healthy for that.
    agent.run(&job("third", "exit 1").replace("min_healthy_time = \"200ms\"", "min_healthy_time = \"15s\""));
    let failed = deployment(&agent, 2, "failed");
    let why = failed["StatusDescription"].as_str().unwrap_or_default();
    assert!(why.ends_with("rolling back to job version 1"), "{why}");
    deployment(&agent, 3, "successful");
    let alloc = agent.alloc("agent", "running");
    assert_eq!((&alloc["JobVersion"], &alloc["DesiredStatus"]), (&3.into(), &"run".into()), "{alloc}");
    let text = agent.cli_ok(&["job", "status", "agent"]);
    assert!(text.contains("Latest Deployment") && text.contains("successful"), "{text}");
}
