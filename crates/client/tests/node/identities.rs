//! Workload identities with real tasks: waited for, given as file and variable, renewed, and what follows a renewal.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use model::{ClientStatus, GoDuration, Task, task::Identity};
use serde_json::json;

use crate::fixture::{Rig, alloc, end, eventually, task};

fn sh(name: &str, script: &str) -> Task {
    task(name, "raw_exec", json!({"command": "/bin/sh", "args": ["-c", script]}))
}

fn named(name: &str, ttl: GoDuration, change_mode: &str) -> Identity {
    let change_signal = if change_mode == "signal" { "SIGHUP".into() } else { String::new() };
    Identity {
        name: name.into(),
        audience: vec!["a".into()],
        file: true,
        ttl,
        change_mode: change_mode.into(),
        change_signal,
        ..Identity::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_waited_for_and_only_the_task_reads_them() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    rig.driver_ready("raw_exec").await;
    let out = "$NOMAD_ALLOC_DIR/data/out";
    let mut t =
        sh("t", &format!("echo $NOMAD_TOKEN > {out}; echo $NOMAD_TOKEN_aws_1 >> {out}; cat secrets/nomad_aws-1.jwt local/own >> {out}"));
    t.identity = Some(Identity { name: "default".into(), env: true, ..Identity::default() });
    let own = Identity { filepath: "local/own".into(), ..named("own", GoDuration::ZERO, "") };
    t.identities = vec![Identity { env: true, ..named("aws-1", GoDuration::ZERO, "") }, own];
    t.templates = vec![model::task::Template {
        destination: Some("local/copy".into()),
        data: Some("{{ file \"secrets/nomad_aws-1.jwt\" }}".into()),
        ..model::task::Template::default()
    }];
    let (a, job) = alloc("batch", vec![t]);
    rig.server.place(&a, &job);
    let told = |u: &model::AllocClientUpdate| {
        u.task_states["t"].events.iter().any(|e| e.kind == "Identity" && e.display_message.contains("Waiting for tokens"))
    };
    rig.server.alloc(a.id, "the event of missing tokens", told).await;
    rig.server.tokens(Duration::ZERO);
    rig.server.status(a.id, ClientStatus::Complete).await;
    let read = |path: &str| fs::read_to_string(rig.alloc_dir(a.id).join(path)).unwrap_or_default();
    let token = read("t/secrets/nomad_aws-1.jwt");
    assert!(token.starts_with("aws-1-"), "{token}");
    let seen = read("alloc/data/out");
    let lines: Vec<&str> = seen.lines().collect();
    assert!(lines[0].starts_with("default-"), "{seen}");
    assert_eq!((lines[1], lines[2]), (token.as_str(), format!("{token}{}", read("t/local/own")).as_str()));
    assert_eq!(read("t/local/copy"), token);
    for path in ["t/secrets/nomad_aws-1.jwt", "t/local/own", "t/private/identities.json"] {
        let mode = fs::metadata(rig.alloc_dir(a.id).join(path)).expect(path).permissions().mode() & 0o7777;
        assert_eq!(mode, 0o600, "{path}");
    }
    assert!(!rig.alloc_dir(a.id).join("t/secrets/nomad_token").exists(), "the default one is given as variable only");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_renewed_and_the_task_hears_of_it_as_the_job_wants() {
    let rig = Rig::new().await;
    rig.server.tokens(Duration::from_secs(2));
    let node = rig.node().await;
    rig.driver_ready("raw_exec").await;
    let ttl = GoDuration::from_secs(2);
    let run = "trap 'cat secrets/nomad_x.jwt >> $NOMAD_ALLOC_DIR/data/got; echo >> $NOMAD_ALLOC_DIR/data/got' HUP; \
               echo $$ >> $NOMAD_ALLOC_DIR/data/$NOMAD_TASK_NAME; while :; do sleep 0.05; done";
    let mut signalled = sh("signalled", run);
    signalled.identities = vec![named("x", ttl, "signal")];
    let mut restarted = sh("restarted", run);
    restarted.identities = vec![named("x", ttl, "restart")];
    let mut silent = sh("silent", run);
    silent.identities = vec![named("x", ttl, "noop")];
    let (a, job) = alloc("service", vec![signalled, restarted, silent]);
    rig.server.place(&a, &job);
    rig.server.status(a.id, ClientStatus::Running).await;
    let read = |path: &str| fs::read_to_string(rig.alloc_dir(a.id).join(path)).unwrap_or_default();
    let first = read("silent/secrets/nomad_x.jwt");
    assert!(!first.is_empty());
    eventually("a silent renewal", || read("silent/secrets/nomad_x.jwt") != first).await;
    eventually("the signals of two renewals", || {
        let got = read("alloc/data/got");
        got.lines().filter(|l| !l.is_empty()).collect::<std::collections::BTreeSet<_>>().len() >= 2
    })
    .await;
    eventually("a restart", || read("alloc/data/restarted").lines().count() >= 2).await;
    assert_eq!(read("alloc/data/silent").lines().count(), 1, "nothing follows a renewal there");
    assert_eq!(read("alloc/data/signalled").lines().count(), 1, "it runs on");
    end(&rig, node).await;
}
