//! What goes wrong in the pool, and what users put into their directories; see `driver.rs` for the life of tasks.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

use common::{World, becomes, look, output, stop};
use driver_sdk::{Ensure, InstanceState, LogStream, RemoteDriver as _, RemoteError, StopTask};
use rustix::fs::FlockOperation;
use serde_json::json;

#[tokio::test]
async fn an_evicted_job_ends_once_and_its_second_start_does_nothing() {
    let world = World::new();
    let driver = world.manager().await;
    // One is looked at before its second start, and the other one only afterwards.
    for (key, looked_at) in [("k", true), ("l", false)] {
        let (handle, job) = world.runs(&driver, key).await;
        world.say("no_machines", "");
        world.happens("fake_evict", job);
        testkit::eventually("the eviction", || world.ad(job)["JobStatus"] == 1).await;
        let early = match looked_at {
            true => Some(becomes(&driver, &handle, InstanceState::Exited).await),
            false => None,
        };
        world.unsay("no_machines");
        testkit::eventually("the second start's end", || world.ad(job)["JobStatus"] == 4).await;
        assert_eq!(world.ad(job)["JobRunCount"], 2);
        assert_eq!((world.ad(job)["ExitCode"].as_u64(), world.starts(key)), (Some(79), 1));
        let seen = look(&driver, &handle).await;
        assert_eq!((seen.state, seen.exit.exit_code, seen.exit.signal), (InstanceState::Exited, 137, 9));
        assert!(early.is_none_or(|early| (early.exit, early.finished_at) == (seen.exit.clone(), seen.finished_at)));
        assert_eq!(look(world.manager().await.as_ref(), &handle).await, look(&driver, &handle).await);
        driver.acknowledge(&handle, 1).await.expect("acknowledged");
    }
}

#[tokio::test]
async fn a_lost_node_is_unknown_until_nothing_of_the_task_runs() {
    let world = World::new();
    let driver = world.manager().await;
    let (handle, job) = world.runs_script(&driver, "k", "setsid sleep 600 & echo started; wait").await;
    world.say("no_machines", "");
    world.happens("fake_lose", job);
    testkit::eventually("the loss", || world.ad(job)["JobStatus"] == 1).await;
    assert!(!world.processes(job).is_empty());
    let seen = look(&driver, &handle).await;
    assert_eq!(seen.state, InstanceState::Unknown, "{}", seen.reason);
    assert!(seen.reason.contains("still runs"), "{}", seen.reason);
    assert!(matches!(driver.acknowledge(&handle, 1).await, Err(RemoteError::CouldNotAsk(_))));
    // HTCondor starts it again, beside the old one.
    world.unsay("no_machines");
    testkit::eventually("the second start's end", || world.ad(job)["JobStatus"] == 4).await;
    assert_eq!(world.starts("k"), 1);
    assert_eq!(look(&driver, &handle).await.state, InstanceState::Unknown);
    world.happens("fake_kill", job);
    let seen = becomes(&driver, &handle, InstanceState::Exited).await;
    assert_eq!((seen.exit.exit_code, seen.exit.signal), (137, 9));
}

#[tokio::test]
async fn a_stop_during_the_loss_of_a_node_is_not_answered_before_the_end() {
    let world = World::new();
    let driver = world.manager().await;
    let (handle, job) =
        world.runs_script(&driver, "k", "trap '' TERM; echo started; while :; do sleep 0.05; done").await;
    world.say("no_machines", "");
    world.happens("fake_lose", job);
    testkit::eventually("the loss", || world.ad(job)["JobStatus"] == 1).await;
    let (stopping, asked) = (driver.clone(), handle.clone());
    let stopped = tokio::spawn(async move { stopping.stop(&asked, 1, stop()).await });
    testkit::eventually("its removal", || world.ad(job)["JobStatus"] == 3).await;
    let before = world.calls("condor_q");
    testkit::eventually("looks", || world.calls("condor_q") > before + 2).await;
    assert!(!stopped.is_finished());
    world.happens("fake_kill", job);
    let seen = testkit::soon(stopped).await.expect("ran").expect("stopped");
    assert_eq!((seen.state, seen.exit.exit_code), (InstanceState::Exited, 137));
}

#[tokio::test]
async fn a_stop_while_the_task_begins_is_not_lost() {
    let world = World::new();
    let driver = world.manager().await;
    for n in 0..12 {
        let key = format!("k{n}");
        let made = driver.ensure(world.ensure(&key, 1, "exec sleep 600")).await.expect("made");
        // HTCondor sends its signal once: here it comes while the gate starts the task.
        let pid = testkit::until("the claim", || {
            world.file(&key, "claim").exists().then(|| world.pid(world.begun(&key)[0])).flatten()
        });
        fs::write(world.file(&key, "stop"), "TERM 1\n").expect("written");
        fs::set_permissions(world.file(&key, "stop"), Permissions::from_mode(0o644)).expect("its mode");
        testkit::try_signal(pid, rustix::process::Signal::TERM).expect("told");
        let asked = StopTask { signal: String::new(), timeout: Duration::from_secs(1) };
        becomes(&driver, &made.handle, InstanceState::Exited).await;
        let seen = testkit::soon(driver.stop(&made.handle, 1, asked)).await.expect("stopped");
        assert_eq!(seen.state, InstanceState::Exited);
    }
}

#[tokio::test]
async fn a_job_on_hold_has_ended_if_it_had_begun_and_waits_otherwise() {
    let world = World::new();
    let driver = world.manager().await;
    let go = world.dir.at("go");
    let script = format!(
        "trap 'while [ ! -e {} ]; do sleep 0.02; done; exit 4' TERM; echo started; while :; do sleep 0.02; done",
        go.display()
    );
    let (handle, job) = world.runs_script(&driver, "k", &script).await;
    world.happens("fake_hold", job);
    // It is on hold at once, while its processes still run.
    assert_eq!(world.ad(job)["JobStatus"], 5);
    assert_ne!(look(&driver, &handle).await.state, InstanceState::Exited);
    fs::write(&go, "").expect("written");
    let seen = becomes(&driver, &handle, InstanceState::Exited).await;
    assert_eq!((seen.exit.exit_code, seen.exit.oom_killed), (4, false));
    assert_eq!(driver.stop(&handle, 1, stop()).await.expect("stopped").exit, seen.exit);
    driver.acknowledge(&handle, 1).await.expect("acknowledged");
    // It does not wait in the queue for ever.
    assert_eq!(world.ad(job)["JobStatus"], 3);

    world.say("no_machines", "");
    let made = driver.ensure(world.ensure("l", 1, "true")).await.expect("made");
    let waits = world.begun("l").remove(0);
    world.happens("fake_hold", waits);
    let seen = look(&driver, &made.handle).await;
    assert_eq!(seen.state, InstanceState::Creating);
    assert!(seen.reason.contains("condor_hold"), "{}", seen.reason);
    // The hold of a person is not the driver's to release.
    driver.ensure(world.ensure("l", 1, "true")).await.expect("got");
    assert_eq!(world.ad(waits)["JobStatus"], 5);
}

#[tokio::test]
async fn too_much_memory_is_told() {
    let world = World::new();
    let driver = world.manager().await;
    let (handle, job) = world.runs(&driver, "k").await;
    world.happens("fake_oom", job);
    let seen = becomes(&driver, &handle, InstanceState::Exited).await;
    assert_eq!((seen.exit.exit_code, seen.exit.oom_killed), (137, true));
    assert!(seen.reason.contains("memory limit"), "{}", seen.reason);
    // Kept, whatever becomes of the job.
    driver.stop(&handle, 1, stop()).await.expect("stopped");
    assert_eq!(look(&driver, &handle).await.exit, seen.exit);
}

#[tokio::test]
async fn a_forgotten_job_is_gone_only_if_it_never_began() {
    let world = World::new();
    let driver = world.manager().await;
    let (handle, job) = world.runs(&driver, "k").await;
    world.say("forgotten_run_on", "");
    world.happens("fake_forget", job);
    let seen = look(&driver, &handle).await;
    assert_eq!(seen.state, InstanceState::Unknown, "{}", seen.reason);
    // Nobody makes it again beside what still runs.
    let again = driver.ensure(world.ensure("k", 1, "echo started")).await;
    assert_eq!((again.is_err() || !world.processes(job).is_empty(), world.starts("k")), (true, 1));
    world.happens_to_processes(job);
    let seen = becomes(&driver, &handle, InstanceState::Exited).await;
    assert_eq!(seen.exit.exit_code, 137);
    assert_eq!(look(world.manager().await.as_ref(), &handle).await.exit, seen.exit);
    assert_eq!(world.starts("k"), 1);
    driver.acknowledge(&handle, 1).await.expect("acknowledged");

    world.say("no_machines", "");
    let made = driver.ensure(world.ensure("l", 1, "echo started")).await.expect("made");
    world.happens("fake_forget", world.begun("l")[0]);
    assert_eq!(look(&driver, &made.handle).await.state, InstanceState::Gone);
}

#[tokio::test]
async fn neither_silence_nor_garbage_is_an_end() {
    let world = World::new();
    let driver = world.manager_with(json!({"command_timeout": "4s"})).await;
    let (handle, _) = world.runs(&driver, "k").await;
    for (switch, text) in [
        ("condor_q.hangs", ""),
        ("condor_q.says", "[\n{\n  \"ClusterId\": 1,\n  \"JobSt"),
        ("condor_q.says", "-- Schedd: submit-1\n"),
        ("condor_q.says", "{}"),
        ("condor_q.fails", ""),
        ("down", ""),
    ] {
        world.say(switch, text);
        let seen = look(&driver, &handle).await;
        assert_eq!(seen.state, InstanceState::Unknown, "{switch} {text:?}");
        assert!(!seen.reason.is_empty());
        for answer in [
            driver.stop(&handle, 1, stop()).await.map(drop),
            driver.acknowledge(&handle, 1).await,
            driver.find("k", "o").await.map(drop),
            driver.list("o", "", 10).await.map(drop),
            driver.seal("k", 1, "o", b"").await.map(drop),
            driver.ensure(world.ensure("k", 1, "true")).await.map(drop),
            driver.ensure(world.ensure("other", 1, "true")).await.map(drop),
        ] {
            assert!(matches!(answer, Err(RemoteError::CouldNotAsk(_))), "{switch} {text:?}: {answer:?}");
        }
        assert!(!world.file("k", "exit").exists() && world.file("k", "claim").exists(), "{switch} {text:?}");
        world.unsay(switch);
    }
    // A stop has asked for nothing, since it could not take the instance over or look at it.
    assert_eq!(world.ads().len(), 1, "nothing was created");
    assert_eq!((world.ad(1)["JobStatus"].as_u64(), world.starts("k")), (Some(2), 1));
    assert_eq!(look(&driver, &handle).await.state, InstanceState::Running);
}

#[tokio::test]
async fn silence_of_what_changes_the_queue_changes_nothing_and_is_asked_again() {
    let world = World::new();
    let driver = world.manager_with(json!({"command_timeout": "4s"})).await;
    for command in ["condor_submit", "condor_rm", "condor_qedit", "condor_release"] {
        let key = command.replace('_', "-");
        for (switch, text) in [("hangs", ""), ("says", "garbage\n"), ("fails", "")] {
            world.say(&format!("{command}.{switch}"), text);
            let failed = driver.ensure(world.ensure(&key, 1, "echo started; exec sleep 600")).await;
            assert!(matches!(failed, Err(RemoteError::CouldNotAsk(_))), "{command} {switch}: {failed:?}");
            world.unsay(&format!("{command}.{switch}"));
        }
        let made = driver.ensure(world.ensure(&key, 1, "echo started; exec sleep 600")).await.expect("made");
        becomes(&driver, &made.handle, InstanceState::Running).await;
        testkit::eventually("its line", || world.starts(&key) > 0).await;
        driver.stop(&made.handle, 1, stop()).await.expect("stopped");
        assert_eq!((world.begun(&key).len(), world.starts(&key)), (1, 1), "{command}");
    }
}

#[tokio::test]
async fn jobs_belong_to_the_user_of_the_configuration_who_gains_no_rights_by_it() {
    if !rustix::process::geteuid().is_root() {
        return skip::cannot("only root can submit for others");
    }
    let world = World::new();
    let driver = world.manager().await;
    let mut request = world.ensure("r", 1, "true");
    request.task.user = "daemon".to_owned();
    let refused = driver.ensure(request).await;
    assert!(matches!(&refused, Err(RemoteError::WrongRequest(why)) if why.contains("nobody")), "{refused:?}");
    let script = "id -un; mkdir -p $NOMAD_TASK_DIR/m/n; chmod 555 $NOMAD_TASK_DIR/m; echo done; exec sleep 600";
    let (handle, _) = world.runs_script(&driver, "k", script).await;
    testkit::eventually("its lines", || world.read("k", "out") == "nobody\ndone\n").await;
    for file in ["", "claim", "gate.sh", "env", "task/local"] {
        let found = fs::metadata(world.file("k", file)).expect("there");
        assert_eq!((found.uid(), found.mode() & 0o077), (65534, found.mode() & 0o055), "{file:?}");
    }
    assert_eq!(fs::metadata(world.file("k", "")).expect("there").mode() & 0o777, 0o700);
    // What the agent knows stays with the agent.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let told = fs::read_to_string(world.condor("submit.env")).expect("called");
    assert!(told.contains("USER=nobody\n") && !told.contains("CARGO_MANIFEST_DIR"), "{told}");

    // Its files become links to what it must not read.
    let secret = world.dir.at("secret");
    fs::write(&secret, "0 100 - of root\n").expect("written");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("private");
    for (link, why) in [("symbolic", "symbolic links"), ("hard", "denied")] {
        let out = world.file("k", "out");
        fs::remove_file(&out).expect("removed");
        match link {
            "hard" => fs::hard_link(&secret, &out),
            _ => std::os::unix::fs::symlink(&secret, &out),
        }
        .expect("linked");
        let read = output(&driver, &handle, LogStream::Stdout).await;
        assert!(matches!(&read, Err(RemoteError::CouldNotAsk(said)) if said.contains(why)), "{link}: {read:?}");
    }
    std::os::unix::fs::symlink(&secret, world.file("k", "exit")).expect("linked");
    // The gate puts its result in the place of the link. Nothing is read through it before.
    if let Err(why) = driver.stop(&handle, 1, stop()).await {
        assert!(why.to_string().contains("symbolic links"), "{why}");
    }
    let seen = becomes(&driver, &handle, InstanceState::Exited).await;
    assert_ne!(seen.exit.exit_code, 0, "that is what the link says: {seen:?}");
    assert_eq!(fs::read_to_string(&secret).expect("there"), "0 100 - of root\n");
    driver.acknowledge(&handle, 1).await.expect("acknowledged, with a directory that not even its owner can write to");
    assert!(!world.file("k", "").exists());
}

#[tokio::test]
async fn a_job_of_another_user_with_the_attributes_of_a_task_is_none() {
    if !rustix::process::geteuid().is_root() {
        return skip::cannot("only root can submit for others");
    }
    let world = World::new();
    let (driver, theirs) = (world.manager().await, world.manager_with(json!({"user": "daemon"})).await);
    world.say("no_machines", "");
    let mine = driver.ensure(world.ensure("k", 1, "true")).await.expect("made");
    // The provider is the same, and the directory could not be: only the queue is looked at.
    assert!(matches!(theirs.find("k", "o").await, Err(RemoteError::Gone(_))));
    assert!(theirs.list("", "", 10).await.expect("listed").instances.is_empty());
    assert_eq!(theirs.seal("l", 9, "o", b"").await, Ok(None));
    let made = driver.ensure(world.ensure("l", 1, "true")).await.expect("made");
    assert!(made.created && made.handle != mine.handle);
}

#[tokio::test]
async fn an_agent_of_root_without_a_user_is_told_so() {
    if !rustix::process::geteuid().is_root() {
        return skip::cannot("only root is refused");
    }
    let world = World::new();
    let driver = world.manager_with(json!({"user": null})).await;
    let found = common::fingerprint(&driver).await;
    assert!(found.description.contains("takes no jobs of root"), "{found:?}");
    assert!(driver.ensure(world.ensure("k", 1, "true")).await.is_err());
    assert_eq!(world.calls(""), 0);
}

#[tokio::test]
async fn what_holds_the_lock_keeps_a_task_from_ending() {
    let world = World::new();
    let driver = world.manager().await;
    let (handle, job) = world.runs(&driver, "k").await;
    // Something that left the job's family before the node has ended it.
    let held = fs::OpenOptions::new().read(true).open(world.file("k", "alive")).expect("there");
    rustix::fs::flock(&held, FlockOperation::LockShared).expect("shared");
    world.say("no_machines", "");
    world.happens("fake_evict", job);
    testkit::eventually("the eviction", || world.ad(job)["JobStatus"] == 1).await;
    assert_eq!(look(&driver, &handle).await.state, InstanceState::Unknown);
    drop(held);
    becomes(&driver, &handle, InstanceState::Exited).await;
}

#[tokio::test]
async fn an_epoch_moves_on_with_each_manager_that_asks() {
    let world = World::new();
    let (first, second) = (world.manager().await, world.manager().await);
    let (handle, job) = world.runs(&first, "k").await;
    for epoch in [4, 7] {
        second.ensure(Ensure { epoch, ..world.ensure("k", 1, "true") }).await.expect("got");
        assert_eq!(world.ad(job)["DroverEpoch"], epoch);
    }
    second.refresh(&handle, 9, driver_sdk::Bundle::default()).await.expect("renewed");
    assert_eq!(world.ad(job)["DroverEpoch"], 9);
    // A seal by a newer manager takes over as well.
    let (found, _) = first.seal("k", 10, "o", b"").await.expect("answered").expect("the instance");
    assert_eq!((found, look(&first, &handle).await.epoch), (handle.clone(), 10));
    assert_eq!(second.stop(&handle, 9, stop()).await, Err(RemoteError::StaleEpoch { given: 9, accepted: 10 }));
    assert_eq!(world.ad(job)["JobStatus"], 2);
}

#[tokio::test]
async fn whoever_releases_all_jobs_runs_no_candidate_and_uses_up_no_seal() {
    let world = World::new();
    let driver = world.manager().await;
    assert_eq!(driver.seal("sealed", 1, "o", b"").await, Ok(None));
    // A manager that died before it began its candidate.
    world.say("condor_qedit.fails", "Failed to connect to queue manager\n");
    driver.ensure(world.ensure("k", 1, "exec sleep 600")).await.expect_err("it could not begin");
    world.unsay("condor_qedit.fails");
    world.release_all();
    let all = world.ads();
    assert!(all.len() == 2 && all.iter().all(|ad| ad["JobStatus"] == 1), "{all:?}");
    let sealed = driver.ensure(world.ensure("sealed", 2, "true")).await;
    assert!(matches!(sealed, Err(RemoteError::Sealed(_))), "{sealed:?}");
    let made = driver.ensure(world.ensure("k", 2, "exec sleep 600")).await.expect("made");
    becomes(&driver, &made.handle, InstanceState::Running).await;
    let of_key: Vec<_> = world.ads().into_iter().filter(|ad| ad["DroverKey"] == "k").collect();
    assert!(matches!(&of_key[..], [ad] if ad["DroverState"] == "begun"), "{of_key:?}");
}

#[tokio::test]
async fn a_task_that_spoils_its_directory_is_stopped_all_the_same() {
    let world = World::new();
    let driver = world.manager().await;
    let (handle, job) = world.runs(&driver, "k").await;
    fs::create_dir(world.file("k", "stop")).expect("made");
    fs::create_dir(world.file("k", "exit")).expect("made");
    let stopped = tokio::spawn(async move { driver.stop(&handle, 1, stop()).await });
    testkit::eventually("its end", || world.processes(job).is_empty()).await;
    fs::remove_dir_all(world.file("k", "exit")).expect("removed");
    assert_eq!(stopped.await.expect("ended").expect("stopped").state, InstanceState::Exited);
}

#[tokio::test]
async fn a_suspended_job_goes_on_when_it_is_continued() {
    let world = World::new();
    let driver = world.manager().await;
    let made = driver.ensure(world.ensure("k", 1, "while :; do echo x; sleep 0.02; done")).await.expect("made");
    testkit::eventually("its output", || !world.read("k", "out").is_empty()).await;
    for pid in world.processes(1) {
        let Some(pid) = rustix::process::Pid::from_raw(pid) else { continue };
        for signal in [rustix::process::Signal::STOP, rustix::process::Signal::CONT] {
            // One of them may have ended by itself.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
    // As long as it would take to end.
    let lines = world.read("k", "out").len();
    testkit::eventually("fifty lines more", || world.read("k", "out").len() > lines + 100).await;
    let handle = made.handle;
    assert_eq!(look(&driver, &handle).await.state, InstanceState::Running);
    driver.stop(&handle, 1, stop()).await.expect("stopped");
}

#[tokio::test]
async fn what_never_began_leaves_no_directory() {
    let world = World::new();
    let driver = world.manager().await;
    let mut request = world.ensure("wrong", 1, "");
    request.task.msgpack_driver_config =
        rmp_serde::to_vec(&json!({"command": "true", "requirements": "Arch =="})).expect("bytes");
    assert!(matches!(driver.ensure(request).await, Err(RemoteError::WrongRequest(_))));
    assert!(!world.file("wrong", "").exists());
    world.say("condor_qedit.fails", "Failed to connect to queue manager\n");
    driver.ensure(world.ensure("k", 1, "true")).await.expect_err("it could not begin");
    world.unsay("condor_qedit.fails");
    assert!(world.file("k", "gate.sh").exists());
    assert_eq!(driver.seal("k", 2, "o", b"").await, Ok(None));
    assert!(!world.file("k", "").exists());
}

#[tokio::test]
async fn an_acknowledgement_of_a_job_that_somebody_removed_touches_no_later_one() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("no_machines", "");
    let first = driver.ensure(world.ensure("k", 1, "exec sleep 600")).await.expect("made").handle;
    world.happens("fake_forget", 1);
    let second = driver.ensure(world.ensure("k", 2, "exec sleep 600")).await.expect("made").handle;
    assert_ne!(first, second);
    assert_eq!(driver.acknowledge(&first, 1).await, Err(RemoteError::StaleEpoch { given: 1, accepted: 2 }));
    driver.acknowledge(&first, 2).await.expect("there is nothing to forget");
    assert!(world.file("k", "gate.sh").exists());
}
