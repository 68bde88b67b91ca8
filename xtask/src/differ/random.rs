//! Scenarios from a seed: a shape of a job, and events. The same seed gives the same scenarios.

use serde_json::json;

use super::{
    job::{Job, TOLD},
    scenario::{Act, Look, Place, Scenario, Step},
};

/// The scenario of a seed and a number; its name says both.
pub(super) fn scenario(seed: u64, n: u64) -> Scenario {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n.wrapping_mul(0xd1b5_4a32_d192_ed03));
    let place = match dice.below(10) {
        0 => Place::Alone,
        1..=3 => Place::Nodes,
        _ => Place::Shared,
    };
    let shape = Shape::thrown(&mut dice).on(place);
    let mut steps = vec![Step::from(Act::Run(shape.job(0).hcl()))];
    let mut state = State { version: 0, count: Some(shape.count) };
    for _ in 0..dice.between(2, 4) {
        steps.extend(shape.event(&mut dice, place, &mut state));
    }
    steps.push(Act::Stop { purge: false }.into());
    // Only what collects does something to all others.
    let collects = steps.iter().any(|step| matches!(&step.act, Act::Request(_, path, _) if path.ends_with("/gc")));
    let place = if place == Place::Alone && !collects { Place::Shared } else { place };
    Scenario::new(&format!("random-{seed}-{n}"), place, steps)
}

/// The scenario that a name of [`scenario`] tells.
pub(super) fn named(name: &str) -> Option<Scenario> {
    let (seed, n) = name.strip_prefix("random-")?.split_once('-')?;
    Some(scenario(seed.parse().ok()?, n.parse().ok()?))
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.throw() % n
    }
    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    fn one_of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        let at = usize::try_from(self.below(all.len() as u64)).ok()?;
        all.get(at).cloned()
    }
    fn text(&mut self, all: &[&'static str]) -> &'static str {
        self.one_of(all).unwrap_or_default()
    }
}

/// What is known of the job in the middle of its story.
struct State {
    version: u32,
    /// None when it is that of some version before.
    count: Option<u32>,
}

/// What stays of a job through its versions.
struct Shape {
    kind: &'static str,
    count: u32,
    restart: &'static str,
    reschedule: &'static str,
    update: &'static str,
    second_task: bool,
    second_group: bool,
    hook: &'static str,
    /// Each allocation has a node for itself: what happens to a node then happens to one allocation, wherever it is.
    apart: bool,
}

const RESTARTS: &[&str] = &[
    "attempts = 0; mode = \"fail\"",
    "attempts = 1; interval = \"1h\"; delay = \"500ms\"; mode = \"fail\"",
    "attempts = 2; interval = \"1h\"; delay = \"200ms\"; mode = \"fail\"",
];
const RESCHEDULES: &[&str] = &[
    "attempts = 0; unlimited = false",
    "attempts = 1; interval = \"1h\"; delay = \"5s\"; delay_function = \"constant\"; unlimited = false",
    // Without attempts, since those that batch jobs have by default do not go with it.
    "attempts = 0; delay = \"5s\"; delay_function = \"exponential\"; max_delay = \"1h\"; unlimited = true",
    "attempts = 0; delay = \"1h\"; delay_function = \"constant\"; unlimited = true",
];
const UPDATES: &[&str] = &[
    "max_parallel = 0",
    "min_healthy_time = \"300ms\"; healthy_deadline = \"20s\"; progress_deadline = \"30s\"",
    "max_parallel = 2; min_healthy_time = \"300ms\"; healthy_deadline = \"20s\"; progress_deadline = \"30s\"",
    "canary = 1; min_healthy_time = \"300ms\"; healthy_deadline = \"20s\"; progress_deadline = \"30s\"",
    "canary = 1; auto_promote = true; auto_revert = true; min_healthy_time = \"300ms\"; healthy_deadline = \"20s\"; \
        progress_deadline = \"30s\"",
];
const HOOKS: &[&str] = &["", "", "", "prestart", "poststop"];

impl Shape {
    fn thrown(dice: &mut Dice) -> Self {
        Self {
            kind: dice.text(&["service", "service", "service", "batch", "system"]),
            count: u32::try_from(dice.between(1, 3)).unwrap_or(1),
            restart: dice.text(RESTARTS),
            reschedule: dice.text(RESCHEDULES),
            update: dice.text(UPDATES),
            second_task: dice.one_in(4),
            second_group: dice.one_in(4),
            hook: dice.text(HOOKS),
            apart: false,
        }
    }

    fn on(self, place: Place) -> Self {
        if place == Place::Nodes {
            Self { apart: true, second_group: false, count: self.count.min(2), ..self }
        } else {
            self
        }
    }

    fn job(&self, version: u32) -> Job {
        let job = match self.kind {
            "batch" => Job::batch(TOLD).count(self.count).reschedule(self.reschedule),
            "system" => Job::system(),
            _ => Job::service().count(self.count).reschedule(self.reschedule).update(self.update),
        };
        let mut job = job.restart(self.restart).task(&format!("env {{; VERSION = \"{version}\"; }}"));
        if self.apart && self.kind != "system" {
            job = job.group("constraint {; distinct_hosts = true; }");
        }
        if self.second_task {
            job = job.with_task("other", TOLD, "");
        }
        if !self.hook.is_empty() {
            job =
                job.with_task("hook", "exit 0", &format!("lifecycle {{; hook = {:?}; sidecar = false; }}", self.hook));
        }
        if self.second_group && self.kind != "system" {
            let update = if self.kind == "service" {
                "update {; max_parallel = 1; min_healthy_time = \"300ms\"; }; "
            } else {
                ""
            };
            let lines = "restart {; attempts = 0; mode = \"fail\"; }; reschedule {; attempts = 0; unlimited = false; }";
            job = job.with_group("h", &format!("{update}{lines}"), TOLD);
        }
        job
    }

    /// Something that happens: one step, or two that belong together.
    fn event(&self, dice: &mut Dice, place: Place, state: &mut State) -> Vec<Step> {
        let request = |method, path, body| Step::from(Act::Request(method, path, body));
        let fails =
            |dice: &mut Dice| Step::from(Act::TellAll("g[0]", "t", i32::try_from(dice.between(1, 5)).unwrap_or(1)));
        if place == Place::Nodes && dice.one_in(2) {
            return match dice.below(3) {
                0 => {
                    vec![Step::from(Act::NodeDown("g[0]")).look(Look::Nodes), Step::from(Act::NodeUp).look(Look::Nodes)]
                }
                1 => {
                    let spec = json!({"Deadline": 20_000_000_000_i64, "IgnoreSystemJobs": dice.one_in(2)});
                    vec![
                        Step::from(Act::Drain("g[0]", spec)).look(Look::Nodes),
                        Step::from(Act::Undrain).look(Look::Nodes),
                    ]
                }
                _ => vec![Act::Eligible("g[0]", false).into(), fails(dice), Act::Eligible("g[0]", true).into()],
            };
        }
        let one = match dice.below(10) {
            0 | 1 => fails(dice),
            2 if self.kind == "batch" => Act::TellAll("g[0]", "t", 0).into(),
            2 | 3 => {
                (state.version, state.count) = (state.version + 1, Some(self.count));
                Act::Run(self.job(state.version).hcl()).into()
            }
            // To another count: the stock makes a new version of the same, too.
            4 if self.kind != "system" && state.count.is_some() => {
                let count = u32::try_from(dice.below(5)).unwrap_or(1);
                let count = if state.count == Some(count) { count + 1 } else { count };
                state.count = Some(count);
                Act::Scale("g", count).into()
            }
            5 if state.version > 0 => {
                state.count = None;
                Act::Revert(state.version - 1).into()
            }
            6 if self.kind != "system" => Act::Alloc("g[0]", "POST", "/v1/allocation/ALLOC/stop", json!(null)).into(),
            7 => request("POST", "/v1/job/JOB/evaluate", json!({"JobID": "JOB"})),
            8 if self.update.contains("canary") && self.kind == "service" => {
                request("POST", "/v1/deployment/promote/DEPLOYMENT", json!({"DeploymentID": "DEPLOYMENT", "All": true}))
            }
            9 => {
                state.count = Some(self.count);
                let again = Act::Run(self.job(state.version).hcl()).into();
                let mut steps = vec![Act::Stop { purge: false }.into()];
                if place == Place::Alone {
                    steps.push(request("PUT", "/v1/system/gc", json!(null)));
                }
                steps.push(again);
                return steps;
            }
            _ => fails(dice),
        };
        vec![one]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_scenario_again_and_others_give_others() {
        let text = |seed, n| format!("{:?}", scenario(seed, n).steps);
        assert_eq!(text(7, 1), text(7, 1));
        assert_ne!(text(7, 1), text(7, 2));
        assert_ne!(text(7, 1), text(8, 1));
        let again = named("random-7-1").map(|s| format!("{:?}", s.steps));
        assert_eq!(again, Some(text(7, 1)));
        assert!(named("random-x-1").is_none());
    }

    #[test]
    fn each_has_an_event_after_the_placement() {
        for n in 0..200 {
            assert!(scenario(1, n).steps.len() >= 4, "{n}");
        }
    }
}
