//! Secrets of tasks: from variables and from an executable, for local and remote tasks, at the time of each start.

use std::{fs, path::Path};

use testkit::Dir;

use crate::agent::{Agent, until};

/// An executable with secrets; its file `locked` makes it refuse.
fn provider(dir: &Path) {
    let file = dir.join("secrets/pass-store");
    fs::create_dir_all(dir.join("secrets")).expect("a directory");
    let script = "#!/bin/sh\ncase $1 in\nfingerprint) echo '{\"type\": \"secrets\", \"version\": \"0.3.0\"}' ;;\n\
                  fetch) if [ -e \"$VAULT_DIR/slow\" ]; then sleep 71502; fi\n\
                  if [ -e \"$VAULT_DIR/locked\" ]; then\n\
                  echo '{\"error\": \"the store is locked\"}'; exit 1; fi\n\
                  echo \"{\\\"result\\\": {\\\"pin\\\": \\\"$CPI_OPERATION-$2-$WHO\\\"}}\" ;;\nesac\n";
    testkit::program(&file, script);
}

fn job(id: &str, driver: &str, dir: &Path) -> String {
    format!(
        r#"job {id:?} {{
  secret "db" {{
    provider = "nomad"
    path     = "nomad/jobs/${{NOMAD_JOB_ID}}/db"
  }}
  group "g" {{
    restart {{
      delay    = "1s"
      attempts = 100
    }}
    task "t" {{
      driver = {driver:?}
      secret "pin" {{
        provider = "pass-store"
        path     = "a/b"
        env {{
          WHO       = "${{NOMAD_TASK_NAME}}"
          VAULT_DIR = "{}"
        }}
      }}
      env {{
        PASSWORD = "${{secret.db.password}}"
      }}
      config {{
        command = "/bin/sh"
        args    = ["-c", "echo env $PASSWORD args $0; cat local/out; exec sleep 600", "${{secret.pin.pin}}"]
      }}
      template {{
        data        = <<EOT
template {{{{ env "PASSWORD" }}}} {{{{ with nomadVar "nomad/jobs/{id}" }}}}{{{{ .note }}}}{{{{ end }}}}
EOT
        destination = "local/out"
        change_mode = "noop"
      }}
    }}
  }}
}}
"#,
        dir.display()
    )
}

#[test]
fn secrets_of_tasks_come_from_variables_and_executables_at_each_start() {
    let dir = Dir::new("secrets");
    provider(dir.path());
    let roles = format!(
        "server {{\n  enabled = true\n}}\nclient {{\n  enabled = true\n  common_plugin_dir = {:?}\n}}",
        dir.path()
    );
    let mut agent = Agent::of_roles(&roles, "");
    let node = agent.get("/v1/nodes").expect("nodes")[0]["ID"].as_str().expect("an id").to_owned();
    let attributes = agent.get(&format!("/v1/node/{node}")).expect("the node")["Attributes"].clone();
    assert_eq!(attributes["plugins.secrets.pass-store.version"], "0.3.0", "{attributes}");
    assert_eq!(attributes["plugins.secrets.nomad.version"], "1.0.0");
    for (id, driver) in [("local", "raw_exec"), ("far", "remote_exec")] {
        agent.cli_ok(&["var", "put", "-force", &format!("nomad/jobs/{id}"), "note=one"]);
        fs::write(dir.path().join("locked"), "").expect("locked");
        // Nothing starts before all are there, and each reason is told.
        agent.run(&job(id, driver, dir.path()));
        let told = |text: &str| {
            until(&format!("{id}: {text}"), || {
                let alloc = agent.allocs(id).first()?["ID"].as_str()?.to_owned();
                agent.cli_ok(&["alloc", "status", &alloc]).contains(text).then_some(())
            });
        };
        told(&format!("secret \"db\": variable nomad/jobs/{id}/db"));
        agent.cli_ok(&["var", "put", "-force", &format!("nomad/jobs/{id}/db"), "password=first"]);
        told("the store is locked");
        fs::remove_file(dir.path().join("locked")).expect("unlocked");
        let alloc = agent.alloc(id, "running");
        until("what the task sees", || {
            let said = agent.logs(&alloc, "t");
            said.contains("env first args fetch-a/b-t\ntemplate first one").then_some(())
        });
        // The specification has the names, and no value.
        let shown = agent.get(&format!("/v1/allocation/{}", alloc["ID"].as_str().expect("an id"))).expect("there");
        let shown = format!("{shown}{}", agent.get(&format!("/v1/job/{id}")).expect("there"));
        assert!(shown.contains("${secret.db.password}") && !shown.contains("first"), "{shown}");
    }
    // A later agent renders with the values of the start, whatever the provider says now.
    agent.kill();
    agent.launch();
    agent.cli_ok(&["var", "put", "-force", "nomad/jobs/local/db", "password=second"]);
    agent.cli_ok(&["var", "put", "-force", "nomad/jobs/local", "note=two"]);
    let alloc = agent.alloc("local", "running");
    let id = alloc["ID"].as_str().expect("an id").to_owned();
    until("a template that is rendered again", || {
        (agent.cli_ok(&["alloc", "fs", &id, "t/local/out"]) == "template first two\n").then_some(())
    });
    // The next start has the new one.
    agent.cli_ok(&["alloc", "restart", &id]);
    until("a start with the new value", || {
        agent.logs(&alloc, "t").contains("env second args fetch-a/b-t\ntemplate second two").then_some(())
    });
    // An agent that dies while it asks leaves a process, and the next one ends it.
    fs::write(dir.path().join("slow"), "").expect("slow");
    agent.run(&job("cut", "raw_exec", dir.path()));
    agent.cli_ok(&["var", "put", "-force", "nomad/jobs/cut/db", "password=first"]);
    agent.cli_ok(&["var", "put", "-force", "nomad/jobs/cut", "note=one"]);
    let asked = || agent.processes().into_iter().find(|(_, command)| command == "sleep 71502").map(|(pid, _)| pid);
    let asked = until("a provider that is asked", asked);
    agent.kill();
    assert!(Path::new(&format!("/proc/{asked}")).exists(), "nobody has ended it yet");
    fs::remove_file(dir.path().join("slow")).expect("fast");
    agent.launch();
    until("the end of what was left", || (!agent.processes().contains_key(&asked)).then_some(()));
    let alloc = agent.alloc("cut", "running");
    until("what the task sees", || agent.logs(&alloc, "t").contains("env first args fetch-a/b-t").then_some(()));
}

#[test]
fn a_provider_that_no_node_has_is_told_as_the_reason() {
    let agent = Agent::start("");
    agent.run(&job("lonely", "raw_exec", Path::new("/")));
    until("the reason", || {
        let why = agent.cli_ok(&["job", "status", "lonely"]);
        why.contains("plugins.secrets.pass-store.version").then_some(())
    });
    let wrong = job("wrong", "raw_exec", Path::new("/")).replace("\"nomad\"", "\"vault\"");
    let dir = Dir::new("secrets");
    let file = dir.path().join("wrong.hcl");
    fs::write(&file, wrong).expect("a job file");
    let refused = agent.cli(&["job", "run", "-detach", file.to_str().expect("a path")]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("secret \"db\": the task needs a vault block"), "{said}");
}
