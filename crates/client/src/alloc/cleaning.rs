//! Clean-ups of ended tasks, and the starts that wait for them: a clean-up takes away what a start makes.

use std::{collections::BTreeMap, sync::Arc};

use lifecycle::alloc::machine::Effect;

/// Tasks that are cleaned up, or about to be.
#[derive(Default)]
pub(crate) struct Cleaning(BTreeMap<Arc<str>, OfTask>);

#[derive(Default)]
struct OfTask {
    /// Clean-ups that are under way.
    works: usize,
    /// The start that waits for them. The lifecycle of a task has one at a time.
    start: Option<Effect>,
}

impl Cleaning {
    /// One is about to begin.
    pub(crate) fn announce(&mut self, task: Arc<str>) {
        self.0.entry(task).or_default();
    }

    /// One begins.
    pub(crate) fn begun(&mut self, task: Arc<str>) {
        self.0.entry(task).or_default().works += 1;
    }

    /// One has ended; with the last one the start that has waited goes on.
    pub(crate) fn ended(&mut self, task: &str) -> Option<Effect> {
        let of_task = self.0.get_mut(task)?;
        of_task.works = of_task.works.saturating_sub(1);
        if of_task.works > 0 {
            return None;
        }
        self.0.remove(task)?.start
    }

    /// Has a start wait. Gives it back where nothing of its task is being cleaned up.
    pub(crate) fn wait(&mut self, task: &str, start: Effect) -> Option<Effect> {
        match self.0.get_mut(task).filter(|of_task| of_task.works > 0) {
            Some(of_task) => {
                of_task.start = Some(start);
                None
            }
            None => Some(start),
        }
    }

    /// No start waits any more.
    pub(crate) fn let_go(&mut self) -> Vec<Effect> {
        self.0.values_mut().filter_map(|of_task| of_task.start.take()).collect()
    }

    /// None is under way, whatever was noted; the starts that waited.
    pub(crate) fn none_left(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.0).into_values().filter_map(|of_task| of_task.start).collect()
    }

    /// Of this task something is being cleaned up, or about to be.
    pub(crate) fn contains(&self, task: &str) -> bool {
        self.0.contains_key(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(task: &str) -> Effect {
        Effect::Start { task: task.into(), run: format!("a/{task}/1") }
    }

    #[test]
    fn a_start_waits_for_the_last_clean_up_of_its_own_task() {
        let mut cleaning = Cleaning::default();
        assert_eq!(cleaning.wait("t", start("t")), Some(start("t")));
        cleaning.announce("t".into());
        assert!(cleaning.contains("t") && !cleaning.contains("other"));
        // Two ends of the task, one soon after the other.
        cleaning.begun("t".into());
        cleaning.announce("t".into());
        cleaning.begun("t".into());
        assert_eq!(cleaning.wait("other", start("other")), Some(start("other")));
        assert_eq!(cleaning.wait("t", start("t")), None);
        assert_eq!(cleaning.ended("t"), None);
        assert!(cleaning.contains("t"));
        assert_eq!(cleaning.ended("t"), Some(start("t")));
        assert!(!cleaning.contains("t"));
        assert_eq!((cleaning.ended("t"), cleaning.wait("t", start("t"))), (None, Some(start("t"))));
    }

    #[test]
    fn a_clean_up_that_breaks_off_keeps_no_start_for_ever() {
        let mut cleaning = Cleaning::default();
        cleaning.begun("t".into());
        assert_eq!(cleaning.wait("t", start("t")), None);
        assert_eq!(cleaning.none_left(), [start("t")]);
        assert_eq!(cleaning.wait("t", start("t")), Some(start("t")));
    }

    #[test]
    fn none_waits_when_its_agent_ends() {
        let mut cleaning = Cleaning::default();
        cleaning.begun("t".into());
        assert_eq!(cleaning.wait("t", start("t")), None);
        assert_eq!(cleaning.let_go(), [start("t")]);
        assert_eq!(cleaning.ended("t"), None);
    }
}
