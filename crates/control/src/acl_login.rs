//! Logins: which methods and binding rules may be written, and the token that a login gets.
//!
//! Who somebody is has been found out before; what that person may do is decided here, on the newest rules. Error texts
//! are Nomad's where it has them.

use std::sync::Arc;

use login::{
    Algorithm,
    mapping::Identity,
    oidc::safe_url,
    rules::{self, Bind, Grant, Outcome, Rule},
};
use model::{
    AclAuthMethod, AclAuthMethodConfig, AclBindingRule, AclToken, AclTokenRole, GoDuration, StoreIndex,
    acl::token_type,
    acl_login::{LOCALITIES, METHOD_TYPES, REDACTED},
};
use state::{Change, State};

use crate::{
    Decided, Ids, Refused, Stamp,
    acl::{MAX_DESCRIPTION, MAX_TOKEN_NAME, Ttl, bad, named, several},
};

/// How tokens are named where the method does not say.
const TOKEN_NAME: &str = "${auth_method_type}-${auth_method_name}";

/// Creates a method, or changes the one of its name: what is not given stays as it was. `unreadable`: what is wrong
/// with its keys and certificates, which only the caller can read. Answers with the name.
///
/// # Errors
/// What is wrong with it.
pub fn put_method(
    state: &State,
    given: AclAuthMethod,
    unreadable: &[String],
    ttl: Ttl,
    stamp: Stamp,
) -> Result<Decided<Arc<str>>, Refused> {
    let before = state.acl_auth_method(&given.name);
    let mut method = given;
    (method.create_time, method.modify_time) = (stamp.now.into(), stamp.now.into());
    if let Some(before) = before {
        method.create_time = before.create_time.clone();
        keep(&mut method.kind, &before.kind);
        keep(&mut method.token_locality, &before.token_locality);
        keep(&mut method.token_name_format, &before.token_name_format);
        if method.max_token_ttl == GoDuration::ZERO {
            method.max_token_ttl = before.max_token_ttl;
        }
        match (&mut method.config, &before.config) {
            (given @ None, config) => given.clone_from(config),
            // Whoever reads a method and writes it back writes what stands for its secret.
            (Some(given), Some(config)) if given.oidc_client_secret.matches(REDACTED) => {
                given.oidc_client_secret = config.oidc_client_secret.clone();
            }
            (Some(_), _) => {}
        }
    }
    if method.token_name_format.is_empty() {
        TOKEN_NAME.clone_into(&mut method.token_name_format);
    }
    let mut wrong = wrong_with(&method, ttl);
    wrong.extend(unreadable.iter().map(|why| format!("invalid config: {why}")));
    several("auth method", &wrong)?;
    if method.default
        && let Some(other) = state.acl_auth_methods().find(|other| other.default && other.name != method.name)
    {
        return bad(format!("default method already exists: {}", other.name));
    }
    let answer = method.name.clone();
    Ok(Decided { batch: Change::PutAclAuthMethod(Box::new(method)).into(), answer })
}

fn keep(given: &mut String, before: &str) {
    if given.is_empty() {
        before.clone_into(given);
    }
}

fn wrong_with(method: &AclAuthMethod, ttl: Ttl) -> Vec<String> {
    let mut wrong = Vec::new();
    if !named(&method.name) {
        wrong.push(format!("invalid name '{}'", method.name));
    }
    if !LOCALITIES.contains(&&*method.token_locality) {
        wrong.push(format!("invalid token locality '{}'", method.token_locality));
    }
    if !METHOD_TYPES.contains(&&*method.kind) {
        wrong.push(format!("invalid token type '{}'", method.kind));
    }
    let (min, max) = (GoDuration::from(ttl.min), GoDuration::from(ttl.max));
    if method.max_token_ttl < min || method.max_token_ttl > max {
        let given = method.max_token_ttl;
        wrong.push(format!("invalid MaxTokenTTL value '{given}' (should be between {min} and {max})"));
    }
    if let Err(why) = rules::token_name(&method.token_name_format, "", "", &Identity::default()) {
        wrong.push(format!("invalid TokenNameFormat: {why}"));
    }
    match &method.config {
        None => wrong.push("invalid config: missing auth method Config".to_owned()),
        Some(config) => wrong_with_config(config, &method.kind, &mut wrong),
    }
    wrong
}

fn wrong_with_config(config: &AclAuthMethodConfig, kind: &str, wrong: &mut Vec<String>) {
    let mut say = |why: String| wrong.push(format!("invalid config: {why}"));
    let sources = [
        ("OIDCDiscoveryURL", !config.oidc_discovery_url.is_empty()),
        ("JWKSURL", !config.jwks_url.is_empty()),
        ("JWTValidationPubKeys", !config.jwt_validation_pub_keys.is_empty()),
    ];
    let set: Vec<&str> = sources.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect();
    if kind == "JWT" {
        match set[..] {
            [] => {
                say("JWT auth method requires either OIDCDiscoveryURL, or JWKS URL, or JWTValidationPubKeys set".into())
            }
            [_] => {}
            _ => say(format!("{} are set, and keys come from one of them; set one", set.join(", "))),
        }
    } else if kind == "OIDC" {
        for (name, value) in
            [("OIDCDiscoveryURL", &config.oidc_discovery_url), ("OIDCClientID", &config.oidc_client_id)]
        {
            if value.is_empty() {
                say(format!("missing {name}"));
            }
        }
        for name in set.into_iter().filter(|name| *name != "OIDCDiscoveryURL") {
            say(format!("{name} is for methods of the type JWT; a login by browser takes the keys of its provider"));
        }
    }
    if config.oidc_client_assertion.is_some() {
        say("OIDCClientAssertion is not supported by this release; use OIDCClientSecret, or OIDCEnablePKCE without a \
             secret"
            .into());
    }
    if config.oidc_client_secret.matches(REDACTED) {
        say(format!("OIDCClientSecret is {REDACTED:?}, which stands for a secret that is not shown; write the secret"));
    }
    for url in [&config.oidc_discovery_url, &config.jwks_url].into_iter().filter(|url| !url.is_empty()) {
        if let Err(why) = safe_url(url) {
            say(why);
        }
    }
    for name in config.signing_algs.iter().filter(|name| Algorithm::named(name).is_none()) {
        say(format!("SigningAlgs has {name:?}, which is never accepted; accepted can be {}", Algorithm::names()));
    }
}

/// Forgets a method with its rules. Answers with the index.
///
/// # Errors
/// When there is no such method.
pub fn delete_method(state: &State, name: &str, stamp: Stamp) -> Result<Decided<StoreIndex>, Refused> {
    let Some(method) = state.acl_auth_method(name) else {
        return Err(Refused::Invalid("ACL auth method not found".to_owned()));
    };
    Ok(Decided { batch: Change::DeleteAclAuthMethod(method.name.clone()).into(), answer: stamp.index })
}

/// Creates a binding rule, or changes the one that it names: what is not given stays as it was, so that nobody widens a
/// rule by leaving out its selector. Answers with its id.
///
/// # Errors
/// What is wrong with it.
pub fn put_rule(
    state: &State,
    given: AclBindingRule,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<Arc<str>>, Refused> {
    let mut rule = given;
    (rule.create_time, rule.modify_time) = (stamp.now.into(), stamp.now.into());
    if rule.id.is_empty() {
        rule.id = ids().to_string().into();
    } else {
        let Some(before) = state.acl_binding_rule(&rule.id) else {
            return bad(format!("cannot find binding rule {}", rule.id));
        };
        if rule.auth_method.is_empty() {
            rule.auth_method = before.auth_method.clone();
        } else if rule.auth_method != before.auth_method {
            return bad("cannot update auth method for binding rule, create a new rule instead");
        }
        rule.create_time = before.create_time.clone();
        keep(&mut rule.description, &before.description);
        keep(&mut rule.selector, &before.selector);
        keep(&mut rule.bind_type, &before.bind_type);
        if Bind::named(&rule.bind_type) != Some(Bind::Management) {
            keep(&mut rule.bind_name, &before.bind_name);
        }
    }
    let mut wrong = Vec::new();
    if rule.auth_method.is_empty() {
        wrong.push("auth method is missing".to_owned());
    }
    match Bind::named(&rule.bind_type) {
        None => wrong.push(format!("unsupported bind type: {:?}", rule.bind_type)),
        Some(Bind::Management) if !rule.bind_name.is_empty() => wrong.push("bind name should be empty".to_owned()),
        Some(Bind::Role | Bind::Policy) if rule.bind_name.is_empty() => wrong.push("bind name is missing".to_owned()),
        Some(_) => {}
    }
    if let Err(why) = rules::check_bind_name(&rule.bind_name) {
        wrong.push(format!("bind name is invalid: {why}"));
    }
    if let Err(why) = rules::check_selector(&rule.selector) {
        wrong.push(format!("selector is invalid: {why}"));
    }
    if rule.description.len() > MAX_DESCRIPTION {
        wrong.push(format!("description longer than {MAX_DESCRIPTION}"));
    }
    several("binding rule", &wrong)?;
    if state.acl_auth_method(&rule.auth_method).is_none() {
        return bad(format!("ACL auth method {} not found", rule.auth_method));
    }
    let answer = rule.id.clone();
    Ok(Decided { batch: Change::PutAclBindingRule(Box::new(rule)).into(), answer })
}

/// Forgets a binding rule. Tokens that it gave rights to keep them until they end. Answers with the index.
///
/// # Errors
/// When there is no such rule.
pub fn delete_rule(state: &State, id: &str, stamp: Stamp) -> Result<Decided<StoreIndex>, Refused> {
    let Some(rule) = state.acl_binding_rule(id) else {
        return Err(Refused::Invalid("ACL binding rule not found".to_owned()));
    };
    Ok(Decided { batch: Change::DeleteAclBindingRule(rule.id.clone()).into(), answer: stamp.index })
}

/// What the rules of a method give an identity, and what became of each.
#[must_use]
pub fn granted<'s>(state: &'s State, method: &str, identity: &Identity) -> (Grant, Vec<(&'s str, Outcome)>) {
    let rules = state.acl_binding_rules_by_method(method).map(|rule| Rule {
        id: &rule.id,
        selector: &rule.selector,
        bind_type: &rule.bind_type,
        bind_name: &rule.bind_name,
    });
    rules::bind(rules, identity, |kind, name| match kind {
        Bind::Management => true,
        Bind::Role => state.acl_role_by_name(name).is_some(),
        Bind::Policy => state.acl_policy(name).is_some(),
    })
}

/// Makes the token of a login: `method` is the one that has found out who it is, and must still be so. Answers with
/// its accessor.
///
/// # Errors
/// When the method has changed meanwhile, or no rule gives anything.
pub fn log_in(
    state: &State,
    method: &AclAuthMethod,
    identity: &Identity,
    ttl: Ttl,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<Arc<str>>, Refused> {
    // A rule or a key that was taken away a moment ago counts no more.
    if state.acl_auth_method(&method.name).is_none_or(|now| now.modify_index != method.modify_index) {
        return bad(format!("the auth method {:?} was changed during the login; log in again", &*method.name));
    }
    let (grant, _) = granted(state, &method.name, identity);
    if grant.is_empty() {
        return bad("no role or policy bindings matched");
    }
    let name = rules::token_name(&method.token_name_format, &method.kind, &method.name, identity);
    let mut name = name.unwrap_or_else(|_| method.name.to_string());
    name.truncate(name.floor_char_boundary(MAX_TOKEN_NAME));
    let roles = grant.roles.iter().filter_map(|role| state.acl_role_by_name(role));
    let lives = method.max_token_ttl.min(ttl.max.into());
    let accessor: Arc<str> = ids().to_string().into();
    let token = AclToken {
        accessor_id: accessor.clone(),
        secret_id: ids().to_string().into(),
        name,
        kind: if grant.management { token_type::MANAGEMENT } else { token_type::CLIENT }.to_owned(),
        roles: roles.map(|role| AclTokenRole { id: role.id.clone(), name: role.name.clone() }).collect(),
        policies: grant.policies.into_iter().collect(),
        global: method.token_locality == "global",
        create_time: stamp.now.into(),
        expiration_time: stamp.now.saturating_add(lives.nanos()).into(),
        expiration_ttl: lives,
        ..AclToken::default()
    };
    Ok(Decided { batch: Change::PutAclToken(Box::new(token)).into(), answer: accessor })
}

#[cfg(test)]
mod tests;
