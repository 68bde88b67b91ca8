//! Processes that drivers have left behind. Our own executors are found by their state directories below the task directory, those of drivers
//! written for Nomad by their command line, which names a log file inside it.

use std::{fs, path::Path, time::Duration};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Ends the executors, with their workloads, whose state lies in a task directory, but for the one of the run that is to be kept.
pub(crate) async fn end_own_executors(task_dir: &Path, keep: Option<&str>) {
    let parent = task_dir.join("private/executor");
    for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
        if keep.is_some_and(|k| entry.file_name().to_str() == Some(k)) {
            continue;
        }
        if let Err(error) = executor_client::destroy(&entry.path()).await {
            tracing::warn!(state_dir = %entry.path().display(), %error, "an executor that was left behind stays");
        }
    }
    // Only an empty one goes.
    let _ = fs::remove_dir(&parent);
}

/// Ends everything that is known to run for an allocation, by its directory.
pub(crate) async fn end_all(alloc_root: &Path) {
    for entry in fs::read_dir(alloc_root).into_iter().flatten().flatten() {
        end_own_executors(&entry.path(), None).await;
    }
    end_executors_below(alloc_root).await;
}

/// Processes of the form `[binary] executor {"LogFile":"<below dir>/…"}`.
fn executors_below(dir: &Path) -> Vec<i32> {
    let prefix = format!("{}/", dir.display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        if log_file(&line).is_some_and(|log| log.starts_with(&prefix)) {
            found.push(pid);
        }
    }
    found
}

/// The log file in the arguments of a Go executor.
fn log_file(command_line: &[u8]) -> Option<String> {
    let mut args = command_line.split(|b| *b == 0);
    let _binary = args.next()?;
    if args.next()? != b"executor" {
        return None;
    }
    let config: serde_json::Value = serde_json::from_slice(args.next()?).ok()?;
    config.get("LogFile")?.as_str().map(str::to_owned)
}

/// The process and everything below it, parents first.
fn tree(root: i32) -> Vec<i32> {
    let mut all = vec![root];
    let mut at = 0;
    while let Some(pid) = all.get(at).copied() {
        at += 1;
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|c| c.parse::<i32>().ok()));
        }
    }
    all
}

/// Kills the executors whose log file lies below `dir`, with their workloads. Returns how many processes there were.
pub(crate) async fn end_executors_below(dir: &Path) -> usize {
    let dir = dir.to_owned();
    let work = move || {
        let mut count = 0;
        for executor in executors_below(&dir) {
            let Some(pid) = Pid::from_raw(executor) else {
                continue;
            };
            // The descriptor is taken first and the command line read again: the number may belong to somebody else by now.
            let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else {
                continue;
            };
            if !executors_below(&dir).contains(&executor) {
                continue;
            }
            // Stopped first, so that it neither reports nor restarts anything while its children die.
            let _ = pidfd_send_signal(&fd, Signal::STOP);
            for child in tree(executor).into_iter().skip(1).filter_map(Pid::from_raw) {
                if let Ok(fd) = pidfd_open(child, PidfdFlags::empty()) {
                    count += usize::from(pidfd_send_signal(&fd, Signal::KILL).is_ok());
                }
            }
            count += usize::from(pidfd_send_signal(&fd, Signal::KILL).is_ok());
        }
        if count > 0 {
            std::thread::sleep(Duration::from_millis(5));
            tracing::warn!(dir = %dir.display(), count, "executors left behind by a driver were killed with their workloads");
        }
        count
    };
    tokio::task::spawn_blocking(work).await.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_executors_with_a_log_file_are_recognised() {
        let line = |parts: &[&str]| parts.join("\0").into_bytes();
        for (parts, expected) in [
            (&["/p/driver", "executor", r#"{"LogFile":"/a/t/executor.out","LogLevel":"debug"}"#][..], Some("/a/t/executor.out")),
            (&["/p/driver", "executor", "{}"], None),
            (&["/p/driver", "executor", "not json"], None),
            (&["/p/driver", "other", r#"{"LogFile":"/a"}"#], None),
            (&["/p/driver"], None),
        ] {
            assert_eq!(log_file(&line(parts)).as_deref(), expected, "{parts:?}");
        }
    }

    #[tokio::test]
    async fn an_executor_and_its_workload_are_ended() {
        let dir = tempfile::tempdir().expect("temp dir");
        let config = format!(r#"{{"LogFile":"{}/t/executor.out"}}"#, dir.path().display());
        // A shell that runs a script of that name has the command line of a Go executor.
        let script = dir.path().join("executor");
        fs::write(&script, "sleep 600 &\nwait\n").expect("script");
        let mut executor = std::process::Command::new("sh").current_dir(dir.path()).args(["executor", &config]).spawn().expect("sh");
        let pid = i32::try_from(executor.id()).expect("pid");
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while tree(pid).len() < 2 && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(end_executors_below(dir.path()).await, 2);
        executor.wait().expect("reaped");
        assert_eq!(end_executors_below(dir.path()).await, 0);
    }
}
