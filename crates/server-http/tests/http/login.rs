//! Logins over HTTP with a real provider beside the servers: its tokens, its keys, its browser.

use http::{Method, StatusCode};
use oidc_fake::{CLIENT, Pair, Provider, SECRET, confused, now, unsigned};
use serde_json::{Value, json};
use server::{AclConfig, ServerConfig};
use server_http::{HttpOptions, Limits};

use crate::cluster::{Cluster, Raw};

/// A cluster with ACLs, the provider, and the token of a manager.
struct Guarded {
    c: Cluster,
    provider: Provider,
    manager: String,
}

impl Guarded {
    async fn start() -> Self {
        let acl = AclConfig { enabled: true, ..AclConfig::default() };
        let config = ServerConfig { acl, ..ServerConfig::default() };
        let c = Cluster::of(config, HttpOptions::default(), Limits::default()).await;
        let token = c.server.handle().bootstrap_acl(String::new()).await.expect("the first token");
        Self { c, provider: Provider::start().await, manager: token.secret_id.reveal().to_owned() }
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Raw {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.c.send(method, path, &[("x-nomad-token", &self.manager)], body).await
    }

    async fn put(&self, path: &str, body: Value) -> Value {
        let raw = self.send(Method::PUT, path, &body).await;
        assert_eq!(raw.status, StatusCode::OK, "{path}: {}", raw.text());
        if raw.body.is_empty() { Value::Null } else { raw.json() }
    }

    /// A method `j` for tokens of the provider.
    async fn jwt(&self) {
        let config = json!({
            "JWKSURL": format!("{}/keys", self.provider.url), "BoundAudiences": ["drover"],
            "BoundIssuer": [self.provider.url], "SigningAlgs": ["RS256", "ES256", "EdDSA"],
            "ClaimMappings": {"sub": "who", "/team/unit": "unit"}, "ListClaimMappings": {"groups": "groups"},
        });
        let method = json!({"Name": "j", "Type": "JWT", "TokenLocality": "local", "MaxTokenTTL": "1h",
            "Config": config, "TokenNameFormat": "${auth_method_name} ${value.who}"});
        self.put("/v1/acl/auth-method", method).await;
    }

    /// A method `o` for logins by browser.
    async fn oidc(&self, change: Value) {
        let mut config = json!({
            "OIDCDiscoveryURL": self.provider.url, "OIDCClientID": CLIENT, "OIDCClientSecret": SECRET,
            "OIDCEnablePKCE": true, "AllowedRedirectURIs": [REDIRECT], "OIDCScopes": ["groups"],
            "ClaimMappings": {"sub": "who"}, "ListClaimMappings": {"groups": "groups"},
        });
        config.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        let method = json!({"Name": "o", "Type": "OIDC", "TokenLocality": "global", "MaxTokenTTL": "10m",
            "Config": config});
        self.put("/v1/acl/auth-method", method).await;
    }

    async fn rule(&self, method: &str, selector: &str, bind_type: &str, bind_name: &str) -> Value {
        let rule = json!({"AuthMethod": method, "Selector": selector, "BindType": bind_type, "BindName": bind_name});
        self.put("/v1/acl/binding-rule", rule).await
    }

    async fn policy(&self, name: &str) {
        let policy = model::AclPolicy { name: name.into(), ..model::AclPolicy::default() };
        self.c.server.handle().put_acl_policy(policy).await.expect("a policy");
    }

    /// Claims that count now, with changes.
    fn claims(&self, change: Value) -> Value {
        let mut claims = json!({"iss": self.provider.url, "aud": "drover", "sub": "Ann", "iat": now(),
            "exp": now() + 60, "team": {"unit": "Eng"}, "groups": ["ops", 2]});
        claims.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        claims
    }

    /// Somebody without a token of ours logs in.
    async fn log_in(&self, token: &str) -> Raw {
        let body = json!({"AuthMethodName": "j", "LoginToken": token});
        self.c.put("/v1/acl/login", &body).await
    }

    async fn begin(&self, nonce: &str) -> Raw {
        let body = json!({"AuthMethodName": "o", "RedirectURI": REDIRECT, "ClientNonce": nonce});
        self.c.put("/v1/acl/oidc/auth-url", &body).await
    }

    /// The address for the browser.
    async fn address(&self, nonce: &str) -> String {
        let raw = self.begin(nonce).await;
        assert_eq!(raw.status, StatusCode::OK, "{}", raw.text());
        raw.json()["AuthURL"].as_str().expect("an address").to_owned()
    }

    async fn complete(&self, nonce: &str, state: &str, code: &str, change: Value) -> (u16, String) {
        let mut body = json!({"AuthMethodName": "o", "ClientNonce": nonce, "State": state, "Code": code,
            "RedirectURI": REDIRECT});
        body.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        let raw = self.c.put("/v1/acl/oidc/complete-auth", &body).await;
        (raw.status.as_u16(), raw.text())
    }
}

const REDIRECT: &str = "http://localhost:4649/oidc/callback";
const UNSIGNED: &str = "unable to validate provided token: unable to verify signature of JWT token: error verifying \
                        token signature: no known key successfully validated the token signature";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_a_provider_becomes_one_of_ours() {
    let g = Guarded::start().await;
    g.jwt().await;
    for policy in ["base", "eng-ops"] {
        g.policy(policy).await;
    }
    let nothing = g.log_in(&g.provider.sign(&g.claims(json!({})))).await;
    assert_eq!((nothing.status.as_u16(), &*nothing.text()), (400, "no role or policy bindings matched"));
    g.rule("j", "", "policy", "base").await;
    g.rule("j", "ops in list.groups and value.unit == Eng", "policy", "${value.unit}-ops").await;
    g.rule("j", "value.who == bob", "management", "").await;
    g.rule("j", "", "policy", "not-there").await;
    g.rule("j", "", "policy", "${value.nope}").await;
    // Of every kind of key.
    let (ec, ed) = (Pair::ec(), Pair::ed());
    g.provider.publish(vec![g.provider.jwk(), ec.jwk("2"), ed.jwk("3")]);
    let before = now();
    let raw = g.log_in(&g.provider.sign(&g.claims(json!({})))).await;
    assert_eq!((raw.status, raw.header("x-nomad-index")), (StatusCode::OK, "0"), "{}", raw.text());
    let token = raw.json();
    assert_eq!((&token["Type"], &token["Name"], &token["Global"]), (&json!("client"), &json!("j Ann"), &json!(false)));
    assert_eq!(token["Policies"], json!(["base", "eng-ops"]), "a rule that gives nothing locks nobody out");
    assert_eq!(token["ExpirationTTL"], "1h0m0s");
    let ends: jiff::Timestamp = token["ExpirationTime"].as_str().expect("a time").parse().expect("a time");
    assert!((before + 3590..=now() + 3610).contains(&ends.as_second()), "{token}");
    let known = g.c.server.handle().snapshot();
    let secret = token["SecretID"].as_str().expect("a secret");
    assert_eq!(
        known.acl_token_by_secret(secret).expect("known").accessor_id,
        token["AccessorID"].as_str().unwrap().into()
    );
    let bob = g.log_in(&g.provider.sign(&g.claims(json!({"sub": "bob"})))).await.json();
    assert_eq!((&bob["Type"], &bob["Policies"]), (&json!("management"), &json!(null)));
    // Text, number and nothing for a list; and one that is none.
    let alone = g.log_in(&g.provider.sign(&g.claims(json!({"groups": "ops"})))).await.json();
    assert_eq!(alone["Policies"], json!(["base", "eng-ops"]));
    let odd = g.log_in(&g.provider.sign(&g.claims(json!({"groups": {"a": 1}})))).await;
    let said = "\"groups\" list claim could not be converted to string list";
    assert_eq!((odd.status.as_u16(), &*odd.text()), (500, said));
    // What it may not be seen by: the token of the provider stands in no answer.
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_key_signs_and_new_ones_are_fetched() {
    let g = Guarded::start().await;
    g.jwt().await;
    g.rule("j", "", "management", "").await;
    let (ec, ed, late) = (Pair::ec(), Pair::ed(), Pair::rsa());
    g.provider.publish(vec![g.provider.jwk(), ec.jwk("2"), ed.jwk("3")]);
    let claims = g.claims(json!({}));
    for token in [g.provider.sign(&claims), ec.sign("2", &claims), ed.sign("3", &claims)] {
        let raw = g.log_in(&token).await;
        assert_eq!(raw.status, StatusCode::OK, "{}", raw.text());
    }
    assert_eq!(g.provider.asked("/keys"), 1, "keys are remembered");
    // The key of another one under a known id, and an id that nobody has.
    for token in [late.sign("1", &claims), late.sign("4", &claims)] {
        let raw = g.log_in(&token).await;
        assert_eq!((raw.status.as_u16(), &*raw.text()), (401, UNSIGNED));
    }
    assert_eq!(g.provider.asked("/keys"), 1, "an invented id does not make the provider answer");
    g.provider.publish(vec![late.jwk("4")]);
    let mut tries = 0;
    while g.log_in(&late.sign("4", &claims)).await.status != StatusCode::OK {
        tries += 1;
        assert!(tries < 8, "a key that the provider publishes is not fetched");
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    }
    assert_eq!((g.provider.asked("/keys"), tries > 0), (2, true));
    let gone = g.log_in(&ec.sign("2", &claims)).await;
    assert_eq!(gone.text(), UNSIGNED, "a key that is taken away signs nothing any more");
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_proves_nothing_is_refused_with_the_reason() {
    let g = Guarded::start().await;
    g.jwt().await;
    g.rule("j", "", "management", "").await;
    let good = g.provider.sign(&g.claims(json!({})));
    let signed = |change: Value| g.provider.sign(&g.claims(change));
    let other_claims = {
        let (_, signature) = good.rsplit_once('.').expect("dots");
        format!("{}.{signature}", unsigned("RS256", "1", &g.claims(json!({"sub": "root"}))))
    };
    let never = "which is never accepted";
    for (name, token, status, said) in [
        ("audience", signed(json!({"aud": "x"})), 401, "invalid audience (aud) claim"),
        ("audiences", signed(json!({"aud": ["x", "y"]})), 401, "invalid audience (aud) claim"),
        ("issuer", signed(json!({"iss": "you"})), 401, "unable to validate provided token: invalid JWT issuer: you"),
        (
            "expired",
            signed(json!({"iat": now() - 900, "exp": now() - 300})),
            401,
            "unable to validate provided token: unable to verify signature of JWT token: invalid expiration time \
                (exp) claim: token is expired",
        ),
        ("later", signed(json!({"nbf": now() + 600})), 401, "invalid not before (nbf) claim"),
        ("none", format!("{}.", unsigned("none", "1", &g.claims(json!({})))), 401, never),
        ("confusion", confused(&g.provider.jwk().to_string(), "1", &g.claims(json!({}))), 401, never),
        ("no signature", format!("{}.", unsigned("RS256", "1", &g.claims(json!({})))), 401, UNSIGNED),
        ("other claims", other_claims, 401, UNSIGNED),
    ] {
        let raw = g.log_in(&token).await;
        assert!(raw.status.as_u16() == status && raw.text().contains(said), "{name}: {} {}", raw.status, raw.text());
        assert!(!raw.text().contains(&token), "{name}: an answer repeats the token");
    }
    assert_eq!(g.log_in(&good).await.status, StatusCode::OK);
    let ask = async |body: Value| {
        let raw = g.c.put("/v1/acl/login", &body).await;
        (raw.status.as_u16(), raw.text())
    };
    assert_eq!(
        ask(json!({"AuthMethodName": "j"})).await,
        (400, "invalid login request: 1 error occurred:\n\t* missing login token\n\n".to_owned())
    );
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_fails_too_often_waits() {
    let g = Guarded::start().await;
    g.jwt().await;
    g.rule("j", "", "management", "").await;
    let good = g.provider.sign(&g.claims(json!({})));
    for n in 0..15 {
        assert_eq!(g.log_in(&good).await.status, StatusCode::OK, "{n}: who succeeds does not wait");
    }
    let body = json!({"AuthMethodName": "none", "LoginToken": "x"});
    for n in 0..5 {
        let raw = g.c.put("/v1/acl/login", &body).await;
        assert_eq!((raw.status.as_u16(), &*raw.text()), (400, "auth-method \"none\" not found"), "{n}");
        let raw = g.c.put("/v1/acl/bootstrap", &json!({})).await;
        assert!(raw.status == 400 && raw.text().starts_with("ACL bootstrap already done"), "{n}: {}", raw.text());
    }
    let waits = g.log_in(&good).await;
    let seconds: u64 = waits.header("retry-after").parse().expect("seconds");
    assert!(waits.status == StatusCode::TOO_MANY_REQUESTS && (1..=6).contains(&seconds), "{waits:?}");
    let said = format!("too many failed attempts to log in from 127.0.0.1; try again in {seconds} s");
    assert_eq!(waits.text(), said);
    assert_eq!(g.begin("n").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(g.c.put("/v1/acl/bootstrap", &json!({})).await.status, StatusCode::TOO_MANY_REQUESTS);
    // Whoever has a token already is not concerned.
    assert_eq!(g.send(Method::GET, "/v1/acl/auth-method/j", &Value::Null).await.status, StatusCode::OK);
    testkit::poll("the wait to end", async || g.log_in(&good).await.status == StatusCode::OK).await;
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_logs_in_with_a_browser() {
    let g = Guarded::start().await;
    g.oidc(json!({})).await;
    g.policy("base").await;
    g.rule("o", "ops in list.groups", "policy", "base").await;
    g.provider.tells_of(json!({"sub": "ann", "groups": ["ops"]}));
    let address = g.address("nonce-1").await;
    assert!(address.contains("code_challenge_method=S256") && address.contains("scope=openid%20groups"), "{address}");
    assert!(!address.contains(SECRET) && !address.contains("s3cr"), "{address}");
    let (code, state) = g.provider.person_at(&address);
    let (status, text) = g.complete("nonce-1", &state, &code, json!({"Iss": g.provider.url})).await;
    let token: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}"));
    assert_eq!(
        (&token["Policies"], &token["Name"], &token["Global"]),
        (&json!(["base"]), &json!("OIDC-o"), &json!(true))
    );
    assert_eq!(token["ExpirationTTL"], "10m0s");
    assert_eq!((g.provider.asked("/token"), g.provider.asked("/userinfo")), (1, 1));
    // Without further claims nothing is bound.
    g.oidc(json!({"OIDCDisableUserInfo": true, "OIDCEnablePKCE": false})).await;
    let address = g.address("nonce-2").await;
    assert!(!address.contains("code_challenge"), "{address}");
    let (code, state) = g.provider.person_at(&address);
    let refused = g.complete("nonce-2", &state, &code, json!({})).await;
    assert_eq!(refused, (400, "no role or policy bindings matched".to_owned()));
    assert_eq!(g.provider.asked("/userinfo"), 1);
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_ends_once_and_as_it_was_begun() {
    let g = Guarded::start().await;
    g.oidc(json!({})).await;
    g.rule("o", "", "management", "").await;
    g.provider.tells_of(json!({"sub": "ann"}));
    let (code, state) = g.provider.person_at(&g.address("nonce-1").await);
    let none = "no OIDC request found for client nonce: ";
    let said = async |nonce: &str, state: &str, change: Value| g.complete(nonce, state, &code, change).await;
    for (nonce, state, change, why) in [
        ("nonce-1", "x", json!({}), "the state is none that these servers have made"),
        ("nonce-2", &*state, json!({}), "begun with another client nonce"),
        ("nonce-1", &state, json!({"RedirectURI": "http://localhost:1/oidc/callback"}), "begun with another redirect"),
    ] {
        let (status, text) = said(nonce, state, change).await;
        assert!(status == 400 && text.starts_with(none) && text.contains(why), "{status} {text}");
    }
    let (status, text) = said("nonce-1", &state, json!({"Iss": "https://evil"})).await;
    assert!(status == 401 && text.contains("of the issuer \"https://evil\""), "{status} {text}");
    assert_eq!(g.provider.asked("/token"), 0, "no code is shown for a login that is none");
    assert_eq!(said("nonce-1", &state, json!({})).await.0, 200);
    let (status, text) = said("nonce-1", &state, json!({})).await;
    assert!(status == 400 && text.contains("the login has ended already"), "{status} {text}");
    assert_eq!(g.provider.asked("/token"), 1);
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_provider_gives_must_be_of_this_login() {
    let g = Guarded::start().await;
    g.oidc(json!({})).await;
    g.rule("o", "", "management", "").await;
    g.provider.tells_of(json!({"sub": "ann"}));
    let fails = async |claim: Option<(&str, Value)>, status: u16, why: &str| {
        if let Some((claim, value)) = &claim {
            g.provider.says(claim, value.clone());
        }
        let (code, state) = g.provider.person_at(&g.address("nonce-1").await);
        let (found, text) = g.complete("nonce-1", &state, &code, json!({})).await;
        assert!(found == status && text.contains(why), "{claim:?}: {found} {text}");
    };
    // The ID token of another login of the same person.
    fails(Some(("nonce", json!("nonce-0"))), 401, "the ID token repeats another nonce: it is of another login").await;
    fails(Some(("nonce", json!("nonce-1"))), 200, "").await;
    fails(Some(("aud", json!("another"))), 401, "not meant for the client \"drover\"").await;
    g.provider.says("aud", json!(CLIENT));
    g.provider.tells_of(json!({"sub": "bob"}));
    fails(None, 401, "of another subject than the ID token").await;
    g.provider.tells_of(json!({"sub": "ann"}));
    // Who has stolen a code has not its verifier.
    let (code, state) = g.provider.person_at(&g.address("nonce-1").await);
    g.provider.challenges(&code);
    let (status, text) = g.complete("nonce-1", &state, &code, json!({})).await;
    assert!(status == 500 && text.contains("invalid_grant: another verifier"), "{status} {text}");
    let elsewhere = json!({"AuthMethodName": "o", "RedirectURI": "https://evil/cb", "ClientNonce": "n"});
    let raw = g.c.put("/v1/acl/oidc/auth-url", &elsewhere).await;
    assert!(raw.status == 400 && raw.text().starts_with("unauthorized redirect_uri: https://evil/cb"), "{raw:?}");
    let raw = g.c.put("/v1/acl/login", &json!({"AuthMethodName": "o", "LoginToken": "x"})).await;
    assert!(raw.status == 400 && raw.text().contains("is of the type OIDC"), "{}", raw.text());
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn methods_and_rules_are_written_read_listed_and_deleted() {
    let g = Guarded::start().await;
    let list = g.c.get("/v1/acl/auth-methods").await;
    assert_eq!((list.status, list.json()), (StatusCode::OK, json!([])));
    g.oidc(json!({})).await;
    let read = g.send(Method::GET, "/v1/acl/auth-method/o", &Value::Null).await;
    let method = read.json();
    assert_eq!(method["Config"]["OIDCClientSecret"], "redacted");
    assert!(!read.text().contains("s3cr"), "{}", read.text());
    assert_eq!(read.header("x-nomad-index"), method["ModifyIndex"].to_string());
    // Written back as it was read, it keeps its secret; and the name of the path counts.
    g.put("/v1/acl/auth-method/o", method.clone()).await;
    let kept = g.c.server.handle().snapshot().acl_auth_method("o").cloned().expect("there");
    assert_eq!(kept.config.as_ref().expect("a config").oidc_client_secret.reveal(), SECRET);
    let other = g.send(Method::PUT, "/v1/acl/auth-method/x", &method).await;
    assert_eq!((other.status.as_u16(), &*other.text()), (400, "ACL auth-method name does not match request path"));
    let stub = g.c.get("/v1/acl/auth-methods").await.json();
    let names: Vec<&String> = stub[0].as_object().expect("a stub").keys().collect();
    assert_eq!(names, ["CreateIndex", "Default", "Hash", "ModifyIndex", "Name", "Type"]);
    let bad = json!({"Name": "b", "Type": "JWT", "TokenLocality": "local", "MaxTokenTTL": "1h",
        "Config": {"JWTValidationPubKeys": ["no key"], "JWKSCACert": "no certificate"}});
    let bad = g.send(Method::PUT, "/v1/acl/auth-method", &bad).await;
    assert!(bad.status == 400 && bad.text().starts_with("auth method 0 invalid: 2 errors occurred:"), "{}", bad.text());

    let rule = g.rule("o", "", "policy", "p").await;
    let id = rule["ID"].as_str().expect("an id").to_owned();
    let path = format!("/v1/acl/binding-rule/{id}");
    let index = g.send(Method::GET, &path, &Value::Null).await.header("x-nomad-index").to_owned();
    let waiting = format!("{path}?index={index}&wait=60s");
    let change = json!({"ID": id, "Description": "new"});
    let (changed, _) = tokio::join!(g.send(Method::GET, &waiting, &Value::Null), g.put(&path, change));
    assert_eq!((&changed.json()["Description"], &changed.json()["BindName"]), (&json!("new"), &json!("p")));
    let stub = g.send(Method::GET, "/v1/acl/binding-rules", &Value::Null).await.json();
    let names: Vec<&String> = stub[0].as_object().expect("a stub").keys().collect();
    assert_eq!(names, ["AuthMethod", "CreateIndex", "Description", "Hash", "ID", "ModifyIndex"]);
    let nowhere = json!({"AuthMethod": "nope", "BindType": "management"});
    let nowhere = g.send(Method::PUT, "/v1/acl/binding-rule", &nowhere).await;
    assert_eq!((nowhere.status.as_u16(), &*nowhere.text()), (400, "ACL auth method nope not found"));
    // A manager alone reads and writes; who has no token sees the list of methods.
    for (method, path) in [
        (Method::GET, "/v1/acl/binding-rules"),
        (Method::GET, "/v1/acl/auth-method/o"),
        (Method::PUT, "/v1/acl/auth-method"),
        (Method::DELETE, "/v1/acl/auth-method/o"),
        (Method::PUT, "/v1/acl/binding-rule"),
    ] {
        let raw = g.c.send(method.clone(), path, &[], "{}").await;
        assert_eq!((raw.status.as_u16(), &*raw.text()), (403, "Permission denied"), "{method} {path}");
    }
    // With the method its rules are gone.
    assert_eq!(g.send(Method::DELETE, "/v1/acl/auth-method/o", &Value::Null).await.status, StatusCode::OK);
    let gone = g.send(Method::GET, &path, &Value::Null).await;
    assert_eq!((gone.status.as_u16(), &*gone.text()), (404, "ACL binding rule not found"));
    for (path, text) in
        [("auth-method/o", "ACL auth method not found"), ("binding-rule/x", "ACL binding rule not found")]
    {
        let raw = g.send(Method::DELETE, &format!("/v1/acl/{path}"), &Value::Null).await;
        assert_eq!((raw.status.as_u16(), &*raw.text()), (500, text));
    }
    let gone = g.send(Method::GET, "/v1/acl/auth-method/o", &Value::Null).await;
    assert_eq!((gone.status.as_u16(), &*gone.text()), (404, "ACL auth-method not found"));
    g.c.end().await;
}
