//! The poller over a provider that counts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;

use super::*;
use crate::remote::{Description, Ensure, Ensured};
use crate::remote_service::RemoteService;
use crate::schema::{self, Spec};
use crate::types::{PluginInfo, StopTask};
use driver_proto::remote::remote_driver_server::RemoteDriver as Wire;
use driver_proto::remote::{EnsureRequest, Handle, StopRequest};
use tonic::Request;

/// Everything runs until marked as ended.
#[derive(Default)]
struct Counting {
    calls: Mutex<Vec<(Instant2, Vec<u8>)>>,
    ended: Mutex<Vec<u8>>,
    created: Mutex<Vec<Instant2>>,
    asked: AtomicUsize,
    fails: AtomicBool,
    panics: AtomicBool,
    hangs: AtomicBool,
}

type Instant2 = tokio::time::Instant;

fn handle(n: u16) -> RemoteHandle {
    RemoteHandle { schema: 1, data: n.to_be_bytes().to_vec() }
}

#[async_trait]
impl RemoteDriver for Counting {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("counting", "1")
    }
    fn task_config_schema(&self) -> Spec {
        schema::object([("x", schema::string())])
    }
    fn describe(&self) -> Description {
        Description::default()
    }
    async fn ensure(&self, ensure: Ensure) -> Result<Ensured, RemoteError> {
        self.created.lock().expect("lock").push(Instant2::now());
        let observed = Observation { key: ensure.key, state: InstanceState::Running, ..Observation::default() };
        Ok(Ensured { handle: handle(1), observed, created: true })
    }
    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError> {
        self.asked.fetch_add(1, Relaxed);
        assert!(!self.panics.load(Relaxed), "asked to");
        if self.hangs.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.calls.lock().expect("lock").push((Instant2::now(), vec![u8::try_from(handles.len()).expect("a batch")]));
        if self.fails.load(Relaxed) {
            return Err(RemoteError::could_not_ask("throttled"));
        }
        let ended = self.ended.lock().expect("lock").clone();
        Ok(handles
            .iter()
            .map(|h| {
                let state = if ended.contains(&h.data[1]) { InstanceState::Exited } else { InstanceState::Running };
                Observation { key: format!("{:?}", h.data), state, ..Observation::default() }
            })
            .collect())
    }
    async fn stop(&self, _: &RemoteHandle, _: u64, _: StopTask) -> Result<Observation, RemoteError> {
        Ok(Observation { state: InstanceState::Gone, ..Observation::default() })
    }
    async fn acknowledge(&self, _: &RemoteHandle, _: u64) -> Result<(), RemoteError> {
        Err(RemoteError::wrong_request("not here"))
    }
}

fn observer() -> (Arc<Counting>, Arc<Observer>) {
    let driver = Arc::new(Counting::default());
    (driver.clone(), Arc::new(Observer::new(driver)))
}

fn watch(
    observer: &Arc<Observer>,
    handles: Vec<RemoteHandle>,
) -> (tokio::task::JoinHandle<Result<(), RemoteError>>, mpsc::Receiver<Observation>) {
    let (sink, seen) = mpsc::channel(16);
    let observer = observer.clone();
    (tokio::spawn(async move { observer.watch(handles, sink).await }), seen)
}

#[tokio::test(start_paused = true)]
async fn many_streams_and_calls_are_one_poller_within_the_rate() {
    let (driver, observer) = observer();
    let mut streams: Vec<_> =
        (0..12).map(|g| watch(&observer, (g * 256..(g + 1) * 256).map(handle).collect())).collect();
    for (_, seen) in &mut streams {
        for _ in 0..256 {
            seen.recv().await.expect("each is seen once");
        }
    }
    // 3072 instances need 31 calls; 5 calls a second are allowed, and a few at once in the beginning.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let calls = driver.asked.load(Relaxed);
    assert!((200..=350).contains(&calls), "{calls} calls in about 66 s");
    // One that ends is reported by its own stream, within a round.
    driver.ended.lock().expect("lock").push(7);
    let told = tokio::time::timeout(Duration::from_secs(8), streams[0].1.recv()).await.expect("a round").expect("told");
    assert_eq!((told.state, told.key), (InstanceState::Exited, "[0, 7]".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn questions_that_come_together_share_their_calls() {
    let (driver, observer) = observer();
    let asked: Vec<_> = (0..300).map(|n| observer.observe(vec![handle(n), handle(n)])).collect();
    let answers = futures::future::join_all(asked).await;
    assert!(answers.iter().all(|a| a.as_ref().is_ok_and(|seen| seen.len() == 2 && seen[0] == seen[1])));
    assert!(driver.asked.load(Relaxed) <= 6, "{} calls", driver.asked.load(Relaxed));
    assert_eq!(observer.observe(Vec::new()).await, Ok(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_opened_anew_costs_no_call() {
    let (driver, observer) = observer();
    let (task, mut seen) = watch(&observer, (0..50).map(handle).collect());
    for _ in 0..50 {
        seen.recv().await.expect("seen");
    }
    task.abort();
    drop(seen);
    let before = driver.asked.load(Relaxed);
    for n in 0..20 {
        let (task, mut seen) = watch(&observer, (0..50).map(handle).collect());
        for _ in 0..50 {
            seen.recv().await.unwrap_or_else(|| panic!("opening {n}"));
        }
        task.abort();
    }
    assert_eq!(driver.asked.load(Relaxed), before, "what is known was told again");
    // They have no watcher any more.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(driver.asked.load(Relaxed) <= before + 1, "and then nothing is asked");
}

#[tokio::test(start_paused = true)]
async fn failures_reach_those_who_ask_and_end_no_stream() {
    let (driver, observer) = observer();
    driver.fails.store(true, Relaxed);
    let (task, mut seen) = watch(&observer, vec![handle(1)]);
    assert_eq!(observer.observe(vec![handle(1)]).await, Err(RemoteError::could_not_ask("throttled")));
    tokio::time::sleep(Duration::from_secs(120)).await;
    let calls = driver.asked.load(Relaxed);
    assert!(calls < 60, "{calls} calls at a provider that does not answer");
    driver.fails.store(false, Relaxed);
    assert_eq!(seen.recv().await.map(|s| s.state), Some(InstanceState::Running));
    driver.panics.store(true, Relaxed);
    let error = observer.observe(vec![handle(1)]).await.expect_err("it panics");
    assert!(error.to_string().contains("the driver panicked: asked to"), "{error}");
    driver.panics.store(false, Relaxed);
    driver.hangs.store(true, Relaxed);
    let error = observer.observe(vec![handle(1)]).await.expect_err("no answer");
    assert!(error.to_string().contains("no answer within"), "{error}");
    driver.hangs.store(false, Relaxed);
    assert_eq!(seen.recv().await.map(|s| s.state), Some(InstanceState::Unknown), "nothing was answered for long");
    driver.ended.lock().expect("lock").push(1);
    assert_eq!(seen.recv().await.map(|s| s.state), Some(InstanceState::Exited));
    assert!(!task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn listings_have_their_turn() {
    let (_driver, observer) = observer();
    let (_task, _seen) = watch(&observer, (0..3000).map(handle).collect());
    tokio::time::sleep(Duration::from_secs(30)).await;
    let begun = Instant2::now();
    for n in 0..20 {
        assert_eq!(observer.in_turn(async { Ok(n) }).await, Ok(n));
    }
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(12), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_seen_is_unknown_when_nothing_is_answered_for_long_and_seen_again_with_the_first_answer() {
    let (driver, observer) = observer();
    let (_task, mut seen) = watch(&observer, (0..2).map(handle).collect());
    let mut next = async |state: InstanceState| {
        for _ in 0..2 {
            let told = seen.recv().await.expect("told");
            assert_eq!((told.state, told.key.is_empty()), (state, false), "{told:?}");
            assert!(state != InstanceState::Unknown || told.reason == "throttled", "{told:?}");
        }
        assert!(seen.try_recv().is_err(), "once");
    };
    next(InstanceState::Running).await;
    driver.fails.store(true, Relaxed);
    let begun = Instant2::now();
    next(InstanceState::Unknown).await;
    assert!(begun.elapsed() >= Duration::from_secs(10), "not for a moment: {:?}", begun.elapsed());
    tokio::time::sleep(Duration::from_secs(60)).await;
    driver.fails.store(false, Relaxed);
    next(InstanceState::Running).await;
}

async fn create(service: &RemoteService, n: usize) {
    let task = Some(driver_proto::driver::TaskConfig::default());
    let request = EnsureRequest { key: format!("key-{n}"), task, ..EnsureRequest::default() };
    assert!(Wire::ensure(service, Request::new(request)).await.is_ok_and(|made| made.into_inner().created));
}

/// The largest number of calls that began within a second.
fn within_a_second(mut calls: Vec<Instant2>) -> usize {
    calls.sort();
    (0..calls.len())
        .map(|i| calls[i..].iter().take_while(|at| **at - calls[i] < Duration::from_secs(1)).count())
        .max()
        .unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn creates_and_looks_share_the_rate_and_neither_starves_the_other() {
    let (driver, observer) = observer();
    let service = RemoteService::new(driver.clone(), observer.clone());
    // A look at 3000 instances takes 30 calls, at 5 a second: one is always due.
    let (_task, mut seen) = watch(&observer, (0..3000).map(handle).collect());
    let _reader = tokio::spawn(async move { while seen.recv().await.is_some() {} });
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (begun, looks) = (Instant2::now(), driver.asked.load(Relaxed));
    futures::future::join_all((0..100).map(|n| create(&service, n))).await;
    let (took, looks) = (begun.elapsed(), driver.asked.load(Relaxed) - looks);
    // Four of five calls create, the fifth looks.
    assert!(took >= Duration::from_secs(22) && took <= Duration::from_secs(28), "100 creates took {took:?}");
    assert!((22..=28).contains(&looks), "{looks} looks meanwhile");
    let mut all = driver.created.lock().expect("lock").clone();
    all.extend(driver.calls.lock().expect("lock").iter().map(|(at, _)| *at).filter(|at| *at >= begun));
    let most = within_a_second(all);
    assert!(most <= 9, "{most} calls within a second: 5, and what was saved up");
}

#[tokio::test(start_paused = true)]
async fn stops_wait_for_no_create_and_no_look() {
    let (driver, observer) = observer();
    let service = Arc::new(RemoteService::new(driver.clone(), observer.clone()));
    let (_task, mut seen) = watch(&observer, (0..3000).map(handle).collect());
    let _reader = tokio::spawn(async move { while seen.recv().await.is_some() {} });
    let creates: Vec<_> = (0..500)
        .map(|n| {
            let service = service.clone();
            tokio::spawn(async move { create(&service, n).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let made = || driver.created.lock().expect("lock").len();
    assert!((35..60).contains(&made()), "{} of 500 creates in ten seconds", made());
    let begun = Instant2::now();
    for _ in 0..50 {
        let handle = Some(Handle { schema: 1, data: vec![0, 1] });
        let stopped =
            Wire::stop(&*service, Request::new(StopRequest { handle, epoch: 1, ..StopRequest::default() })).await;
        assert!(stopped.is_ok());
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "no stop has waited");
    let (before, looks) = (made(), driver.asked.load(Relaxed));
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!((made(), driver.asked.load(Relaxed)), (before, looks), "what can wait makes room for them");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(made() >= before + 12 && driver.asked.load(Relaxed) >= looks + 3, "and is not held up by them for long");
    creates.into_iter().for_each(|c| c.abort());
}

#[tokio::test(start_paused = true)]
async fn a_create_that_is_given_up_while_it_waits_is_not_sent_and_takes_nobody_s_turn() {
    let (driver, observer) = observer();
    let service = Arc::new(RemoteService::new(driver.clone(), observer.clone()));
    let waiting: Vec<_> = (0..200)
        .map(|n| {
            let service = service.clone();
            tokio::spawn(async move { create(&service, n).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    waiting.into_iter().for_each(|w| w.abort());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = driver.created.lock().expect("lock").len();
    assert!(before < 20, "{before}");
    let begun = Instant2::now();
    create(&service, 999).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?} behind those that wait no more", begun.elapsed());
    assert_eq!(driver.created.lock().expect("lock").len(), before + 1);
}
