//! The life of tasks with an HTCondor that is a directory and processes; each `Driver` is one manager. What goes wrong
//! in the pool is in `faults.rs`.

mod common;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use common::{World, becomes, configured, fingerprint, look, output, stop};
use driver_sdk::{
    Bundle, BundleFile, Ensure, Ensured, Health, InstanceState, LogStream, RemoteDriver as _, RemoteError, StopTask,
    Verdict,
};
use htcondor::Driver;
use serde_json::json;

fn bundle(path: &str, text: &str) -> Bundle {
    Bundle::new(vec![BundleFile { path: path.into(), mode: 0o644, data: text.into() }])
}

/// Creates until the answer is one: others may be at it as well.
async fn made(driver: Arc<Driver>, request: Ensure) -> Result<Ensured, RemoteError> {
    let mut last = String::new();
    for _ in 0..20 {
        match driver.ensure(request.clone()).await {
            Err(RemoteError::CouldNotAsk(why)) => last = why,
            answer => return answer,
        }
    }
    panic!("no answer in 20 rounds: {last}");
}

#[tokio::test]
async fn a_task_lives_from_its_create_to_its_acknowledged_end() {
    let world = World::new();
    let driver = world.manager().await;
    let script = "cat $NOMAD_TASK_DIR/told; echo \"$A\" >&2; sleep 600 & while [ ! -e $NOMAD_TASK_DIR/end ]; do \
        sleep 0.02; done; exit 3";
    let mut request = world.ensure("k", 1, script);
    request.task.env = [("A".to_owned(), "it's $HOME".to_owned())].into();
    request.bundle = bundle("local/told", "a file\n");
    let before = world.calls("");
    let made = driver.ensure(request.clone()).await.expect("made");
    assert!(made.created);
    assert!(world.calls("") - before <= 9, "a create makes {} calls", world.calls("") - before);
    let seen = becomes(&driver, &made.handle, InstanceState::Running).await;
    assert_eq!((seen.key.as_str(), seen.epoch, seen.provider_id.as_str()), ("k", 1, "job 1.0"));
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert_eq!((seen.attributes["job_id"].as_str(), &seen.attributes["node"]), ("1.0", &node));
    let began = seen.started_at.expect("when it began");
    let again = driver.ensure(request.clone()).await.expect("got");
    assert!(!again.created && again.handle == made.handle);
    testkit::eventually("its output", || world.read("k", "err").ends_with('\n')).await;
    assert_eq!(output(&driver, &made.handle, LogStream::Stdout).await.as_deref(), Ok("a file\n"));
    assert_eq!(output(&driver, &made.handle, LogStream::Stderr).await.as_deref(), Ok("it's $HOME\n"));
    driver.refresh(&made.handle, 1, bundle("local/end", "")).await.expect("renewed");

    let seen = becomes(&driver, &made.handle, InstanceState::Exited).await;
    assert_eq!((seen.exit.exit_code, seen.exit.signal, seen.exit.oom_killed), (3, 0, false));
    assert!(seen.started_at == Some(began) && seen.started_at <= seen.finished_at, "{seen:?}");
    testkit::eventually("the end of all that it has started", || world.processes(1).is_empty()).await;
    // Another manager finds the same result.
    let next = world.manager().await;
    let (handle, found) = next.find("k", "o").await.expect("found");
    assert_eq!((&handle, &found), (&made.handle, &look(&driver, &handle).await));
    next.acknowledge(&handle, 2).await.expect("acknowledged");
    assert!(!world.file("k", "").exists());
    assert_eq!(look(&driver, &handle).await.state, InstanceState::Gone);
    assert!(matches!(driver.find("k", "o").await, Err(RemoteError::Gone(_))));
    assert!(matches!(output(&driver, &handle, LogStream::Stdout).await, Err(RemoteError::Gone(_))));
    // Once more, since an answer may have been lost; and its key makes nothing again.
    next.acknowledge(&handle, 2).await.expect("acknowledged");
    let third = driver.ensure(Ensure { epoch: 3, ..request }).await;
    assert!(matches!(third, Err(RemoteError::Sealed(_))), "{third:?}");
    assert_eq!(driver.seal("k", 3, "o", b"").await, Ok(None));
    assert_eq!(world.ads().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn creates_of_two_managers_at_once_make_one_process() {
    let world = Arc::new(World::new());
    let managers = [world.manager().await, world.manager().await];
    for round in 0..12 {
        let key = format!("k{round}");
        let calls: Vec<_> = (0..4)
            .map(|n| {
                let (driver, request) =
                    (managers[n % 2].clone(), world.ensure(&key, 1, "echo started; exec sleep 600"));
                tokio::spawn(made(driver, request))
            })
            .collect();
        let mut all = Vec::new();
        for call in calls {
            all.push(call.await.expect("ran").expect("made"));
        }
        assert!(all.iter().filter(|made| made.created).count() <= 1, "{all:?}");
        assert!(all.iter().all(|made| made.handle == all[0].handle), "{all:?}");
        becomes(&managers[0], &all[0].handle, InstanceState::Running).await;
        testkit::eventually("its line", || world.starts(&key) > 0).await;
        let begun = world.begun(&key);
        assert_eq!(begun.len(), 1);
        // What else was submitted for the key is out of the queue, and never had a machine.
        let others = world.of(&key, "candidate");
        assert!(others.is_empty(), "{others:?}");
        managers[1].stop(&all[0].handle, 1, stop()).await.expect("stopped");
        assert_eq!((world.starts(&key), world.ad(begun[0])["JobRunCount"].as_u64()), (1, Some(1)));
    }
}

#[tokio::test]
async fn a_lost_answer_of_any_command_makes_no_second_instance() {
    for command in ["condor_submit", "condor_rm", "condor_qedit", "condor_release"] {
        let world = World::new();
        let (first, second) = (world.manager().await, world.manager().await);
        let request = world.ensure("k", 1, "echo started; exec sleep 600");
        world.say(&format!("{command}.loses"), "");
        let lost = first.ensure(request.clone()).await;
        assert!(matches!(lost, Err(RemoteError::CouldNotAsk(_))), "{command}: {lost:?}");
        world.unsay(&format!("{command}.loses"));
        // One manager repeats the create, and the other one takes over, at the same time.
        let over = Ensure { epoch: 2, ..request.clone() };
        let (again, got) = tokio::join!(first.ensure(request), made(second.clone(), over));
        let got = got.expect("got");
        match again {
            Ok(again) => assert_eq!(again.handle, got.handle, "{command}"),
            Err(RemoteError::StaleEpoch { given: 1, accepted: 2 } | RemoteError::CouldNotAsk(_)) => {}
            Err(why) => panic!("{command}: {why:?}"),
        }
        becomes(&second, &got.handle, InstanceState::Running).await;
        testkit::eventually("its line", || world.starts("k") > 0).await;
        second.stop(&got.handle, 2, stop()).await.expect("stopped");
        assert_eq!((world.begun("k").len(), world.starts("k")), (1, 1), "{command}");
    }
}

#[tokio::test]
async fn a_manager_that_dies_while_it_creates_leaves_one_instance_or_none() {
    // Before the release of what has begun: whoever looks for it releases it.
    for takes_over in [false, true] {
        let world = World::new();
        let (first, second) = (world.manager().await, world.manager().await);
        world.say("condor_release.hangs", "");
        let request = world.ensure("k", 1, "echo started; exec sleep 600");
        let call = tokio::spawn({
            let request = request.clone();
            async move { first.ensure(request).await }
        });
        testkit::eventually("the call that hangs", || world.calls("condor_release") > 0).await;
        call.abort();
        assert!(call.await.expect_err("ended").is_cancelled());
        assert_eq!(world.ad(world.begun("k")[0])["JobStatus"], 5);
        world.unsay("condor_release.hangs");
        let handle = match takes_over {
            true => {
                let got = second.ensure(Ensure { epoch: 2, ..request }).await.expect("got");
                assert!(!got.created);
                got.handle
            }
            false => second.find("k", "o").await.expect("found").0,
        };
        becomes(&second, &handle, InstanceState::Running).await;
        testkit::eventually("its line", || world.starts("k") > 0).await;
        second.stop(&handle, 2, stop()).await.expect("stopped");
        assert_eq!((world.ads().len(), world.starts("k")), (1, 1));
    }
    // Before it has begun: there is none, and its candidate goes with the next create.
    let world = World::new();
    let (first, second) = (world.manager().await, world.manager().await);
    world.say("condor_qedit.hangs", "");
    let request = world.ensure("k", 1, "echo started; exec sleep 600");
    let call = tokio::spawn({
        let request = request.clone();
        async move { first.ensure(request).await }
    });
    testkit::eventually("the call that hangs", || world.calls("condor_qedit") > 0).await;
    call.abort();
    assert!(call.await.expect_err("ended").is_cancelled());
    world.unsay("condor_qedit.hangs");
    assert!(matches!(second.find("k", "o").await, Err(RemoteError::Gone(_))));
    assert_eq!(world.of("k", "candidate").len(), 1);
    assert!(second.list("o", "", 10).await.expect("listed").instances.is_empty());
    let got = second.ensure(Ensure { epoch: 2, ..request }).await.expect("made");
    assert!(got.created);
    becomes(&second, &got.handle, InstanceState::Running).await;
    testkit::eventually("its line", || world.starts("k") > 0).await;
    assert_eq!((world.begun("k").len(), world.of("k", "candidate").len()), (1, 0));
    second.stop(&got.handle, 2, stop()).await.expect("stopped");
    assert_eq!(world.starts("k"), 1);
}

#[tokio::test]
async fn a_sealed_key_makes_nothing() {
    let world = World::new();
    let (driver, other) = (world.manager().await, world.manager().await);
    assert_eq!(driver.seal("k", 3, "o", b"").await, Ok(None));
    for (epoch, manager) in [(3, &driver), (4, &other)] {
        let refused = manager.ensure(world.ensure("k", epoch, "true")).await;
        assert!(matches!(refused, Err(RemoteError::Sealed(_))), "{refused:?}");
    }
    let stale = other.ensure(world.ensure("k", 2, "true")).await;
    assert_eq!(stale, Err(RemoteError::StaleEpoch { given: 2, accepted: 3 }));
    assert_eq!(driver.seal("k", 3, "o", b"").await, Ok(None));
    assert_eq!((world.of("k", "sealed").len(), world.ads().len()), (1, 1));
    assert!(!world.file("k", "").exists());
    // A candidate that its manager has left goes with the seal.
    world.say("condor_qedit.loses", "");
    world.say("condor_qedit.fails", "Failed to connect to queue manager <127.0.0.1:9618>\n");
    assert!(matches!(driver.ensure(world.ensure("l", 1, "true")).await, Err(RemoteError::CouldNotAsk(_))));
    assert_eq!(world.of("l", "candidate").len(), 1);
    for name in ["condor_qedit.loses", "condor_qedit.fails"] {
        world.unsay(name);
    }
    assert_eq!(other.seal("l", 2, "o", b"").await, Ok(None));
    assert_eq!((world.of("l", "candidate").len(), world.of("l", "sealed").len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seal_during_a_create_finds_the_instance_or_prevents_it() {
    let world = Arc::new(World::new());
    let (driver, other) = (world.manager().await, world.manager().await);
    let (mut found, mut prevented) = (0, 0);
    for round in 0.. {
        if round >= 12 && found > 0 && prevented > 0 {
            break;
        }
        assert!(round < 100, "{found} found, {prevented} prevented: both ends are to be seen");
        let key = format!("k{round}");
        let request = world.ensure(&key, 1, "echo started; exec sleep 600");
        let create = tokio::spawn(made(driver.clone(), request));
        // At another place of the create each time.
        testkit::eventually("its calls", || world.calls("") > round % 6 || create.is_finished()).await;
        let before = world.calls("");
        testkit::eventually("more", || world.calls("") >= before + round % 7 || create.is_finished()).await;
        let sealed = testkit::poll("an answer", async || match other.seal(&key, 1, "o", b"").await {
            Err(RemoteError::CouldNotAsk(why)) => Err(why),
            answer => Ok(answer),
        });
        match (sealed.await.expect("sealed"), create.await.expect("ran")) {
            (Some((handle, _)), Ok(made)) => {
                assert_eq!(handle, made.handle);
                becomes(&other, &handle, InstanceState::Running).await;
                other.stop(&handle, 1, stop()).await.expect("stopped");
                assert_eq!(world.begun(&key).len(), 1);
                found += 1;
            }
            (None, Err(RemoteError::Sealed(_))) => {
                assert_eq!((world.begun(&key).len(), world.starts(&key)), (0, 0));
                prevented += 1;
            }
            other => panic!("{key}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_stale_manager_changes_nothing() {
    let world = World::new();
    let (old, new) = (world.manager().await, world.manager().await);
    let mut request = world.ensure("k", 3, "echo started; exec sleep 600");
    request.bundle = bundle("local/x", "new");
    let made = old.ensure(request.clone()).await.expect("made");
    becomes(&old, &made.handle, InstanceState::Running).await;
    let got = new.ensure(Ensure { epoch: 5, ..request.clone() }).await.expect("got");
    assert_eq!((&got.handle, got.created, got.observed.epoch), (&made.handle, false, 5));
    let before = world.ads();
    let stale = RemoteError::StaleEpoch { given: 3, accepted: 5 };
    assert_eq!(old.ensure(request.clone()).await, Err(stale.clone()));
    assert_eq!(old.stop(&made.handle, 3, stop()).await, Err(stale.clone()));
    assert_eq!(old.refresh(&made.handle, 3, bundle("local/x", "old")).await, Err(stale.clone()));
    assert_eq!(old.seal("k", 3, "o", b"").await, Err(stale.clone()));
    assert!(old.acknowledge(&made.handle, 3).await.is_err());
    assert_eq!(world.ads(), before);
    assert_eq!((world.read("k", "task/local/x").as_str(), world.file("k", "stop").exists()), ("new", false));
    new.stop(&made.handle, 5, stop()).await.expect("stopped");
    assert_eq!(old.acknowledge(&made.handle, 3).await, Err(stale));
    assert!(world.file("k", "exit").exists() && world.ads()[0].get("DroverAcknowledged").is_none());
    new.acknowledge(&made.handle, 5).await.expect("acknowledged");
}

#[tokio::test]
async fn a_stop_sends_the_signal_of_choice() {
    let world = World::new();
    let driver = world.manager().await;
    let script = "trap 'exit 9' USR1; trap 'exit 1' TERM; echo ready; while :; do sleep 0.02; done";
    for (key, signal, code) in [("k", "SIGUSR1", 9), ("l", "", 1), ("m", "SIGNOSUCH", 1)] {
        let (handle, _) = world.runs_script(&driver, key, script).await;
        let asked = StopTask { signal: signal.to_owned(), timeout: Duration::from_secs(30) };
        let seen = driver.stop(&handle, 1, asked).await.expect("stopped");
        assert_eq!((seen.state, seen.exit.exit_code), (InstanceState::Exited, code), "{signal}");
    }
}

#[tokio::test]
async fn what_ignores_the_signal_is_killed_after_the_timeout_with_all_that_it_has_started() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("slow_ends", "");
    let script = "trap '' TERM INT; setsid sleep 600 & echo ready; while :; do sleep 0.05; done";
    let (handle, job) = world.runs_script(&driver, "k", script).await;
    let asked = StopTask { signal: "SIGINT".to_owned(), timeout: Duration::from_secs(1) };
    let begun = std::time::Instant::now();
    let seen = driver.stop(&handle, 1, asked).await.expect("stopped");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!((seen.state, seen.exit.exit_code, seen.exit.signal), (InstanceState::Exited, 137, 9));
    assert_eq!(world.processes(job), [0; 0], "a stop is answered when nothing runs any more");
    // Once more is no error, and tells the same.
    assert_eq!(driver.stop(&handle, 1, stop()).await.expect("stopped").exit, seen.exit);
}

#[tokio::test]
async fn what_waits_in_the_queue_is_found_and_stopped_and_never_starts() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("no_machines", "no match found");
    let made = driver.ensure(world.ensure("k", 1, "echo started")).await.expect("made");
    let seen = testkit::poll("the reason", async || {
        let seen = look(&driver, &made.handle).await;
        (seen.reason == "no match found").then_some(seen)
    });
    assert_eq!(seen.await.state, InstanceState::Creating);
    let (handle, seen) = world.manager().await.find("k", "o").await.expect("found");
    assert_eq!((seen.state, &handle), (InstanceState::Creating, &made.handle));
    let ended = driver.stop(&made.handle, 1, stop()).await.expect("stopped");
    assert_eq!(ended.state, InstanceState::Exited);
    assert!(ended.reason.contains("never began"), "{}", ended.reason);
    world.unsay("no_machines");
    testkit::eventually("no shadow", || world.ad(1)["JobStatus"] == 3).await;
    assert_eq!(world.manager().await.find("k", "o").await.expect("found").1.exit, ended.exit);
    driver.acknowledge(&handle, 1).await.expect("acknowledged");
    assert_eq!(world.starts("k"), 0);
}

#[tokio::test]
async fn lists_show_instances_and_nothing_else_page_by_page() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("no_machines", "");
    for (key, owner) in [("a", "o"), ("b", "o"), ("c", "p"), ("d", "o"), ("gone", "o")] {
        driver.ensure(Ensure { owner: owner.into(), ..world.ensure(key, 1, "true") }).await.expect("made");
    }
    let (gone, _) = driver.find("gone", "o").await.expect("found");
    driver.stop(&gone, 1, stop()).await.expect("stopped");
    driver.acknowledge(&gone, 1).await.expect("acknowledged");
    assert_eq!(driver.seal("sealed", 1, "o", b"").await, Ok(None));
    world.say("condor_qedit.fails", "Failed to connect to queue manager\n");
    driver.ensure(world.ensure("candidate", 1, "true")).await.expect_err("left");
    world.unsay("condor_qedit.fails");
    let listed = async |owner: &str, size: usize| {
        let (mut keys, mut token, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = driver.list(owner, &token, size).await.expect("listed");
            assert!(page.instances.len() <= size);
            pages += 1;
            for instance in page.instances {
                let (handle, _) = driver.find(&instance.key, &instance.owner).await.expect("found");
                assert_eq!((handle, instance.slot.as_str(), instance.epoch), (instance.handle, "s", 1));
                keys.push(instance.key);
            }
            token = page.next_page_token;
            if token.is_empty() {
                return (keys.join(" "), pages);
            }
        }
    };
    assert_eq!(listed("o", 2).await, ("a b d".to_owned(), 2));
    assert_eq!(listed("", 3).await, ("a b c d".to_owned(), 2));
    assert_eq!(listed("", 100).await, ("a b c d".to_owned(), 1));
    assert_eq!(listed("q", 100).await, (String::new(), 1));
}

#[tokio::test]
async fn twenty_are_seen_with_one_condor_q() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("no_machines", "");
    let mut handles = Vec::new();
    for n in 0..20 {
        handles.push(driver.ensure(world.ensure(&format!("k{n}"), 1, "true")).await.expect("made").handle);
    }
    let before = world.calls("condor_q");
    let seen = driver.observe(&handles).await.expect("observed");
    assert!(seen.iter().all(|s| s.state == InstanceState::Creating), "{seen:?}");
    assert!(seen.iter().enumerate().all(|(n, seen)| seen.key == format!("k{n}")), "{seen:?}");
    assert_eq!(world.calls("condor_q") - before, 1);
}

#[tokio::test]
async fn keys_that_differ_in_case_only_are_different() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("no_machines", "");
    let small = driver.ensure(world.ensure("k", 1, "true")).await.expect("made");
    assert!(matches!(driver.find("K", "o").await, Err(RemoteError::Gone(_))));
    assert!(matches!(driver.find("k", "O").await, Err(RemoteError::Gone(_))));
    assert!(driver.list("O", "", 10).await.expect("listed").instances.is_empty());
    let great = driver.ensure(world.ensure("K", 1, "true")).await.expect("made");
    assert!(great.created && great.handle != small.handle);
    driver.stop(&great.handle, 1, stop()).await.expect("stopped");
    assert_eq!(look(&driver, &small.handle).await.state, InstanceState::Creating);
}

#[tokio::test]
async fn a_job_that_the_pool_would_refuse_is_a_wrong_request_and_makes_nothing() {
    let world = World::new();
    let driver = world.manager().await;
    let request = |key: &str, options: serde_json::Value| {
        let mut request = world.ensure(key, 1, "");
        request.task.msgpack_driver_config = rmp_serde::to_vec(&options).expect("bytes");
        request
    };
    for options in [
        json!({"command": "true", "requirements": "Arch =="}),
        json!({"command": "true", "requirements": "true\nqueue 10"}),
        json!({"command": ""}),
    ] {
        let refused = driver.ensure(request("k", options.clone())).await;
        assert!(matches!(refused, Err(RemoteError::WrongRequest(_))), "{options}: {refused:?}");
    }
    assert!(world.ads().is_empty());
    let full = json!({"command": "true", "requirements": "TARGET.Memory > 1", "rank": "KFlops", "cpus": 2, "gpus": 1,
        "disk": 10, "accounting_group": "g"});
    world.say("no_machines", "");
    driver.ensure(request("k", full)).await.expect("made");
    let ad = world.ads().remove(0);
    let of = |name: &str| ad[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        ["Requirements", "Rank", "request_cpus", "request_gpus", "request_disk", "accounting_group"].map(of),
        ["DroverState =?= \"begun\" && (TARGET.Memory > 1)", "KFlops", "2", "1", "10M", "g"]
    );
}

#[tokio::test]
async fn the_doctor_tells_what_tasks_will_lack_and_leaves_nothing_in_the_queue() {
    let world = World::new();
    let driver = world.manager().await;
    let found = fingerprint(&driver).await;
    assert_eq!((found.health, found.attributes["driver.htcondor.provider"].as_str()), (Health::Healthy, "submit-1"));
    let findings = driver.examine().await;
    assert!(findings.iter().all(|f| f.verdict == Verdict::Pass), "{findings:?}");
    assert!(world.ads().is_empty());
    world.say("down", "");
    let findings = driver.examine().await;
    assert!(findings.iter().any(|f| f.what == "schedd" && f.verdict == Verdict::Fail), "{findings:?}");
    let found = fingerprint(&driver).await;
    assert!(found.health == Health::Unhealthy && found.description.contains("Failed to connect"), "{found:?}");
    world.unsay("down");
    world.say("condor_submit.fails", "ERROR: Jobs of this user are not taken\n");
    fs::remove_file(world.dir.at("bin/condor_qedit")).expect("removed");
    fs::remove_file(world.dir.at("runs/provider")).expect("removed");
    let findings = driver.examine().await;
    let failed: Vec<_> = findings.iter().filter(|f| f.verdict == Verdict::Fail).map(|f| f.what.as_str()).collect();
    assert_eq!(failed, ["command condor_qedit", "submission", "base"]);
}

#[tokio::test]
async fn a_directory_of_another_runtime_or_that_is_not_mounted_is_told_and_not_used() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("no_machines", "");
    let waits = driver.ensure(world.ensure("w", 1, "true")).await.expect("made").handle;
    let other = world.manager_with(json!({"schedd": "submit-2"})).await;
    let found = fingerprint(&other).await;
    assert!(found.description.contains("submit-1") && found.description.contains("submit-2"), "{found:?}");
    let calls = world.calls("");
    let refused = other.ensure(world.ensure("k", 1, "true")).await;
    assert!(matches!(refused, Err(RemoteError::CouldNotAsk(_))), "{refused:?}");
    assert_eq!(world.calls(""), calls);
    // A handle of the one means nothing to the other.
    let mut config = world.config();
    config["schedd"] = "submit-2".into();
    config["base"] = world.dir.at("elsewhere").display().to_string().into();
    fs::create_dir(world.dir.at("elsewhere")).expect("made");
    let seen = look(configured(&config).await.as_ref(), &waits).await;
    assert!(seen.state == InstanceState::Unknown && seen.reason.contains("submit-1"), "{seen:?}");

    let (away, base) = (world.dir.at("away"), world.dir.at("runs"));
    fs::rename(&base, &away).expect("moved");
    fs::create_dir(&base).expect("the empty directory that something is mounted at");
    let seen = look(&driver, &waits).await;
    assert!(seen.state == InstanceState::Unknown && seen.reason.contains("is it mounted"), "{seen:?}");
    let refused = driver.ensure(world.ensure("k", 1, "true")).await;
    assert!(matches!(refused, Err(RemoteError::CouldNotAsk(_))), "{refused:?}");
    assert!(world.of("k", "candidate").is_empty() && fs::read_dir(&base).expect("listed").next().is_none());
    assert_eq!(fingerprint(&driver).await.health, Health::Unhealthy);
    fs::remove_dir(&base).expect("removed");
    fs::rename(&away, &base).expect("moved");
    assert_eq!(look(&driver, &waits).await.state, InstanceState::Creating);
}

#[tokio::test]
async fn what_has_ended_does_not_run_again_while_the_queue_is_late() {
    let world = World::new();
    let driver = world.manager().await;
    let (handle, _) = world.runs(&driver, "k").await;
    fs::write(world.file("k", "exit"), "3 100\n").expect("written");
    // It reads the files first, as it has not seen the instance run.
    let late = world.manager().await;
    for _ in 0..3 {
        let seen = look(&late, &handle).await;
        assert_eq!((seen.state, seen.exit.exit_code), (InstanceState::Exited, 3));
    }
}
