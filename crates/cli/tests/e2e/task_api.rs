//! Tasks reach the HTTP API through their Task API sockets, on servers' nodes and on others.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::Command,
};

use rustix::{
    process::{Gid, Uid},
    thread::{set_thread_gid, set_thread_groups, set_thread_uid},
};

use crate::agent::{Agent, drover, printed, until};

/// A job whose task says its token and where its secrets are.
fn job(name: &str, kind: &str, task: &str) -> String {
    format!(
        "job {name:?} {{\n  type = {kind:?}\n  group \"g\" {{\n    task \"t\" {{\n{task}\n      identity {{ env = \
            true }}\n    }}\n  }}\n}}\n"
    )
}

/// Connects to a socket as another user. A thread has an identity of its own: no program has to be where that user may
/// run it.
fn connect_as(socket: &Path, id: u32) -> io::Result<()> {
    let socket = socket.to_owned();
    let connecting = std::thread::spawn(move || {
        set_thread_groups(&[])?;
        set_thread_gid(Gid::from_raw(id))?;
        set_thread_uid(Uid::from_raw(id))?;
        UnixStream::connect(socket).map(drop)
    });
    connecting.join().expect("no panic")
}

/// Asks by a socket for the status of a job.
fn ask(socket: &Path, token: &str) -> (bool, String) {
    let mut ask = Command::new(drover());
    ask.env("NOMAD_ADDR", format!("unix://{}", socket.display())).env("NOMAD_TOKEN", token).args(["job", "status"]);
    let out = ask.output().expect("runs");
    (out.status.success(), printed(&out))
}

#[test]
fn a_task_in_a_root_of_its_own_asks_and_its_token_ends_with_it() {
    if !rustix::process::geteuid().is_root() {
        skip::cannot("exec tasks need root");
        return;
    }
    let program = drover().parent().expect("a directory").display().to_string();
    let shown = ["/bin", "/lib", "/lib64", "/usr"].map(|path| format!("    {path:?} = {path:?}\n")).concat();
    let agent =
        Agent::start(&format!("client {{\n  chroot_env {{\n{shown}    {program:?} = \"/opt/drover\"\n  }}\n}}"));
    agent.wait_for_driver("exec");
    let script = "export NOMAD_ADDR=unix://$NOMAD_SECRETS_DIR/api.sock; /opt/drover/drover job status inside && echo \
        token $NOMAD_TOKEN; sleep 600";
    let task = |user: &str| {
        format!(
            "      driver = \"exec\"\n      user = {user:?}\n      config {{\n        command = \"/bin/sh\"\n        \
                args = [\"-c\", {script:?}]\n      }}"
        )
    };
    let run = |name: &str| {
        agent.run(&job(name, "service", &task("nobody")).replace("status inside", &format!("status {name}")));
        let alloc = agent.alloc(name, "running");
        let token = until("what it was told", || {
            let said = agent.logs(&alloc, "t");
            said.lines()
                .find_map(|line| line.strip_prefix("token ").map(str::to_owned))
                .filter(|_| said.contains("Status"))
        });
        let id = alloc["ID"].as_str().expect("an id").to_owned();
        (token, agent.dir().join("data/alloc").join(id).join("t/secrets/api.sock"))
    };
    let ((first, _), (second, socket)) = (run("inside"), run("beside"));
    let (answered, text) = ask(&socket, &first);
    assert!(answered, "a token is that of a task, not of a socket: {text}");

    // Another user of the host comes as far as the directory of the task, and no further.
    for dir in socket.ancestors().skip(2).take_while(|dir| dir.starts_with(agent.dir())) {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("mode");
    }
    for (who, denied) in [(4321, true), (0, false)] {
        let kind = connect_as(&socket, who).map_err(|e| e.kind());
        assert_eq!(kind == Err(io::ErrorKind::PermissionDenied), denied, "user {who}: {kind:?}");
    }

    agent.cli_ok(&["job", "stop", "-detach", "inside"]);
    agent.alloc("inside", "complete");
    until("the end of its token", || ask(&socket, &first).1.contains("has ended").then_some(()));
    let (answered, text) = ask(&socket, &second);
    assert!(answered, "the other one's goes on: {text}");
}

#[test]
fn a_task_asks_the_api_with_its_token_and_nobody_without() {
    let server = Agent::start("");
    let other = Agent::start_node(&server, "");
    let job = r#"
        job "asks" {
          type = "system"
          group "g" {
            task "t" {
              driver = "raw_exec"
              config {
                command = "/bin/sh"
                args    = ["-c", "echo $NOMAD_TOKEN $NOMAD_SECRETS_DIR; exec sleep 600"]
              }
              identity { env = true }
            }
          }
        }"#;
    server.run(job);
    let allocs = until("both allocations", || {
        let running: Vec<_> = server.allocs("asks").into_iter().filter(|a| a["ClientStatus"] == "running").collect();
        (running.len() == 2).then_some(running)
    });
    for (n, alloc) in allocs.iter().enumerate() {
        let said = until("its output", || Some(server.logs(alloc, "t")).filter(|text| text.ends_with('\n')));
        let (token, secrets) = said.trim().split_once(' ').expect("a token and a directory");
        let socket = Path::new(secrets).join("api.sock");
        let (answered, text) = ask(&socket, token);
        assert!(answered && text.contains("asks"), "allocation {n}: {text}");
        let (answered, text) = ask(&socket, "");
        assert!(!answered && text.contains("Unauthorized"), "allocation {n}: {text}");
        let (answered, text) = ask(&socket, "e30.e30.x");
        assert!(!answered && text.contains("this cluster has not signed the token"), "allocation {n}: {text}");
    }
    drop(other);
}
