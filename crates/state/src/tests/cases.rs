//! Single histories, each for one rule.

use model::signing::{Algorithm, KeyState, SigningKey};

use super::*;

#[test]
fn what_outlives_a_purge_is_not_counted_for_the_next_job_of_its_name() {
    let mut s = State::new();
    put_job(&mut s, 1);
    let placed = plan(&s, 0, &[(3, 0, 0)], &[], None, false);
    apply(&mut s, placed);
    let summary = |s: &State| s.job_summary(&key(0)).and_then(|all| all.summary.get("g").copied()).unwrap_or_default();
    assert_eq!(summary(&s).starting, 1);
    apply(&mut s, vec![Change::DeleteJob(key(0))]);
    put_job(&mut s, 1);
    let mut taken_over = s.clone();
    let again = plan(&taken_over, 0, &[(3, 0, 0)], &[], None, false);
    apply(&mut taken_over, again);
    assert_eq!(summary(&taken_over).starting, 1);
    let ends = changes(&s, &Step::Client(3, 2, None));
    for end in [ends, vec![Change::DeleteAllocs(vec![AllocId(uuid(4, 3))])]] {
        apply(&mut s, end);
        assert_eq!(summary(&s), crate::GroupSummary::default());
    }
}

#[test]
fn what_is_left_of_a_purged_job_goes_with_its_end() {
    let mut s = State::new();
    put_job(&mut s, 2);
    let placed = plan(&s, 0, &[(3, 0, 0), (4, 0, 1)], &[], None, false);
    apply(&mut s, placed);
    let ended = changes(&s, &Step::Client(3, 2, None));
    apply(&mut s, ended);
    let known = |s: &State| s.allocs_by_job(&key(0)).map(|a| a.id).collect::<Vec<_>>();
    assert_eq!(known(&s).len(), 2, "while the job is there its allocations are");
    apply(&mut s, vec![Change::DeleteJob(key(0))]);
    assert_eq!(known(&s), [AllocId(uuid(4, 4))], "what runs is not forgotten");
    // A new job of that name has nothing to do with it.
    put_job(&mut s, 1);
    let ended = changes(&s, &Step::Client(4, 2, None));
    apply(&mut s, ended);
    assert!(known(&s).is_empty());
}

#[test]
fn the_deployments_of_a_purged_job_go_with_it() {
    let mut s = State::new();
    put_job(&mut s, 1);
    let placed = plan(&s, 0, &[(3, 0, 0)], &[], Some(0), false);
    apply(&mut s, placed);
    assert_eq!(s.deployments_by_job(&key(0)).count(), 1);
    apply(&mut s, vec![Change::DeleteJob(key(0))]);
    assert_eq!(s.deployments().count(), 0);
    // It outlives the job and names a deployment that is gone.
    let healthy = changes(&s, &Step::Client(3, 1, Some(true)));
    apply(&mut s, healthy);
    assert_eq!(s.deployments().count(), 0);
}

#[test]
fn only_decisions_say_how_many_wait() {
    let mut s = State::new();
    put_job(&mut s, 2);
    let eval = |n: u8, status: EvalStatus, queued: i64| Evaluation {
        id: EvalId(uuid(2, n)),
        namespace: "default".into(),
        job_id: "job0".into(),
        status,
        queued: [("g".into(), queued)].into(),
        ..Evaluation::default()
    };
    let queued = |s: &State| s.job_summary(&key(0)).map(|all| all.summary["g"].queued);
    apply(&mut s, vec![Change::UpsertEvals(vec![eval(1, EvalStatus::Blocked, 1)])]);
    assert_eq!(queued(&s), Some(1));
    // Everything is placed, and the blocked evaluation is cancelled.
    apply(&mut s, vec![Change::UpsertEvals(vec![eval(2, EvalStatus::Complete, 0)])]);
    let blocked = s.eval(EvalId(uuid(2, 1))).map(|e| e.status);
    assert_eq!((queued(&s), blocked), (Some(0), Some(EvalStatus::Canceled)));
}

#[test]
fn switches_of_preemption_are_kept_and_system_jobs_may_by_default() {
    let fresh = State::new();
    assert!(fresh.scheduler_config().preemption_config.allows("system"), "as in Nomad");
    assert!(!["service", "batch", "sysbatch"].iter().any(|k| fresh.scheduler_config().preemption_config.allows(k)));
    let value = br#"{"SchedulerAlgorithm":"spread","PreemptionConfig":{"BatchSchedulerEnabled":true}}"#.to_vec();
    let mut disk = Disk::default();
    let mut s = State::new();
    let set = apply(&mut s, vec![Change::SetSchedulerConfig(Default::default())]);
    disk.write(set.rows(&s));
    let key = disk.0.keys().find(|(t, _)| *t == Table::SchedulerConfig).expect("written").clone();
    disk.0.insert(key, value);
    let config = disk.load().scheduler_config().clone();
    let preemption = &config.preemption_config;
    assert_eq!((preemption.allows("batch"), preemption.allows("system")), (true, false));
}

#[test]
fn signing_keys_have_a_row_each_and_the_index_of_their_making() {
    let key = |n: u8, create_index| SigningKey {
        id: uuid(9, n),
        algorithm: Algorithm::EdDsa,
        state: KeyState::Active,
        create_time: i64::from(n),
        create_index,
        modify_index: 0,
        wrapped_key: format!("secret {n}"),
        wrapped_data_key: None,
        publish_time: 0,
    };
    let put = |n, create_index| Change::PutSigningKey(Box::new(key(n, create_index)));
    let indexes = |s: &State| s.signing_keys().map(|k| (k.id, k.create_index, k.modify_index)).collect::<Vec<_>>();
    let (mut s, mut disk) = (State::new(), Disk::default());
    assert_eq!((s.index(Table::SigningKeys), s.signing_keys().count()), (1, 0));
    let mut index = 40;
    let mut apply = |s: &mut State, changes: Vec<Change>| {
        index += 10;
        let set = s.apply(index, 0, changes.into()).expect("applies");
        assert!(set.changes.iter().all(|c| c.object.table() == Table::SigningKeys && c.object.job_key().is_none()));
        disk.write(set.rows(s));
        assert_eq!(view(&disk.load()), view(s));
    };
    // New, made by an earlier server, and from a history that is further than this one.
    apply(&mut s, vec![put(1, 0), put(2, 7), put(3, 900)]);
    assert_eq!(indexes(&s), [(uuid(9, 1), 50, 50), (uuid(9, 2), 7, 50), (uuid(9, 3), 50, 50)]);
    let inactive = SigningKey { state: KeyState::Inactive, ..key(2, 0) };
    apply(&mut s, vec![Change::PutSigningKey(Box::new(inactive.clone())), Change::DeleteSigningKey(uuid(9, 3))]);
    assert_eq!(indexes(&s), [(uuid(9, 1), 50, 50), (uuid(9, 2), 7, 60)]);
    let expected = SigningKey { create_index: 7, modify_index: 60, ..inactive };
    assert_eq!(s.signing_key(uuid(9, 2)).map(|k| (**k).clone()), Some(expected));
    apply(&mut s, vec![Change::DeleteSigningKey(uuid(9, 1)), Change::DeleteSigningKey(uuid(9, 2))]);
    assert_eq!((s.index(Table::SigningKeys), s.signing_keys().count()), (70, 0));
    // They are told apart from decisions: nothing is created or stopped by them.
    assert!(!Batch::new(vec![put(4, 0), Change::DeleteSigningKey(uuid(9, 4))]).waits_for_recovery());
}

#[test]
fn versions_of_a_job() {
    let mut s = State::new();
    put_job(&mut s, 1);
    put_job(&mut s, 1);
    let j = s.job(&key(0)).expect("registered").clone();
    assert_eq!((j.version, j.job_modify_index, j.create_index), (0, 2, 2), "the same specification keeps the version");
    assert_eq!(j.status, "pending");
    apply(&mut s, vec![Change::StopJob(key(0))]);
    assert_eq!(s.job(&key(0)).map(|j| (j.version, j.stop)), Some((1, true)));
    put_job(&mut s, 1);
    assert_eq!(
        s.job(&key(0)).map(|j| (j.version, j.stop, j.create_index)),
        Some((2, false, 2)),
        "a stopped job starts again as a new version"
    );
    apply(&mut s, vec![Change::JobStability { key: key(0), version: 0, stable: true }]);
    for count in 2..12 {
        put_job(&mut s, count);
    }
    let known: Vec<_> = s.job_versions(&key(0)).map(|j| j.version).collect();
    assert_eq!(known, [12, 11, 10, 9, 8, 7, 0], "six, and the last stable one");
}

#[test]
fn a_job_keeps_as_many_versions_as_the_server_is_told() {
    let mut s = State::new();
    let versions = |s: &State| s.job_versions(&key(0)).map(|j| j.version).collect::<Vec<_>>();
    s.keep_versions(2);
    for count in 1..6 {
        put_job(&mut s, count);
    }
    assert_eq!(versions(&s), [4, 3]);
    s.keep_versions(8);
    for count in 6..16 {
        put_job(&mut s, count);
    }
    assert_eq!(versions(&s), [14, 13, 12, 11, 10, 9, 8, 7]);
}

#[test]
fn conditions_refuse_the_whole_batch() {
    let mut s = State::new();
    put_job(&mut s, 1);
    let before = view(&s);
    let batch = Batch::from(Change::StopJob(key(0))).expecting(Expect::JobModifyIndex(key(0), 77));
    let e = s.apply(9, 0, batch).expect_err("the index differs");
    assert!(matches!(&e, ApplyError::Conflict { .. }), "{e}");
    assert!(e.to_string().contains("job default/job0 at index 2"), "{e}");
    assert_eq!(view(&s), before);
    assert!(matches!(s.apply(2, 0, Batch::default()), Err(ApplyError::StaleIndex { given: 2, current: 2 })));
}

#[test]
fn a_deployment_counts_its_allocations() {
    let mut s = State::new();
    put_job(&mut s, 3);
    let d = || s.clone().deployment(DeploymentId(uuid(3, 0))).map(|d| d.groups["g"].clone());
    assert_eq!(d(), None);
    let batch = plan(&s, 0, &[(0, 0, 0), (1, 0, 0), (2, 0, 0)], &[], Some(0), true);
    let set = apply(&mut s, batch);
    assert_eq!(
        set.changes.iter().filter(|c| c.object.table() == Table::Deployments).count(),
        2,
        "made once, counted once"
    );
    let health = |a: u8, h: bool| AllocClientUpdate {
        id: AllocId(uuid(4, a)),
        client_status: ClientStatus::Running,
        deployment_status: Some(AllocDeploymentStatus { healthy: Some(h), ..AllocDeploymentStatus::default() }),
        ..AllocClientUpdate::default()
    };
    apply(&mut s, vec![Change::UpdateAllocsFromClient(vec![health(0, true), health(1, false), health(0, true)])]);
    let g = s.deployment(DeploymentId(uuid(3, 0))).map(|d| d.groups["g"].clone()).expect("made");
    assert_eq!((g.placed_allocs, g.healthy_allocs, g.unhealthy_allocs), (3, 1, 1));
    apply(
        &mut s,
        vec![Change::DeploymentHealth {
            id: DeploymentId(uuid(3, 0)),
            healthy: vec![AllocId(uuid(4, 1))],
            unhealthy: vec![],
        }],
    );
    let g = s.deployment(DeploymentId(uuid(3, 0))).map(|d| d.groups["g"].clone()).expect("made");
    assert_eq!((g.placed_allocs, g.healthy_allocs, g.unhealthy_allocs), (3, 2, 0));
    let update = DeploymentUpdate {
        id: DeploymentId(uuid(3, 0)),
        status: DeploymentStatus::Successful,
        description: String::new(),
    };
    apply(&mut s, vec![Change::DeploymentStatus(update)]);
    assert!(s.job(&key(0)).is_some_and(|j| j.stable), "a version that was rolled out is stable");
    apply(&mut s, vec![Change::StopJob(key(0))]);
    assert!(s.job(&key(0)).is_some_and(|j| j.stop && j.stable), "stopping it takes nothing away from that");
}

#[test]
fn an_allocation_keeps_its_job_when_the_job_is_purged() {
    let (mut s, mut disk) = (State::new(), Disk::default());
    let step = |s: &mut State, disk: &mut Disk, changes: Vec<Change>| {
        let set = apply(s, changes);
        disk.write(set.rows(s));
    };
    step(&mut s, &mut disk, vec![Change::UpsertJob { job: Box::new(job(0, 1)), submission: None }]);
    let placed = plan(&s, 0, &[(0, 0, 0)], &[], None, true);
    step(&mut s, &mut disk, placed);
    step(&mut s, &mut disk, vec![Change::DeleteJob(key(0))]);
    step(&mut s, &mut disk, vec![Change::UpsertJob { job: Box::new(job(0, 2)), submission: None }]);
    let loaded = disk.load();
    let a = loaded.alloc(AllocId(uuid(4, 0))).expect("it outlives the job");
    assert_eq!(
        a.job.as_ref().map(|j| (j.create_index, j.task_groups[0].count)),
        Some((2, Some(1))),
        "not the job that now has the name"
    );
    step(&mut s, &mut disk, vec![Change::DeleteAllocs(vec![AllocId(uuid(4, 0))])]);
    assert!(
        disk.0.keys().all(|(t, _)| ![Table::RetainedJobs, Table::Shared, Table::Allocs].contains(t)),
        "nothing is left behind"
    );
}

#[test]
fn damaged_rows_are_errors() {
    for (table, key, value) in [
        (Table::Allocs, vec![0; 16], vec![9, 9]),
        (Table::Allocs, vec![0; 3], vec![1]),
        (Table::Allocs, vec![0; 16], vec![1, 13, 1, 7]),
        (Table::Allocs, vec![0; 16], vec![1, 200, 1, 7]),
        (Table::Allocs, vec![0; 16], vec![1, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        (Table::Allocs, vec![0; 16], vec![1, 14, 1, 9]),
        (Table::Nodes, vec![0; 16], b"{".to_vec()),
        (Table::Meta, b"index/unheard-of".to_vec(), b"1".to_vec()),
        (Table::Shared, vec![0; 8], b"x".to_vec()),
    ] {
        let e = State::load([Row { table, key, value: Some(value) }]).expect_err("damaged");
        assert_eq!(e.table, table);
        assert!(e.to_string().contains("cannot read a stored row"), "{e}");
    }
}

#[test]
fn stopped_allocations_keep_their_room_until_they_have_ended() {
    let mut s = State::new();
    put_job(&mut s, 2);
    let placed = plan(&s, 0, &[(0, 0, 1), (1, 0, 2)], &[], None, false);
    apply(&mut s, placed);
    let node = NodeId(uuid(1, 0));
    assert_eq!(s.usage(node), NodeUse::default(), "a node that is not registered has no use");
    apply(&mut s, vec![Change::RegisterNode(Box::new(Node { id: node, ..Node::default() }))]);
    assert_eq!((s.usage(node).cpu, s.usage(node).allocs), (300, 2));
    let stopped = plan(&s, 0, &[], &[(0, false)], None, false);
    apply(&mut s, stopped);
    assert_eq!(s.alloc(AllocId(uuid(4, 0))).map(|a| a.desired_status), Some(DesiredStatus::Stop));
    assert_eq!((s.usage(node).cpu, s.usage(node).allocs), (300, 2), "it runs on for its shutdown_delay");
    assert!(s.usage(node).ports.contains("10.0.0.1", 8001));
    let ended = AllocClientUpdate {
        id: AllocId(uuid(4, 0)),
        client_status: ClientStatus::Complete,
        ..AllocClientUpdate::default()
    };
    apply(&mut s, vec![Change::UpdateAllocsFromClient(vec![ended])]);
    assert_eq!((s.usage(node).cpu, s.usage(node).allocs), (200, 1));
    assert!(!s.usage(node).ports.contains("10.0.0.1", 8001));
    assert!(s.usage(node).ports.contains("10.0.0.1", 8002));
}

#[test]
fn classes_come_and_go() {
    let mut s = State::new();
    let node = |n: u8, rack: &str| {
        let mut node = Node { id: NodeId(uuid(1, n)), ..Node::default() };
        node.meta.insert("rack".into(), rack.into());
        node.meta.insert("unique.serial".into(), n.to_string().into());
        Change::RegisterNode(Box::new(node))
    };
    apply(&mut s, vec![node(0, "a"), node(1, "a"), node(2, "b")]);
    assert_eq!(s.fleet().class_count(), 2, "what is unique makes no class");
    for rack in 0..50 {
        apply(&mut s, vec![node(2, &format!("rack-{rack}"))]);
        let slot = s.fleet().slot(NodeId(uuid(1, 2))).expect("registered");
        let name = s.fleet().class_name(s.fleet().facts(slot).class).expect("a class");
        assert_eq!(**name, *s.node(NodeId(uuid(1, 2))).expect("registered").computed_class);
    }
    assert!(s.fleet().class_count() <= 3, "classes without nodes do not pile up");
    apply(&mut s, vec![Change::DeleteNode(NodeId(uuid(1, 0))), node(3, "c")]);
    assert_eq!(s.fleet().len(), 3, "the slot is used again");
    assert!(std::mem::size_of::<Allocation>() <= 600, "an allocation has become large");
}

#[test]
fn a_shared_value_that_comes_and_goes_within_a_batch_has_one_row() {
    let (mut s, mut disk) = (State::new(), Disk::default());
    put_job(&mut s, 2);
    let mut changes = plan(&s, 0, &[(0, 0, 0), (1, 0, 0)], &[], None, true);
    changes.push(Change::DeleteAllocs(vec![AllocId(uuid(4, 0)), AllocId(uuid(4, 1))]));
    changes.extend(plan(&s, 0, &[(2, 0, 0), (3, 0, 0)], &[], None, true));
    let set = apply(&mut s, changes);
    disk.write(set.rows(&s));
    assert_eq!(disk.0.keys().filter(|(t, _)| *t == Table::Shared).count(), s.shared.len());
}

/// The next manager's allocation gets the registration in the batch that names the manager, with the instance's port.
#[test]
fn a_remote_registration_moves_with_its_slot() {
    let mut s = State::new();
    put_job(&mut s, 1);
    for n in [0, 1] {
        let node =
            Node { id: NodeId(uuid(1, n)), status: NodeStatus::Ready, datacenter: format!("dc{n}"), ..Node::default() };
        apply(&mut s, vec![Change::RegisterNode(Box::new(node))]);
        let alloc = Allocation {
            id: AllocId(uuid(4, n)),
            namespace: key(0).namespace,
            job_id: key(0).id,
            name: alloc_name(key(0).id.as_str(), "g", 0).into(),
            task_group: "g".into(),
            node_id: NodeId(uuid(1, n)),
            ..Allocation::default()
        };
        apply(&mut s, vec![Change::UpsertAllocs(vec![alloc])]);
    }
    let report = |n: u8, epoch: u64, port: i32, given_port: bool| {
        let entries = vec![ServiceEntry { port, given_port, ..entry(0) }];
        Change::UpdateAllocsFromClient(vec![AllocClientUpdate {
            id: AllocId(uuid(4, n)),
            client_status: ClientStatus::Running,
            services: Some(Vec::new()),
            remote_services: model::Map::from([(Arc::from("t"), RemoteServices { epoch, entries })]),
            ..AllocClientUpdate::default()
        }])
    };
    let managed =
        |n: Option<u8>, epoch: u64| Change::PutRemoteTask(Box::new(RemoteTask { epoch, ..remote(0, n, None) }));
    let seen = |s: &State| s.services().map(|r| (r.id.to_string(), r.datacenter.clone(), r.port)).collect::<Vec<_>>();
    let at = |n: u8, port: i32| vec![(format!("_nomad-task-{}-g-0", AllocId(uuid(4, n))), format!("dc{n}"), port)];
    apply(&mut s, vec![managed(Some(0), 1), report(0, 1, 7000, true)]);
    assert_eq!(seen(&s), at(0, 7000));
    apply(&mut s, vec![managed(Some(1), 2)]);
    assert_eq!(seen(&s), at(1, 7000), "moved with the management");
    apply(&mut s, vec![report(0, 1, 7000, true), report(1, 1, 1, false)]);
    assert_eq!(seen(&s), at(1, 7000), "who does not manage it under this epoch has nothing to say");
    apply(&mut s, vec![report(1, 2, 8000, true)]);
    assert_eq!(seen(&s), at(1, 7000), "it listens where it was told to at its creation");
    apply(&mut s, vec![report(1, 2, 9000, false)]);
    assert_eq!(seen(&s), at(1, 9000), "what its runtime says goes");
    let elsewhere = Manager { node_id: NodeId(uuid(1, 0)), alloc_id: AllocId(uuid(4, 1)) };
    let record = RemoteTask { manager: Some(elsewhere), epoch: 3, ..remote(0, None, None) };
    apply(&mut s, vec![Change::PutRemoteTask(Box::new(record)), report(1, 3, 9999, false), managed(Some(1), 4)]);
    assert_eq!(seen(&s), at(1, 9000), "only the node of an allocation speaks for what that manages");
    apply(&mut s, vec![managed(None, 2), Change::DeleteAllocs(vec![AllocId(uuid(4, 0)), AllocId(uuid(4, 1))])]);
    assert_eq!(seen(&s), at(1, 9000), "unmanaged, with its allocations collected");
    apply(
        &mut s,
        vec![Change::NodeStatus {
            id: NodeId(uuid(1, 1)),
            status: NodeStatus::Down,
            description: String::new(),
            event: None,
        }],
    );
    assert_eq!(seen(&s), at(1, 9000), "its manager's end is not its own");
    apply(&mut s, vec![Change::DeleteRemoteTask(slot(0))]);
    assert_eq!(seen(&s), vec![]);
}

#[test]
fn a_follower_counts_what_moves_to_another_job_within_one_batch() {
    let (mut state, mut followed) = (State::new(), State::new());
    let of_job = |s: &State, job: u8| {
        [
            Step::Plan { job, allocs: vec![(6, 0, 0)], stops: Vec::new(), deployment: Some(1), shared: false },
            Step::Eval(2, job, 1),
        ]
        .iter()
        .flat_map(|step| changes(s, step))
        .collect::<Vec<_>>()
    };
    type Decides<'a> = &'a dyn Fn(&State) -> Vec<Change>;
    let histories: [Decides<'_>; 4] =
        [&|s| changes(s, &Step::Job(0, 1)), &|s| changes(s, &Step::Job(3, 1)), &|s| of_job(s, 0), &|s| {
            let gone = [Step::DropAlloc(6), Step::DropEval(2), Step::DropDeployment(1)];
            let gone: Vec<Change> = gone.iter().flat_map(|step| changes(s, step)).collect();
            let mut after = s.clone();
            apply(&mut after, gone.clone());
            [gone, of_job(&after, 3)].concat()
        }];
    for history in histories {
        let index = state.latest_index() + 1;
        let batch = Batch { changes: history(&state), ..Batch::default() };
        let set = state.apply(index, 1, batch).expect("no conditions");
        followed.follow(index, &set.rows_told(&state)).expect("rows of a batch");
        assert_eq!(view(&followed), view(&state));
        check_indexes(&followed);
    }
    assert_eq!(followed.allocs_by_job(&key(3)).count(), 1);
}
