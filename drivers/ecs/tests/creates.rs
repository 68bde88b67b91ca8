//! Starts whose answer is lost, against a service that keeps the promise of the token and shows what it has when a test
//! says so: whoever manages the key next, in a new process or on another node, sends the same start, and takes an empty
//! listing for no answer.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use driver_sdk::config::Config;
use driver_sdk::{AgentConfig, Ensure, InstanceState, Lookup, RemoteDriver, RemoteError, TaskConfig};
use ecs::Driver;
use serde_json::{Value, json};

const KEY: &str = "0b7e5c3a-key";
const OWNER: &str = "cluster-1";

/// What the service has and does.
#[derive(Default)]
struct State {
    /// By ARN: tags, and when it was created, in seconds since 1970.
    tasks: Vec<(String, Value, u64)>,
    started_by: HashMap<String, String>,
    /// By token: the request and its task.
    tokens: HashMap<String, (Value, String)>,
    /// All starts that came, as they came.
    starts: Vec<Value>,
    /// The newest revision of the family.
    revision: u32,
    /// Answers to starts that are lost.
    lose: usize,
    /// Starts for which there is no room.
    full: usize,
    /// Listings do not show what there is.
    behind: bool,
    /// Tasks that have ended, by ARN.
    stopped: HashSet<String>,
}

impl State {
    fn arn(&self) -> String {
        format!("arn:aws:ecs:us-east-1:1:task/c/{}", self.tasks.len())
    }

    fn task(&self, arn: &str) -> Option<Value> {
        let (_, tags, created) = self.tasks.iter().find(|(known, ..)| known == arn)?;
        let status = if self.stopped.contains(arn) { "STOPPED" } else { "RUNNING" };
        Some(json!({"taskArn": arn, "clusterArn": "arn:aws:ecs:us-east-1:1:cluster/c", "lastStatus": status,
                "tags": tags, "createdAt": created,
                    "taskDefinitionArn": "arn:d:1", "containers": [{"name": "web"}]}))
    }

    /// The answer to a call; None = the connection breaks.
    fn answer(&mut self, call: &str, body: &Value) -> Option<(u16, Value)> {
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let ok = |value: Value| Some((200, value));
        match call {
            "DescribeClusters" => {
                ok(json!({"clusters": [{"clusterArn": "arn:aws:ecs:us-east-1:1:cluster/c", "status": "ACTIVE"}]}))
            }
            "DescribeTaskDefinition" => {
                let asked = text("taskDefinition");
                let arn = if asked.starts_with("arn:") { asked } else { format!("arn:d:{}", self.revision) };
                ok(json!({"taskDefinition": {"taskDefinitionArn": arn,
                        "containerDefinitions": [{"name": "web", "essential": true}]}}))
            }
            "ListTasks" => {
                let by = text("startedBy");
                let ended = body["desiredStatus"] == "STOPPED";
                let shown = |arn: &&String| {
                    !self.behind
                        && self.stopped.contains(*arn) == ended
                        && (by.is_empty() || self.started_by[*arn] == by)
                };
                let arns: Vec<&String> = self.tasks.iter().map(|(arn, ..)| arn).filter(shown).collect();
                let from = text("nextToken").parse().unwrap_or(0);
                let size = body["maxResults"].as_u64().map_or(100, |size| size as usize);
                let to = arns.len().min(from + size);
                ok(json!({"taskArns": arns[from..to], "nextToken": (to < arns.len()).then(|| to.to_string())}))
            }
            "StopTask" => {
                self.stopped.insert(text("task"));
                ok(json!({"task": self.task(&text("task"))}))
            }
            "DescribeTasks" => {
                let arns = body["tasks"].as_array().cloned().unwrap_or_default();
                let (known, missing): (Vec<_>, Vec<_>) =
                    arns.iter().filter_map(Value::as_str).partition(|arn| self.task(arn).is_some());
                let missing: Vec<Value> = missing.iter().map(|arn| json!({"arn": arn, "reason": "MISSING"})).collect();
                ok(json!({"tasks": known.iter().filter_map(|arn| self.task(arn)).collect::<Vec<_>>(),
                        "failures": missing}))
            }
            "TagResource" => {
                let task = self.tasks.iter_mut().find(|(arn, ..)| *arn == body["resourceArn"]).expect("a task of ours");
                for new in body["tags"].as_array().into_iter().flatten() {
                    let tags = task.1.as_array_mut().expect("tags");
                    tags.retain(|old| old["key"] != new["key"]);
                    tags.push(new.clone());
                }
                ok(json!({}))
            }
            "RunTask" => {
                self.starts.push(body.clone());
                if self.full > 0 {
                    self.full -= 1;
                    return ok(json!({"tasks": [], "failures": [{"reason": "RESOURCE:MEMORY"}]}));
                }
                let token = text("clientToken");
                let (answer, conflict) = match self.tokens.get(&token) {
                    Some((same, arn)) if same == body => (json!({"tasks": [self.task(arn)]}), None),
                    Some((_, arn)) => (json!({}), Some(arn.clone())),
                    None => {
                        let arn = self.arn();
                        let created =
                            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
                        self.tasks.push((arn.clone(), body["tags"].clone(), created));
                        self.started_by.insert(arn.clone(), text("startedBy"));
                        self.tokens.insert(token, (body.clone(), arn.clone()));
                        (json!({"tasks": [self.task(&arn)]}), None)
                    }
                };
                if self.lose > 0 {
                    self.lose -= 1;
                    return None;
                }
                match conflict {
                    Some(arn) => {
                        Some((400, json!({"__type": "ConflictException", "message": "in use", "resourceIds": [arn]})))
                    }
                    None => ok(answer),
                }
            }
            other => panic!("the driver is not expected to call {other}"),
        }
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut asked = Vec::new();
    let (head, length) = loop {
        let mut more = [0; 4096];
        let n = stream.read(&mut more).ok().filter(|n| *n > 0)?;
        asked.extend_from_slice(&more[..n]);
        if let Some(end) = asked.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&asked[..end]).to_lowercase();
            let length = head.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse::<usize>().ok())?;
            break (String::from_utf8_lossy(&asked[..end]).into_owned(), end + 4 + length);
        }
    };
    while asked.len() < length {
        let mut more = [0; 4096];
        let n = stream.read(&mut more).ok().filter(|n| *n > 0)?;
        asked.extend_from_slice(&more[..n]);
    }
    let body = asked.split_off(head.len() + 4);
    let target = head.lines().find(|l| l.to_lowercase().starts_with("x-amz-target:"))?;
    let call = target.rsplit('.').next()?.trim().to_owned();
    let (status, answer) =
        state.lock().expect("unpoisoned").answer(&call, &serde_json::from_slice(&body).expect("JSON"))?;
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 {status} S\r\ncontent-type: application/x-amz-json-1.1\r\ncontent-length: {}\r\nconnection: \
            close\r\n\r\n",
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
        let state = Arc::new(Mutex::new(State { revision: 1, ..State::default() }));
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
            "enabled": true, "cluster": "c", "region": "us-east-1", "endpoint": self.endpoint,
            "requests_per_second": 1000.0,
            "consistency_window": window, "shared_credentials_file": self.credentials,
        });
        driver
            .set_config(Config::new(rmp_serde::to_vec_named(&config).expect("bytes")), Some(AgentConfig::default()))
            .await
            .expect("configured");
        driver
    }
}

/// A start by the allocation `alloc`, as its node prepares it.
fn start(epoch: u64, alloc: &str, first: bool, intent: &[u8]) -> Ensure {
    let options = json!({"task": {"task_definition": "demo"}});
    Ensure {
        key: KEY.into(),
        epoch,
        owner: OWNER.into(),
        slot: "default/j.g[0]/t".into(),
        task: TaskConfig {
            env: [("NOMAD_ALLOC_ID".to_owned(), alloc.to_owned())].into(),
            msgpack_driver_config: rmp_serde::to_vec_named(&options).expect("bytes"),
            ..TaskConfig::default()
        },
        first,
        intent: intent.to_vec(),
        ..Ensure::default()
    }
}

fn lookup(epoch: u64, intent: &[u8], create_follows: bool) -> Lookup {
    Lookup { key: KEY.into(), owner: OWNER.into(), intent: intent.to_vec(), epoch, create_follows }
}

fn epoch_of(tags: &Value) -> String {
    let epoch = tags.as_array().into_iter().flatten().find(|tag| tag["key"] == "drover:epoch");
    epoch.and_then(|tag| tag["value"].as_str()).unwrap_or_default().to_owned()
}

/// The plugin is killed between sending a start and hearing of it; what it started is not listed yet.
#[tokio::test]
async fn a_start_whose_answer_was_lost_is_sent_again_as_it_was_whoever_manages_it_then() {
    let cloud = Cloud::start();
    let first = cloud.plugin("5m").await;
    let intent = first.intent(&start(1, "a", true, &[])).await.expect("decided").expect("to be kept");
    assert!(!String::from_utf8_lossy(&intent).contains("NOMAD_ALLOC_ID"), "the environment may hold secrets");
    cloud.set(|s| (s.lose, s.behind) = (1, true));
    let lost = first.ensure(start(1, "a", true, &intent)).await.expect_err("no answer");
    assert!(matches!(lost, RemoteError::CouldNotAsk(_)), "{lost}");
    drop(first);
    // The family has a newer revision by now.
    cloud.set(|s| s.revision = 2);

    // The next process on the same node: the very same request, to the byte.
    let again = cloud.plugin("5m").await;
    assert_eq!(again.intent(&start(1, "a", false, &intent)).await, Ok(None), "what is kept stays");
    assert!(
        matches!(again.look_up(lookup(1, &intent, true)).await, Err(RemoteError::Gone(_))),
        "the create follows by its key"
    );
    let found = again.ensure(start(1, "a", false, &intent)).await.expect("the task of the token");
    cloud.set(|s| assert_eq!((s.tasks.len(), s.starts.len(), &s.starts[0]), (1, 2, &s.starts[1])));

    // Another node, under the next epoch, for another allocation: the token's task, and it takes over the epoch.
    let other = cloud.plugin("5m").await;
    assert_eq!(other.intent(&start(2, "b", false, &intent)).await, Ok(None));
    let adopted = other.ensure(start(2, "b", false, &intent)).await.expect("the task of the token");
    assert_eq!((&adopted.handle, adopted.observed.state), (&found.handle, InstanceState::Running));
    cloud.set(|s| {
        assert_eq!((s.tasks.len(), s.starts.len()), (1, 3));
        assert_eq!(epoch_of(&s.tasks[0].1), "2", "the former manager's calls are refused from here on");
        assert!(
            s.starts.iter().all(|start| start["taskDefinition"] == "arn:d:1" && epoch_of(&start["tags"]) == "1"),
            "as it was sent first"
        );
    });
    let stale = again
        .stop(&adopted.handle, 1, driver_sdk::StopTask { signal: String::new(), timeout: Duration::ZERO })
        .await
        .expect_err("a former manager");
    assert!(matches!(stale, RemoteError::StaleEpoch { given: 1, accepted: 2 }), "{stale}");
    // It repeats its start: ECS answers with the token's task as it was sent, under epoch 1.
    let stale = again.ensure(start(1, "a", false, &intent)).await.expect_err("a former manager");
    assert!(matches!(stale, RemoteError::StaleEpoch { given: 1, accepted: 2 }), "{stale}");
    cloud.set(|s| assert_eq!((s.tasks.len(), epoch_of(&s.tasks[0].1)), (1, "2".to_owned())));
}

/// What was stored and never sent is sent by the next manager, and then is its own.
#[tokio::test]
async fn a_start_that_was_never_sent_is_sent_by_the_next_manager() {
    let cloud = Cloud::start();
    let intent =
        cloud.plugin("5m").await.intent(&start(1, "a", true, &[])).await.expect("decided").expect("to be kept");
    let made = cloud.plugin("5m").await.ensure(start(2, "b", false, &intent)).await.expect("made");
    assert!(made.created && made.observed.epoch == 2);
    cloud.set(|s| assert_eq!((s.tasks.len(), epoch_of(&s.tasks[0].1)), (1, "2".to_owned())));
}

/// A stop has no start that follows: an empty listing ends the key, so it must not be believed early.
#[tokio::test]
async fn a_stop_after_a_lost_answer_waits_for_listings_to_catch_up() {
    let cloud = Cloud::start();
    let first = cloud.plugin("5m").await;
    let intent = first.intent(&start(1, "a", true, &[])).await.expect("decided").expect("to be kept");
    cloud.set(|s| (s.lose, s.behind) = (1, true));
    first.ensure(start(1, "a", true, &intent)).await.expect_err("no answer");
    let next = cloud.plugin("5m").await;
    for (who, plugin) in [("the sender", &first), ("another node", &next)] {
        let unknown = plugin.look_up(lookup(2, &intent, false)).await.expect_err("not listed");
        assert!(matches!(&unknown, RemoteError::CouldNotAsk(why) if why.contains("300 s")), "{who}: {unknown}");
        assert!(
            plugin.list(OWNER, "", 100).await.expect("listed").incomplete.contains("1 starts"),
            "{who}: the sweep is told, too"
        );
    }
    cloud.set(|s| s.behind = false);
    let (_, seen) = next.look_up(lookup(2, &intent, false)).await.expect("found");
    assert_eq!(seen.state, InstanceState::Running);
    assert_eq!(next.list(OWNER, "", 100).await.expect("listed").incomplete, "");

    // Where nothing ever appears absence is believed in the end.
    cloud.set(|s| s.behind = true);
    let patient = cloud.plugin("200ms").await;
    let begun = Instant::now();
    testkit::poll("the belief", async || {
        matches!(patient.look_up(lookup(2, &intent, false)).await, Err(RemoteError::Gone(_)))
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_millis(200));
}

/// A start that ECS has refused for want of room has started nothing: who has heard that need not wait, others must.
#[tokio::test]
async fn a_stop_after_a_refused_start_waits_only_where_that_was_not_heard() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("5m").await;
    let intent = plugin.intent(&start(1, "a", true, &[])).await.expect("decided").expect("to be kept");
    cloud.set(|s| s.full = 2);
    for first in [true, false] {
        let full = plugin.ensure(start(1, "a", first, &intent)).await.expect_err("no room");
        assert!(full.to_string().contains("RESOURCE:MEMORY"), "{full}");
    }
    assert!(matches!(plugin.look_up(lookup(1, &intent, false)).await, Err(RemoteError::Gone(_))));
    for (who, other, epoch) in [("after another manager", &plugin, 3), ("another node", &cloud.plugin("5m").await, 1)] {
        assert!(
            matches!(other.look_up(lookup(epoch, &intent, false)).await, Err(RemoteError::CouldNotAsk(_))),
            "{who}"
        );
    }
}

/// A token is kept for a day: what was sent longer ago is not sent again.
#[tokio::test]
async fn a_start_that_may_have_been_sent_a_day_ago_is_not_repeated() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("5m").await;
    let kept = json!({"at": 1_000_000, "epoch": 1, "token": KEY, "definition": "arn:d:1", "container": "web"});
    let kept = driver_sdk::handle::encode_intent(1, &kept).expect("bytes");
    let refused = plugin.ensure(start(2, "b", false, &kept)).await.expect_err("too late");
    assert!(matches!(&refused, RemoteError::Sealed(why) if why.contains("a day ago")), "{refused}");
    cloud.set(|s| assert_eq!(s.starts.len(), 0));
    // What has never been sent may be, and a start that was refused for so long is decided anew.
    plugin.ensure(start(2, "b", true, &kept)).await.expect("made");
    cloud.set(|s| assert_eq!(s.tasks.len(), 1));
}

/// ECS has started two tasks for one key, against its word. The sweep names each to a person, who can end the one that
/// is not the record's.
#[tokio::test]
async fn a_second_task_of_a_key_is_listed_by_a_key_of_its_own_and_can_be_stopped() {
    let cloud = Cloud::start();
    let manager = cloud.plugin("5m").await;
    let made = manager.ensure(start(1, "a", true, &[])).await.expect("made");
    let list = async |plugin: &Driver, size: usize| {
        let (mut all, mut from) = (Vec::new(), String::new());
        loop {
            let page = plugin.list(OWNER, &from, size).await.expect("listed");
            all.extend(page.instances);
            from = page.next_page_token;
            if from.is_empty() {
                return all;
            }
        }
    };
    let keys = |all: &[driver_sdk::Instance]| all.iter().map(|i| i.key.clone()).collect::<Vec<_>>();
    assert_eq!(keys(&list(&manager, 100).await), [KEY]);
    cloud.set(|s| {
        let (first, tags, created) = s.tasks[0].clone();
        let (second, by) = (s.arn(), s.started_by[&first].clone());
        s.tasks.push((second.clone(), tags, created));
        s.started_by.insert(second, by);
    });
    let both = list(&manager, 100).await;
    assert!(both.len() == 2 && both[0].key != both[1].key && !keys(&both).contains(&KEY.to_owned()), "{both:?}");
    assert!(
        both.iter()
            .all(|i| i.slot == both[0].slot && i.observed.key == i.key && i.observed.state == InstanceState::Running)
    );
    let (own, second): (Vec<_>, Vec<_>) =
        both.iter().partition(|i| i.observed.provider_id == made.observed.provider_id);
    assert_eq!((own.len(), second.len()), (1, 1), "the provider's name says which one the record means");
    // In pieces, by a plugin that has listed nothing before: known with the second piece, and whole the next time.
    let other = cloud.plugin("5m").await;
    let in_pieces = list(&other, 1).await;
    assert!(in_pieces[1].key == both[1].key && keys(&list(&other, 1).await) == keys(&both), "{in_pieces:?}");

    // A person's order to stop the second one ends nothing else.
    let order = driver_sdk::StopTask { signal: String::new(), timeout: Duration::ZERO };
    let seen = other.observe(std::slice::from_ref(&second[0].handle)).await.expect("asked");
    assert_eq!((seen[0].key.as_str(), seen[0].state), (second[0].key.as_str(), InstanceState::Running));
    let stopped = other.stop(&second[0].handle, 7, order).await.expect("stopped");
    assert_eq!((stopped.key.as_str(), stopped.state), (second[0].key.as_str(), InstanceState::Exited));
    other.acknowledge(&second[0].handle, 7).await.expect("acknowledged");
    let left = list(&manager, 100).await;
    assert_eq!(
        (keys(&left), left[0].observed.provider_id.as_str()),
        (vec![KEY.to_owned()], made.observed.provider_id.as_str())
    );
    let seen = manager.observe(&[made.handle]).await.expect("asked");
    assert_eq!((seen[0].key.as_str(), seen[0].state, seen[0].epoch), (KEY, InstanceState::Running, 1));
}
