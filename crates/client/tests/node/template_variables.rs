//! Templates with variables of the cluster: waited for, followed, and read with the rights of the task only.

use std::{collections::BTreeMap, fs, time::Duration};

use model::{AllocClientUpdate, AllocId, ClientStatus, GoDuration, task::Template};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
};

use crate::fixture::{Rig, end, eventually, kinds, leave, managed, nth, restarts, running, sh, task};

/// Variables by their path. Those below `nomad/jobs/own` are read with the token of a default identity, others by
/// nobody. A read of the present index waits.
struct Store {
    state: watch::Sender<(u64, BTreeMap<String, String>)>,
    addr: String,
    _serving: tokio::task::JoinSet<()>,
}

impl Store {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("address").to_string();
        let state = watch::Sender::new((1_u64, BTreeMap::new()));
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
                        let answer = answer(&request, &mut state).await;
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { state, addr, _serving: serving }
    }

    fn set(&self, path: &str, value: Option<&str>) {
        self.state.send_modify(|(index, variables)| {
            *index += 1;
            match value {
                Some(value) => drop(variables.insert(path.to_owned(), value.to_owned())),
                None => drop(variables.remove(path)),
            }
        });
    }
}

async fn answer(request: &str, state: &mut watch::Receiver<(u64, BTreeMap<String, String>)>) -> String {
    let said = |status: &str, index: u64, body: &str| {
        format!("HTTP/1.1 {status}\r\nx-nomad-index: {index}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let target = request.split(' ').nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let of = query.split('&').find_map(|pair| pair.strip_prefix("index=")).and_then(|n| n.parse().ok()).unwrap_or(0);
    let (index, variables) = state.wait_for(|(now, _)| *now > of).await.expect("the store lives").clone();
    if path == "/v1/vars" {
        let rows: Vec<_> = variables.keys().map(|path| json!({"Namespace": "default", "Path": path})).collect();
        return said("200 OK", index, &json!(rows).to_string());
    }
    let path = path.strip_prefix("/v1/var/").expect("a variable").replace("%2F", "/");
    if !path.starts_with("nomad/jobs/own") || !request.to_ascii_lowercase().contains("x-nomad-token: default-") {
        return said("403 Forbidden", 0, "Permission denied").replace("x-nomad-index: 0\r\n", "");
    }
    match variables.get(&path) {
        Some(value) => {
            said("200 OK", index, &json!({"Namespace": "default", "Path": path, "Items": {"v": value}}).to_string())
        }
        None => said("404 Not Found", index, "variable not found"),
    }
}

fn template(data: &str, change_mode: &str) -> Template {
    Template {
        destination: Some("local/out".into()),
        data: Some(data.into()),
        change_mode: Some(change_mode.into()),
        splay: Some(GoDuration::from_millis(1)),
        ..Template::default()
    }
}

fn text(rig: &Rig, id: AllocId, path: &str) -> String {
    fs::read_to_string(rig.alloc_dir(id).join(path)).unwrap_or_default()
}

fn told<'u>(u: &'u AllocClientUpdate, task: &str) -> Vec<&'u str> {
    u.task_states.get(task).map_or_else(Vec::new, |t| t.events.iter().map(|e| e.display_message.as_str()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_are_waited_for_and_followed() {
    let rig = Rig::new().await;
    let store = Store::start().await;
    rig.server.http(&store.addr);
    rig.server.tokens(Duration::ZERO);
    let node = rig.node_of("raw_exec").await;
    let mut restarted = sh("restarted", "cat local/out >> $NOMAD_ALLOC_DIR/data/restarted; exec sleep 600");
    restarted.templates = vec![template("{{ with nomadVar \"nomad/jobs/own\" }}{{ .v }},{{ end }}", "restart")];
    let mut silent = sh("silent", "exec sleep 600");
    let data = "{{ nomadVarExists \"nomad/jobs/own\" }} {{ range nomadVarList }}{{ .Path }} {{ end }}";
    silent.templates = vec![template(data, "noop")];
    let (a, _) = rig.place("service", vec![restarted, silent]);
    let missing = |u: &AllocClientUpdate| told(u, "restarted").contains(&"Missing: nomadVar(nomad/jobs/own)");
    rig.server.alloc(a.id, "the event of the missing variable", missing).await;
    eventually("what is there without it", || text(&rig, a.id, "silent/local/out") == "false ").await;

    store.set("nomad/jobs/own", Some("1"));
    rig.server.status(a.id, ClientStatus::Running).await;
    let runs = || text(&rig, a.id, "alloc/data/restarted");
    eventually("the first run", || runs() == "1,").await;
    store.set("nomad/jobs/own", Some("2"));
    eventually("the run after the change", || runs() == "1,2,").await;
    eventually("the silent file", || text(&rig, a.id, "silent/local/out") == "true nomad/jobs/own ").await;
    // Another variable changes nothing for it.
    store.set("nomad/jobs/own/x", Some("2"));
    let both = "true nomad/jobs/own nomad/jobs/own/x ";
    eventually("the silent file", || text(&rig, a.id, "silent/local/out") == both).await;
    // It keeps what it has when the variable goes.
    store.set("nomad/jobs/own", None);
    eventually("the silent file", || text(&rig, a.id, "silent/local/out") == "false nomad/jobs/own/x ").await;
    let missing = |u: &AllocClientUpdate| {
        told(u, "restarted").iter().filter(|m| **m == "Missing: nomadVar(nomad/jobs/own)").count() == 2
    };
    let update = rig.server.alloc(a.id, "the event of the variable that is gone", missing).await;
    assert_eq!(kinds(&update.task_states["restarted"]).iter().filter(|k| **k == "Started").count(), 2, "{update:#?}");
    assert_eq!((runs(), text(&rig, a.id, "restarted/local/out")), ("1,2,".to_owned(), "2,".to_owned()));
    // No start has told of a variable whose value was still on its way.
    store.set("nomad/jobs/own", Some("3"));
    eventually("the run after it came back", || runs() == "1,2,3,").await;
    let restart = ["Restart Signaled", "Terminated", "Restarting", "Started"];
    let last = [&["Started"][..], &restart, &["Template"], &restart].concat();
    rig.server.alloc(a.id, "the last events", |u| kinds(&u.task_states["restarted"]) == last).await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_variable_that_the_task_may_not_read_fails_it_with_the_reason() {
    let rig = Rig::new().await;
    let store = Store::start().await;
    store.set("nomad/jobs/other", Some("secret"));
    rig.server.http(&store.addr);
    rig.server.tokens(Duration::ZERO);
    let node = rig.node_of("raw_exec").await;
    let mut t = sh("t", "exec sleep 600");
    t.templates = vec![template("{{ with nomadVar \"nomad/jobs/other\" }}{{ .v }}{{ end }}", "restart")];
    t.restart = Some(restarts(0));
    let (a, _) = rig.place("service", vec![t]);
    let update = rig.server.status(a.id, ClientStatus::Failed).await;
    let reason = "nomadVar: the task may not read the variable \"nomad/jobs/other\"";
    let said = told(&update, "t");
    assert!(said.iter().any(|message| message.contains(reason)), "{said:?}");
    assert!(!rig.alloc_dir(a.id).join("t/local/out").exists());
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_tasks_are_created_with_the_variables_that_they_may_read() {
    let rig = Rig::new().await;
    let store = Store::start().await;
    rig.server.http(&store.addr);
    rig.server.tokens(Duration::ZERO);
    let node = rig.node_of("remote_exec").await;
    let remote = |index: usize, path: &str| {
        let config = json!({"command": "/bin/sh", "args": ["-c", "exec sleep 600"]});
        let (a, mut job, order) = nth(index, managed("service", task("t", "remote_exec", config)));
        job.task_groups[0].tasks[0].templates =
            vec![template(&format!("{{{{ with nomadVar \"{path}\" }}}}{{{{ .v }}}}{{{{ end }}}}"), "noop")];
        (a, job, order)
    };
    let (denied, job, order) = remote(1, "nomad/jobs/other");
    rig.server.place(&denied, &job);
    rig.server.order(&order);
    let report = rig.server.report(&order.slot.to_string(), "a refusal", |r| !r.refused.is_empty()).await;
    assert!(report.refused.contains("may not read the variable \"nomad/jobs/other\""), "{}", report.refused);

    let (waits, job, order) = remote(2, "nomad/jobs/own");
    rig.server.place(&waits, &job);
    rig.server.order(&order);
    let missing = |u: &AllocClientUpdate| {
        u.task_states.get("t").is_some_and(|t| t.events.iter().any(|e| e.message.contains("nomadVar(nomad/jobs/own)")))
    };
    rig.server.alloc(waits.id, "what the create waits for", missing).await;
    store.set("nomad/jobs/own", Some("1"));
    rig.server.report(&order.slot.to_string(), "the instance", running).await;
    rig.server.ends(order, 2).await;
    leave(&rig, node).await;
}
