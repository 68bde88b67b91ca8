//! Starts whose answer is lost, against a service that keeps the promise of the token and shows what it has when a test
//! says so: whoever manages the key next, in a new process or on another node, sends the same start, and takes an empty
//! listing for no answer.

#[path = "../../../lib/aws/tests/cloud/mod.rs"]
mod cloud;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use cloud::{Cloud, KEY, OWNER, Service, list, looked_up_elsewhere, lookup, start_of};
use driver_sdk::{Ensure, InstanceState, RemoteDriver, RemoteError};
use ecs::Driver;
use serde_json::{Value, json};

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
    /// The cluster of that name is one of another account.
    elsewhere: bool,
    /// Tasks that have ended, by ARN.
    stopped: HashSet<String>,
    /// Tasks that were told to end and still run.
    ending: HashSet<String>,
    /// Tasks that listings show and DescribeTasks does not: ARN → the reason of the failure.
    undescribed: HashMap<String, &'static str>,
    /// ARNs of revisions that were deregistered.
    inactive: HashSet<String>,
}

impl State {
    fn arn(&self) -> String {
        format!("arn:aws:ecs:us-east-1:1:task/c/{}", self.tasks.len())
    }

    fn task(&self, arn: &str) -> Option<Value> {
        let (_, tags, created) = self.tasks.iter().find(|(known, ..)| known == arn)?;
        let status = match (self.stopped.contains(arn), self.ending.contains(arn)) {
            (true, _) => "STOPPED",
            (false, true) => "DEACTIVATING",
            (false, false) => "RUNNING",
        };
        Some(json!({"taskArn": arn, "clusterArn": "arn:aws:ecs:us-east-1:1:cluster/c", "lastStatus": status,
                "tags": tags, "createdAt": created,
                    "taskDefinitionArn": "arn:d:1", "containers": [{"name": "web"}]}))
    }
}

impl Service for State {
    fn answer(&mut self, call: &str, body: &Value) -> Option<(u16, Value)> {
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let ok = |value: Value| Some((200, value));
        match call {
            "DescribeClusters" => {
                let account = if self.elsewhere { 2 } else { 1 };
                let arn = format!("arn:aws:ecs:us-east-1:{account}:cluster/c");
                ok(json!({"clusters": [{"clusterArn": arn, "status": "ACTIVE"}]}))
            }
            "DescribeTaskDefinition" => {
                let asked = text("taskDefinition");
                let newest = format!("arn:d:{}", self.revision);
                if asked.starts_with("drover-") && (self.revision == 1 || self.inactive.contains(&newest)) {
                    let message = "Unable to describe task definition.";
                    return Some((400, json!({"__type": "ClientException", "message": message})));
                }
                let arn = if asked.starts_with("arn:") { asked } else { newest };
                ok(json!({"taskDefinition": {"taskDefinitionArn": arn,
                        "containerDefinitions": [{"name": "web", "essential": true}]}}))
            }
            "RegisterTaskDefinition" => {
                self.revision += 1;
                ok(json!({"taskDefinition": {"taskDefinitionArn": format!("arn:d:{}", self.revision),
                        "containerDefinitions": [{"name": "main", "essential": true}]}}))
            }
            "ListTasks" => {
                let by = text("startedBy");
                let ended = body["desiredStatus"] == "STOPPED";
                let shown = |arn: &&String| {
                    !self.behind
                        && (self.stopped.contains(*arn) || self.ending.contains(*arn)) == ended
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
                let reason = |arn: &str| {
                    let unknown = self.task(arn).is_none().then_some("MISSING");
                    self.undescribed.get(arn).copied().or(unknown)
                };
                let (known, failed): (Vec<_>, Vec<_>) =
                    arns.iter().filter_map(Value::as_str).partition(|arn| reason(arn).is_none());
                let failed: Vec<Value> = failed.iter().map(|arn| json!({"arn": arn, "reason": reason(arn)})).collect();
                ok(json!({"tasks": known.iter().filter_map(|arn| self.task(arn)).collect::<Vec<_>>(),
                        "failures": failed}))
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
                if self.inactive.contains(&text("taskDefinition")) {
                    return Some((400, json!({"__type": "ClientException", "message": "TaskDefinition is inactive"})));
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

impl Cloud<State> {
    fn start() -> Self {
        Self::of(State { revision: 1, ..State::default() })
    }

    async fn plugin(&self, window: &str) -> Driver {
        self.configured(Driver::new(), ("cluster", "c"), window).await
    }
}

/// A start by the allocation `alloc`, as its node prepares it.
fn start(epoch: u64, alloc: &str, first: bool, intent: &[u8]) -> Ensure {
    let mut start = start_of(KEY, epoch, first, intent, &json!({"task": {"task_definition": "demo"}}));
    start.task.env.insert("NOMAD_ALLOC_ID".to_owned(), alloc.to_owned());
    start
}

/// What a listing says that it does not have, on whichever page.
async fn incomplete(plugin: &Driver) -> String {
    let (mut missing, mut from) = (String::new(), String::new());
    loop {
        let page = plugin.list(OWNER, &from, 100).await.expect("listed");
        missing += &page.incomplete;
        from = page.next_page_token;
        if from.is_empty() {
            return missing;
        }
    }
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
        assert!(incomplete(plugin).await.contains("1 starts"), "{who}: the sweep is told, too");
    }
    cloud.set(|s| s.behind = false);
    let (_, seen) = next.look_up(lookup(2, &intent, false)).await.expect("found");
    assert_eq!(seen.state, InstanceState::Running);
    assert_eq!(incomplete(&next).await, "");

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

/// A cluster of another account has the same name, and knows neither the token nor the task.
#[tokio::test]
async fn a_cluster_of_another_account_ends_no_key_and_gets_no_second_task() {
    const OTHER: &str = "us-east-1:2:";
    let cloud = Cloud::start();
    let first = cloud.plugin("1ms").await;
    let intent = first.intent(&start(1, "a", true, &[])).await.expect("decided").expect("to be kept");
    cloud.set(|s| s.lose = 1);
    first.ensure(start(1, "a", true, &intent)).await.expect_err("no answer");
    cloud.set(|s| (s.behind, s.elsewhere) = (true, true));
    let next = cloud.plugin("1ms").await;
    looked_up_elsewhere(&next, &lookup(2, &intent, false), OTHER).await;
    let held = next.ensure(start(2, "b", false, &intent)).await.expect_err("not sent");
    assert!(matches!(&held, RemoteError::CouldNotAsk(why) if why.contains(OTHER)), "{held}");
    cloud.set(|s| (assert_eq!((s.tasks.len(), s.starts.len()), (1, 1)), s.elsewhere = false).1);
    let back = cloud.plugin("1ms").await;
    testkit::poll("the belief", async || {
        matches!(back.look_up(lookup(2, &intent, false)).await, Err(RemoteError::Gone(_)))
    })
    .await;
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

/// Somebody deregisters the definition in the account: the refused start has made no task, and goes out once more with
/// a definition of the same content, under the same token.
#[tokio::test]
async fn a_deregistered_definition_is_registered_again() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("5m").await;
    let start = |key: &str, intent: &[u8]| {
        start_of(key, 1, true, intent, &json!({"task": {"container": {"image": "busybox:1"}}}))
    };
    plugin.ensure(start("k1", &[])).await.expect("made");
    let kept = plugin.intent(&start("k2", &[])).await.expect("decided").expect("to be kept");
    cloud.set(|s| s.inactive.insert("arn:d:2".to_owned()));
    for (key, kept) in [("k2", kept.as_slice()), ("k3", &[])] {
        assert!(plugin.ensure(start(key, kept)).await.expect(key).created, "{key}");
    }
    cloud.set(|s| {
        let sent = |name: &str| s.starts.iter().map(|sent| sent[name].clone()).collect::<Vec<_>>();
        assert_eq!(sent("taskDefinition"), ["arn:d:2", "arn:d:2", "arn:d:3", "arn:d:3"], "registered once more");
        assert_eq!((sent("clientToken"), s.tasks.len()), (vec!["k1".into(), "k2".into(), "k2".into(), "k3".into()], 3));
    });
    // One that the job names is the job's own: no other revision takes its place.
    cloud.set(|s| s.inactive.insert("arn:d:9".to_owned()));
    let named = start_of("k4", 1, true, &[], &json!({"task": {"task_definition": "arn:d:9"}}));
    let refused = plugin.ensure(named).await.expect_err("refused");
    assert!(matches!(&refused, RemoteError::WrongRequest(why) if why.contains("inactive")), "{refused}");
    cloud.set(|s| assert_eq!((s.starts.len(), s.tasks.len()), (5, 3)));
}

/// A listed task that DescribeTasks does not show exists: neither its key nor its handle is free, however long that
/// lasts.
#[tokio::test]
async fn a_listed_task_that_is_not_described_is_unknown() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("1ms").await;
    let intent = plugin.intent(&start(1, "a", true, &[])).await.expect("decided").expect("to be kept");
    let made = plugin.ensure(start(1, "a", true, &intent)).await.expect("made");
    let arn = made.observed.provider_id.clone();
    for reason in ["MISSING", "SOMETHING_ELSE"] {
        cloud.set(|s| (s.undescribed.insert(arn.clone(), reason), s.tasks[0].2 = 1_700_000_000).1);
        let next = cloud.plugin("1ms").await;
        next.look_up(lookup(1, &intent, false)).await.expect_err("not described");
        tokio::time::sleep(Duration::from_millis(5)).await;
        let unknown = next.look_up(lookup(1, &intent, false)).await.expect_err("longer than the window");
        assert!(
            matches!(&unknown, RemoteError::CouldNotAsk(why) if why.contains(&arn) && why.contains("not describe")),
            "{reason}: {unknown}"
        );
        let held = next.ensure(start(1, "a", false, &intent)).await.expect_err("not sent");
        assert!(matches!(&held, RemoteError::CouldNotAsk(why) if why.contains("not describe")), "{reason}: {held}");
        let page = next.list(OWNER, "", 100).await.expect("listed");
        assert!(page.instances.is_empty() && page.incomplete.contains(&arn), "the sweep is told: {page:?}");
    }
    cloud.set(|s| (assert_eq!(s.starts.len(), 1), s.undescribed.clear()).1);
    assert_eq!(plugin.look_up(lookup(1, &intent, false)).await.expect("found").1.provider_id, arn);
}

/// Ended tasks are listed whosever they are. One that ECS has forgotten says nothing of other keys; one that it does
/// not describe for another reason may be of any key while the window lasts, and of its own key longer.
#[tokio::test]
async fn an_ended_task_that_is_not_described_keeps_no_other_key_waiting_for_ever() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("1s").await;
    let old = plugin.ensure(start_of("old", 1, true, &[], &json!({"task": {"task_definition": "demo"}}))).await;
    let old = old.expect("made").handle;
    let arn = cloud.set(|s| {
        let arn = s.tasks[0].0.clone();
        s.stopped.insert(arn.clone());
        s.undescribed.insert(arn.clone(), "MISSING");
        arn
    });
    let none = driver_sdk::Lookup { key: KEY.into(), owner: OWNER.into(), epoch: 1, ..Default::default() };
    assert!(matches!(plugin.look_up(none.clone()).await, Err(RemoteError::Gone(_))), "forgotten, and of another key");

    cloud.set(|s| s.undescribed.insert(arn.clone(), "SOMETHING_ELSE"));
    let unknown = plugin.look_up(none.clone()).await.expect_err("it may be of this key");
    assert!(matches!(&unknown, RemoteError::CouldNotAsk(why) if why.contains(&arn)), "{unknown}");
    testkit::poll("the belief", async || matches!(plugin.look_up(none.clone()).await, Err(RemoteError::Gone(_)))).await;

    // Its own handle: listed, and missing.
    cloud.set(|s| s.undescribed.insert(arn.clone(), "MISSING"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let seen = plugin.observe(std::slice::from_ref(&old)).await.expect("asked");
    assert!(seen[0].state == InstanceState::Unknown && seen[0].reason.contains(&arn), "{:?}", seen[0]);
    cloud.set(|s| s.tasks.clear());
    let seen = plugin.observe(&[old]).await.expect("asked");
    assert_eq!(seen[0].state, InstanceState::Gone, "no longer listed");
}

/// ECS lists by what is meant of a task. While one that was told to end runs on, nothing may begin beside it.
#[tokio::test]
async fn a_task_that_was_told_to_end_is_listed_until_it_has() {
    let cloud = Cloud::start();
    let plugin = cloud.plugin("5m").await;
    let made = plugin.ensure(start(1, "a", true, &[])).await.expect("made");
    let arn = made.observed.provider_id;
    cloud.set(|s| s.ending.insert(arn.clone()));
    for size in [100, 1] {
        let listed = list(&plugin, size).await;
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!((listed[0].key.as_str(), listed[0].observed.state), (KEY, InstanceState::Running));
    }
    // Ended and forgotten between a listing and a look: that leaves no listing incomplete.
    cloud.set(|s| (s.stopped.insert(arn.clone()), assert!(s.task(&arn).is_some())).1);
    assert!(list(&plugin, 100).await.is_empty());
    cloud.set(|s| s.undescribed.insert(arn.clone(), "MISSING"));
    assert_eq!(incomplete(&plugin).await, "");
    cloud.set(|s| s.undescribed.insert(arn.clone(), "SOMETHING_ELSE"));
    assert!(incomplete(&plugin).await.contains(&arn));
}

/// ECS has started two tasks for one key, against its word. The sweep names each to a person, who can end the one that
/// is not the record's.
#[tokio::test]
async fn a_second_task_of_a_key_is_listed_by_a_key_of_its_own_and_can_be_stopped() {
    let cloud = Cloud::start();
    let manager = cloud.plugin("5m").await;
    let made = manager.ensure(start(1, "a", true, &[])).await.expect("made");
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
