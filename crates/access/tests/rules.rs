//! The language of policies: what is read, what is refused and how, and how a policy is shown.

use access::{Level, ParseError, parse};
use serde_json::json;

fn refusal(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn a_whole_policy_and_its_json_are_the_same() {
    let hcl = r#"
        # everything once
        namespace "prod-*" {
          policy       = "read"
          capabilities = ["submit-job"]
          variables { path "team/*" { capabilities = ["read", "write"] } }
        }
        node_pool "gpu*" { policy = "write" }
        host_volume "*" { capabilities = ["mount-readonly"] }
        agent { policy = "read" }
        node { policy = "write" }
        quota { policy = "deny" }
        operator { policy = "read" capabilities = ["snapshot-save"] }
        plugin { policy = "list" }
    "#;
    let as_json = r#"{
        "namespace": {"prod-*": {"policy": "read", "capabilities": ["submit-job"],
            "variables": {"path": {"team/*": {"capabilities": ["read", "write"]}}}}},
        "node_pool": [{"gpu*": [{"policy": "write"}]}],
        "host_volume": {"*": {"capabilities": ["mount-readonly"]}},
        "agent": {"policy": "read"}, "node": [{"policy": "write"}], "quota": {"policy": "deny"},
        "operator": {"policy": "read", "capabilities": ["snapshot-save"]}, "plugin": {"policy": "list"}
    }"#;
    let mut shown = parse(hcl).expect("HCL").to_json();
    let mut of_json = parse(as_json).expect("JSON").to_json();
    assert_eq!(shown["Raw"], hcl);
    shown["Raw"].take();
    of_json["Raw"].take();
    assert_eq!(shown, of_json);
    assert_eq!(
        shown,
        json!({
            "Namespaces": [{"Name": "prod-*", "Policy": "read", "Capabilities": ["list-jobs", "parse-job", "read-job",
                "submit-job", "csi-read-volume", "csi-list-volume", "list-scaling-policies", "read-scaling-policy",
                "read-job-scaling", "host-volume-read"],
                "Variables": {"Paths": [{"PathSpec": "team/*", "Capabilities": ["list", "read", "write"]}]}}],
            "NodePools": [{"Name": "gpu*", "Policy": "write", "Capabilities": ["read", "write", "delete"]}],
            "HostVolumes": [{"Name": "*", "Policy": "", "Capabilities": ["mount-readonly"]}],
            "Agent": {"Policy": "read"}, "Node": {"Policy": "write"}, "Quota": {"Policy": "deny"},
            "Operator": {"Policy": "read", "Capabilities": ["snapshot-save", "license-read", "keyring-read"]},
            "Plugin": {"Policy": "list"}, "Raw": null,
        })
    );
}

#[test]
fn nothing_is_a_policy_without_rules() {
    for text in ["", "  \n", "# only a comment", "{}"] {
        let rules = parse(text).expect(text);
        assert!(rules.namespaces.is_empty() && rules.agent.is_none(), "{text:?}");
        assert_eq!(rules.to_json()["Namespaces"], json!(null), "{text:?}");
    }
}

#[test]
fn a_capability_brings_what_it_implies() {
    let of = |capability: &str| {
        let rules = parse(&format!("namespace \"a\" {{ capabilities = [{capability:?}] }}")).expect("rules");
        rules.to_json()["Namespaces"][0]["Capabilities"].clone()
    };
    assert_eq!(of("host-volume-create"), json!(["host-volume-create", "host-volume-read"]));
    assert_eq!(of("host-volume-register"), json!(["host-volume-create", "host-volume-register", "host-volume-read"]));
    assert_eq!(
        of("host-volume-write"),
        json!([
            "host-volume-create",
            "host-volume-register",
            "host-volume-read",
            "host-volume-write",
            "host-volume-delete"
        ])
    );
    assert_eq!(of("tag-job-version"), json!(["tag-job-version"]));
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    for (text, beginning) in [
        ("namespace \"a\" { policy = \"list\" }", "Invalid namespace policy: 'list' for 'a'; use read, write"),
        ("namespace \"a\" { capabilities = [\"foo\"] }", "Invalid namespace capability 'foo': "),
        ("namespace \"a b\" { policy = \"read\" }", "Invalid namespace name 'a b': "),
        ("namespace \"a_b\" { policy = \"read\" }", "Invalid namespace name 'a_b': "),
        ("node_pool \"x\" { capabilities = [\"a\"] }", "Invalid node pool capability 'a' for 'x'"),
        ("node_pool \"x.y\" { policy = \"read\" }", "Invalid node pool name 'x.y'"),
        ("host_volume \"v\" { policy = \"list\" }", "Invalid host volume policy: "),
        ("host_volume \"v\" { capabilities = [\"read\"] }", "Invalid host volume capability 'read' for 'v'"),
        ("agent { policy = \"list\" }", "Invalid agent policy: "),
        ("agent { }", "Invalid agent policy: "),
        ("node { policy = \"x\" }", "Invalid node policy: "),
        ("quota { policy = \"list\" }", "Invalid quota policy: "),
        ("plugin { policy = \"x\" }", "Invalid plugin policy: "),
        ("operator { policy = \"x\" }", "Invalid operator policy: "),
        ("operator { capabilities = [\"x\"] }", "Invalid operator capability 'x'"),
        (
            "namespace \"default\" { variables { path \"/x\" { capabilities = [\"read\"] } } }",
            "Invalid variable path \"/x\" in namespace default: cannot start with a leading '/'`",
        ),
        ("namespace \"default\" { variables { } }", "Invalid variable policy: no variable paths in namespace default"),
        (
            "namespace \"a\" { variables { path \"x\" { capabilities = [\"x\"] } } }",
            "Invalid variable capability 'x' in namespace a",
        ),
        ("foo { policy = \"read\" }", "Invalid or duplicate policy keys: foo"),
        ("agent { policy = \"read\" }\nagent { policy = \"write\" }", "Invalid or duplicate policy keys: agent"),
        ("namespace \"a\" { polcy = \"read\" }", "Invalid or duplicate policy keys: namespace.a.polcy"),
        ("node_pool \"a\" { variables { } }", "Invalid or duplicate policy keys: node_pool.a.variables"),
        ("namespace \"a\" {", "Failed to parse ACL Policy: "),
        ("namespace { policy = \"read\" }", "Failed to parse ACL Policy: "),
        ("namespace \"a\" \"b\" { policy = \"read\" }", "Failed to parse ACL Policy: "),
        ("namespace \"a\" { capabilities = \"read-job\" }", "Failed to parse ACL Policy: "),
        ("namespace \"a\" { policy = 3 }", "Failed to parse ACL Policy: "),
        ("agent = \"read\"", "Failed to parse ACL Policy: "),
        ("[]", "Failed to parse ACL Policy: "),
    ] {
        let said = refusal(text);
        assert!(said.starts_with(beginning), "{text}\n{said}");
    }
    assert!(matches!(parse(&"#".repeat(access::RULES_MAX + 1)), Err(ParseError::Syntax(_))));
    assert_eq!(parse("plugin { policy = \"list\" }").expect("rules").plugin, Some(Level::List));
    assert!(parse("node_pool \"a_b\" { policy = \"read\" }").is_ok());
}
