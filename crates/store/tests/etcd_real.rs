//! The shared store against a real etcd: `cargo xtask interop etcd` starts the members, and runs these as programs.
//!
//! `ETCD_ENDPOINTS` (with commas) says where it is, `ETCD_PREFIX` which keys are used, `ETCD_CA`, `ETCD_CERT` and
//! `ETCD_KEY` name the files of TLS, and `ETCD_USER` a user of etcd, with its password behind a colon. `ETCD_FORMAT` is
//! the format of the state that a new store begins with, the newest unless it is given.

mod suite;

use std::{
    env,
    io::Write as _,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use store::{Batch, EtcdOptions, EtcdStore, FORMATS, Member, Store, StoreError, Versions};
use testkit::{PATIENCE, soon};

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
                Batch { fence, base, index: base + 1, rows },
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

/// Fills an etcd with a small quota.
#[test]
#[ignore = "needs an etcd: cargo xtask interop etcd"]
fn quota() {
    let store = open("quota");
    let fence = store.acquire().unwrap();
    let refused = (0..1000).find_map(|base| {
        let text = noise(base, 1_000_000);
        let result = commit(&store, fence, base, base + 1, vec![put(&base.to_string(), &text)]);
        result.err().map(|error| (base, error))
    });
    let (index, error) = refused.expect("the quota is reached");
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(content(&store).0, index, "reads go on");
    say(&format!("full after {index}"));
}
