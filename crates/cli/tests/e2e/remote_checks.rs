//! Checks of a remote task's service: run by whoever manages it, at the address of the task; what is unhealthy is
//! restarted by order of the servers.

use std::net::TcpListener;

use serde_json::json;

use crate::{
    agent::until,
    fleet::{Fleet, text},
};

#[test]
fn a_remote_task_that_its_check_finds_unhealthy_is_restarted_once_and_checked_after_a_hand_over() {
    let mut fleet = Fleet::with(&["a"], "");
    // What answers at the address of the service; the workload itself only lives.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let (well, starts) = (fleet.dir.path().join("well"), fleet.dir.path().join("starts"));
    std::fs::write(&well, "").expect("a file");
    let check = |name: &str, kind: &str| {
        json!({"Name": name, "Type": kind, "Interval": 1_000_000_000_i64, "Timeout": 20_000_000_000_i64,
            "Command": if kind == "script" { "/bin/test" } else { "" },
            "Args": if kind == "script" { json!(["-e", well]) } else { json!([]) }})
    };
    let mut well_check = check("well", "script");
    well_check["CheckRestart"] = json!({"Limit": 2, "Grace": 0});
    // The next one is well from its start: made so from here, it may be too late and cost another restart.
    let script = format!("echo began >> {}; echo > {}; exec sleep 31301", starts.display(), well.display());
    let job = json!({"Job": {
        "ID": "far", "Type": "service",
        "Constraints": [{"LTarget": "${node.class}", "RTarget": "manager", "Operand": "="}],
        "TaskGroups": [{
            "Name": "g", "Update": {"MaxParallel": 0},
            "RestartPolicy": {"Attempts": 5, "Interval": 600_000_000_000_i64, "Delay": 100_000_000, "Mode": "fail"},
            "Services": [{"Name": "far", "Provider": "nomad", "PortLabel": port, "Address": "127.0.0.1",
                "TaskName": "t",
                "Checks": [well_check, check("answers", "tcp")]}],
            "Tasks": [{"Name": "t", "Driver": "remote_exec", "Config": {"command": "/bin/sh", "args": ["-c", script]},
                "Resources": {"CPU": 20, "MemoryMB": 16}}]
        }]
    }});
    fleet.server.put("/v1/jobs", &job);
    let slot = "default/far.g[0]/t";
    let first = fleet.managed(slot, &[]);
    let checks_of = |fleet: &Fleet, alloc: &str| {
        let path = format!("/v1/client/allocation/{alloc}/checks");
        until("both checks to pass", || {
            let checks = fleet.server.get(&path)?;
            let all = checks.as_object().filter(|all| all.len() == 2)?;
            all.values().all(|c| c["Status"] == "success").then_some(())
        });
    };
    checks_of(&fleet, &text(&first["Manager"]["AllocID"]));

    std::fs::remove_file(&well).expect("the file");
    let second = until("the next instance", || {
        fleet
            .record(slot)
            .filter(|r| r["IncarnationID"] != first["IncarnationID"] && r["Observed"]["State"] == "Running")
    });
    assert_eq!((&second["Restarts"], &second["Unhealthy"]), (&json!(1), &json!("")));
    assert_ne!(first["Attributes"]["pid"], second["Attributes"]["pid"]);
    let alloc = text(&second["Manager"]["AllocID"]);
    assert_eq!(alloc, text(&first["Manager"]["AllocID"]), "a restart, not another allocation");
    let events =
        fleet.server.get(&format!("/v1/allocation/{alloc}")).expect("the allocation")["TaskStates"]["t"]["Events"]
            .to_string();
    assert!(events.contains("check \\\"well\\\" of service \\\"far\\\" was unhealthy 2 times in a row"), "{events}");
    checks_of(&fleet, &alloc);

    // After a hand-over the next manager checks it, and finds nothing to restart.
    fleet.join("b", "");
    fleet.server.cli_ok(&["node", "drain", "-enable", "-yes", "-detach", &text(&second["Manager"]["NodeID"])]);
    let third = fleet.managed(slot, &["a"]);
    assert_eq!((&third["IncarnationID"], &third["Restarts"]), (&second["IncarnationID"], &json!(1)));
    checks_of(&fleet, &text(&third["Manager"]["AllocID"]));
    assert_eq!(std::fs::read_to_string(&starts).expect("the file").lines().count(), 2, "it began twice in all");
    fleet.server.cli_ok(&["job", "stop", "far"]);
    until("its end", || fleet.record(slot).is_none().then_some(()));
}
