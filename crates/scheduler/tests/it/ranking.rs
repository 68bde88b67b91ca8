//! Which of the feasible nodes is best.

use model::{Affinity, Constraint, Job, RequestedDevice, SchedulerConfig, Spread, SpreadTarget};
use proptest::prelude::*;
use state::Change;

use crate::world::{World, cases, changed, service};

fn spread(attribute: &str, targets: &[(&str, u8)]) -> Spread {
    let targets = targets.iter().map(|(v, p)| SpreadTarget { value: (*v).into(), percent: *p }).collect();
    Spread { attribute: attribute.into(), weight: 100, targets }
}

#[test]
fn nodes_are_filled_up_or_kept_even() {
    for (algorithm, expect) in [("binpack", "small"), ("spread", "large")] {
        let mut w = World::new("small cpu=1000 mem=1000\nlarge cpu=9000 mem=9000");
        w.apply(vec![Change::SetSchedulerConfig(SchedulerConfig {
            scheduler_algorithm: algorithm.into(),
            ..SchedulerConfig::default()
        })]);
        w.submit(&service(1));
        assert_eq!(&*w.at(0).node_name, expect, "{algorithm}");
    }
}

#[test]
fn a_pool_may_have_its_own_algorithm() {
    let mut w = World::new("small cpu=1000 mem=1000\nlarge cpu=9000 mem=9000");
    let scheduler_configuration =
        Some(state::NodePoolScheduler { scheduler_algorithm: "spread".into(), ..Default::default() });
    w.apply(vec![Change::PutNodePool(state::NodePool {
        name: "default".into(),
        scheduler_configuration,
        ..Default::default()
    })]);
    w.submit(&service(1));
    assert_eq!(&*w.at(0).node_name, "large");
}

#[test]
fn allocations_of_a_group_keep_apart() {
    let w = World::with("n1\nn2\nn3\nn4", &service(4));
    assert_eq!(w.by_node().values().copied().collect::<Vec<_>>(), [1, 1, 1, 1]);
}

#[test]
fn affinities_attract_and_repel() {
    for (weight, expect) in [(100, "n2"), (-100, "n1")] {
        let mut w = World::new("n1 class=a\nn2 class=b");
        let mut job = service(1);
        job.affinities =
            vec![Affinity { left: "${node.class}".into(), right: "b".into(), operator: "=".into(), weight }];
        w.submit(&job);
        assert_eq!(&*w.at(0).node_name, expect, "{weight}");
        let m = w.at(0).metrics.clone().expect("an account");
        assert_eq!(m.score_meta_data.len(), 2);
        assert!(m.score_meta_data[0].norm_score > m.score_meta_data[1].norm_score);
        let with = m.score_meta_data.iter().find(|s| s.scores.contains_key("node-affinity")).expect("one of them");
        assert_eq!(with.scores["node-affinity"], f64::from(weight) / 100.0);
        assert!(with.scores.contains_key("binpack"));
    }
}

#[test]
fn spreads_with_targets() {
    let mut w = World::new("a1 dc=a\na2 dc=a\nb1 dc=b\nb2 dc=b\nc1 dc=c");
    let mut job = service(10);
    job.spreads = vec![spread("${node.datacenter}", &[("a", 70), ("b", 30)])];
    w.submit(&job);
    let by = w.by_node();
    let dc = |d: &str| by.iter().filter(|(n, _)| n.starts_with(d)).map(|(_, n)| n).sum::<usize>();
    assert_eq!((dc("a"), dc("b"), dc("c")), (7, 3, 0), "{by:?}");
}

#[test]
fn values_of_no_target_share_what_the_targets_leave() {
    let mut w = World::new("a dc=a\nb dc=b\nc dc=c\nd dc=d\ne dc=e");
    let mut job = service(6);
    job.spreads = vec![spread("${node.datacenter}", &[("a", 50)])];
    w.submit(&job);
    let placed = w.by_node();
    assert_eq!(placed.get("a"), Some(&3), "the others have half of them together, not each: {placed:?}");
}

#[test]
fn an_account_tells_what_may_not_be_chosen_and_why() {
    let mut w = World::new("small cpu=50 mem=9000\nlarge cpu=9000 mem=9000\nused cpu=9000 mem=9000");
    let mut job = service(2);
    job.constraints = vec![Constraint { operator: "distinct_hosts".into(), ..Constraint::default() }];
    w.submit(&job);
    job.task_groups[0].count = Some(3);
    w.submit(&job);
    let m = w.at(0).metrics.clone().expect("an account");
    assert_eq!((m.nodes_exhausted, m.dimension_exhausted.get("cpu").copied()), (1, Some(1)), "{m:?}");
}

#[test]
fn where_it_has_failed_is_worth_less_whatever_it_is_replaced_for() {
    let mut w = World::new("n1 cpu=1000 mem=1000\nn2 cpu=9000 mem=9000");
    let mut job = service(1);
    job.task_groups[0].reschedule =
        Some(model::Reschedule { unlimited: Some(true), delay: Some(model::GoDuration::ZERO), ..Default::default() });
    w.submit(&job);
    assert_eq!(&*w.at(0).node_name, "n1");
    let id = w.at(0).id;
    w.report(id, model::ClientStatus::Failed, None);
    w.run();
    let second = w.live()[0].clone();
    assert_eq!(&*second.node_name, "n2");
    let m = second.metrics.clone().expect("an account");
    let failed =
        m.score_meta_data.iter().find(|s| s.scores.contains_key("node-reschedule-penalty")).expect("it is told");
    assert_eq!(failed.scores["node-reschedule-penalty"], -1.0);
    assert!(failed.norm_score < m.score_meta_data[0].norm_score);
    // A new version begins with a clean record, but not where it has failed.
    w.submit(&changed(&job));
    assert_eq!(&*w.live()[0].node_name, "n2");
}

#[test]
fn spreads_without_targets_are_even() {
    let mut w = World::new(
        "a1 dc=a cpu=2000 mem=2000\na2 dc=a cpu=2000 mem=2000\na3 dc=a cpu=2000 mem=2000\nb1 dc=b cpu=20000 \
            mem=20000\nc1 dc=c cpu=20000 mem=20000",
    );
    let mut job = service(9);
    job.task_groups[0].spreads = vec![spread("${node.datacenter}", &[])];
    w.submit(&job);
    let by = w.by_node();
    let dc = |d: &str| by.iter().filter(|(n, _)| n.starts_with(d)).map(|(_, n)| n).sum::<usize>();
    assert_eq!((dc("a"), dc("b"), dc("c")), (3, 3, 3), "{by:?}");
    // A rack that comes later is filled first.
    w.node("d1 dc=d");
    job.task_groups[0].count = Some(11);
    w.submit(&job);
    assert_eq!(w.by_node().get("d1"), Some(&2));
}

#[test]
fn scores_are_the_documented_formula() {
    let w = World::with("n1 cpu=1000 mem=1024", &service(1));
    let m = w.at(0).metrics.clone().expect("an account");
    // Half the CPU and three quarters of the memory stay free.
    let expect = (20.0 - 10_f64.powf(0.5) - 10_f64.powf(0.75)) / 18.0;
    assert!((m.score_meta_data[0].norm_score - expect).abs() < 1e-9);
    assert_eq!(scheduler::rank::binpack(1.0, 1.0), 0.0);
    assert_eq!(scheduler::rank::evenly(1.0, 1.0), 1.0);
}

#[test]
fn ties_are_broken_by_the_seed() {
    let nodes: String = (0..20).map(|n| format!("n{n}\n")).collect();
    let chosen = |seed: u64| {
        let mut w = World::new(&nodes);
        w.seed = seed;
        w.submit(&service(1));
        w.at(0).node_name.to_string()
    };
    assert_eq!(chosen(1), chosen(1));
    let all: std::collections::BTreeSet<_> = (0..20).map(chosen).collect();
    assert!(all.len() > 5, "equal nodes share the load: {all:?}");
}

#[test]
fn a_sticky_disk_prefers_its_node() {
    let mut w = World::new("n1\nn2\nn3\nn4\nn5");
    let mut job = service(1);
    job.task_groups[0].ephemeral_disk = Some(model::job::EphemeralDisk { sticky: Some(true), ..Default::default() });
    w.submit(&job);
    for user in ["a", "b", "c", "d"] {
        let node = w.at(0).node_name.clone();
        job.task_groups[0].tasks[0].user = user.into();
        w.submit(&job);
        assert_eq!(w.at(0).node_name, node);
    }
    // Unless it may not be there any more.
    let node = w.at(0).node_name.clone();
    job.constraints.push(Constraint {
        left: "${node.unique.name}".into(),
        operator: "!=".into(),
        right: node.to_string(),
    });
    w.submit(&job);
    assert_ne!(w.at(0).node_name, node);
}

#[test]
fn memory_max_needs_oversubscription() {
    for (cluster, pool, expect) in
        [(false, None, 0), (true, None, 900), (true, Some(false), 0), (false, Some(true), 900)]
    {
        let mut w = World::new("n1 mem=300");
        w.apply(vec![Change::SetSchedulerConfig(SchedulerConfig {
            memory_oversubscription_enabled: cluster,
            ..SchedulerConfig::default()
        })]);
        let scheduler_configuration =
            Some(state::NodePoolScheduler { memory_oversubscription_enabled: pool, ..Default::default() });
        w.apply(vec![Change::PutNodePool(state::NodePool {
            name: "default".into(),
            scheduler_configuration,
            ..Default::default()
        })]);
        let mut job = service(1);
        job.task_groups[0].tasks[0].resources.memory_max_mb = Some(900);
        w.submit(&job);
        assert_eq!(w.at(0).resources.tasks["t"].memory.memory_max_mb, expect, "cluster {cluster}, pool {pool:?}");
        assert_eq!(w.state.usage(crate::world::node_id("n1")).memory_mb, 256, "what is reserved is what is packed");
    }
}

/// A service with any of the wishes that score a node: a class, a model of device, a spread.
fn wishing(count: i32, class: bool, device: bool, spreads: bool) -> Job {
    let mut job = service(count);
    let affinity =
        |left: &str, right: &str| Affinity { left: left.into(), right: right.into(), operator: "=".into(), weight: 50 };
    if class {
        job.affinities = vec![affinity("${node.class}", "a")];
    }
    if device {
        job.task_groups[0].tasks[0].resources.devices = vec![RequestedDevice {
            name: "gpu".into(),
            count: Some(1),
            affinities: vec![affinity("${device.model}", "T4")],
            ..RequestedDevice::default()
        }];
    }
    if spreads {
        job.spreads = vec![spread("${node.datacenter}", &[])];
    }
    job
}

#[test]
fn a_node_with_everything_that_a_group_likes_takes_more_of_it() {
    let mut w = World::with("n1 class=a devices=nvidia/gpu/T4:a+b", &wishing(1, true, true, true));
    let d = w.submit(&wishing(2, true, true, true));
    assert!(d.failed_groups.is_empty() && w.live().len() == 2, "{:?}", d.failed_groups);
    let m = w.at(1).metrics.clone().expect("an account");
    let parts: Vec<&str> = m.score_meta_data[0].scores.keys().map(|part| part.as_str()).collect();
    for part in ["binpack", "job-anti-affinity", "node-affinity", "devices"] {
        assert!(parts.contains(&part), "{part}: {parts:?}");
    }
}

proptest! {
    #![proptest_config(cases(40))]

    /// Whatever a job wishes, and whatever of it is there already: what fits is placed.
    #[test]
    fn any_wishes_together_find_a_place(
        (class, device, spreads) in (any::<bool>(), any::<bool>(), any::<bool>()),
        (first, more) in (1..4_i32, 1..4_i32),
    ) {
        let mut w = World::new(
            "n1 class=a dc=a devices=nvidia/gpu/T4:a+b+c\nn2 class=b dc=b devices=nvidia/gpu/K80:a+b+c",
        );
        for count in [first, first + more] {
            w.submit(&wishing(count, class, device, spreads));
            prop_assert_eq!(w.live().len(), usize::try_from(count).unwrap_or(0));
        }
        w.check_room();
    }
}
