//! Rolling restarts of changed templates: real tasks that read a variable, good and bad values of it, and an agent that
//! is killed in the middle.

use std::{fs, path::Path};

use serde_json::Value;
use testkit::Dir;

use crate::agent::{Agent, until};

/// Three that say when they start with what, and do not like `bad`.
fn job(log: &Path) -> String {
    let run = format!(
        "echo $NOMAD_ALLOC_INDEX $COLOUR $(date +%s%N) >> {}; test $COLOUR != bad || exit 1; exec sleep 600",
        log.display()
    );
    format!(
        r#"job "web" {{
  group "g" {{
    count = 3
    update {{
      max_parallel      = 1
      min_healthy_time  = "2s"
      healthy_deadline  = "5s"
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

    /// Which allocations have started with that colour, and when, Unix ns.
    fn starts(&self, colour: &str) -> Vec<(String, i64)> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let words = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let of_colour = words.filter(|words| words.len() == 3 && words[1] == colour);
        of_colour.map(|words| (words[0].to_owned(), words[2].parse().expect("a time"))).collect()
    }

    fn status(&self) -> String {
        self.agent.cli_ok(&["job", "status", "web"])
    }

    /// Nothing waits or restarts any more.
    fn over(&self) {
        until("the last to be healthy", || (!self.status().contains("Rolling Restarts")).then_some(()));
    }
}

/// Each one once, and at least the time apart that the one before has to be healthy.
fn one_by_one(starts: &[(String, i64)]) {
    let mut who: Vec<&str> = starts.iter().map(|(who, _)| who.as_str()).collect();
    who.sort_unstable();
    assert_eq!(who, ["0", "1", "2"], "{starts:?}");
    let apart = starts.windows(2).all(|pair| pair[1].1 - pair[0].1 >= 2_000_000_000);
    assert!(apart, "{starts:?}");
}

#[test]
fn new_data_come_to_one_allocation_after_the_other_and_bad_data_to_one_alone() {
    let mut w = World::new();
    w.colour("blue");
    until("three blue starts", || (w.starts("blue").len() == 3).then_some(()));
    one_by_one(&w.starts("blue"));
    w.over();
    assert!(w.allocs().iter().all(|a| a["TaskStates"]["t"]["Restarts"] == 1), "{:?}", w.allocs());

    // The first cannot run with it. The others wait, and say so.
    w.colour("bad");
    let row = |words: [&str; 4]| {
        let has = |line: &str| line.split_whitespace().eq(words);
        w.status().lines().any(has).then_some(())
    };
    until("one that is unhealthy", || row(["g", "2", "0", "1"]));
    let tried: std::collections::BTreeSet<String> = w.starts("bad").into_iter().map(|(who, _)| who).collect();
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
    until("the first red start", || {
        let red = w.starts("red").first()?.1;
        let started = |a: &Value| {
            let event = a["TaskStates"]["t"]["Events"].as_array().and_then(|all| all.last()).cloned();
            event.is_some_and(|e| e["Type"] == "Started" && e["Time"].as_i64() >= Some(red))
        };
        w.allocs().iter().any(started).then_some(())
    });
    w.agent.kill();
    w.agent.launch();
    until("three red starts", || (w.starts("red").len() >= 3).then_some(()));
    w.over();
    one_by_one(&w.starts("red"));
    let tried_again: std::collections::BTreeSet<String> = w.starts("bad").into_iter().map(|(who, _)| who).collect();
    assert_eq!(tried_again, tried, "nobody else has tried it");
}
