//! The driver over slurmrestd: the same promises as by the commands, with answers that are lost, late or no answers.

mod common;
mod restd;

use std::ops::Deref;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use common::{World, all_made, all_well, becomes, configured, look, stop};
use driver_check::{Pace, Selection, Subject, TaskKit};
use driver_sdk::{Ensure, Health, InstanceState, Observation, RemoteDriver as _, RemoteError, Verdict};
use restd::{How, Restd};
use serde_json::{Value, json};
use slurm::Driver;

/// What slurmrestd says where the controller gives no reason.
const FAILED: &str = "{\"errors\": [{\"error_number\": -1, \"error\": \"Unspecified error\"}], \"jobs\": []}";

/// A world whose Slurm is asked over slurmrestd.
struct Served {
    world: World,
    restd: Arc<Restd>,
}

impl Deref for Served {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

/// A token of this user; `left`: seconds that it is valid.
fn token(left: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("now").as_secs();
    let expires = i64::try_from(now).expect("a time") + left;
    let claims = json!({"exp": expires, "iat": now, "sun": "root"}).to_string();
    format!("e30.{}.c2lnbmVk", BASE64_URL_SAFE_NO_PAD.encode(claims))
}

impl Served {
    async fn new(versions: &[u32]) -> Served {
        Self::with(versions, &[]).await
    }

    async fn with(versions: &[u32], files: &[(&str, &str)]) -> Served {
        let world = World::new();
        // No command of Slurm is there.
        std::fs::create_dir(world.dir.path().join("bin")).expect("made");
        for (name, text) in files {
            world.say(name, text);
        }
        let good = token(7200);
        std::fs::write(world.dir.path().join("token"), &good).expect("written");
        let restd = Restd::start(&world.slurm(""), versions, &good).await;
        Served { world, restd }
    }

    fn config(&self) -> Value {
        json!({
            "base": self.dir.path().join("runs"), "bin_dir": self.dir.path().join("bin"), "poll_interval": "60s",
            "rest": {"url": self.restd.url, "token_file": self.dir.path().join("token")},
        })
    }

    async fn manager(&self) -> Arc<Driver> {
        configured(&self.config()).await
    }
}

#[tokio::test]
async fn a_task_lives_and_ends_without_a_command_of_slurm() {
    for version in [38, 39, 40] {
        let world = Served::new(&[version]).await;
        let driver = world.manager().await;
        assert_eq!(driver.fingerprint().await.health, Health::Healthy);
        let script = "trap 'echo heard' USR1; echo \"$SLURM_SUBMIT_DIR\"; while :; do sleep 0.1; done";
        let made = driver.ensure(world.ensure("k", 1, script)).await.expect("made");
        becomes(&driver, &made.handle, InstanceState::Running).await;
        let from = std::fs::read_to_string(world.slurm("jobs/1/from")).expect("a directory");
        assert_eq!(from.trim_end(), world.dir.path().join("runs/instances/k").display().to_string());
        let out = world.dir.path().join("runs/instances/k/out");
        // It hears signals from then on.
        testkit::until("its first line", || std::fs::read_to_string(&out).is_ok_and(|text| text.ends_with('\n')));
        driver.signal(&made.handle, 1, "SIGUSR1").await.expect("told");
        testkit::until("its echo", || std::fs::read_to_string(&out).is_ok_and(|text| text.contains("heard")));
        let unknown = driver.signal(&made.handle, 1, "SIGNOPE").await;
        if version == 38 {
            assert!(matches!(unknown, Err(RemoteError::WrongRequest(_))), "{unknown:?}");
        }
        let ended = driver.stop(&made.handle, 1, stop()).await.expect("stopped");
        assert_eq!(ended.state, InstanceState::Exited);
        driver.acknowledge(&made.handle, 1).await.expect("acknowledged");
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_submission_makes_no_second_instance() {
    for how in [How::Lost, How::Truncated, How::Garbled("<html>"), How::Garbled("{\"errors\": []}")] {
        let world = Served::new(&[38]).await;
        let (first, second) = (world.manager().await, world.manager().await);
        let request = world.ensure("k", 1, "echo started; exec sleep 600");
        world.restd.spoil("job/submit", how.clone());
        let lost = first.ensure(request.clone()).await;
        assert!(matches!(&lost, Err(RemoteError::CouldNotAsk(_))), "{how:?}: {lost:?}");
        world.restd.heal();
        let got = second.ensure(Ensure { epoch: 2, ..request }).await.expect("got");
        becomes(&second, &got.handle, InstanceState::Running).await;
        assert_eq!(world.jobs().len(), 1, "{how:?}: the queue shows the first one");
        let out = world.dir.path().join("runs/instances/k/out");
        testkit::until("its line", || std::fs::read_to_string(&out).is_ok_and(|text| text == "started\n"));
        second.stop(&got.handle, 2, stop()).await.expect("stopped");
    }
}

/// The controller has taken the job, the answer is lost, and the queue cannot be asked: two jobs, one start.
#[tokio::test]
async fn a_second_submission_that_is_not_seen_starts_nothing() {
    let world = Served::new(&[40]).await;
    let (first, second) = (world.manager().await, world.manager().await);
    world.say("hold", "");
    world.restd.spoil("job/submit", How::Lost);
    first.ensure(world.ensure("k", 1, "echo started")).await.expect_err("lost");
    world.restd.spoil("jobs", How::Refused(503, "busy"));
    let blind = second.ensure(world.ensure("k", 2, "echo started")).await;
    assert!(matches!(blind, Err(RemoteError::CouldNotAsk(_))), "{blind:?}");
    assert_eq!(world.jobs().len(), 1);
    world.restd.heal();
    let got = second.ensure(world.ensure("k", 2, "echo started")).await.expect("got");
    assert_eq!((got.observed.state, world.jobs().len()), (InstanceState::Creating, 1));
    // Nothing has claimed: a stop ends what waits.
    assert_eq!(second.stop(&got.handle, 2, stop()).await.expect("stopped").state, InstanceState::Exited);
    assert!(world.slurm("jobs/1/cancelled").exists());
}

#[tokio::test]
async fn what_is_no_answer_is_never_an_end() {
    let world = Served::new(&[38]).await;
    let mut config = world.config();
    config["command_timeout"] = json!("10s");
    let driver = configured(&config).await;
    let handle = world.runs(&driver, "k").await;
    for (how, told) in [
        (How::Lost, "the connection broke"),
        (How::Truncated, "broke off"),
        (How::Garbled("<html>"), "cannot be read"),
        (How::Garbled("{}"), "cannot be read"),
        (How::Garbled(FAILED), "Unspecified error"),
        (How::Refused(401, "Authentication failure"), "does not accept the token"),
        (How::Refused(403, ""), "does not accept the token"),
        (How::Refused(404, "Unable find requested URL."), "404"),
        (How::Refused(429, "slow down"), "429: slow down"),
        (How::Refused(500, FAILED), "500: Unspecified error"),
        (How::Refused(503, ""), "503"),
        (How::Silent, "within 10 s"),
    ] {
        world.restd.spoil("/jobs", how.clone());
        let seen = look(&driver, &handle).await;
        assert_eq!(seen.state, InstanceState::Unknown, "{how:?}: {}", seen.reason);
        assert!(seen.reason.contains(told), "{how:?}: {}", seen.reason);
        world.restd.heal();
    }
    assert_eq!(look(&driver, &handle).await.state, InstanceState::Running);
    // The same of one that has not started.
    world.say("hold", "");
    let waits = driver.ensure(world.ensure("waits", 1, "true")).await.expect("made");
    world.restd.spoil("/jobs", How::Garbled("{}"));
    assert_eq!(look(&driver, &waits.handle).await.state, InstanceState::Unknown);
    world.restd.heal();
    assert_eq!(look(&driver, &waits.handle).await.state, InstanceState::Creating);
}

#[tokio::test]
async fn a_forgotten_job_has_ended_when_accounting_says_so_or_its_node_is_heard() {
    let account = json!([{"job_id": 1, "name": "k", "nodes": "n1", "array": {"job_id": 0, "task_id": 0},
        "state": {"current": "OUT_OF_MEMORY", "reason": "None"}}]);
    for (version, accounts) in [(38, None), (40, None), (38, Some(account.to_string()))] {
        let files: Vec<(&str, &str)> = accounts.iter().map(|text| ("accounts.json", text.as_str())).collect();
        let world = Served::with(&[version], &files).await;
        let driver = world.manager().await;
        let handle = world.runs(&driver, "k").await;
        world.say("nodes", "mixed*\n");
        world.forget("1");
        if accounts.is_none() {
            let seen = look(&driver, &handle).await;
            assert_eq!(seen.state, InstanceState::Unknown, "{version}: {}", seen.reason);
            world.say("nodes", "idle\n");
        }
        let ended = becomes(&driver, &handle, InstanceState::Exited).await;
        assert_eq!((ended.exit.exit_code, ended.exit.signal), (137, 9));
    }
}

#[tokio::test]
async fn what_is_created_together_is_an_array_and_one_is_stopped_by_itself() {
    for version in [38, 40] {
        let world = Served::new(&[version]).await;
        let driver = world.manager().await;
        let handles = all_well(world.gathered(&driver, world.ensures(20, "exec sleep 600")).await);
        let jobs = world.jobs();
        assert_eq!(jobs.len(), 20, "{version}: {jobs:?}");
        assert!(jobs.iter().filter(|job| job.contains('_')).count() >= 8, "{version}: {jobs:?}");
        for handle in &handles {
            becomes(&driver, handle, InstanceState::Running).await;
        }
        let before = world.restd.calls("GET /slurm");
        driver.observe(&handles).await.expect("observed");
        assert_eq!(world.restd.calls("GET /slurm") - before, 1, "{version}: one question shows all");
        driver.stop(&handles[19], 1, stop()).await.expect("stopped");
        driver.acknowledge(&handles[19], 1).await.expect("acknowledged");
        let seen = driver.observe(&handles[..19]).await.expect("observed");
        assert!(seen.iter().all(|seen| seen.state == InstanceState::Running), "{version}: {seen:?}");
    }
}

#[tokio::test]
async fn a_version_that_ends_whole_arrays_is_given_none() {
    let world = Served::new(&[39]).await;
    let driver = world.manager().await;
    world.say("hold", "");
    all_well(world.gathered(&driver, world.ensures(20, "true")).await);
    let jobs = world.jobs();
    assert!(jobs.len() == 20 && !jobs.iter().any(|job| job.contains('_')), "{jobs:?}");
    // An array that another manager has made is left alone.
    let world = Served::new(&[39, 40]).await;
    world.say("hold", "");
    let driver = world.manager().await;
    let handles = all_well(world.gathered(&driver, world.ensures(20, "true")).await);
    // Some went by themselves, and which ones is nobody's choice.
    let seen = driver.observe(&handles).await.expect("observed");
    let of_array = |seen: &Observation| seen.attributes.get("job_id").is_some_and(|id| id.contains('_'));
    let member = &handles[seen.iter().position(of_array).expect("an array")];
    let mut config = world.config();
    config["rest"]["version"] = json!("v0.0.39");
    let blunt = configured(&config).await;
    assert_eq!(blunt.stop(member, 1, stop()).await.expect("stopped").state, InstanceState::Exited);
    assert_eq!((world.cancelled(), world.restd.calls("DELETE")), (0, 0));
}

#[tokio::test]
async fn a_lost_answer_for_an_array_makes_no_second_instance() {
    let world = Served::new(&[40]).await;
    let driver = world.manager().await;
    world.say("hold", "");
    world.restd.spoil("job/submit", How::Lost);
    let requests = world.ensures(20, "true");
    for lost in world.gathered(&driver, requests.clone()).await {
        assert!(matches!(lost, Err(RemoteError::CouldNotAsk(_))), "{lost:?}");
    }
    assert!(world.jobs().iter().any(|job| job.contains('_')), "{:?}", world.jobs());
    world.restd.heal();
    let other = world.manager().await;
    all_made(&other, requests).await;
    assert_eq!(world.jobs().len(), 20);
}

#[tokio::test]
async fn a_refused_job_leaves_nothing_and_a_full_cluster_is_asked_again() {
    let world = Served::new(&[38]).await;
    let driver = world.manager().await;
    let wrong = "{\"errors\": [{\"error_code\": 2066, \"error\": \"Invalid qos specification\"}]}";
    world.restd.spoil("job/submit", How::Refused(500, wrong));
    let refused = driver.ensure(world.ensure("k", 1, "true")).await;
    assert!(matches!(&refused, Err(RemoteError::WrongRequest(why)) if why.contains("Invalid qos")), "{refused:?}");
    assert!(!world.dir.path().join("runs/instances/k").exists());
    let full = "{\"errors\": [{\"error_code\": 2007, \"error\": \"Unable to create job record, try again\"}]}";
    world.restd.spoil("job/submit", How::Refused(500, full));
    let refused = driver.ensure(world.ensure("k", 1, "true")).await;
    assert!(matches!(&refused, Err(RemoteError::CouldNotAsk(why)) if why.contains("no more jobs")), "{refused:?}");
    world.restd.heal();
    let made = driver.ensure(world.ensure("k", 1, "exit 3")).await.expect("made");
    assert_eq!(becomes(&driver, &made.handle, InstanceState::Exited).await.exit.exit_code, 3);
}

#[tokio::test]
async fn a_token_that_expired_is_told_and_a_new_one_is_read() {
    let world = Served::new(&[38]).await;
    let driver = world.manager().await;
    let handle = world.runs(&driver, "k").await;
    std::fs::write(world.dir.path().join("token"), token(-60)).expect("written");
    // As 22.05 answers then.
    world.restd.spoil("/slurm", How::Refused(500, FAILED));
    let seen = look(&driver, &handle).await;
    assert_eq!(seen.state, InstanceState::Unknown);
    assert!(seen.reason.contains("token expired: it was valid until 6"), "{}", seen.reason);
    assert!(driver.fingerprint().await.description.contains("token expired"));
    let lost = driver.ensure(world.ensure("other", 1, "true")).await;
    assert!(matches!(&lost, Err(RemoteError::CouldNotAsk(why)) if why.contains("token expired")), "{lost:?}");
    world.restd.heal();
    let renewed = token(3600 * 10);
    world.restd.take_only(&renewed);
    std::fs::write(world.dir.path().join("token"), format!("SLURM_JWT={renewed}\n")).expect("written");
    assert_eq!(look(&driver, &handle).await.state, InstanceState::Running);
    std::fs::remove_file(world.dir.path().join("token")).expect("removed");
    let seen = look(&driver, &handle).await;
    assert!(seen.state == InstanceState::Unknown && seen.reason.contains("token_file"), "{}", seen.reason);
}

#[tokio::test]
async fn without_slurmrestd_the_driver_is_unhealthy_and_uses_no_command() {
    let world = Served::new(&[38]).await;
    let mut config = world.config();
    config["bin_dir"] = json!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake"));
    config["conf"] = json!(world.slurm(""));
    config["rest"]["url"] = json!("http://127.0.0.1:1");
    let driver = configured(&config).await;
    let found = driver.fingerprint().await;
    assert_eq!(found.health, Health::Unhealthy, "{}", found.description);
    assert!(found.description.contains("slurmrestd at http://127.0.0.1:1"), "{}", found.description);
    let lost = driver.ensure(world.ensure("k", 1, "true")).await;
    assert!(matches!(lost, Err(RemoteError::CouldNotAsk(_))), "{lost:?}");
    assert!(world.jobs().is_empty() && !world.slurm("squeue.calls").exists());
    let fails = driver.examine().await.into_iter().filter(|f| f.verdict == Verdict::Fail).map(|f| f.what);
    assert_eq!(fails.collect::<Vec<_>>(), ["slurmrestd"]);
}

#[tokio::test]
async fn the_doctor_tells_token_user_clock_and_what_the_commands_would_add() {
    let world = Served::new(&[38]).await;
    let driver = world.manager().await;
    let found = driver.examine().await;
    let of = |what: &str| found.iter().find(|f| f.what == what).map(|f| (f.verdict, f.found.as_str()));
    assert!(found.iter().all(|f| f.verdict != Verdict::Fail || f.what == "user"), "{found:?}");
    assert!(of("slurmrestd").is_some_and(|(_, found)| found.ends_with("v0.0.38, Slurm 22.05.8")), "{found:?}");
    for (what, verdict) in [
        ("token", Verdict::Pass),
        ("controller's clock", Verdict::Pass),
        ("job arrays", Verdict::Pass),
        ("accounting", Verdict::Warning),
    ] {
        assert_eq!(of(what).map(|(verdict, _)| verdict), Some(verdict), "{what}: {found:?}");
    }
    if rustix::process::geteuid().is_root() {
        assert_eq!(of("user"), Some((Verdict::Pass, "root (0)")));
        for (what, verdict) in
            [("command srun", Verdict::Warning), ("process tracking", Verdict::Warning), ("locks", Verdict::Pass)]
        {
            assert_eq!(of(what).map(|(verdict, _)| verdict), Some(verdict), "{what}: {found:?}");
        }
    }
    std::fs::write(world.dir.path().join("token"), token(-5)).expect("written");
    let found = driver.examine().await;
    assert!(found.iter().any(|f| f.what == "token" && f.verdict == Verdict::Fail), "{found:?}");
}

#[tokio::test]
async fn a_socket_needs_no_token() {
    let world = Served::new(&[38]).await;
    let socket = world.dir.path().join("socket");
    let restd = Restd::start_at(&socket, &world.slurm(""), &[38]);
    let mut config = world.config();
    config["rest"] = json!({"url": restd.url});
    let driver = configured(&config).await;
    let made = driver.ensure(world.ensure("k", 1, "exit 3")).await.expect("made");
    assert_eq!(becomes(&driver, &made.handle, InstanceState::Exited).await.exit.exit_code, 3);
    assert!(restd.calls("POST") == 1 && world.restd.calls("") == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes_in_both_forms() {
    tokio::join!(conforms(38), conforms(40));
}

async fn conforms(version: u32) {
    let world = Served::new(&[version]).await;
    // The commands that slurmrestd does not replace, and no other.
    for name in ["srun", "sstat"] {
        let fake = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/");
        std::os::unix::fs::symlink(format!("{fake}{name}"), world.dir.path().join("bin").join(name)).expect("a link");
    }
    let mut subject = Subject::new(env!("CARGO_BIN_EXE_drover-driver-slurm"));
    subject.pace = Pace::relaxed();
    let kit = json!({
        "script": {"command": "/bin/sh", "args": ["-c", "@SCRIPT@"]},
        "fails": {"command": "/bin/true", "partition": "nope"},
        "plugin": {
            "base": "@DIR@/runs", "bin_dir": world.dir.path().join("bin"), "conf": world.slurm(""),
            "poll_interval": "500ms", "rest": world.config()["rest"],
        },
    });
    subject.kit = Some(TaskKit::from_json(kit).expect("a kit"));
    let report = driver_check::run(subject, &Selection::default()).await;
    assert_eq!(report.failures(), [""; 0], "{version}: {report}");
    assert_eq!(report.not_applicable(), ["network/create", "network/destroy"], "{version}: {report}");
}
