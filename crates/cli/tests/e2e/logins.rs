//! `drover login` with an identity provider beside the agents: programs with its tokens, people by browser.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use etcd_fake::FakeEtcd;
use oidc_fake::Provider;
use serde_json::json;
use testkit::ask;

use crate::{
    acl_commands::{Secured, field},
    agent::{drover, printed, until},
    servers::{KEY, leader, secured_server},
};

/// A login by browser that has begun: its command, the address that it shows, and what else it says.
fn begun(mut command: Command) -> (Child, String, impl Iterator<Item = String>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("drover");
    let mut said = BufReader::new(child.stderr.take().expect("stderr")).lines().map_while(Result::ok);
    let before: Vec<String> = said.by_ref().take_while(|line| !line.is_empty()).collect();
    let url = said.next().unwrap_or_else(|| panic!("no address to open: {before:?}"));
    (child, url, said)
}

/// Goes to an address as a browser does, and on to where that leads; the last page.
pub(crate) fn browse(url: &str) -> String {
    let mut url = url.to_owned();
    loop {
        let rest = url.strip_prefix("http://").expect("an address");
        let (host, path) = rest.split_at(rest.find('/').expect("a path"));
        let page = ask(host, "GET", path, &[], b"").expect("a page");
        let location = |line: &str| Some(line.split_once(": ").filter(|(name, _)| *name == "location")?.1.to_owned());
        match page.head.lines().find_map(location) {
            Some(next) => url = next,
            None => return page.body,
        }
    }
}

#[test]
fn people_and_programs_log_in_by_an_identity_provider() {
    let secured = Secured::start();
    let root = secured.root.as_str();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let provider = runtime.block_on(Provider::start());
    secured.refused("", &["login"], "the cluster has no auth methods");
    let rules = secured.file("read.policy.hcl", "namespace \"default\" {\n  policy = \"read\"\n}\n");
    secured.ok(root, &["acl", "policy", "apply", "read", &rules]);

    // A program, which has a token of the provider.
    let config = json!({
        "JWKSURL": format!("{}/keys", provider.url), "BoundAudiences": ["drover"], "BoundIssuer": [provider.url],
        "ClaimMappings": {"sub": "user"},
    });
    let config = format!("@{}", secured.file("ci.json", &config.to_string()));
    let of_method = ["-token-locality", "local", "-max-token-ttl", "1h", "-config"];
    let create = |name, kind, config: &str| {
        let args = ["acl", "auth-method", "create", "-name", name, "-type", kind];
        secured.ok(root, &[&args[..], &of_method, &[config]].concat())
    };
    let made = create("ci", "JWT", &config);
    assert_eq!((&*field(&made, "Max Token TTL"), &*field(&made, "Bound Audiences")), ("1h0m0s", "drover"));
    let wrong = ["acl", "auth-method", "create", "-name", "x", "-type", "JWT"];
    secured.refused(
        root,
        &[&wrong[..], &of_method, &["{\"BoundIsuer\": []}"]].concat(),
        "did you mean \"BoundIssuer\"?",
    );
    let rule = ["acl", "binding-rule", "create", "-auth-method", "ci", "-bind-type", "policy", "-bind-name", "read"];
    let rule = field(&secured.ok(root, &[&rule[..], &["-selector", "value.user==\"ann\""]].concat()), "ID");
    assert_eq!(field(&secured.ok(root, &["acl", "binding-rule", "info", &rule]), "Bind Name"), "read");
    let claims = |sub: &str| {
        let now = oidc_fake::now();
        json!({"iss": provider.url, "aud": "drover", "sub": sub, "iat": now, "exp": now + 60})
    };
    let ann = secured.file("ann.jwt", &format!("{}\n", provider.sign(&claims("ann"))));
    let shown = secured.ok("", &["login", "-method", "ci", "-login-token", &format!("@{ann}")]);
    assert!(shown.starts_with("Successfully logged in via JWT and ci\n\nAccessor ID"), "{shown}");
    secured.ok(&field(&shown, "Secret ID"), &["job", "status"]);
    let bob = provider.sign(&claims("bob"));
    secured.refused("", &["login", "-method", "ci", "-login-token", &bob], "no role or policy bindings matched");
    secured.refused("", &["login", "-method", "ci"], "needs -login-token");
    secured.refused("", &["login", "-login-token", &bob], "name one with -method: ci");
    let updated = secured.ok(root, &["acl", "auth-method", "update", "-default", "-max-token-ttl", "2h", "ci"]);
    assert_eq!((&*field(&updated, "Default"), &*field(&updated, "Max Token TTL")), ("true", "2h0m0s"));
    let listed = secured.ok("", &["acl", "auth-method", "list"]);
    assert_eq!(listed, "Name  Type  Default\nci    JWT   true\n");
    let token = secured.json("", &["login", "-login-token", &format!("@{ann}")]);
    assert_eq!(token["Policies"], json!(["read"]));
    secured.ok(root, &["acl", "binding-rule", "update", "-selector", "value.user==\"bob\"", &rule]);
    secured.ok("", &["login", "-login-token", &bob]);
    let rules = secured.ok(root, &["acl", "binding-rule", "list"]);
    assert!(rules.contains(&rule) && rules.ends_with("ci\n"), "{rules}");

    // A person, by browser.
    let port = testkit::free_port();
    let back = format!("http://127.0.0.1:{port}/oidc/callback");
    let config = json!({
        "OIDCDiscoveryURL": provider.url, "OIDCClientID": oidc_fake::CLIENT, "OIDCClientSecret": oidc_fake::SECRET,
        "AllowedRedirectURIs": [back], "ClaimMappings": {"sub": "user"}, "OIDCDisableUserInfo": true,
    });
    let shown = create("sso", "OIDC", &config.to_string());
    assert_eq!(field(&shown, "OIDC Client Secret"), "redacted");
    let rule = ["acl", "binding-rule", "create", "-auth-method", "sso", "-bind-type", "management"];
    secured.ok(root, &rule);
    let callback = format!("127.0.0.1:{port}");
    let login = ["login", "-method", "sso", "-oidc-callback-addr", &callback];
    let begin = || begun(secured.command("", &login));
    let browse = |target: &str| ask(&callback, "GET", target, &[], b"").expect("the command listens");
    let (child, url, _said) = begin();
    let (code, state) = provider.person_at(&url);
    assert_eq!(browse("/favicon.ico").status, 404);
    assert!(browse(&format!("/oidc/callback?code={code}&state={state}")).body.contains("You are logged in"));
    let out = child.wait_with_output().expect("output");
    let shown = String::from_utf8(out.stdout).expect("text");
    assert!(out.status.success() && shown.starts_with("Successfully logged in via OIDC and sso\n"), "{shown}");
    assert_eq!(field(&shown, "Type"), "management");
    secured.ok(&field(&shown, "Secret ID"), &["acl", "token", "list"]);

    // One who is not let in by the provider.
    let (child, _, said) = begin();
    assert!(browse("/oidc/callback?error=access_denied&error_description=not+you").body.contains("has failed"));
    assert_eq!(child.wait_with_output().expect("output").status.code(), Some(1));
    let said: Vec<String> = said.collect();
    assert!(said.iter().any(|line| line.contains("did not log you in: access_denied: not you")), "{said:?}");

    assert!(secured.ok(root, &["acl", "auth-method", "delete", "ci"]).contains("ci successfully deleted"));
    secured.refused(root, &["acl", "auth-method", "info", "ci"], "ACL auth-method not found");
}

#[test]
fn a_login_goes_on_when_another_server_leads() {
    let etcd = FakeEtcd::start();
    let mut first = secured_server(&etcd, "first", KEY);
    let of_first = until("the first leader", || leader(&first));
    let second = secured_server(&etcd, "second", KEY);
    assert_eq!(until("what the second says", || leader(&second)), of_first);
    let command = |token: &str, args: &[&str]| {
        let mut command = Command::new(drover());
        command.args(args).env("DROVER_ADDR", second.address()).env("NOMAD_TOKEN", token);
        command
    };
    let ok = |token: &str, args: &[&str]| {
        let out = command(token, args).output().expect("drover");
        assert!(out.status.success(), "{args:?}: {}", printed(&out));
        String::from_utf8(out.stdout).expect("text")
    };
    // Until both servers are known as ones that read the newest format of the state.
    let root = until("the first token", || {
        let out = command("", &["acl", "bootstrap"]).output().expect("drover");
        if out.status.success() { Ok(field(&printed(&out), "Secret ID")) } else { Err(printed(&out)) }
    });
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let provider = runtime.block_on(Provider::start());
    let config = json!({
        "OIDCDiscoveryURL": provider.url, "OIDCClientID": oidc_fake::CLIENT, "OIDCClientSecret": oidc_fake::SECRET,
        "OIDCEnablePKCE": true, "AllowedRedirectURIs": ["http://localhost:4649/oidc/callback"],
        "OIDCDisableUserInfo": true,
    });
    let create = ["acl", "auth-method", "create", "-name", "sso", "-type", "OIDC", "-token-locality", "local"];
    ok(&root, &[&create[..], &["-max-token-ttl", "1h", "-config", &config.to_string()]].concat());
    ok(&root, &["acl", "binding-rule", "create", "-auth-method", "sso", "-bind-type", "management"]);

    until("a key that seals secrets", || {
        let out = command(&root, &["var", "put", "-out", "none", "a/b", "c=d"]).output().expect("drover");
        if out.status.success() { Ok(()) } else { Err(printed(&out)) }
    });
    let (child, url, mut said) = begun(command("", &["login", "-method", "sso", "-oidc-callback-addr", "localhost:0"]));
    // The leader ends while the person is at the provider. On a busy machine another one leads before the person is
    // back: then nobody waits.
    first.kill();
    assert!(browse(&url).contains("You are logged in"));
    match said.find(|line| line.contains("the login goes on when one leads")) {
        Some(waits) => assert!(waits.contains("No cluster leader"), "{waits}"),
        None => eprintln!("another one led before the person was back"),
    }
    let out = child.wait_with_output().expect("output");
    let shown = String::from_utf8(out.stdout).expect("text");
    assert!(out.status.success(), "{shown} {:?}", said.collect::<Vec<_>>());
    assert_eq!(provider.asked("/token"), 1, "a code is shown once");
    assert_ne!(leader(&second), Some(of_first));
    ok(&field(&shown, "Secret ID"), &["acl", "token", "list"]);
}
