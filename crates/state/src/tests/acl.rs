//! Access control: random steps, their indexes, and what goes with what is deleted.

use model::{AclAuthMethod, AclBindingRule, AclPolicy, AclRole, AclToken, AclTokenRole, JobAcl, OneTimeToken, Secret};

use super::*;

/// One random change of access control; few names, so that steps meet.
#[derive(Clone, Debug)]
pub(super) enum AclStep {
    /// Which, and the job that it is attached to.
    Policy(u8, Option<u8>),
    DropPolicy(u8),
    /// Which, its secret, its roles, when it expires.
    Token(u8, u8, Vec<u8>, Option<u8>),
    DropToken(u8),
    /// Which, and its name.
    Role(u8, u8),
    DropRole(u8),
    Method(u8),
    DropMethod(u8),
    /// Which, and its method.
    Rule(u8, u8),
    DropRule(u8),
    /// Which, and of which token.
    OneTime(u8, u8),
    DropOneTime(u8),
    Bootstrapped,
}

pub(super) fn acl_step() -> impl Strategy<Value = AclStep> {
    let small = || 0..3_u8;
    prop_oneof![
        (small(), prop::option::of(small())).prop_map(|(n, job)| AclStep::Policy(n, job)),
        small().prop_map(AclStep::DropPolicy),
        (small(), small(), prop::collection::vec(small(), 0..3), prop::option::of(small()))
            .prop_map(|(n, secret, roles, end)| AclStep::Token(n, secret, roles, end)),
        small().prop_map(AclStep::DropToken),
        (small(), small()).prop_map(|(n, name)| AclStep::Role(n, name)),
        small().prop_map(AclStep::DropRole),
        small().prop_map(AclStep::Method),
        small().prop_map(AclStep::DropMethod),
        (small(), small()).prop_map(|(n, method)| AclStep::Rule(n, method)),
        small().prop_map(AclStep::DropRule),
        (small(), small()).prop_map(|(n, token)| AclStep::OneTime(n, token)),
        small().prop_map(AclStep::DropOneTime),
        Just(AclStep::Bootstrapped),
    ]
}

fn name(kind: &str, n: u8) -> Arc<str> {
    format!("{kind}{n}").into()
}

pub(super) fn acl_changes(state: &State, step: &AclStep) -> Vec<Change> {
    vec![match step {
        AclStep::Policy(n, job) => Change::PutAclPolicy(Box::new(AclPolicy {
            name: name("p", *n),
            job_acl: job.map(|j| JobAcl {
                namespace: "default".into(),
                job_id: name("j", j).to_string(),
                ..JobAcl::default()
            }),
            ..AclPolicy::default()
        })),
        AclStep::DropPolicy(n) => Change::DeleteAclPolicy(name("p", *n)),
        AclStep::Token(n, secret, roles, end) => {
            let secret_id = Secret::from(format!("secret-{secret}"));
            // No two tokens have one secret.
            if state.acl_token_by_secret(secret_id.reveal()).is_some_and(|t| t.accessor_id != name("t", *n)) {
                return Vec::new();
            }
            let link = |id: &u8| AclTokenRole { id: name("r", *id), name: format!("of {id}") };
            let known = roles.iter().filter(|id| state.acl_role(&name("r", **id)).is_some());
            Change::PutAclToken(Box::new(AclToken {
                accessor_id: name("t", *n),
                secret_id,
                roles: known.map(link).collect(),
                expiration_time: end.map(|end| i64::from(end).into()).unwrap_or_default(),
                ..AclToken::default()
            }))
        }
        AclStep::DropToken(n) => Change::DeleteAclToken(name("t", *n)),
        AclStep::Role(n, called) => {
            let called = name("role-", *called).to_string();
            if state.acl_role_by_name(&called).is_some_and(|r| r.id != name("r", *n)) {
                return Vec::new();
            }
            Change::PutAclRole(Box::new(AclRole { id: name("r", *n), name: called, ..AclRole::default() }))
        }
        AclStep::DropRole(n) => Change::DeleteAclRole(name("r", *n)),
        AclStep::Method(n) => {
            Change::PutAclAuthMethod(Box::new(AclAuthMethod { name: name("m", *n), ..AclAuthMethod::default() }))
        }
        AclStep::DropMethod(n) => Change::DeleteAclAuthMethod(name("m", *n)),
        AclStep::Rule(n, method) => Change::PutAclBindingRule(Box::new(AclBindingRule {
            id: name("b", *n),
            auth_method: name("m", *method),
            ..AclBindingRule::default()
        })),
        AclStep::DropRule(n) => Change::DeleteAclBindingRule(name("b", *n)),
        AclStep::OneTime(n, token) => Change::PutOneTimeToken(Box::new(OneTimeToken {
            one_time_secret_id: format!("once-{n}").into(),
            accessor_id: name("t", *token),
            ..OneTimeToken::default()
        })),
        AclStep::DropOneTime(n) => Change::DeleteOneTimeToken(Secret::digest_of(&format!("once-{n}"))),
        AclStep::Bootstrapped => Change::AclBootstrapped,
    }]
}

/// Every row, with the secrets that `Debug` hides, and every index.
pub(super) fn acl_view(s: &State) -> Vec<String> {
    let json = |value: serde_json::Result<String>| value.expect("plain data");
    let mut out: Vec<String> = s.acl_policies().map(|x| json(serde_json::to_string(x))).collect();
    out.extend(s.acl_tokens().map(|x| json(serde_json::to_string(x))));
    out.extend(s.acl_roles().map(|x| json(serde_json::to_string(x))));
    out.extend(s.acl_auth_methods().map(|x| json(serde_json::to_string(x))));
    out.extend(s.acl_binding_rules().map(|x| json(serde_json::to_string(x))));
    out.extend(s.one_time_tokens().map(|x| json(serde_json::to_string(x))));
    out.push(format!("{:?} {:?}", s.acl, s.acl_bootstrap_index()));
    out
}

/// Each index agrees with a search.
pub(super) fn check_acl(s: &State) {
    for n in 0..3 {
        let ids = |all: Vec<&Arc<AclToken>>| all.into_iter().map(|t| t.accessor_id.clone()).collect::<Vec<_>>();
        let role = name("r", n);
        let linked = s.acl_tokens().filter(|t| t.roles.iter().any(|r| r.id == role)).collect();
        assert_eq!(ids(s.acl_tokens_by_role(&role).collect()), ids(linked), "tokens of role {n}");
        assert!(s.acl_role(&role).is_some() || s.acl_tokens_by_role(&role).next().is_none(), "a link to no role");
        let at = i64::from(n);
        let expired: BTreeSet<_> = ids(s.acl_tokens_expired_at(at).collect()).into_iter().collect();
        assert_eq!(expired, s.acl_tokens().filter(|t| t.expired(at)).map(|t| t.accessor_id.clone()).collect());
        let method = name("m", n);
        let bound = |r: &&Arc<AclBindingRule>| r.auth_method == method;
        assert!(s.acl_binding_rules_by_method(&method).eq(s.acl_binding_rules().filter(bound)), "rules of method {n}");
        let job = name("j", n);
        let attached = |p: &&Arc<AclPolicy>| p.job_acl.as_ref().is_some_and(|j| *j.job_id == *job);
        assert!(s.acl_policies_of_job("default", &job).eq(s.acl_policies().filter(attached)), "policies of job {n}");
        assert_eq!(s.acl_policies_of_job("other", &job).count(), 0);
    }
    for token in s.acl_tokens() {
        assert_eq!(s.acl_token_by_secret(token.secret_id.reveal()), Some(token));
    }
    for token in s.acl.tokens_by_secret.values() {
        assert_eq!(s.acl_token(&token.accessor_id), Some(token), "the newest one is found by its secret");
    }
    assert_eq!(s.acl.tokens_by_secret.len(), s.acl_tokens().count(), "secrets of tokens that are gone");
    for role in s.acl_roles() {
        assert_eq!(s.acl_role_by_name(&role.name), Some(role));
    }
    assert_eq!(s.acl.roles_by_name.len(), s.acl_roles().count(), "names of roles that are gone");
    for once in s.one_time_tokens() {
        assert_eq!(s.one_time_token(once.one_time_secret_id.reveal()), Some(once));
    }
}

fn run(s: &mut State, steps: &[AclStep]) {
    for step in steps {
        let changes = acl_changes(s, step);
        apply(s, changes);
    }
}

#[test]
fn what_is_deleted_takes_its_links_along() {
    let mut s = State::new();
    run(
        &mut s,
        &[
            AclStep::Role(0, 0),
            AclStep::Role(1, 1),
            AclStep::Token(0, 0, vec![0, 1], None),
            AclStep::OneTime(0, 0),
            AclStep::OneTime(1, 1),
        ],
    );
    let before = s.acl_token("t0").expect("made").clone();
    run(&mut s, &[AclStep::DropRole(0)]);
    let after = s.acl_token("t0").expect("it stays").clone();
    assert_eq!(after.roles.iter().map(|r| &*r.id).collect::<Vec<_>>(), ["r1"], "a role goes from its tokens");
    assert!(after.hash != before.hash && after.modify_index > before.modify_index);
    run(&mut s, &[AclStep::Role(1, 2)]);
    assert_eq!(s.acl_token("t0").expect("it stays").roles[0].name, "role-2", "tokens follow the name of a role");

    run(&mut s, &[AclStep::DropToken(0)]);
    assert!(s.one_time_token("once-0").is_none(), "nothing is exchanged for a token that is gone");
    assert!(s.one_time_token("once-1").is_some());

    run(&mut s, &[AclStep::Method(0), AclStep::Rule(0, 0), AclStep::Rule(1, 1), AclStep::DropMethod(0)]);
    run(&mut s, &[AclStep::Method(0)]);
    assert_eq!(s.acl_binding_rules_by_method("m0").count(), 0, "a later method of the name inherits no rule");
    assert_eq!(s.acl_binding_rules_by_method("m1").count(), 1);
}

#[test]
fn the_index_of_the_last_bootstrap_survives_its_token() {
    let (mut s, mut disk) = (State::new(), Disk::default());
    assert_eq!(s.acl_bootstrap_index(), None);
    for changes in [
        [acl_changes(&s, &AclStep::Token(0, 0, vec![], None)), vec![Change::AclBootstrapped]].concat(),
        acl_changes(&s, &AclStep::DropToken(0)),
    ] {
        let set = apply(&mut s, changes);
        assert_eq!(set.tables.since(), 2, "older servers do not know these tables");
        disk.write(set.rows(&s));
    }
    assert_eq!((s.acl_bootstrap_index(), disk.load().acl_bootstrap_index()), (Some(2), Some(2)));
}
