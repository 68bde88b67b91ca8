//! The jobs that each new or changed node concerns: an index, because nodes change often and other jobs are many.

use std::sync::Arc;

use model::{
    ids::JobKey,
    job::{Job, job_type},
};

use crate::State;

impl State {
    /// The system and sysbatch jobs that are neither stopped nor templates, by namespace and id. The cost depends on
    /// their number only.
    pub fn system_jobs(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.system_jobs.iter().filter_map(|key| self.jobs.get(key))
    }

    /// A job has become this one, or is gone.
    pub(crate) fn index_system_job(&mut self, key: &JobKey, job: Option<&Job>) {
        let concerned = |job: &Job| job_type::everywhere(&job.kind) && !job.stopped() && !job.is_template();
        if job.is_some_and(concerned) {
            self.system_jobs.insert(key.clone());
        } else {
            self.system_jobs.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::job::Parameterized;

    use super::*;
    use crate::{Batch, Change, Row, Table};

    #[derive(Default)]
    struct World {
        state: State,
        disk: BTreeMap<(Table, Vec<u8>), Row>,
    }

    impl World {
        fn apply(&mut self, change: Change) {
            let set = self.state.apply(self.state.latest_index() + 1, 1, Batch::new(vec![change])).expect("applies");
            let rows = set.rows(&self.state).into_iter();
            self.disk.extend(rows.map(|row| ((row.table, row.key.clone()), row)));
        }

        fn register(&mut self, id: &str, kind: &str, template: bool) {
            let job = Job {
                namespace: "default".into(),
                id: id.into(),
                kind: kind.into(),
                parameterized_job: template.then(Parameterized::default),
                ..Job::default()
            };
            self.apply(Change::UpsertJob { job: Box::new(job), submission: None });
        }

        /// In the state, which must be what is found in one that was loaded.
        fn found(&self) -> Vec<String> {
            let ids = |s: &State| s.system_jobs().map(|job| job.id.to_string()).collect::<Vec<_>>();
            let loaded = State::load(self.disk.values().cloned()).expect("loads");
            assert_eq!(ids(&loaded), ids(&self.state));
            ids(&loaded)
        }
    }

    #[test]
    fn the_index_holds_what_a_search_finds() {
        let mut w = World::default();
        for (id, kind, template) in [
            ("a", "system", false),
            ("b", "sysbatch", false),
            ("c", "service", false),
            ("d", "batch", false),
            ("e", "sysbatch", true),
            ("f", "system", false),
        ] {
            w.register(id, kind, template);
        }
        assert_eq!(w.found(), ["a", "b", "f"]);
        w.apply(Change::StopJob(JobKey::new("default", "a")));
        w.apply(Change::DeleteJob(JobKey::new("default", "f")));
        assert_eq!(w.found(), ["b"]);
        w.register("a", "system", false);
        w.register("b", "service", false);
        assert_eq!(w.found(), ["a"], "a job that starts again is back, one of another type is not");
    }
}
