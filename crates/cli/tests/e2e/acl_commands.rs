//! `drover acl` on an agent with access control: who may do what, and what the commands print.

use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use crate::agent::{Agent, drover, printed, until};

/// An agent with access control, and the secret of its first token.
pub(crate) struct Secured {
    pub(crate) agent: Agent,
    pub(crate) root: String,
}

impl Secured {
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// The same with further configuration.
    pub(crate) fn with(more: &str) -> Self {
        let text = format!(
            "ports {{\n  http = 0\n  rpc = 0\n}}\nserver {{\n  enabled = true\n}}\nacl {{\n  enabled = true\n}}\n{more}"
        );
        let agent = Agent::of_file(|dir| format!("data_dir = {:?}\n{text}", dir.join("data")), &[]);
        let mut secured = Self { agent, root: String::new() };
        let shown = until("the first token", || {
            let out = secured.run("", &["acl", "bootstrap"]);
            out.status.success().then(|| printed(&out))
        });
        secured.root = field(&shown, "Secret ID");
        assert_eq!(field(&shown, "Policies"), "n/a", "{shown}");
        secured
    }

    pub(crate) fn run(&self, token: &str, args: &[&str]) -> Output {
        self.command(token, args).stdin(Stdio::null()).output().expect("drover")
    }

    pub(crate) fn command(&self, token: &str, args: &[&str]) -> Command {
        let mut command = Command::new(drover());
        command.args(args).env("DROVER_ADDR", self.agent.address()).env("NOMAD_TOKEN", token);
        command
    }

    #[track_caller]
    pub(crate) fn ok(&self, token: &str, args: &[&str]) -> String {
        let out = self.run(token, args);
        assert!(out.status.success(), "{args:?}: {}", printed(&out));
        String::from_utf8(out.stdout).expect("text")
    }

    #[track_caller]
    pub(crate) fn json(&self, token: &str, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(token, &[args, &["-json"]].concat())).expect("JSON")
    }

    #[track_caller]
    pub(crate) fn refused(&self, token: &str, args: &[&str], says: &str) {
        let out = self.run(token, args);
        let said = printed(&out);
        assert_eq!((out.status.code(), said.contains(says)), (Some(1), true), "{args:?}: {said}");
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.agent.dir().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    }
}

/// The value behind a name and an equal sign.
#[track_caller]
pub(crate) fn field(text: &str, name: &str) -> String {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix("= "));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

#[test]
fn policies_roles_and_tokens_are_made_and_say_who_may_do_what() {
    let secured = Secured::start();
    let root = secured.root.as_str();
    secured.refused("", &["acl", "bootstrap"], "ACL bootstrap already done");
    secured.refused("", &["job", "status"], "Permission denied");
    secured.ok(root, &["job", "status"]);
    assert!(secured.ok("", &["job", "status", "-token", root]).len() > 2, "the flag wins over the environment");

    // A policy.
    let rules = "namespace \"default\" {\n  policy = \"read\"\n}\n";
    let file = secured.file("read.policy.hcl", rules);
    let wrote = secured.ok(root, &["acl", "policy", "apply", "-description", "Readers", "read", &file]);
    assert_eq!(wrote, "Successfully wrote \"read\" ACL policy!\n");
    let odd = secured.file("odd.policy.hcl", "namespace \"default\" { policy = \"reed\" }");
    secured.refused(root, &["acl", "policy", "apply", "odd", &odd], "Invalid namespace policy");
    let shown = secured.ok(root, &["acl", "policy", "info", "read"]);
    assert!(shown.contains("Description = Readers\n") && shown.ends_with(&format!("Rules\n\n{rules}")), "{shown}");
    secured.ok(root, &["acl", "policy", "apply", "-namespace", "default", "-job", "web", "of-web", &file]);
    let shown = secured.ok(root, &["acl", "policy", "info", "of-web"]);
    assert!(shown.contains("Associated Workload\nNamespace = default\nJobID     = web\n"), "{shown}");
    assert_eq!(secured.json(root, &["acl", "policy", "info", "of-web"])["JobACL"]["JobID"], "web");
    let listed = secured.ok(root, &["acl", "policy", "list"]);
    assert!(listed.starts_with("Name    Description\n") && listed.contains("read    Readers"), "{listed}");
    secured.refused(root, &["acl", "policy", "info", "none"], "ACL policy not found");

    // A token with it may read, and not more. It is told why.
    let made = secured.ok(root, &["acl", "token", "create", "-name", "alice", "-policy", "read", "-ttl", "8h"]);
    let (alice, accessor) = (field(&made, "Secret ID"), field(&made, "Accessor ID"));
    assert_eq!((&*field(&made, "Policies"), &*field(&made, "Type")), ("[read]", "client"));
    assert_ne!(field(&made, "Expiry Time"), "<none>");
    secured.ok(&alice, &["job", "status"]);
    secured.refused(&alice, &["namespace", "apply", "dev"], "Permission denied");
    let why = secured.ok(&alice, &["acl", "explain", "GET", "/v1/jobs"]);
    assert!(field(&why, "Result") == "allowed" && why.contains("policy read: "), "{why}");
    let out = secured.run(&alice, &["acl", "explain", "PUT", "/v1/system/gc"]);
    assert_eq!((out.status.code(), &*field(&printed(&out), "Result")), (Some(1), "denied"), "{}", printed(&out));
    let out = secured.run(root, &["acl", "explain", "-of", &alice, "-json", "DELETE", "job/web"]);
    let said: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(
        (out.status.code(), &said["Allowed"], &said["Endpoint"]),
        (Some(1), &json!(false), &json!("/v1/job/*id"))
    );
    assert_eq!(field(&secured.ok(&alice, &["acl", "token", "self"]), "Accessor ID"), accessor);
    assert!(secured.ok(&alice, &["acl", "policy", "self"]).contains("Readers"));
    secured.refused(&alice, &["acl", "token", "list"], "Permission denied");

    // A role gives more, under its name.
    let nodes = secured.file("nodes.policy.hcl", "node {\n  policy = \"read\"\n}\n");
    secured.ok(root, &["acl", "policy", "apply", "nodes", &nodes]);
    secured.refused(root, &["acl", "role", "create", "-name", "ops"], "At least one policy name must be specified");
    let role = secured.ok(root, &["acl", "role", "create", "-name", "ops", "-policy", "read", "-description", "d"]);
    let role = field(&role, "ID");
    let updated = secured.ok(root, &["acl", "role", "update", "-policy", "nodes", &role]);
    assert_eq!((&*field(&updated, "Policies"), &*field(&updated, "Description")), ("nodes,read", "d"));
    assert_eq!(field(&secured.ok(root, &["acl", "role", "info", "-by-name", "ops"]), "ID"), role);
    assert!(secured.ok(root, &["acl", "role", "list"]).contains("ops   d            nodes,read"));
    secured.refused(&alice, &["node", "status"], "Permission denied");
    let changed = secured.ok(root, &["acl", "token", "update", "-role-name", "ops", "-name", "alice2", &accessor]);
    assert!(changed.contains(&format!("Roles\nID                                    Name\n{role}  ops")), "{changed}");
    assert_eq!((&*field(&changed, "Name"), &*field(&changed, "Policies")), ("alice2", "[read]"));
    secured.ok(&alice, &["node", "status"]);
    let replaced = secured.ok(root, &["acl", "role", "update", "-no-merge", "-name", "ops", "-policy", "read", &role]);
    assert_eq!((&*field(&replaced, "Policies"), &*field(&replaced, "Description")), ("read", "<none>"));
    secured.refused(&alice, &["node", "status"], "Permission denied");

    // What completion offers.
    let offered = |words: &[&str]| secured.ok(root, &[&["complete", "--"], words].concat());
    assert_eq!(offered(&["acl", "policy", "info", "rea"]), "read\n");
    assert_eq!(offered(&["acl", "token", "info", &accessor[..8]]), format!("{accessor}\n"));
    assert_eq!(offered(&["acl", "token", "create", "-role-name", ""]), "ops\n");

    // A secret of one's own, by file; and the ends of all.
    let (id, secret) = ("8f1c2d6e-0000-4000-8000-000000000001", "8f1c2d6e-0000-4000-8000-000000000002");
    let file = secured.file("secret", &format!("{secret}\n"));
    secured.ok(root, &["acl", "token", "create", "-accessor", id, "-policy", "read", &file]);
    secured.ok(secret, &["job", "status"]);
    let listed = secured.ok(root, &["acl", "token", "list"]);
    assert!(listed.starts_with("Name             Type        Global  Accessor ID"), "{listed}");
    assert!(listed.contains(id) && !listed.contains(secret) && listed.contains("Bootstrap Token  management  true"));
    assert_eq!(secured.ok(root, &["acl", "token", "delete", id]), format!("Token {id} successfully deleted\n"));
    secured.refused(secret, &["job", "status"], "Permission denied");
    secured.ok(root, &["acl", "role", "delete", &role]);
    secured.refused(root, &["acl", "role", "info", &role], "ACL role not found");
    secured.ok(root, &["acl", "policy", "delete", "read"]);
    secured.refused(&alice, &["job", "status"], "Permission denied");
}

/// Whoever may list no jobs cannot have the beginning of an id looked up.
#[test]
fn who_may_only_dispatch_gives_the_whole_id() {
    let secured = Secured::start();
    let root = &*secured.root;
    let task = "group \"g\" {\n task \"t\" {\n driver = \"raw_exec\"\n config {\n command = \"true\"\n }\n }\n }";
    let job = format!("job \"encode\" {{\n type = \"batch\"\n parameterized {{\n }}\n {task}\n}}\n");
    secured.ok(root, &["job", "run", "-detach", &secured.file("encode.nomad.hcl", &job)]);
    let rules = "namespace \"default\" {\n  capabilities = [\"dispatch-job\"]\n}\n";
    secured.ok(root, &["acl", "policy", "apply", "dispatch", &secured.file("dispatch.policy.hcl", rules)]);
    let token = field(&secured.ok(root, &["acl", "token", "create", "-policy", "dispatch"]), "Secret ID");
    let made = secured.ok(&token, &["job", "dispatch", "-detach", "encode"]);
    assert!(made.contains("encode/dispatch-"), "{made}");
    secured.refused(&token, &["job", "dispatch", "-detach", "enc"], "not found");
}
