//! A30: a provider that no longer takes a node's credentials, and takes the renewed ones. Nothing is created, stopped or lost in between.

use std::collections::BTreeMap;

use mock::fake::Outcome;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    agent::{signal, until},
    fleet::{Fleet, mock_job, text},
};

impl Fleet {
    /// Slot → incarnation of all that is seen running.
    fn running(&self, slots: &[String]) -> Option<BTreeMap<String, String>> {
        let one = |slot: &String| {
            let r = self.record(slot).filter(|r| r["Observed"]["State"] == "Running" && r["Successor"].is_null())?;
            Some((slot.clone(), text(&r["IncarnationID"])))
        };
        slots.iter().map(one).collect()
    }

    fn denied(&self, slots: &[String]) {
        for slot in slots {
            until(&format!("{slot} to be unknown"), || {
                let r = self.record(slot)?;
                let why = text(&r["Observed"]["Why"]);
                (r["Observed"]["State"] == "Unknown" && why.contains("denied") && why.contains("credentials")).then_some(())
            });
        }
    }

    /// Calls that changed something.
    fn changes(&self) -> Vec<String> {
        let calls = self.provider.calls().expect("reads");
        calls.into_iter().filter(|c| c.mutates() && c.outcome == Outcome::Done).map(|c| format!("{} {:?}", c.call, c.instances)).collect()
    }
}

#[test]
fn a30_denied_tasks_are_unknown_and_go_on_with_renewed_credentials() {
    let mut fleet = Fleet::with(&["a"], "watch_patience = \"600ms\"\n    credentials = \"first\"");
    fleet.provider.admit("first").expect("writes");
    let slots: Vec<String> = (0..3).map(|i| format!("default/far.g[{i}]/t")).collect();
    fleet.server.put("/v1/jobs", &mock_job("far", 3));
    fleet.server.put("/v1/jobs", &mock_job("goes", 1));
    let goes = "default/goes.g[0]/t".to_owned();
    let before = until("all to run", || fleet.running(&slots));
    until("the other to run", || fleet.running(std::slice::from_ref(&goes)));
    let calm = fleet.changes();

    // They expire. One instance ends meanwhile, one job is stopped, one is new.
    fleet.provider.admit("second").expect("writes");
    fleet.denied(&slots);
    fleet.denied(std::slice::from_ref(&goes));
    fleet.provider.end(&before[&slots[2]]).expect("ends");
    fleet.server.cli_ok(&["job", "stop", "-detach", "goes"]);
    fleet.server.put("/v1/jobs", &mock_job("comes", 1));
    let comes = "default/comes.g[0]/t".to_owned();
    until("the tombstone", || fleet.record(&goes).filter(|r| r["Desired"] == "stop"));
    fleet.denied(std::slice::from_ref(&comes));
    assert_eq!(fleet.changes(), calm, "nothing is created or stopped without an answer");
    for job in ["far", "comes"] {
        assert!(fleet.server.allocs(job).iter().all(|a| a["ClientStatus"] != "failed" && a["ClientStatus"] != "lost"), "{job}");
    }

    // Renewed in the configuration of the running agent.
    let node = &fleet.nodes["a"];
    let path = node.dir().join("agent.hcl");
    let secret = fleet.dir.path().join("secret");
    std::fs::write(&secret, "second\n").expect("a file");
    let config = std::fs::read_to_string(&path).expect("configuration");
    let renewed = format!("credentials_file = {:?}", secret.display());
    std::fs::write(&path, config.replace("credentials = \"first\"", &renewed)).expect("configuration");
    signal(node.pid(), Signal::HUP);
    let after = until("what lived to be seen again, and what ended to be made anew", || {
        let after = fleet.running(&slots)?;
        (after[&slots[2]] != before[&slots[2]]).then_some(after)
    });
    assert!(slots[..2].iter().all(|slot| after[slot] == before[slot]), "the same instances: {before:?} {after:?}");
    assert_eq!(fleet.record(&slots[2]).expect("known")["Restarts"], 1, "the end is counted once");
    until("the stop that waited", || fleet.record(&goes).is_none().then_some(()));
    until("the create that waited", || fleet.running(std::slice::from_ref(&comes)));
    assert_eq!((fleet.count("ensure"), fleet.count("stop")), (6, 1), "{:#?}", fleet.changes());

    // Renewed in the file that the configuration names. A new process of the plugin neither helps nor harms before.
    let all: Vec<String> = slots.iter().chain([&comes]).cloned().collect();
    let before = until("all to run", || fleet.running(&all));
    let calm = fleet.changes();
    fleet.provider.admit("third").expect("writes");
    fleet.denied(&all);
    let text = fleet.nodes["a"].cli_ok(&["node", "drivers", "reload", "-driver", "mock_remote"]);
    assert!(text.contains("replaced"), "{text}");
    fleet.denied(&all);
    std::fs::write(&secret, "third\n").expect("a file");
    assert_eq!(until("all to be seen again", || fleet.running(&all)), before, "the same instances");
    assert_eq!(fleet.changes(), calm);

    // A node that is lost meanwhile: whoever has the new ones goes on.
    fleet.provider.admit("fourth").expect("writes");
    fleet.denied(&all);
    fleet.kill("a");
    fleet.join("b", "credentials = \"fourth\"");
    until("another manager", || all.iter().all(|slot| fleet.record(slot).is_some_and(|r| r["ManagerName"] == "b")).then_some(()));
    assert_eq!(until("all to be seen again", || fleet.running(&all)), before, "the same instances");
    assert_eq!(fleet.changes(), calm);
    fleet.at_most_one();
    let left: Value = json!(fleet.provider.live().expect("reads").len());
    assert_eq!(left, all.len());
}
