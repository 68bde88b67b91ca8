//! A shared store whose etcd was replaced by an older copy of its data, over a fake one.

mod etcd_kit;
#[allow(dead_code, reason = "what the contract needs besides")]
mod suite;

use std::time::Duration;

use etcd_fake::FakeEtcd;
use store::{EtcdOptions, EtcdStore, Lost, Store, StoreError};
use testkit::until;

use crate::{
    etcd_kit::{Raw, block_on, marked, open, options, until_seen},
    suite::{commit, put},
};

#[test]
fn a_restored_etcd_has_lost_what_was_acknowledged_since() {
    let fake = FakeEtcd::start();
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("etcd.mark");
    let store = marked(&fake, &mark);
    let fence = store.acquire().unwrap();
    commit(&store, fence, 0, 3, vec![put("a", "1")]).unwrap();
    let backup = fake.backup();
    commit(&store, fence, 3, 7, vec![put("a", "2")]).unwrap();
    drop(store);
    assert_eq!(marked(&fake, &mark).lost(), None);
    fake.restore(&backup);
    for turn in 0..2 {
        let store = marked(&fake, &mark);
        assert_eq!(store.lost(), Some(Lost { found: 3, acknowledged: 7 }), "start {turn}");
    }
    let store = marked(&fake, &mark);
    let fence = store.acquire().unwrap();
    commit(&store, fence, 3, 100, vec![put("a", "3")]).unwrap();
    drop(store);
    assert_eq!(marked(&fake, &mark).lost(), None, "a commit clears it");
    // What others have written since is missing, though nothing that this server knows of.
    let backup = fake.backup();
    Raw::new(&fake).put("d/elsewhere", "1");
    drop(marked(&fake, &mark));
    fake.restore(&backup);
    assert_eq!(marked(&fake, &mark).lost(), Some(Lost { found: 100, acknowledged: 100 }), "the revision went back");
    let other = FakeEtcd::start();
    assert_eq!(marked(&other, &mark).lost(), Some(Lost { found: 0, acknowledged: 100 }), "an empty one");
}

#[test]
fn a_recovery_that_has_ended_is_not_begun_again_by_another_server() {
    let fake = FakeEtcd::start();
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let mark = Some(dir.path().join(name));
        EtcdStore::open(EtcdOptions { mark, ..options(&fake, name) }).unwrap()
    };
    let names = ["a", "b", "c", "d"];
    let [a, b, c, d] = names.map(open);
    let fence = a.acquire().unwrap();
    commit(&a, fence, 0, 3, vec![put("a", "1")]).unwrap();
    let backup = fake.backup();
    commit(&a, fence, 3, 7, vec![put("a", "2")]).unwrap();
    [&b, &c, &d].into_iter().for_each(|store| until_seen(store, 7));
    drop((a, b, c, d));
    fake.restore(&backup);
    let lost = Lost { found: 3, acknowledged: 7 };
    // One is opened before the recovery, one during it, one after it.
    let [a, b] = ["a", "b"].map(open);
    assert_eq!([&a, &b].map(EtcdStore::lost), [Some(lost); 2]);
    let fence = a.acquire().unwrap();
    commit(&a, fence, 3, 4, vec![put("a", "recovering")]).unwrap();
    let c = open("c");
    assert!(a.still_lost(lost) && b.still_lost(lost) && c.lost().is_some(), "it goes on");
    commit(&a, fence, 4, 1_000_008, vec![put("a", "recovered")]).unwrap();
    a.note_recovery(1_000_008).unwrap();
    until("the end of the recovery", || [&b, &c].iter().all(|store| store.lost().is_none()));
    let d = open("d");
    assert_eq!(d.lost(), None);
    // All are on the watch for the next loss.
    let backup = fake.backup();
    commit(&a, fence, 1_000_008, 1_000_009, vec![put("a", "3")]).unwrap();
    [&b, &c, &d].into_iter().for_each(|store| until_seen(store, 1_000_009));
    drop((a, b, c, d));
    fake.restore(&backup);
    for name in names {
        let lost = Some(Lost { found: 1_000_008, acknowledged: 1_000_009 });
        assert_eq!(open(name).lost(), lost, "{name}");
    }
}

#[test]
fn an_open_store_sees_that_etcd_went_back() {
    let fake = FakeEtcd::start();
    let backup = fake.backup();
    let (a, b) = (open(&fake, "a"), open(&fake, "b"));
    let fence = a.acquire().unwrap();
    commit(&a, fence, 0, 1, vec![put("a", "1")]).unwrap();
    until_seen(&b, 1);
    fake.restore(&backup);
    let mut fenced = a.fenced();
    let mut broken = false;
    until("the end of the leader", || {
        broken |= block_on(async { tokio::time::timeout(Duration::from_millis(1), a.vacant()).await })
            .is_ok_and(|seen| seen.is_err_and(|error| error.fatal()));
        broken || fenced.borrow_and_update().is_some()
    });
    let refused = commit(&a, fence, 1, 2, vec![put("a", "2")]);
    assert!(refused.as_ref().is_err_and(StoreError::fatal), "{refused:?}");
    // One that follows takes nothing over.
    let seen = block_on(b.vacant());
    assert!(matches!(seen, Err(StoreError::Fatal { .. })), "{seen:?}");
    assert!(matches!(b.acquire(), Err(StoreError::Fatal { .. })));
}

/// A backup at index 3, after which a follower has seen index 7.
fn behind(fake: &FakeEtcd, follower: &EtcdStore) -> etcd_fake::Backup {
    let leader = open(fake, "a");
    let fence = leader.acquire().unwrap();
    commit(&leader, fence, 0, 3, vec![put("a", "1")]).unwrap();
    let backup = fake.backup();
    commit(&leader, fence, 3, 7, vec![put("a", "2")]).unwrap();
    until_seen(follower, 7);
    backup
}

#[test]
fn an_open_follower_sees_that_the_index_went_back_though_the_revision_did_not() {
    let fake = FakeEtcd::start();
    let b = open(&fake, "b");
    let backup = behind(&fake, &b);
    fake.set_frozen(true);
    fake.restore(&backup);
    fake.raise_revision(1000);
    fake.set_frozen(false);
    until("the end of the follower", || b.acquire().is_err_and(|error| error.fatal()));
    let seen = block_on(b.vacant());
    assert!(matches!(&seen, Err(StoreError::Fatal { reason, .. }) if reason.contains("index went back")), "{seen:?}");
}

#[test]
fn an_open_follower_takes_no_batch_of_another_history() {
    // The batch that the follower has seen last is not there, is another one, or is another one and the last.
    let histories: [(&[u64], &str); 3] =
        [(&[5, 9], "index went back"), (&[5, 7, 9], "batch of index 7 is not"), (&[7], "batch of index 7 is not")];
    for (indexes, why) in histories {
        let fake = FakeEtcd::start();
        let own = fake.beside();
        let b = EtcdStore::open(EtcdOptions { endpoints: vec![own.endpoint()], ..options(&fake, "b") }).unwrap();
        let backup = behind(&fake, &b);
        // It hears nothing until the other history is the longer one.
        own.set_frozen(true);
        fake.restore(&backup);
        fake.raise_revision(1000);
        let c = open(&fake, "c");
        until("the lease of the fence that was restored", || fake.keys("d/fence").is_empty() || c.acquire().is_ok());
        let fence = c.acquire().unwrap();
        let mut base = 3;
        for index in indexes {
            commit(&c, fence, base, *index, vec![put("a", "3")]).unwrap();
            base = *index;
        }
        own.set_frozen(false);
        until("the end of the follower", || b.acquire().is_err_and(|error| error.fatal()));
        let seen = block_on(b.vacant());
        assert!(
            matches!(&seen, Err(StoreError::Fatal { reason, .. }) if reason.contains(why)),
            "{indexes:?}: {seen:?}"
        );
    }
}
