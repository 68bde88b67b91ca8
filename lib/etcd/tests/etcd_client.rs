//! The client against a fake that has etcd's semantics; `cargo xtask interop etcd` asks a real one.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use etcd::{Client, Error, Options, Reason, WatchError, ops, proto::event::Kind};
use etcd_fake::{FakeEtcd, Fault, Front};
use testkit::{Dir, PATIENCE, soon};
use tls::{Protocol, Service, ServiceFiles, ServiceSettings};

fn client(fake: &FakeEtcd) -> Client {
    with(Options { endpoints: vec![fake.endpoint()], ..Options::default() })
}

/// Its calls wait for a machine that is busy.
fn with(options: Options) -> Client {
    Client::new(&options).unwrap().with_deadline(PATIENCE)
}

#[tokio::test]
async fn keys_are_put_read_in_pages_and_deleted() {
    let fake = FakeEtcd::start();
    let client = client(&fake);
    for n in 0..100 {
        client.put(format!("a/{n:03}"), vec![b'x'; 100 * n], 0).await.unwrap();
    }
    client.put("b", "other", 0).await.unwrap();
    let (mut next, mut keys) = (Some(ops::prefix(b"a/")), Vec::new());
    let mut pages = 0;
    while next.is_some() {
        keys.extend(client.page(&mut next).await.unwrap().into_iter().map(|kv| String::from_utf8(kv.key).unwrap()));
        pages += 1;
        // A page shows the revision of the first one.
        client.put("a/500", "later", 0).await.unwrap();
    }
    assert_eq!(keys, (0..100).map(|n| format!("a/{n:03}")).collect::<Vec<_>>());
    assert!(pages > 1);
    assert_eq!(client.delete("a/", ops::end_of_prefix(b"a/")).await.unwrap().deleted, 101);
    assert_eq!(client.get("b").await.unwrap().unwrap().value, b"other");
}

#[tokio::test]
async fn one_of_two_rivals_wins_a_transaction() {
    let fake = FakeEtcd::start();
    let client = client(&fake);
    let take = |who: &str| ops::when(vec![ops::created_at("k", 0)], vec![ops::put("k", who, 0)], vec![]);
    assert!(client.txn(take("a")).await.unwrap().succeeded);
    assert!(!client.txn(take("b")).await.unwrap().succeeded);
    assert_eq!(client.get("k").await.unwrap().unwrap().value, b"a");
}

#[tokio::test]
async fn the_next_endpoint_answers_for_a_dead_one() {
    let fake = FakeEtcd::start();
    let dead = format!("http://127.0.0.1:{}", testkit::free_port());
    let client = with(Options { endpoints: vec![dead.clone(), fake.endpoint()], ..Options::default() });
    client.put("k", "v", 0).await.unwrap();
    let nobody = with(Options { endpoints: vec![dead.clone()], ..Options::default() });
    let error = nobody.put("k", "v", 0).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)) && error.to_string().contains(&dead), "{error}");
}

#[tokio::test]
async fn a_write_without_an_answer_is_not_sent_again() {
    let (fake, other) = (FakeEtcd::start(), FakeEtcd::start());
    let client = with(Options { endpoints: vec![fake.endpoint(), other.endpoint()], ..Options::default() });
    fake.fail(Fault::LoseAnswer, 1, "k");
    let lost = client.put("k", "1", 0).await.unwrap_err();
    assert!(matches!(lost, Error::Unanswered { .. }), "{lost}");
    assert!(other.keys("k").is_empty(), "nor elsewhere");
    assert_eq!(fake.keys("k"), [("k".to_owned(), b"1".to_vec())], "it happened");
    fake.set_frozen(true);
    let hasty = self::client(&fake).with_deadline(Duration::from_millis(300));
    let silent = hasty.put("k", "2", 0).await.unwrap_err();
    assert!(matches!(silent, Error::Unanswered { .. }), "{silent}");
}

#[tokio::test]
async fn a_member_that_ended_is_left() {
    let (one, two) = (FakeEtcd::start(), FakeEtcd::start());
    let client = with(Options { endpoints: vec![one.endpoint(), two.endpoint()], ..Options::default() });
    client.put("k", "1", 0).await.unwrap();
    drop(one);
    // Reads go on at once, with whatever that member knows.
    assert_eq!(client.get("k").await.unwrap(), None);
}

#[tokio::test]
async fn refusals_say_why() {
    let fake = FakeEtcd::start();
    let client = client(&fake);
    let large = client.put("k", vec![0; 1_600_000], 0).await.unwrap_err();
    assert_eq!(large.refused(), Some(Reason::TooLarge), "{large}");
    assert_eq!(client.put("k", "v", 77).await.unwrap_err().refused(), Some(Reason::NoLease));
    fake.set_no_space(true);
    assert_eq!(client.put("k", "v", 0).await.unwrap_err().refused(), Some(Reason::NoSpace));
    let alarm = client.alarms().await.unwrap()[0];
    client.disarm(&alarm).await.unwrap();
    client.put("k", "v", 0).await.unwrap();
    fake.set_corrupt(true);
    assert_eq!(client.put("k", "v", 0).await.unwrap_err().refused(), Some(Reason::Corrupt));
}

#[tokio::test]
async fn keys_end_with_their_lease() {
    let fake = FakeEtcd::start();
    let client = client(&fake);
    // On a busy machine one may end before it is kept.
    let lease = testkit::poll("a lease that is used in its time", async || {
        let lease = client.grant(Duration::from_secs(1)).await.unwrap();
        client.put("k", "v", lease).await.ok()?;
        let kept = client.keep(lease).await.unwrap()?;
        assert_eq!(kept, Duration::from_secs(2), "etcd's minimum");
        Some(lease)
    })
    .await;
    testkit::poll("the end of the lease", async || client.get("k").await.unwrap().is_none()).await;
    assert_eq!(client.keep(lease).await.unwrap(), None);
    client.revoke(lease).await.unwrap();
    let lease = client.grant(Duration::from_secs(60)).await.unwrap();
    client.put("k", "v", lease).await.unwrap();
    client.revoke(lease).await.unwrap();
    assert_eq!(client.get("k").await.unwrap(), None);
}

#[tokio::test]
async fn a_watch_tells_whole_revisions_in_order() {
    let fake = FakeEtcd::start();
    let client = client(&fake);
    client.put("a/1", "v", 0).await.unwrap();
    let mut watch = client.watch("a/", ops::end_of_prefix(b"a/"), 2).await.unwrap();
    let both = vec![ops::put("a/2", "v", 0), ops::delete("a/1"), ops::put("b", "v", 0)];
    client.txn(ops::when(vec![], both, vec![])).await.unwrap();
    let first = soon(watch.next()).await.unwrap();
    assert_eq!(first.events[0].kv.as_ref().unwrap().key, b"a/1");
    let second = soon(watch.next()).await.unwrap();
    let seen: Vec<_> = second.events.iter().map(|e| (e.kind(), e.kv.clone().unwrap().key)).collect();
    assert_eq!(seen, [(Kind::Put, b"a/2".to_vec()), (Kind::Delete, b"a/1".to_vec())]);
    fake.break_streams();
    assert!(matches!(soon(watch.next()).await, Err(WatchError::Ended(Error::Unanswered { .. }))));

    client.compact(3).await.unwrap();
    let mut late = client.watch("a/", "", 2).await.unwrap();
    assert!(matches!(soon(late.next()).await, Err(WatchError::Compacted(3))));
    let old = etcd::proto::RangeRequest { revision: 2, ..ops::key("a/1") };
    assert_eq!(client.range(old).await.unwrap_err().refused(), Some(Reason::Compacted));
}

#[tokio::test]
async fn a_token_is_renewed_when_it_has_ended() {
    let fake = FakeEtcd::start();
    fake.set_user("drover", "secret");
    let user = |password: &str| Options {
        endpoints: vec![fake.endpoint()],
        user: Some(("drover".to_owned(), password.to_owned())),
        tls: None,
    };
    let known = with(user("secret"));
    known.put("k", "1", 0).await.unwrap();
    fake.forget_tokens();
    known.put("k", "2", 0).await.unwrap();
    fake.forget_tokens();
    let mut watch = known.watch("k", "", 0).await.unwrap();
    known.put("k", "3", 0).await.unwrap();
    assert_eq!(soon(watch.next()).await.unwrap().events.len(), 1);
    let stranger = client(&fake).watch("k", "", 0).await;
    assert!(matches!(&stranger, Err(WatchError::Ended(Error::Refused { .. }))), "without a user: {:?}", stranger.err());
    assert!(!format!("{:?}{known:?}", user("secret")).contains("secret"), "passwords stay out of logs");
    let refused = with(user("wrong")).put("k", "3", 0).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    assert!(client(&fake).get("k").await.is_err(), "without a user");
}

#[tokio::test]
async fn members_tell_their_status() {
    let fake = FakeEtcd::start();
    let members = client(&fake).members_status().await.unwrap();
    assert_eq!(members.len(), 1);
    assert_eq!((members[0].member.id, members[0].status.as_ref().unwrap().leader), (1, 1));
}

#[test]
fn endpoints_are_read_or_refused_by_name() {
    let refused = |text: &str| {
        let options = Options { endpoints: vec![text.to_owned()], ..Options::default() };
        Client::new(&options).unwrap_err().to_string()
    };
    assert!(refused("https://etcd:2379").contains("TLS"));
    assert!(refused("ftp://etcd:2379").contains("http://"));
    assert!(refused("http://etcd:2379/v3").contains("/v3"));
    assert!(Client::new(&Options::default()).is_err());
    with(Options { endpoints: vec!["etcd:2379".into(), "http://[::1]:2379/".into()], ..Options::default() });
}

/// `turn_endpoint` sends calls elsewhere while one is under way; its answer comes later. False = it came earlier.
async fn an_answer_is_late(other_answers: bool) -> bool {
    let (late, other) = (FakeEtcd::start(), FakeEtcd::start());
    late.fail(Fault::Slow(Duration::from_secs(3)), 1, "late");
    let endpoints = vec![late.endpoint(), other.endpoint()];
    let client = with(Options { endpoints, ..Options::default() });
    let under_way = tokio::spawn({
        let client = client.clone();
        async move { client.put("late", "1", 0).await }
    });
    testkit::eventually("the call", || late.faults_left() == 0).await;
    client.turn_endpoint();
    if other_answers {
        client.put("meanwhile", "1", 0).await.unwrap();
    } else {
        other.set_frozen(true);
    }
    if under_way.is_finished() {
        return false;
    }
    assert_eq!(other.keys("meanwhile").len(), usize::from(other_answers), "it was sent elsewhere");
    under_way.await.unwrap().unwrap();
    soon(client.put("next", "1", 0)).await.unwrap();
    assert_eq!((late.keys("next").len(), other.keys("next").len()), if other_answers { (0, 1) } else { (1, 0) });
    true
}

#[tokio::test]
async fn a_late_answer_takes_calls_back_only_from_an_endpoint_that_does_not_answer() {
    for other_answers in [true, false] {
        testkit::poll("an answer that is late", async || an_answer_is_late(other_answers).await).await;
    }
}

/// An authority and two certificates of it, `a` and `b`.
fn certificates(dir: &Path) {
    use tls::issue::{Authority, Leaf, authority, leaf, write_new};
    let now = SystemTime::now();
    let made = |name: &str, pair: tls::issue::Pair| {
        write_new(&dir.join(name), &pair.certificate, false).unwrap();
        write_new(&dir.join(format!("{name}-key")), &pair.key, true).unwrap();
    };
    made("ca", authority(&Authority { days: 10, ..Authority::default() }, now).unwrap());
    for name in ["a", "b"] {
        let of = Leaf { name: name.into(), days: 9, ip_addresses: vec![[127, 0, 0, 1].into()], dns_names: vec![] };
        made(name, leaf(&of, &dir.join("ca"), &dir.join("ca-key"), now).unwrap());
    }
}

#[tokio::test]
async fn new_connections_show_the_certificate_that_was_taken_over_last() {
    let (fake, dir) = (FakeEtcd::start(), Dir::new("etcd"));
    certificates(dir.path());
    let at = |name: &str| dir.path().join(name);
    let settings = tls::Settings {
        rpc: true,
        ca_file: at("ca"),
        cert_file: at("a"),
        key_file: at("a-key"),
        ..tls::Settings::default()
    };
    let front = Front::before(&fake, tls::Agent::load(&settings, SystemTime::now()).unwrap());
    let service = |name: &str| {
        let files = ServiceFiles { ca_file: at("ca"), cert_file: at(name), key_file: at(&format!("{name}-key")) };
        let names = ServiceSettings { ca: "ca", cert: "cert", key: "key" };
        Service::load(&files, names, Protocol::Http2).unwrap()
    };
    let in_use = service("a");
    let tls = Some(in_use.dialer());
    let client = with(Options { endpoints: vec![front.endpoint()], tls, ..Options::default() });
    client.put("k", "1", 0).await.unwrap();
    let mut watch = client.watch("k", "", 0).await.unwrap();
    in_use.take_over(&service("b"));
    client.put("k", "2", 0).await.unwrap();
    assert_eq!(soon(watch.next()).await.unwrap().events.len(), 1, "the stream goes on");
    let first = front.shown();
    assert_eq!((first.len(), front.standing()), (1, 1), "so does the connection");
    front.cut();
    testkit::eventually("the end of the connection", || front.standing() == 0).await;
    // A call on a connection that breaks has no answer; the one after it makes a new connection.
    testkit::poll("an answer", async || client.get("k").await.is_ok()).await;
    let shown = front.shown();
    assert!(shown.len() > 1 && shown.last() != first.last(), "another certificate");
}
