//! The shared store against a real etcd: `cargo xtask interop etcd` starts the members, and runs these as programs.
//!
//! `ETCD_ENDPOINTS` (with commas) says where it is, `ETCD_PREFIX` which keys are used, `ETCD_CA`, `ETCD_CERT` and
//! `ETCD_KEY` name the files of TLS, and `ETCD_USER` a user of etcd, with its password behind a colon. `ETCD_FORMAT` is
//! the format of the state that a new store begins with, the newest unless it is given. `ETCD_MARK` is a file of what
//! this server has seen acknowledged; without it, none is kept.

mod suite;

use std::{
    env,
    io::Write as _,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use store::{Batch, EtcdOptions, EtcdStore, FORMATS, Lost, Member, Store, StoreError, Versions};
use testkit::{PATIENCE, soon, until};

use crate::suite::{Answer, commit, content, delete, map, noise, put, submit, suite};

fn options(name: &str) -> EtcdOptions {
    let endpoints = env::var("ETCD_ENDPOINTS").expect("ETCD_ENDPOINTS says where etcd is");
    let file = |name| env::var_os(name).map(Into::into).unwrap_or_default();
    let files =
        tls::ServiceFiles { ca_file: file("ETCD_CA"), cert_file: file("ETCD_CERT"), key_file: file("ETCD_KEY") };
    let names = tls::ServiceSettings { ca: "ETCD_CA", cert: "ETCD_CERT", key: "ETCD_KEY" };
    let lowest = env::var("ETCD_FORMAT").map_or(FORMATS.highest, |format| format.parse().unwrap());
    let formats = Versions { lowest, ..FORMATS };
    let dialer = || tls::Dialer::of_service(&files, names, tls::Protocol::Http2).unwrap();
    EtcdOptions {
        tls: endpoints.contains("https://").then(dialer),
        endpoints: endpoints.split(',').map(str::to_owned).collect(),
        prefix: env::var("ETCD_PREFIX").unwrap_or_default(),
        mark: env::var_os("ETCD_MARK").map(Into::into),
        user: env::var("ETCD_USER")
            .ok()
            .and_then(|user| user.split_once(':').map(|(n, p)| (n.to_owned(), p.to_owned()))),
        member: Member { id: name.to_owned(), name: name.to_owned(), formats, ..Member::default() },
        ..EtcdOptions::default()
    }
}

fn open(name: &str) -> EtcdStore {
    EtcdStore::open(options(name)).unwrap()
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").unwrap();
    out.flush().unwrap();
}

#[test]
#[ignore = "needs an etcd: cargo xtask interop etcd"]
fn contract() {
    suite(&open("contract"));
}

#[test]
#[ignore = "needs an etcd with users: cargo xtask interop etcd"]
fn a_stranger_is_not_let_in() {
    let refused = EtcdStore::open(options("stranger")).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("permission denied"), "{refused:?}");
}

#[test]
#[ignore = "needs an etcd: cargo xtask interop etcd"]
fn large_batches_and_snapshots() {
    let store = open("large");
    let fence = store.acquire().unwrap();
    let text = noise(1, 4_000_000);
    commit(&store, fence, 0, 1, vec![put("large", &text), put("small", "1")]).unwrap();
    commit(&store, fence, 1, 2, vec![delete("small")]).unwrap();
    assert!(content(&store) == (2, map([("large", &text)])));
    let answers: Vec<Answer> = (2..4972).map(|i| submit(&store, fence, i, i + 1, vec![put("k", "v")])).collect();
    for answer in answers {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    // Enough bytes for a snapshot where records are compressed, and enough records where they are not.
    for index in 4972..5002 {
        commit(&store, fence, index, index + 1, vec![put("k", &noise(index, 1_000_000))]).unwrap();
    }
    // A watcher of another server misses nothing, and a load shows the same whether it reads a snapshot or not.
    let other = open("other");
    for _ in 0..3 {
        let (index, rows) = content(&other);
        assert_eq!((index, rows.len(), rows["large"].len()), (5002, 2, text.len()));
        std::thread::sleep(Duration::from_secs(1));
    }
    store.close();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(soon(other.vacant())).unwrap();
    other.acquire().unwrap();
    assert_eq!(content(&other).0, 5002);
}

/// Commits until it is ended, and prints each acknowledged index.
#[test]
#[ignore = "needs an etcd: cargo xtask interop etcd"]
fn writer() {
    let store = Arc::new(open("writer"));
    let fence = store.acquire().unwrap();
    let start = store.load().unwrap().index;
    let (tx, rx) = mpsc::sync_channel(64);
    let submitter = store.clone();
    std::thread::spawn(move || {
        for base in start.. {
            let tx = tx.clone();
            let rows = Box::new(move |_| vec![put(&format!("{:08}", base + 1), "acknowledged")]);
            submitter.submit(
                Batch { fence, base, index: base + 1, rows, more: false },
                Box::new(move |result| drop(tx.send((base + 1, result)))),
            );
            // Bounded, so that the queue does not fill the memory.
            while submitter.stats().batches + 64 < base - start {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    for (index, result) in rx {
        match result {
            Ok(()) => say(&format!("acknowledged {index}")),
            Err(error) => panic!("the batch {index} was refused: {error}"),
        }
    }
}

/// Everything up to `ACKNOWLEDGED` is there, and nothing above the index.
#[test]
#[ignore = "needs an etcd: cargo xtask interop etcd"]
fn nothing_acknowledged_is_lost() {
    let acknowledged: u64 = env::var("ACKNOWLEDGED").unwrap().parse().unwrap();
    let (index, rows) = content(&open("reader"));
    assert!(index >= acknowledged, "acknowledged {acknowledged}, found {index}");
    assert_eq!(rows.len() as u64, index, "every batch up to the index, and nothing of a later one");
    say(&format!("found {index}"));
}

/// Commits a few batches, and prints the index of the last.
#[test]
#[ignore = "needs an etcd: cargo xtask interop etcd"]
fn a_few_commits() {
    let store = open("a");
    assert_eq!(store.lost(), None);
    let fence = store.acquire().unwrap();
    let base = store.load().unwrap().index;
    for base in base..base + 10 {
        commit(&store, fence, base, base + 1, vec![put(&base.to_string(), "acknowledged")]).unwrap();
    }
    say(&format!("acknowledged {}", base + 10));
}

/// etcd was replaced by a copy of what it had at the index `FOUND`; this server knows of `ACKNOWLEDGED`. It sees the
/// loss at each start until it has recovered.
#[test]
#[ignore = "needs an etcd that was restored: cargo xtask interop etcd"]
fn a_restored_etcd_has_lost_what_was_acknowledged_since() {
    let index = |name| env::var(name).unwrap().parse::<u64>().unwrap();
    let (found, acknowledged) = (index("FOUND"), index("ACKNOWLEDGED"));
    let lost = Some(Lost { found, acknowledged });
    let store = open("a");
    assert_eq!(store.lost(), lost);
    drop(store);
    let store = open("a");
    assert_eq!((store.lost(), content(&store).0), (lost, found));
    let fence = store.acquire().unwrap();
    let jump = acknowledged + 1_000_000;
    commit(&store, fence, found, jump, vec![put("recovered", "1")]).unwrap();
    store.note_recovery(jump).unwrap();
    drop(store);
    assert_eq!(open("a").lost(), None);
}

/// Prints the name of etcd's leader.
#[test]
#[ignore = "needs an etcd: cargo xtask interop etcd"]
fn peers() {
    let peers = open("reader").peers().unwrap();
    say(&format!("peers {}", peers.iter().filter(|peer| peer.error.is_none()).count()));
    for peer in peers.iter().filter(|peer| peer.leader) {
        say(&format!("leader {}", peer.name));
    }
}

/// Prints how long commits take, one by one and in groups.
#[test]
#[ignore = "needs an etcd: cargo xtask interop etcd"]
fn figures() {
    let store = open("figures");
    let fence = store.acquire().unwrap();
    let row = |index: u64| vec![put(&index.to_string(), &noise(index, 1024))];
    let mut times: Vec<Duration> = (0..500_u64)
        .map(|base| {
            let rows = row(base);
            let begun = Instant::now();
            commit(&store, fence, base, base + 1, rows).unwrap();
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    let ms = |at: usize| times[at].as_secs_f64() * 1000.0;
    let rows: Vec<_> = (500..10_500).map(|index| (index, row(index))).collect();
    let (begun, before) = (Instant::now(), store.stats());
    let answers: Vec<Answer> = rows.into_iter().map(|(i, rows)| submit(&store, fence, i, i + 1, rows)).collect();
    for answer in answers {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    let transactions = store.stats().transactions - before.transactions;
    say(&format!(
        "figures: a commit of 1 KiB takes {:.1} ms (p50), {:.1} ms (p99); queued, {:.0} batches/s in {transactions} \
         transactions",
        ms(250),
        ms(495),
        10_000.0 / begun.elapsed().as_secs_f64()
    ));
}

/// Fills an etcd with a small quota, for the half with what is deleted afterwards: the store makes room.
#[test]
#[ignore = "needs an etcd: cargo xtask interop etcd"]
fn quota() {
    let EtcdOptions { endpoints, .. } = options("junk");
    let etcd = etcd::Client::new(&etcd::Options { endpoints, ..etcd::Options::default() }).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for n in 0..10 {
        runtime.block_on(etcd.put(format!("junk/{n}"), noise(n, 1_000_000), 0)).unwrap();
    }
    let store = open("quota");
    let fence = store.acquire().unwrap();
    let next = |base: u64| commit(&store, fence, base, base + 1, vec![put(&base.to_string(), &noise(base, 1_000_000))]);
    let refused = (0..1000).find_map(|base| next(base).err().map(|error| (base, error)));
    let (index, error) = refused.expect("the quota is reached");
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(content(&store).0, index, "reads go on");

    // What is deleted still fills the file.
    runtime.block_on(etcd.delete("junk/", "junk0")).unwrap();
    let refused = next(index);
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    let size = || runtime.block_on(etcd.status()).unwrap().db_size;
    let before = size();
    // A compaction deletes in the background: the first try may find no room yet.
    until("room", || store.probe());
    let after = size();
    assert!(after < before - 5_000_000, "the file has shrunk: from {before} to {after} bytes");
    assert!(runtime.block_on(etcd.alarms()).unwrap().is_empty());
    for base in index..index + 3 {
        next(base).unwrap();
    }
    assert_eq!(content(&store).0, index + 3);
    say(&format!("full after {index}: from {before} to {after} bytes"));
}
