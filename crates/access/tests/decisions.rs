//! Who may what: the order of matching as a stock server has it, and laws that hold for all policies.

use access::{
    Access, Capability, HostVolumeCapability, Identity, Level, Named, Need, NodePoolCapability, OperatorCapability,
    Rules, VariableCapability, parse,
};
use proptest::prelude::*;

fn rules(text: &str) -> Rules {
    parse(text).unwrap_or_else(|e| panic!("{text}\n{e}"))
}

fn of(texts: &[&str]) -> Access {
    let rules: Vec<Rules> = texts.iter().map(|text| rules(text)).collect();
    let names = ["one", "two", "three"];
    Access::of(names.into_iter().zip(&rules))
}

fn may(access: &Access, namespace: &str, capability: Capability) -> bool {
    access.allows(&Need::Namespace { namespace, any_of: &[capability] })
}

/// Measured with stock Nomad 1.9.4.
#[test]
fn the_closest_block_decides_alone() {
    use Capability::{ListJobs, ReadJob, SubmitJob};
    let matching = r#"
        namespace "*" { policy = "deny" }
        namespace "prod-*" { policy = "write" }
        namespace "prod-api" { policy = "read" }
        namespace "p*" { capabilities = ["list-jobs"] }
    "#;
    let one = of(&[matching]);
    for (namespace, list, read, submit) in [
        ("prod-api", true, true, false),
        ("prod-x", true, true, true),
        ("px", true, false, false),
        ("other", false, false, false),
        ("default", false, false, false),
    ] {
        let found = [ListJobs, ReadJob, SubmitJob].map(|capability| may(&one, namespace, capability));
        assert_eq!(found, [list, read, submit], "{namespace}");
    }
    let two = of(&[matching, "namespace \"prod-api\" { capabilities = [\"submit-job\"] }"]);
    assert!(may(&two, "prod-api", SubmitJob) && may(&two, "prod-api", ReadJob));
    let node = of(&["node { policy = \"read\" }"]);
    assert!(node.allows(&Need::Node(Level::Read)) && !node.allows(&Need::Node(Level::Write)));
    let denied = of(&["node { policy = \"read\" }", "node { policy = \"deny\" }"]);
    assert!(!denied.allows(&Need::Node(Level::Read)));
    assert_eq!(denied.decide(&Need::Node(Level::Read)).why.to_string(), "policy two: node denies");
}

#[test]
fn an_exact_name_wins_over_globs_also_with_less() {
    let access = of(&["namespace \"*\" { policy = \"write\" }\nnamespace \"a\" { capabilities = [\"list-jobs\"] }"]);
    assert!(!may(&access, "a", Capability::ReadJob) && may(&access, "b", Capability::SubmitJob));
}

#[test]
fn of_equally_close_globs_the_one_that_denies_decides() {
    let access = of(&["namespace \"a*\" { policy = \"deny\" }\nnamespace \"*a\" { policy = \"read\" }"]);
    assert!(!may(&access, "aba", Capability::ReadJob));
    assert!(may(&access, "ba", Capability::ReadJob));
}

#[test]
fn any_namespace_will_do_for_a_star() {
    let access = of(&["namespace \"a\" { policy = \"read\" }\nnamespace \"b\" { policy = \"deny\" }"]);
    assert!(may(&access, "*", Capability::ReadJob) && !may(&access, "*", Capability::SubmitJob));
    assert!(access.allows(&Need::AnyIn("a")) && access.allows(&Need::AnyIn("*")) && !access.allows(&Need::AnyIn("b")));
    assert!(!of(&["namespace \"*\" { policy = \"deny\" }"]).allows(&Need::AnyIn("*")));
}

#[test]
fn levels() {
    let access = of(&["agent { policy = \"write\" } quota { policy = \"read\" } plugin { policy = \"list\" } \
         operator { policy = \"read\" capabilities = [\"snapshot-save\"] }"]);
    for (need, allowed) in [
        (Need::Agent(Level::Read), true),
        (Need::Agent(Level::Write), true),
        (Need::AgentOrNode(Level::Read), true),
        (Need::Node(Level::Read), false),
        (Need::Quota(Level::Read), true),
        (Need::Quota(Level::Write), false),
        (Need::Plugin(Level::List), true),
        (Need::Plugin(Level::Read), false),
        (Need::Operator(Level::Read), true),
        (Need::Operator(Level::Write), false),
        (Need::OperatorCapability(OperatorCapability::SnapshotSave), true),
        (Need::OperatorCapability(OperatorCapability::KeyringRead), true),
        (Need::OperatorCapability(OperatorCapability::KeyringRotate), false),
        (Need::Management, false),
        (Need::Valid, true),
    ] {
        assert_eq!(access.allows(&need), allowed, "{need}");
    }
    let denied = of(&["operator { policy = \"write\" }", "operator { policy = \"deny\" }"]);
    assert!(!denied.allows(&Need::OperatorCapability(OperatorCapability::KeyringRead)));
    let reader = of(&["plugin { policy = \"read\" }"]);
    assert!(reader.allows(&Need::Plugin(Level::List)));
    let no_nodes = of(&["agent { policy = \"deny\" } node { policy = \"read\" }"]);
    assert!(no_nodes.allows(&Need::AgentOrNode(Level::Read)));
}

#[test]
fn pools_and_volumes() {
    let access = of(&["node_pool \"gpu*\" { policy = \"read\" } node_pool \"gpu-x\" { policy = \"deny\" } \
         host_volume \"data\" { policy = \"read\" } host_volume \"scratch*\" { policy = \"write\" }"]);
    let pool = |name, capability| access.allows(&Need::NodePool { name, capability });
    assert!(pool("gpu-1", NodePoolCapability::Read) && !pool("gpu-1", NodePoolCapability::Write));
    assert!(!pool("gpu-x", NodePoolCapability::Read) && !pool("cpu", NodePoolCapability::Read));
    assert!(access.allows(&Need::AnyNodePool(NodePoolCapability::Read)));
    assert!(!access.allows(&Need::AnyNodePool(NodePoolCapability::Delete)));
    let volume = |name, capability| access.allows(&Need::HostVolume { name, any_of: &[capability] });
    assert!(volume("data", HostVolumeCapability::MountReadonly));
    assert!(!volume("data", HostVolumeCapability::MountReadwrite));
    assert!(volume("scratch-1", HostVolumeCapability::MountReadwrite));
}

#[test]
fn variables() {
    use VariableCapability::{Destroy, List, Read, Write};
    let access = of(&[
        "namespace \"default\" { variables { path \"team/*\" { capabilities = [\"read\", \"write\"] } \
         path \"team/secret\" { capabilities = [\"deny\", \"read\"] } path \"seen\" { capabilities = [\"list\"] } } }",
        "namespace \"prod-*\" { variables { path \"*\" { capabilities = [\"write\"] } } }",
    ]);
    let may = |namespace, path, capability| access.allows(&Need::Variable { namespace, path, capability });
    assert!(may("default", "team/a/b", Read) && may("default", "team/a", List) && may("default", "team/a", Write));
    assert!(!may("default", "team/a", Destroy) && !may("default", "other", List));
    assert!(!may("default", "team/secret", Read), "deny removes the rest of its block");
    assert!(may("default", "seen", List) && !may("default", "seen", Read));
    assert!(may("prod-1", "x/y", Write) && !may("prod-1", "x/y", Read) && !may("prod", "x", Write));
    let more = of(&[
        "namespace \"default\" { variables { path \"a\" { capabilities = [\"deny\"] } } }",
        "namespace \"default\" { variables { path \"a\" { capabilities = [\"read\"] } } }",
    ]);
    assert!(
        more.allows(&Need::Variable { namespace: "default", path: "a", capability: Read }),
        "but not what another policy gives for the same path"
    );
    assert!(access.allows(&Need::AnyVariable { namespace: "prod-7", capability: Write }));
    assert!(!access.allows(&Need::AnyVariable { namespace: "prod-7", capability: Read }));
}

#[test]
fn a_task_reads_what_is_its_own() {
    use VariableCapability::{List, Read, Write};
    let identity = Identity {
        namespace: "default".to_owned(),
        job: "web/a".to_owned(),
        group: "g".to_owned(),
        task: Some("t".to_owned()),
    };
    let access = of(&[]).with_identity(identity.clone());
    let may = |namespace, path, capability| access.allows(&Need::Variable { namespace, path, capability });
    for path in ["nomad/jobs", "nomad/jobs/web/a", "nomad/jobs/web/a/g", "nomad/jobs/web/a/g/t"] {
        assert!(may("default", path, Read) && may("default", path, List), "{path}");
        assert!(!may("default", path, Write) && !may("prod", path, Read), "{path}");
    }
    for path in ["nomad", "nomad/jobs/web", "nomad/jobs/other", "nomad/jobs/web/a/g/u", "nomad/jobs/web/a/g/t/x"] {
        assert!(!may("default", path, Read), "{path}");
    }
    assert!(access.allows(&Need::Services("anywhere")) && !of(&[]).allows(&Need::Services("anywhere")));
    let denied = of(&["namespace \"default\" { variables { path \"nomad/jobs\" { capabilities = [\"deny\"] } } }"]);
    let denied = denied.with_identity(identity.clone());
    assert!(!denied.allows(&Need::Variable { namespace: "default", path: "nomad/jobs", capability: Read }));
    let service = of(&[]).with_identity(Identity { task: None, ..identity });
    let need = |path| Need::Variable { namespace: "default", path, capability: Read };
    assert!(service.allows(&need("nomad/jobs/web/a/g")) && !service.allows(&need("nomad/jobs/web/a/g/")));
}

#[test]
fn the_node_that_takes_data_over_reads_where_it_comes_from_and_no_other_does() {
    let node = Access::of_node("n1".to_owned());
    let task = of(&[]).with_identity(Identity {
        namespace: "default".to_owned(),
        job: "web".to_owned(),
        group: "g".to_owned(),
        task: Some("t".to_owned()),
    });
    let person = of(&["node { policy = \"write\" } namespace \"*\" { policy = \"write\" }"]);
    let (own, other) = (Need::Successor { id: "n1" }, Need::Successor { id: "n2" });
    for (access, need, allowed, why) in [
        (&node, own, true, "the node that takes over the data may read where it comes from"),
        (&node, other, false, "the caller is another node"),
        (&task, own, false, "the caller is no node"),
        (&person, own, false, "the caller is no node"),
        (&node, Need::SomeNode, true, "the identity of a node may, without a policy"),
        (&task, Need::SomeNode, false, "the caller is no node"),
        (&person, Need::SomeNode, false, "the caller is no node"),
        (&node, Need::Services("anywhere"), true, "the identity of a node may, without a policy"),
    ] {
        let decision = access.decide(&need);
        assert_eq!((decision.allowed, &*decision.why.to_string()), (allowed, why), "{need}");
        assert_eq!(access.allows(&need), allowed, "{need}");
    }
    let reads = Need::Namespace { namespace: "default", any_of: &[Capability::ReadFs, Capability::ReadJob] };
    assert!(!node.allows(&reads), "of other allocations it reads nothing");
    assert_eq!(own.to_string(), "the identity of node n1, which takes over the data");
}

#[test]
fn standings() {
    assert!(Access::management().allows(&Need::Management) && Access::management().allows(&Need::Valid));
    assert!(Access::none().allows(&Need::Open) && !Access::none().allows(&Need::Valid));
    let open = rules("namespace \"default\" { policy = \"read\" }");
    let anonymous = Access::anonymous([("anonymous", &open)]);
    assert!(may(&anonymous, "default", Capability::ReadJob) && !anonymous.allows(&Need::Valid));
    let decision = anonymous.decide(&Need::Namespace { namespace: "default", any_of: &[Capability::ReadJob] });
    assert_eq!(decision.why.to_string(), "policy anonymous: namespace \"default\" gives read-job");
}

#[test]
fn reasons_name_policy_block_and_capability() {
    let access = of(&["namespace \"a*\" { policy = \"read\" }", "namespace \"a*\" { capabilities = [\"deny\"] }"]);
    let why = |access: &Access, need: &Need<'_>| access.decide(need).why.to_string();
    let submit = Need::Namespace { namespace: "ab", any_of: &[Capability::SubmitJob] };
    assert_eq!(why(&access, &submit), "policy two: namespace \"a*\" denies");
    assert_eq!(
        why(&of(&["namespace \"a*\" { policy = \"read\" }"]), &submit),
        "policy one: namespace \"a*\" does not give it"
    );
    assert_eq!(why(&of(&[]), &submit), "no namespace block of the caller's policies fits");
    assert_eq!(submit.to_string(), "submit-job in namespace \"ab\"");
    let path = of(&["namespace \"n\" { variables { path \"a/*\" { capabilities = [\"read\"] } } }"]);
    let need = Need::Variable { namespace: "n", path: "a/b", capability: VariableCapability::Read };
    assert_eq!(why(&path, &need), "policy one: variables path \"a/*\" of namespace \"n\" gives read");
}

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["*", "a", "b", "ab", "a*", "*b", "a*b", "ab*", "abc"]).prop_map(str::to_owned)
}

fn policy(denying: bool) -> impl Strategy<Value = String> {
    let first = usize::from(!denying);
    let capability = prop::sample::select(&Capability::ALL[first..]).prop_map(|c| format!("{:?}", c.name()));
    let block = (name(), prop::collection::vec(capability, 0..4)).prop_map(|(name, capabilities)| {
        format!("namespace {name:?} {{ capabilities = [{}] }}\n", capabilities.join(", "))
    });
    prop::collection::vec(block, 0..5).prop_map(|blocks| blocks.concat())
}

fn place() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "ab", "abc", "xb", "axb", "abx", "z", "*"])
}

proptest! {
    #[test]
    fn deny_wins_whatever_else_a_block_gets(texts in prop::collection::vec(policy(true), 1..4), at in place()) {
        prop_assume!(at != "*");
        let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let deny = format!("namespace {at:?} {{ policy = \"deny\" }}");
        texts.push(&deny);
        let rules: Vec<Rules> = texts.iter().map(|text| rules(text)).collect();
        let access = Access::of(rules.iter().map(|rules| ("p", rules)));
        prop_assert!(!access.allows(&Need::AnyIn(at)));
    }

    #[test]
    fn the_short_way_decides_as_the_one_with_reasons(texts in prop::collection::vec(policy(true), 0..4), at in place(),
        capability in prop::sample::select(Capability::ALL)) {
        let rules: Vec<Rules> = texts.iter().map(|text| rules(text)).collect();
        let access = Access::of(rules.iter().map(|rules| ("p", rules)));
        let need = Need::Namespace { namespace: at, any_of: &[capability] };
        prop_assert_eq!(access.allows(&need), access.decide(&need).allowed);
    }

    /// A block of a name that no policy has yet takes the place of a farther glob: what is added here are further
    /// blocks of names that are there.
    #[test]
    fn more_of_the_same_blocks_takes_no_right_away(text in policy(true), more in policy(false), at in place(),
        capability in prop::sample::select(Capability::ALL)) {
        let before = rules(&text);
        let mut added = rules(&more);
        added.namespaces.retain(|new| before.namespaces.iter().any(|old| old.rule.name == new.rule.name));
        let need = Need::Namespace { namespace: at, any_of: &[capability] };
        let alone = Access::of([("one", &before)]).allows(&need);
        let both = Access::of([("one", &before), ("two", &added)]).allows(&need);
        prop_assert!(!alone || both);
    }

    /// `read` brings `list` for variables, and the shorthands bring `list-jobs` wherever they bring `read-job`, but
    /// for `scale`, which reads single jobs.
    #[test]
    fn who_reads_may_list(policy in prop::sample::select(vec!["read", "write", "deny"]), at in place(),
        capabilities in prop::sample::subsequence(vec!["list", "read", "write", "destroy", "deny"], 0..5)) {
        let capabilities: Vec<String> = capabilities.iter().map(|c| format!("{c:?}")).collect();
        let capabilities = capabilities.join(", ");
        let text = format!("namespace \"*\" {{ policy = {policy:?}
            variables {{ path \"*\" {{ capabilities = [{capabilities}] }} }} }}");
        let access = of(&[&text]);
        prop_assert!(!may(&access, at, Capability::ReadJob) || may(&access, at, Capability::ListJobs));
        let variable = |capability| access.allows(&Need::Variable { namespace: at, path: "x", capability });
        prop_assert!(!variable(VariableCapability::Read) || variable(VariableCapability::List));
    }

    #[test]
    fn the_decision_is_the_same_in_any_order(one in policy(true), two in policy(true), at in place(),
        capability in prop::sample::select(Capability::ALL)) {
        let (one, two) = (rules(&one), rules(&two));
        let need = Need::Namespace { namespace: at, any_of: &[capability] };
        prop_assert_eq!(Access::of([("1", &one), ("2", &two)]).allows(&need),
            Access::of([("2", &two), ("1", &one)]).allows(&need));
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}") {
        drop(parse(&text));
    }
}
