//! Log files of a task, for drivers that write them themselves ([`crate::Capabilities::disable_log_collection`]).

use std::path::Path;

use crate::{Error, LogPolicy, TaskConfig};

/// The default number of files if hosts set none.
const DEFAULT_FILES: u32 = 10;
const DEFAULT_FILE_BYTES: u64 = 10 << 20;

/// Directory, names and sizes of the rotated files `<name>.<number>`; `None` when the job wants no logs.
///
/// A host without rotation settings names FIFOs, which have no reader while the driver declares that it writes the logs
/// itself. The place of the files follows from these names: `logs/.web.stdout.fifo` stands for `logs/web.stdout.0` and
/// so on.
///
/// # Errors
/// When the host names a relative path.
pub fn log_policy(task: &TaskConfig) -> Result<Option<LogPolicy>, Error> {
    if let Some(wanted) = &task.drover_log {
        return Ok((!wanted.disabled).then(|| wanted.clone()));
    }
    if task.stdout_path.is_empty() || task.stdout_path == "/dev/null" {
        return Ok(None);
    }
    let name = |path: &str, stream: &str| {
        let file = Path::new(path).file_name().and_then(|f| f.to_str()).unwrap_or_default();
        let name = file.trim_start_matches('.').trim_end_matches(".fifo");
        if name.is_empty() { format!("{}.{stream}", task.name) } else { name.to_owned() }
    };
    let dir = Path::new(&task.stdout_path).parent().filter(|d| d.is_absolute()).and_then(Path::to_str);
    let dir =
        dir.ok_or_else(|| Error::invalid(format!("stdout_path {:?} is not an absolute path", task.stdout_path)))?;
    Ok(Some(LogPolicy {
        dir: dir.to_owned(),
        stdout_name: name(&task.stdout_path, "stdout"),
        stderr_name: name(&task.stderr_path, "stderr"),
        max_files: DEFAULT_FILES,
        max_file_size_bytes: DEFAULT_FILE_BYTES,
        ..LogPolicy::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(stdout: &str, stderr: &str) -> TaskConfig {
        TaskConfig {
            name: "web".into(),
            stdout_path: stdout.into(),
            stderr_path: stderr.into(),
            ..TaskConfig::default()
        }
    }

    #[test]
    fn places_follow_from_fifo_names_when_the_host_says_nothing_else() {
        let fifos = task("/a/0a1b/alloc/logs/.web.stdout.fifo", "/a/0a1b/alloc/logs/.web.stderr.fifo");
        let policy = log_policy(&fifos).unwrap().unwrap();
        assert_eq!(policy.dir, "/a/0a1b/alloc/logs");
        assert_eq!((policy.stdout_name.as_str(), policy.stderr_name.as_str()), ("web.stdout", "web.stderr"));
        assert_eq!(log_policy(&task("/logs/.web.stdout.fifo", "")).unwrap().unwrap().stderr_name, "web.stderr");
        assert_eq!(log_policy(&task("/dev/null", "/dev/null")).unwrap(), None);
        assert!(log_policy(&task("relative", "")).is_err());
        let mut said = fifos;
        said.drover_log = Some(LogPolicy { max_files: 3, ..LogPolicy::default() });
        assert_eq!(log_policy(&said).unwrap().unwrap().max_files, 3);
        said.drover_log = Some(LogPolicy { disabled: true, ..LogPolicy::default() });
        assert_eq!(log_policy(&said).unwrap(), None);
    }
}
