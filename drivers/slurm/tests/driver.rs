//! The remote driver trait with a Slurm that is a directory and processes; each `Driver` is one manager.

mod common;

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use common::{World, all_made, all_well, becomes, configured, look, stop};
use driver_sdk::{
    Bundle, BundleFile, Ensure, Finding, Health, InstanceState, LogStream, LogsQuery, RemoteDriver as _, RemoteError,
    Verdict,
};
use serde_json::json;
use slurm::Driver;

impl World {
    fn unsay(&self, name: &str) {
        std::fs::remove_file(self.slurm(name)).expect("removed");
    }

    /// A manager whose looks are too far apart to take an answer of `squeue` for another one.
    async fn manager(&self) -> Arc<Driver> {
        self.manager_with(json!({})).await
    }

    async fn manager_with(&self, more: serde_json::Value) -> Arc<Driver> {
        let mut config = json!({
            "base": self.dir.path().join("runs"), "conf": self.dir.path().join("slurm"),
            "bin_dir": concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake"), "poll_interval": "60s",
        });
        let (all, more) = (config.as_object_mut().expect("an object"), more.as_object().expect("an object").clone());
        all.extend(more);
        configured(&config).await
    }
}

/// A world that every user can enter, with a manager that may submit for `nobody`.
async fn world_of_users() -> (World, Arc<Driver>) {
    let world = World::new();
    let mode = |path: PathBuf, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
    let (root, bin) = (world.dir.path().to_owned(), world.dir.path().join("bin"));
    mode(root, 0o711);
    mode(world.dir.path().join("slurm"), 0o777);
    std::fs::create_dir(&bin).expect("made");
    for command in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake")).expect("listed") {
        let command = command.expect("an entry");
        testkit::program(&bin.join(command.file_name()), &std::fs::read(command.path()).expect("read"));
    }
    let driver = world.manager_with(json!({"users": ["nobody"], "bin_dir": bin})).await;
    (world, driver)
}

#[tokio::test]
async fn a_job_runs_as_the_user_of_its_task_who_gains_no_rights_by_it() {
    if !rustix::process::geteuid().is_root() {
        return skip::cannot("only root can submit for others");
    }
    let (world, driver) = world_of_users().await;
    let request = |key: &str, user: &str, script: &str| {
        let mut request = world.ensure(key, 1, script);
        request.task.user = user.to_owned();
        request
    };
    for (user, why) in [("", "names no `user`"), ("root", "as root"), ("daemon", "does not allow"), ("nosuch", "knows")]
    {
        let refused = driver.ensure(request("r", user, "true")).await;
        assert!(matches!(&refused, Err(RemoteError::WrongRequest(said)) if said.contains(why)), "{user}: {refused:?}");
    }
    let script = "id -un; mkdir -p $NOMAD_TASK_DIR/m/n; chmod 555 $NOMAD_TASK_DIR/m; exec sleep 600";
    let made = driver.ensure(request("k", "nobody", script)).await.expect("made");
    becomes(&driver, &made.handle, InstanceState::Running).await;
    let dir = world.dir.path().join("runs/instances/k");
    testkit::until("its line", || std::fs::read_to_string(dir.join("out")).is_ok_and(|text| text == "nobody\n"));
    for file in ["", "claim", "about.json", "env", "task/local"] {
        let uid = std::fs::metadata(dir.join(file)).expect("there").uid();
        assert_eq!(uid, 65534, "{file:?}");
    }

    // What the agent knows, credentials of other drivers among it, stays with the agent.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let told = std::fs::read_to_string(world.slurm("sbatch.env")).expect("called");
    assert!(told.contains("USER=nobody\n") && !told.contains("CARGO_MANIFEST_DIR"), "{told}");

    // Its output becomes a link to what it must not read.
    let secret = world.dir.path().join("secret");
    std::fs::write(&secret, "of root").expect("written");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("private");
    let out = dir.join("out");
    for (link, why) in [("symbolic", "symbolic links"), ("hard", "denied")] {
        std::fs::remove_file(&out).expect("removed");
        match link {
            "hard" => std::fs::hard_link(&secret, &out),
            _ => std::os::unix::fs::symlink(&secret, &out),
        }
        .expect("linked");
        let (sink, mut lines) = tokio::sync::mpsc::channel(1);
        let query = LogsQuery { stream: LogStream::Stdout, offset: 0, follow: false, from_end: false };
        let read = driver.logs(&made.handle, query, sink).await;
        assert!(matches!(&read, Err(RemoteError::CouldNotAsk(said)) if said.contains(why)), "{link}: {read:?}");
        assert!(lines.recv().await.is_none());
    }

    // A user that says it is another instance hides none of the others.
    let other = driver.ensure(request("other", "nobody", "exec sleep 600")).await.expect("made");
    let (about, kept) = (world.dir.path().join("runs/instances/other/about.json"), dir.join("about.json"));
    let text = std::fs::read_to_string(&about).expect("there");
    std::fs::copy(&kept, &about).expect("forged");
    let page = driver.list("o", "", 100).await.expect("listed");
    let keys: Vec<_> = page.instances.iter().map(|instance| instance.key.as_str()).collect();
    assert_eq!(keys, ["k"]);
    assert!(page.incomplete.contains("instances/other"), "{}", page.incomplete);
    std::fs::write(&about, text).expect("mended");
    driver.stop(&other.handle, 1, stop()).await.expect("stopped");

    // Nor does it decide who manages it: a lock and an epoch in its directory are nobody's.
    std::fs::write(dir.join("epoch"), u64::MAX.to_string()).expect("forged");
    let held = std::fs::File::create(dir.join("lock")).expect("made");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let config = json!({"users": ["nobody"], "bin_dir": world.dir.path().join("bin")});
    let (_, next) = (driver, world.manager_with(config).await);
    let (handle, seen) = next.find("k", "o").await.expect("found");
    assert_eq!(seen.state, InstanceState::Running);
    next.stop(&handle, 2, stop()).await.expect("stopped");
    next.acknowledge(&handle, 2).await.expect("acknowledged, with a directory that not even its owner can write to");
    assert!(!dir.join("task").exists());
}

#[tokio::test]
async fn a_sealed_key_stays_sealed_for_a_task_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        return skip::cannot("only root can submit for others");
    }
    let (world, driver) = world_of_users().await;
    assert_eq!(driver.seal("k", 3, "o", b"").await, Ok(None));
    let mut request = world.ensure("k", 4, "true");
    request.task.user = "nobody".to_owned();
    assert!(matches!(driver.ensure(request).await, Err(RemoteError::Sealed(_))));
    assert_eq!(world.jobs().len(), 0);
}

#[tokio::test]
async fn a_lost_answer_of_sbatch_makes_no_second_instance() {
    let world = World::new();
    let (first, second) = (world.manager().await, world.manager().await);
    let request = world.ensure("k", 1, "echo started; exec sleep 600");
    world.say("sbatch.says", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation");
    world.say("sbatch.takes", "");
    // The controller has taken the job, and does not show it yet.
    world.say("squeue.says", "Unable to contact slurm controller");
    assert!(matches!(first.ensure(request.clone()).await, Err(RemoteError::CouldNotAsk(_))));
    assert!(matches!(
        second.ensure(Ensure { epoch: 2, ..request.clone() }).await,
        Err(RemoteError::CouldNotAsk(_)) | Ok(_)
    ));
    for name in ["sbatch.says", "sbatch.takes", "squeue.says"] {
        world.unsay(name);
    }
    let got = second.ensure(Ensure { epoch: 2, ..request }).await.expect("got");
    becomes(&second, &got.handle, InstanceState::Running).await;
    let out = world.dir.path().join("runs/instances/k/out");
    testkit::until("its line", || std::fs::read_to_string(&out).is_ok_and(|text| text == "started\n"));
    second.stop(&got.handle, 2, stop()).await.expect("stopped");
    second.acknowledge(&got.handle, 2).await.expect("acknowledged");
}

/// `sbatch` sends again by itself what was refused for want of room. Only its last words are of the last request.
#[tokio::test]
async fn a_refusal_before_the_last_try_of_sbatch_makes_no_second_instance() {
    let world = World::new();
    let driver = world.manager().await;
    let starts = world.dir.path().join("starts");
    let request = world.ensure("k", 1, &format!("echo started >> {}; exec sleep 600", starts.display()));
    world.say(
        "sbatch.says",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\nsbatch: error: Batch job \
            submission failed: Socket timed out on send/recv operation",
    );
    world.say("sbatch.takes", "");
    let unclear = driver.ensure(request.clone()).await;
    assert!(matches!(unclear, Err(RemoteError::CouldNotAsk(_))), "{unclear:?}");
    let count = || std::fs::read_to_string(&starts).unwrap_or_default().lines().count();
    testkit::until("its start", || count() == 1);
    world.unsay("sbatch.says");
    world.unsay("sbatch.takes");
    let got = driver.ensure(request).await.expect("got");
    becomes(&driver, &got.handle, InstanceState::Running).await;
    assert_eq!((world.jobs().len(), count()), (1, 1));
    driver.stop(&got.handle, 1, stop()).await.expect("stopped");
}

/// A refusal concerns its own request; an earlier one may still be on its way.
#[tokio::test]
async fn a_refusal_after_an_unclear_submission_is_not_the_jobs_end() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("sbatch.says", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation");
    let unclear = driver.ensure(world.ensure("k", 1, "true")).await;
    assert!(matches!(unclear, Err(RemoteError::CouldNotAsk(_))), "{unclear:?}");
    world.say("sbatch.says", "sbatch: error: Batch job submission failed: Invalid qos specification");
    let refused = driver.ensure(world.ensure("k", 1, "true")).await.expect_err("refused");
    let told = matches!(&refused, RemoteError::CouldNotAsk(why) if why.contains("qos") && why.contains("earlier"));
    assert!(told, "{refused:?}");
    assert!(world.dir.path().join("runs/instances/k").exists());
}

#[tokio::test]
async fn a_stop_takes_no_number_of_another_users_job() {
    if !rustix::process::geteuid().is_root() {
        return skip::cannot("only root can submit for others");
    }
    let (world, driver) = world_of_users().await;
    let mut request = world.ensure("k", 1, "exec sleep 600");
    request.task.user = "nobody".to_owned();
    let made = driver.ensure(request).await.expect("made");
    becomes(&driver, &made.handle, InstanceState::Running).await;
    driver.signal(&made.handle, 1, "SIGCONT").await.expect("sent");
    driver.stop(&made.handle, 1, stop()).await.expect("stopped");
    // Slurm refuses them what is not theirs.
    let users = std::fs::read_to_string(world.slurm("scancel.users")).expect("called");
    assert!(users.lines().count() >= 2 && users.lines().all(|user| user == "nobody"), "{users}");
}

#[tokio::test]
async fn what_was_given_up_on_a_silent_node_has_not_ended() {
    let world = World::new();
    let driver = world.manager().await;
    let handle = world.runs(&driver, "k").await;
    let job = std::fs::read_to_string(world.dir.path().join("runs/instances/k/job")).expect("a number");
    world.kill(&job);
    world.say(&format!("jobs/{job}/state"), "CANCELLED");
    // Its lock on the file server went with the connection.
    world.say("nodes", "down*\n");
    let seen = look(&driver, &handle).await;
    assert_eq!(seen.state, InstanceState::Unknown, "{}", seen.reason);
    world.say("nodes", "idle\n");
    assert_eq!(becomes(&driver, &handle, InstanceState::Exited).await.exit.exit_code, 137);
}

#[tokio::test]
async fn a_success_that_could_not_be_written_down_is_one() {
    let world = World::new();
    let driver = world.manager().await;
    let made = driver.ensure(world.ensure("k", 1, "mkdir ../exit.tmp")).await.expect("made");
    let ended = becomes(&driver, &made.handle, InstanceState::Exited).await;
    assert_eq!((ended.exit.exit_code, ended.exit.error), (0, None));
}

#[tokio::test]
async fn a_sealed_key_keeps_no_secrets() {
    let world = World::new();
    let driver = world.manager().await;
    let mut request = world.ensure("k", 1, "true");
    let token = BundleFile { path: "secrets/token".into(), mode: 0o600, data: b"s.secret".into() };
    request.bundle = Bundle::new(vec![token]);
    world.say("sbatch.says", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation");
    let unclear = driver.ensure(request.clone()).await;
    assert!(matches!(unclear, Err(RemoteError::CouldNotAsk(_))), "{unclear:?}");
    let dir = world.dir.path().join("runs/instances/k");
    assert!(dir.join("task/secrets/token").exists() && dir.join("env").exists());
    assert_eq!(driver.seal("k", 2, "o", b"").await, Ok(None));
    let left = std::fs::read_dir(&dir).expect("listed").map(|entry| entry.expect("an entry").file_name());
    let mut left: Vec<_> = left.map(|name| name.to_string_lossy().into_owned()).collect();
    left.sort_unstable();
    assert_eq!(left, ["about.json", "claim", "epoch", "lock", "sending"]);
    world.unsay("sbatch.says");
    assert!(matches!(driver.ensure(Ensure { epoch: 3, ..request }).await, Err(RemoteError::Sealed(_))));
    assert_eq!(driver.seal("k", 4, "o", b"").await, Ok(None), "once more");
}

#[tokio::test]
async fn a_purge_after_sigkill_is_an_end_only_when_the_node_is_heard() {
    let world = World::new();
    let driver = world.manager().await;
    let handle = world.runs(&driver, "k").await;
    world.say("nodes", "mixed*\n");
    let job = std::fs::read_to_string(world.dir.path().join("runs/instances/k/job")).expect("a number");
    world.forget(&job);
    let seen = look(&driver, &handle).await;
    assert_eq!(seen.state, InstanceState::Unknown, "{}", seen.reason);
    world.say("nodes", "idle\n");
    let ended = becomes(&driver, &handle, InstanceState::Exited).await;
    assert_eq!((ended.exit.exit_code, ended.exit.signal), (137, 9));
    // Kept, whatever the nodes say later.
    world.say("nodes", "down*\n");
    assert_eq!(look(world.manager().await.as_ref(), &handle).await.state, InstanceState::Exited);
}

#[tokio::test]
async fn accounting_is_asked_once_for_all_that_the_controller_has_forgotten() {
    let world = World::new();
    let driver = world.manager().await;
    let (mut handles, mut table) = (Vec::new(), String::new());
    for n in 0..5 {
        handles.push(world.runs(&driver, &format!("k{n}")).await);
    }
    world.say("nodes", "mixed*\n");
    for job in world.jobs() {
        let name = std::fs::read_to_string(world.slurm("jobs").join(&job).join("name")).expect("there");
        table.push_str(&format!("{job}|{}|OUT_OF_MEMORY|n1\n", name.trim()));
        world.forget(&job);
    }
    world.say("sacct.table", &table);
    // Its node is silent, and accounting knows the end.
    let seen = driver.observe(&handles).await.expect("observed");
    let ends: Vec<_> = seen.iter().map(|seen| (seen.state, seen.exit.exit_code, seen.exit.oom_killed)).collect();
    assert_eq!(ends, [(InstanceState::Exited, 137, true); 5]);
    assert_eq!(std::fs::read_to_string(world.slurm("sacct.calls")).expect("asked").lines().count(), 1);
}

#[tokio::test]
async fn what_the_controller_gave_up_has_not_ended_while_something_of_it_runs() {
    let world = World::new();
    let driver = world.manager().await;
    let made = driver.ensure(world.ensure("k", 1, "setsid sleep 600 & wait")).await.expect("made");
    becomes(&driver, &made.handle, InstanceState::Running).await;
    let job = std::fs::read_to_string(world.dir.path().join("runs/instances/k/job")).expect("a number");
    // The node is heard again, and has not ended it yet.
    world.say("nodes", "idle\n");
    for state in ["NODE_FAIL", "PENDING", "FAILED"] {
        world.say(&format!("jobs/{job}/state"), state);
        let seen = becomes(&driver, &made.handle, InstanceState::Unknown).await;
        assert!(seen.reason.contains("still runs"), "{state}: {}", seen.reason);
    }
    // The child in its own session is the last one.
    world.kill(&job);
    let ended = becomes(&driver, &made.handle, InstanceState::Exited).await;
    assert_eq!((ended.exit.exit_code, ended.exit.signal), (137, 9));
}

#[tokio::test]
async fn what_ran_at_the_last_look_is_read_again_when_its_directory_has_changed() {
    let world = World::new();
    let (driver, next) = (world.manager().await, world.manager().await);
    let handle = world.runs(&driver, "k").await;
    assert_eq!(look(&driver, &handle).await.epoch, 1);
    next.ensure(world.ensure("k", 2, "exec sleep 600")).await.expect("got");
    let seen = look(&driver, &handle).await;
    assert_eq!((seen.state, seen.epoch), (InstanceState::Running, 2));
    // Its exit result, while the queue still shows a running job.
    let file = |name: &str| world.dir.path().join("runs/instances/k").join(name);
    std::fs::write(file("exit.tmp"), "3 100\n").expect("written");
    std::fs::rename(file("exit.tmp"), file("exit")).expect("moved");
    let ended = look(&driver, &handle).await;
    assert_eq!((ended.state, ended.exit.exit_code), (InstanceState::Exited, 3));
}

#[tokio::test]
async fn a_job_is_submitted_from_its_run_directory_and_not_from_the_agents() {
    let world = World::new();
    world.say("hold", "");
    world.manager().await.ensure(world.ensure("k", 1, "true")).await.expect("made");
    let from = std::fs::read_to_string(world.slurm("jobs/1/from")).expect("a directory");
    assert_eq!(from.trim_end(), world.dir.path().join("runs/instances/k").display().to_string());
}

#[tokio::test]
async fn a_job_that_waits_is_adopted_stopped_and_never_starts() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("hold", "");
    let made = driver.ensure(world.ensure("k", 1, "echo started")).await.expect("made");
    assert_eq!(made.observed.state, InstanceState::Creating);
    let next = world.manager().await;
    let (handle, seen) = next.find("k", "o").await.expect("found");
    assert_eq!((seen.state, &handle), (InstanceState::Creating, &made.handle));
    let again = next.ensure(world.ensure("k", 2, "echo started")).await.expect("got");
    assert!(!again.created && world.jobs().len() == 1);
    let stale = driver.stop(&made.handle, 1, stop()).await;
    assert_eq!(stale, Err(RemoteError::StaleEpoch { given: 1, accepted: 2 }));
    let ended = next.stop(&handle, 2, stop()).await.expect("stopped");
    assert_eq!(ended.state, InstanceState::Exited);
    // The scheduler starts it against the order.
    let gate = world.dir.path().join("runs/instances/k/gate.sh");
    let late = std::process::Command::new("/bin/sh").arg(gate).env("SLURM_JOB_ID", "1").output().expect("run");
    assert_eq!(late.status.code(), Some(79));
    assert!(!world.dir.path().join("runs/instances/k/out").exists());
}

#[tokio::test]
async fn twenty_are_seen_with_one_squeue() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("hold", "");
    let handles = all_made(&driver, world.ensures(20, "true")).await;
    let calls = || std::fs::read_to_string(world.slurm("squeue.calls")).unwrap_or_default().lines().count();
    let changed = || {
        let of = |n| std::fs::metadata(world.dir.path().join(format!("runs/instances/k{n}"))).expect("a directory");
        (0..20).map(|n| of(n).modified().expect("a time")).collect::<Vec<_>>()
    };
    // A look at what waits touches nothing: neither the first, which reads all files, nor a later one.
    let (before, since) = (calls(), changed());
    let seen = driver.observe(&handles).await.expect("observed");
    assert!(seen.iter().all(|s| s.state == InstanceState::Creating), "{seen:?}");
    assert_eq!((calls() - before, changed()), (1, since.clone()));
    let again = driver.observe(&handles).await.expect("observed");
    assert_eq!((again, calls() - before, changed()), (seen, 2, since.clone()));
    // Nor does a sweep read any file of it: what these say now is not seen.
    for n in 0..20 {
        std::fs::write(world.dir.path().join(format!("runs/instances/k{n}/about.json")), "nothing").expect("written");
    }
    let page = driver.list("o", "", 100).await.expect("listed");
    assert_eq!((page.instances.len(), page.incomplete.as_str(), changed()), (20, "", since));
    // One that starts anew reads all.
    assert!(world.manager().await.list("o", "", 100).await.is_err());
}

#[tokio::test]
async fn a_squeue_that_takes_long_is_asked_less_often() {
    let world = World::new();
    let driver = world.manager_with(json!({"poll_interval": "500ms"})).await;
    let handle = world.runs(&driver, "k").await;
    // Fifty times as long is more than the ten seconds at most.
    world.say("squeue.slow", "0.3");
    let calls = || std::fs::read_to_string(world.slurm("squeue.calls")).unwrap_or_default().lines().count();
    testkit::poll("a look without a call", async || {
        let before = calls();
        look(&driver, &handle).await;
        (calls() == before).then_some(())
    })
    .await;
    // An end is told by the run directory, not by the queue.
    world.say("squeue.says", "Unable to contact slurm controller");
    let gate = std::fs::read_to_string(world.slurm("jobs/1/pid")).expect("a job").trim().to_owned();
    // The gate runs other commands before it.
    let task: i32 = testkit::until("the task", || {
        let children = std::fs::read_to_string(format!("/proc/{gate}/task/{gate}/children")).unwrap_or_default();
        children.trim().parse().ok().filter(|child| testkit::command_line(*child) == "sleep 600")
    });
    testkit::signal(task, rustix::process::Signal::TERM);
    becomes(&driver, &handle, InstanceState::Exited).await;
}

#[tokio::test]
async fn what_is_created_together_is_an_array_and_each_part_is_an_instance_of_its_own() {
    let world = World::new();
    let driver = world.manager().await;
    let script = "echo \"$SLURM_JOB_ID ${SLURM_ARRAY_TASK_ID-alone} $SLURM_SUBMIT_DIR\"; exec sleep 600";
    let handles = all_well(world.gathered(&driver, world.ensures(20, script)).await);
    let jobs = world.jobs();
    assert_eq!(jobs.len(), 20, "{jobs:?}");
    assert!(jobs.iter().filter(|job| job.contains('_')).count() >= 8, "all but the first: {jobs:?}");
    for handle in &handles {
        becomes(&driver, handle, InstanceState::Running).await;
    }
    for n in 0..20 {
        let dir = world.dir.path().join(format!("runs/instances/k{n}"));
        let said = testkit::poll("output", async || {
            std::fs::read_to_string(dir.join("out")).ok().filter(|text| text.ends_with('\n'))
        });
        let (said, claim) = (said.await, std::fs::read_to_string(dir.join("claim")).expect("claimed"));
        let number = claim.split_whitespace().last().expect("a number").to_owned();
        let from = if claim.contains('_') { dir.display().to_string() } else { String::new() };
        assert_eq!(said.trim_end(), format!("{number} alone {from}").trim_end(), "{claim}");
    }
    // One is stopped by its own name, and no number of its array ends another one.
    for handle in [&handles[19], &handles[4]] {
        let ended = driver.stop(handle, 1, stop()).await.expect("stopped");
        assert_eq!(ended.state, InstanceState::Exited);
        driver.acknowledge(handle, 1).await.expect("acknowledged");
    }
    let left: Vec<_> =
        handles.iter().enumerate().filter(|(n, _)| ![4, 19].contains(n)).map(|(_, h)| h.clone()).collect();
    let seen = driver.observe(&left).await.expect("observed");
    assert!(seen.iter().all(|seen| seen.state == InstanceState::Running), "{seen:?}");
    // Another manager finds them.
    let other = world.manager().await;
    let seen = other.observe(&left).await.expect("observed");
    assert!(seen.iter().all(|seen| seen.state == InstanceState::Running), "{seen:?}");
}

#[tokio::test]
async fn a_lost_answer_for_an_array_makes_no_second_instance() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("hold", "");
    world.say("sbatch.says", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation");
    world.say("sbatch.takes", "");
    let requests = world.ensures(20, "true");
    for lost in world.gathered(&driver, requests.clone()).await {
        assert!(matches!(lost, Err(RemoteError::CouldNotAsk(_))), "{lost:?}");
    }
    assert!(world.jobs().iter().any(|job| job.contains('_')), "{:?}", world.jobs());
    for said in ["sbatch.says", "sbatch.takes"] {
        world.unsay(said);
    }
    let other = world.manager().await;
    let again = all_made(&other, requests).await;
    assert_eq!(world.jobs().len(), 20);
    // What waits is stopped for good, by itself.
    for handle in &again[10..] {
        assert_eq!(other.stop(handle, 1, stop()).await.expect("stopped").state, InstanceState::Exited);
    }
    assert_eq!(world.cancelled(), 10);
}

#[tokio::test]
async fn what_differs_is_submitted_by_itself_four_at_a_time() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("hold", "");
    let request = |n: u32| {
        let options = json!({"command": "/bin/true", "time": format!("1:00:{n}")});
        let mut request = world.ensure(&format!("k{n}"), 1, "");
        request.task.msgpack_driver_config = rmp_serde::to_vec(&options).expect("bytes");
        request
    };
    all_well(world.gathered(&driver, (10..30).map(request).collect()).await);
    let jobs = world.jobs();
    assert!(jobs.len() == 20 && !jobs.iter().any(|job| job.contains('_')), "{jobs:?}");
    let at_once = world.submissions().scan(0, |now, call| {
        *now += if call == "begins" { 1 } else { -1 };
        Some(*now)
    });
    assert_eq!(at_once.max(), Some(4), "{:?}", world.submissions().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_cluster_that_takes_no_such_array_is_given_smaller_ones_or_single_jobs() {
    let full = "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates";
    let wrong = "sbatch: error: Batch job submission failed: Invalid job array specification";
    for (largest, says, arrays) in [(3, full, true), (12, wrong, true), (0, wrong, false)] {
        let world = World::new();
        let driver = world.manager().await;
        world.say("hold", "");
        world.say("arrays", &largest.to_string());
        world.say("arrays.says", says);
        all_well(world.gathered(&driver, world.ensures(24, "true")).await);
        let jobs = world.jobs();
        assert_eq!((jobs.len(), jobs.iter().any(|job| job.contains('_'))), (24, arrays), "{jobs:?}");
    }
}

#[tokio::test]
async fn what_runs_no_more_is_seen_with_two_squeues_however_many_there_are() {
    let world = World::new();
    let driver = world.manager().await;
    let mut handles = Vec::new();
    for n in 0..5 {
        handles.push(world.runs(&driver, &format!("k{n}")).await);
    }
    let calls = || std::fs::read_to_string(world.slurm("squeue.calls")).unwrap_or_default().lines().count();
    let observed = async |state: InstanceState| -> usize {
        let before = calls();
        let seen = driver.observe(&handles).await.expect("observed");
        assert!(seen.iter().all(|s| s.state == state), "{state:?}: {seen:?}");
        calls() - before
    };
    assert_eq!(observed(InstanceState::Running).await, 1);
    world.say("squeue.says", "Unable to contact slurm controller");
    assert_eq!(observed(InstanceState::Unknown).await, 1);
    world.unsay("squeue.says");
    assert_eq!(observed(InstanceState::Running).await, 1);
    for job in 1..=handles.len() {
        world.say(&format!("jobs/{job}/state"), "COMPLETING");
    }
    assert_eq!(observed(InstanceState::Running).await, 2);
}

#[tokio::test]
async fn a_refused_job_leaves_nothing_and_a_full_cluster_is_asked_again() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("sbatch.says", "sbatch: error: Batch job submission failed: Invalid qos specification");
    let refused = driver.ensure(world.ensure("k", 1, "true")).await;
    assert!(matches!(refused, Err(RemoteError::WrongRequest(_))), "{refused:?}");
    assert!(!world.dir.path().join("runs/instances/k").exists());
    world.say("sbatch.says", "sbatch: error: QOSMaxSubmitJobPerUserLimit");
    let full = driver.ensure(world.ensure("k", 1, "true")).await;
    assert!(matches!(full, Err(RemoteError::CouldNotAsk(_))), "{full:?}");
    world.unsay("sbatch.says");
    let made = driver.ensure(world.ensure("k", 1, "exit 3")).await.expect("made");
    assert_eq!(becomes(&driver, &made.handle, InstanceState::Exited).await.exit.exit_code, 3);
}

/// What a real `sbatch` does while a cluster has `MaxJobCount` jobs.
#[tokio::test]
async fn a_submission_that_waits_for_room_is_given_up_with_what_it_says() {
    let world = World::new();
    let driver = world.manager_with(json!({"command_timeout": "10s"})).await;
    world.say("sbatch.waits", "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n");
    let why = driver.ensure(world.ensure("k", 1, "true")).await.expect_err("no room").to_string();
    assert!(why.contains("within 10 s") && why.contains("temporarily unable to accept job"), "{why}");
    world.unsay("sbatch.waits");
    let made = driver.ensure(world.ensure("k", 1, "exit 3")).await.expect("made");
    assert_eq!(becomes(&driver, &made.handle, InstanceState::Exited).await.exit.exit_code, 3);
}

#[tokio::test]
async fn a_cluster_that_loses_processes_is_told_so() {
    let world = World::new();
    let found = world.manager().await.fingerprint().await;
    assert_eq!((found.health, found.description.as_str()), (Health::Healthy, "Healthy"));
    assert_eq!(found.attributes["driver.slurm.proctrack"], "proctrack/cgroup");
    world.say("proctrack", "proctrack/linuxproc");
    let found = world.manager().await.fingerprint().await;
    assert_eq!(found.health, Health::Healthy);
    assert!(found.description.contains("ProctrackType=proctrack/cgroup"), "{}", found.description);
}

#[tokio::test]
async fn the_doctor_submits_nothing_and_tells_what_tasks_will_lack() {
    let world = World::new();
    let driver = world.manager().await;
    let of = |found: &[Finding], what: &str| found.iter().find(|f| f.what == what).map(|f| f.verdict);
    let found = driver.examine().await;
    assert!(found.iter().all(|f| f.verdict != Verdict::Fail), "{found:?}");
    assert_eq!(of(&found, "process tracking"), Some(Verdict::Pass));
    assert_eq!(world.jobs().len(), 0);
    world.say("sbatch.says", "sbatch: error: Batch job submission failed: Invalid account or account/partition");
    world.say("proctrack", "proctrack/pgid");
    let found = driver.examine().await;
    assert_eq!(of(&found, "submission"), Some(Verdict::Fail), "{found:?}");
    assert_eq!(of(&found, "process tracking"), Some(Verdict::Warning));
}
