//! Credentials of registries: from the job, from a file of `docker login`, from a credential helper.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::config::AuthSources;
use crate::options::Auth;

/// The name under which the public registry's credentials are kept.
const HUB: &str = "https://index.docker.io/v1/";
const HELPER_WITHIN: Duration = Duration::from_secs(30);

/// The registry that an image name points to.
pub(crate) fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => HUB,
    }
}

/// The header that carries credentials to the engine.
pub(crate) fn header(credentials: &Value) -> String {
    BASE64_URL_SAFE.encode(credentials.to_string())
}

/// `config.json` of the command line client.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LoginFile {
    auths: BTreeMap<String, Login>,
    #[serde(rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(rename = "credsStore")]
    store: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Login {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

/// Finds credentials for an image; `None` when nobody has any.
pub(crate) async fn find(image: &str, job: &Auth, sources: &AuthSources) -> Result<Option<Value>, String> {
    if !job.username.is_empty() || !job.password.is_empty() {
        let server = if job.server_address.is_empty() { registry(image) } else { &job.server_address };
        return Ok(Some(
            json!({"username": job.username, "password": job.password, "email": job.email, "serveraddress": server}),
        ));
    }
    let registry = registry(image);
    if !sources.config.is_empty() {
        let path = &sources.config;
        let text = tokio::fs::read(path).await.map_err(|e| format!("read the file of credentials {path}: {e}"))?;
        let file: LoginFile =
            serde_json::from_slice(&text).map_err(|e| format!("the file of credentials {path} cannot be read: {e}"))?;
        if let Some(helper) = helper_of(&file, registry) {
            return ask(helper, registry).await;
        }
        if let Some(login) = login_of(&file, registry) {
            return credentials(login, registry).map(Some).map_err(|e| format!("{path}: {e}"));
        }
    }
    match sources.helper.as_str() {
        "" => Ok(None),
        helper => ask(helper.strip_prefix("docker-credential-").unwrap_or(helper), registry).await,
    }
}

/// The part of a key that names the host.
fn host(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

fn helper_of<'a>(file: &'a LoginFile, registry: &str) -> Option<&'a str> {
    let own = file.helpers.iter().find(|(key, _)| host(key) == host(registry)).map(|(_, helper)| helper.as_str());
    own.or_else(|| Some(file.store.as_str()).filter(|store| !store.is_empty()))
}

fn login_of<'a>(file: &'a LoginFile, registry: &str) -> Option<&'a Login> {
    file.auths.iter().find(|(key, _)| host(key) == host(registry)).map(|(_, login)| login)
}

fn credentials(login: &Login, registry: &str) -> Result<Value, String> {
    if !login.identitytoken.is_empty() {
        return Ok(json!({"identitytoken": login.identitytoken, "serveraddress": registry}));
    }
    if login.auth.is_empty() {
        return Ok(json!({"username": login.username, "password": login.password, "serveraddress": registry}));
    }
    let wrong = || format!("the credentials for {registry} are not base64 of name:password");
    let text = BASE64_STANDARD
        .decode(login.auth.trim())
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(wrong)?;
    let (username, password) = text.split_once(':').ok_or_else(wrong)?;
    Ok(json!({"username": username, "password": password.trim_end_matches('\0'), "serveraddress": registry}))
}

/// Asks `docker-credential-<helper>`; one that knows no credentials for the registry says so and fails.
async fn ask(helper: &str, registry: &str) -> Result<Option<Value>, String> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(rename = "Username", default)]
        username: String,
        #[serde(rename = "Secret", default)]
        secret: String,
    }
    let program = format!("docker-credential-{helper}");
    let run = async {
        let mut child = tokio::process::Command::new(&program)
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("start {program}: {e}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A helper that does not read its input answers all the same.
            let _ = stdin.write_all(format!("{registry}\n").as_bytes()).await;
        }
        child.wait_with_output().await.map_err(|e| format!("run {program}: {e}"))
    };
    let output = tokio::time::timeout(HELPER_WITHIN, run)
        .await
        .map_err(|_| format!("{program} has not answered within {HELPER_WITHIN:?}"))??;
    if !output.status.success() {
        let said = String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout })
            .trim()
            .to_owned();
        return Err(format!("{program} gave no credentials for {registry} ({}): {said}", output.status));
    }
    let answer: Answer = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("{program} answered something else than JSON: {e}"))?;
    Ok(Some(match answer.username.as_str() {
        "<token>" => json!({"identitytoken": answer.secret, "serveraddress": registry}),
        name => json!({"username": name, "password": answer.secret, "serveraddress": registry}),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_name_their_registry() {
        for (image, wanted) in [
            ("redis:7", HUB),
            ("library/redis", HUB),
            ("ghcr.io/a/b", "ghcr.io"),
            ("localhost/a", "localhost"),
            ("host:5000/a:1", "host:5000"),
        ] {
            assert_eq!(registry(image), wanted, "{image}");
        }
    }

    #[tokio::test]
    async fn the_job_comes_first_then_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.json");
        let text = json!({"auths": {"https://ghcr.io/v2/": {"auth": BASE64_STANDARD.encode("me:se:cret")},
            "t.io": {"identitytoken": "tok"}, "bad.io": {"auth": "%"}}});
        std::fs::write(&path, text.to_string()).expect("written");
        let sources = AuthSources { config: path.display().to_string(), helper: String::new() };
        let job = Auth { username: "u".into(), password: "p".into(), ..Auth::default() };
        let none = Auth::default();
        assert_eq!(find("ghcr.io/a", &job, &sources).await.expect("found").expect("some")["username"], "u");
        let found = find("ghcr.io/a", &none, &sources).await.expect("found").expect("some");
        assert_eq!((&found["username"], &found["password"]), (&json!("me"), &json!("se:cret")));
        assert_eq!(find("t.io/a", &none, &sources).await.expect("found").expect("some")["identitytoken"], "tok");
        assert_eq!(find("other.io/a", &none, &sources).await, Ok(None));
        assert!(find("bad.io/a", &none, &sources).await.is_err());
        let missing = AuthSources { config: "/nowhere".into(), helper: String::new() };
        assert!(find("a", &none, &missing).await.expect_err("missing").contains("/nowhere"));
        let helper = AuthSources { config: String::new(), helper: "that-does-not-exist".into() };
        assert!(
            find("a", &none, &helper).await.expect_err("no helper").contains("docker-credential-that-does-not-exist")
        );
    }
}
