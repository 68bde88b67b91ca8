//! A shared store whose etcd was replaced by an older copy of its data, over a fake one.

mod etcd_kit;
#[allow(dead_code, reason = "what the contract needs besides")]
mod suite;

use std::time::Duration;

use etcd_fake::FakeEtcd;
use store::{EtcdOptions, EtcdStore, Lost, Offline, Store, StoreError};
use testkit::until;

use crate::{
    etcd_kit::{Raw, block_on, marked, open, options, until_seen},
    suite::{commit, content, put},
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
    drop(open(&other, "b"));
    let lost = Some(Lost { found: 0, acknowledged: 100 });
    assert_eq!(marked(&other, &mark).lost(), lost, "one that another server has made");
}

/// Nothing is there that a server could take for its store.
fn is_empty(fake: &FakeEtcd) -> bool {
    ["d/meta", "d/tip", "d/log/"].iter().all(|key| fake.keys(key).is_empty())
}

#[test]
fn an_empty_etcd_that_was_not_so_is_no_new_store() {
    let fake = FakeEtcd::start();
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("etcd.mark");
    let with = |fake: &FakeEtcd, prefix: &str| {
        let (mark, prefix) = (Some(mark.clone()), prefix.to_owned());
        EtcdOptions { mark, prefix, ..options(fake, "a") }
    };
    // One in which nothing was acknowledged is none.
    drop(marked(&fake, &mark));
    fake.delete_prefix("d/");
    let store = marked(&fake, &mark);
    assert_eq!(store.lost(), None);
    let fence = store.acquire().unwrap();
    commit(&store, fence, 0, 7, vec![put("a", "1")]).unwrap();
    drop(store);
    let backup = fake.backup();
    let written = std::fs::read(&mark).unwrap();

    let refused = |options: EtcdOptions, what: &str| {
        let error = EtcdStore::open(options).unwrap_err();
        assert!(matches!(&error, StoreError::NoCluster { acknowledged: 7, .. }) && !error.fatal(), "{what}: {error:?}");
        let told = error.to_string();
        for part in ["up to index 7", "server.endpoints", "server.prefix", "server.cluster_id", "snapshot restore"] {
            assert!(told.contains(part), "{what}: no {part} in {told}");
        }
    };
    let other = FakeEtcd::start();
    refused(with(&other, "d"), "another etcd");
    refused(with(&fake, "e"), "another prefix");
    fake.delete_prefix("d/");
    for _ in 0..2 {
        refused(with(&fake, "d"), "deleted keys");
    }
    assert!(is_empty(&other) && is_empty(&fake) && fake.keys("e/").is_empty(), "nothing is made");
    assert_eq!(std::fs::read(&mark).unwrap(), written, "the proof of the loss stays");
    let read = EtcdStore::open_offline(with(&fake, "d"), Offline::Read);
    assert!(matches!(read, Err(StoreError::NoCluster { .. })), "{read:?}");

    fake.restore(&backup);
    let store = marked(&fake, &mark);
    assert_eq!((store.lost(), content(&store).0), (None, 7), "it is all there again");
    drop(store);
    // Who may begin with nothing knows what is lost, and the others find a store.
    let anew = EtcdStore::open_anew(with(&other, "d")).unwrap();
    let lost = Some(Lost { found: 0, acknowledged: 7 });
    assert_eq!((anew.lost(), content(&anew).0), (lost, 0));
    assert_eq!(marked(&other, &mark).lost(), lost);
}

#[test]
fn an_open_store_whose_etcd_is_emptied_makes_no_new_one() {
    for (leads, taken) in [(true, false), (false, false), (false, true)] {
        let fake = FakeEtcd::start();
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("etcd.mark");
        let (other, own) = (open(&fake, "b"), marked(&fake, &mark));
        let leader = if leads { &own } else { &other };
        let fence = leader.acquire().unwrap();
        commit(leader, fence, 0, 3, vec![put("a", "1")]).unwrap();
        if !leads {
            until_seen(&own, 3);
        }
        drop(other);
        fake.delete_prefix("d/");
        if taken {
            // A server without a mark knows of nothing that is lost.
            let stranger = open(&fake, "c");
            let fence = stranger.acquire().unwrap();
            commit(&stranger, fence, 0, 9, vec![put("c", "1")]).unwrap();
        }
        until("it sees that", || own.acquire().is_err_and(|error| error.fatal()));
        drop(own);
        if taken {
            assert_eq!(marked(&fake, &mark).lost(), Some(Lost { found: 0, acknowledged: 3 }));
        } else {
            assert!(is_empty(&fake), "{leads}");
            let again = EtcdStore::open(EtcdOptions { mark: Some(mark), ..options(&fake, "a") });
            assert!(matches!(again, Err(StoreError::NoCluster { acknowledged: 3, .. })), "{again:?}");
        }
    }
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
