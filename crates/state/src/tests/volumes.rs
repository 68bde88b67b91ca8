//! Dynamic host volumes and claims: random steps, their indexes, and what goes with what is deleted.

use model::{ClaimId, DynamicVolume, VolumeClaim, VolumeId, job::VolumeRequest};

use super::*;

/// One random change of volumes. Claims come with placements of jobs that have [`sticky`] groups.
#[derive(Clone, Debug)]
pub(super) enum VolumeStep {
    /// Which, and its node.
    Put(u8, u8),
    Drop(u8),
    /// The claim of that place in their order.
    DropClaim(u8),
}

pub(super) fn volume_step() -> impl Strategy<Value = VolumeStep> {
    let small = || 0..4_u8;
    prop_oneof![
        4 => (small(), small()).prop_map(|(n, node)| VolumeStep::Put(n, node)),
        1 => small().prop_map(VolumeStep::Drop),
        1 => small().prop_map(VolumeStep::DropClaim),
    ]
}

/// What a group asks for that stays with its volumes.
pub(super) fn sticky() -> BTreeMap<String, VolumeRequest> {
    let (kind, source) = ("host".to_owned(), "data".to_owned());
    BTreeMap::from([("v".to_owned(), VolumeRequest { kind, source, sticky: true, ..VolumeRequest::default() })])
}

pub(super) fn volume_changes(state: &State, step: &VolumeStep) -> Vec<Change> {
    match step {
        VolumeStep::Put(n, node) => vec![Change::PutVolume(Box::new(DynamicVolume {
            id: VolumeId(uuid(6, *n)),
            namespace: "default".into(),
            name: "data".into(),
            node_id: NodeId(uuid(1, *node)),
            ..DynamicVolume::default()
        }))],
        VolumeStep::Drop(n) => vec![Change::DeleteVolume(VolumeId(uuid(6, *n)))],
        VolumeStep::DropClaim(n) => {
            let claim = state.volume_claims_onward(None, false).nth(usize::from(*n));
            claim.map(|claim| Change::DeleteVolumeClaim(claim.id)).into_iter().collect()
        }
    }
}

fn volumes(s: &State) -> Vec<Arc<DynamicVolume>> {
    s.volumes_onward(None, false).cloned().collect()
}

fn claims(s: &State) -> Vec<Arc<VolumeClaim>> {
    s.volume_claims_onward(None, false).cloned().collect()
}

/// Every row and every index.
pub(super) fn volume_view(s: &State) -> Vec<String> {
    let mut out: Vec<String> = volumes(s).iter().map(|x| format!("{x:?}")).collect();
    out.extend(claims(s).iter().map(|x| format!("{x:?}")));
    out.push(format!("{:?} {:?}", s.volumes.by_node, s.volumes.by_job));
    out
}

pub(super) fn check_volumes(s: &State) {
    let (volumes, claims) = (volumes(s), claims(s));
    for n in 0..4 {
        let node = NodeId(uuid(1, n));
        let of: Vec<_> = s.volumes_of(node).map(|volume| volume.id).collect();
        assert_eq!(of, volumes.iter().filter(|v| v.node_id == node).map(|v| v.id).collect::<Vec<_>>());
        let of: Vec<ClaimId> = s.volume_claims_of(&key(n)).map(|claim| claim.id).collect();
        assert_eq!(of, claims.iter().filter(|c| c.job_key() == key(n)).map(|c| c.id).collect::<Vec<_>>());
    }
    for claim in &claims {
        assert!(s.volume(claim.volume_id).is_some(), "a claim on nothing: {claim:?}");
        let same = claims.iter().filter(|c| (&c.job_id, c.volume_id) == (&claim.job_id, claim.volume_id));
        assert_eq!(same.count(), 1, "two claims of one group on one volume");
    }
}

#[test]
fn volumes_and_claims_go_with_what_they_belong_to() {
    let mut state = State::new();
    let node = |n: u8, gc_volumes| {
        Change::RegisterNode(Box::new(Node { id: NodeId(uuid(1, n)), gc_volumes, ..Node::default() }))
    };
    let apply = |state: &mut State, changes: Vec<Change>| {
        let index = state.latest_index() + 1;
        state.apply(index, 0, changes.into()).expect("it applies");
    };
    let put = |state: &State, n: u8| volume_changes(state, &VolumeStep::Put(n, n)).remove(0);
    let (first, second) = (put(&state, 0), put(&state, 1));
    apply(&mut state, vec![node(0, true), node(1, false), first, second]);
    let mut job = job(0, 2);
    job.task_groups[0].volumes = sticky();
    apply(&mut state, vec![Change::UpsertJob { job: Box::new(job), submission: None }]);
    let placed = plan(&state, 0, &[(0, 0, 0), (1, 1, 0)], &[], None, false);
    apply(&mut state, placed);
    assert_eq!(claims(&state).len(), 2);
    // The operator of one node wants its volumes forgotten with it, that of the other does not.
    apply(&mut state, vec![Change::DeleteNode(NodeId(uuid(1, 0))), Change::DeleteNode(NodeId(uuid(1, 1)))]);
    let left: Vec<_> = volumes(&state).iter().map(|volume| volume.id).collect();
    assert_eq!((left, claims(&state).len()), (vec![VolumeId(uuid(6, 1))], 1));
    apply(&mut state, vec![Change::DeleteJob(key(0))]);
    assert_eq!((volumes(&state).len(), claims(&state).len()), (1, 0));
}
