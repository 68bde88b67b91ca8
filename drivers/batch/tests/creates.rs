//! Starts, against a service that has no token, and shows what it has when a test says so: a request that may have
//! arrived is not sent again.

#[path = "../../../lib/aws/tests/cloud/mod.rs"]
mod cloud;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use batch::Driver;
use cloud::{Cloud, KEY, OWNER, Service, list, looked_up_elsewhere, lookup, start_of};
use driver_sdk::{Ensure, InstanceState, RemoteDriver, RemoteError, StopTask};
use serde_json::{Value, json};

const PLACE: &str = "arn:aws:batch:us-east-1:1";

/// What the service has and does.
#[derive(Default)]
struct State {
    /// Jobs as they were submitted, by ARN.
    jobs: Vec<(String, Value)>,
    /// Status by ARN; RUNNING when there is none.
    statuses: HashMap<String, &'static str>,
    /// Definitions that were registered, each a revision of its name.
    registered: Vec<Value>,
    /// ARNs of revisions that were deregistered.
    inactive: HashSet<String>,
    /// SubmitJobs that came, and how many of them are refused for good.
    submits: usize,
    refuse: usize,
    /// Answers to SubmitJob that are lost.
    lose: usize,
    /// SubmitJobs that are too many.
    throttle: usize,
    /// Listings do not show what there is.
    behind: bool,
    /// The queue of that name is one of another account.
    elsewhere: bool,
    /// ARNs of jobs that listings show and DescribeJobs leaves out.
    undescribed: HashSet<String>,
    /// What was terminated, and why.
    terminated: Vec<(String, String)>,
    /// Sizes of DescribeJobs.
    looks: Vec<usize>,
}

impl State {
    /// By id: DescribeJobs takes no ARNs (its API reference, `jobs`).
    fn job(&self, id: &str) -> Option<Value> {
        let arn = &format!("{PLACE}:job/{id}");
        let (_, job) = self.jobs.iter().find(|(known, _)| known == arn && !self.undescribed.contains(arn))?;
        let status = self.statuses.get(arn).copied().unwrap_or("RUNNING");
        Some(json!({"jobArn": arn, "jobId": id, "jobName": job["jobName"],
            "jobQueue": format!("{PLACE}:job-queue/q"), "jobDefinition": job["jobDefinition"], "status": status,
            "createdAt": 1_700_000_000_000_u64, "startedAt": 1_700_000_000_000_u64, "tags": job["tags"],
            "container": {"exitCode": (status == "FAILED").then_some(143)}}))
    }

    /// ARNs of the active revisions of a name, the oldest first, with their numbers.
    fn active(&self, name: &str) -> Vec<(usize, String)> {
        let count = self.registered.iter().filter(|made| made["jobDefinitionName"] == name).count();
        let arns = (1..=count).map(|revision| (revision, format!("{PLACE}:job-definition/{name}:{revision}")));
        arns.filter(|(_, arn)| !self.inactive.contains(arn)).collect()
    }
}

impl Service for State {
    fn answer(&mut self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let ok = |value: Value| Some((200, value));
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        match path {
            "/v1/describejobqueues" => {
                let account = if self.elsewhere { 2 } else { 1 };
                ok(json!({"jobQueues": [{"jobQueueName": "q", "state": "ENABLED", "status": "VALID",
                    "jobQueueArn": format!("arn:aws:batch:us-east-1:{account}:job-queue/q"), "priority": 1,
                    "computeEnvironmentOrder": []}]}))
            }
            "/v1/describejobdefinitions" => {
                let (name, given) = (text("jobDefinitionName"), &body["jobDefinitions"][0]);
                let of = |revision: usize| {
                    json!({"jobDefinitionName": "demo", "revision": revision, "type": "container",
                    "jobDefinitionArn": format!("{PLACE}:job-definition/{name}:{revision}"),
                    "containerProperties": {"image": "i"}})
                };
                match (name.as_str(), given.as_str()) {
                    ("demo", _) => ok(json!({"jobDefinitions": [of(2), of(11), of(3)]})),
                    (_, None) => {
                        let active = self.active(&name).into_iter().map(|(revision, _)| of(revision));
                        ok(json!({"jobDefinitions": active.collect::<Vec<_>>()}))
                    }
                    _ => ok(json!({"jobDefinitions": []})),
                }
            }
            "/v1/registerjobdefinition" => {
                self.registered.push(body.clone());
                let name = text("jobDefinitionName");
                let (revision, arn) = self.active(&name).pop().expect("the new one");
                ok(json!({"jobDefinitionName": name, "revision": revision, "jobDefinitionArn": arn}))
            }
            "/v1/listjobs" => {
                let shown = |(arn, job): &&(String, Value)| {
                    let status = self.statuses.get(arn).copied().unwrap_or("RUNNING");
                    let named = &body["filters"][0]["values"][0];
                    !self.behind
                        && (if named.is_null() { body["jobStatus"] == status } else { job["jobName"] == *named })
                };
                let jobs = self.jobs.iter().filter(shown).map(
                    |(arn, job)| json!({"jobArn": arn, "jobId": arn.rsplit('/').next(), "jobName": job["jobName"]}),
                );
                ok(json!({"jobSummaryList": jobs.collect::<Vec<_>>()}))
            }
            "/v1/describejobs" => {
                let ids: Vec<&str> = body["jobs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                self.looks.push(ids.len());
                ok(json!({"jobs": ids.into_iter().filter_map(|id| self.job(id)).collect::<Vec<_>>()}))
            }
            "/v1/submitjob" => {
                let refused = |message: &str| Some((400, json!({"code": "ClientException", "message": message})));
                self.submits += 1;
                if self.refuse > 0 {
                    self.refuse -= 1;
                    return refused("Container override is not valid");
                }
                if self.inactive.contains(&text("jobDefinition")) {
                    return refused("JobDefinition does not exist or is not in ACTIVE status");
                }
                if self.throttle > 0 {
                    self.throttle -= 1;
                    return Some((429, json!({"code": "TooManyRequestsException", "message": "Too Many Requests"})));
                }
                let arn = format!("{PLACE}:job/{}", self.jobs.len());
                self.jobs.push((arn.clone(), body.clone()));
                if self.lose > 0 {
                    self.lose -= 1;
                    return None;
                }
                ok(json!({"jobArn": arn, "jobId": arn.rsplit('/').next(), "jobName": text("jobName")}))
            }
            "/v1/terminatejob" => {
                let arn = format!("{PLACE}:job/{}", text("jobId"));
                self.statuses.insert(arn.clone(), "FAILED");
                self.terminated.push((arn, text("reason")));
                ok(json!({}))
            }
            tags if tags.starts_with("/v1/tags/") => {
                let arn = tags["/v1/tags/".len()..].replace("%3A", ":").replace("%2F", "/");
                let job = self.jobs.iter_mut().find(|(known, _)| *known == arn).expect("a job of ours");
                job.1["tags"].as_object_mut().expect("tags").extend(body["tags"].as_object().expect("tags").clone());
                ok(json!({}))
            }
            other => panic!("the driver is not expected to call {other}"),
        }
    }
}

impl Cloud<State> {
    fn start() -> Self {
        Self::of(State::default())
    }

    async fn plugin(&self, window: &str) -> Driver {
        self.configured(Driver::new(), ("job_queue", "q"), window).await
    }
}

fn start(epoch: u64, first: bool, intent: &[u8]) -> Ensure {
    start_of(KEY, epoch, first, intent, &json!({"job_definition": "demo"}))
}

/// The plugin is killed between sending a start and hearing of it; what it started is not listed yet.
#[tokio::test]
async fn a_start_whose_answer_was_lost_is_found_by_its_name_and_never_sent_again() {
    let cloud = Cloud::start();
    let first = cloud.plugin("5m").await;
    let intent = first.intent(&start(1, true, &[])).await.expect("decided").expect("to be kept");
    assert!(!String::from_utf8_lossy(&intent).contains("NOMAD_ALLOC_ID"), "the environment may hold secrets");
    cloud.set(|s| (s.lose, s.behind) = (1, true));
    let lost = first.ensure(start(1, true, &intent)).await.expect_err("no answer");
    assert!(matches!(lost, RemoteError::CouldNotAsk(_)), "{lost}");
    assert!(first.list(OWNER, "4/", 100).await.expect("listed").incomplete.contains("1 starts"), "the sweep is told");
    drop(first);

    // The next process, and another node under the next epoch: neither sends, neither believes the empty listing.
    for (who, epoch) in [("the next process", 1), ("another node", 2)] {
        let next = cloud.plugin("5m").await;
        assert_eq!(next.intent(&start(epoch, false, &intent)).await, Ok(None), "{who}: what is kept stays");
        let unknown = next.look_up(lookup(epoch, &intent, false)).await.expect_err("not listed");
        assert!(matches!(&unknown, RemoteError::CouldNotAsk(why) if why.contains("300 s")), "{who}: {unknown}");
        let held = next.ensure(start(epoch, false, &intent)).await.expect_err("not sent");
        assert!(matches!(&held, RemoteError::CouldNotAsk(why) if why.contains("300 s")), "{who}: {held}");
    }
    cloud.set(|s| (assert_eq!(s.jobs.len(), 1), s.behind = false).1);

    // It appears: found by its name, adopted under the newer epoch, and the former manager is refused.
    let other = cloud.plugin("5m").await;
    let (found, seen) = other.look_up(lookup(2, &intent, false)).await.expect("found");
    assert_eq!(seen.state, InstanceState::Running);
    let adopted = other.ensure(start(2, false, &intent)).await.expect("the job of the key");
    assert_eq!((&adopted.handle, adopted.created), (&found, false));
    let order = StopTask { signal: String::new(), timeout: Duration::from_secs(30) };
    let stale = other.stop(&found, 1, order.clone()).await.expect_err("a former manager");
    assert!(matches!(stale, RemoteError::StaleEpoch { given: 1, accepted: 2 }), "{stale}");
    let ended = other.stop(&found, 2, order).await.expect("stopped");
    assert_eq!((ended.state, ended.exit.exit_code, ended.exit.signal), (InstanceState::Exited, 143, 15));
    other.acknowledge(&found, 2).await.expect("acknowledged");
    assert!(matches!(other.ensure(start(2, false, &intent)).await, Err(RemoteError::Sealed(_))), "the key is spent");
    cloud.set(|s| {
        assert_eq!(s.jobs.len(), 1);
        assert_eq!(s.terminated[0].1, "stopped by Drover, epoch 2");
        let sent = &s.jobs[0].1;
        assert_eq!((&sent["retryStrategy"]["attempts"], &sent["jobQueue"]), (&json!(1), &json!("q")));
        assert_eq!(sent["jobDefinition"], format!("{PLACE}:job-definition/demo:11"), "the newest, by number");
        let tags = &sent["tags"];
        assert_eq!(
            (&tags["drover:owner"], &tags["drover:key"], &tags["drover:epoch"]),
            (&json!(OWNER), &json!(KEY), &json!("2"))
        );
    });
}

/// A queue of another account has the same name, and knows nothing of what was sent.
#[tokio::test]
async fn a_queue_of_another_account_ends_no_key_and_gets_no_second_job() {
    const OTHER: &str = "us-east-1:2:";
    let cloud = Cloud::start();
    let first = cloud.plugin("1ms").await;
    let intent = first.intent(&start(1, true, &[])).await.expect("decided").expect("to be kept");
    cloud.set(|s| s.lose = 1);
    first.ensure(start(1, true, &intent)).await.expect_err("no answer");
    cloud.set(|s| (s.behind, s.elsewhere) = (true, true));
    let next = cloud.plugin("1ms").await;
    looked_up_elsewhere(&next, &lookup(2, &intent, false), OTHER).await;
    let held = next.ensure(start(2, false, &intent)).await.expect_err("not sent");
    assert!(matches!(&held, RemoteError::CouldNotAsk(why) if why.contains(OTHER)), "{held}");
    cloud.set(|s| (assert_eq!(s.jobs.len(), 1), s.elsewhere = false).1);
    let back = cloud.plugin("1ms").await;
    testkit::poll("the belief", async || {
        matches!(back.look_up(lookup(2, &intent, false)).await, Err(RemoteError::Gone(_)))
    })
    .await;
}

/// Where nothing ever appears absence is believed in the end.
#[tokio::test]
async fn an_empty_listing_counts_after_the_window() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("200ms").await;
    let intent = plugin.intent(&start(1, true, &[])).await.expect("decided").expect("to be kept");
    assert!(matches!(plugin.look_up(lookup(1, &intent, false)).await, Err(RemoteError::CouldNotAsk(_))));
    testkit::poll("the belief", async || {
        matches!(plugin.look_up(lookup(1, &intent, false)).await, Err(RemoteError::Gone(_)))
    })
    .await;
}

/// Too many requests make no job: the same call goes on until it is let through.
#[tokio::test]
async fn a_throttled_start_is_tried_again_within_the_call() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("5m").await;
    cloud.set(|s| s.throttle = 1);
    let made = plugin.ensure(start(1, true, &[])).await.expect("let through");
    assert!(made.created && made.observed.state == InstanceState::Creating);
    cloud.set(|s| assert_eq!(s.jobs.len(), 1));
}

/// What the service refuses for good is an error of the job, and has started nothing.
#[tokio::test]
async fn a_definition_that_there_is_not_is_an_error_of_the_job() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("5m").await;
    let missing = json!({"job_definition": "no-such"});
    let asked = plugin.ensure(start_of(KEY, 1, true, &[], &missing));
    // What is not certain is asked for again for 40 s, and is then such an error, too.
    let answer = tokio::time::timeout(Duration::from_secs(20), asked).await.expect("it is not asked for again");
    let refused = answer.expect_err("refused");
    assert!(matches!(&refused, RemoteError::WrongRequest(why) if why.contains("no-such")), "{refused}");
    cloud.set(|s| assert!(s.jobs.is_empty()));
}

/// A definition is registered once for all jobs of its content; a second plugin finds it.
#[tokio::test]
async fn a_definition_is_registered_once() {
    let cloud = Cloud::start();
    let image = json!({"image": "busybox:1", "command": ["true"], "memory": 64});
    let (one, other) = (cloud.plugin("5m").await, cloud.plugin("5m").await);
    for (plugin, key) in [(&one, "k1"), (&one, "k2"), (&other, "k3")] {
        plugin.ensure(start_of(key, 1, true, &[], &image)).await.expect("made");
    }
    cloud.set(|s| {
        assert_eq!((s.registered.len(), s.jobs.len()), (1, 3));
        assert_eq!(s.registered[0]["containerProperties"]["image"], "busybox:1");
        assert_eq!(s.registered[0]["tags"]["drover:owner"], OWNER);
        assert_eq!(s.jobs[0].1["containerOverrides"]["command"], json!(["true"]));
    });
}

/// Somebody deregisters the definition in the account: the refused start has made no job, and goes out once more with a
/// definition of the same content.
#[tokio::test]
async fn a_deregistered_definition_is_registered_again() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("5m").await;
    let image = json!({"image": "busybox:1"});
    plugin.ensure(start_of("k1", 1, true, &[], &image)).await.expect("made");
    let kept = plugin.intent(&start_of("k2", 1, true, &[], &image)).await.expect("decided").expect("to be kept");
    let deregister = |s: &mut State| {
        let arn = s.jobs[0].1["jobDefinition"].as_str().expect("an ARN").to_owned();
        s.inactive.insert(arn);
    };
    cloud.set(deregister);
    for (key, kept) in [("k2", kept.as_slice()), ("k3", &[])] {
        let made = plugin.ensure(start_of(key, 1, true, kept, &image)).await.expect(key);
        assert!(made.created, "{key}");
    }
    cloud.set(|s| {
        assert_eq!((s.registered.len(), s.jobs.len()), (2, 3));
        assert_eq!(s.registered[0], s.registered[1], "the same content");
        assert_eq!(s.submits, 4, "one refused start");
        assert!(s.jobs[1..].iter().all(|(_, job)| job["jobDefinition"].as_str().expect("an ARN").ends_with(":2")));
    });
}

/// A refusal for another reason is the job's error: nothing is registered or sent for it again.
#[tokio::test]
async fn a_refused_start_with_an_active_definition_is_not_sent_again() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("5m").await;
    cloud.set(|s| s.refuse = 1);
    let refused = plugin.ensure(start_of(KEY, 1, true, &[], &json!({"image": "i"}))).await.expect_err("refused");
    assert!(matches!(&refused, RemoteError::WrongRequest(why) if why.contains("override is not valid")), "{refused}");
    cloud.set(|s| assert_eq!((s.submits, s.registered.len(), s.jobs.len()), (1, 1, 0)));
}

/// A listed job that DescribeJobs leaves out exists: neither its key nor its handle is free, however long that lasts.
#[tokio::test]
async fn a_listed_job_that_is_not_described_is_unknown_and_no_second_one_is_started() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("1ms").await;
    let intent = plugin.intent(&start(1, true, &[])).await.expect("decided").expect("to be kept");
    let made = plugin.ensure(start(1, true, &intent)).await.expect("made");
    let arn = made.observed.provider_id.clone();
    cloud.set(|s| s.undescribed.insert(arn.clone()));
    let next = cloud.plugin("1ms").await;
    next.look_up(lookup(1, &intent, false)).await.expect_err("not described");
    for _ in 0..2 {
        // Longer than the window.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let unknown = next.look_up(lookup(1, &intent, false)).await.expect_err("not described");
        assert!(
            matches!(&unknown, RemoteError::CouldNotAsk(why) if why.contains(&arn) && why.contains("not describe")),
            "{unknown}"
        );
        let held = next.ensure(start(1, false, &intent)).await.expect_err("not sent");
        assert!(matches!(&held, RemoteError::CouldNotAsk(why) if why.contains("not describe")), "{held}");
        let seen = next.observe(std::slice::from_ref(&made.handle)).await.expect("asked");
        assert!(seen[0].state == InstanceState::Unknown && seen[0].reason.contains("not describe"), "{:?}", seen[0]);
        let page = next.list(OWNER, "4/", 100).await.expect("listed");
        assert!(page.instances.is_empty() && page.incomplete.contains(&arn), "the sweep is told: {page:?}");
    }
    cloud.set(|s| (assert_eq!(s.jobs.len(), 1), s.undescribed.clear()).1);
    let (_, found) = next.look_up(lookup(1, &intent, false)).await.expect("found");
    assert_eq!(found.provider_id, arn);
    assert_eq!(next.list(OWNER, "4/", 100).await.expect("listed").incomplete, "");
}

/// Two jobs for one key: the sweep names each to a person, who can end the one that is not the record's.
#[tokio::test]
async fn a_second_job_of_a_key_is_listed_by_a_key_of_its_own_and_can_be_stopped() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("5m").await;
    let made = plugin.ensure(start(1, true, &[])).await.expect("made");
    cloud.set(|s| {
        let copy = s.jobs[0].1.clone();
        s.jobs.push((format!("{PLACE}:job/1"), copy));
    });
    let both = list(&plugin, 100).await;
    assert!(both.len() == 2 && both[0].key != both[1].key && both.iter().all(|i| i.key != KEY), "{both:?}");
    let second = both.iter().find(|i| i.observed.provider_id.ends_with("/1")).expect("the second");
    let order = StopTask { signal: String::new(), timeout: Duration::from_secs(30) };
    plugin.stop(&second.handle, 7, order).await.expect("stopped");
    let left = list(&plugin, 100).await;
    assert_eq!((left.len(), left[0].key.as_str()), (1, KEY));
    assert_eq!(plugin.observe(&[made.handle]).await.expect("asked")[0].state, InstanceState::Running);
    assert_eq!(list(&plugin, 100).await.len(), 1);
    // Another cluster's jobs are not ours.
    assert!(plugin.list("cluster-2", "4/", 100).await.expect("listed").instances.is_empty());
}

/// A hundred jobs with each look; what the service does not show is unknown while it is young.
#[tokio::test]
async fn looks_are_by_the_hundred_and_a_young_job_is_not_gone() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("5m").await;
    let mut handles = Vec::new();
    for n in 0..101 {
        let job = start_of(&format!("k{n}"), 1, true, &[], &json!({"image": "i"}));
        handles.push(plugin.ensure(job).await.expect("made").handle);
    }
    cloud.set(|s| (s.looks.clear(), s.jobs.truncate(100)).0);
    let seen = plugin.observe(&handles).await.expect("asked");
    cloud.set(|s| assert_eq!(s.looks, [100, 1]));
    assert!(seen[..100].iter().all(|s| s.state == InstanceState::Running));
    assert!(
        seen[100].state == InstanceState::Unknown && seen[100].reason.contains("less than 300 s"),
        "{:?}",
        seen[100]
    );
}
