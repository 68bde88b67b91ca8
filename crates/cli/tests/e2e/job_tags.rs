//! Versions with names, actions of jobs, and evaluations that people delete, through the binary.

use std::fs;

use serde_json::{Value, json};

use crate::agent::{Agent, until};

const JOB: &str = r#"
job "web" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["600"]
      }
      env {
        GREETING = "hello"
      }
      action "greet" {
        command = "/bin/sh"
        args    = ["-c", "echo ${NOMAD_JOB_NAME} says ${GREETING}; cat; exit 3"]
      }
      action "where" {
        command = "/bin/sh"
        args    = ["-c", "echo ${node.unique.name}"]
      }
      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
"#;

fn registered(agent: &Agent, text: &str) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("web.nomad.hcl");
    fs::write(&file, text).expect("a job file");
    agent.cli_ok(&["job", "run", "-detach", &file.display().to_string()]);
}

fn read(agent: &Agent, path: &str) -> Value {
    agent.get(path).expect("an answer")
}

fn said(agent: &Agent, args: &[&str]) -> (Option<i32>, String) {
    let out = agent.cli(args);
    (out.status.code(), format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)))
}

#[test]
fn a_version_has_a_name_and_is_kept_for_it() {
    let agent = Agent::start("");
    registered(&agent, JOB);
    let (code, text) = said(&agent, &["job", "tag", "apply", "-name", "golden", "-description", "as it was", "web"]);
    assert_eq!((code, text.trim()), (Some(0), "Job version 0 tagged with name \"golden\""));
    // More versions than are kept otherwise.
    for n in 1..=8 {
        registered(&agent, &JOB.replace("hello", &format!("hello {n}")));
    }
    let history = agent.cli_ok(&["job", "history", "web"]);
    assert!(
        history.contains("Tag Name        = golden") && history.contains("Tag Description = as it was"),
        "{history}"
    );
    let versions = read(&agent, "/v1/job/web/versions")["Versions"].clone();
    let tagged = versions.as_array().expect("versions").last().expect("one").clone();
    assert_eq!((&tagged["Version"], &tagged["VersionTag"]["Name"]), (&json!(0), &json!("golden")), "{versions}");
    assert!(tagged["VersionTag"]["TaggedTime"].as_i64().is_some_and(|at| at > 1_600_000_000_000_000_000), "{tagged}");

    let diff = agent.cli_ok(&["job", "history", "-p", "-diff-tag", "golden", "-version", "8", "web"]);
    assert!(diff.contains("\"hello\"") && diff.contains("\"hello 8\""), "{diff}");
    for (wrong, why) in [
        (&["job", "history", "-p", "-diff-tag", "none", "web"][..], "tag \"none\" not found"),
        (&["job", "tag", "apply", "-name", "golden", "web"], "already exists on a different version"),
        (&["job", "tag", "apply", "-name", "x", "-version", "99", "web"], "version 99"),
        (&["job", "tag", "unset", "-name", "none", "web"], "tag \"none\" not found"),
    ] {
        let (code, text) = said(&agent, wrong);
        assert!(code == Some(1) && text.contains(why), "{wrong:?}: {text}");
    }
    // The same version may have it again, and the newest one another name.
    agent.cli_ok(&["job", "tag", "apply", "-name", "golden", "-version", "0", "-description", "still", "web"]);
    let newest = agent.cli_ok(&["job", "tag", "apply", "-name", "newest", "web"]);
    assert_eq!(newest.trim(), "Job version 8 tagged with name \"newest\"");
    agent.cli_ok(&["job", "revert", "-detach", "web", "golden"]);
    let job = read(&agent, "/v1/job/web");
    assert_eq!((&job["Version"], &job["VersionTag"]), (&json!(9), &Value::Null), "{job}");
    assert_eq!(job["TaskGroups"][0]["Tasks"][0]["Env"]["GREETING"], "hello");

    let gone = agent.cli_ok(&["job", "tag", "unset", "-name", "golden", "web"]);
    assert_eq!(gone.trim(), "Tag \"golden\" removed from job \"web\"");
    registered(&agent, &JOB.replace("hello", "the last"));
    let versions = read(&agent, "/v1/job/web/versions")["Versions"].clone();
    let numbers: Vec<u64> =
        versions.as_array().expect("versions").iter().filter_map(|job| job["Version"].as_u64()).collect();
    assert!(!numbers.contains(&0) && numbers.contains(&8), "{numbers:?}");
}

#[test]
fn an_action_runs_beside_its_task_as_the_job_has_it() {
    let server = Agent::start("name = \"one\"\n");
    let node = Agent::start_node(&server, "name = \"two\"\n");
    registered(
        &server,
        &JOB.replace(
            "  group",
            "  constraint {\n    attribute = \"${node.unique.name}\"\n    value = \"two\"\n  }\n  group",
        ),
    );
    let alloc = server.alloc("web", "running")["ID"].as_str().expect("an id").to_owned();
    for agent in [&server, &node] {
        let (code, text) = said(agent, &["action", "-job", "web", "-i=false", "greet"]);
        assert_eq!((code, text.as_str()), (Some(3), "web says hello\n"));
        let (code, text) = said(agent, &["job", "action", "-job", "web", "-alloc", &alloc, "-i=false", "where"]);
        assert_eq!((code, text.as_str()), (Some(0), "two\n"));
    }
    // The same in a remote task, through its manager.
    registered(&server, &JOB.replace("\"web\"", "\"far\"").replace("raw_exec", "remote_exec"));
    server.alloc("far", "running");
    let (code, text) = said(&server, &["action", "-job", "far", "-i=false", "greet"]);
    assert_eq!((code, text.as_str()), (Some(3), "far says hello\n"));
    server.cli_ok(&["job", "stop", "-yes", "far"]);
    let (code, text) = said(&server, &["action", "-job", "web", "nothing"]);
    assert!(code == Some(1) && text.contains("it has greet of task t in group g"), "{text}");
    let path = |query: &str| format!("/v1/job/web/action?{query}");
    let (status, text) = server.http("GET", &path("action=greet&task=t"), "").expect("an answer");
    assert!(status == 400 && text.contains("missing required parameter \"allocID\""), "{text}");
}

#[test]
fn evaluations_are_deleted_while_the_broker_is_paused() {
    let agent = Agent::start("");
    registered(&agent, JOB);
    let placed = agent.alloc("web", "running")["EvalID"].as_str().expect("an evaluation").to_owned();
    let (code, text) = said(&agent, &["eval", "delete", "-yes", &placed]);
    assert!(code == Some(1) && text.contains("eval broker must be paused to delete evals"), "{text}");
    agent.cli_ok(&["operator", "scheduler", "set-config", "-pause-eval-broker=true"]);
    for n in 0..3 {
        registered(&agent, &JOB.replace("\"web\"", &format!("\"waits-{n}\"")));
    }
    let evals = || read(&agent, "/v1/evaluations?filter=JobID+matches+%22waits%22").as_array().expect("a list").clone();
    assert_eq!(evals().len(), 3);
    // What a task depends on stays, and with it everything else that is named.
    let one = evals()[0]["ID"].as_str().expect("an id").to_owned();
    let (code, text) = said(&agent, &["eval", "delete", "-yes", &one, &placed]);
    assert!(code == Some(1) && text.contains("is not safe to delete"), "{text}");
    assert_eq!(evals().len(), 3);
    let (code, text) = said(&agent, &["eval", "delete", &one]);
    assert!(code == Some(1) && text.contains("use -yes"), "{text}");
    assert_eq!(agent.cli_ok(&["eval", "delete", "-yes", &one]).trim(), "Successfully deleted 1 evaluation");
    let rest = agent.cli_ok(&["eval", "delete", "-yes", "-filter", "JobID matches \"waits|web\""]);
    assert!(rest.contains("Successfully deleted 2 evaluations") && rest.contains("stay"), "{rest}");
    assert_eq!(evals().len(), 0);
    assert!(read(&agent, "/v1/evaluations").to_string().contains(&placed));
    let (status, text) = agent.http("DELETE", "/v1/evaluations", "{}").expect("an answer");
    assert_eq!(status, 400, "{text}");
    // The next evaluation of such a job places it.
    agent.cli_ok(&["operator", "scheduler", "set-config", "-pause-eval-broker=false"]);
    agent.cli_ok(&["job", "eval", "-detach", "waits-1"]);
    until("the job to be placed", || agent.allocs("waits-1").first().cloned());
}
