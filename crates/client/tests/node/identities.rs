//! Workload identities with real tasks: waited for, given as file and variable, renewed, and what follows a renewal.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use model::{GoDuration, task::Identity};

use crate::fixture::{Rig, end, eventually, sh};

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
    let (rig, node) = Rig::with("raw_exec").await;
    let out = "$NOMAD_ALLOC_DIR/data/out";
    // It runs on: with its end its secrets go.
    let mut t = sh(
        "t",
        &format!(
            "echo $NOMAD_TOKEN > {out}; echo $NOMAD_TOKEN_aws_1 >> {out}; cat secrets/nomad_aws-1.jwt local/own >> \
                {out}; \
             touch {out}.done; exec sleep 600"
        ),
    );
    t.identity = Some(Identity { name: "default".into(), env: true, ..Identity::default() });
    let own = Identity { filepath: "local/own".into(), ..named("own", GoDuration::ZERO, "") };
    t.identities = vec![Identity { env: true, ..named("aws-1", GoDuration::ZERO, "") }, own];
    t.templates = vec![model::task::Template {
        destination: Some("local/copy".into()),
        data: Some("{{ file \"secrets/nomad_aws-1.jwt\" }}".into()),
        ..model::task::Template::default()
    }];
    let (a, _) = rig.place("batch", vec![t]);
    let told = |u: &model::AllocClientUpdate| {
        u.task_states["t"]
            .events
            .iter()
            .any(|e| e.kind == "Identity" && e.display_message.contains("Waiting for tokens"))
    };
    rig.server.alloc(a.id, "the event of missing tokens", told).await;
    rig.server.tokens(Duration::ZERO);
    eventually("what the task sees", || rig.alloc_dir(a.id).join("alloc/data/out.done").exists()).await;
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
    // The first ones live long enough for the shells to be ready for a signal.
    rig.server.tokens(Duration::from_secs(20));
    let node = rig.node_of("raw_exec").await;
    let ttl = GoDuration::from_secs(20);
    let run = "trap 'cat secrets/nomad_x.jwt >> $NOMAD_ALLOC_DIR/data/got; echo >> $NOMAD_ALLOC_DIR/data/got' HUP; \
               echo $$ >> $NOMAD_ALLOC_DIR/data/$NOMAD_TASK_NAME; while :; do sleep 0.05; done";
    let mut signalled = sh("signalled", run);
    signalled.identities = vec![named("x", ttl, "signal")];
    let mut restarted = sh("restarted", run);
    restarted.identities = vec![named("x", ttl, "restart")];
    let mut silent = sh("silent", run);
    silent.identities = vec![named("x", ttl, "noop")];
    let (a, _) = rig.run("service", vec![signalled, restarted, silent]).await;
    let read = |path: &str| fs::read_to_string(rig.alloc_dir(a.id).join(path)).unwrap_or_default();
    for task in ["signalled", "restarted", "silent"] {
        eventually("the shells", || !read(&format!("alloc/data/{task}")).is_empty()).await;
    }
    rig.server.tokens(Duration::from_secs(2));
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn templates_are_told_of_tokens_and_follow_their_renewal() {
    let rig = Rig::new().await;
    rig.server.tokens(Duration::from_secs(2));
    let node = rig.node_of("raw_exec").await;
    let mut t = sh(
        "t",
        "echo $$ >> $NOMAD_ALLOC_DIR/data/runs; echo $FROM_TEMPLATE > $NOMAD_ALLOC_DIR/data/seen; while :; do sleep \
            0.05; done",
    );
    t.identity = Some(Identity { name: "default".into(), env: true, ..Identity::default() });
    // Not for the environment: no template is told of it.
    let hidden = named("hidden", GoDuration::ZERO, "");
    t.identities = vec![Identity { env: true, file: false, ..named("x-1", GoDuration::from_secs(2), "noop") }, hidden];
    let template = |destination: &str, data: &str| model::task::Template {
        destination: Some(destination.into()),
        data: Some(data.into()),
        change_mode: Some("noop".into()),
        ..model::task::Template::default()
    };
    t.templates = vec![
        template(
            "local/both",
            "{{ env \"NOMAD_TOKEN\" }} {{ mustEnv \"NOMAD_TOKEN_x_1\" }} {{ \
                envOrDefault \"NOMAD_TOKEN_hidden\" \"none\" }}",
        ),
        model::task::Template { once: Some(true), ..template("local/once", "{{ env \"NOMAD_TOKEN_x_1\" }}") },
        model::task::Template {
            env: Some(true),
            once: Some(true),
            ..template("local/env", "FROM_TEMPLATE={{ env \"NOMAD_TOKEN\" }}")
        },
    ];
    let (a, _) = rig.run("service", vec![t]).await;
    let read = |path: &str| fs::read_to_string(rig.alloc_dir(a.id).join(path)).unwrap_or_default();
    let once = read("t/local/once");
    assert!(once.starts_with("x-1-"), "{once}");
    eventually("the variable of a template", || read("alloc/data/seen").starts_with("default-")).await;
    let default = read("alloc/data/seen").trim().to_owned();
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let renewed = || {
        let words = words(read("t/local/both"));
        words.len() == 3 && words[1] != once
    };
    eventually("the renewed token in the file", renewed).await;
    let both = words(read("t/local/both"));
    assert!(both[1].starts_with("x-1-"), "{both:?}");
    assert_eq!((both[0].as_str(), both[2].as_str(), read("t/local/once")), (default.as_str(), "none", once));
    assert_eq!(read("alloc/data/runs").lines().count(), 1, "it runs on");
    end(&rig, node).await;
}
