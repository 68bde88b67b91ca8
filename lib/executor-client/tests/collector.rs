//! Log collectors with real fifos.

use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use executor_client::{CollectSpec, Launcher, LogCollector, LogPolicy, RotatedLog};

fn launcher() -> Launcher {
    Launcher::new(Path::new(env!("CARGO_TARGET_TMPDIR")).join("executors")).unwrap()
}

fn spec(dir: &Path, max_files: u32) -> CollectSpec {
    CollectSpec {
        id: "t".into(),
        stdout_fifo: dir.join("out.fifo"),
        stderr_fifo: dir.join("err.fifo"),
        log: LogPolicy {
            dir: dir.to_owned(),
            stdout_name: "t.stdout".into(),
            stderr_name: "t.stderr".into(),
            max_files,
            max_file_bytes: 4096,
        },
    }
}

#[tokio::test]
async fn output_of_any_number_of_writers_is_kept_once() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = launcher();
    let spec = spec(dir.path(), 100);
    let state = dir.path().join("state");
    let collector = LogCollector::start(&launcher, &state, spec.clone()).await.unwrap();
    let again = LogCollector::start(&launcher, &state, spec.clone()).await.unwrap();
    assert_eq!(collector.pid(), again.pid(), "one collector for a directory");
    assert_eq!(LogCollector::attach(&state).await.unwrap().unwrap().pid(), collector.pid());

    let mut expected = String::new();
    for round in 0..50 {
        let text: String = (0..100).map(|n| format!("{round} {n}\n")).collect();
        expected.push_str(&text);
        let fifo = spec.stdout_fifo.clone();
        // Opening blocks until there is a reader, so this would hang if the collector missed the end of a writer.
        let write = tokio::task::spawn_blocking(move || {
            std::fs::OpenOptions::new().write(true).open(fifo).unwrap().write_all(text.as_bytes()).unwrap();
        });
        testkit::soon(write).await.unwrap();
    }
    collector.stop(Duration::from_secs(5)).await.unwrap();
    assert!(!state.exists());
    let log = RotatedLog::new(dir.path(), "t.stdout");
    let mut got = Vec::new();
    loop {
        let chunk = log.read(got.len() as u64, 1 << 16).unwrap();
        if chunk.data.is_empty() {
            break;
        }
        got.extend(chunk.data);
    }
    assert_eq!(String::from_utf8(got).unwrap(), expected);
    assert!(LogCollector::attach(&state).await.unwrap().is_none());

    // Continues where it ended, also after SIGKILL.
    let collector = LogCollector::start(&launcher, &state, spec.clone()).await.unwrap();
    testkit::signal(collector.pid(), rustix::process::Signal::KILL);
    collector.gone().await;
    let collector = LogCollector::start(&launcher, &state, spec.clone()).await.unwrap();
    let mut writer = std::fs::OpenOptions::new().write(true).open(&spec.stdout_fifo).unwrap();
    writer.write_all(b"more\n").unwrap();
    // A writer that stays does not delay a stop beyond its patience, and none of its output is lost.
    collector.stop(Duration::from_millis(50)).await.unwrap();
    let end = log.end().unwrap();
    assert_eq!(end, expected.len() as u64 + 5);
    assert_eq!(log.read(end - 5, 10).unwrap().data, b"more\n");
}

#[tokio::test]
async fn a_collector_that_nobody_can_find_ends() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = launcher();
    let spec = spec(dir.path(), 1);
    let state = dir.path().join("state");
    // The collector does not read what a task has put in the place of a FIFO.
    std::os::unix::fs::symlink("/etc/hostname", &spec.stdout_fifo).unwrap();
    let collector = LogCollector::start(&launcher, &state, spec.clone()).await.unwrap();
    assert!(std::fs::symlink_metadata(&spec.stdout_fifo).unwrap().file_type().is_fifo());
    std::fs::remove_dir_all(&state).unwrap();
    // Any event triggers its check; otherwise it checks after a while.
    let mut writer = std::fs::OpenOptions::new().write(true).open(&spec.stdout_fifo).unwrap();
    writer.write_all(b"x").unwrap();
    testkit::soon(collector.gone()).await;
}
