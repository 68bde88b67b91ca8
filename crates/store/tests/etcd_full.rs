//! A shared store whose etcd has no room left, over a fake one.

mod etcd_kit;
#[allow(dead_code, reason = "what the contract needs besides")]
mod suite;

use std::sync::Arc;

use etcd_fake::{FakeEtcd, Fault};
use store::{Store, StoreError};
use testkit::{PATIENCE, until};

use crate::{
    etcd_kit::{make_room, open, take_over},
    suite::{commit, content, map, put, submit},
};

#[test]
fn a_full_etcd_refuses_and_keeps_what_is_there() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    commit(&store, fence, 0, 1, vec![put("kept", "1")]).unwrap();
    fake.set_no_space(true);
    let refused = commit(&store, fence, 1, 2, vec![put("kept", "2")]);
    assert!(matches!(&refused, Err(error @ StoreError::Full { .. }) if !error.fatal()), "{refused:?}");
    assert!(matches!(commit(&store, fence, 2, 3, vec![put("a", "1")]), Err(StoreError::WrongBase { .. })));
    assert_eq!(content(&store), (1, map([("kept", "1")])));
    // Nobody is deposed for what nobody could do better.
    let other = open(&fake, "b");
    let refused = take_over(&other);
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    assert!(!fake.keys("d/fence").is_empty() && store.fenced().borrow().is_none());
    // A probe makes room.
    make_room(&store);
    assert!(fake.seen().compactions > 0);
    commit(&store, fence, 1, 2, vec![put("kept", "2")]).unwrap();
    fake.set_corrupt(true);
    let refused = commit(&store, fence, 2, 3, vec![put("kept", "3")]);
    assert!(matches!(&refused, Err(error @ StoreError::Fatal { .. }) if error.fatal()), "{refused:?}");
}

#[test]
fn writes_go_on_while_room_is_made() {
    let fake = FakeEtcd::start();
    let store = Arc::new(open(&fake, "a"));
    let fence = store.acquire().unwrap();
    commit(&*store, fence, 0, 1, vec![put("kept", "1")]).unwrap();
    fake.hold_defragmentations(true);
    fake.set_no_space(true);
    let own = store.clone();
    let probe = std::thread::spawn(move || own.probe());
    until("a member that is defragmented", || fake.seen().defragmentations > 0);
    // Others have done enough by now.
    fake.set_no_space(false);
    commit(&*store, fence, 1, 2, vec![put("kept", "2")]).unwrap();
    assert!(!probe.is_finished());
    fake.hold_defragmentations(false);
    probe.join().unwrap().unwrap();

    // Nor does it hold up the end.
    fake.hold_defragmentations(true);
    fake.set_no_space(true);
    let (own, before) = (store.clone(), fake.seen().defragmentations);
    let probe = std::thread::spawn(move || own.probe());
    until("a member that is defragmented", || fake.seen().defragmentations > before);
    store.close();
    assert!(matches!(probe.join().unwrap(), Err(StoreError::Closed)));
}

#[test]
fn the_batch_that_uses_up_the_quota_is_committed() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    fake.fail(Fault::Last, 1, "d/log/");
    commit(&store, fence, 0, 1, vec![put("a", "1")]).unwrap();
    assert_eq!(content(&store), (1, map([("a", "1")])));
    let refused = commit(&store, fence, 1, 2, vec![put("a", "2")]);
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    make_room(&store);
    commit(&store, fence, 1, 2, vec![put("a", "2")]).unwrap();
    assert_eq!(content(&store), (2, map([("a", "2")])));
}

#[test]
fn a_refusal_after_a_lost_answer_says_nothing_of_the_first_try() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    fake.fail(Fault::LoseAnswer, 1, "d/log/");
    let answer = submit(&store, fence, 0, 1, vec![put("a", "1")]);
    until("the lost answer", || fake.faults_left() == 0);
    fake.set_no_space(true);
    answer.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(content(&store).0, 1);
}

#[test]
fn where_nobody_leads_a_full_etcd_is_given_room() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    commit(&store, fence, 0, 1, vec![put("kept", "1")]).unwrap();
    drop(store);
    until("no leader", || fake.keys("d/fence").is_empty());
    fake.set_no_space(true);
    let store = open(&fake, "b");
    let fence = store.acquire().unwrap();
    assert!(fake.seen().compactions > 0);
    commit(&store, fence, 1, 2, vec![put("kept", "2")]).unwrap();
}
