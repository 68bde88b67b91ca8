//! Rolling restarts of changed templates: real tasks that read a variable, good and bad values of it, and an agent that
//! is killed in the middle.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;
use testkit::Dir;

use crate::agent::{Agent, until};

/// How long a task has to run to be healthy, seconds.
const MIN_HEALTHY_S: i64 = 3;

/// Three that say with what they start, and do not like `bad`.
fn job(log: &Path) -> String {
    let run =
        format!("echo $NOMAD_ALLOC_INDEX $COLOUR >> {}; test $COLOUR != bad || exit 1; exec sleep 600", log.display());
    format!(
        r#"job "web" {{
  group "g" {{
    count = 3
    update {{
      max_parallel      = 1
      min_healthy_time  = "{MIN_HEALTHY_S}s"
      healthy_deadline  = "20s"
      progress_deadline = "60s"
    }}
    restart {{
      attempts = 5
      interval = "5s"
      delay    = "1s"
      mode     = "delay"
    }}
    task "t" {{
      driver = "raw_exec"
      config {{
        command = "/bin/sh"
        args    = ["-c", {run:?}]
      }}
      template {{
        destination = "local/colour.env"
        env         = true
        rolling     = true
        data        = "COLOUR={{{{ with nomadVar \"nomad/jobs/web\" }}}}{{{{ .colour }}}}{{{{ end }}}}"
      }}
    }}
  }}
}}
"#
    )
}

struct World {
    agent: Agent,
    dir: Dir,
}

impl World {
    fn new() -> Self {
        let world = Self { agent: Agent::start(""), dir: Dir::new("rolling") };
        world.colour("green");
        world.agent.run(&job(&world.log()));
        until("three that run", || {
            let running = world.allocs().iter().filter(|a| a["ClientStatus"] == "running").count();
            (running == 3).then_some(())
        });
        until("their starts", || (world.starts("green").len() == 3).then_some(()));
        world
    }

    fn log(&self) -> std::path::PathBuf {
        self.dir.path().join("log")
    }

    fn colour(&self, colour: &str) {
        self.agent.cli_ok(&["var", "put", "-force", "nomad/jobs/web", &format!("colour={colour}")]);
    }

    fn allocs(&self) -> Vec<Value> {
        self.agent.allocs("web")
    }

    /// All starts: of which allocation of the group, and with which colour.
    fn all_starts(&self) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let words = text.lines().filter_map(|line| line.split_once(' '));
        words.map(|(who, colour)| (who.to_owned(), colour.to_owned())).collect()
    }

    /// Which allocations have started with that colour.
    fn starts(&self, colour: &str) -> Vec<String> {
        self.all_starts().into_iter().filter(|(_, with)| with == colour).map(|(who, _)| who).collect()
    }

    /// Which has started first with that colour, once the agent knows of that start.
    fn known_start(&self, colour: &str) -> Option<String> {
        let starts = self.all_starts();
        let who = &starts.iter().find(|(_, with)| with == colour)?.0;
        let count = starts.iter().filter(|(other, _)| other == who).count();
        let name = format!("web.g[{who}]");
        let alloc = self.allocs().into_iter().find(|alloc| alloc["Name"] == name.as_str())?;
        let state = &alloc["TaskStates"]["t"];
        let running = state["Events"].as_array()?.last()?["Type"] == "Started";
        // One that was ended at once has told nobody of its start.
        (running && state["Restarts"].as_u64()? + 1 >= count as u64).then(|| who.clone())
    }

    fn status(&self) -> String {
        self.agent.cli_ok(&["job", "status", "web"])
    }

    /// Nothing waits or restarts any more.
    fn over(&self) {
        until("the last to be healthy", || (!self.status().contains("Rolling Restarts")).then_some(()));
    }
}

/// Each one has started once with the last colour, and after the one before was healthy for its time.
fn one_by_one(w: &World, colour: &str) {
    let mut who = w.starts(colour);
    who.sort_unstable();
    assert_eq!(who, ["0", "1", "2"]);
    // By the agent's clock, which also tells how long a task is healthy: a task may say late that it has started.
    let last_start = |alloc: &Value| {
        let events = alloc["TaskStates"]["t"]["Events"].as_array().cloned().unwrap_or_default();
        let started = events.iter().rfind(|event| event["Type"] == "Started").unwrap_or_else(|| panic!("{alloc}"));
        started["Time"].as_i64().expect("a time")
    };
    let mut times: Vec<i64> = w.allocs().iter().map(last_start).collect();
    times.sort_unstable();
    let apart = times.windows(2).all(|pair| pair[1] - pair[0] >= MIN_HEALTHY_S * 1_000_000_000);
    assert!(apart && times.len() == 3, "{times:?}");
}

#[test]
fn new_data_come_to_one_allocation_after_the_other_and_bad_data_to_one_alone() {
    let mut w = World::new();
    w.colour("blue");
    until("three blue starts", || (w.starts("blue").len() == 3).then_some(()));
    w.over();
    one_by_one(&w, "blue");
    assert!(w.allocs().iter().all(|a| a["TaskStates"]["t"]["Restarts"] == 1), "{:?}", w.allocs());

    // The first cannot run with it. The others wait, and say so.
    w.colour("bad");
    let row = |words: [&str; 4]| {
        let has = |line: &str| line.split_whitespace().eq(words);
        w.status().lines().any(has).then_some(())
    };
    until("one that is unhealthy", || row(["g", "2", "0", "1"]));
    let tried: BTreeSet<String> = w.starts("bad").into_iter().collect();
    assert_eq!(tried.len(), 1, "{tried:?}");
    let of = |tried: bool, what: &str| {
        let all = w.allocs();
        let one =
            all.iter().find(|a| (a["TaskStates"]["t"]["Restarts"] != 1) == tried).unwrap_or_else(|| panic!("{all:?}"));
        let text = w.agent.cli_ok(&["alloc", "status", one["ID"].as_str().expect("an id")]);
        assert!(text.contains(what), "{text}");
    };
    of(true, "not healthy with its new templates");
    of(false, "waits for its turn to restart with its new templates");

    // Better data, and an agent that dies on the way.
    w.colour("red");
    // The agent knows of the first red start: one that it had not confirmed, the next agent would end and repeat.
    until("the first red start", || w.known_start("red"));
    w.agent.kill();
    w.agent.launch();
    until("three red starts", || (w.starts("red").len() >= 3).then_some(()));
    w.over();
    one_by_one(&w, "red");
    let tried_again: BTreeSet<String> = w.starts("bad").into_iter().collect();
    assert_eq!(tried_again, tried, "nobody else has tried it");
}
