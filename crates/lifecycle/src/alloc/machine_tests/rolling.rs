//! Rolling restarts of changed templates: the turn, the health afterwards, and agents that end meanwhile.

use model::RollingRestart;

use super::*;

impl Play {
    /// A template with `rolling` of the task has changed.
    fn data(&mut self, task: &str, at: i64) -> Vec<String> {
        self.finds("a", task, at)
    }

    fn finds(&mut self, data: &str, task: &str, at: i64) -> Vec<String> {
        let (task, run) = self.run(task);
        self.apply(Event::RollingRestartAsked { task, run, data: data.into() }, at)
    }

    /// The servers say that this turn has come.
    fn turn(&mut self, turn: u8, at: i64) -> Vec<String> {
        let mut alloc = self.machine.alloc().clone();
        alloc.desired_transition.rolling_restart = turn;
        let job = self.machine.job().clone();
        self.apply(Event::Changed(alloc.share(), job), at)
    }

    fn restart(&self, task: &str) -> Option<RollingRestart> {
        self.machine.update().task_states[task].rolling_restart.as_deref().cloned()
    }

    /// Ends the run that was stopped and starts the next.
    fn again(&mut self, task: &str, at: i64) -> Vec<String> {
        assert_eq!(self.exited(task, 0, at)[0], format!("free {task}"));
        self.freed(task, at);
        self.apply(Event::Due(Timer::Restart { task: task.into() }), at);
        self.started(task, at)
    }

    /// The next agent, which knows what was written down.
    fn next_agent(&self, at: i64) -> (Self, Vec<String>) {
        let tasks = self.machine.tasks().map(|(name, record)| (name.clone(), record.clone())).collect();
        let (record, job) = (self.machine.record().clone(), self.machine.job().clone());
        Self::begin(Machine::new(record, job, tasks, GoDuration::from_secs(30)), at)
    }
}

fn running(tasks: &[&str]) -> Play {
    let (mut play, _) = Play::begin(fresh("service", tasks.iter().map(|name| task(name)).collect()), 0);
    for name in tasks {
        play.started(name, S);
    }
    play
}

#[test]
fn a_task_waits_for_its_turn_and_is_followed_until_it_is_healthy() {
    let mut p = running(&["t", "other"]);
    assert_eq!(p.data("t", 20 * S), Vec::<String>::new());
    let waits = |data: &str, changed| RollingRestart {
        turn: 1,
        data: data.into(),
        asked: 20 * S,
        changed,
        ..RollingRestart::default()
    };
    assert_eq!(p.restart("t"), Some(waits("a", 20 * S)));
    assert_eq!(p.data("t", 21 * S), Vec::<String>::new());
    assert_eq!(p.restart("t"), Some(waits("a", 20 * S)), "the same, found by a new agent");
    assert_eq!(p.finds("b", "t", 21 * S), Vec::<String>::new());
    assert_eq!(p.restart("t"), Some(waits("b", 21 * S)), "newer data, and no other turn");
    assert_eq!(p.turn(255, 22 * S), Vec::<String>::new(), "another turn");
    assert_eq!(p.turn(1, 23 * S), ["stop t"]);
    assert_eq!(p.turn(1, 24 * S), Vec::<String>::new());
    assert_eq!(p.again("t", 25 * S), ["wait t", "health at 35"]);
    assert_eq!(p.restart("t").map(|r| (r.begun, r.unhealthy)), Some((23 * S, false)));
    p.apply(Event::Due(Timer::Health), 34 * S);
    assert!(p.restart("t").is_some());
    p.apply(Event::Due(Timer::Health), 35 * S);
    assert_eq!((p.restart("t"), p.restart("other")), (None, None));
    assert_eq!(p.machine.update().task_states["t"].restarts, 1);
    // The turn is over: other data need another one.
    p.data("t", 40 * S);
    assert_eq!(p.restart("t").map(|r| (r.turn, r.begun)), Some((2, 0)));
    let mut late = running(&["t"]);
    late.turn(255, 19 * S);
    late.data("t", 20 * S);
    assert_eq!(late.restart("t").map(|r| r.turn), Some(1), "the numbers begin again");
}

#[test]
fn a_start_for_another_reason_has_the_new_data_and_needs_no_turn() {
    let mut p = running(&["t"]);
    p.data("t", 20 * S);
    p.exited("t", 1, 21 * S);
    p.freed("t", 21 * S);
    assert!(p.restart("t").is_some(), "it has not started yet");
    p.apply(Event::Due(Timer::Restart { task: "t".into() }), 30 * S);
    p.started("t", 30 * S);
    assert_eq!(p.restart("t"), None);
    assert_eq!(p.turn(1, 31 * S), Vec::<String>::new(), "a turn that comes late");
}

#[test]
fn one_with_data_that_do_it_no_good_says_so_and_takes_better_ones_at_once() {
    let mut p = running(&["t"]);
    p.data("t", 20 * S);
    p.turn(1, 20 * S);
    p.again("t", 21 * S);
    p.exited("t", 1, 22 * S);
    p.freed("t", 22 * S);
    // The restart policy tries again, until the deadline is over.
    p.apply(Event::Due(Timer::Health), 320 * S);
    assert!(p.restart("t").expect("it goes on").unhealthy);
    let events = p.machine.update().task_states["t"].events.clone();
    let said = events.last().expect("an event").display_message.clone();
    assert!(said.starts_with("Unhealthy with the new template, the rest of the group waits: "), "{said}");
    p.apply(Event::Due(Timer::Restart { task: "t".into() }), 321 * S);
    p.started("t", 321 * S);
    assert_eq!(p.data("t", 330 * S), ["stop t"]);
    assert_eq!(
        p.restart("t"),
        Some(RollingRestart {
            turn: 2,
            data: "a".into(),
            asked: 330 * S,
            changed: 330 * S,
            begun: 330 * S,
            unhealthy: false
        })
    );
    assert_eq!(p.again("t", 331 * S), ["wait t", "health at 341"]);
    p.apply(Event::Due(Timer::Health), 341 * S);
    assert_eq!(p.restart("t"), None);
}

#[test]
fn one_that_becomes_healthy_late_holds_the_others_up_no_longer() {
    let mut p = running(&["t"]);
    p.data("t", 20 * S);
    p.turn(1, 20 * S);
    assert_eq!(p.exited("t", 0, 21 * S), ["free t", "health at 320"], "its deadline");
    p.freed("t", 21 * S);
    p.apply(Event::Due(Timer::Restart { task: "t".into() }), 21 * S);
    p.apply(Event::Due(Timer::Health), 321 * S);
    assert!(p.restart("t").expect("its start takes long").unhealthy);
    assert_eq!(p.started("t", 400 * S), ["wait t", "health at 410"]);
    p.apply(Event::Due(Timer::Health), 410 * S);
    assert_eq!(p.restart("t"), None);
}

#[test]
fn what_an_agent_had_ordered_the_next_one_orders_again() {
    let mut p = running(&["t"]);
    p.data("t", 20 * S);
    // It ends while it waits.
    let (mut next, effects) = p.next_agent(21 * S);
    assert_eq!(effects, ["recover t"]);
    assert_eq!(next.restart("t").map(|r| r.begun), Some(0));
    // And in the middle of the stop: the run is still there, with its old data.
    assert_eq!(p.turn(1, 22 * S), ["stop t"]);
    let (mut after, effects) = p.next_agent(23 * S);
    assert_eq!(effects, ["recover t"]);
    for (of, expected) in [(&mut next, ["wait t"].as_slice()), (&mut after, &["wait t", "stop t"])] {
        let (task, run) = of.run("t");
        assert_eq!(of.apply(Event::Recovered { task, run, result: Ok(()) }, 24 * S), expected);
    }
    after.apply(Event::Contacted, 24 * S);
    after.again("t", 25 * S);
    // And after it: nothing restarts once more.
    let (mut last, _) = after.next_agent(26 * S);
    let (task, run) = last.run("t");
    assert_eq!(last.apply(Event::Recovered { task, run, result: Ok(()) }, 27 * S), ["wait t"]);
    last.apply(Event::Due(Timer::Health), 35 * S);
    assert_eq!(last.restart("t"), None);
}

#[test]
fn a_clock_that_is_set_back_restarts_nothing_twice_and_loses_no_turn() {
    let mut p = running(&["t"]);
    p.data("t", 1000 * S);
    p.turn(1, 1000 * S);
    // Ten minutes back.
    p.again("t", 400 * S);
    assert_eq!(p.apply(Event::Due(Timer::Health), 405 * S), ["health at 410"]);
    p.apply(Event::Due(Timer::Health), 410 * S);
    assert_eq!(p.restart("t"), None);
    p.data("t", 420 * S);
    let waits = p.restart("t").expect("it waits");
    assert_eq!((waits.turn, waits.begun), (2, 0), "{waits:?}");
}
