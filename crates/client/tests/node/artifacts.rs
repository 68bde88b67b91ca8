//! Artifacts, fetched from a server that the test plays: of local tasks, and of tasks that run elsewhere.

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
use model::{
    Allocation, ClientStatus, DesiredRemote, Job, Observed, RemoteOrder, Task, remote::RemoteRole, task::Artifact,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    fixture::{PATIENCE, Rig, end, eventually, kinds, leave, managed, nth, poll, processes, restarts, running, task},
    http::text,
};

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
        tokio::spawn(async move {
            stopped.run_until_cancelled(async { axum::serve(listener, app).await.expect("serve") }).await
        });
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
        "/tree.tar" => tree().into_response(),
        "/large" => vec![0; 49 << 20].into_response(),
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

/// An archive with a program, a link to a file, an empty directory, and a file that a template takes the place of.
fn tree() -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let made = std::process::Command::new("/bin/sh")
        .current_dir(dir.path())
        .args([
            "-ec",
            "mkdir empty sub; echo 'echo ran' > sub/run; chmod 755 sub/run; echo artifact > over; ln -s sub/run link; \
                tar -cf - *",
        ])
        .output()
        .expect("tar");
    assert!(made.status.success(), "{made:?}");
    made.stdout
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
    let node = rig.node_of("raw_exec").await;
    let script = json!({"command": "/bin/sh", "args": ["-c", "cat $NOMAD_TASK_DIR/sub/hello.txt >> \
        $NOMAD_TASK_DIR/said; test -e $NOMAD_TASK_DIR/again || { touch $NOMAD_TASK_DIR/again; exit 1; }; exec \
        sleep 600"]});
    let artifact = Artifact {
        options: [("checksum".into(), "md5:${meta.sum}".into())].into(),
        destination: Some("${NOMAD_TASK_DIR}/sub".into()),
        ..fetched(&web.url("/hello.txt"))
    };
    // Interpolated names that this node does not have stay as they are, which is no checksum.
    let mut wrong = artifact.clone();
    wrong.destination = Some("local/".into());
    let (bad, _) = rig.place("batch", vec![with(task("t", "raw_exec", script.clone()), &[wrong])]);
    let update = rig.server.status(bad.id, ClientStatus::Failed).await;
    assert!(kinds(&update.task_states["t"]).contains(&"Failed Artifact Download"), "{update:#?}");
    assert_eq!(web.asked("/hello.txt"), 0);

    let good =
        Artifact { options: [("checksum".into(), "md5:5d41402abc4b2a76b9719d911017c592".into())].into(), ..artifact };
    let mut main = with(task("t", "raw_exec", script), &[good]);
    main.restart = Some(restarts(3));
    let (a, _) = rig.place("service", vec![main]);
    let said = rig.alloc_dir(a.id).join("t/local/said");
    eventually("two runs with the artifact", || std::fs::read_to_string(&said).is_ok_and(|t| t == "hellohello")).await;
    let update =
        rig.server.alloc(a.id, "a restart", |u| kinds(&u.task_states["t"]).ends_with(&["Restarting", "Started"])).await;
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
    let node = rig.node_of("raw_exec").await;
    let placed = |path: &str, attempts| {
        let mut main = with(sleeper("600"), &[fetched(&web.url(path))]);
        main.restart = Some(restarts(attempts));
        let (a, _) = rig.place("service", vec![main]);
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
    assert!(
        failed.display_message.contains("answered 404") && failed.details.contains_key("download_error"),
        "{failed:?}"
    );
    let left: Vec<_> =
        std::fs::read_dir(rig.alloc_dir(late.id).join("t/private/artifacts")).expect("list").flatten().collect();
    assert_eq!(left.len(), 1, "one marker and nothing half-done: {left:?}");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_and_the_end_of_the_agent_end_a_download_at_once() {
    let (rig, web) = (Rig::new().await, Web::start().await);
    let node = rig.node_of("raw_exec").await;
    let (a, _) = rig.place("service", vec![with(sleeper("600"), &[fetched(&web.url("/stuck"))])]);
    eventually("the download", || web.asked("/stuck") == 1 && fetchers(&rig) == 1).await;
    let begin = Instant::now();
    rig.server.stop_alloc(a.id);
    let update = rig.server.status(a.id, ClientStatus::Complete).await;
    assert!(begin.elapsed() < PATIENCE, "a download without an end was not waited for");
    assert_eq!(kinds(&update.task_states["t"]).last(), Some(&"Killed"), "{update:#?}");
    eventually("the process to go", || fetchers(&rig) == 0).await;

    let (b, _) = rig.place("service", vec![with(sleeper("600"), &[fetched(&web.url("/stuck"))])]);
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
    let node = rig.node_of("raw_exec").await;
    let (a, _) = rig.place("service", vec![with(sleeper("600"), &[fetched(&web.url("/stuck"))])]);
    eventually("the download", || web.asked("/stuck") == 1).await;
    let (pid, _) =
        processes(rig.dir.path()).into_iter().find(|(_, l)| l.contains("artifact-fetch")).expect("a fetcher");
    crate::faults::kill(pid);
    let update = rig.server.status(a.id, ClientStatus::Failed).await;
    let told = |u: &model::AllocClientUpdate| {
        u.task_states["t"].events.iter().map(|e| e.display_message.clone()).collect::<Vec<_>>().join("\n")
    };
    assert!(told(&update).contains("signal 9"), "{}", told(&update));

    node.stop().await;
    let mut config = rig.config();
    config.artifacts.limits.http_timeout = Duration::from_secs(3);
    let node = rig.node_with(config).await;
    rig.driver_ready("raw_exec").await;
    let (b, _) = rig.place("service", vec![with(sleeper("600"), &[fetched(&web.url("/stuck"))])]);
    let update = rig.server.status(b.id, ClientStatus::Failed).await;
    assert!(told(&update).contains("http_read_timeout"), "{}", told(&update));
    eventually("the process to go", || fetchers(&rig) == 0).await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_refused_with_the_reason() {
    let (rig, web) = (Rig::new().await, Web::start().await);
    let node = rig.node_of("raw_exec").await;
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
        let (a, _) = rig.place("batch", vec![with(sleeper("0"), &[artifact])]);
        let update = rig.server.status(a.id, ClientStatus::Failed).await;
        let text = format!("{:?}", update.task_states["t"].events);
        assert!(text.contains(part), "{part}: {text}");
    }
    // A script without its bit is the job's business; what was unpacked keeps its own mode.
    let (a, _) = rig.place("batch", vec![with(sleeper("0"), &[fetched(&url)])]);
    rig.server.status(a.id, ClientStatus::Complete).await;
    let mode = std::fs::metadata(rig.alloc_dir(a.id).join("t/local/hello.txt")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    end(&rig, node).await;
}

/// What preparations of remote tasks have on the disk.
fn bundles(rig: &Rig, a: &Allocation) -> usize {
    let private = std::fs::read_dir(rig.alloc_dir(a.id).join("t/private")).into_iter().flatten().flatten();
    private.filter(|entry| entry.file_name().to_string_lossy().starts_with("bundle-")).count()
}

fn remote(script: &str, artifacts: &[Artifact]) -> (Allocation, Job, RemoteOrder) {
    managed("service", with(task("t", "remote_exec", json!({"command": "/bin/sh", "args": ["-c", script]})), artifacts))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifacts_travel_with_a_remote_task_and_are_fetched_for_its_create_only() {
    let (rig, web) = (Rig::new().await, Web::start().await);
    let node = rig.node_of("remote_exec").await;
    let script = "cd $NOMAD_TASK_DIR/in && ./sub/run && cat link over && ls -d empty; exec sleep 600";
    let artifact = Artifact { destination: Some("${NOMAD_TASK_DIR}/in".into()), ..fetched(&web.url("/tree.tar")) };
    let (a, mut job, order) = remote(script, &[artifact]);
    let over = json!({"EmbeddedTmpl": "template\n", "DestPath": "local/in/over", "ChangeMode": "noop"});
    job.task_groups[0].tasks[0].templates = vec![serde_json::from_value(over).expect("a template")];
    let slot = order.slot.to_string();
    let first = rig.server.manages(&a, &job, &order).await;
    let update = rig.server.status(a.id, ClientStatus::Running).await;
    assert_eq!(
        kinds(&update.task_states["t"]).iter().filter(|k| **k == "Downloading Artifacts").count(),
        1,
        "{update:#?}"
    );
    let log = format!("/v1/client/fs/logs/{}?task=t&type=stdout&plain=true", a.id);
    poll("all of its output", async || match text(&node, &log).await {
        said if said
            == "ran
echo ran
template
empty
" =>
        {
            Ok(())
        }
        said => Err(said),
    })
    .await;
    eventually("what has been sent to go", || bundles(&rig, &a) == 0).await;

    // The next manager needs none of it.
    node.stop().await;
    rig.server.forget_reports();
    let adopt = RemoteOrder { adopt: true, handle: first.handle.clone(), ..order.clone() };
    rig.server.set_order(&adopt);
    let node = rig.node().await;
    let again = rig.server.report(&slot, "the adopted instance", running).await;
    assert_eq!(again.attributes.get("pid"), first.attributes.get("pid"));
    assert_eq!(web.asked("/tree.tar"), 1);
    rig.server.ends(adopt, 2).await;
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_a_create_waits_for_its_artifacts_and_what_cannot_come_is_refused() {
    let (rig, web) = (Rig::new().await, Web::start().await);
    let node = rig.node_of("remote_exec").await;
    let creates = |n: usize, artifact: Artifact| {
        let (a, job, order) = nth(n, remote("exec sleep 600", &[artifact]));
        rig.server.place(&a, &job);
        rig.server.order(&order);
        (a, order)
    };
    // Two answers of 503, and then it is there.
    let (_, late) = creates(0, fetched(&web.url("/late.txt")));
    let (busy, _) = creates(1, fetched(&web.url("/busy")));
    for (n, artifact, part) in [
        (2, fetched(&web.url("/missing")), "answered 404"),
        (3, fetched(&web.url("/large")), "51380224 bytes"),
        (
            4,
            Artifact { destination: Some("${meta.place}".into()), ..fetched(&web.url("/hello.txt")) },
            "only what is below local/",
        ),
        (
            5,
            Artifact { destination: Some("secrets/x".into()), ..fetched(&web.url("/hello.txt")) },
            "only what is below local/",
        ),
        (6, Artifact { chown: true, ..fetched(&web.url("/hello.txt")) }, "artifact.chown"),
    ] {
        let (a, order) = creates(n, artifact);
        let report = rig.server.report(&order.slot.to_string(), "a refusal", |r| !r.refused.is_empty()).await;
        assert!(report.refused.contains(part), "{part}: {}", report.refused);
        eventually("what was fetched for nothing to go", || bundles(&rig, &a) == 0).await;
    }
    // A template that waits: what has been fetched is not fetched again with each look.
    let (waits, mut job, order) = nth(7, remote("exec sleep 600", &[fetched(&web.url("/hello.txt"))]));
    let template = json!({"EmbeddedTmpl": "{{ nomadService \"away\" }}", "DestPath": "local/x", "ChangeMode": "noop"});
    job.task_groups[0].tasks[0].templates = vec![serde_json::from_value(template).expect("a template")];
    rig.server.place(&waits, &job);
    rig.server.order(&order);

    rig.server.report(&late.slot.to_string(), "the create after two failures", running).await;
    assert_eq!(web.asked("/late.txt"), 3);
    let waiting = |u: &model::AllocClientUpdate| {
        u.task_states["t"].events.iter().any(|e| e.message.contains("nomadService(away)"))
    };
    rig.server.alloc(waits.id, "what the create waits for", waiting).await;
    assert_eq!((web.asked("/hello.txt"), bundles(&rig, &waits)), (1, 1), "fetched once, and kept");
    let told =
        |u: &model::AllocClientUpdate| u.task_states["t"].events.iter().any(|e| e.message.contains("answered 503"));
    let update = rig.server.alloc(busy.id, "what the create waits for", told).await;
    assert_eq!(
        kinds(&update.task_states["t"]).iter().filter(|k| **k == "Downloading Artifacts").count(),
        1,
        "said once: {update:#?}"
    );
    rig.server.ends(late, 2).await;
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_for_a_create_ends_with_the_wish_for_it() {
    let (rig, web) = (Rig::new().await, Web::start().await);
    let node = rig.node_of("remote_exec").await;
    let (a, job, order) = remote("exec sleep 600", &[fetched(&web.url("/stuck"))]);
    rig.server.place(&a, &job);
    rig.server.order(&order);
    eventually("the download", || web.asked("/stuck") == 1 && fetchers(&rig) == 1).await;
    assert_eq!(bundles(&rig, &a), 1);
    rig.server.stop_alloc(a.id);
    rig.server.order(&RemoteOrder { role: RemoteRole::Stop, desired: DesiredRemote::Stop, epoch: 2, ..order.clone() });
    eventually("the process to go", || fetchers(&rig) == 0).await;
    eventually("its directory to go", || bundles(&rig, &a) == 0).await;
    rig.server.report(&order.slot.to_string(), "that there is none", |r| r.observed == Observed::Gone).await;

    // The end of the agent leaves none either, and the next one throws away what its predecessor was at.
    let (b, job, order) = nth(1, remote("exec sleep 600", &[fetched(&web.url("/stuck"))]));
    rig.server.place(&b, &job);
    rig.server.order(&order);
    eventually("the second download", || web.asked("/stuck") == 2 && fetchers(&rig) == 1).await;
    node.stop().await;
    eventually("the process to go", || fetchers(&rig) == 0).await;
    let left = rig.alloc_dir(b.id).join("t/private/bundle-of-a-killed-agent");
    std::fs::create_dir_all(&left).expect("a directory");
    let node = rig.node().await;
    eventually("the download to begin again", || web.asked("/stuck") == 3).await;
    assert!(!left.exists() && bundles(&rig, &b) == 1);
    leave(&rig, node).await;
}
