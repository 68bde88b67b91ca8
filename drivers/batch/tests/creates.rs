//! Starts, against a service that has no token, and shows what it has when a test says so: a request that may have
//! arrived is not sent again.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use batch::Driver;
use driver_sdk::config::Config;
use driver_sdk::{AgentConfig, Ensure, InstanceState, Lookup, RemoteDriver, RemoteError, StopTask, TaskConfig};
use serde_json::{Value, json};

const KEY: &str = "0b7e5c3a-key";
const OWNER: &str = "cluster-1";
const PLACE: &str = "arn:aws:batch:us-east-1:1";

/// What the service has and does.
#[derive(Default)]
struct State {
    /// Jobs as they were submitted, by ARN.
    jobs: Vec<(String, Value)>,
    /// Status by ARN; RUNNING when there is none.
    statuses: HashMap<String, &'static str>,
    /// Definitions that were registered.
    registered: Vec<Value>,
    /// Answers to SubmitJob that are lost.
    lose: usize,
    /// SubmitJobs that are too many.
    throttle: usize,
    /// Listings do not show what there is.
    behind: bool,
    /// What was terminated, and why.
    terminated: Vec<(String, String)>,
    /// Sizes of DescribeJobs.
    looks: Vec<usize>,
}

impl State {
    fn job(&self, arn: &str) -> Option<Value> {
        let (_, job) = self.jobs.iter().find(|(known, _)| known == arn)?;
        let status = self.statuses.get(arn).copied().unwrap_or("RUNNING");
        Some(json!({"jobArn": arn, "jobId": arn.rsplit('/').next(), "jobName": job["jobName"],
            "jobQueue": format!("{PLACE}:job-queue/q"), "jobDefinition": job["jobDefinition"], "status": status,
            "createdAt": 1_700_000_000_000_u64, "startedAt": 1_700_000_000_000_u64, "tags": job["tags"],
            "container": {"exitCode": (status == "FAILED").then_some(143)}}))
    }

    /// The answer to a call; None = the connection breaks.
    fn answer(&mut self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let ok = |value: Value| Some((200, value));
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        match path {
            "/v1/describejobqueues" => ok(json!({"jobQueues": [{"jobQueueName": "q", "state": "ENABLED",
                "status": "VALID", "jobQueueArn": format!("{PLACE}:job-queue/q"), "priority": 1,
                "computeEnvironmentOrder": []}]})),
            "/v1/describejobdefinitions" => {
                let (name, given) = (text("jobDefinitionName"), &body["jobDefinitions"][0]);
                let own = self.registered.iter().any(|made| made["jobDefinitionName"] == name.as_str());
                let of = |revision: u32| {
                    json!({"jobDefinitionName": "demo", "revision": revision, "type": "container",
                    "jobDefinitionArn": format!("{PLACE}:job-definition/{name}:{revision}"),
                    "containerProperties": {"image": "i"}})
                };
                match (name.as_str(), given.as_str()) {
                    ("demo", _) => ok(json!({"jobDefinitions": [of(2), of(11), of(3)]})),
                    (_, None) if own => ok(json!({"jobDefinitions": [of(1)]})),
                    _ => ok(json!({"jobDefinitions": []})),
                }
            }
            "/v1/registerjobdefinition" => {
                self.registered.push(body.clone());
                let name = text("jobDefinitionName");
                ok(json!({"jobDefinitionName": name, "revision": 1,
                    "jobDefinitionArn": format!("{PLACE}:job-definition/{name}:1")}))
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
                let arns: Vec<&str> = body["jobs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                self.looks.push(arns.len());
                ok(json!({"jobs": arns.into_iter().filter_map(|arn| self.job(arn)).collect::<Vec<_>>()}))
            }
            "/v1/submitjob" => {
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

fn serve(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut asked = Vec::new();
    let more = |stream: &mut TcpStream, asked: &mut Vec<u8>| {
        let mut part = [0; 4096];
        let n = stream.read(&mut part).ok().filter(|n| *n > 0)?;
        asked.extend_from_slice(&part[..n]);
        Some(())
    };
    let end = loop {
        more(&mut stream, &mut asked)?;
        if let Some(end) = asked.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&asked[..end]).into_owned();
    let length = head.lines().find_map(|l| l.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    while asked.len() < end + 4 + length.unwrap_or(0) {
        more(&mut stream, &mut asked)?;
    }
    let path = head.split(' ').nth(1)?.to_owned();
    let body = serde_json::from_slice(&asked[end + 4..]).unwrap_or(Value::Null);
    let (status, answer) = state.lock().expect("unpoisoned").answer(&path, &body)?;
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 {status} S\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    stream.write_all(format!("{head}{answer}").as_bytes()).ok()
}

/// A service on a free port; what listens ends with the process.
struct Cloud {
    state: Arc<Mutex<State>>,
    endpoint: String,
    credentials: PathBuf,
    _dir: tempfile::TempDir,
}

impl Cloud {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let state = Arc::new(Mutex::new(State::default()));
        let served = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = served.clone();
                std::thread::spawn(move || serve(stream, &served));
            }
        });
        let dir = tempfile::tempdir().expect("a directory");
        let credentials = dir.path().join("credentials");
        std::fs::write(&credentials, "[default]\naws_access_key_id = k\naws_secret_access_key = s\n").expect("written");
        Self { state, endpoint, credentials, _dir: dir }
    }

    fn set<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().expect("unpoisoned"))
    }

    /// A process of the plugin: it knows nothing of others.
    async fn plugin(&self, window: &str) -> Driver {
        let driver = Driver::new();
        let config = json!({
            "enabled": true, "job_queue": "q", "region": "us-east-1", "endpoint": self.endpoint,
            "requests_per_second": 1000.0, "consistency_window": window, "shared_credentials_file": self.credentials,
        });
        let config = Config::new(rmp_serde::to_vec_named(&config).expect("bytes"));
        driver.set_config(config, Some(AgentConfig::default())).await.expect("configured");
        driver
    }
}

fn start_of(key: &str, epoch: u64, first: bool, intent: &[u8], options: &Value) -> Ensure {
    Ensure {
        key: key.into(),
        epoch,
        owner: OWNER.into(),
        slot: "default/j.g[0]/t".into(),
        task: TaskConfig {
            env: [("NOMAD_ALLOC_ID".to_owned(), "a".to_owned())].into(),
            msgpack_driver_config: rmp_serde::to_vec_named(options).expect("bytes"),
            ..TaskConfig::default()
        },
        first,
        intent: intent.to_vec(),
        ..Ensure::default()
    }
}

fn start(epoch: u64, first: bool, intent: &[u8]) -> Ensure {
    start_of(KEY, epoch, first, intent, &json!({"job_definition": "demo"}))
}

fn lookup(epoch: u64, intent: &[u8]) -> Lookup {
    Lookup { key: KEY.into(), owner: OWNER.into(), intent: intent.to_vec(), epoch, create_follows: false }
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
        let unknown = next.look_up(lookup(epoch, &intent)).await.expect_err("not listed");
        assert!(matches!(&unknown, RemoteError::CouldNotAsk(why) if why.contains("300 s")), "{who}: {unknown}");
        let held = next.ensure(start(epoch, false, &intent)).await.expect_err("not sent");
        assert!(matches!(&held, RemoteError::CouldNotAsk(why) if why.contains("300 s")), "{who}: {held}");
    }
    cloud.set(|s| (assert_eq!(s.jobs.len(), 1), s.behind = false).1);

    // It appears: found by its name, adopted under the newer epoch, and the former manager is refused.
    let other = cloud.plugin("5m").await;
    let (found, seen) = other.look_up(lookup(2, &intent)).await.expect("found");
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

/// Where nothing ever appears absence is believed in the end.
#[tokio::test]
async fn an_empty_listing_counts_after_the_window() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("200ms").await;
    let intent = plugin.intent(&start(1, true, &[])).await.expect("decided").expect("to be kept");
    assert!(matches!(plugin.look_up(lookup(1, &intent)).await, Err(RemoteError::CouldNotAsk(_))));
    testkit::poll("the belief", async || matches!(plugin.look_up(lookup(1, &intent)).await, Err(RemoteError::Gone(_))))
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
    let list = async || {
        let (mut all, mut from) = (Vec::new(), String::new());
        loop {
            let page = plugin.list(OWNER, &from, 100).await.expect("listed");
            all.extend(page.instances);
            from = page.next_page_token;
            if from.is_empty() {
                return all;
            }
        }
    };
    let both = list().await;
    assert!(both.len() == 2 && both[0].key != both[1].key && both.iter().all(|i| i.key != KEY), "{both:?}");
    let second = both.iter().find(|i| i.observed.provider_id.ends_with("/1")).expect("the second");
    let order = StopTask { signal: String::new(), timeout: Duration::from_secs(30) };
    plugin.stop(&second.handle, 7, order).await.expect("stopped");
    let left = list().await;
    assert_eq!((left.len(), left[0].key.as_str()), (1, KEY));
    assert_eq!(plugin.observe(&[made.handle]).await.expect("asked")[0].state, InstanceState::Running);
    assert_eq!(list().await.len(), 1);
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
