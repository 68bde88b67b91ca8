//! Against a Vault that answers what a test tells it to.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;

/// Ends with its runtime. Answers each connection with the next of these texts, and keeps what it was asked.
struct Fake {
    vault: Vault,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    async fn start(answers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        // Only one that never answers is given up soon.
        let patience = if answers == [""] { Duration::from_millis(500) } else { PATIENCE };
        let answers: Vec<String> = answers.iter().map(ToString::to_string).collect();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let keep = asked.clone();
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut request = Vec::new();
                let mut chunk = [0; 4096];
                while !complete(&request) {
                    let n = stream.read(&mut chunk).await.expect("a request");
                    request.extend_from_slice(&chunk[..n]);
                }
                keep.lock().expect("lock").push(String::from_utf8_lossy(&request).into_owned());
                match answer.as_str() {
                    "" => std::future::pending::<()>().await,
                    answer => stream.write_all(answer.as_bytes()).await.expect("an answer"),
                }
            }
        });
        let settings = Settings {
            address: format!("http://{address}/below/"),
            role: "web".into(),
            jwt_path: "/jwt nomad/".into(),
            ..Settings::default()
        };
        Self { vault: Vault::patient(settings, patience).expect("settings"), asked }
    }

    fn asked(&self, n: usize) -> String {
        self.asked.lock().expect("lock").get(n).cloned().unwrap_or_default()
    }
}

fn complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    body.len() >= length
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn caller() -> Caller {
    Caller { token: "s.canary".into(), namespace: "team".into() }
}

#[tokio::test]
async fn a_login_shows_the_identity_and_keeps_it_out_of_sight() {
    let yes = answer("200 OK", r#"{"auth": {"client_token": "s.new", "lease_duration": 60, "renewable": true}}"#);
    let fake = Fake::start(&[&yes, &yes]).await;
    let granted = fake.vault.login("team", "web", &"ey.canary".into()).await.expect("a token");
    assert_eq!((granted.token.reveal(), granted.lease, granted.renewable), ("s.new", Duration::from_secs(60), true));
    assert!(!format!("{granted:?} {:?} {:?}", fake.vault, caller()).contains("s."), "a token is shown");
    let asked = fake.asked(0);
    assert!(asked.starts_with("POST /below/v1/auth/jwt%20nomad/login HTTP/1.1"), "{asked}");
    assert!(asked.contains("x-vault-namespace: team") && !asked.contains("x-vault-token"), "{asked}");
    assert!(asked.ends_with(r#"{"jwt":"ey.canary","role":"web"}"#), "{asked}");

    fake.vault.login("", "", &"ey.canary".into()).await.expect("a token");
    let asked = fake.asked(1);
    assert!(asked.ends_with(r#"{"jwt":"ey.canary"}"#) && !asked.contains("x-vault-namespace"), "{asked}");
}

#[tokio::test]
async fn tokens_are_renewed_and_revoked() {
    let renewed = answer("200 OK", r#"{"auth": {"client_token": "s.x", "lease_duration": 30, "renewable": true}}"#);
    let lease = answer("200 OK", r#"{"lease_id": "db/1", "lease_duration": 20, "renewable": true}"#);
    let fake = Fake::start(&[&renewed, &answer("204 No Content", ""), &lease]).await;
    let granted = fake.vault.renew_self(&caller()).await.expect("renewed");
    assert_eq!(granted.lease, Duration::from_secs(30));
    fake.vault.revoke_self(&caller()).await.expect("revoked");
    let lease = fake.vault.renew_lease(&caller(), "db/1").await.expect("renewed");
    assert_eq!(lease, (Duration::from_secs(20), true));
    for (n, path) in ["auth/token/renew-self", "auth/token/revoke-self", "sys/leases/renew"].iter().enumerate() {
        let asked = fake.asked(n);
        assert!(asked.starts_with(&format!("POST /below/v1/{path} ")), "{asked}");
        assert!(asked.contains("x-vault-token: s.canary"), "{asked}");
    }
}

#[tokio::test]
async fn secrets_of_both_versions_are_read_and_what_is_not_there_is_none() {
    let v2 = r#"{"lease_id": "", "lease_duration": 0, "data": {"data": {"a": "b"}, "metadata": {"version": 1}}}"#;
    let deleted = r#"{"data": {"data": null, "metadata": {"deletion_time": "x"}}}"#;
    let v1 = r#"{"lease_duration": 2764800, "data": {"a": "b"}, "warnings": ["old"]}"#;
    let fake = Fake::start(&[
        &answer("200 OK", r#"{"data": {"path": "kv/", "type": "kv", "options": {"version": "2"}}}"#),
        &answer("200 OK", v2),
        &answer("404 Not Found", deleted),
        &answer("404 Not Found", r#"{"errors": []}"#),
        &answer("200 OK", v1),
        &answer("200 OK", r#"{"data": {"keys": ["app", "team/"]}}"#),
        &answer("404 Not Found", r#"{"errors": []}"#),
        &answer("403 Forbidden", r#"{"errors": ["preflight capability check returned 403"]}"#),
    ])
    .await;
    let (vault, caller) = (&fake.vault, caller());
    let mount = vault.mount(&caller, "kv/app?version=1").await.expect("an answer").expect("a mount");
    assert_eq!(mount, Mount { path: "kv/".into(), versioned: true });
    let found = vault.read(&caller, "kv/a b?version=1", Some(&mount)).await.expect("an answer").expect("a secret");
    assert_eq!(found.data["data"]["a"], "b");
    assert!(!format!("{found:?}").contains('b'.to_string().repeat(2).as_str()), "{found:?}");
    assert!(fake.asked(1).starts_with("GET /below/v1/kv/data/a%20b?version=1 "), "{}", fake.asked(1));
    assert_eq!(vault.read(&caller, "kv/app", Some(&mount)).await, Ok(None), "a deleted version");
    assert_eq!(vault.read(&caller, "kv/none", Some(&mount)).await, Ok(None));
    let found = vault.read(&caller, "old/app", None).await.expect("an answer").expect("a secret");
    assert_eq!((found.lease, found.warnings), (Duration::from_secs(2_764_800), vec!["old".to_owned()]));
    assert_eq!(vault.list(&caller, "kv/", Some(&mount)).await, Ok(vec!["app".to_owned(), "team/".to_owned()]));
    assert!(fake.asked(5).starts_with("GET /below/v1/kv/metadata?list=true "), "{}", fake.asked(5));
    assert_eq!(vault.list(&caller, "kv/x/", Some(&mount)).await, Ok(Vec::new()));
    assert_eq!(vault.mount(&caller, "hidden/x").await, Ok(None), "a mount that may not be known");
}

#[tokio::test]
async fn each_failure_has_its_kind_and_no_secret() {
    let truncated = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"data\"";
    let huge = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}", MAX_ANSWER + 2, " ".repeat(MAX_ANSWER + 2));
    let odd = answer("200 OK", r#"{"data": {}, "lease_duration": "canary"}"#);
    for (said, decided, part) in [
        (
            answer("403 Forbidden", r#"{"errors": ["permission denied"]}"#),
            true,
            "Vault denies it: permission denied (403)",
        ),
        (
            answer("400 Bad Request", r#"{"errors": ["role \"web\" could not be found"]}"#),
            true,
            "Vault refuses it: role",
        ),
        (
            answer("500 Internal Server Error", r#"{"errors": ["1 error"]}"#),
            false,
            "Vault cannot answer now: 1 error (500)",
        ),
        (answer("503 Service Unavailable", r#"{"errors": ["Vault is sealed"]}"#), false, "Vault is sealed (503)"),
        (answer("502 Bad Gateway", "<html>"), false, "502 Bad Gateway"),
        (answer("429 Too Many Requests", ""), false, "Vault cannot answer now: 429"),
        (answer("307 Temporary Redirect", ""), false, "redirects are not followed"),
        (truncated.to_owned(), false, "the answer broke off"),
        (huge, false, "the answer is larger than"),
        (odd, false, "not what Vault's API describes"),
        (answer("200 OK", "nothing"), false, "not what Vault's API describes (line 1 column 2)"),
        (String::new(), false, "no answer within 0 s"),
    ] {
        let fake = Fake::start(&[&said]).await;
        let error = fake.vault.read(&caller(), "kv/app", None).await.expect_err("a failure");
        let text = error.to_string();
        assert!(text.contains(part) && error.decided() == decided, "{part}: {text}");
        assert!(!text.contains("canary"), "{text}");
    }
    let settings = Settings { address: "http://127.0.0.1:1".into(), ..Settings::default() };
    let away = Vault::new(settings).expect("settings").health().await.expect_err("nobody is there");
    assert!(away.to_string().starts_with("Vault at 127.0.0.1:1 cannot be asked: "), "{away}");
}

#[tokio::test]
async fn a_sealed_vault_says_how_it_does() {
    let sealed = r#"{"initialized": true, "sealed": true, "version": "2.7.2"}"#;
    let fake = Fake::start(&[&answer("503 Service Unavailable", sealed)]).await;
    let health = fake.vault.health().await.expect("an answer");
    assert_eq!((health.initialized, health.sealed, health.version.as_str()), (true, true, "2.7.2"));
}

#[test]
fn an_address_is_a_whole_url() {
    for (address, why) in [
        ("vault:8200", "is neither http:// nor https://"),
        ("ftp://vault", "is neither http:// nor https://"),
        ("http://me@vault", "holds a user name"),
        ("http://vault?x=y", "holds a query"),
        ("https:// vault", "is no URL"),
    ] {
        let said = Vault::new(Settings { address: address.into(), ..Settings::default() }).expect_err(address);
        assert!(said.to_string().contains(why), "{address}: {said}");
    }
    let tls = tls::ClientFiles { ca_cert: "/nowhere/ca.pem".into(), ..tls::ClientFiles::default() };
    let said =
        Vault::new(Settings { address: "https://vault".into(), tls, ..Settings::default() }).expect_err("no file");
    assert!(said.to_string().contains("vault.ca_file"), "{said}");
}
