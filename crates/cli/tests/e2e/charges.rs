//! What has spent the restart budget of a task, as people are told it.

use serde_json::{Value, json};

use crate::{
    agent::until,
    fleet::{Fleet, mock_job, text},
};

const SLOT: &str = "default/far.g[0]/t";

fn policy(job: &mut Value, attempts: u32) {
    let group = &mut job["Job"]["TaskGroups"][0];
    group["RestartPolicy"] =
        json!({"Attempts": attempts, "Interval": 3_600_000_000_000_i64, "Delay": 100_000_000, "Mode": "fail"});
    group["ReschedulePolicy"] = json!({"Attempts": 0, "Unlimited": false});
}

fn causes(charges: &Value) -> Vec<String> {
    charges.as_array().into_iter().flatten().map(|charge| text(&charge["Cause"])).collect()
}

#[test]
fn what_has_spent_the_budget_of_restarts_is_told_over_a_hand_over() {
    let mut fleet = Fleet::with(&["a", "b"], "");
    let mut far = mock_job("far", 1);
    policy(&mut far, 5);
    far["Job"]["TaskGroups"][0]["Tasks"][0]["Config"]["exit_code"] = json!(3);
    fleet.server.put("/v1/jobs", &far);
    let first = fleet.managed(SLOT, &[]);
    let ends = |fleet: &Fleet, charged: usize| {
        let one = fleet.provider.live().expect("reads").pop().expect("it runs");
        fleet.provider.end(&one.id).expect("writes");
        until("the next instance, and what the last one has cost", || {
            fleet
                .record(SLOT)
                .filter(|r| r["Observed"]["State"] == "Running" && causes(&r["RestartCharges"]).len() == charged)
        })
    };
    let once = ends(&fleet, 1);
    let manager = text(&first["ManagerName"]);
    fleet.kill(&manager);
    let adopted = fleet.managed(SLOT, &[&manager]);
    assert_eq!(
        adopted["RestartCharges"], once["RestartCharges"],
        "a lost manager costs nothing and takes nothing along"
    );
    assert!(causes(&adopted["RestartCharges"])[0].starts_with("exit code 3"), "{adopted}");
    let twice = ends(&fleet, 2);
    assert_eq!(twice["RestartCharges"][0], once["RestartCharges"][0]);
    let alloc = text(&twice["AllocID"]);
    for shown in [fleet.server.cli_ok(&["remote", "status", "far"]), fleet.server.cli_ok(&["alloc", "status", &alloc])]
    {
        assert!(shown.contains("attempts spent in this interval: 2 of 5"), "{shown}");
        assert_eq!(
            shown.lines().filter(|l| l.starts_with("Spent On") && l.contains("exit code 3")).count(),
            2,
            "{shown}"
        );
    }

    let mut near = json!({"Job": {"ID": "near", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [{
        "Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sh", "args": ["-c", "exit 5"]},
        "Resources": {"CPU": 20, "MemoryMB": 16}
    }]}]}});
    policy(&mut near, 1);
    fleet.server.put("/v1/jobs", &near);
    let failed = fleet.server.alloc("near", "failed");
    let id = text(&failed["ID"]);
    let whole = fleet.server.get(&format!("/v1/allocation/{id}")).expect("an allocation");
    assert_eq!(causes(&whole["TaskStates"]["t"]["RestartCharges"]), ["exit code 5"]);
    let shown = fleet.server.cli_ok(&["alloc", "status", &id]);
    let table: Vec<&str> = shown.lines().skip_while(|l| *l != "Restart Attempts Spent:").take(3).collect();
    assert!(table.len() == 3 && table[2].ends_with("exit code 5"), "{shown}");
}
