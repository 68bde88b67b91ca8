//! How often a task was started in its allocation, for starts that fail a number of times.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use driver_sdk::TaskConfig;

/// Counts starts; beside the task where it has a directory, so that the count outlives the plugin.
#[derive(Debug, Default)]
pub(crate) struct Starts(Mutex<HashMap<(String, String), u64>>);

impl Starts {
    /// The number of this start, from 1 on.
    pub(crate) fn count(&self, task: &TaskConfig) -> u64 {
        let dir = Path::new(&task.alloc_dir).join(&task.name).join("private");
        let file = dir.join("mock-starts");
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = known.entry((task.alloc_id.clone(), task.name.clone())).or_default();
        let written = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
        *count = written.unwrap_or(*count).saturating_add(1);
        if !task.alloc_dir.is_empty()
            && dir.is_dir()
            && let Err(error) = std::fs::write(&file, count.to_string())
        {
            tracing::warn!(?file, %error, "cannot write how often the task was started; counting in memory");
        }
        *count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_counted_per_task_and_beyond_the_process_where_possible() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let task = |name: &str| TaskConfig {
            name: name.into(),
            alloc_id: "a".into(),
            alloc_dir: dir.path().display().to_string(),
            ..TaskConfig::default()
        };
        std::fs::create_dir_all(dir.path().join("durable/private")).expect("creates");
        let starts = Starts::default();
        assert_eq!([starts.count(&task("durable")), starts.count(&task("durable"))], [1, 2]);
        assert_eq!([starts.count(&task("other")), starts.count(&task("other"))], [1, 2]);
        let next = Starts::default();
        assert_eq!((next.count(&task("durable")), next.count(&task("other"))), (3, 1));
    }
}
