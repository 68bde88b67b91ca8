//! Root keys that lie encrypted: under a key that a command prints, as that of a KMS does, or that is in a file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use etcd_fake::FakeEtcd;
use serde_json::Value;
use testkit::free_port;

use crate::{
    agent::{Agent, until},
    servers::{KEY, leader, server},
    store_copy::{copied, stop},
};

const OTHER: &str = "YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODk=";

/// The key as a KMS gives it to those who may decrypt: it lies there otherwise, and each use leaves a line.
fn kms(dir: &Path, key: &str) -> PathBuf {
    let program = dir.join("kms");
    let reversed: String = key.chars().rev().collect();
    fs::write(dir.join("key.sealed"), reversed).expect("writes");
    let script = format!(
        "#!/bin/sh\n[ -e {dir:?}/denied ] && echo access denied >&2 && exit 9\n\
         echo used >> {dir:?}/uses\nrev < {dir:?}/key.sealed\n"
    );
    testkit::program(&program, &script);
    program
}

/// What lies in the directory of the server's keys.
fn keys(agent: &Agent) -> Vec<Value> {
    let files = fs::read_dir(agent.dir().join("data/server/keystore")).expect("lists");
    let read = |path: PathBuf| serde_json::from_slice(&fs::read(path).expect("reads")).expect("JSON");
    files.map(|entry| read(entry.expect("an entry").path())).collect()
}

/// Replaces the last lines of the configuration and starts the agent again; false when it does not start.
fn again(agent: &mut Agent, base: &str, keyring: &str) -> bool {
    agent.kill();
    fs::write(agent.dir().join("agent.hcl"), format!("{base}{keyring}")).expect("configuration");
    agent.spawn()
}

fn refused(agent: &mut Agent, base: &str, keyring: &str, says: &str) {
    assert!(!again(agent, base, keyring), "it has started");
    assert!(!agent.ended().success());
    let log = agent.log();
    let last = log.lines().last().unwrap_or_default();
    assert!(last.contains(says), "{last}");
    for secret in [KEY, OTHER] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn a_key_of_a_kms_encrypts_root_keys_and_nothing_starts_without_it() {
    let mut agent = Agent::start("");
    let base = fs::read_to_string(agent.dir().join("agent.hcl")).expect("configuration");
    agent.cli_ok(&["var", "put", "team/web", "k=planted"]);
    assert!(keys(&agent).iter().all(|key| key["Wrapped"].is_null()), "plain before");
    let before = agent.get("/v1/operator/keyring/keys").expect("keys");

    let program = kms(agent.dir(), KEY);
    let command =
        |active: bool| format!("keyring \"command\" {{\n  active = {active}\n  command = [{program:?}]\n}}\n");
    assert!(again(&mut agent, &base, &command(true)), "{}", agent.log());
    holds(&agent, "team/web", "planted");
    assert!(keys(&agent).iter().all(|key| key["Wrapped"] == true), "encrypted by the start");
    assert_eq!(agent.get("/v1/operator/keyring/keys").expect("keys"), before, "nothing else has changed");
    agent.cli_ok(&["operator", "root", "keyring", "rotate", "-now"]);
    agent.cli_ok(&["var", "put", "team/db", "k=planted too"]);
    assert!(keys(&agent).len() == 2 && keys(&agent).iter().all(|key| key["Wrapped"] == true));
    let uses = || fs::read_to_string(program.with_file_name("uses")).unwrap_or_default().lines().count();
    assert_eq!(uses(), 1, "the command runs at the start only");

    // No key, no right to it, another one: nothing starts, and nothing is made.
    let kept = keys(&agent);
    refused(&mut agent, &base, "", "the configuration has no keyring block");
    fs::write(program.with_file_name("denied"), "").expect("writes");
    refused(&mut agent, &base, &command(true), "failed (exit status: 9): access denied");
    fs::remove_file(program.with_file_name("denied")).expect("removes");
    let path = agent.dir().join("other.key");
    fs::write(&path, OTHER).expect("writes");
    let file = |active: bool| format!("keyring \"file\" {{\n  active = {active}\n  path = {path:?}\n}}\n");
    refused(&mut agent, &base, &file(true), "with active = false");
    assert_eq!(keys(&agent).len(), kept.len());

    // Another key, then none.
    for keyring in [file(true) + &command(false), "keyring \"aead\" {\n  active = true\n}\n".to_owned() + &file(false)]
    {
        assert!(again(&mut agent, &base, &keyring), "{}", agent.log());
        for (variable, value) in [("team/web", "planted"), ("team/db", "planted too")] {
            holds(&agent, variable, value);
        }
    }
    assert!(keys(&agent).iter().all(|key| key["Wrapped"].is_null()), "plain again");
}

/// The configuration of a server that shares a store, with this prefix there and these keyring blocks.
fn shares(dir: &Path, endpoint: &str, prefix: &str, keyring: &str) -> String {
    format!(
        "name = \"second\"\ndata_dir = {:?}\nports {{\n  http = 0\n  rpc = {}\n}}\nserver {{\n  enabled = true\n  \
         store = \"etcd\"\n  endpoints = [{endpoint:?}]\n  prefix = {prefix:?}\n}}\n{keyring}",
        dir.join("data"),
        free_port(),
    )
}

#[test]
fn servers_of_one_store_get_their_key_from_a_command_as_well() {
    let etcd = FakeEtcd::start();
    let mut first = server(&etcd, "first", KEY);
    until("the first leader", || leader(&first));
    let endpoint = etcd.endpoint();
    let block = |program: &Path, active: bool| {
        format!("keyring \"command\" {{\n  active = {active}\n  command = [{program:?}]\n}}\n")
    };
    let text = |dir: &Path| shares(dir, &endpoint, "drover/", &block(&kms(dir, KEY), true));
    let mut second = Agent::of_file(text, &[]);
    until("both as members", || (second.get("/v1/agent/members")?["Members"].as_array()?.len() == 2).then_some(()));
    let was = until("who leads", || leader(&first));
    stop(&mut first);
    until("the second to lead", || leader(&second).filter(|leader| *leader != was));
    let keys = second.get("/v1/operator/keyring/keys").expect("keys");
    assert_eq!(keys.as_array().map(Vec::len), Some(1), "the key of the first: {keys}");

    // Another key, by way of a copy that lies there encrypted. A copy that was interrupted leaves keys behind.
    stop(&mut second);
    let (dir, own) = (second.dir().to_owned(), second.dir().join("agent.hcl"));
    let between = dir.join("between");
    let copy = |to: &str| copied(&own, &["-to", to, "-data-dir", between.to_str().expect("text")]);
    copy("sqlite");
    let kept =
        fs::read_dir(between.join("server/keystore")).expect("lists").map(|entry| entry.expect("an entry").path());
    let kept: Vec<Value> =
        kept.map(|path| serde_json::from_slice(&fs::read(path).expect("reads")).expect("JSON")).collect();
    assert!(!kept.is_empty() && kept.iter().all(|key| key["Wrapped"] == true), "{kept:?}");
    for entry in fs::read_dir(between.join("server")).expect("lists") {
        let path = entry.expect("an entry").path();
        if path.is_file() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("state.db")) {
            fs::remove_file(path).expect("removes");
        }
    }
    copy("sqlite");
    let path = dir.join("other.key");
    fs::write(&path, OTHER).expect("writes");
    let file = format!("keyring \"file\" {{\n  active = true\n  path = {path:?}\n}}\n");
    fs::write(&own, shares(&dir, &endpoint, "again/", &(file.clone() + &block(&dir.join("kms"), false))))
        .expect("writes");
    copy("etcd");
    fs::write(&own, shares(&dir, &endpoint, "again/", &file)).expect("writes");
    assert!(second.spawn(), "{}", second.log());
    until("a leader", || leader(&second));
    let after = second.get("/v1/operator/keyring/keys").expect("keys");
    assert!(after.as_array().is_some_and(|all| all.contains(&keys[0])), "{keys} is not among {after}");
}

/// Waits until a variable has this value.
fn holds(agent: &Agent, variable: &str, value: &str) {
    until(variable, || (agent.cli(&["var", "get", "-item", "k", variable]).stdout == value.as_bytes()).then_some(()));
}
