//! What was acknowledged is there after a kill; what two agents must not do.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

use model::{ClientStatus, EvalStatus};
use server::{
    Server, ServerConfig, StartError,
    requests::{DeregisterJob, PlanJob, RegisterJob, ScaleJob},
};

use crate::fake::*;

/// The victim of the next test: registers jobs as fast as it can and names each acknowledged one on its standard
/// output.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by `a_kill_loses_nothing_acknowledged` as a process of its own"]
async fn victim() {
    let Some(dir) = std::env::var_os("SERVER_TEST_DIR") else { return };
    let server = start_with(ServerConfig { data_dir: Some(dir.into()), ..ServerConfig::default() }).await;
    let (tx, mut rx) = tokio::sync::mpsc::channel(16);
    let started = server.handle().snapshot().job_count();
    for lane in 0..4 {
        let (s, tx) = (server.handle().clone(), tx.clone());
        tokio::spawn(async move {
            for number in 0.. {
                let id = format!("job-{started}-{lane}-{number}");
                let created = submit(&s, batch_job(&id, 1)).await;
                tx.send(format!("{id} {}", created.eval_id)).await.unwrap();
            }
        });
    }
    // The lanes hold the rest: when all of them have failed, this process ends and its parent notices.
    drop(tx);
    while let Some(line) = rx.recv().await {
        let mut out = std::io::stdout().lock();
        writeln!(out, "acknowledged {line}").unwrap();
        out.flush().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged: Vec<(String, String)> = Vec::new();
    for round in 1..=2 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["durability::victim", "--exact", "--ignored", "--nocapture"])
            .env("SERVER_TEST_DIR", dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let enough = round * 40;
        let mut note = |line: std::io::Result<String>| {
            let line = line.unwrap_or_default();
            if let Some((id, eval)) = line.strip_prefix("acknowledged ").and_then(|rest| rest.split_once(' ')) {
                acknowledged.push((id.to_owned(), eval.to_owned()));
            }
            acknowledged.len() >= enough
        };
        assert!(lines.by_ref().any(&mut note), "the victim ended early");
        victim.kill().unwrap();
        victim.wait().unwrap();
        lines.for_each(|line| {
            note(line);
        });
    }
    let server = start_in(dir.path()).await;
    let state = server.handle().snapshot();
    for (id, eval) in &acknowledged {
        assert!(state.job(&key(id)).is_some(), "{id} was acknowledged and is gone");
        assert!(state.eval(eval.parse().unwrap()).is_some(), "the evaluation of {id} was acknowledged and is gone");
    }
    // Work goes on where it stopped: whatever was pending is scheduled, nothing waits for ever.
    until(server.handle(), "no evaluation is left pending", |state| {
        state.evals().all(|e| e.status != EvalStatus::Pending)
    })
    .await;
    server.shutdown().await;
}

/// A write that is not durable yet may be lost, and nobody sees it. Until then nobody is refused because of it, and a
/// stop does not say that it has nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_tells_of_nothing_that_is_not_durable() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_in(dir.path()).await;
    let s = server.handle();
    let (mut refusals, mut nothings) = (0, 0);
    for number in 0..20 {
        let id = format!("job-{number}");
        let job = batch_job(&id, 1);
        let enforced = || RegisterJob { job: job.clone(), enforce_index: Some(0), ..RegisterJob::default() };
        let again = async {
            let refused = s.register_job(enforced()).await.is_err();
            (refused, s.snapshot().job(&key(&id)).is_some())
        };
        let (first, (refused, seen)) = tokio::join!(s.register_job(enforced()), again);
        assert!(first.is_err() || !refused || seen, "{id} is refused for a job that nobody sees");
        refusals += usize::from(refused);

        let purge = || DeregisterJob { key: key(&id), purge: true, eval_priority: None, no_shutdown_delay: false };
        let again = async {
            let made = s.deregister_job(purge()).await.unwrap();
            (made.job_modify_index == 0, s.snapshot().job(&key(&id)).is_none())
        };
        let (_, (nothing, gone)) = tokio::join!(s.deregister_job(purge()), again);
        nothings += usize::from(nothing);
        assert!(!nothing || gone, "{id} is said to be gone, and others see it");
    }
    assert!(refusals > 0 && nothings > 0, "{refusals} were refused, {nothings} had nothing to do");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_the_cluster_and_its_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let config = || ServerConfig { data_dir: Some(dir.path().to_owned()), ..ServerConfig::default() };
    let server = start_with(config()).await;
    let cluster = server.handle().cluster_id();
    let p = Provider::default();
    let a = FakeNode::join(server.handle(), node(1), Fate::Runs, &p).await;
    submit(server.handle(), job("web", 2)).await;
    let running = |state: &state::State| live(state, "web", ClientStatus::Running).len() == 2;
    let before = until(server.handle(), "both run", running).await;
    // A second agent is refused, by the name of the first.
    match Server::start(config()).await {
        Err(StartError::Store(error)) => {
            assert!(error.to_string().contains(&std::process::id().to_string()), "{error}")
        }
        other => panic!("{other:?}"),
    }
    server.shutdown().await;
    drop(a);

    let server = start_with(config()).await;
    assert_eq!(server.handle().cluster_id(), cluster);
    let _a = FakeNode::join(server.handle(), node(1), Fate::Runs, &p).await;
    let after = until(server.handle(), "both still run", running).await;
    let ids = |state: &state::State| state.allocs().map(|a| a.id).collect::<Vec<_>>();
    assert_eq!(ids(&before), ids(&after), "nothing was placed again");
    assert!(after.latest_index() >= before.latest_index(), "indexes never go back");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_and_the_server_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let config = ServerConfig {
        data_dir: Some(dir.path().to_owned()),
        max_stored_bytes: Some(1024 * 1024),
        ..ServerConfig::default()
    };
    let server = start_with(config).await;
    let s = server.handle();
    let _a = FakeNode::join(s, node(1), Fate::Runs, &Provider::default()).await;
    let large = |number: usize| {
        let mut job = job(&format!("large-{number}"), 1);
        // So large that what is left after a refusal is always room for the small job below, whatever was in flight.
        job.meta.insert("filler".to_owned(), "x".repeat(400_000));
        job
    };
    submit(s, large(0)).await;
    let mut stored = 1;
    // Several at once, so that decisions are in flight which were built on a refused one.
    let refusal = 'full: loop {
        let attempts =
            (stored..stored + 4).map(|n| s.register_job(RegisterJob { job: large(n), ..RegisterJob::default() }));
        for result in futures::future::join_all(attempts).await {
            match result {
                Ok(_) => stored += 1,
                Err(error) => break 'full error,
            }
        }
        assert!(stored < 40, "the limit was not enforced");
    };
    assert!(refusal.to_string().contains("no space left"), "{refusal}");
    until(s, "health says that writes are refused", |_| {
        s.writes_refused().is_some_and(|why| why.contains("no space left"))
    })
    .await;
    // It still reads, and says nothing of what was refused.
    until(s, "what was acknowledged is there", |state| {
        state.job_count() >= stored && state.job(&key("large-0")).is_some()
    })
    .await;
    // What still fits is taken, scheduled and run: neither the state nor the broker has lost its way.
    // A write that was decided on top of a refused one is refused with it, and says why; tried again it is taken.
    let mut tries = 0;
    while let Err(error) = s.register_job(RegisterJob { job: job("small", 1), ..RegisterJob::default() }).await {
        assert!(error.to_string().contains("no space left"), "{error}");
        tries += 1;
        assert!(tries < 20, "a small write is still refused: {error}");
    }
    eventually("health, good again by itself", || s.writes_refused().is_none()).await;
    until(s, "the small one runs", |state| live(state, "small", ClientStatus::Running).len() == 1).await;
    server.shutdown().await;
    let server = start_in(dir.path()).await;
    assert_eq!(live(&server.handle().snapshot(), "small", ClientStatus::Running).len(), 1);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_job_of_absurd_count_does_not_kill_the_server() {
    let dir = tempfile::tempdir().unwrap();
    // As a release without a limit has stored it.
    let config = |job_max_count| ServerConfig {
        data_dir: Some(dir.path().to_owned()),
        job_max_count,
        ..ServerConfig::default()
    };
    let server = start_with(config(0)).await;
    let huge = |id: &str, make: fn(&str, i32) -> model::Job| {
        let mut job = make(id, 100_000_000);
        resources(&mut job, 500, 10);
        job
    };
    for job in [huge("local", batch_job), huge("far", remote_job)] {
        submit(server.handle(), job).await;
    }
    server.shutdown().await;

    let server = start_with(config(20)).await;
    let s = server.handle();
    let p = Provider::default();
    let _local = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    let _remote = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    let placed = |state: &state::State, id: &str| state.allocs_by_job(&key(id)).count();
    let state = until(s, "what fits is placed, the rest waits", |state| {
        let waits = |id: &str| {
            state.evals_by_job(&key(id)).any(|e| e.status == EvalStatus::Blocked && e.queued["g"] > 99_000_000)
        };
        placed(state, "far") == 20 && placed(state, "local") > 0 && waits("far") && waits("local")
    });
    let state = state.await;
    assert!(placed(&state, "local") <= 20);
    // It is not taken again, in none of the ways that there are.
    let refused = |why: server::ServerError| assert!(why.to_string().contains("at most 20 are allowed"), "{why}");
    refused(s.register_job(RegisterJob { job: huge("new", batch_job), ..RegisterJob::default() }).await.unwrap_err());
    refused(s.plan_job(PlanJob { job: huge("local", batch_job), diff: true }).await.map(|_| ()).unwrap_err());
    let scale =
        |count| ScaleJob { key: key("local"), group: "g".to_owned(), count: Some(count), ..ScaleJob::default() };
    refused(s.scale_job(scale(21)).await.unwrap_err());
    // And it goes away as any other.
    s.scale_job(scale(1)).await.unwrap();
    stop(s, "far").await;
    let stopped =
        |state: &state::State, id: &str| state.allocs_by_job(&key(id)).filter(|a| !a.server_terminal()).count();
    until(s, "both are small", |state| stopped(state, "far") == 0 && stopped(state, "local") == 1).await;
    server.shutdown().await;
}
