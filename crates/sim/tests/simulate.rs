//! A little of what `cargo xtask simulate` plays for longer, and stores that are broken on purpose.

#[path = "../../store/tests/suite/mod.rs"]
mod suite;

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use sim::{Flaw, Outcome, Plan, Step, plan::Action, play};

/// In the plans of this test everything happens that a plan can have in twenty minutes.
const PART: Duration = Duration::from_secs(1200);

/// The histories of two processes that play the same. Within one process a second play draws other orders in which
/// those who wait for the same thing wake: tokio seeds each runtime from a count of the process.
fn twice(test: &str) -> [Vec<String>; 2] {
    let play = || {
        let program = std::env::current_exe().expect("this program");
        let mut play = Command::new(program);
        play.args(["--exact", test, "--ignored", "--nocapture"]).stdout(Stdio::piped());
        play.spawn().expect("a process")
    };
    [play(), play()].map(|process| {
        let ended = process.wait_with_output().expect("an end");
        let text = String::from_utf8(ended.stdout).expect("text");
        assert!(ended.status.success(), "{test}: {text}");
        text.lines().filter_map(|line| line.strip_prefix("| ")).map(str::to_owned).collect()
    })
}

#[allow(clippy::print_stdout, reason = "the other process reads it")]
fn tell(outcome: &Outcome) {
    assert_eq!(outcome.violation, None, "{}", outcome.lines.join("\n"));
    assert!(outcome.simulated >= PART);
    outcome.lines.iter().chain([&outcome.digest]).for_each(|line| println!("| {line}"));
}

fn same([first, second]: [Vec<String>; 2], of: &[&str]) -> Vec<String> {
    for (n, (a, b)) in first.iter().zip(&second).enumerate() {
        assert_eq!(a, b, "the histories part here, after {}", first[n.saturating_sub(20)..n].join("\n"));
    }
    assert_eq!(first.len(), second.len());
    // It is a history of something.
    for what in of {
        assert!(first.iter().any(|line| line.contains(what)), "nothing {what}: {}", first.join("\n"));
    }
    first
}

#[test]
#[ignore = "the_same_seed_gives_the_same_history plays it in processes of its own"]
fn one_server() {
    tell(&play(&Plan::of(7).first(PART)));
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let played = same(twice("one_server"), &["creates", "stops", "is managed by", "counts"]);
    let other = play(&Plan::of(8).first(PART));
    assert_eq!(other.violation, None, "{}", other.lines.join("\n"));
    assert_ne!(played.last(), Some(&other.digest));
}

#[test]
fn the_shared_store_of_the_simulation_keeps_the_contract() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let store = runtime.block_on(sim::shared_store()).expect("a store");
    suite::suite(&*store);
}

fn two_servers(flaw: Option<Flaw>, steps: &[(u64, Action)]) -> Plan {
    let step = |(at, action): &(u64, Action)| Step { at: Duration::from_millis(*at), action: action.clone() };
    let steps: Vec<Step> = steps.iter().map(step).collect();
    let time = steps.iter().map(|step| step.at).max().unwrap_or_default() + Duration::from_secs(60);
    Plan { seed: 11, steps, time, two: true, flaw }
}

fn register(job: usize, count: u32) -> Action {
    Action::Register { job, count: Some(count), revise: true }
}

#[test]
fn an_acknowledged_commit_that_was_lost_is_seen() {
    // Between two minutes: a launch that is lost would be seen first, as one that happens twice.
    let mut steps = vec![(15_000, register(0, 2)), (65_000, Action::Doubt { time: 50 })];
    steps.extend((0..20).map(|n| (66_000 + n * 2_400, register(1, 1 + u32::try_from(n % 4).unwrap_or(0)))));
    steps.push((125_000, Action::KillServer { down: 10 }));
    let well = play(&two_servers(None, &steps));
    assert_eq!(well.violation, None, "{}", well.lines.join("\n"));
    let broken = play(&two_servers(Some(Flaw::Forgetful), &steps));
    let seen = broken.violation.unwrap_or_default();
    // Or the servers find out by themselves, from their marks.
    let ways = ["acknowledged write is lost", "people have read", "the servers recover, and no older copy"];
    let lost = ways.iter().any(|way| seen.contains(way));
    assert!(lost, "{seen:?}: {}", broken.lines.join("\n"));
}

/// The leader stands still with a commit on its way, for longer than the other server waits.
fn frozen(flaw: Option<Flaw>) -> Plan {
    let steps = [
        (15_000, register(0, 2)),
        (50_000, Action::SlowStore { time: 60, by: 200 }),
        (60_000, register(1, 2)),
        (60_050, Action::Freeze { time: 30 }),
    ];
    two_servers(flaw, &steps)
}

#[test]
fn a_former_leader_whose_commit_lands_is_seen() {
    let well = play(&frozen(None));
    assert_eq!(well.violation, None, "{}", well.lines.join("\n"));
    for what in ["the 2. one", "is refused"] {
        assert!(well.lines.iter().any(|line| line.contains(what)), "{what}: {}", well.lines.join("\n"));
    }
    let broken = play(&frozen(Some(Flaw::Unfenced)));
    let seen = broken.violation.unwrap_or_default();
    assert!(seen.contains("the store has two writers"), "{seen:?}: {}", broken.lines.join("\n"));
}

#[test]
fn the_commit_that_uses_up_the_store_counts_although_it_is_called_refused() {
    let steps = [(15_000, register(0, 2)), (60_000, Action::DiskFull { time: 30 }), (62_000, register(1, 2))];
    let well = play(&two_servers(None, &steps));
    assert_eq!(well.violation, None, "{}", well.lines.join("\n"));
    let at = |what: &str| well.lines.iter().position(|line| line.contains(what));
    assert!(at("uses up the store").is_some(), "{}", well.lines.join("\n"));
    assert_eq!(at("waits for its turn again"), None, "{}", well.lines.join("\n"));
}

/// The leader dies while a node that it has just granted a lease is cut off.
fn led_anew(flaw: Option<Flaw>) -> Plan {
    let steps = [
        (15_000, register(0, 3)),
        (60_000, Action::Partition { node: 0, time: 60 }),
        (60_500, Action::KillServer { down: 60 }),
    ];
    two_servers(flaw, &steps)
}

#[test]
fn a_new_leader_that_does_not_wait_for_the_leases_of_the_former_one_is_seen() {
    let well = play(&led_anew(None));
    assert_eq!(well.violation, None, "{}", well.lines.join("\n"));
    let broken = play(&led_anew(Some(Flaw::Impatient)));
    let seen = broken.violation.unwrap_or_default();
    assert!(seen.contains("which holds its lease"), "{seen:?}: {}", broken.lines.join("\n"));
}

/// When the last line that says this was written.
fn told(lines: &[String], what: &str) -> Duration {
    let line = lines.iter().rev().find(|line| line.contains(what));
    let at = line.and_then(|line| line.split_whitespace().next()).and_then(|at| at.parse().ok());
    Duration::from_secs_f64(at.unwrap_or_else(|| panic!("{what}: {}", lines.join("\n"))))
}

/// The leader and the node that manages most die at once, and come back late.
#[test]
fn a_new_leader_hands_over_after_a_lease_and_its_margin() {
    for node in 0..2 {
        let steps = [
            (15_000, register(0, 3)),
            (60_000, Action::KillNode { node, down: 120 }),
            (60_000, Action::KillServer { down: 120 }),
        ];
        let played = play(&two_servers(None, &steps));
        assert_eq!(played.violation, None, "{}", played.lines.join("\n"));
        let (leads, adopted) = (told(&played.lines, "it leads, from index"), told(&played.lines, "is managed by"));
        let waited = adopted.saturating_sub(leads);
        // A lease of 10 s and its margin, and what the new manager needs.
        let bounds = Duration::from_secs(11)..Duration::from_secs(14);
        assert!(bounds.contains(&waited), "after {waited:?}: {}", played.lines.join("\n"));
    }
}

/// The store is put back to a copy that lacks a job, a revision and a stop, while both servers run or while none does.
fn put_back(flaw: Option<Flaw>, down: bool, bump: bool) -> Plan {
    let steps = [
        (15_000, register(0, 2)),
        (16_000, register(2, 1)),
        (90_000, Action::Copy),
        (95_000, register(0, 3)),
        (100_000, register(1, 2)),
        (105_000, Action::Stop { job: 2, purge: false }),
        (150_000, Action::Restore { time: 5, down, bump }),
    ];
    two_servers(flaw, &steps)
}

#[test]
fn nothing_is_doubled_or_forgotten_when_the_store_is_put_back() {
    for (down, bump) in [(false, false), (true, true)] {
        let well = play(&put_back(None, down, bump));
        assert_eq!(well.violation, None, "{}", well.lines.join("\n"));
        for what in ["the servers recover", "the recovery is over", "what was lost is made good"] {
            assert!(well.lines.iter().any(|line| line.contains(what)), "{what}: {}", well.lines.join("\n"));
        }
    }
}

#[test]
fn servers_that_do_not_see_that_the_store_was_put_back_are_seen() {
    for bump in [false, true] {
        let broken = play(&put_back(Some(Flaw::Heedless), false, bump));
        let seen = broken.violation.unwrap_or_default();
        let lost = seen.contains("from what the store has lost") || seen.contains("differs from the store");
        assert!(lost, "{seen:?}: {}", broken.lines.join("\n"));
    }
}

#[test]
fn servers_that_forget_what_the_store_has_lost_are_seen() {
    let broken = play(&put_back(Some(Flaw::Unrecovering), true, false));
    let seen = broken.violation.unwrap_or_default();
    assert!(seen.contains("and does not recover"), "{seen:?}: {}", broken.lines.join("\n"));
}

#[test]
#[ignore = "two_servers_have_the_same_history_of_the_same_seed plays it in processes of its own"]
fn two_of_a_kind() {
    tell(&play(&Plan::with(7, true).first(PART)));
}

#[test]
fn two_servers_have_the_same_history_of_the_same_seed() {
    same(twice("two_of_a_kind"), &["the 2. one"]);
}
