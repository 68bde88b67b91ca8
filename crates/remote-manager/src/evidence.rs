//! The meaning of texts from drivers of the plain protocol. The protocol has no field for these facts. A text counts
//! only if one of these short lists has it, word for word. Any other text means: unknown.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// An exit with one of these errors means that the provider has answered: there is no such instance. *Task not found*
/// of RecoverTask means the same.
const GONE: &[&str] = &["the provider says that the instance is gone; how it ended is not known"];

/// One driver writes its observations to the task's output: `[time] - client is remotely monitoring ECS task: <arn>
/// with status <status>`.
const SEEN: &str = "client is remotely monitoring ECS task: ";
const STATUS: &str = " with status ";
/// The final statuses. Earlier ones (`DEACTIVATING`, `STOPPING`, `DEPROVISIONING`) leave something running.
const FINAL: &[&str] = &["STOPPED"];

/// StopTask with `DETACH` fails so when the driver has accepted it, but has not finished in time.
const DETACHED: &str = "(detach=true)";

/// How much of a log's end is read, in bytes.
pub(crate) const TAIL: usize = 16 * 1024;

/// Whether the error of an exit means that the instance is gone.
pub(crate) fn says_gone(error: &str) -> bool {
    GONE.contains(&error)
}

/// Whether the error of a DETACH means that the driver lets go nevertheless.
pub(crate) fn detaches_all_the_same(error: &str) -> bool {
    error.trim_end().ends_with(DETACHED)
}

/// The final status of an instance in a driver's output. It stays true, however old the line is.
pub(crate) fn final_status<'a>(output: &'a str, instance: &str) -> Option<&'a str> {
    output.lines().find_map(|line| {
        let (_, seen) = line.split_once(SEEN)?;
        let (of, status) = seen.split_once(STATUS)?;
        (!instance.is_empty() && of == instance && FINAL.contains(&status)).then_some(status)
    })
}

/// The rotated files that a FIFO's reader writes, `logs/t.stdout.<n>` for `logs/.t.stdout.fifo`, newest first.
fn files(fifo: &Path) -> Vec<PathBuf> {
    let name =
        fifo.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix('.')?.strip_suffix(".fifo"));
    let (Some(name), Some(dir)) = (name, fifo.parent()) else { return Vec::new() };
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix(name)?.strip_prefix('.')?.parse::<u64>().ok();
    let mut found: Vec<(u64, PathBuf)> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| Some((number(&e.path())?, e.path())))
        .collect();
    found.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
    found.into_iter().map(|(_, path)| path).collect()
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(TAIL as u64);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The final status of an instance in the output that its driver has written to this FIFO. Blocking.
pub(crate) fn seen_ended(fifo: &Path, instance: &str) -> Option<String> {
    // The line may lie on either side of a rotation.
    let text = files(fifo).iter().take(2).rev().filter_map(|path| tail(path).ok()).collect::<String>();
    final_status(&text, instance).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_say_so_mean_absence() {
        for (text, gone) in [
            ("the provider says that the instance is gone; how it ended is not known", true),
            ("task not found", false),
            ("the connection is gone", false),
            ("connection refused", false),
            ("cluster not found", false),
            ("", false),
        ] {
            assert_eq!(says_gone(text), gone, "{text}");
        }
    }

    #[test]
    fn a_detach_that_is_late_is_one_and_others_are_not() {
        for (text, all_the_same) in [
            ("timed out waiting for ecs task (id=a/t/1) to stop (detach=true)", true),
            ("timed out waiting for ecs task (id=a/t/1) to stop (detach=false)", false),
            ("unknown signal DETACH", false),
        ] {
            assert_eq!(detaches_all_the_same(text), all_the_same, "{text}");
        }
    }

    #[test]
    fn the_end_of_an_instance_is_read_from_the_lines_of_its_driver_only() {
        let dir = tempfile::tempdir().expect("temp dir");
        let fifo = dir.path().join(".t.stdout.fifo");
        let line = |arn: &str, status: &str| format!("[2026-01-01T00:00:00Z] - {SEEN}{arn}{STATUS}{status}\n");
        assert_eq!(seen_ended(&fifo, "arn:1"), None, "nothing is written");
        for (what, text, ended) in [
            ("runs", line("arn:1", "RUNNING"), false),
            ("ends", line("arn:1", "RUNNING") + &line("arn:1", "STOPPING"), false),
            ("has ended", line("arn:1", "STOPPING") + &line("arn:1", "STOPPED"), true),
            ("has ended and is looked at again", line("arn:1", "STOPPED") + &line("arn:1", "STOPPED"), true),
            ("another one", line("arn:2", "STOPPED"), false),
            ("one that begins alike", line("arn:11", "STOPPED"), false),
            ("half a line", format!("{SEEN}arn:1{STATUS}STOP"), false),
            ("talk", "the task has STOPPED, arn:1\n".to_owned(), false),
        ] {
            fs::write(dir.path().join("t.stdout.0"), &text).expect("written");
            assert_eq!(seen_ended(&fifo, "arn:1").is_some(), ended, "{what}");
            assert_eq!(seen_ended(&fifo, ""), None, "{what}: of no instance");
        }
        // The newest files count, and only those of this stream.
        fs::write(dir.path().join("t.stdout.10"), line("arn:3", "STOPPED")).expect("written");
        fs::write(dir.path().join("t.stderr.11"), line("arn:4", "STOPPED")).expect("written");
        assert_eq!(seen_ended(&fifo, "arn:3").as_deref(), Some("STOPPED"));
        assert_eq!(seen_ended(&fifo, "arn:4"), None);
    }
}
