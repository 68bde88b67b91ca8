//! Real processes with `raw_exec`: output, exits while nobody looks, killed executors, and nothing left behind.

use std::time::Instant;

use axum::{body::Body, http::Request};
use base64::{Engine, prelude::BASE64_STANDARD};
use http_body_util::BodyExt;
use model::{AllocId, ClientStatus, GoDuration, TaskRunState};
use tower::ServiceExt;

use crate::faults::kill;
use crate::fixture::{PATIENCE, Rig, alloc, damage, eventually, kinds, leave, nothing_left, restarts, rewrite, sh};
use crate::http::get;

fn pid_file(rig: &Rig, id: AllocId) -> Option<i32> {
    std::fs::read_to_string(rig.alloc_dir(id).join("alloc/data/pid")).ok()?.trim().parse().ok()
}

fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_followed_line_by_line_and_ends_with_the_task() {
    let (rig, node) = Rig::with("raw_exec").await;
    let mut t = sh("t", "echo $GREETING; for i in 1 2 3 4 5 6 7 8 9 10; do date +%s%N; sleep 0.05; done; exit 4");
    t.env.insert("GREETING".into(), "hello ${NOMAD_TASK_NAME} on ${node.unique.name}".into());
    let (a, _) = rig.place("batch", vec![t]);
    rig.server.started(a.id).await;
    let path = format!("/v1/client/fs/logs/{}?task=t&type=stdout&follow=true&plain=true", a.id);
    let router = client::http::router(node.handle());
    let response = router.oneshot(Request::get(path).body(Body::empty()).expect("request")).await.expect("infallible");
    let mut body = response.into_body();
    let (mut seen, mut lags) = (String::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.expect("frame");
        let text = String::from_utf8_lossy(frame.data_ref().map_or(&[], |d| &d[..])).into_owned();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("clock").as_nanos();
        lags.extend(
            text.lines().filter_map(|l| l.parse::<u128>().ok()).map(|written| now.saturating_sub(written) / 1_000),
        );
        seen.push_str(&text);
    }
    assert_eq!(seen.lines().next(), Some("hello t on n1"));
    assert_eq!(seen.lines().count(), 11, "{seen}");
    lags.sort_unstable();
    eprintln!("lag of a followed line: median {} µs, worst {} µs", lags[lags.len() / 2], lags[lags.len() - 1]);
    let update = rig.server.status(a.id, ClientStatus::Failed).await;
    let ended = update.task_states["t"].events.iter().find(|e| e.kind == "Terminated").expect("terminated");
    assert_eq!(ended.exit_code, 4);
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_outlive_the_agent_and_their_ends_are_reported_once() {
    let (rig, node) = Rig::with("raw_exec").await;
    let (a, job_a) = alloc("service", vec![sh("t", "echo $$ > $NOMAD_ALLOC_DIR/data/pid; exec sleep 600")]);
    let (b, job_b) =
        alloc("batch", vec![sh("t", "while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.01; done; exit 9")]);
    rig.server.place(&a, &job_a);
    rig.server.place(&b, &job_b);
    rig.server.status(a.id, ClientStatus::Running).await;
    rig.server.status(b.id, ClientStatus::Running).await;
    eventually("the pid", || pid_file(&rig, a.id).is_some()).await;
    let pid = pid_file(&rig, a.id).expect("pid");
    // As after a SIGKILL of the agent: nothing is said to anybody, the plugins live on.
    drop(node);
    std::fs::write(rig.alloc_dir(b.id).join("alloc/data/go"), "").expect("go");
    let node = rig.start_again(rig.config()).await;
    let update = rig.server.status(b.id, ClientStatus::Failed).await;
    let codes: Vec<i32> =
        update.task_states["t"].events.iter().filter(|e| e.kind == "Terminated").map(|e| e.exit_code).collect();
    assert_eq!(codes, [9]);
    eventually("the service to be recovered", || {
        node.handle().alloc_update(a.id).is_some_and(|u| u.client_status == ClientStatus::Running)
    })
    .await;
    assert!(alive(pid));
    assert_eq!(pid_file(&rig, a.id), Some(pid));
    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    assert!(!alive(pid));
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_executor_ends_its_workload_which_is_started_again() {
    let (rig, node) = Rig::with("raw_exec").await;
    let mut t = sh("t", "echo $$ > $NOMAD_ALLOC_DIR/data/pid; exec sleep 600");
    t.restart = Some(restarts(1));
    let (a, _) = rig.run("service", vec![t]).await;
    eventually("the pid", || pid_file(&rig, a.id).is_some()).await;
    let workload = pid_file(&rig, a.id).expect("pid");
    let stat = std::fs::read_to_string(format!("/proc/{workload}/stat")).expect("stat");
    let executor: i32 =
        stat.rsplit(") ").next().and_then(|r| r.split(' ').nth(1)).and_then(|p| p.parse().ok()).expect("parent");
    let begin = Instant::now();
    kill(executor);
    let update = rig
        .server
        .alloc(a.id, "a second start", |u| {
            u.task_states["t"].restarts == 1 && u.task_states["t"].state == TaskRunState::Running
        })
        .await;
    eprintln!("executor killed to running again: {:?}", begin.elapsed());
    assert!(!alive(workload), "the first workload is gone");
    assert_eq!(kinds(&update.task_states["t"]).iter().filter(|k| **k == "Started").count(), 2);
    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    rig.server.collect(a.id);
    eventually("the directory to go", || !rig.alloc_dir(a.id).exists()).await;
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_tasks_start_and_are_found_again() {
    let (rig, node) = Rig::with("raw_exec").await;
    let placed: Vec<_> = (0..200).map(|_| alloc("service", vec![sh("t", "exec sleep 600")])).collect();
    let begin = Instant::now();
    for (a, job) in &placed {
        rig.server.place(a, job);
    }
    for (a, _) in &placed {
        rig.server.status(a.id, ClientStatus::Running).await;
    }
    eprintln!("200 raw_exec tasks running: {:?}", begin.elapsed());
    node.stop().await;
    let begin = Instant::now();
    let node = rig.node().await;
    let handle = node.handle();
    eventually("200 recovered tasks", || placed.iter().all(|(a, _)| handle.running(a.id, "t"))).await;
    eprintln!("200 tasks found again: {:?}", begin.elapsed());
    let begin = Instant::now();
    for (a, _) in &placed {
        rig.server.stop_alloc(a.id);
    }
    for (a, _) in &placed {
        rig.server.status(a.id, ClientStatus::Complete).await;
    }
    eprintln!("200 tasks stopped: {:?}", begin.elapsed());
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_a_rotated_log_have_absolute_offsets() {
    let (rig, node) = Rig::with("raw_exec").await;
    let mut t = sh("t", "head -c 2500000 /dev/zero | tr '\\0' 'x'");
    t.logs = Some(model::task::LogConfig {
        max_files: Some(2),
        max_file_size_mb: Some(1),
        ..model::task::LogConfig::default()
    });
    let (a, _) = rig.place("batch", vec![t]);
    rig.server.status(a.id, ClientStatus::Complete).await;
    let path = format!("/v1/client/fs/logs/{}?task=t&type=stdout", a.id);
    let (_, bytes) = get(&node, &path).await;
    let frames: Vec<serde_json::Value> =
        serde_json::Deserializer::from_slice(&bytes).into_iter().map(|v| v.expect("frame")).collect();
    let mut at = None;
    for frame in &frames {
        let data = BASE64_STANDARD.decode(frame["Data"].as_str().expect("data")).expect("base64");
        let end = frame["Offset"].as_u64().expect("offset");
        if let Some(at) = at {
            assert_eq!(end - data.len() as u64, at, "no byte is missing or comes twice");
        }
        at = Some(end);
    }
    assert_eq!(at, Some(2_500_000), "offsets count what rotation has dropped");
    leave(&rig, node).await;
}

/// Links that a task puts where its log goes on lead nobody anywhere: neither who writes it nor who reads it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_leads_its_log_nowhere() {
    let (rig, node) = Rig::with("raw_exec").await;
    let target = rig.dir.path().join("the-host-s");
    std::fs::write(&target, "secret").expect("a file");
    let link = |name: &str| format!("ln -s {} $NOMAD_ALLOC_DIR/logs/{name}; ", target.display());
    let links: String = ["t.stdout.1", ".t.stdout.index", "..t.stdout.index.new", "t.stderr.7"].map(link).concat();
    let mut t = sh("t", &format!("{links}head -c 1500000 /dev/zero | tr '\\0' 'x'"));
    t.logs = Some(model::task::LogConfig {
        max_files: Some(3),
        max_file_size_mb: Some(1),
        ..model::task::LogConfig::default()
    });
    let (a, _) = rig.place("batch", vec![t]);
    rig.server.status(a.id, ClientStatus::Complete).await;
    assert_eq!(std::fs::read_to_string(&target).expect("there"), "secret");
    let second = std::fs::symlink_metadata(rig.alloc_dir(a.id).join("alloc/logs/t.stdout.1")).expect("the second file");
    assert!(second.is_file() && second.len() == 1_500_000 - (1 << 20), "{second:?}");
    for (stream, wanted) in [("stdout", 1_500_000), ("stderr", 0)] {
        let said =
            crate::http::text(&node, &format!("/v1/client/fs/logs/{}?task=t&type={stream}&plain=true", a.id)).await;
        assert_eq!(said.len(), wanted, "{stream}");
    }
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_development_agent_takes_its_tasks_along() {
    let rig = Rig::new().await;
    let mut config = rig.config();
    config.stop_tasks_on_stop = true;
    config.patience.flush = PATIENCE;
    let node = client::Client::start(config).await.expect("start");
    rig.driver_ready("raw_exec").await;
    let (a, _) = rig.run("service", vec![sh("t", "exec sleep 600")]).await;
    node.stop().await;
    let last = rig.server.now().allocs[&a.id].clone();
    assert_eq!(last.client_status, ClientStatus::Complete, "the servers have heard of it");
    nothing_left(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_plugin_is_gone_is_stopped_with_its_own_exit_code() {
    let rig = Rig::new().await;
    let link = rig.dir.path().join("raw-exec-plugin");
    std::os::unix::fs::symlink(crate::fixture::plugin(), &link).expect("link");
    let mut config = rig.config();
    config.builtin_drivers.iter_mut().filter(|d| d.name == "raw_exec").for_each(|d| d.program.clone_from(&link));
    config.patience.driver = std::time::Duration::from_millis(200);
    let node = client::Client::start(config).await.expect("start");
    rig.driver_ready("raw_exec").await;
    let script = "trap 'exit 9' INT; echo $$ > $NOMAD_ALLOC_DIR/data/pid; while :; do sleep 0.02; done";
    let mut t = sh("t", script);
    // On a busy machine the shell may take a while to hear the signal.
    t.kill_timeout = Some(GoDuration::from_secs(30));
    let (a, _) = rig.run("service", vec![t]).await;
    eventually("the pid", || pid_file(&rig, a.id).is_some()).await;
    let pid = pid_file(&rig, a.id).expect("pid");
    // It does not come back.
    std::fs::remove_file(&link).expect("removed");
    let started = format!("{} raw_exec", link.display());
    let plugins = crate::fixture::processes(rig.dir.path()).into_iter().filter(|(_, line)| line.starts_with(&started));
    plugins.for_each(|(pid, _)| crate::faults::kill(pid));
    rig.server.stop_alloc(a.id);
    let update = rig.server.status(a.id, ClientStatus::Complete).await;
    assert!(!alive(pid));
    let ended = update.task_states["t"].events.iter().find(|e| e.kind == "Terminated").expect("terminated");
    assert_eq!(ended.exit_code, 9, "{:?}", kinds(&update.task_states["t"]));
    leave(&rig, node).await;
}

/// A workload whose records are lost or incomplete is ended before another one is started; its neighbour is not
/// disturbed.
async fn contained(change: impl FnOnce(&Rig, AllocId)) {
    let (rig, node) = Rig::with("raw_exec").await;
    let script = "echo $$ > $NOMAD_ALLOC_DIR/data/pid; exec sleep 600";
    let (a, job_a) = alloc("service", vec![sh("t", script)]);
    let (b, job_b) = alloc("service", vec![sh("t", script)]);
    rig.server.place(&a, &job_a);
    rig.server.place(&b, &job_b);
    for id in [a.id, b.id] {
        rig.server.status(id, ClientStatus::Running).await;
        eventually("the pid", || pid_file(&rig, id).is_some()).await;
    }
    let (old, neighbour) = (pid_file(&rig, a.id).expect("pid"), pid_file(&rig, b.id).expect("pid"));
    // As after a SIGKILL of everything of the agent.
    drop(node);
    crate::faults::plugin_pids(&rig).into_iter().for_each(crate::faults::kill);
    eventually("the node to have gone", || {
        std::fs::File::open(rig.dir.path().join("client/agent.lock")).is_ok_and(|f| f.try_lock().is_ok())
    })
    .await;
    change(&rig, a.id);
    let node = rig.start_again(rig.config()).await;
    eventually("a second workload", || pid_file(&rig, a.id).is_some_and(|pid| pid != old && alive(pid))).await;
    assert!(!alive(old), "the first workload runs beside the second");
    assert!(alive(neighbour));
    assert_eq!(pid_file(&rig, b.id), Some(neighbour));
    for id in [a.id, b.id] {
        rig.server.stop_alloc(id);
    }
    eventually("both to end", || {
        [a.id, b.id]
            .iter()
            .all(|id| node.handle().alloc_update(*id).is_some_and(|u| u.client_status == ClientStatus::Complete))
    })
    .await;
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_record_is_contained() {
    contained(|rig, id| damage(rig, "UPDATE allocs SET record = CAST('nonsense' AS BLOB) WHERE id = ?1", id)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_whole_and_says_nothing_is_contained() {
    contained(|rig, id| rewrite(rig, "UPDATE allocs SET record = CAST('nonsense' AS BLOB) WHERE id = ?1", id)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_was_never_confirmed_leaves_no_second_workload() {
    // What an agent leaves that dies between the driver's answer and its own record of it.
    let sql = "UPDATE tasks SET record = CAST(json_set(CAST(record AS TEXT), '$.run.handle', NULL, '$.state.State', \
        'pending') AS BLOB) WHERE alloc = ?1";
    contained(|rig, id| rewrite(rig, sql, id)).await;
}
