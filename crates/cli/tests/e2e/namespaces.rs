//! Jobs of another namespace: named by their file, found where all namespaces are asked, changed where they are.

use std::fs;

use serde_json::json;

use crate::agent::{Agent, until};

const SERVICE: &str = "service {\nname = \"web\"\nprovider = \"nomad\"\nport = \"8080\"\naddress = \"10.1.2.3\"\n}\n";

/// A group whose task runs on, with further settings of the group.
fn group(more: &str) -> String {
    format!(
        "group \"g\" {{\n{more}\ntask \"t\" {{\ndriver = \"mock\"\nconfig {{\nrun_for = \"1h\"\n}}\n\
         resources {{\ncpu = 20\nmemory = 16\n}}\n}}\n}}\n"
    )
}

#[test]
fn an_object_is_found_in_its_namespace_when_all_are_asked() {
    let (task, soon) = (group(""), group(&format!("{SERVICE}update {{\nmin_healthy_time = \"10ms\"\n}}")));
    let agent = Agent::start("plugin \"mock\" {}\n");
    agent.put("/v1/namespace/prod", &json!({"Name": "prod"}));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("a job file");
        path.display().to_string()
    };
    let web = file("web.nomad.hcl", &format!("job \"web\" {{\n namespace = \"prod\"\n {soon}\n}}\n"));
    let encode = file(
        "encode.nomad.hcl",
        &format!("job \"encode\" {{\n type = \"batch\"\n parameterized {{\n }}\n {task}\n}}\n"),
    );

    // The file's namespace goes before the flag's; a file without one takes that.
    let plan = agent.cli(&["job", "plan", "-namespace", "default", &web]);
    assert!(String::from_utf8_lossy(&plan.stdout).contains("drover job run -namespace prod -check-index"), "{plan:?}");
    agent.cli_ok(&["job", "validate", "-namespace", "nowhere", &web]);
    agent.cli_ok(&["job", "run", "-namespace", "default", &web]);
    let told = agent.cli_ok(&["job", "run", "-namespace", "prod", &encode]);
    assert!(told.contains("start it with: drover job dispatch -namespace prod encode"), "{told}");
    assert_eq!(agent.get("/v1/jobs"), Some(json!([])), "nothing is in the default namespace");

    // What a page does that changes the job: its text names no namespace, the page does.
    let text = format!("job \"web\" {{\n priority = 60\n {soon}\n}}\n");
    let mut job = agent.put("/v1/jobs/parse", &json!({"JobHCL": text, "Canonicalize": false}));
    assert_eq!(job["Namespace"], json!(null));
    job["Namespace"] = "prod".into();
    let plan = agent.put("/v1/job/web/plan?namespace=prod", &json!({"Job": job, "Diff": true}));
    assert_eq!(plan["Diff"]["Type"], "Edited", "{plan}");
    agent.put(
        "/v1/jobs?namespace=prod",
        &json!({"Job": job, "EnforceIndex": true, "JobModifyIndex": plan["JobModifyIndex"]}),
    );
    let now = agent.get("/v1/job/web?namespace=prod").expect("the job");
    assert_eq!((now["Version"].as_u64(), now["Priority"].as_u64()), (Some(1), Some(60)), "{now}");
    assert_eq!(agent.get("/v1/jobs"), Some(json!([])), "no second job");

    let all = |args: &[&str]| agent.cli_ok(&[args, &["-namespace", "*"]].concat());
    until("its service", || agent.get("/v1/service/web?namespace=prod")?.as_array()?.first().map(|_| ()));
    until("its deployment", || {
        let latest = agent.get("/v1/job/web/deployment?namespace=prod")?;
        (latest["JobVersion"] == 1 && latest["Status"] == "successful").then_some(())
    });
    // Flags end at the first operand.
    let one = |verb: &[&str], rest: &[&str]| agent.cli_ok(&[verb, &["-namespace", "*"], rest].concat());
    for (list, shows) in [
        (&["job", "status"][..], "prod"),
        (&["deployment", "list"], "web"),
        (&["eval", "list"], "prod"),
        (&["volume", "status"], "No dynamic host volumes"),
        (&["service", "list"], "web"),
    ] {
        let text = all(list);
        assert!(text.contains(shows), "{list:?}: {text}");
    }
    for (verb, rest, shows) in [
        (&["job", "status"][..], &["we"][..], "prod"),
        (&["status"], &["web"], "prod"),
        (&["job", "history"], &["web"], "Version"),
        (&["job", "inspect"], &["web"], "\"Namespace\": \"prod\""),
        (&["deployment", "status"], &["web"], "successful"),
        (&["eval", "explain"], &["web"], "of job \"web\""),
        (&["alloc", "status"], &["web"], "running"),
        (&["job", "revert", "-detach"], &["web", "0"], "Evaluation ID"),
    ] {
        let text = one(verb, rest);
        assert!(text.contains(shows), "{verb:?} {rest:?}: {text}");
    }
    let deployments: serde_json::Value =
        serde_json::from_str(&one(&["job", "deployments", "-json"], &["web"])).expect("JSON");
    let created: Vec<u64> =
        deployments.as_array().into_iter().flatten().filter_map(|d| d["CreateIndex"].as_u64()).collect();
    assert!(created.len() > 1 && created.is_sorted_by(|a, b| a > b), "the newest first: {created:?}");

    // A beginning of its name dispatches a job; what is not clear is listed.
    let made = one(&["job", "dispatch", "-detach"], &["enc"]);
    assert!(made.contains("encode/dispatch-"), "{made}");
    let second = fs::read_to_string(&encode).expect("the file").replace("\"encode\"", "\"encode2\"");
    agent.cli_ok(&["job", "run", "-namespace", "prod", &file("second.nomad.hcl", &second)]);
    let unclear = agent.cli(&["job", "dispatch", "-namespace", "prod", "-detach", "enc"]);
    let error = String::from_utf8_lossy(&unclear.stderr);
    assert!(!unclear.status.success() && error.contains("2 job names start with \"enc\": encode, encode2"), "{error}");
    one(&["job", "dispatch", "-detach"], &["encode"]);

    let services = agent.get("/v1/service/web?namespace=prod").expect("the service");
    one(&["service", "delete"], &["web", services[0]["ID"].as_str().expect("an id")]);
    one(&["job", "stop", "-detach"], &["web"]);
    until("its end", || (agent.get("/v1/job/web?namespace=prod")?["Status"] == "dead").then_some(()));
    // Of one name in two namespaces neither is meant.
    agent.cli_ok(&["job", "run", "-detach", "-namespace", "default", &encode]);
    let unclear = agent.cli(&["job", "status", "-namespace", "*", "encode"]);
    let error = String::from_utf8_lossy(&unclear.stderr);
    assert!(!unclear.status.success() && error.contains("choose one with -namespace"), "{error}");
}
