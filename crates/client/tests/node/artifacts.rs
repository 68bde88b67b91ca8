//! Artifacts of local tasks, fetched from a server that the test plays.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use model::{ClientStatus, Task, task::Artifact};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::fixture::{PATIENCE, Rig, alloc, end, eventually, kinds, processes, restarts, task};

/// Serves a few paths and counts who asks for them.
struct Web {
    addr: SocketAddr,
    asked: Arc<Mutex<HashMap<String, usize>>>,
    stop: CancellationToken,
}

impl Web {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("addr");
        let asked = Arc::<Mutex<HashMap<String, usize>>>::default();
        let stop = CancellationToken::new();
        let app = Router::new().fallback(answer).with_state(asked.clone());
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(async { axum::serve(listener, app).await.expect("serve") }).await });
        Self { addr, asked, stop }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    fn asked(&self, path: &str) -> usize {
        self.asked.lock().expect("lock").get(path).copied().unwrap_or(0)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn answer(State(asked): State<Arc<Mutex<HashMap<String, usize>>>>, uri: Uri) -> Response {
    let times = {
        let mut asked = asked.lock().expect("lock");
        let times = asked.entry(uri.path().to_owned()).or_default();
        *times += 1;
        *times
    };
    match uri.path() {
        "/hello.txt" => "hello".into_response(),
        "/late.txt" if times >= 3 => "late".into_response(),
        "/late.txt" | "/busy" => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        // The first bytes, and then nothing for ever.
        "/stuck" => {
            let begin = futures::stream::iter([Ok::<_, Infallible>("begin".to_owned())]);
            let never = futures::stream::pending();
            Body::from_stream(futures::StreamExt::chain(begin, never)).into_response()
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn fetched(source: &str) -> Artifact {
    Artifact { source: Some(source.to_owned()), destination: Some("local/".into()), ..Artifact::default() }
}

fn with(mut task: Task, artifacts: &[Artifact]) -> Task {
    task.artifacts = artifacts.to_vec();
    task
}

fn sleeper(seconds: &str) -> Task {
    task("t", "raw_exec", json!({"command": "/bin/sleep", "args": [seconds]}))
}

fn fetchers(rig: &Rig) -> usize {
    processes(rig.dir.path()).iter().filter(|(_, line)| line.contains("artifact-fetch")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_artifact_is_there_before_the_task_and_fetched_once() {
    let (rig, web) = (Rig::new().await, Web::start().await);
    let node = rig.node().await;
    rig.driver_ready("raw_exec").await;
    let script = json!({"command": "/bin/sh", "args": ["-c", "cat $NOMAD_TASK_DIR/sub/hello.txt >> $NOMAD_TASK_DIR/said; test -e $NOMAD_TASK_DIR/again || { touch $NOMAD_TASK_DIR/again; exit 1; }; exec sleep 600"]});
    let artifact = Artifact {
        options: [("checksum".into(), "md5:${meta.sum}".into())].into(),
        destination: Some("${NOMAD_TASK_DIR}/sub".into()),
        ..fetched(&web.url("/hello.txt"))
    };
    // Interpolated names that this node does not have stay as they are, which is no checksum.
    let mut wrong = artifact.clone();
    wrong.destination = Some("local/".into());
    let (bad, bad_job) = alloc("batch", vec![with(task("t", "raw_exec", script.clone()), &[wrong])]);
    rig.server.place(&bad, &bad_job);
    let update = rig.server.status(bad.id, ClientStatus::Failed).await;
    assert!(kinds(&update.task_states["t"]).contains(&"Failed Artifact Download"), "{update:#?}");
    assert_eq!(web.asked("/hello.txt"), 0);

    let good = Artifact { options: [("checksum".into(), "md5:5d41402abc4b2a76b9719d911017c592".into())].into(), ..artifact };
    let mut main = with(task("t", "raw_exec", script), &[good]);
    main.restart = Some(restarts(3));
    let (a, job) = alloc("service", vec![main]);
    rig.server.place(&a, &job);
    let said = rig.alloc_dir(a.id).join("t/local/said");
    eventually("two runs with the artifact", || std::fs::read_to_string(&said).is_ok_and(|t| t == "hellohello")).await;
    let update = rig.server.alloc(a.id, "a restart", |u| kinds(&u.task_states["t"]).ends_with(&["Restarting", "Started"])).await;
    let kinds = kinds(&update.task_states["t"]);
    assert_eq!(kinds[..4], ["Received", "Task Setup", "Downloading Artifacts", "Started"], "{kinds:?}");
    assert_eq!(kinds.iter().filter(|k| **k == "Downloading Artifacts").count(), 1);
    node.stop().await;
    let node = rig.node().await;
    rig.server.status(a.id, ClientStatus::Running).await;
    assert_eq!(web.asked("/hello.txt"), 1, "fetched once for a restarted task and a restarted agent");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_tried_again_only_when_that_may_help() {
    let (rig, web) = (Rig::new().await, Web::start().await);
    let node = rig.node().await;
    rig.driver_ready("raw_exec").await;
    let placed = |path: &str, attempts| {
        let mut main = with(sleeper("600"), &[fetched(&web.url(path))]);
        main.restart = Some(restarts(attempts));
        let (a, job) = alloc("service", vec![main]);
        rig.server.place(&a, &job);
        a
    };
    let late = placed("/late.txt", 5);
    let busy = placed("/busy", 1);
    let missing = placed("/missing", 5);
    rig.server.status(late.id, ClientStatus::Running).await;
    assert_eq!(std::fs::read_to_string(rig.alloc_dir(late.id).join("t/local/late.txt")).expect("there"), "late");
    let update = rig.server.status(busy.id, ClientStatus::Failed).await;
    assert_eq!(web.asked("/busy"), 2, "{update:#?}");
    let update = rig.server.status(missing.id, ClientStatus::Failed).await;
    assert_eq!(web.asked("/missing"), 1, "{update:#?}");
    let failed = update.task_states["t"].events.iter().find(|e| e.kind == "Failed Artifact Download").expect("told");
    assert!(failed.display_message.contains("answered 404") && failed.details.contains_key("download_error"), "{failed:?}");
    let left: Vec<_> = std::fs::read_dir(rig.alloc_dir(late.id).join("t/private/artifacts")).expect("list").flatten().collect();
    assert_eq!(left.len(), 1, "one marker and nothing half-done: {left:?}");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_and_the_end_of_the_agent_end_a_download_at_once() {
    let (rig, web) = (Rig::new().await, Web::start().await);
    let node = rig.node().await;
    rig.driver_ready("raw_exec").await;
    let (a, job) = alloc("service", vec![with(sleeper("600"), &[fetched(&web.url("/stuck"))])]);
    rig.server.place(&a, &job);
    eventually("the download", || web.asked("/stuck") == 1 && fetchers(&rig) == 1).await;
    let begin = Instant::now();
    rig.server.stop_alloc(a.id);
    let update = rig.server.status(a.id, ClientStatus::Complete).await;
    assert!(begin.elapsed() < PATIENCE, "a download without an end was not waited for");
    assert_eq!(kinds(&update.task_states["t"]).last(), Some(&"Killed"), "{update:#?}");
    eventually("the process to go", || fetchers(&rig) == 0).await;

    let (b, job) = alloc("service", vec![with(sleeper("600"), &[fetched(&web.url("/stuck"))])]);
    rig.server.place(&b, &job);
    eventually("the second download", || web.asked("/stuck") == 2 && fetchers(&rig) == 1).await;
    node.stop().await;
    eventually("the process to go", || fetchers(&rig) == 0).await;
    let node = rig.node().await;
    eventually("the download to begin again", || web.asked("/stuck") == 3).await;
    let stages = std::fs::read_dir(rig.alloc_dir(b.id).join("t/private/artifacts")).expect("list").count();
    assert_eq!(stages, 1, "what was half-done has been thrown away");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_fetcher_and_a_time_limit_fail_the_download_only() {
    let (rig, web) = (Rig::new().await, Web::start().await);
    let mut config = rig.config();
    config.artifacts.limits.http_timeout = Duration::from_secs(3);
    let node = client::Client::start(config).await.expect("start");
    rig.server.heard("a session", |h| (h.sessions > 0).then_some(())).await;
    rig.driver_ready("raw_exec").await;
    let (a, job) = alloc("service", vec![with(sleeper("600"), &[fetched(&web.url("/stuck"))])]);
    rig.server.place(&a, &job);
    eventually("the download", || web.asked("/stuck") == 1).await;
    let (pid, _) = processes(rig.dir.path()).into_iter().find(|(_, l)| l.contains("artifact-fetch")).expect("a fetcher");
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).expect("a pid"), rustix::process::Signal::KILL).expect("killed");
    let update = rig.server.status(a.id, ClientStatus::Failed).await;
    let told =
        |u: &model::AllocClientUpdate| u.task_states["t"].events.iter().map(|e| e.display_message.clone()).collect::<Vec<_>>().join("\n");
    assert!(told(&update).contains("signal 9"), "{}", told(&update));

    let (b, job) = alloc("service", vec![with(sleeper("600"), &[fetched(&web.url("/stuck"))])]);
    rig.server.place(&b, &job);
    let update = rig.server.status(b.id, ClientStatus::Failed).await;
    assert!(told(&update).contains("http_read_timeout"), "{}", told(&update));
    assert_eq!(fetchers(&rig), 0);
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_refused_with_the_reason() {
    let (rig, web) = (Rig::new().await, Web::start().await);
    let node = rig.node().await;
    rig.driver_ready("raw_exec").await;
    let url = web.url("/hello.txt");
    let cases = [
        (fetched("hg::http://h/r"), "use git"),
        (fetched("/etc/hostname"), "does not offer"),
        (Artifact { destination: Some("../../x".into()), ..fetched(&url) }, "leaves the directories"),
        (Artifact { destination: Some("private/x".into()), ..fetched(&url) }, "node's own"),
        (Artifact { chown: true, ..fetched(&url) }, "names none"),
        (Artifact { mode: Some("all".into()), ..fetched(&url) }, "mode"),
    ];
    for (artifact, part) in cases {
        let (a, job) = alloc("batch", vec![with(sleeper("0"), &[artifact])]);
        rig.server.place(&a, &job);
        let update = rig.server.status(a.id, ClientStatus::Failed).await;
        let text = format!("{:?}", update.task_states["t"].events);
        assert!(text.contains(part), "{part}: {text}");
    }
    // A script without its bit is the job's business; what was unpacked keeps its own mode.
    let (a, job) = alloc("batch", vec![with(sleeper("0"), &[fetched(&url)])]);
    rig.server.place(&a, &job);
    rig.server.status(a.id, ClientStatus::Complete).await;
    let mode = std::fs::metadata(rig.alloc_dir(a.id).join("t/local/hello.txt")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    end(&rig, node).await;
}
