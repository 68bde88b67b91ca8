//! The configuration of a task's driver is checked when the job is submitted, at its place in the file.

use std::{fs, process::Command};

use driver_sdk::{
    Error, PluginInfo, Started, StopTask, TaskConfig, TaskExit, TaskHandle, async_trait,
    schema::{Spec, object, string},
};
use serde_json::json;

use crate::agent::{Agent, drover, until};

#[test]
fn a_mistake_in_a_driver_configuration_is_shown_where_it_is_written() {
    let agent = Agent::start("");
    agent.wait_for_driver("raw_exec");
    let file = agent.dir().join("typo.nomad.hcl");
    let write = |config: &str| {
        let text = format!(
            "job \"typo\" {{\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"raw_exec\"\n      config \
                {{\n{config}\n      }}\n    }}\n  }}\n}}\n"
        );
        fs::write(&file, text).expect("written");
    };
    let submit = |verb: &str| {
        let out = Command::new(drover())
            .args(["job", verb, "-address", agent.address()])
            .args(if verb == "run" { &["-detach"][..] } else { &[] })
            .arg(&file)
            .env("NO_COLOR", "1")
            .output()
            .expect("runs");
        (
            out.status.code(),
            String::from_utf8_lossy(&out.stdout).into_owned(),
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    };
    write("        comand = \"/bin/true\"\n        args    = [\"a\", [\"b\"]]");
    for (verb, code) in [("validate", 1), ("plan", 255), ("run", 1)] {
        let (status, out, error) = submit(verb);
        assert_eq!((status, out.as_str()), (Some(code), ""), "{verb}: {error}");
        for part in [
            "typo.nomad.hcl:6:9",
            "6 |         comand = \"/bin/true\"",
            "^^^^^^ \"comand\" is not expected here",
            "Unknown attribute in the configuration of driver \"raw_exec\"",
            "did you mean \"command\"?",
            "typo.nomad.hcl:7:19",
            "the attribute \"command\" is required here",
        ] {
            assert!(error.contains(part), "{verb}: {part:?} is not in\n{error}");
        }
    }
    assert_eq!(agent.http("GET", "/v1/job/typo", "").map(|(status, _)| status), Some(404), "nothing was registered");
    // What only the node knows is left to it.
    write(
        "        command = \"${attr.nobody.has}/${env[\"NOMAD_TASK_DIR\"]}\"\n        args    = \
            [\"${NOMAD_PORT_http}\"]",
    );
    let (status, out, error) = submit("validate");
    assert_eq!((status, out.as_str()), (Some(0), "Job validation successful\n"), "{error}");
    // Who speaks to the API alone is told as well.
    let typo = json!({"Job": {"ID": "typo", "Type": "batch", "TaskGroups": [{"Name": "g",
        "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"comand": "/bin/true"}}]}]}});
    let verdict = agent.put("/v1/validate/job", &typo);
    assert_eq!(verdict["DriverConfigValidated"], true, "{verdict}");
    assert!(
        verdict["Error"].as_str().is_some_and(|error| error.contains("config.comand: Unknown attribute")),
        "{verdict}"
    );
}

#[test]
fn a_plugin_that_comes_later_tells_its_schema() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let agent = Agent::start(&format!("plugin_dir = {:?}\nplugin \"late\" {{}}", dir.path()));
    agent.wait_for_driver("raw_exec");
    let known = |driver: &str| {
        let list = agent.get("/v1/drivers/schemas")?;
        list.as_array()?.iter().find(|known| known["Driver"] == driver).cloned()
    };
    let raw_exec = until("the schema of raw_exec", || known("raw_exec"));
    assert_eq!((&raw_exec["Complete"], &raw_exec["Schemas"][0]["Nodes"]), (&true.into(), &1.into()), "{raw_exec}");
    assert_eq!(raw_exec["Schemas"][0]["Schema"]["Attributes"]["command"]["Required"], true, "{raw_exec}");
    assert_eq!(known("mock"), None);
    let plugin = dir.path().join("late");
    testkit::program(&plugin, &format!("#!/bin/sh\nexec {} driver mock\n", drover().display()));
    agent.cli_ok(&["node", "drivers", "reload"]);
    until("the schema of a driver that came with a reload", || known("mock"));
}

#[test]
fn a_configuration_is_read_again_over_http() {
    let plugins = tempfile::tempdir().expect("a temporary directory");
    let server = Agent::start(&format!("plugin_dir = {:?}", plugins.path()));
    let node = Agent::start_node(&server, &format!("plugin_dir = {:?}", plugins.path()));
    let plugin = plugins.path().join("late");
    testkit::program(&plugin, &format!("#!/bin/sh\nexec {} driver mock\n", drover().display()));
    for (agent, method) in [(&server, "PUT"), (&node, "POST")] {
        let file = agent.dir().join("agent.hcl");
        let before = fs::read_to_string(&file).expect("the configuration");
        fs::write(&file, format!("{before}\nplugin \"late\" {{\n")).expect("written");
        let (status, why) = agent.http(method, "/v1/agent/reload", "").expect("an answer");
        assert!(status == 500 && why.contains("nothing is reloaded"), "{status} {why}");
        fs::write(&file, format!("{before}\nplugin \"late\" {{}}\n")).expect("written");
        assert_eq!(agent.http(method, "/v1/agent/reload", ""), Some((200, String::new())));
    }
    until("both nodes to have the driver", || {
        let nodes = server.get("/v1/nodes")?;
        nodes.as_array()?.iter().all(|node| node["Drivers"]["mock"]["Healthy"] == true).then_some(())
    });
}

/// The driver `mock` of another release: it takes one more attribute, and runs nothing.
struct Newer;

#[async_trait]
impl driver_sdk::Driver for Newer {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("mock", "99.0.0")
    }
    fn task_config_schema(&self) -> Spec {
        object([("run_for", string()), ("colour", string())])
    }
    async fn start_task(&self, _: TaskConfig) -> Result<Started, Error> {
        Err(Error::failed("it runs nothing"))
    }
    async fn recover_task(&self, _: TaskHandle) -> Result<(), Error> {
        Err(Error::failed("it runs nothing"))
    }
    async fn wait_task(&self, _: &str) -> Result<TaskExit, Error> {
        Err(Error::failed("it runs nothing"))
    }
    async fn stop_task(&self, _: &str, _: StopTask) -> Result<(), Error> {
        Ok(())
    }
    async fn destroy_task(&self, _: &str, _: bool) -> Result<(), Error> {
        Ok(())
    }
}

/// No test: this program as a plugin, started by the script below. What the test runner prints goes elsewhere.
#[test]
#[ignore = "run as a plugin by `a_driver_of_another_release_widens_what_is_taken`"]
fn the_newer_driver() {
    if std::env::var_os("DROVER_TEST_PLUGIN").is_none() {
        return;
    }
    let out = fs::OpenOptions::new().write(true).open("/dev/fd/3").expect("the host's pipe");
    rustix::stdio::dup2_stdout(&out).expect("standard output");
    drop(out);
    driver_sdk::block_on(driver_sdk::serve(Newer));
    std::process::exit(0);
}

#[test]
fn a_driver_of_another_release_widens_what_is_taken() {
    let server = Agent::start("plugin \"mock\" {}");
    server.wait_for_driver("mock");
    let file = server.dir().join("colour.nomad.hcl");
    let job = "job \"c\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"mock\"\n      config {\n        \
        run_for = \"1s\"\n        colour  = \"red\"\n      }\n    }\n  }\n}\n";
    fs::write(&file, job).expect("written");
    let file = file.display().to_string();
    let validate = |agent: &Agent| {
        let out = agent.cli(&["job", "validate", &file]);
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (code, error) = validate(&server);
    assert!(code == Some(1) && error.contains("\"colour\" is not expected here"), "{error}");
    // On another node, in a plugin of another file, the same driver takes it.
    let plugins = tempfile::tempdir().expect("a temporary directory");
    let plugin = plugins.path().join("newer");
    let program = std::env::current_exe().expect("this program");
    let flags = "--exact driver_schemas::the_newer_driver --ignored --nocapture";
    let script =
        format!("#!/bin/sh\nexport DROVER_TEST_PLUGIN=1\nexec {} {flags} 3>&1 1>/dev/null\n", program.display());
    testkit::program(&plugin, &script);
    let node = Agent::start_node(&server, &format!("plugin_dir = {:?}\nplugin \"newer\" {{}}", plugins.path()));
    until("the schema of the other release", || (validate(&server).0 == Some(0)).then_some(()));
    assert_eq!(validate(&node).0, Some(0), "through the other agent as well");
    // What neither takes is refused as before; the newest release has the word.
    fs::write(&file, job.replace("colour", "color")).expect("written");
    let (code, error) = validate(&server);
    assert!(code == Some(1) && error.contains("did you mean \"colour\"?"), "{error}");
    let known = server.get("/v1/drivers/schemas").expect("schemas");
    let mock = known.as_array().and_then(|all| all.iter().find(|k| k["Driver"] == "mock")).expect("mock").clone();
    assert_eq!((mock["Complete"].as_bool(), mock["Schemas"].as_array().map(Vec::len)), (Some(true), Some(2)), "{mock}");
}
