//! What holds whatever happens.

use model::{
    ClientStatus, Constraint, Job, NodeStatus, Spread,
    alloc::DesiredTransition,
    network::{Network, Port},
};
use proptest::prelude::*;
use state::Change;

use crate::world::{S, World, key, node_id, rolling, service};

/// Something that happens to a cluster.
#[derive(Clone, Debug)]
enum Event {
    Node { n: u8, cpu: u32, dc: u8 },
    Down(u8),
    Up(u8),
    Drain(u8),
    Count(u8),
    Env(u8),
    Stop,
    Healthy,
    End { a: u8, ok: bool },
    Migrate(u8),
    Wait(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..6_u8, 400..3000_u32, 0..3_u8).prop_map(|(n, cpu, dc)| Event::Node { n, cpu, dc }),
        1 => (0..6_u8).prop_map(Event::Down),
        1 => (0..6_u8).prop_map(Event::Up),
        1 => (0..6_u8).prop_map(Event::Drain),
        3 => (0..9_u8).prop_map(Event::Count),
        2 => (0..3_u8).prop_map(Event::Env),
        1 => Just(Event::Stop),
        3 => Just(Event::Healthy),
        2 => (0..9_u8, any::<bool>()).prop_map(|(a, ok)| Event::End { a, ok }),
        1 => (0..9_u8).prop_map(Event::Migrate),
        2 => (0..100_u8).prop_map(Event::Wait),
    ]
}

#[derive(Clone, Debug)]
struct Shape {
    ports: bool,
    distinct: bool,
    spread: bool,
    rolling: bool,
    batch: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    any::<(bool, bool, bool, bool, bool)>().prop_map(|(ports, distinct, spread, rolling, batch)| Shape {
        ports,
        distinct,
        spread,
        rolling,
        batch,
    })
}

fn job(shape: &Shape, count: u8, env: u8) -> Job {
    let mut j = if shape.batch { crate::world::batch(i32::from(count)) } else { service(i32::from(count)) };
    let g = &mut j.task_groups[0];
    g.tasks[0].env.insert("E".into(), env.to_string());
    if shape.ports {
        let port = |label: &str, value| Port { label: label.into(), value, ..Port::default() };
        g.networks = vec![Network {
            reserved_ports: vec![port("s", 9000)],
            dynamic_ports: vec![port("d", 0)],
            ..Network::default()
        }];
    }
    if shape.distinct {
        g.constraints.push(Constraint {
            operator: "distinct_hosts".into(),
            right: "true".into(),
            ..Constraint::default()
        });
    }
    if shape.spread {
        g.spreads.push(Spread { attribute: "${node.datacenter}".into(), ..Spread::default() });
    }
    if shape.rolling && !shape.batch { rolling(j, 2) } else { j }
}

fn happen(w: &mut World, shape: &Shape, e: &Event, count: &mut u8, env: &mut u8) {
    let pick = |w: &World, a: u8| {
        let live = w.live();
        (!live.is_empty()).then(|| live[usize::from(a) % live.len()].id)
    };
    match e {
        // Node classes span several computed classes.
        Event::Node { n, cpu, dc } => {
            w.node(&format!("n{n} cpu={cpu} dc=dc{dc} class={}", ["a", "b", ""][*n as usize % 3]))
        }
        Event::Down(n) => w.down(&format!("n{n}")),
        Event::Up(n) => {
            let id = node_id(&format!("n{n}"));
            w.apply(vec![
                Change::NodeStatus { id, status: NodeStatus::Ready, description: String::new(), event: None },
                Change::NodeDrain { id, drain: None, mark_eligible: true, last_drain: None, event: None },
            ]);
        }
        Event::Drain(n) => w.drain(&format!("n{n}")),
        Event::Count(c) => *count = *c,
        Event::Env(e) => *env = *e,
        Event::Stop => drop(w.apply(vec![Change::StopJob(key())])),
        Event::Healthy => w.all_healthy(),
        Event::End { a, ok } => {
            if let Some(id) = pick(w, *a) {
                w.report(id, if *ok { ClientStatus::Complete } else { ClientStatus::Failed }, None);
            }
        }
        Event::Migrate(a) => {
            if let Some(id) = pick(w, *a) {
                w.mark(id, DesiredTransition { migrate: Some(true), ..DesiredTransition::default() });
            }
        }
        Event::Wait(s) => w.now += i64::from(*s) * S,
    }
    if matches!(e, Event::Count(_) | Event::Env(_)) {
        w.register(&job(shape, *count, *env));
    }
}

proptest! {
    #![proptest_config(crate::world::cases(160))]

    #[test]
    fn invariants_of_every_history(shape in shape(), events in prop::collection::vec(event(), 1..30),
        seed in any::<u64>()) {
        let mut w = World::new("n0\nn1 cpu=900\nn2 dc=dc2");
        w.seed = seed;
        let (mut count, mut env) = (3, 0);
        w.register(&job(&shape, count, env));
        for e in &events {
            happen(&mut w, &shape, e, &mut count, &mut env);
            let before: std::collections::BTreeSet<_> = w.live().iter().map(|a| a.id).collect();
            let d = w.run();
            for a in w.live().iter().filter(|a| !before.contains(&a.id)) {
                let n = w.state.node(a.node_id).expect("placed on a node that is there");
                prop_assert!(n.ready(), "placed on {}, which is not ready", n.name);
            }

            // Planning twice changes nothing.
            let seen: Vec<_> =
                w.allocs().iter().map(|a| format!("{} {} v{} {:?} {:?}", a.id.short(), a.name, a.job_version,
                    a.desired_status, a.client_status)).collect();
            let again = w.run();
            prop_assert!(again.plan.is_no_op(), "after {e:?}: {:?}, then {:?} with \
                {seen:#?}", d.annotations, again.annotations);
            // A roll-out waits for what has just been placed: it may try less the second time, never more.
            let same = if shape.rolling { again.queued.get("g") <= d.queued.get("g") } else { again.queued ==
                d.queued };
            prop_assert!(same, "after {:?}: {:?}, then {:?} with {:#?}", e, d.annotations, again.annotations, seen);
            prop_assert!(w.blocked().len() <= 1);

            // Counts are met or explained.
            let j = w.state.job(&key()).expect("registered").clone();
            let live = w.live();
            if j.stop {
                prop_assert!(live.is_empty());
                continue;
            }
            prop_assert!(live.len() <= usize::from(count), "{} live of {count}: {}", live.len(), w.show());
            let queued = usize::try_from(d.queued["g"]).expect("not negative");
            let ended = w.allocs().iter().filter(|a| a.client_terminal() && !a.server_terminal()).count();
            let halted = w.state.latest_deployment(&key()).is_some_and(|d| d.status.active());
            prop_assert!(live.len() + queued + ended >= usize::from(count) || halted, "{} live, {queued} queued \
                of {count}", live.len());
            prop_assert_eq!(queued > 0, d.failed_groups.contains_key("g"));
            if let Some(m) = d.failed_groups.get("g") {
                let told: i64 = m.constraint_filtered.values().chain(m.dimension_exhausted.values()).sum();
                prop_assert_eq!(told, m.nodes_evaluated, "every node that was looked at has its reason: {:?}", m);
                for class in ["a", "b", ""] {
                    let of = |map: &model::Map<String, i64>| map.get(class).copied().unwrap_or(0);
                    let told = of(&m.class_filtered) + of(&m.class_exhausted);
                    let there = w.state.nodes().filter(|n| !class.is_empty() && n.ready() && n.class == class).count();
                    prop_assert_eq!(told, there as i64, "so has its class {:?}: {:?}", class, m);
                }
            }
            // Names are unique among what lives.
            let names: std::collections::BTreeSet<_> = live.iter().map(|a| a.name.clone()).collect();
            prop_assert_eq!(names.len(), live.len(), "{}", w.show());
            if shape.distinct {
                prop_assert!(w.by_node().values().all(|n| *n == 1), "{}", w.show());
            }
            for a in live.iter().filter(|a| !before.contains(&a.id)) {
                prop_assert_eq!(a.job_version, j.version);
            }
        }
    }

    /// No node is over-committed, as long as no node shrinks under what runs on it.
    #[test]
    fn no_node_is_over_committed(
        nodes in prop::collection::vec((500..4000_u32, 300..4000_u32), 1..8),
        counts in prop::collection::vec(0..30_u8, 1..6),
        shape in shape(),
        seed in any::<u64>(),
    ) {
        let text: String = nodes.iter().enumerate().map(|(n, (cpu, mem))| format!("n{n} cpu={cpu} mem={mem} \
            dynamic=20000-20003\n")).collect();
        let mut w = World::new(&text);
        w.seed = seed;
        for (env, count) in counts.iter().enumerate() {
            w.submit(&job(&shape, *count, env as u8));
            w.check_room();
            w.all_healthy();
            w.run();
            w.check_room();
        }
    }
}

proptest! {
    #![proptest_config(crate::world::cases(48))]

    /// Each placement goes to the node that the formula, applied to every node, says is best.
    #[test]
    fn placements_are_the_best_of_all_nodes(
        nodes in prop::collection::vec((1000..9000_i64, 1000..9000_i64, 0..3_u8), 2..12),
        count in 1..14_i32,
        spread in any::<bool>(),
        weight in prop_oneof![Just(0_i8), Just(-60_i8), Just(80_i8)],
    ) {
        let text: String = nodes.iter().enumerate().map(|(n, (cpu, mem, dc))| format!("n{n} cpu={cpu} mem={mem} \
            dc=dc{dc}\n")).collect();
        let mut w = World::new(&text);
        let mut j = service(count);
        if spread {
            j.spreads.push(Spread { attribute: "${node.datacenter}".into(), ..Spread::default() });
        }
        if weight != 0 {
            j.affinities.push(model::Affinity { left: "${node.datacenter}".into(), right: "dc1".into(),
                operator: "=".into(), weight });
        }
        w.submit(&j);

        let mut here = vec![0_i64; nodes.len()];
        let live = w.live();
        for a in &live {
            let mut scores = Vec::new();
            for (n, (cpu, mem, dc)) in nodes.iter().enumerate() {
                let (used_cpu, used_mem) = ((here[n] + 1) * 500, (here[n] + 1) * 256);
                if used_cpu > *cpu || used_mem > *mem {
                    scores.push(f64::NEG_INFINITY);
                    continue;
                }
                let free = |used: i64, all: i64| 1.0 - used as f64 / all as f64;
                let mut parts =
                    vec![(20.0 - 10_f64.powf(free(used_cpu, *cpu)) - 10_f64.powf(free(used_mem, *mem))).clamp(0.0,
                        18.0) / 18.0];
                if here[n] > 0 {
                    parts.push(-(here[n] + 1) as f64 / f64::from(count));
                }
                if weight != 0 && *dc == 1 {
                    parts.push(f64::from(weight) / f64::from(weight.abs()));
                }
                if spread {
                    let of = |d: u8| nodes.iter().zip(&here).filter(|((.., x), _)| *x ==
                        d).map(|(_, h)| *h).sum::<i64>() as f64;
                    let used: Vec<f64> = (0..3).map(of).filter(|c| *c > 0.0).collect();
                    if !used.is_empty() {
                        let (min, max) =
                            (used.iter().copied().fold(f64::MAX, f64::min), used.iter().copied().fold(0.0, f64::max));
                        let count = of(*dc);
                        let boost = if count != min {
                            (min - count) / min
                        } else if min == max {
                            -1.0
                        } else {
                            (max - min) / min
                        };
                        if boost != 0.0 {
                            parts.push(boost);
                        }
                    }
                }
                scores.push(parts.iter().sum::<f64>() / parts.len() as f64);
            }
            let n: usize = a.node_name.trim_start_matches('n').parse().expect("a number");
            let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(scores[n] >= best - 1e-9, "{} went to n{n} ({}), the best is {best}: \
                {scores:?}", a.name, scores[n]);
            here[n] += 1;
        }
        let room: i64 = nodes.iter().map(|(cpu, mem, _)| (cpu / 500).min(mem / 256)).sum();
        prop_assert_eq!(live.len() as i64, room.min(i64::from(count)));
    }
}

/// A job of its own name, of one of six shapes: more than a memory has room for.
fn one_of_six(name: &str, shape: u8, count: u8) -> Job {
    let mut j = service(i32::from(count));
    (j.id, j.name) = (name.into(), name.into());
    let g = &mut j.task_groups[0];
    let port = |label: &str, value| Port { label: label.into(), value, ..Port::default() };
    match shape {
        0 => {}
        1 => g.tasks[0].resources.memory_mb = Some(700),
        2 => {
            let reserved_ports = vec![port("s", 9000)];
            g.networks = vec![Network { reserved_ports, dynamic_ports: vec![port("d", 0)], ..Network::default() }];
        }
        3 => g.constraints.push(Constraint {
            operator: "distinct_hosts".into(),
            right: "true".into(),
            ..Constraint::default()
        }),
        4 => j.datacenters = vec!["dc1".to_owned()],
        _ => g.tasks[0].driver = "far".to_owned(),
    }
    j
}

proptest! {
    #![proptest_config(crate::world::cases(200))]

    /// What a worker remembers of evaluations before, of the same job and of others, changes no decision: the world
    /// makes each with and without a memory and compares them.
    #[test]
    fn a_memory_changes_no_decision_of_many_jobs(
        steps in prop::collection::vec((0..12_u8, 0..8_u8, 0..6_u8, 0..9_u8), 1..60),
        seed in any::<u64>(),
    ) {
        let mut w = World::new(
            "n0 cpu=3000\nn1 dc=dc2\nn2 driver=far:a:1-3:900:900\nn3 class=x driver=far:a:1-3:900:900\nn4 mem=900\nn5",
        );
        w.seed = seed;
        for (what, job, shape, n) in steps {
            let name = format!("job-{job}");
            match what {
                // A node goes, comes back, or is another.
                0 => w.down(&format!("n{}", n % 6)),
                1 => w.node(&format!("n{} cpu={}", n % 6, 1000 + 500 * u32::from(n))),
                2 | 3 => {
                    let live = w.state.allocs_by_job(&model::JobKey::new("default", name.as_str()));
                    let live: Vec<_> = live.filter(|a| !a.terminal()).map(|a| a.id).collect();
                    if let Some(id) = live.get(usize::from(n) % live.len().max(1)) {
                        w.report(*id, ClientStatus::Complete, None);
                    }
                }
                _ => drop(w.submit_as(&one_of_six(&name, shape, n))),
            }
            w.seed = w.seed.wrapping_add(1);
        }
    }
}
