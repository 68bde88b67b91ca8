//! What a server has said in this session: jobs, which it says once, and full sets that come in pieces.

use std::{collections::HashMap, sync::Arc};

use api::node_rpc::{self, Allocs, RemoteOrders};
use model::{Allocation, Job, JobKey, RemoteOrder, StoreIndex};
use node_record::store::StoredJob;

use crate::{
    known_job::KnownJob,
    session::{Ended, FromServer, Placed},
};

/// Above this many, jobs that no allocation uses are dropped; one that is referred to again makes the session start
/// over.
const JOBS_KEPT: usize = 1024;

/// What one session has heard; the next one begins anew.
#[derive(Default)]
pub(crate) struct Heard {
    /// By name, version and JobModifyIndex: a job that was purged and registered anew begins again at version 0, and
    /// allocations of both may be on this node.
    jobs: HashMap<(JobKey, u64, StoreIndex), KnownJob>,
    /// Of a full set whose last piece has not come.
    allocs: Vec<Placed>,
    /// The same for orders.
    orders: Vec<RemoteOrder>,
}

impl Heard {
    /// Whether another piece of a full set follows.
    pub(crate) fn is_open(&self) -> bool {
        !self.allocs.is_empty() || !self.orders.is_empty()
    }

    /// Takes allocations; what the node is to act on, unless another piece follows.
    pub(crate) fn allocs(&mut self, message: Allocs) -> Result<Option<FromServer>, Ended> {
        for json in message.jobs_json {
            let job: Job = node_rpc::from_json("a job", &json)?;
            let key = (job.key(), job.version, job.job_modify_index);
            self.jobs.insert(key, KnownJob::new(job, StoredJob::new(json)));
        }
        // A server that does not name them has sent no more than one job of a name and version.
        let indexes = message.job_indexes.iter().copied().map(Some).chain(std::iter::repeat(None));
        // A server of an earlier release proves nothing.
        let proofs = message.proofs.into_iter().chain(std::iter::repeat(String::new()));
        for ((json, index), proof) in message.allocs_json.iter().zip(indexes).zip(proofs) {
            let mut alloc: Allocation = node_rpc::from_json("an allocation", json)?;
            let (job, version) = (alloc.job_key(), alloc.job_version);
            let found = match index {
                Some(index) => self.jobs.get_mut(&(job.clone(), version, index)),
                None => self
                    .jobs
                    .iter_mut()
                    .filter(|((k, v, _), _)| *k == job && *v == version)
                    .max_by_key(|((.., index), _)| *index)
                    .map(|(_, j)| j),
            };
            let Some(known) = found else {
                // A new session makes the server send it again.
                return Err(Ended::MissingJob { job, version });
            };
            known.share(&mut alloc);
            let proof = (!proof.is_empty()).then(|| Arc::from(proof));
            let (job, stored) = (known.job.clone(), known.stored.clone());
            self.allocs.push(Placed { alloc: Arc::new(alloc), job, stored, proof });
        }
        if self.jobs.len() > JOBS_KEPT {
            self.jobs.retain(|_, known| Arc::strong_count(&known.job) > 1);
        }
        let removed = message.removed.iter().filter_map(|id| id.parse().ok()).collect();
        let all = |allocs| FromServer::Allocs { full: message.full, allocs, removed };
        Ok((!message.more).then(|| all(std::mem::take(&mut self.allocs))))
    }

    /// As [`Self::allocs`], with orders.
    pub(crate) fn orders(&mut self, message: RemoteOrders) -> Result<Option<FromServer>, Ended> {
        for json in &message.orders_json {
            self.orders.push(node_rpc::from_json("a remote order", json)?);
        }
        let all = |orders| FromServer::Orders { full: message.full, orders, released: message.released };
        Ok((!message.more).then(|| all(std::mem::take(&mut self.orders))))
    }
}

#[cfg(test)]
mod tests {
    use model::{AllocId, SlotParts};

    use super::*;

    #[test]
    fn allocations_of_a_job_and_of_its_namesake_after_a_purge_keep_their_own() {
        let job = |index: StoreIndex| Job {
            id: "j".into(),
            name: format!("registered at {index}"),
            job_modify_index: index,
            ..Job::default()
        };
        let alloc =
            |n: u128| Allocation { id: AllocId(uuid::Uuid::from_u128(n)), job_id: "j".into(), ..Allocation::default() };
        let names = |message: Allocs, heard: &mut Heard| -> Vec<String> {
            let Some(FromServer::Allocs { allocs, .. }) = heard.allocs(message).expect("decodes") else {
                panic!("allocations expected")
            };
            allocs.into_iter().map(|placed| placed.job.name.clone()).collect()
        };
        let mut heard = Heard::default();
        let both = Allocs {
            allocs_json: [1, 2].map(|n| node_rpc::to_json(&alloc(n))).into(),
            jobs_json: [7, 30].map(|index| node_rpc::to_json(&job(index))).into(),
            job_indexes: vec![7, 30],
            ..Allocs::default()
        };
        assert_eq!(names(both, &mut heard), ["registered at 7", "registered at 30"]);
        let later =
            |job_indexes| Allocs { allocs_json: vec![node_rpc::to_json(&alloc(1))], job_indexes, ..Allocs::default() };
        assert_eq!(names(later(vec![7]), &mut heard), ["registered at 7"], "sent before, in the same session");
        assert_eq!(names(later(Vec::new()), &mut heard), ["registered at 30"], "a server that does not say which");
        assert!(matches!(heard.allocs(later(vec![8])), Err(Ended::MissingJob { .. })));
    }

    #[test]
    fn a_full_set_counts_once_all_of_its_pieces_are_there() {
        let job = Job { id: "j".into(), ..Job::default() };
        let id = |n| AllocId(uuid::Uuid::from_u128(n));
        let alloc = |n| Allocation { id: id(n), job_id: "j".into(), ..Allocation::default() };
        let piece = |n, more| Allocs {
            full: true,
            allocs_json: vec![node_rpc::to_json(&alloc(n))],
            // It was said with the first.
            jobs_json: (n == 1).then(|| node_rpc::to_json(&job)).into_iter().collect(),
            more,
            ..Allocs::default()
        };
        let mut heard = Heard::default();
        assert!(heard.allocs(piece(1, true)).expect("decodes").is_none());
        assert!(heard.allocs(piece(2, true)).expect("decodes").is_none());
        assert!(heard.is_open());
        for (last, all) in [(3, vec![1, 2, 3]), (4, vec![4])] {
            let Some(FromServer::Allocs { full: true, allocs, .. }) =
                heard.allocs(piece(last, false)).expect("decodes")
            else {
                panic!("the full set expected")
            };
            assert_eq!(
                allocs.iter().map(|placed| placed.alloc.id).collect::<Vec<_>>(),
                all.into_iter().map(id).collect::<Vec<_>>()
            );
        }

        let slot = |index| SlotParts {
            namespace: "default".into(),
            job_id: "j".into(),
            group: "g".into(),
            index,
            task: "t".into(),
        };
        let order = |n| RemoteOrder { slot: slot(n).into(), ..RemoteOrder::default() };
        let piece = |n, more| RemoteOrders {
            full: true,
            orders_json: vec![node_rpc::to_json(&order(n))],
            more,
            ..RemoteOrders::default()
        };
        assert!(heard.orders(piece(1, true)).expect("decodes").is_none());
        let Some(FromServer::Orders { full: true, orders, .. }) = heard.orders(piece(2, false)).expect("decodes")
        else {
            panic!("the full set expected")
        };
        assert_eq!(orders.into_iter().map(|order| order.slot).collect::<Vec<_>>(), [slot(1).into(), slot(2).into()]);
        assert!(!heard.is_open());
    }
}
