//! Moves the data of an allocation to its replacement on the same node, when the group's `ephemeral_disk` is sticky.
//!
//! It moves the shared `alloc/data` and each task's `local`, by one rename each. An agent killed in between continues
//! where it stopped.

use std::{fs, io, path::PathBuf, time::Duration};

use host::{
    clock::now_ns,
    dirs::{AllocDirs, Keeper},
    node_env::{NodeEnv, TaskSpec},
    seeds::Seeds,
};
use lifecycle::alloc::{events, machine::StartFailure};
use model::TaskGroup;
use tokio_util::sync::CancellationToken;

use crate::{
    discovery::Discovery,
    hook::{Given, Hook, Prepared, Starting},
    migrate,
    place::TaskPlace,
    present::Present,
};

/// Takes the data of former allocations over.
pub struct FormerData {
    /// Finds the directories of allocations.
    pub env: NodeEnv,
    /// The allocations on this node.
    pub present: Box<dyn Present>,
    /// The way to the servers.
    pub discovery: Discovery,
    /// Names for attempts.
    pub seeds: Seeds,
    /// How long one start asks for the data of another node that nobody gives it.
    pub patience: Duration,
}

impl Hook for FormerData {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, _: &'a mut Given) -> Prepared<'a> {
        Box::pin(self.take_over(starting.place, starting.spec, starting.interrupted))
    }
}

impl FormerData {
    /// Waits for the end of the previous allocation and takes its data over. Does nothing without a sticky disk, or
    /// when the previous allocation ran elsewhere. Tasks of an allocation may call this at the same time.
    async fn take_over(
        &self,
        place: &TaskPlace,
        spec: TaskSpec<'_>,
        interrupted: &CancellationToken,
    ) -> Result<(), StartFailure> {
        let group = spec.group;
        self.bring(place, spec, interrupted).await?;
        let previous = place.alloc.previous_allocation;
        if !wanted(group) || previous.is_nil() {
            return Ok(());
        }
        let from = self.env.dirs(previous);
        if !from.root.exists() {
            return Ok(());
        }
        if let Some(end) = self.present.end_of(previous) {
            if !end.over {
                let what =
                    format!("Waiting for the previous allocation {} to end: its data is taken over", previous.short());
                place.tell(events::setup(now_ns(), &what));
            }
            tokio::select! {
                biased;
                () = interrupted.cancelled() => return Err(StartFailure::Interrupted),
                () = end.wait => {}
            }
        }
        if migrate::unfinished(&from) {
            let previous = previous.short();
            let what = format!(
                "The previous allocation {previous} never received the data of the one before it, the disk is empty"
            );
            place.tell(events::setup(now_ns(), &what));
        }
        let to = place.dirs.clone();
        let tasks: Vec<String> = group.tasks.iter().map(|t| t.name.to_string()).collect();
        let moved =
            blocking::spawn(move || move_data(&from, &to, &tasks)).await.unwrap_or_else(|e| Err(io::Error::other(e)));
        moved.map_err(|e| StartFailure::Setup {
            why: format!("take over the data of the previous allocation {previous}: {e}"),
            recoverable: true,
        })
    }
}

/// Whether the group keeps its data from one allocation to the next.
pub fn wanted(group: &TaskGroup) -> bool {
    group.migrates_data() || group.ephemeral_disk.as_ref().is_some_and(|disk| disk.sticky == Some(true))
}

pub(super) fn move_data(from: &AllocDirs, to: &AllocDirs, tasks: &[String]) -> io::Result<()> {
    to.create()?;
    let mut pairs: Vec<(PathBuf, PathBuf)> = vec![(from.shared().join("data"), to.shared().join("data"))];
    for task in tasks {
        to.task(task).create(Keeper::Agent)?;
        pairs.push((from.task(task).local, to.task(task).local));
    }
    for (from, to) in pairs {
        // Replaces the empty directory that was made before.
        match fs::rename(&from, &to) {
            Ok(()) => tracing::info!(from = %from.display(), to = %to.display(), "data taken over"),
            // Moved earlier, by another start or for another task of the group.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // The allocation has data of its own already: keep both.
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                tracing::warn!(from = %from.display(), to = %to.display(), "data stays where it is: the allocation \
                    has its own");
            }
            Err(e) => {
                return Err(io::Error::new(e.kind(), format!("move {} to {}: {e}", from.display(), to.display())));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use model::AllocId;

    use super::*;

    #[test]
    fn data_moves_once_and_is_never_overwritten() {
        let dir = tempfile::tempdir().expect("temp dir");
        let dirs = || AllocDirs::new(dir.path(), AllocId(uuid::Uuid::new_v4()));
        let (from, to) = (dirs(), dirs());
        let tasks = ["a".to_owned(), "b".to_owned()];
        from.create().expect("made");
        from.task("a").create(Keeper::Agent).expect("made");
        fs::write(from.shared().join("data/d"), "d").expect("file");
        fs::write(from.task("a").local.join("l"), "l").expect("file");
        for _ in 0..2 {
            // The second call has nothing left to move; `b` is new.
            move_data(&from, &to, &tasks).expect("moved");
        }
        let text = |path: PathBuf| fs::read_to_string(path).expect("there");
        assert_eq!((text(to.shared().join("data/d")), text(to.task("a").local.join("l"))), ("d".into(), "l".into()));
        assert!(to.task("b").local.is_dir() && from.logs().is_dir(), "logs stay with the allocation that wrote them");
        let again = dirs();
        again.create().expect("made");
        fs::write(again.shared().join("data/d"), "other").expect("file");
        move_data(&again, &to, &tasks).expect("nothing is overwritten");
        assert_eq!(
            (text(to.shared().join("data/d")), text(again.shared().join("data/d"))),
            ("d".into(), "other".into())
        );
    }
}
