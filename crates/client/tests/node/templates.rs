//! Templates with real tasks: rendered before the start, waited for, rendered again, and what follows a change.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use model::{
    AllocId, ClientStatus, GoDuration, TaskRunState,
    task::{ChangeScript, Template},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
};

use crate::fixture::{Rig, alloc, end, eventually, kinds, restarts, sh, task};

fn template(destination: &str, data: &str, change_mode: &str) -> Template {
    Template {
        destination: Some(destination.into()),
        data: Some(data.into()),
        change_mode: Some(change_mode.into()),
        perms: Some("0640".into()),
        splay: Some(GoDuration::from_millis(1)),
        ..Template::default()
    }
}

fn file(rig: &Rig, id: AllocId, path: &str) -> PathBuf {
    rig.alloc_dir(id).join(path)
}

fn text(rig: &Rig, id: AllocId, path: &str) -> String {
    fs::read_to_string(file(rig, id, path)).unwrap_or_default()
}

/// Writes a file that is looked at again and again: nobody sees a part of it.
fn put(rig: &Rig, id: AllocId, path: &str, text: &str) {
    let draft = file(rig, id, &format!("{path}.new"));
    fs::write(&draft, text).and_then(|()| fs::rename(&draft, file(rig, id, path))).expect("put");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_variables_are_there_before_the_task() {
    let rig = Rig::new().await;
    let mut config = rig.config();
    config.meta = [("rack".to_owned(), "r1".to_owned())].into();
    let node = rig.node_with(config).await;
    rig.driver_ready("raw_exec").await;
    // It runs on: with its end its secrets go.
    let run = "cat local/conf/app.conf > $NOMAD_ALLOC_DIR/data/seen; echo $COLOUR-$1 >> $NOMAD_ALLOC_DIR/data/seen; \
        exec sleep 600";
    let mut t = sh("t", run);
    t.config.insert("args".into(), json!(["-c", t.config["args"][1], "sh", "${COLOUR}"]));
    t.env.insert("WHO".into(), "${NOMAD_TASK_NAME}".into());
    t.templates = vec![
        template(
            "local/conf/app.conf",
            "task {{ env \"WHO\" }}{{ range $i, $x := split \",\" \"a,b\" }} {{ $i }}{{ $x }}{{ end }}\n",
            "noop",
        ),
        template(
            "local/node",
            "{{ env \"node.unique.name\" }} {{ env \"attr.kernel.name\" }} {{ env \"meta.rack\" }}",
            "noop",
        ),
        Template {
            env: Some(true),
            ..template("${NOMAD_SECRETS_DIR}/vars.env", "COLOUR={{ \"green\" | toUpper }}\n", "restart")
        },
        Template {
            source: Some("local/conf/app.conf".into()),
            data: None,
            left_delimiter: Some("<<".into()),
            ..template("local/copy", "", "noop")
        },
    ];
    let (a, _) = rig.place("batch", vec![t]);
    eventually("what the task sees", || text(&rig, a.id, "alloc/data/seen").contains("GREEN")).await;
    assert_eq!(text(&rig, a.id, "alloc/data/seen"), "task t 0a 1b\nGREEN-GREEN\n");
    assert_eq!(text(&rig, a.id, "t/local/copy"), "task t 0a 1b\n");
    assert_eq!(text(&rig, a.id, "t/local/node"), "n1 linux r1");
    let mode = |path| fs::metadata(file(&rig, a.id, path)).expect("there").permissions().mode() & 0o7777;
    assert_eq!((mode("t/local/conf/app.conf"), mode("t/secrets/vars.env")), (0o640, 0o640));
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_told_and_waited_for() {
    let (rig, node) = Rig::with("mock").await;
    let mut t = task("t", "mock", json!({"run_for": "1ms"}));
    t.templates = vec![template("local/out", "{{ file \"local/in\" }}!", "noop")];
    let (a, job) = alloc("batch", vec![t.clone()]);
    let (b, job_b) = alloc("batch", vec![t]);
    rig.server.place(&a, &job);
    rig.server.place(&b, &job_b);
    for id in [a.id, b.id] {
        let missing = |u: &model::AllocClientUpdate| {
            u.task_states["t"]
                .events
                .iter()
                .any(|e| e.kind == "Template" && e.display_message == "Missing: file(local/in)")
        };
        rig.server.alloc(id, "the event of missing data", missing).await;
    }
    put(&rig, a.id, "t/local/in", "here");
    rig.server.status(a.id, ClientStatus::Complete).await;
    assert_eq!(text(&rig, a.id, "t/local/out"), "here!");
    // The other one is stopped while it waits: nothing was started, nothing is left.
    rig.server.stop_alloc(b.id);
    let update = rig.server.alloc(b.id, "the end", |u| u.client_status.terminal()).await;
    assert!(!kinds(&update.task_states["t"]).contains(&"Started"), "{:?}", kinds(&update.task_states["t"]));
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_fail_the_start_with_the_place() {
    let (rig, node) = Rig::with("mock").await;
    for (one, wanted) in [
        (template("local/x", "a\n{{ file \"/etc/hostname\" }}", "noop"), "line 2 column 4"),
        (
            template("local/x", "{{ file \"../../../../../../etc/hostname\" }}", "noop"),
            "is not below the task's directories",
        ),
        (template("../../x", "a", "noop"), "is not below the task's directories"),
        (template("private/x", "a", "noop"), "the node's own"),
        (
            Template { env: Some(true), ..template("local/x", "no variable", "noop") },
            "line 1 of the result is no KEY=value",
        ),
    ] {
        let mut t = task("t", "mock", json!({"run_for": "1ms"}));
        t.templates = vec![one];
        let (a, _) = rig.place("batch", vec![t]);
        let update = rig.server.status(a.id, ClientStatus::Failed).await;
        let failure = update.task_states["t"].events.iter().find(|e| e.kind == "Setup Failure").expect("setup failure");
        assert!(failure.display_message.contains(wanted), "{failure:?}");
    }
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_made_known_as_the_job_wants() {
    let (rig, node) = Rig::with("raw_exec").await;
    let from = "{{ file (printf \"%s/data/in\" (env \"NOMAD_ALLOC_DIR\")) }}";
    let waits = "trap 'cat local/out >> $NOMAD_ALLOC_DIR/data/got-$NOMAD_TASK_NAME' HUP; echo $$ >> \
        $NOMAD_ALLOC_DIR/data/runs-$NOMAD_TASK_NAME; \
                 while :; do sleep 0.05; done";
    let mut signalled = sh("signalled", waits);
    signalled.templates =
        vec![Template { change_signal: Some("SIGHUP".into()), ..template("local/out", from, "signal") }];
    let mut scripted = sh("scripted", waits);
    let script = |args: &str, fail_on_error| ChangeScript {
        command: Some("/bin/sh".into()),
        args: Some(vec!["-c".into(), args.into()]),
        timeout: Some(GoDuration::from_secs(20)),
        fail_on_error: Some(fail_on_error),
        run_on_first_render: None,
    };
    let copy = script("cp ${NOMAD_TASK_DIR}/out ${NOMAD_ALLOC_DIR}/data/got-scripted", false);
    scripted.templates = vec![Template { change_script: Some(copy), ..template("local/out", from, "script") }];
    let mut restarted = sh("restarted", waits);
    restarted.templates = vec![template("local/out", from, "restart")];
    let mut silent = sh("silent", waits);
    silent.templates = vec![template("local/out", from, "noop")];
    let mut once = sh("once", waits);
    once.templates = vec![Template { once: Some(true), ..template("local/out", from, "restart") }];
    let mut first = sh("first", "echo -n one > $NOMAD_ALLOC_DIR/data/in");
    first.lifecycle = Some(model::task::Lifecycle { hook: "prestart".into(), sidecar: false });
    let (a, _) = rig.run("service", vec![first, signalled, scripted, restarted, silent, once]).await;
    let tasks = ["signalled", "scripted", "restarted", "silent", "once"];
    for t in tasks {
        // A trap is there once the shell has said its number.
        eventually("the shells", || !text(&rig, a.id, &format!("alloc/data/runs-{t}")).is_empty()).await;
        assert_eq!(text(&rig, a.id, &format!("{t}/local/out")), "one");
    }
    put(&rig, a.id, "alloc/data/in", "two");
    eventually("the signal", || text(&rig, a.id, "alloc/data/got-signalled") == "two").await;
    eventually("the script", || text(&rig, a.id, "alloc/data/got-scripted") == "two").await;
    eventually("the second run", || text(&rig, a.id, "alloc/data/runs-restarted").lines().count() == 2).await;
    eventually("the silent file", || text(&rig, a.id, "silent/local/out") == "two").await;
    assert_eq!(text(&rig, a.id, "restarted/local/out"), "two");
    assert_eq!(text(&rig, a.id, "once/local/out"), "one");
    for t in ["signalled", "scripted", "silent", "once"] {
        assert_eq!(text(&rig, a.id, &format!("alloc/data/runs-{t}")).lines().count(), 1, "{t} runs on");
    }
    let said = |u: &model::AllocClientUpdate, t: &str, kind: &str, part: &str| {
        u.task_states[t].events.iter().any(|e| e.kind == kind && e.display_message.contains(part))
    };
    let events = |u: &model::AllocClientUpdate| {
        said(u, "signalled", "Signaling", "Template re-rendered")
            && said(u, "scripted", "Template", "ran script")
            && said(u, "restarted", "Restart Signaled", "re-rendered")
    };
    rig.server.alloc(a.id, "the events of the changes", events).await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_for_the_first_rendering_runs_once_in_each_start() {
    let (rig, node) = Rig::with("raw_exec").await;
    let script = |text: &str, fail_on_error| ChangeScript {
        command: Some("/bin/sh".into()),
        args: Some(vec!["-c".into(), text.into()]),
        timeout: Some(GoDuration::from_secs(20)),
        fail_on_error: Some(fail_on_error),
        run_on_first_render: Some(true),
    };
    let counts = "cat ${NOMAD_TASK_DIR}/out >> ${NOMAD_ALLOC_DIR}/data/begun";
    let of =
        |script: ChangeScript, mode: &str| Template { change_script: Some(script), ..template("local/out", "x", mode) };
    let mut begins = sh("begins", "echo $$ > $NOMAD_ALLOC_DIR/data/pid; exec sleep 600");
    begins.templates = vec![Template { once: Some(true), ..of(script(counts, false), "script") }];
    begins.restart = Some(restarts(5));
    // It means nothing without the mode.
    let mut other = sh("other", "exec sleep 600");
    other.templates = vec![of(script("touch ${NOMAD_ALLOC_DIR}/data/wrong", false), "noop")];
    let (a, _) = rig.run("service", vec![begins, other]).await;
    eventually("the script", || text(&rig, a.id, "alloc/data/begun") == "x").await;
    // Without the record the next agent runs it again.
    let recorded = || text(&rig, a.id, "begins/private/templates.json").contains("\"begun\":true");
    eventually("the record that it has run", recorded).await;
    eventually("the pid", || text(&rig, a.id, "alloc/data/pid").ends_with('\n')).await;
    // The next agent has nothing to do; the next start has.
    drop(node);
    let node = rig.start_again(rig.config()).await;
    eventually("the task to be recovered", || node.handle().running(a.id, "begins")).await;
    let pid = text(&rig, a.id, "alloc/data/pid").trim().parse().expect("a pid");
    assert_eq!(text(&rig, a.id, "alloc/data/begun"), "x");
    crate::faults::kill(pid);
    eventually("the script of the second start", || text(&rig, a.id, "alloc/data/begun") == "xx").await;
    let again = |u: &model::AllocClientUpdate| {
        let state = &u.task_states["begins"];
        (state.restarts, state.state) == (1, TaskRunState::Running)
    };
    rig.server.alloc(a.id, "the second start", again).await;
    assert_eq!(text(&rig, a.id, "alloc/data/begun"), "xx");
    assert_eq!(text(&rig, a.id, "alloc/data/wrong"), "");
    end(&rig, node).await;
}

/// A registry with one service: its ports are known once the index is above 0, and a read of the present index waits.
struct Registry {
    state: watch::Sender<(u64, Vec<u16>)>,
    addr: String,
    serving: tokio::task::JoinSet<()>,
}

impl Registry {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("address").to_string();
        let state = watch::Sender::new((0_u64, Vec::<u16>::new()));
        let mut serving = tokio::task::JoinSet::new();
        let states = state.subscribe();
        serving.spawn(async move {
            // Ends with its connections.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut state = states.clone();
                connections.spawn(async move {
                    let mut asked = vec![0; 4096];
                    while let Ok(n @ 1..) = stream.read(&mut asked).await {
                        let request = String::from_utf8_lossy(&asked[..n]).into_owned();
                        assert!(request.starts_with("GET /v1/service/web?"), "{request}");
                        let of = request
                            .split_once("index=")
                            .and_then(|(_, r)| r.split(['&', ' ']).next()?.parse().ok())
                            .unwrap_or(0);
                        let Ok((index, ports)) = state.wait_for(|(now, _)| *now > of).await.map(|s| s.clone()) else {
                            return;
                        };
                        let rows: Vec<_> = ports
                            .iter()
                            .map(|p| json!({"ID": p.to_string(), "ServiceName": "web", "Port": p}))
                            .collect();
                        let body = serde_json::to_string(&rows).expect("JSON");
                        let head = format!(
                            "HTTP/1.1 200 OK\r\nx-nomad-index: {index}\r\ncontent-length: {}\r\n\r\n",
                            body.len()
                        );
                        if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { state, addr, serving }
    }

    fn set(&self, ports: &[u16]) {
        self.state.send_modify(|(index, at)| (*index, *at) = (*index + 1, ports.to_vec()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_are_waited_for_followed_and_kept_while_no_server_answers() {
    let rig = Rig::new().await;
    let mut registry = Registry::start().await;
    rig.server.http(&registry.addr);
    let node = rig.node_of("raw_exec").await;
    let data = "{{ range nomadService \"web\" }}{{ .Port }} {{ else }}nobody{{ end }}";
    let run = "echo \"$$ $(cat local/out)\" >> $NOMAD_ALLOC_DIR/data/$NOMAD_TASK_NAME; exec sleep 600";
    let mut restarted = sh("restarted", run);
    restarted.templates = vec![template("local/out", data, "restart")];
    let mut silent = sh("silent", run);
    silent.templates = vec![template("local/out", data, "noop")];
    silent.restart = Some(restarts(5));
    let (a, _) = rig.place("service", vec![restarted, silent]);
    let missing = |u: &model::AllocClientUpdate| {
        u.task_states
            .values()
            .all(|t| t.events.iter().any(|e| e.kind == "Template" && e.display_message == "Missing: nomadService(web)"))
    };
    rig.server.alloc(a.id, "the events of missing services", missing).await;

    registry.set(&[81]);
    rig.server.status(a.id, ClientStatus::Running).await;
    let runs = |task: &str| {
        let all = text(&rig, a.id, &format!("alloc/data/{task}"));
        all.lines()
            .filter_map(|l| l.split_once(' ').map(|(pid, said)| (pid.parse().expect("pid"), said.to_owned())))
            .collect::<Vec<(i32, String)>>()
    };
    let said = |task: &str| runs(task).into_iter().map(|(_, said)| said).collect::<Vec<_>>();
    eventually("the first runs", || said("restarted") == ["81 "] && said("silent") == ["81 "]).await;
    registry.set(&[81, 82]);
    eventually("the second run", || said("restarted") == ["81 ", "81 82 "]).await;
    eventually("the silent file", || text(&rig, a.id, "silent/local/out") == "81 82 ").await;
    registry.set(&[]);
    eventually("the third run", || said("restarted").last().is_some_and(|s| s == "nobody")).await;
    eventually("the silent file", || text(&rig, a.id, "silent/local/out") == "nobody").await;
    assert_eq!(runs("silent").len(), 1, "nothing follows a change there");

    // Nobody answers any more: what is known stays, also for a task that is started again.
    registry.serving.shutdown().await;
    let silent = runs("silent").last().expect("a run").0;
    crate::faults::kill(silent);
    eventually("the run after a failure", || said("silent") == ["81 ", "nobody"]).await;
    assert_eq!(said("restarted"), ["81 ", "81 82 ", "nobody"]);
    tokio::time::timeout(Duration::from_secs(20), end(&rig, node)).await.expect("an end that waits for nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_must_not_fail_fails_the_task() {
    let (rig, node) = Rig::with("raw_exec").await;
    let mut t = sh("t", "exec sleep 600");
    let script = ChangeScript {
        command: Some("/bin/sh".into()),
        args: Some(vec!["-c".into(), "echo no such thing >&2; exit 3".into()]),
        timeout: Some(GoDuration::from_secs(20)),
        fail_on_error: Some(true),
        run_on_first_render: None,
    };
    t.templates =
        vec![Template { change_script: Some(script), ..template("local/out", "{{ file \"local/given\" }}", "script") }];
    let mut first = sh("first", "mkdir -p ../t/local && echo one > ../t/local/given");
    first.lifecycle = Some(model::task::Lifecycle { hook: "prestart".into(), sidecar: false });
    let (a, _) = rig.run("service", vec![first, t]).await;
    rig.server.alloc(a.id, "the running task", |u| kinds(&u.task_states["t"]).contains(&"Started")).await;
    put(&rig, a.id, "t/local/given", "two");
    let update = rig.server.status(a.id, ClientStatus::Failed).await;
    let state = &update.task_states["t"];
    assert!(state.failed);
    let said: Vec<&str> = state.events.iter().map(|e| e.display_message.as_str()).collect();
    assert!(said.iter().any(|m| m.contains("exit code 3: no such thing")), "{said:#?}");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_agent_restarts_only_what_has_changed_meanwhile() {
    let (rig, node) = Rig::with("raw_exec").await;
    let run = "echo $$ >> $NOMAD_ALLOC_DIR/data/runs-$NOMAD_TASK_NAME; exec sleep 600";
    let mut tasks = Vec::new();
    for name in ["same", "changed"] {
        let mut t = sh(name, run);
        t.restart = Some(restarts(0));
        let data =
            format!("{{{{ timestamp }}}} {{{{ file (printf \"%s/data/in-{name}\" (env \"NOMAD_ALLOC_DIR\")) }}}}");
        t.templates = vec![template("local/out", &data, "restart")];
        tasks.push(t);
    }
    let mut first = sh("first", "for t in same changed; do echo -n one > $NOMAD_ALLOC_DIR/data/in-$t; done");
    first.lifecycle = Some(model::task::Lifecycle { hook: "prestart".into(), sidecar: false });
    tasks.push(first);
    let (a, _) = rig.place("service", tasks);
    let runs = |name: &str| text(&rig, a.id, &format!("alloc/data/runs-{name}")).lines().count();
    eventually("both tasks", || runs("same") == 1 && runs("changed") == 1).await;
    let before = text(&rig, a.id, "same/local/out");
    node.stop().await;
    // What a task does to its own file is its own affair.
    fs::write(file(&rig, a.id, "same/local/out"), "mine").expect("write");
    fs::write(file(&rig, a.id, "alloc/data/in-changed"), "two").expect("write");
    let node = rig.node().await;
    eventually("the restart", || runs("changed") == 2).await;
    assert!(text(&rig, a.id, "changed/local/out").ends_with(" two"));
    // Watched again: a later change is seen as well.
    put(&rig, a.id, "alloc/data/in-changed", "three");
    eventually("another restart", || runs("changed") == 3).await;
    assert_eq!((runs("same"), text(&rig, a.id, "same/local/out").as_str()), (1, "mine"));
    assert!(before.ends_with(" one"));
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_waits_for_its_turn_and_a_new_agent_finds_nothing_newer() {
    let (rig, node) = Rig::with("raw_exec").await;
    let mut t = sh("t", "cat local/out >> $NOMAD_ALLOC_DIR/data/runs; exec sleep 600");
    let data = "{{ file (printf \"%s/data/in\" (env \"NOMAD_ALLOC_DIR\")) }}\n";
    t.templates = vec![Template { rolling: Some(true), ..template("local/out", data, "restart") }];
    let mut first = sh("first", "echo -n one > $NOMAD_ALLOC_DIR/data/in");
    first.lifecycle = Some(model::task::Lifecycle { hook: "prestart".into(), sidecar: false });
    let (mut a, mut job) = alloc("service", vec![t, first]);
    let update = model::Update { min_healthy_time: Some(GoDuration::from_millis(200)), ..model::Update::default() };
    job.task_groups[0].update = Some(update);
    rig.server.place(&a, &job);
    let runs = || text(&rig, a.id, "alloc/data/runs");
    eventually("the first run", || runs() == "one\n").await;
    put(&rig, a.id, "alloc/data/in", "two");
    let waits = rig.server.alloc(a.id, "the wait", |u| u.task_states["t"].rolling_restart.is_some()).await;
    let waits = waits.task_states["t"].rolling_restart.clone().expect("it waits");
    assert_eq!((waits.turn, waits.begun), (1, 0), "{waits:?}");
    // Whatever uses the file has the new one at once.
    assert_eq!(text(&rig, a.id, "t/local/out"), "two\n");
    node.stop().await;
    // The first look of the next agent writes the file again, with the same data.
    fs::write(file(&rig, a.id, "t/local/out"), "mine").expect("write");
    let node = rig.node().await;
    eventually("a look of the new agent", || text(&rig, a.id, "t/local/out") == "two\n").await;
    put(&rig, a.id, "alloc/data/in", "three");
    let newer = |u: &model::AllocClientUpdate| {
        u.task_states["t"].rolling_restart.as_ref().is_some_and(|r| r.data != waits.data && r.changed > waits.changed)
    };
    rig.server.alloc(a.id, "newer data", newer).await;
    for update in rig.server.now().updates {
        let told = update.task_states.get("t").and_then(|t| t.rolling_restart.clone());
        let fits =
            told.is_none_or(|r| r.asked == waits.asked && (r.data == waits.data) == (r.changed == waits.changed));
        assert!(fits, "the same data were taken for newer: {update:?}");
    }
    assert_eq!(runs(), "one\n", "it waits for its turn");
    a.desired_transition.rolling_restart = 1;
    a.alloc_modify_index += 1;
    rig.server.place(&a, &job);
    eventually("the second run", || runs() == "one\nthree\n").await;
    rig.server.alloc(a.id, "its health", |u| u.task_states["t"].rolling_restart.is_none()).await;
    end(&rig, node).await;
}
