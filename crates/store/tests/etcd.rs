//! The shared store against a fake etcd that loses answers, freezes and forgets; `cargo xtask interop etcd`
//! does the same to a real one.

mod etcd_kit;
mod suite;

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use etcd_fake::{FakeEtcd, Fault};
use store::{Batch, EtcdOptions, EtcdStore, Fence, Member, Offline, SILENT, Store, StoreError, Versions};
use testkit::{PATIENCE, Wire, until};

use crate::{
    etcd_kit::{Raw, block_on, member, open, options, take_over, until_seen},
    suite::{Answer, a_pair_shares_a_transaction, commit, content, delete, hold, map, put, submit, suite},
};

fn large(letter: &str, bytes: usize) -> String {
    letter.repeat(bytes)
}

#[test]
fn etcd_keeps_the_contract() {
    let fake = FakeEtcd::start();
    suite(&open(&fake, "a"));
}

#[test]
fn everything_is_there_after_a_restart() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    commit(&store, fence, 0, 1, vec![put("a", "1")]).unwrap();
    // Queued without waiting: a close commits it.
    let last = submit(&store, fence, 1, 2, vec![put("b", "2")]);
    drop(store);
    last.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(fake.keys("d/fence").is_empty() && fake.keys("d/member/").is_empty(), "a clean stop gives them back");
    let store = open(&fake, "b");
    assert_eq!(content(&store), (2, map([("a", "1"), ("b", "2")])));
    assert!(store.acquire().unwrap() > fence, "fences grow over restarts");
}

#[test]
fn a_lost_answer_is_no_refusal() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    fake.fail(Fault::LoseAnswer, 2, "d/log/");
    commit(&store, fence, 0, 1, vec![put("a", "1")]).unwrap();
    commit(&store, fence, 1, 2, vec![put("a", "2")]).unwrap();
    assert_eq!((fake.faults_left(), content(&store)), (0, (2, map([("a", "2")]))));
}

#[test]
fn a_lost_request_is_sent_again() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    fake.fail(Fault::LoseRequest, 3, "d/log/");
    commit(&store, fence, 0, 1, vec![put("a", "1")]).unwrap();
    assert_eq!((fake.faults_left(), content(&store)), (0, (1, map([("a", "1")]))));
}

#[test]
fn a_late_transaction_and_its_repetition_count_once() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    for (n, late) in [0, 5, 30, 100, 300].into_iter().enumerate() {
        fake.fail(Fault::Late(Duration::from_millis(late)), 1, "d/log/");
        let base = n as u64 * 2;
        commit(&store, fence, base, base + 1, vec![put("a", &n.to_string())]).unwrap();
        commit(&store, fence, base + 1, base + 2, vec![put("b", &n.to_string())]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(content(&store), (10, map([("a", "4"), ("b", "4")])));
}

#[test]
fn a_batch_in_doubt_was_committed_although_another_leads_by_now() {
    let fake = FakeEtcd::start();
    let (a, b) = (open(&fake, "a"), open(&fake, "b"));
    let fence = a.acquire().unwrap();
    commit(&a, fence, 0, 1, vec![put("a", "1")]).unwrap();
    // The answer is lost; before the leader can ask, its fence is gone.
    fake.fail(Fault::LoseAnswer, 1, "d/log/");
    fake.fail(Fault::Late(Duration::from_secs(60)), 1000, "d/log/0000000000000002");
    let doubtful = submit(&a, fence, 1, 2, vec![put("a", "2")]);
    until("the batch", || !fake.keys("d/log/0000000000000002").is_empty());
    fake.delete("d/fence");
    block_on(b.vacant()).unwrap();
    let newer = b.acquire().unwrap();
    let led_by_b = clock::boot_now();
    commit(&b, newer, 2, 3, vec![put("a", "3")]).unwrap();
    assert!(doubtful.try_recv().is_err(), "nothing was known yet");
    fake.mend();
    doubtful.recv_timeout(PATIENCE).unwrap().unwrap();
    // Its clients would read what is older than what they have read from the other one.
    let held = *a.checked().borrow();
    assert!(held < Some(led_by_b), "a fence that is gone was found to hold at {held:?}, another led at {led_by_b:?}");
    let refused = commit(&a, fence, 2, 3, vec![put("a", "old")]);
    assert!(matches!(refused, Err(StoreError::Fenced { .. })), "{refused:?}");
    assert_eq!(content(&a), (3, map([("a", "3")])));
}

#[test]
fn a_group_keeps_the_limits_of_a_transaction() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    let (go, first) = hold(&store, fence, 0);
    let row = |i: u64| put(&i.to_string(), &large("x", [10, 20_000, 700_000][(i / 300 + i / 390) as usize]));
    let rest: Vec<Answer> = (1..400).map(|i| submit(&store, fence, i, i + 1, vec![row(i)])).collect();
    go.send(()).unwrap();
    first.recv_timeout(PATIENCE).unwrap().unwrap();
    for answer in rest {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    let (seen, stats) = (fake.seen(), store.stats());
    assert!(seen.operations <= 128 && seen.operations > 100, "{seen:?}");
    assert!(seen.bytes <= 1_200_000 && seen.bytes > 900_000, "{seen:?}");
    assert_eq!(stats.batches, 400);
    assert!(stats.transactions < 30, "{stats:?}");
    assert_eq!(store.load().unwrap().rows.len(), 400);
}

#[test]
fn a_batch_waits_for_the_one_that_follows_it() {
    let fake = FakeEtcd::start();
    a_pair_shares_a_transaction(&open(&fake, "a"), Duration::from_millis(2));
}

#[test]
fn large_rows_go_in_pieces() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    let follower = open(&fake, "b");
    let text = large("é", 3_000_000);
    commit(&store, fence, 0, 1, vec![put("small", "1"), put("large", &text)]).unwrap();
    commit(&store, fence, 1, 2, vec![delete("small")]).unwrap();
    assert!(fake.keys("d/part/").len() >= 5);
    assert_eq!(content(&store), (2, map([("large", &text)])));
    assert_eq!(content(&follower), (2, map([("large", &text)])));
    // What has no room in a watcher's ring does not end it.
    let mut watch = follower.watch(2).unwrap();
    let fair = large("z", 100_000);
    commit(&store, fence, 2, 3, (0..2).map(|n| put(&format!("fair{n}"), &fair)).collect()).unwrap();
    assert_eq!(block_on(watch.next()).unwrap().rows[1], put("fair1", &fair));
    // Pieces of a batch that was never committed are deleted at the next take-over.
    drop(store);
    let raw = Raw::new(&fake);
    let orphan = format!("d/part/{:016x}/{:016x}/{:016x}/{:016x}", 1, 9, 7, 0);
    raw.put(&orphan, "x");
    follower.acquire().unwrap();
    assert!(fake.keys(&orphan).is_empty());
    assert_eq!(content(&follower).1.len(), 3);
}

#[test]
fn one_of_two_rivals_wins_and_the_other_follows() {
    let fake = FakeEtcd::start();
    let stores: Vec<_> = ["a", "b", "c"].iter().map(|name| Arc::new(open(&fake, name))).collect();
    // Before anybody tries: once one leads, nobody sees a vacancy any more.
    stores.iter().for_each(|store| block_on(store.vacant()).unwrap());
    let tries: Vec<_> = stores.iter().cloned().map(|store| std::thread::spawn(move || store.acquire())).collect();
    let results: Vec<_> = tries.into_iter().map(|one| one.join().unwrap()).collect();
    let winners: Vec<_> = results.iter().enumerate().filter(|(_, result)| result.is_ok()).collect();
    assert_eq!(winners.len(), 1, "{results:?}");
    let leader = &stores[winners[0].0];
    let fence = *winners[0].1.as_ref().unwrap();
    for (store, result) in stores.iter().zip(&results) {
        let name = ["a", "b", "c"][winners[0].0];
        if let Err(error) = result {
            assert!(matches!(error, StoreError::Held { leader } if &**leader == name), "{error}");
            assert!(!error.fatal());
        }
        let mut known = store.leader();
        let known = block_on(known.wait_for(Option::is_some)).unwrap().clone();
        assert_eq!(known, Some(member(name)));
        until("all members", || store.members().len() == 3);
    }
    // A leader that lives is not replaced, also if it commits nothing.
    let other = stores.iter().find(|store| !Arc::ptr_eq(store, leader)).unwrap();
    let mut watch = other.watch(0).unwrap();
    std::thread::sleep(SILENT * 2);
    assert!(matches!(other.acquire(), Err(StoreError::Held { .. })));
    commit(&**leader, fence, 0, 1, vec![put("a", "1")]).unwrap();
    assert_eq!(block_on(watch.next()).unwrap().rows, [put("a", "1")]);
    assert!(leader.checked().borrow().is_some());

    // It stops: the others see it at once, and one goes on from its end.
    leader.close();
    block_on(other.vacant()).unwrap();
    let newer = other.acquire().unwrap();
    assert!(newer > fence);
    commit(&**other, newer, 1, 2, vec![put("b", "2")]).unwrap();
    assert_eq!(content(&**other), (2, map([("a", "1"), ("b", "2")])));
}

#[test]
fn a_fenced_writer_is_told_without_a_commit() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    assert_eq!(*store.fenced().borrow(), None);
    // The watch says nothing: the next beat does.
    fake.silence_watches();
    fake.delete("d/fence");
    let begun = Instant::now();
    let mut fenced = store.fenced();
    block_on(fenced.wait_for(Option::is_some)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "bounded by beats, not by the lease");
    let refused = commit(&store, fence, 0, 1, vec![put("a", "1")]);
    assert!(matches!(refused, Err(StoreError::Fenced { .. })), "{refused:?}");
    assert_eq!(content(&store).0, 0);
    let newer = store.acquire().unwrap();
    assert_eq!(*store.fenced().borrow(), None);
    commit(&store, newer, 0, 1, vec![put("a", "1")]).unwrap();
}

#[test]
fn who_has_won_and_cannot_go_on_lets_go() {
    let fake = FakeEtcd::start();
    // So long that no fence ends by itself here.
    let a = EtcdStore::open(EtcdOptions { lease: Duration::from_secs(3600), ..options(&fake, "a") }).unwrap();
    until("its registration, which has a lease", || !fake.keys("d/member/").is_empty());
    let raw = Raw::new(&fake);
    let tip = raw.get("d/tip");
    // Not earlier: who reads it before it takes over does not begin to.
    fake.put_before_grant("d/tip", "rubbish");
    fake.fail(Fault::Slow(Duration::ZERO), 1, "d/fence");
    let refused = a.acquire();
    assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{refused:?}");
    assert_eq!(fake.faults_left(), 0, "it has taken the fence");
    until("the end of its fence", || fake.keys("d/fence").is_empty());
    raw.put("d/tip", tip);
    // Whoever has read the rubbish is of no use any more.
    let b = open(&fake, "b");
    block_on(b.vacant()).unwrap();
    b.acquire().unwrap();
}

#[test]
fn a_silent_leader_is_replaced_only_while_etcd_answers() {
    let fake = FakeEtcd::start();
    let (a, b) = (open(&fake, "a"), open(&fake, "b"));
    let fence = a.acquire().unwrap();
    commit(&a, fence, 0, 1, vec![put("a", "1")]).unwrap();
    let mut leader = b.leader();
    block_on(leader.wait_for(Option::is_some)).unwrap();
    fake.set_frozen(true);
    std::thread::sleep(SILENT + Duration::from_secs(2));
    assert!(block_on(async { tokio::time::timeout(Duration::from_millis(1), b.vacant()).await }).is_err());
    // When etcd is back, the leader gets its time.
    // Those that waited meanwhile are lost, and those of the next moment.
    fake.fail(Fault::LoseRequest, 1_000_000, "d/beat");
    fake.set_frozen(false);
    let soon_vacant = async { tokio::time::timeout(Duration::from_millis(400), b.vacant()).await };
    assert!(block_on(soon_vacant).is_err(), "the silence of an outage counts against nobody");
    fake.mend();
    std::thread::sleep(SILENT);
    assert!(matches!(b.acquire(), Err(StoreError::Held { .. })), "the leader had no chance to show that it lives");
    // Its beats and commits do not arrive any more.
    fake.fail(Fault::Late(Duration::from_secs(60)), 1_000_000, "d/beat");
    let newer = take_over(&b).unwrap();
    commit(&b, newer, 1, 2, vec![put("a", "2")]).unwrap();
    let mut fenced = a.fenced();
    assert!(block_on(fenced.wait_for(Option::is_some)).unwrap().is_some_and(|newest| newest > fence.0));
    assert!(matches!(commit(&a, fence, 1, 2, vec![put("a", "old")]), Err(StoreError::Fenced { .. })));
}

#[test]
fn a_sign_that_has_come_to_etcd_meanwhile_prevents_a_take_over() {
    for sign in ["d/beat", "d/tip"] {
        let fake = FakeEtcd::start();
        let (a, b) = (open(&fake, "a"), open(&fake, "b"));
        let fence = a.acquire().unwrap();
        commit(&a, fence, 0, 1, vec![put("a", "1")]).unwrap();
        until_seen(&b, 1);
        let tip = Raw::new(&fake).get("d/tip");
        fake.fail(Fault::Late(Duration::from_secs(60)), 1_000_000, "d/beat");
        block_on(b.vacant()).unwrap();
        // It counts for the leader's reads, and this follower has looked before it.
        fake.put_before_grant(sign, if sign == "d/tip" { tip } else { b"x".to_vec() });
        let lost = b.acquire();
        assert!(matches!(lost, Err(StoreError::Held { .. })), "{sign} is newer than what was seen: {lost:?}");
        fake.mend();
        commit(&a, fence, 1, 2, vec![put("a", "2")]).unwrap();
    }
}

#[test]
fn a_fence_that_is_lost_or_given_back_confirms_nothing() {
    let fake = FakeEtcd::start();
    let (a, b) = (open(&fake, "a"), open(&fake, "b"));
    for way in ["lost", "given back"] {
        let store = if way == "lost" { &a } else { &b };
        block_on(store.vacant()).unwrap();
        store.acquire().unwrap();
        let checked = store.checked();
        until("a check", || checked.borrow().is_some());
        if way == "lost" {
            fake.delete("d/fence");
            block_on(store.fenced().wait_for(Option::is_some)).unwrap();
        } else {
            store.close();
        }
        assert_eq!((*checked.borrow(), store.confirmed()), (None, Some(Duration::ZERO)), "{way}");
        assert!(store.heard().borrow().is_some(), "until then nothing was missing");
    }
}

#[test]
fn an_idle_leader_goes_on_leading_while_etcd_is_slow() {
    let fake = FakeEtcd::start();
    let (a, b) = (open(&fake, "a"), open(&fake, "b"));
    let fence = a.acquire().unwrap();
    let (mut leader, checked) = (b.leader(), a.checked());
    block_on(leader.wait_for(Option::is_some)).unwrap();
    fake.delay(Duration::from_millis(700));
    for _ in 0..4 {
        let slow = clock::boot_now();
        until("a check that was sent since", || *checked.borrow() > Some(slow));
    }
    // What was asked before the others could take over is answered within the same time.
    let vacant = async { tokio::time::timeout(SILENT * 2, b.vacant()).await };
    assert!(block_on(vacant).is_err(), "it is not taken for dead");
    assert!(a.fenced().borrow().is_none());
    commit(&a, fence, 0, 1, vec![put("a", "1")]).unwrap();
}

#[test]
fn a_late_answer_confirms_no_fence_that_is_lost() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    store.acquire().unwrap();
    let (late, checked) = (Duration::from_millis(1500), store.checked());
    fake.fail(Fault::Slow(late), 1, "d/beat");
    until("a beat", || fake.faults_left() == 0);
    fake.delete("d/fence");
    block_on(store.fenced().wait_for(Option::is_some)).unwrap();
    let end = Instant::now() + late * 2;
    while Instant::now() < end {
        assert_eq!(*checked.borrow(), None, "it held when the beat was sent, and does no more");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_large_batch_that_loses_the_fence_midway_says_so() {
    let fake = Arc::new(FakeEtcd::start());
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    // Nothing but the writer finds it out at once.
    fake.silence_watches();
    let (etcd, fenced, (tx, answer)) = (fake.clone(), store.fenced(), mpsc::channel());
    let rows = Box::new(move |_| {
        etcd.delete("d/fence");
        vec![put("large", &large("x", 3_000_000))]
    });
    let done = Box::new(move |result| drop(tx.send((result, *fenced.borrow()))));
    store.submit(Batch { fence, base: 0, index: 1, rows, more: false }, done);
    let (result, known) = answer.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(result, Err(StoreError::Fenced { ours, .. }) if ours == fence.0), "{result:?}");
    assert!(
        known.is_some_and(|newest| newest > fence.0),
        "whoever hears of it knows that the fence is lost: {known:?}"
    );
    assert!(fake.keys("d/log/").is_empty());
}

/// Whether the others take the leader for dead.
fn is_taken_for_dead_when_its_member_hangs() -> bool {
    let fake = FakeEtcd::start();
    let beside = fake.beside();
    let endpoints = vec![beside.endpoint(), fake.endpoint()];
    let a = EtcdStore::open(EtcdOptions { endpoints, ..options(&fake, "a") }).unwrap();
    let b = open(&fake, "b");
    let fence = a.acquire().unwrap();
    let mut leader = b.leader();
    block_on(leader.wait_for(Option::is_some)).unwrap();
    beside.set_frozen(true);
    let vacant = block_on(async { tokio::time::timeout(SILENT * 2, b.vacant()).await });
    assert!(a.fenced().borrow().is_none());
    commit(&a, fence, 0, 1, vec![put("a", "1")]).unwrap();
    assert!(a.fenced().borrow().is_none());
    assert_eq!(content(&b), (1, map([("a", "1")])));
    vacant.is_ok()
}

#[test]
fn a_leader_whose_member_of_etcd_hangs_goes_on_at_another() {
    // A machine that stands still for a moment takes a leader's time to say that it lives; hardly twice in a row.
    assert!(!is_taken_for_dead_when_its_member_hangs() || !is_taken_for_dead_when_its_member_hangs());
}

/// Whether the others take a leader for dead whose connections to three members fall silent in one moment; also true
/// where it did not keep these connections until then.
fn is_taken_for_dead_when_its_connections_die() -> bool {
    let fake = FakeEtcd::start();
    let members = [(); 3].map(|()| fake.beside());
    let wires = members.each_ref().map(|member| Wire::to(member.endpoint().replace("http://", "")));
    let endpoints = wires.iter().map(|wire| format!("http://{}", wire.at())).collect();
    let a = EtcdStore::open(EtcdOptions { endpoints, ..options(&fake, "a") }).unwrap();
    let b = open(&fake, "b");
    a.acquire().unwrap();
    let mut leader = b.leader();
    block_on(leader.wait_for(Option::is_some)).unwrap();
    // It gets a connection to each, because the one before does not answer for a moment.
    for (late, next) in [(0, 1), (1, 2)] {
        members[late].set_frozen(true);
        until("a connection to the next member", || (wires[next].connections() > 0).then_some(()));
        // Then a late answer does not take the leader back. Much later it would leave the connection that is silent.
        let before = fake.seen().txns;
        until("a beat that the next member answers", || (fake.seen().txns > before).then_some(()));
        members[late].set_frozen(false);
    }
    if wires.iter().any(|wire| wire.connections() == 0) {
        return true;
    }
    wires.iter().for_each(Wire::silence);
    let vacant = block_on(async { tokio::time::timeout(SILENT * 2, b.vacant()).await });
    assert!(a.fenced().borrow().is_none());
    vacant.is_ok()
}

#[test]
fn a_leader_whose_connections_die_goes_on_over_new_ones() {
    // As above: a machine that stands still is to blame once, hardly twice in a row.
    assert!(!is_taken_for_dead_when_its_connections_die() || !is_taken_for_dead_when_its_connections_die());
}

#[test]
fn a_follower_whose_streams_break_misses_nothing() {
    let fake = FakeEtcd::start();
    let (a, b) = (open(&fake, "a"), open(&fake, "b"));
    let fence = a.acquire().unwrap();
    let mut watch = b.watch(0).unwrap();
    for index in 1..=60 {
        commit(&a, fence, index - 1, index, vec![put("n", &index.to_string())]).unwrap();
        if index % 10 == 0 {
            fake.break_streams();
        }
    }
    for index in 1..=60 {
        assert_eq!(block_on(watch.next()).unwrap().index, index);
    }
}

#[test]
fn a_follower_gets_every_batch_in_order_however_slow_it_is() {
    let fake = FakeEtcd::start();
    let (a, b) = (open(&fake, "a"), open(&fake, "b"));
    let fence = a.acquire().unwrap();
    let mut follows = b.follow(0).unwrap();
    let text = large("z", 700_000);
    let rows = |index: u64| match index % 300 {
        // More than watchers without patience find again.
        0 => vec![put("large-1", &text), put("large-2", &text)],
        _ => vec![put("n", &index.to_string())],
    };
    for index in 1..=900 {
        commit(&a, fence, index - 1, index, rows(index)).unwrap();
        match index {
            200 | 400 => fake.break_streams(),
            600 => {
                fake.set_frozen(true);
                std::thread::sleep(Duration::from_millis(1200));
                fake.set_frozen(false);
            }
            _ => {}
        }
    }
    let mut newest = b.watch(899).unwrap();
    assert_eq!(block_on(newest.next()).unwrap().index, 900, "it is all there before the follower takes anything");
    for index in 1..=900 {
        let batch = block_on(follows.next()).unwrap();
        assert_eq!((batch.index, &batch.rows), (index, &rows(index)));
    }
    assert!(follows.ready().unwrap().is_empty());
    commit(&a, fence, 900, 901, rows(901)).unwrap();
    assert_eq!(block_on(follows.next()).unwrap().index, 901);
}

#[test]
fn a_follower_that_missed_what_a_snapshot_replaced_is_told_to_load_again() {
    let fake = FakeEtcd::start();
    let own = fake.beside();
    let a = open(&fake, "a");
    let b = EtcdStore::open(EtcdOptions { endpoints: vec![own.endpoint()], ..options(&fake, "b") }).unwrap();
    let fence = a.acquire().unwrap();
    let mut follows = b.follow(0).unwrap();
    commit(&a, fence, 0, 1, vec![put("a", "1")]).unwrap();
    assert_eq!(block_on(follows.next()).unwrap().index, 1);
    own.set_frozen(true);
    fake.break_streams();
    let answers: Vec<Answer> =
        (1..6000).map(|i| submit(&a, fence, i, i + 1, vec![put(&format!("k{}", i % 500), &i.to_string())])).collect();
    for answer in answers {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    until("the end of old batches", || fake.keys("d/snap-head").len() == 1 && fake.keys("d/log/").len() < 5000);
    own.set_frozen(false);
    let told = block_on(follows.next());
    assert!(matches!(told, Err(StoreError::Compacted { asked: 1, .. })), "{told:?}");
    assert_eq!((content(&b), content(&b).0), (content(&a), 6000));
    let mut follows = b.follow(6000).unwrap();
    commit(&a, fence, 6000, 6001, vec![put("a", "2")]).unwrap();
    assert_eq!(block_on(follows.next()).unwrap().index, 6001);
}

#[test]
fn a_follower_knows_until_when_it_has_everything() {
    let fake = FakeEtcd::start();
    let (a, b) = (open(&fake, "a"), open(&fake, "b"));
    let fence = a.acquire().unwrap();
    let heard = b.heard();
    let first = until("a sign of the leader", || *heard.borrow());
    let later = until("a beat of it", || heard.borrow().filter(|later| *later > first));
    assert!(later <= clock::boot_now());
    commit(&a, fence, 0, 1, vec![put("a", "1")]).unwrap();
    fake.set_frozen(true);
    // What was on its way has come once nothing comes for a while.
    let last = until("the last sign", || {
        let last = *heard.borrow();
        std::thread::sleep(Duration::from_millis(300));
        Some(last).filter(|last| *heard.borrow() == *last)
    });
    std::thread::sleep(SILENT);
    assert_eq!(*heard.borrow(), last, "nothing was heard");
    fake.set_frozen(false);
    until("the leader again", || heard.borrow().filter(|heard| Some(*heard) > last));
}

#[test]
fn a_snapshot_replaces_old_batches_and_everything_stays_readable() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    let text = large("y", 700_000);
    commit(&store, fence, 0, 1, vec![put("large-1", &text), put("large-2", &text)]).unwrap();
    let answers: Vec<Answer> = (1..6000)
        .map(|i| submit(&store, fence, i, i + 1, vec![put(&format!("k{}", i % 500), &i.to_string())]))
        .collect();
    for answer in answers {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    until("the snapshot", || fake.keys("d/snap-head").len() == 1 && fake.keys("d/log/").len() < 5000);
    until("the compaction", || fake.seen().compactions > 0);
    assert!(fake.keys("d/part/").is_empty(), "the pieces of a batch go with it");
    assert!(fake.keys("d/snap/").len() >= 2, "in pieces");
    let before = content(&store);
    assert_eq!((before.0, before.1.len()), (6000, 502));
    assert_eq!(content(&open(&fake, "b")), before);
    // A second snapshot replaces the first one.
    let answers: Vec<Answer> = (6000..12000).map(|i| submit(&store, fence, i, i + 1, vec![put("k", "v")])).collect();
    for answer in answers {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    until("the second snapshot", || fake.keys("d/log/").len() < 6000);
    drop(store);
    let store = open(&fake, "b");
    store.acquire().unwrap();
    assert_eq!((content(&store).0, content(&store).1.len()), (12000, 503));
}

#[test]
fn a_snapshot_whose_head_was_not_answered_is_gone_on_with() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    fake.fail(Fault::LoseAnswer, 1, "d/snap-head");
    fake.fail(Fault::LoseRequest, 1_000_000, "d/snap-head");
    let answers: Vec<Answer> = (0..4096).map(|i| submit(&store, fence, i, i + 1, vec![put("k", "v")])).collect();
    for answer in answers {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    until("the head", || !fake.keys("d/snap-head").is_empty());
    // Nothing is committed from here on, and the next attempt finds the snapshot at the same index.
    until("the end of old batches", || fake.keys("d/log/").len() < 2000);
    until("the compaction", || fake.seen().compactions > 0);
    assert!(fake.faults_left() > 0, "no second head was written");
    assert_eq!(content(&store), (4096, map([("k", "v")])));
}

#[test]
fn damage_and_other_releases_are_named() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    commit(&store, fence, 0, 1, vec![put("a", "1")]).unwrap();
    commit(&store, fence, 1, 2, vec![put("a", "2")]).unwrap();
    let raw = Raw::new(&fake);
    let at = |index: u64| format!("d/log/{index:016x}");
    let good = raw.get(&at(1));
    let mut bad = good.clone();
    bad[40] ^= 1;
    raw.put(&at(1), bad);
    assert!(matches!(store.load(), Err(StoreError::Damaged { .. })));
    fake.delete(&at(1));
    assert!(matches!(store.load(), Err(StoreError::Damaged { what, .. }) if what.contains("missing")));
    raw.put(&at(1), good);
    assert_eq!(content(&store).0, 2);
    drop(store);
    let meta = String::from_utf8(raw.get("d/meta")).unwrap();
    raw.put("d/meta", meta.replace("\"schema\":1", "\"schema\":99"));
    let refused = EtcdStore::open(options(&fake, "a"));
    assert!(matches!(refused, Err(StoreError::Format { in_use: 99, .. })), "{refused:?}");
}

#[test]
fn an_etcd_that_is_not_there_is_named() {
    let endpoint = format!("http://127.0.0.1:{}", testkit::free_port());
    let refused = EtcdStore::open(EtcdOptions { endpoints: vec![endpoint.clone()], ..EtcdOptions::default() });
    let error = refused.unwrap_err();
    assert!(error.to_string().contains(&endpoint) && !error.fatal(), "{error}");
}

#[test]
fn a_close_ends_although_etcd_does_not_answer() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    fake.set_frozen(true);
    let answer = submit(&store, fence, 0, 1, vec![put("a", "1")]);
    let begun = Instant::now();
    store.close();
    assert!(begun.elapsed() < PATIENCE);
    assert!(answer.recv_timeout(PATIENCE).unwrap().is_err());
}

#[test]
fn members_and_addresses_are_told() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    until("the registration", || store.members() == [member("a")]);
    store.set_member(Member { rpc: "elsewhere:4647".into(), ..member("a") });
    until("the new address", || store.members().iter().any(|member| member.rpc == "elsewhere:4647"));
    let peers = until("the status of etcd's member", || match store.peers() {
        Ok(peers) if peers.iter().all(|peer| peer.error.is_none()) => Ok(peers),
        late => Err(late),
    });
    assert_eq!((peers.len(), peers[0].leader), (1, true));
}

const OLD: Versions = Versions { lowest: 1, highest: 1 };
const NEW: Versions = Versions { lowest: 1, highest: 2 };

/// A server of a release that reads these formats.
fn release(fake: &FakeEtcd, name: &str, formats: Versions) -> Result<EtcdStore, StoreError> {
    let version = format!("0.{}.0", formats.highest);
    let member = Member { formats, version, ..member(name) };
    EtcdStore::open(EtcdOptions { member, settle: Duration::from_millis(1), ..options(fake, name) })
}

/// Commits a row that says in which format it was written.
fn write(store: &EtcdStore, fence: Fence, base: u64) {
    let (tx, rx) = mpsc::channel();
    let rows = Box::new(|format| vec![put("row", &format!("format {format}"))]);
    store.submit(
        Batch { fence, base, index: base + 1, rows, more: false },
        Box::new(move |result| drop(tx.send(result))),
    );
    rx.recv_timeout(PATIENCE).unwrap().unwrap();
}

/// The format of the next batch, as this server sees it.
fn next_format(watch: &mut store::Watch) -> Option<String> {
    let batch = block_on(watch.next()).unwrap();
    batch.rows[0].value.as_ref().map(|value| String::from_utf8_lossy(value).into_owned())
}

fn all_are_listed<const N: usize>(stores: [&EtcdStore; N]) {
    until("all to be listed everywhere", || stores.iter().all(|store| store.members().len() == N));
    // Long enough for many looks of a leader at the list.
    std::thread::sleep(Duration::from_millis(400));
}

#[test]
fn an_older_server_reads_all_that_a_newer_one_writes_beside_it() {
    for order in [[OLD, NEW], [NEW, OLD]] {
        let fake = FakeEtcd::start();
        let [a, b] = ["a", "b"].map(|name| release(&fake, name, order[usize::from(name == "b")]).unwrap());
        // While the first one is away, this one alone holds the format.
        let last = release(&fake, "c", OLD).unwrap();
        let mut seen = [a.watch(0).unwrap(), b.watch(0).unwrap()];
        // A leader that is alone raises the format at once.
        all_are_listed([&a, &b, &last]);
        let fence = a.acquire().unwrap();
        all_are_listed([&a, &b, &last]);
        write(&a, fence, 0);
        assert_eq!(seen.each_mut().map(next_format), [(); 2].map(|()| Some("format 1".to_owned())), "{order:?}");
        // The other one takes over, and then the first again.
        drop((seen, a));
        block_on(b.vacant()).unwrap();
        let fence = b.acquire().unwrap();
        write(&b, fence, 1);
        let a = release(&fake, "a", order[0]).unwrap();
        let mut seen = a.watch(2).unwrap();
        all_are_listed([&a, &b, &last]);
        write(&b, fence, 2);
        assert_eq!((next_format(&mut seen), a.format(), b.format()), (Some("format 1".to_owned()), 1, 1), "{order:?}");
        drop(b);
        block_on(a.vacant()).unwrap();
        assert_eq!([&a, &last].map(|store| content(store)), [(); 2].map(|()| (3, map([("row", "format 1")]))));
    }
}

#[test]
fn the_format_goes_up_after_the_last_upgrade_and_then_an_older_release_is_refused() {
    let fake = FakeEtcd::start();
    let old = release(&fake, "a", OLD).unwrap();
    let fence = old.acquire().unwrap();
    write(&old, fence, 0);
    let follower = release(&fake, "b", NEW).unwrap();
    all_are_listed([&old, &follower]);
    drop(old);
    // The one that is left reads the newer one, and so does the one that comes back.
    let upgraded = release(&fake, "a", NEW).unwrap();
    block_on(follower.vacant()).unwrap();
    let mut seen = upgraded.watch(1).unwrap();
    let fence = follower.acquire().unwrap();
    until("the newer format", || follower.format() == 2 && upgraded.format() == 2);
    write(&follower, fence, 1);
    assert_eq!(next_format(&mut seen).as_deref(), Some("format 2"));
    assert!(String::from_utf8(Raw::new(&fake).get("d/meta")).unwrap().contains("\"schema\":2"));

    // A server registers itself after it was opened.
    until("the registration of both", || fake.keys("d/member/").len() == 2);
    let before = (fake.keys("d/fence"), fake.keys("d/member/"));
    let refused = release(&fake, "c", OLD).unwrap_err();
    assert!(matches!(&refused, StoreError::Format { in_use: 2, .. }), "{refused:?}");
    let text = refused.to_string();
    let told = "is in format 2; this release (0.1.0) reads format 1: start release 0.2.0 or a later one";
    assert!(text.ends_with(told), "{text}");
    assert_eq!((fake.keys("d/fence"), fake.keys("d/member/")), before, "it has touched nothing");

    drop(follower);
    block_on(upgraded.vacant()).unwrap();
    let fence = upgraded.acquire().unwrap();
    write(&upgraded, fence, 2);
    assert_eq!((upgraded.format(), content(&upgraded)), (2, (3, map([("row", "format 2")]))));
}

#[test]
fn an_older_server_that_was_off_the_list_stops_before_a_batch_that_it_cannot_read() {
    let fake = FakeEtcd::start();
    let (new, old) = (release(&fake, "a", NEW).unwrap(), release(&fake, "b", OLD).unwrap());
    until("its registration", || !fake.keys("d/member/id-b").is_empty());
    let mut seen = old.watch(0).unwrap();
    let fence = new.acquire().unwrap();
    write(&new, fence, 0);
    assert_eq!(next_format(&mut seen).as_deref(), Some("format 1"));
    fake.delete("d/member/id-b");
    until("the newer format", || new.format() == 2);
    write(&new, fence, 1);
    let stopped = block_on(async {
        // It hears of the leader's beats until it hears of the format.
        loop {
            if let Err(error) = old.vacant().await {
                return error;
            }
        }
    });
    assert!(matches!(stopped, StoreError::Format { in_use: 2, .. }), "{stopped:?}");
    assert!(matches!(old.acquire(), Err(StoreError::Format { in_use: 2, .. })));
    drop(old);
    assert!(block_on(seen.next()).is_err(), "no batch of the newer format has come");
}

#[test]
fn a_store_that_is_filled_is_in_the_newest_format_of_who_fills_it() {
    let fake = FakeEtcd::start();
    drop(release(&fake, "a", OLD).unwrap());
    let filling = EtcdOptions { member: Member { formats: NEW, ..member("x") }, ..options(&fake, "x") };
    let store = EtcdStore::open_offline(filling, Offline::Fill).unwrap();
    let fence = store.acquire().unwrap();
    write(&store, fence, 0);
    store.filled().unwrap();
    drop(store);
    assert!(matches!(release(&fake, "a", OLD), Err(StoreError::Format { in_use: 2, .. })));
    assert_eq!(content(&release(&fake, "a", NEW).unwrap()), (1, map([("row", "format 2")])));
}

#[test]
fn an_interrupted_filling_is_undone_although_an_answer_is_lost() {
    let slow = Duration::from_millis(200);
    for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::Late(slow * 3 / 2)] {
        let fake = FakeEtcd::start();
        let raw = Raw::new(&fake);
        raw.put("d/filling", "");
        raw.put("d/left", "x");
        fake.fail(fault, 1, "d/");
        if let Fault::Late(_) = fault {
            // It is done between the next look and the next deletion.
            fake.delay(slow);
        }
        let opened = EtcdStore::open_offline(options(&fake, "x"), Offline::Fill);
        assert_eq!(opened.map(|store| content(&store)).unwrap(), (0, map([])), "{fault:?}");
        assert_eq!(fake.faults_left(), 0);
        assert!(fake.keys("d/filling").is_empty() && fake.keys("d/left").is_empty(), "{fault:?}");
    }
}
