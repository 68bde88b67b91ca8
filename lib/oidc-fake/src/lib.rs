//! An identity provider within a test: its documents and keys, the tokens that it signs, and logins by browser, with
//! switches for what a provider may do wrong.
//!
//! Linked into no program that ships. Begin reading at [`Provider`]. It panics where a test has gone wrong: a request
//! that no client of OpenID Connect would send.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use aws_lc_rs::{
    digest::{SHA256, digest},
    hmac,
    rand::SystemRandom,
    rsa::{KeyPair as RsaKeyPair, KeySize},
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256},
};
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Query, Request},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as URL},
};
use http::{
    Response, StatusCode, Uri,
    header::{AUTHORIZATION, LOCATION},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// The id of the servers at the provider.
pub const CLIENT: &str = "drover";
/// Their secret there; a part of it needs escapes.
pub const SECRET: &str = "s3cr:et";

/// A pair of keys.
#[derive(Debug)]
pub enum Pair {
    /// Signs RS256.
    Rsa(RsaKeyPair),
    /// Signs ES256.
    Ec(EcdsaKeyPair),
    /// Signs EdDSA.
    Ed(Ed25519KeyPair),
}

impl Pair {
    /// A new one: RSA of 2048 bits.
    ///
    /// # Panics
    /// The system gives no random bytes.
    pub fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).expect("a key"))
    }
    /// A new one: on the curve P-256.
    ///
    /// # Panics
    /// The system gives no random bytes.
    pub fn ec() -> Self {
        Self::Ec(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key"))
    }
    /// A new one: Ed25519.
    ///
    /// # Panics
    /// The system gives no random bytes.
    pub fn ed() -> Self {
        Self::Ed(Ed25519KeyPair::generate().expect("a key"))
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::Ec(_) => "ES256",
            Self::Ed(_) => "EdDSA",
        }
    }

    /// As a JSON Web Key.
    pub fn jwk(&self, kid: &str) -> Value {
        match self {
            Self::Rsa(pair) => json!({
                "kty": "RSA", "kid": kid, "use": "sig",
                "n": URL.encode(pair.public_key().modulus().big_endian_without_leading_zero()),
                "e": URL.encode(pair.public_key().exponent().big_endian_without_leading_zero()),
            }),
            Self::Ec(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": URL.encode(&point[1..33]),
                    "y": URL.encode(&point[33..])})
            }
            Self::Ed(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": URL.encode(pair.public_key().as_ref())})
            }
        }
    }

    /// A token of these claims.
    ///
    /// # Panics
    /// The key does not sign.
    pub fn sign(&self, kid: &str, claims: &Value) -> String {
        let text = unsigned(self.algorithm(), kid, claims);
        let signature = match self {
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature).expect("signs");
                signature
            }
            Self::Ec(pair) => pair.sign(&SystemRandom::new(), text.as_bytes()).expect("signs").as_ref().to_vec(),
            Self::Ed(pair) => pair.sign(text.as_bytes()).as_ref().to_vec(),
        };
        format!("{text}.{}", URL.encode(signature))
    }
}

/// Header and claims of a token.
pub fn unsigned(alg: &str, kid: &str, claims: &Value) -> String {
    let header = json!({"alg": alg, "kid": kid, "typ": "JWT"});
    format!("{}.{}", URL.encode(header.to_string()), URL.encode(claims.to_string()))
}

/// A token whose HMAC has a public text as its secret: who looks at the header alone takes it.
pub fn confused(public: &str, kid: &str, claims: &Value) -> String {
    let text = unsigned("HS256", kid, claims);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, public.as_bytes()), text.as_bytes());
    format!("{text}.{}", URL.encode(tag))
}

/// Now, in seconds.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// A login at the provider that waits for its exchange.
#[derive(Clone)]
struct Waiting {
    challenge: Option<String>,
    nonce: String,
    redirect: String,
}

#[derive(Default)]
struct Inner {
    keys: Vec<Value>,
    waiting: HashMap<String, Waiting>,
    /// Claims of the ID token besides those of every one.
    id_claims: BTreeMap<String, Value>,
    user_info: Value,
    /// How often each path was asked.
    asked: BTreeMap<String, usize>,
}

/// The provider; it ends when it is dropped.
pub struct Provider {
    /// Its issuer, and where it listens.
    pub url: String,
    key: Arc<Pair>,
    inner: Arc<Mutex<Inner>>,
    _serving: AbortOnDropHandle<()>,
}

impl Provider {
    /// One that signs with an RSA key `1`, on a free port, in the runtime of the caller.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let key = Arc::new(Pair::rsa());
        let inner = Arc::new(Mutex::new(Inner { keys: vec![key.jwk("1")], ..Inner::default() }));
        let served = (url.clone(), key.clone(), inner.clone());
        let router = Router::new().fallback(move |request: Request| {
            let (url, key, inner) = served.clone();
            async move { answer(&url, &key, &inner, request).await }
        });
        let serve = async move { axum::serve(listener, router).await.expect("it serves until it is dropped") };
        Self { url, key, inner, _serving: AbortOnDropHandle::new(tokio::spawn(serve)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("a lock")
    }

    /// These are its keys from now on, as JSON Web Keys.
    pub fn publish(&self, keys: Vec<Value>) {
        self.lock().keys = keys;
    }

    /// A token of these claims, signed with its first key.
    pub fn sign(&self, claims: &Value) -> String {
        self.key.sign("1", claims)
    }

    /// Its first key.
    pub fn jwk(&self) -> Value {
        self.key.jwk("1")
    }

    /// How often a path was asked.
    pub fn asked(&self, path: &str) -> usize {
        self.lock().asked.get(path).copied().unwrap_or(0)
    }

    /// The claim is in every ID token from now on.
    pub fn says(&self, claim: &str, value: Value) {
        self.lock().id_claims.insert(claim.to_owned(), value);
    }

    /// What its endpoint of further claims says from now on.
    pub fn tells_of(&self, user_info: Value) {
        self.lock().user_info = user_info;
    }

    /// A person logs in at this address; code and state that the browser brings back.
    ///
    /// # Panics
    /// The address is not one of this provider for its client.
    pub fn person_at(&self, auth_url: &str) -> (String, String) {
        let rest = auth_url.strip_prefix(&format!("{}/authorize?", self.url)).expect("its own address");
        let at = logged_in(&mut self.lock(), rest);
        (at.code, at.state)
    }

    /// The verifier of a code that waits is another one from now on.
    ///
    /// # Panics
    /// No such code waits.
    pub fn challenges(&self, code: &str) {
        self.lock().waiting.get_mut(code).expect("a code that waits").challenge = Some("another".to_owned());
    }
}

/// A person who has logged in.
struct LoggedIn {
    redirect: String,
    code: String,
    state: String,
}

/// A person who comes with this query needs no password here.
fn logged_in(inner: &mut Inner, query: &str) -> LoggedIn {
    let query = Pairs::parse(query);
    assert_eq!((query.text("response_type"), query.text("client_id")), ("code", CLIENT));
    assert!(query.text("scope").split(' ').any(|scope| scope == "openid"), "{query:?}");
    let challenge = query.0.get("code_challenge").cloned();
    assert!(challenge.is_none() || query.text("code_challenge_method") == "S256", "{query:?}");
    let (code, redirect) = (uuid::Uuid::new_v4().to_string(), query.text("redirect_uri").to_owned());
    let waiting = Waiting { challenge, nonce: query.text("nonce").to_owned(), redirect: redirect.clone() };
    inner.waiting.insert(code.clone(), waiting);
    LoggedIn { redirect, code, state: query.text("state").to_owned() }
}

/// The pairs of a query or form.
#[derive(Debug)]
struct Pairs(HashMap<String, String>);

impl Pairs {
    fn parse(text: &str) -> Self {
        let uri: Uri = format!("/?{text}").parse().expect("a query");
        Self(Query::try_from_uri(&uri).expect("pairs").0)
    }

    /// Empty = it is not there.
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map(String::as_str).unwrap_or_default()
    }
}

async fn answer(url: &str, key: &Pair, inner: &Mutex<Inner>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.expect("a body");
    let path = head.uri.path().to_owned();
    let mut inner = inner.lock().expect("a lock");
    *inner.asked.entry(path.clone()).or_default() += 1;
    let shown = head.headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let (status, answer) = match path.as_str() {
        "/.well-known/openid-configuration" => (
            200,
            json!({
                "issuer": url, "authorization_endpoint": format!("{url}/authorize"),
                "token_endpoint": format!("{url}/token"), "userinfo_endpoint": format!("{url}/userinfo"),
                "jwks_uri": format!("{url}/keys"),
            }),
        ),
        "/authorize" => {
            let LoggedIn { redirect, code, state } = logged_in(&mut inner, head.uri.query().unwrap_or_default());
            // A sealed state is of letters that need no escapes.
            let back = format!("{redirect}?code={code}&state={state}");
            let answer = Response::builder().status(StatusCode::FOUND).header(LOCATION, back);
            return answer.body(Body::empty()).expect("an answer");
        }
        "/keys" => (200, json!({"keys": inner.keys})),
        "/token" => exchange(url, key, &mut inner, shown, std::str::from_utf8(&body).expect("a form")),
        "/userinfo" if shown == "Bearer access" => (200, inner.user_info.clone()),
        "/userinfo" => (401, json!({"error": "invalid_token"})),
        _ => (404, Value::Null),
    };
    let status = StatusCode::from_u16(status).expect("a status");
    Response::builder().status(status).body(Body::from(answer.to_string())).expect("an answer")
}

/// The token endpoint: a code counts once, for its redirect, and for whoever knows its verifier.
fn exchange(url: &str, key: &Pair, inner: &mut Inner, shown: &str, form: &str) -> (u16, Value) {
    let form = Pairs::parse(form);
    let basic = format!("Basic {}", STANDARD.encode(format!("{CLIENT}:{}", SECRET.replace(':', "%3A"))));
    if shown != basic {
        return (401, json!({"error": "invalid_client", "error_description": "who are you"}));
    }
    let refused = |why: &str| (400, json!({"error": "invalid_grant", "error_description": why}));
    let Some(waiting) = inner.waiting.remove(form.text("code")) else { return refused("no such code") };
    if form.text("grant_type") != "authorization_code" || form.text("redirect_uri") != waiting.redirect {
        return refused("another redirect");
    }
    let hashed = form.0.get("code_verifier").map(|verifier| URL.encode(digest(&SHA256, verifier.as_bytes())));
    if hashed != waiting.challenge {
        return refused("another verifier");
    }
    let mut claims = json!({
        "iss": url, "aud": CLIENT, "sub": "ann", "nonce": waiting.nonce, "iat": now(), "exp": now() + 60,
    });
    let all = claims.as_object_mut().expect("an object");
    all.extend(inner.id_claims.iter().map(|(claim, value)| (claim.clone(), value.clone())));
    (200, json!({"id_token": key.sign("1", &claims), "access_token": "access", "token_type": "Bearer"}))
}
