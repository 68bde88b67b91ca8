//! What is refused, with which text, and what a login gets.

use std::time::Duration;

use model::{AclPolicy, AclRole};
use state::Batch;
use uuid::Uuid;

use super::*;

const NOW: i64 = 1_700_000_000_000_000_000;
const TTL: Ttl = Ttl { min: Duration::from_secs(60), max: Duration::from_secs(24 * 3600) };
const STAMP: Stamp = Stamp { index: 9, now: NOW };

fn counting() -> impl FnMut() -> Uuid {
    let mut n = 0;
    move || {
        n += 1;
        Uuid::from_u128(n)
    }
}

fn apply(state: &mut State, batch: Batch) {
    state.apply(state.latest_index() + 1, NOW, batch).expect("no conditions");
}

fn text<R>(decided: Result<Decided<R>, Refused>) -> String {
    match decided {
        Err(Refused::BadRequest(text)) => text,
        Err(other) => panic!("another status: {other:?}"),
        Ok(_) => "ok".to_owned(),
    }
}

fn jwt() -> AclAuthMethod {
    AclAuthMethod {
        name: "j".into(),
        kind: "JWT".into(),
        token_locality: "local".into(),
        max_token_ttl: GoDuration::from_secs(3600),
        config: Some(AclAuthMethodConfig { jwks_url: "https://id/keys".into(), ..AclAuthMethodConfig::default() }),
        ..AclAuthMethod::default()
    }
}

fn rule(method: &str, selector: &str, bind_type: &str, bind_name: &str) -> AclBindingRule {
    AclBindingRule {
        auth_method: method.into(),
        selector: selector.into(),
        bind_type: bind_type.into(),
        bind_name: bind_name.into(),
        ..AclBindingRule::default()
    }
}

/// A policy `p`, a role `ops` with the id `r`, and the method `j`.
fn filled() -> State {
    let mut state = State::new();
    let policy = AclPolicy { name: "p".into(), ..AclPolicy::default() };
    apply(&mut state, Change::PutAclPolicy(Box::new(policy)).into());
    let role = AclRole { id: "r".into(), name: "ops".into(), ..AclRole::default() };
    apply(&mut state, Change::PutAclRole(Box::new(role)).into());
    let batch = put_method(&state, jwt(), &[], TTL, STAMP).expect("fine").batch;
    apply(&mut state, batch);
    state
}

fn add(state: &mut State, rule: AclBindingRule, ids: &mut Ids<'_>) {
    let batch = put_rule(state, rule, STAMP, ids).expect("a rule").batch;
    apply(state, batch);
}

#[test]
fn methods_are_refused_with_nomads_texts() {
    let state = filled();
    let say = |change: fn(&mut AclAuthMethod)| {
        let mut method = AclAuthMethod { name: "new".into(), ..jwt() };
        change(&mut method);
        text(put_method(&state, method, &[], TTL, STAMP))
    };
    let config = |change: fn(&mut AclAuthMethodConfig)| {
        let mut method = AclAuthMethod { name: "new".into(), ..jwt() };
        change(method.config.as_mut().expect("a config"));
        text(put_method(&state, method, &[], TTL, STAMP))
    };
    assert_eq!(say(|_| {}), "ok");
    let one = |why: &str| format!("auth method 0 invalid: 1 error occurred:\n\t* {why}\n\n");
    assert_eq!(say(|m| m.name = "a_b".into()), one("invalid name 'a_b'"));
    assert_eq!(say(|m| m.token_locality = "x".into()), one("invalid token locality 'x'"));
    assert_eq!(say(|m| m.kind = String::new()), one("invalid token type ''"));
    assert_eq!(
        say(|m| m.max_token_ttl = GoDuration::from_secs(360_000)),
        one("invalid MaxTokenTTL value '100h0m0s' (should be between 1m0s and 24h0m0s)")
    );
    assert_eq!(say(|m| m.config = None), one("invalid config: missing auth method Config"));
    assert!(say(|m| m.token_name_format = "${list.x}".into()).contains("unknown variable accessed: list.x"));
    let none = "invalid config: JWT auth method requires either OIDCDiscoveryURL, or JWKS URL, or \
                JWTValidationPubKeys set";
    assert_eq!(config(|c| c.jwks_url.clear()), one(none));
    for (said, wanted) in [
        (config(|c| c.oidc_discovery_url = "https://id".into()), "OIDCDiscoveryURL, JWKSURL are set"),
        (config(|c| c.jwks_url = "http://id/keys".into()), "plain HTTP"),
        (config(|c| c.signing_algs = vec!["HS256".into()]), "SigningAlgs has \"HS256\", which is never accepted"),
        (config(|c| c.oidc_client_assertion = Some(model::acl_login::OidcClientAssertion::default())), "not supported"),
        (config(|c| c.oidc_client_secret = "redacted".into()), "write the secret"),
        (
            say(|m| m.kind = "OIDC".into()),
            "missing OIDCDiscoveryURL\n\t* invalid config: missing OIDCClientID\n\t* \
            invalid config: JWKSURL is for methods of the type JWT",
        ),
        (text(put_method(&state, jwt(), &["no key".to_owned()], TTL, STAMP)), "invalid config: no key"),
    ] {
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn one_method_is_the_default_and_a_change_keeps_what_it_does_not_name() {
    let mut state = filled();
    let config = AclAuthMethodConfig { oidc_client_secret: "s".into(), ..jwt().config.expect("a config") };
    let first = AclAuthMethod { default: true, config: Some(config.clone()), ..jwt() };
    let batch = put_method(&state, first, &[], TTL, STAMP).expect("fine").batch;
    apply(&mut state, batch);
    let second = AclAuthMethod { name: "k".into(), default: true, ..jwt() };
    assert_eq!(text(put_method(&state, second, &[], TTL, STAMP)), "default method already exists: j");
    let shown = state.acl_auth_method("j").expect("there").redacted();
    let later = Stamp { now: NOW + 5, ..STAMP };
    let batch = put_method(&state, shown, &[], TTL, later).expect("fine").batch;
    apply(&mut state, batch);
    let change = AclAuthMethod { name: "j".into(), token_locality: "global".into(), ..AclAuthMethod::default() };
    let batch = put_method(&state, change, &[], TTL, later).expect("fine").batch;
    apply(&mut state, batch);
    let now = state.acl_auth_method("j").expect("there");
    assert_eq!((now.config.as_ref(), &*now.token_locality, now.default), (Some(&config), "global", false));
    assert_eq!((now.create_time.ns(), now.modify_time.ns()), (Some(NOW), Some(NOW + 5)));
    assert_eq!(now.token_name_format, "${auth_method_type}-${auth_method_name}");
    let unknown = delete_method(&state, "k", STAMP);
    assert!(matches!(unknown, Err(Refused::Invalid(text)) if text == "ACL auth method not found"));
}

#[test]
fn rules_are_refused_with_nomads_texts_and_never_widened_by_omission() {
    let (mut state, mut ids) = (filled(), counting());
    let mut say = |rule| text(put_rule(&state, rule, STAMP, &mut ids));
    let one = |why: &str| format!("binding rule 0 invalid: 1 error occurred:\n\t* {why}\n\n");
    assert_eq!(say(rule("j", "", "policy", "p")), "ok");
    assert_eq!(say(rule("", "", "policy", "p")), one("auth method is missing"));
    assert_eq!(say(rule("j", "", "x", "p")), one("unsupported bind type: \"x\""));
    assert_eq!(say(rule("j", "", "management", "p")), one("bind name should be empty"));
    assert_eq!(say(rule("j", "", "role", "")), one("bind name is missing"));
    assert!(say(rule("j", "and", "role", "x")).contains("* selector is invalid: "));
    assert!(say(rule("j", "", "role", "${x")).contains("* bind name is invalid: 1:1"));
    assert_eq!(say(rule("nope", "", "policy", "p")), "ACL auth method nope not found");
    assert_eq!(say(AclBindingRule { id: "x".into(), ..rule("j", "", "policy", "p") }), "cannot find binding rule x");
    let mut ids = counting();
    add(&mut state, rule("j", "value.a == b", "policy", "p"), &mut ids);
    let id = state.acl_binding_rules().next().expect("a rule").id.clone();
    let change = AclBindingRule { id: id.clone(), description: "d".into(), ..AclBindingRule::default() };
    add(&mut state, change, &mut ids);
    let now = state.acl_binding_rule(&id).expect("there");
    assert_eq!((&*now.selector, &*now.bind_name, &*now.description), ("value.a == b", "p", "d"));
    let moved = AclBindingRule { id: id.clone(), ..rule("k", "", "", "") };
    assert!(text(put_rule(&state, moved, STAMP, &mut ids)).starts_with("cannot update auth method"));
    let raised = AclBindingRule { id: id.clone(), ..rule("j", "", "management", "") };
    add(&mut state, raised, &mut ids);
    assert_eq!(state.acl_binding_rule(&id).expect("there").bind_name, "");
    let unknown = delete_rule(&state, "x", STAMP);
    assert!(matches!(unknown, Err(Refused::Invalid(text)) if text == "ACL binding rule not found"));
    // With the method its rules are gone: a new one of its name inherits nothing.
    let batch = delete_method(&state, "j", STAMP).expect("there").batch;
    apply(&mut state, batch);
    assert_eq!(state.acl_binding_rules().count(), 0);
}

#[test]
fn a_login_gets_what_the_rules_give_for_as_long_as_the_method_says() {
    let (mut state, mut ids) = (filled(), counting());
    let identity = Identity {
        value: [("unit".to_owned(), "P".to_owned()), ("who".to_owned(), "ann".repeat(100))].into(),
        list: [("groups".to_owned(), vec!["ops".to_owned()])].into(),
    };
    let method = state.acl_auth_method("j").expect("there").clone();
    let none = log_in(&state, &method, &identity, TTL, STAMP, &mut ids);
    assert_eq!(text(none), "no role or policy bindings matched");
    add(&mut state, rule("j", "", "policy", "${value.unit}"), &mut ids);
    add(&mut state, rule("j", "ops in list.groups", "role", "ops"), &mut ids);
    let token = |state: &mut State, ids: &mut Ids<'_>, ttl| {
        let method = state.acl_auth_method("j").expect("there").clone();
        let Decided { batch, answer } = log_in(state, &method, &identity, ttl, STAMP, ids).expect("a token");
        apply(state, batch);
        AclToken::clone(state.acl_token(&answer).expect("there"))
    };
    let made = token(&mut state, &mut ids, TTL);
    assert_eq!((&*made.kind, &*made.name, made.global), ("client", "JWT-j", false));
    assert_eq!((&made.policies[..], &*made.roles[0].id, &*made.roles[0].name), (&["p".to_owned()][..], "r", "ops"));
    assert_eq!(made.expiration_ttl, GoDuration::from_secs(3600));
    assert_eq!(made.expiration_time.ns(), Some(NOW + 3600 * 1_000_000_000));
    assert!(made.expired(NOW + 3600 * 1_000_000_000) && made.secret_id != AclToken::default().secret_id);
    add(&mut state, rule("j", "", "management", ""), &mut ids);
    let change = AclAuthMethod {
        name: "j".into(),
        token_locality: "global".into(),
        token_name_format: "${value.who}".into(),
        ..AclAuthMethod::default()
    };
    let batch = put_method(&state, change, &[], TTL, STAMP).expect("fine").batch;
    apply(&mut state, batch);
    let short = Ttl { max: Duration::from_secs(600), ..TTL };
    let made = token(&mut state, &mut ids, short);
    assert_eq!((&*made.kind, made.global, made.name.len()), ("management", true, MAX_TOKEN_NAME));
    assert!(made.policies.is_empty() && made.roles.is_empty());
    assert_eq!(made.expiration_ttl, GoDuration::from_secs(600), "the servers' own limit counts");
    let stale = log_in(&state, &method, &identity, TTL, STAMP, &mut ids);
    assert_eq!(text(stale), "the auth method \"j\" was changed during the login; log in again");
}
