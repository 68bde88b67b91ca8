//! The store after a loss of power: a disk that has only the synced data.
//!
//! The writer runs as a process of its own, under a preloaded library (`LD_PRELOAD`) that copies a file at each fsync.
//! The copies are what a machine finds that loses power at the end of the process.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use model::IncarnationId;
use uuid::Uuid;

use super::*;

const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int keep(int fd) {
    char link[64], path[4096], copy[8192], piece[65536];
    struct stat st;
    const char *dir = getenv("SYNCED_DIR");
    if (!dir || fstat(fd, &st) || !S_ISREG(st.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return -1;
    path[n] = 0;
    snprintf(copy, sizeof copy, "%s/%s", dir, strrchr(path, '/') + 1);
    int out = open(copy, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (out < 0) return -1;
    off_t at = 0;
    while ((n = pread(fd, piece, sizeof piece, at)) > 0) {
        if (write(out, piece, n) != n) return -1;
        at += n;
    }
    close(out);
    return 0;
}

int fsync(int fd) { return keep(fd); }
int fdatasync(int fd) { return keep(fd); }
"#;

const INCARNATION: IncarnationId = IncarnationId(Uuid::from_u128(7));

fn slot(key: &str, epoch: u64) -> Write {
    Write::Slot { key: key.to_owned(), attempted: Some(INCARNATION), epoch }
}

/// The writer of the next test. It ends without closing anything.
#[tokio::test]
#[ignore = "run by `an_intent_survives_a_loss_of_power` as a process of its own"]
async fn writer() {
    let Some(dir) = std::env::var_os("CLIENT_TEST_DIR") else { return };
    let (store, _) = LocalStore::open(Path::new(&dir)).expect("open");
    store.commit(vec![Write::Meta("node_id", "n".into())]).await.expect("commit");
    store.commit(vec![slot("gone", 1), slot("far", 3)]).await.expect("commit");
    store.commit(vec![Write::ForgetSlot("gone".into())]).await.expect("commit");
    // A record of a local process: no such process survives a loss of power.
    store
        .commit(vec![Write::Task { alloc: "a".into(), task: "t".into(), record: b"1".to_vec() }])
        .await
        .expect("commit");
    std::process::exit(0);
}

#[test]
fn an_intent_survives_a_loss_of_power() {
    let dir = tempfile::tempdir().expect("temp dir");
    let at = |name: &str| dir.path().join(name);
    for sub in ["written", "synced"] {
        std::fs::create_dir(at(sub)).expect("a directory");
    }
    std::fs::write(at("shim.c"), SHIM).expect("source");
    // The compiler that builds SQLite.
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([at("shim.so"), at("shim.c")])
        .status()
        .expect("cc");
    assert!(built.success(), "the library was not built");
    let out = Command::new(std::env::current_exe().expect("this program"))
        .args(["store::power::writer", "--exact", "--ignored", "--nocapture"])
        .env("LD_PRELOAD", at("shim.so"))
        .env("CLIENT_TEST_DIR", at("written"))
        .env("SYNCED_DIR", at("synced"))
        .stdin(Stdio::null())
        .output()
        .expect("the writer");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // The loss also covers deletions: here the journal from before the write-ahead log.
    let journal = "node.sqlite-journal";
    if !at("written").join(journal).exists() {
        let _ = std::fs::remove_file(at("synced").join(journal));
    }
    let (store, restored) = LocalStore::open(&at("synced")).expect("what was synced is a database");
    assert_eq!(store.meta("node_id").as_deref(), Some("n"));
    assert_eq!(
        restored.slots,
        [("far".to_owned(), Some(INCARNATION), 3)],
        "creates were attempted under these intents"
    );
}
