//! The keys that workload identities are signed with: published, listed, rotated, deleted, kept.

use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use server::{Server, ServerConfig};

use crate::cluster::Cluster;

const KEYS: &str = "/v1/operator/keyring/keys";
const ROTATE: &str = "/v1/operator/keyring/rotate";

/// Ids and states, the newest first.
fn states(list: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().expect("text").to_owned();
    list.as_array().expect("a list").iter().map(|k| (text(&k["KeyID"]), text(&k["State"]))).collect()
}

async fn delete(c: &Cluster, id: &str, query: &str) -> (u16, String) {
    let raw = c.send(Method::DELETE, &format!("/v1/operator/keyring/key/{id}{query}"), &[], "").await;
    (raw.status.as_u16(), raw.text())
}

/// The same by a library that verifiers use, from the published list.
fn verified_by_a_library(jwks: &Value, token: &str) -> bool {
    let set: jsonwebtoken::jwk::JwkSet = serde_json::from_value(jwks.clone()).expect("a list of keys");
    let kid = jsonwebtoken::decode_header(token).expect("a header").kid.expect("a key");
    let Some(key) = set.find(&kid) else { return false };
    let mut validation = jsonwebtoken::Validation::new(jsonwebtoken::Algorithm::RS256);
    validation.required_spec_claims.clear();
    let key = jsonwebtoken::DecodingKey::from_jwk(key).expect("a usable key");
    jsonwebtoken::decode::<Value>(token, &key, &validation).is_ok()
}

/// The claims of a token, when a published key has signed them.
fn verify(jwks: &Value, token: &str) -> Option<Value> {
    let parts: Vec<&str> = token.split('.').collect();
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
    let header: Value = serde_json::from_slice(&decode(parts[0])?).ok()?;
    let key = jwks["keys"].as_array()?.iter().find(|k| k["kid"] == header["kid"])?;
    let public = RsaPublicKeyComponents { n: decode(key["n"].as_str()?)?, e: decode(key["e"].as_str()?)? };
    let signed = format!("{}.{}", parts[0], parts[1]);
    public.verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &decode(parts[2])?).ok()?;
    serde_json::from_slice(&decode(parts[1])?).ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_published_rotated_and_deleted() {
    let c = Cluster::start().await;
    let raw = c.get("/.well-known/jwks.json").await;
    assert_eq!((raw.header("content-type"), raw.header("cache-control")), ("application/json", "public, max-age=60"));
    let jwks = raw.json();
    let n = jwks["keys"][0]["n"].as_str().expect("n").to_owned();
    let kid = jwks["keys"][0]["kid"].as_str().expect("kid").to_owned();
    assert_eq!(jwks, json!({"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": kid, "n": n, "e": "AQAB"}]}));
    assert_eq!(URL_SAFE_NO_PAD.decode(&n).expect("base64url").len(), 256);

    let raw = c.get(KEYS).await;
    let row = raw.json()[0].clone();
    let index = row["CreateIndex"].as_u64().expect("index");
    assert_eq!(
        row,
        json!({"KeyID": kid, "Algorithm": "aes256-gcm", "State": "active", "CreateTime": row["CreateTime"],
            "CreateIndex": index, "ModifyIndex": index,
            "PublishTime": 0})
    );
    assert!(index > 0 && row["CreateTime"].as_i64().is_some_and(|t| t > 0), "{row}");
    assert_eq!(raw.header("x-nomad-index"), index.to_string());

    let claims = json!({"sub": "global:default:web:server"});
    let token = c.server.handle().keyring().sign(&claims).expect("signs");
    assert_eq!(verify(&jwks, &token), Some(claims.clone()));
    assert!(verified_by_a_library(&jwks, &token));

    // Who waits for a change is woken by the rotation.
    let waiting = format!("{KEYS}?index={index}&wait=60s");
    let started = std::time::Instant::now();
    let (changed, rotated) = tokio::join!(c.get(&waiting), c.put(ROTATE, &Value::Null));
    assert!(started.elapsed().as_secs() < 30, "the blocking query ended by its time");
    assert_eq!(rotated.status, StatusCode::OK, "{}", rotated.text());
    let rotated_index = rotated.header("x-nomad-index").parse::<u64>().expect("index");
    let rotated = rotated.json();
    let new = rotated["Key"]["KeyID"].as_str().expect("id").to_owned();
    let expected = [(new.clone(), "active".to_owned()), (kid.clone(), "inactive".to_owned())];
    assert_eq!(states(&changed.json()), expected);
    assert_eq!((states(&c.get(KEYS).await.json()), &rotated["Index"]), (expected.to_vec(), &json!(rotated_index)));
    assert!(rotated_index > index && rotated_index <= c.server.handle().snapshot().latest_index());
    let jwks = c.get("/.well-known/jwks.json").await.json();
    assert_eq!((&jwks["keys"][0]["kid"], &jwks["keys"][1]["kid"]), (&json!(new), &json!(kid)));
    assert_eq!(verify(&jwks, &token), Some(claims), "old tokens stay valid");

    assert_eq!(
        delete(&c, &new, "?force=true").await,
        (500, "active root key cannot be deleted: rotate first".to_owned())
    );
    assert_eq!(delete(&c, &kid, "?force=maybe").await.0, 400);
    assert_eq!(
        delete(&c, "short", "").await,
        (500, "root key metadata lookup failed: index error: UUID must be 36 characters".to_owned())
    );
    let (status, text) = delete(&c, &kid, "?force=false").await;
    assert!(
        status == 200 && serde_json::from_str::<Value>(&text).is_ok_and(|v| v["Index"].as_u64() > Some(rotated_index)),
        "{status} {text}"
    );
    assert_eq!(delete(&c, &kid, "").await.0, 200, "what is gone can be deleted again");
    assert_eq!(states(&c.get(KEYS).await.json()), [(new, "active".to_owned())]);
    assert_eq!(verify(&c.get("/.well-known/jwks.json").await.json(), &token), None, "its key is no longer published");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_rotation_cannot_do_is_refused_by_name() {
    let c = Cluster::start().await;
    let before = c.get(KEYS).await.json();
    for (query, status, part) in [
        ("full=true&publish_time=1900000000000000000", 500, "cannot be prepublished and full rotated"),
        ("full=maybe", 400, "full"),
        ("algo=EdDSA", 501, "keys for \"EdDSA\""),
        ("publish_time=soon", 400, "publish_time"),
    ] {
        let raw = c.put(&format!("{ROTATE}?{query}"), &Value::Null).await;
        assert!(raw.status.as_u16() == status && raw.text().contains(part), "{query}: {} {}", raw.status, raw.text());
    }
    assert_eq!(c.get(KEYS).await.json(), before, "nothing was rotated");
    assert_eq!(c.get(ROTATE).await.status, StatusCode::METHOD_NOT_ALLOWED);
    for query in ["algo=aes256-gcm&full=false&publish_time=0", ""] {
        assert_eq!(c.send(Method::POST, &format!("{ROTATE}?{query}"), &[], "").await.status, StatusCode::OK, "{query}");
    }
    assert_eq!(states(&c.get(KEYS).await.json()).len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_keeps_its_keys() {
    let dir = tempfile::tempdir().expect("dir");
    let config = || ServerConfig { data_dir: Some(dir.path().to_owned()), workers: 1, ..ServerConfig::default() };
    let server = Server::start(config()).await.expect("starts");
    server.handle().rotate_key().await.expect("rotates");
    let before = server.handle().keyring().keys();
    server.shutdown().await;
    let server = Server::start(config()).await.expect("starts again");
    let (keys, index) = server.handle().keyring().keys();
    assert_eq!((keys, before.0.len()), (before.0, 2));
    assert!(index >= before.1);
    server.shutdown().await;
    // A damaged file does not keep the server from starting.
    let keystore = dir.path().join(server::keyring::DIR);
    for entry in std::fs::read_dir(&keystore).expect("lists") {
        std::fs::write(entry.expect("entry").path(), "{").expect("writes");
    }
    let server = Server::start(config()).await.expect("starts with a key of its own");
    assert_eq!((server.handle().keyring().damaged().len(), server.handle().keyring().keys().0.len()), (2, 1));
    server.shutdown().await;
}
