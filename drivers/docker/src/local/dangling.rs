//! Containers of ours that no task belongs to: a start was cut off and its host never came back to it.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Shared, lock, start};
use crate::config::Dangling;
use crate::create::{LABEL_NODE, LABEL_TASK_ID};
use crate::engine::types::Listed;
use crate::engine::{Engine, filters};

/// Looks from time to time; ends when dropped.
pub(crate) struct Sweeper(tokio::task::JoinHandle<()>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Which of the listed containers may go: of a node that this plugin serves, of no task that it knows, and old enough
/// that no start is under way.
fn dangling(
    listed: &[Listed],
    tasks: &HashSet<String>,
    nodes: &BTreeSet<String>,
    now_s: u64,
    grace: Duration,
) -> Vec<String> {
    let old = |created: i64| u64::try_from(created).is_ok_and(|at| now_s.saturating_sub(at) > grace.as_secs());
    let label = |c: &Listed, name: &str| c.labels.get(name).cloned().unwrap_or_default();
    listed
        .iter()
        .filter(|c| c.labels.contains_key(LABEL_TASK_ID) && nodes.contains(&label(c, LABEL_NODE)))
        .filter(|c| !tasks.contains(&label(c, LABEL_TASK_ID)) && old(c.created))
        .map(|c| c.id.clone())
        .collect()
}

impl Sweeper {
    /// Begins to look, if the operator wants it. The first look comes after a period: until then the host recovers its
    /// tasks.
    pub(crate) fn start(engine: Arc<Engine>, config: &Dangling, shared: Arc<Shared>) -> Option<Sweeper> {
        let Dangling { enabled, period, creation_grace, dry_run } = *config;
        // Weak: the driver's end must not wait for this.
        let shared = Arc::downgrade(&shared);
        let task = async move {
            loop {
                tokio::time::sleep(period.max(creation_grace)).await;
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                let path = format!("/containers/json?all=true&filters={}", filters(&[("label", LABEL_TASK_ID)]));
                let listed: Vec<Listed> = match engine.get("look for containers without a task", &path).await {
                    Ok(listed) => listed,
                    Err(error) => {
                        tracing::debug!(%error, "will look for containers without a task later");
                        continue;
                    }
                };
                let tasks = lock(&shared.tasks).keys().cloned().collect();
                let nodes = lock(&shared.nodes).clone();
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                for container in dangling(&listed, &tasks, &nodes, now, creation_grace) {
                    if dry_run {
                        tracing::info!(container, "belongs to no task; gc.dangling_containers.dry_run keeps it");
                        continue;
                    }
                    tracing::warn!(container, "belongs to no task, removing it");
                    if let Err(error) = start::remove(&engine, &container).await {
                        tracing::warn!(container, %error, "not removed");
                    }
                }
            }
        };
        enabled.then(|| Sweeper(tokio::spawn(task)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_containers_of_this_node_without_a_task_go() {
        let listed = |id: &str, task: &str, node: &str, created: i64| Listed {
            id: id.into(),
            labels: [(LABEL_TASK_ID.to_owned(), task.to_owned()), (LABEL_NODE.to_owned(), node.to_owned())].into(),
            created,
            ..Listed::default()
        };
        let all = [
            listed("known", "t1", "n1", 10),
            listed("lost", "t2", "n1", 10),
            listed("young", "t3", "n1", 950),
            listed("other", "t4", "n2", 10),
            Listed { id: "foreign".into(), created: 10, ..Listed::default() },
        ];
        let found =
            dangling(&all, &["t1".to_owned()].into(), &["n1".to_owned()].into(), 1000, Duration::from_secs(300));
        assert_eq!(found, ["lost"]);
        assert!(
            dangling(&all, &HashSet::new(), &BTreeSet::new(), 1000, Duration::ZERO).is_empty(),
            "no node known, nothing touched"
        );
    }
}
