//! Tokens and logins with a small provider within the test: its keys, its documents, and what it may do wrong.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use aws_lc_rs::{
    encoding::{AsDer, PublicKeyX509Der},
    rand::SystemRandom,
    rsa::{KeyPair as RsaKeyPair, KeySize},
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    },
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as URL},
};
use login::{Algorithm, claims::Expected};
use oidc::{CodeExchange, Error, KeySource, Providers};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};
use tls::issue::{Authority, Leaf};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
};

const NOW: i64 = 1_700_000_000;

/// What the provider answers at each path, and what it was asked.
#[derive(Clone, Default)]
struct Provider {
    answers: Arc<Mutex<BTreeMap<String, (u16, String)>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Provider {
    /// Serves until the runtime of the test ends.
    async fn start() -> (Self, String) {
        let this = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let served = this.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(served.clone().answer(stream));
            }
        });
        (this, url)
    }

    async fn answer(self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Option<()> {
        let mut request = String::new();
        loop {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).await.ok().filter(|n| *n > 0)?;
            request.push_str(std::str::from_utf8(&piece[..read]).ok()?);
            let Some((head, body)) = request.split_once("\r\n\r\n") else { continue };
            let length =
                head.lines().find_map(|l| l.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                break;
            }
        }
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        self.asked.lock().expect("a lock").push(request);
        let (status, body) = self.answers.lock().expect("a lock").get(&path).cloned().unwrap_or((404, String::new()));
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.ok()?;
        stream.write_all(body.as_bytes()).await.ok()
    }

    fn says(&self, path: &str, status: u16, body: impl ToString) {
        self.answers.lock().expect("a lock").insert(path.to_owned(), (status, body.to_string()));
    }

    /// The requests of a path.
    fn asked(&self, path: &str) -> Vec<String> {
        let asked = self.asked.lock().expect("a lock");
        asked.iter().filter(|request| request.split(' ').nth(1) == Some(path)).cloned().collect()
    }

    fn documents(&self, url: &str, keys: &[&Value]) {
        let document = json!({
            "issuer": url, "authorization_endpoint": format!("{url}/auth"), "token_endpoint": format!("{url}/token"),
            "userinfo_endpoint": format!("{url}/me"), "jwks_uri": format!("{url}/keys"),
        });
        self.says("/.well-known/openid-configuration", 200, document);
        self.says("/keys", 200, json!({"keys": keys}));
    }
}

struct Rsa {
    pair: RsaKeyPair,
    jwk: Value,
}

fn rsa(kid: &str) -> Rsa {
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
    let (n, e) = (pair.public_key().modulus(), pair.public_key().exponent());
    let number = |bytes: &[u8]| URL.encode(bytes);
    let jwk = json!({
        "kty": "RSA", "kid": kid, "n": number(n.big_endian_without_leading_zero()),
        "e": number(e.big_endian_without_leading_zero()),
    });
    Rsa { pair, jwk }
}

fn unsigned(alg: &str, kid: &str, claims: &Value) -> String {
    format!("{}.{}", URL.encode(json!({"alg": alg, "kid": kid}).to_string()), URL.encode(claims.to_string()))
}

impl Rsa {
    fn sign(&self, alg: &str, kid: &str, claims: &Value) -> String {
        let text = unsigned(alg, kid, claims);
        let mut signature = vec![0; self.pair.public_modulus_len()];
        let how: &'static dyn aws_lc_rs::signature::RsaEncoding =
            if alg.starts_with("PS") { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
        self.pair.sign(how, &SystemRandom::new(), text.as_bytes(), &mut signature).expect("a signature");
        format!("{text}.{}", URL.encode(signature))
    }
}

fn pem(der: &[u8]) -> String {
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
}

fn claims() -> Value {
    json!({"iss": "me", "aud": "drover", "sub": "ann", "iat": NOW, "exp": NOW + 60})
}

async fn said(providers: &Providers, source: KeySource<'_>, token: &str, algorithms: &[Algorithm]) -> String {
    let expected = Expected { algorithms: algorithms.to_vec(), ..Expected::default() };
    match providers.verify(source, token, &expected, NOW).await {
        Ok(claims) => format!("welcome {}", login::claims::text(&claims, "sub")),
        Err(error) => error.to_string(),
    }
}

const UNSIGNED: &str = "no known key successfully validated the token signature";

#[tokio::test]
async fn only_the_key_of_the_provider_signs() {
    let (key, other) = (rsa("a"), rsa("a"));
    let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
    let ed = Ed25519KeyPair::generate().expect("a key");
    let der = AsDer::<PublicKeyX509Der<'_>>::as_der(key.pair.public_key()).expect("a key");
    let public = pem(der.as_ref());
    let all = [
        public.clone(),
        pem(AsDer::<PublicKeyX509Der<'_>>::as_der(ec.public_key()).expect("a key").as_ref()),
        pem(AsDer::<PublicKeyX509Der<'_>>::as_der(ed.public_key()).expect("a key").as_ref()),
    ];
    let source = KeySource { public_keys: &all, ..KeySource::default() };
    let algorithms = [Algorithm::Rs256, Algorithm::Ps256, Algorithm::Es256, Algorithm::EdDsa];
    let text = unsigned("ES256", "", &claims());
    let signature = ec.sign(&SystemRandom::new(), text.as_bytes()).expect("a signature");
    let by_ec = format!("{text}.{}", URL.encode(signature));
    let text = unsigned("EdDSA", "", &claims());
    let by_ed = format!("{text}.{}", URL.encode(ed.sign(text.as_bytes())));
    // The public key as the secret of an HMAC: whoever looked at the header alone would accept it.
    let text = unsigned("HS256", "", &claims());
    let tag = aws_lc_rs::hmac::sign(
        &aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, public.as_bytes()),
        text.as_bytes(),
    );
    let confused = format!("{text}.{}", URL.encode(tag));
    let good = key.sign("RS256", "", &claims());
    let swapped = {
        let (_, signature) = good.rsplit_once('.').expect("dots");
        format!("{}.{signature}", unsigned("RS256", "", &json!({"sub": "root", "exp": NOW + 60, "iat": NOW})))
    };
    let providers = Providers::default();
    for (name, token, wanted) in [
        ("RSA", good.clone(), "welcome ann"),
        ("PSS", key.sign("PS256", "", &claims()), "welcome ann"),
        ("P-256", by_ec.clone(), "welcome ann"),
        ("Ed25519", by_ed, "welcome ann"),
        ("another key", other.sign("RS256", "", &claims()), UNSIGNED),
        (
            "a signature of another algorithm",
            good.replacen(&unsigned("RS256", "", &claims()), &unsigned("PS256", "", &claims()), 1),
            UNSIGNED,
        ),
        (
            "ECDSA said to be RSA",
            by_ec.replacen(&unsigned("ES256", "", &claims()), &unsigned("RS256", "", &claims()), 1),
            UNSIGNED,
        ),
        ("other claims", swapped, UNSIGNED),
        ("no signature", format!("{}.", unsigned("RS256", "", &claims())), UNSIGNED),
        ("none", format!("{}.", unsigned("none", "", &claims())), "signed with \"none\", which is never accepted"),
        ("confusion", confused, "signed with \"HS256\", which is never accepted"),
        ("expired", key.sign("RS256", "", &json!({"exp": NOW - 60})), "token is expired"),
    ] {
        let said = said(&providers, source, &token, &algorithms).await;
        assert!(said.contains(wanted), "{name}: {said}");
    }
    let only = said(&providers, source, &by_ec, &[]).await;
    assert!(only.contains("signed with ES256, and the auth method accepts RS256"), "{only}");
    let bad = ["no key".to_owned()];
    let said = said(&providers, KeySource { public_keys: &bad, ..source }, &good, &[]).await;
    assert!(said.contains("JWTValidationPubKeys[0] holds no public key"), "{said}");
}

#[tokio::test]
async fn a_new_key_is_fetched_once_and_an_invented_one_does_not_flood_the_provider() {
    let (provider, url) = Provider::start().await;
    let (first, second) = (rsa("1"), rsa("2"));
    provider.documents(&url, &[&first.jwk]);
    let providers = Providers::default();
    let source = KeySource { discovery_url: &url, ..KeySource::default() };
    for _ in 0..3 {
        assert_eq!(said(&providers, source, &first.sign("RS256", "1", &claims()), &[]).await, "welcome ann");
    }
    assert_eq!((provider.asked("/keys").len(), provider.asked("/.well-known/openid-configuration").len()), (1, 1));
    for i in 0..20 {
        let said = said(&providers, source, &second.sign("RS256", &format!("x{i}"), &claims()), &[]).await;
        assert!(said.contains(UNSIGNED), "{said}");
    }
    assert_eq!(provider.asked("/keys").len(), 1, "the keys were younger than ten seconds");
    provider.documents(&url, &[&first.jwk, &second.jwk]);
    later(11).await;
    assert_eq!(said(&providers, source, &second.sign("RS256", "2", &claims()), &[]).await, "welcome ann");
    assert_eq!(provider.asked("/keys").len(), 2);
    later(301).await;
    provider.says("/keys", 500, "");
    provider.says("/.well-known/openid-configuration", 500, "");
    for _ in 0..3 {
        assert_eq!(said(&providers, source, &first.sign("RS256", "1", &claims()), &[]).await, "welcome ann");
    }
    assert_eq!(provider.asked("/keys").len(), 3, "old keys count meanwhile, and the provider is left alone");
    later(3601).await;
    let said = said(&providers, source, &first.sign("RS256", "1", &claims()), &[]).await;
    assert!(said.contains("it answers 500"), "old keys do not count for ever: {said}");
}

/// The clock of the caches goes on; the network keeps the time of day.
async fn later(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_provider_that_answers_nonsense_is_named_and_bounded() {
    let (provider, url) = Provider::start().await;
    let token = rsa("1").sign("RS256", "1", &claims());
    let jwks = format!("{url}/keys");
    for (status, body, wanted) in [
        (404, String::new(), "it answers 404"),
        (302, String::new(), "redirects are not followed"),
        (200, "<html>".to_owned(), "it is no set of JSON Web Keys"),
        (200, "x".repeat(1024 * 1024 + 1), "larger than 1048576 bytes"),
        (
            400,
            r#"{"error":"invalid_client","error_description":"who?"}"#.to_owned(),
            "400 Bad Request, invalid_client: who?",
        ),
    ] {
        provider.says("/keys", status, body);
        let source = KeySource { jwks_url: &jwks, ..KeySource::default() };
        let said = said(&Providers::default(), source, &token, &[]).await;
        assert!(said.contains(wanted) && said.contains(&jwks), "{said}");
    }
    let plain = KeySource { jwks_url: "http://192.0.2.1/keys", ..KeySource::default() };
    let said = said(&Providers::default(), plain, &token, &[]).await;
    assert!(said.contains("plain HTTP, which is for this machine only"), "{said}");
}

#[tokio::test]
async fn a_failure_is_remembered_for_a_while() {
    let (provider, url) = Provider::start().await;
    let (providers, jwks, key) = (Providers::default(), format!("{url}/keys"), rsa("1"));
    let source = KeySource { jwks_url: &jwks, ..KeySource::default() };
    for _ in 0..5 {
        assert!(said(&providers, source, &key.sign("RS256", "1", &claims()), &[]).await.contains("404"));
    }
    assert_eq!(provider.asked("/keys").len(), 1);
}

#[tokio::test]
async fn a_login_by_browser_ends_with_the_claims_of_the_person() {
    let (provider, url) = Provider::start().await;
    let key = rsa("1");
    provider.documents(&url, &[&key.jwk]);
    let id = |change: Value| {
        let mut all = json!({
            "iss": url, "aud": "drover", "sub": "ann", "nonce": "n", "iat": NOW, "exp": NOW + 60, "groups": ["a"],
        });
        all.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        json!({"id_token": key.sign("RS256", "1", &all), "access_token": "s3cret"})
    };
    provider.says("/token", 200, id(json!({})));
    provider.says("/me", 200, json!({"sub": "ann", "groups": ["b"], "iss": "https://evil"}));
    let login = CodeExchange {
        discovery_url: &url,
        discovery_ca: &[],
        client_id: "drover",
        client_secret: "a:b",
        code: "c&d",
        redirect: "http://localhost:4649/oidc/callback",
        verifier: Some("v"),
        nonce: "n",
        user_info: true,
    };
    let providers = Providers::default();
    let claims = providers.complete(login, &Expected::default(), NOW).await.expect("a login");
    assert_eq!((&claims["groups"], &claims["iss"], &claims["sub"]), (&json!(["b"]), &json!(url), &json!("ann")));
    let asked = provider.asked("/token").remove(0);
    let basic = format!("authorization: Basic {}", STANDARD.encode("drover:a%3Ab"));
    assert!(asked.to_lowercase().contains(&basic.to_lowercase()), "{asked}");
    let form = "grant_type=authorization_code&code=c%26d&redirect_uri=http%3A%2F%2Flocalhost%3A4649%2Foidc%2Fcallback&\
                code_verifier=v";
    assert!(asked.ends_with(form), "{asked}");
    assert!(provider.asked("/me")[0].to_lowercase().contains("authorization: bearer s3cret"));
    let without = CodeExchange { user_info: false, client_secret: "", ..login };
    let claims = providers.complete(without, &Expected::default(), NOW).await.expect("a login");
    assert_eq!((&claims["groups"], provider.asked("/me").len()), (&json!(["a"]), 1));
    assert!(provider.asked("/token")[1].ends_with("&client_id=drover"), "a public client only names itself");
    for (answer, wanted) in [
        (id(json!({"nonce": "other"})), "repeats another nonce"),
        (id(json!({"aud": "someone"})), "not meant for the client \"drover\""),
        (id(json!({"iss": "https://evil"})), "of the issuer \"https://evil\""),
        (id(json!({"exp": NOW - 100})), "token is expired"),
        (id(json!({"sub": "bob"})), "of another subject"),
        (json!({"access_token": "s3cret"}), "it holds no id_token"),
    ] {
        provider.says("/token", 200, answer);
        let refused = providers.complete(login, &Expected::default(), NOW).await.expect_err(wanted).to_string();
        assert!(refused.contains(wanted) && !refused.contains("s3cret"), "{refused}");
    }
    provider.says("/token", 400, json!({"error": "invalid_grant"}));
    let refused = providers.complete(login, &Expected::default(), NOW).await;
    assert!(matches!(&refused, Err(Error::Unreachable(e)) if e.why == "it answers 400 Bad Request, invalid_grant"));
}

#[tokio::test]
async fn a_provider_is_trusted_by_the_authority_that_the_method_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let now = SystemTime::now();
    let authority = |name: &str| {
        let wanted = Authority { common_name: name.to_owned(), days: 2, ..Authority::default() };
        tls::issue::authority(&wanted, now).expect("an authority")
    };
    let (ours, other) = (authority("ours"), authority("other"));
    let (ca, ca_key) = (dir.path().join("ca.pem"), dir.path().join("ca.key"));
    std::fs::write(&ca, &ours.certificate).expect("a file");
    std::fs::write(&ca_key, &ours.key).expect("a file");
    let address = vec!["127.0.0.1".parse().expect("an address")];
    let wanted = Leaf { name: "id.example.com".to_owned(), days: 1, ip_addresses: address, ..Leaf::default() };
    let leaf = tls::issue::leaf(&wanted, &ca, &ca_key, now).expect("a certificate");
    let config = rustls::ServerConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).expect("a certificate")],
            PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).expect("a key"),
        )
        .expect("a configuration");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let (provider, key) = (Provider::default(), rsa("1"));
    let served = provider.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(served.clone().answer(stream));
            }
        }
    });
    provider.documents(&url, &[&key.jwk]);
    let token = key.sign("RS256", "1", &claims());
    let keys = format!("{url}/keys");
    let trusted = [ours.certificate.clone()];
    for source in [
        KeySource { discovery_url: &url, discovery_ca: &trusted, ..KeySource::default() },
        KeySource { jwks_url: &keys, jwks_ca: &ours.certificate, ..KeySource::default() },
    ] {
        assert_eq!(said(&Providers::default(), source, &token, &[]).await, "welcome ann");
    }
    let source = KeySource { jwks_url: &keys, jwks_ca: &other.certificate, ..KeySource::default() };
    let refused = said(&Providers::default(), source, &token, &[]).await;
    assert!(refused.contains("could not ask the identity provider") && refused.contains("certificate"), "{refused}");
    let source = KeySource { jwks_url: &keys, jwks_ca: "no certificate", ..KeySource::default() };
    let refused = said(&Providers::default(), source, &token, &[]).await;
    assert!(refused.contains("holds no certificate"), "{refused}");
}
