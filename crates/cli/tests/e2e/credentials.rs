//! A30: a provider that no longer takes a node's credentials, and takes the renewed ones. Nothing is created, stopped
//! or lost in between.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
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
                (r["Observed"]["State"] == "Unknown" && why.contains("denied") && why.contains("credentials"))
                    .then_some(())
            });
        }
    }

    /// The token that an instance has.
    fn token(&self, instance: &str) -> Option<String> {
        let file = self.provider.file(instance, "secrets/nomad_x.jwt").expect("reads")?;
        Some(String::from_utf8(file).expect("text"))
    }

    /// Calls that changed something.
    fn changes(&self) -> Vec<String> {
        let calls = self.provider.calls().expect("reads");
        calls
            .into_iter()
            .filter(|c| c.mutates() && c.outcome == Outcome::Done)
            .map(|c| format!("{} {:?}", c.call, c.instances))
            .collect()
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
        assert!(
            fleet.server.allocs(job).iter().all(|a| a["ClientStatus"] != "failed" && a["ClientStatus"] != "lost"),
            "{job}"
        );
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
    until("another manager", || {
        all.iter().all(|slot| fleet.record(slot).is_some_and(|r| r["ManagerName"] == "b")).then_some(())
    });
    assert_eq!(until("all to be seen again", || fleet.running(&all)), before, "the same instances");
    assert_eq!(fleet.changes(), calm);
    fleet.at_most_one();
    let left: Value = json!(fleet.provider.live().expect("reads").len());
    assert_eq!(left, all.len());
}

/// When a token was made, as it says itself: Unix time in seconds.
fn issued(token: &str) -> u64 {
    let claims = token.split('.').nth(1).expect("a JWT");
    let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).expect("base64")).expect("JSON");
    claims["iat"].as_u64().expect("a time")
}

/// The other half of A30: what the task itself has. Signed by the server, renewed where the task runs by whichever
/// node manages it.
#[test]
fn a30_tokens_of_a_task_are_renewed_by_whoever_manages_it() {
    let mut fleet = Fleet::with(&["a", "b"], "");
    let mut job = mock_job("holds", 1);
    let ttl = 8_000_000_000_u64;
    job["Job"]["TaskGroups"][0]["Tasks"][0]["Identities"] = json!([{"Name": "x", "Audience": ["far"],
            "File": true, "TTL": ttl, "ChangeMode": "signal", "ChangeSignal": "SIGHUP"}]);
    fleet.server.put("/v1/jobs", &job);
    let slots = ["default/holds.g[0]/t".to_owned()];
    let before = until("the task to run", || fleet.running(&slots));
    let instance = before[&slots[0]].clone();
    let first = until("its token", || fleet.token(&instance));
    let second = until("a renewal", || fleet.token(&instance).filter(|token| *token != first));
    let lived = issued(&second) - issued(&first);
    assert!(lived >= 3, "at about half of its life: {lived} s");
    let signals = || fleet.provider.live().expect("reads").into_iter().find(|i| i.id == instance).map(|i| i.signals);
    until("the signal", || signals().filter(|s| s.iter().any(|s| s == "SIGHUP")));

    let manager = text(&fleet.managed(&slots[0], &[])["ManagerName"]);
    fleet.kill(&manager);
    let next = text(&fleet.managed(&slots[0], &[&manager])["ManagerName"]);
    until("a renewal by the next manager", || {
        let calls = fleet.provider.calls().expect("reads");
        calls.iter().any(|c| c.call == "refresh" && c.caller == next && c.outcome == Outcome::Done).then_some(())
    });
    let third = fleet.token(&instance).expect("it has one");
    assert!(third != first && third != second);
    assert_eq!(until("the task to be seen", || fleet.running(&slots)), before, "the same instance");
    assert_eq!(fleet.count("ensure"), 1);
    let known = ["/v1/remote/tasks", "/v1/allocations?task_states=true"]
        .map(|path| fleet.server.get(path).expect("answers").to_string())
        .concat();
    assert!(
        [&first, &second, &third].iter().all(|token| !known.contains(token.as_str())),
        "no token in what the servers tell"
    );
    fleet.at_most_one();
}
