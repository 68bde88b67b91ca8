//! The calls of the API, each with its time limit and its meaning.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode};
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Client;
use kube::client::Body;
use kube::core::{Status, WatchEvent};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::access::Access;
use crate::answer::{self, Trouble, trouble};
use crate::seen::{self, Page, Seen};
use crate::usage::PodMetrics;

/// Objects of a listing that one request asks for.
pub(crate) const PAGE: usize = 500;
/// How long the server keeps a watch open.
const WATCH_SECONDS: u64 = 290;
/// How long a watch or a log may be silent: bookmarks of a watch come every minute, and a log that says nothing is
/// asked for again. A proxy does not always tell that its other side has gone.
pub(crate) const SILENCE: Duration = Duration::from_secs(90);
/// Least time before a throttled request is repeated, and the time when the server names none.
const THROTTLED: Duration = Duration::from_secs(1);
/// The metrics API. An extension of the cluster serves it, most often metrics-server.
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";

/// One namespace of one cluster.
#[derive(Clone)]
pub(crate) struct Api {
    access: Arc<Access>,
    pub(crate) namespace: String,
    /// Time limit of a request.
    pub(crate) limit: Duration,
}

/// A part of a listing.
pub(crate) struct Listed {
    pub(crate) pods: Vec<Pod>,
    /// Token of the next part; empty at the end.
    pub(crate) next: String,
    /// Where a watch goes on from.
    pub(crate) version: String,
}

/// Escapes a value of a query or a part of a path.
pub(crate) fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
        out
    })
}

fn query(pairs: &[(&str, String)]) -> String {
    pairs.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect::<Vec<_>>().join("&")
}

/// How long a server that has too many requests asks to wait; `None`: it does not ask.
fn wait_of(code: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    // Other codes with that header may come after something was done.
    (code == StatusCode::TOO_MANY_REQUESTS).then(|| Duration::from_secs(seconds).max(THROTTLED))
}

/// What a refusal says. Proxies and the server's own limits write plain text.
fn refusal(code: StatusCode, text: &str) -> Status {
    let plain = |_| Status::failure(text.trim(), "").with_code(code.as_u16());
    serde_json::from_str(text).unwrap_or_else(plain)
}

impl Api {
    pub(crate) fn new(access: Access, namespace: String, limit: Duration) -> Self {
        Self { access: Arc::new(access), namespace, limit }
    }

    pub(crate) fn client(&self) -> Client {
        self.access.client().1
    }

    fn path(&self, kind: &str, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{kind}{rest}", self.namespace)
    }

    /// One request with its time limit, repeated within it while the server asks to wait, and once with credentials
    /// that were read again. `name`: whose absence a 404 may tell.
    async fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: Vec<u8>,
        name: Option<&str>,
    ) -> Result<T, Trouble> {
        let mut request = Request::builder().method(method).uri(path);
        if !body.is_empty() {
            request = request.header("content-type", kind);
        }
        let request = request.body(body).map_err(Trouble::could_not_ask)?;
        let until = Instant::now() + self.limit;
        let mut access = self.access.client();
        let mut renewed = false;
        loop {
            // Read here: the client would write an answer that it cannot read into the log, and a secret is an answer.
            let asked = tokio::time::timeout_at(until, Self::text(&access.1, request.clone()));
            let (code, wait, text) = asked.await.map_err(|_| {
                let limit = self.limit.as_secs().max(1);
                Trouble::could_not_ask(format!("the API server has not answered within {limit} s"))
            })??;
            if code.is_success() {
                let why = |why| Trouble::could_not_ask(format!("the answer of the API server cannot be read: {why}"));
                return serde_json::from_str(&text).map_err(why);
            }
            let mut refused = refusal(code, &text);
            // Whose credentials are refused has done nothing, so even a create may be repeated.
            if code == StatusCode::UNAUTHORIZED && !renewed {
                renewed = true;
                let read = tokio::time::timeout_at(until, self.access.renew(access.0)).await;
                match read.unwrap_or_else(|_| Err("there was no time to read them again".into())) {
                    Ok(next) => {
                        access = next;
                        continue;
                    }
                    Err(why) => refused.message = format!("{}; {why}", refused.message),
                }
            }
            let Some(wait) = wait else { return Err(answer::status(&refused, name)) };
            if Instant::now() + wait >= until {
                return Err(Trouble::could_not_ask(format!(
                    "the API server has too many requests and wants to be asked again in {} s: {}",
                    wait.as_secs(),
                    refused.message
                )));
            }
            // It has refused the request before doing anything, so even a create may be repeated.
            tokio::time::sleep(wait).await;
        }
    }

    /// Code of an answer, the time that it asks to wait, and its text.
    async fn text(
        client: &Client,
        request: Request<Vec<u8>>,
    ) -> Result<(StatusCode, Option<Duration>, String), Trouble> {
        let answer = client.send(request.map(Body::from)).await.map_err(|why| trouble(&why, None))?;
        let (code, wait) = (answer.status(), wait_of(answer.status(), answer.headers()));
        let body = answer.into_body().collect_bytes().await.map_err(|why| trouble(&why, None))?;
        let text = String::from_utf8(body.into()).map_err(Trouble::could_not_ask)?;
        Ok((code, wait, text))
    }

    /// One request whose answer is a pod.
    async fn ask_pod(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: Vec<u8>,
        name: Option<&str>,
    ) -> Result<Pod, Trouble> {
        self.ask::<Seen>(method, path, kind, body, name).await?.pod()
    }

    /// An answer about this pod, and about no other.
    fn that(name: &str, pod: Pod) -> Result<Pod, Trouble> {
        if pod.metadata.name.as_deref() == Some(name) && pod.metadata.uid.as_ref().is_some_and(|uid| !uid.is_empty()) {
            return Ok(pod);
        }
        Err(Trouble::could_not_ask(format!(
            "the answer is about the pod {:?}, asked was for {name:?}",
            pod.metadata.name.as_deref().unwrap_or_default()
        )))
    }

    /// UID of a namespace of the cluster.
    pub(crate) async fn namespace_uid(&self, name: &str) -> Result<String, Trouble> {
        let path = format!("/api/v1/namespaces/{}", escape(name));
        let found: Value = self.ask("GET", &path, "", Vec::new(), Some(name)).await?;
        let uid = found["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty());
        uid.map(str::to_owned).ok_or_else(|| Trouble::could_not_ask("the answer about kube-system has no UID"))
    }

    /// The server's version (`v1.34.3`), and its clock as the answer tells it.
    pub(crate) async fn version(&self) -> Result<(String, Option<Timestamp>), Trouble> {
        let request = Request::get("/version").body(Body::empty()).map_err(Trouble::could_not_ask)?;
        let asked = async {
            let answer = self.client().send(request).await.map_err(|why| trouble(&why, None))?;
            let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
            let date = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
            let body = answer.into_body().collect_bytes().await.map_err(Trouble::could_not_ask)?;
            let told: Value = serde_json::from_slice(&body).map_err(Trouble::could_not_ask)?;
            match told["gitVersion"].as_str() {
                Some(version) => Ok((version.to_owned(), date)),
                None => Err(Trouble::could_not_ask(format!("the answer has no version: {told}"))),
            }
        };
        tokio::time::timeout(self.limit, asked).await.map_err(|_| Trouble::could_not_ask("no answer in time"))?
    }

    /// Whether this account may do that in its namespace. `resource` may have a part and a group behind it:
    /// `pods/log`, `pods.metrics.k8s.io`.
    pub(crate) async fn may(&self, verb: &str, resource: &str) -> Result<bool, Trouble> {
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "subresource": sub, "namespace": self.namespace,
            }},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let told: Value = self.ask("POST", path, "application/json", review.to_string().into_bytes(), None).await?;
        Ok(told["status"]["allowed"] == true)
    }

    /// Whom the server takes this account for: `system:serviceaccount:NAMESPACE:NAME` for a service account.
    pub(crate) async fn who_am_i(&self) -> Result<String, Trouble> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let told: Value = self.ask("POST", path, "application/json", review.to_string().into_bytes(), None).await?;
        let name = told["status"]["userInfo"]["username"].as_str();
        name.map(str::to_owned).ok_or_else(|| Trouble::could_not_ask("the answer names nobody"))
    }

    /// The pod as the server would have it; it does not make it.
    pub(crate) async fn try_pod(&self, pod: &Value) -> Result<Pod, Trouble> {
        let path = self.path("pods", "?dryRun=All");
        self.ask_pod("POST", &path, "application/json", pod.to_string().into_bytes(), None).await
    }

    pub(crate) async fn create_pod(&self, name: &str, pod: &Value) -> Result<Pod, Trouble> {
        let body = pod.to_string().into_bytes();
        let made = self.ask_pod("POST", &self.path("pods", ""), "application/json", body, None).await?;
        Self::that(name, made)
    }

    /// A pod by name, as the store has it now.
    pub(crate) async fn pod(&self, name: &str) -> Result<Option<Pod>, Trouble> {
        let path = self.path("pods", &format!("/{}", escape(name)));
        match self.ask_pod("GET", &path, "", Vec::new(), Some(name)).await {
            Ok(pod) => Self::that(name, pod).map(Some),
            Err(Trouble::Absent) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// What the metrics API has measured of a pod; `None`: nothing yet, or the pod is away.
    pub(crate) async fn pod_metrics(&self, name: &str) -> Result<Option<PodMetrics>, Trouble> {
        let path = format!("{METRICS}/namespaces/{}/pods/{}", self.namespace, escape(name));
        match self.ask("GET", &path, "", Vec::new(), Some(name)).await {
            Ok(metrics) => Ok(Some(metrics)),
            Err(Trouble::Absent) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Whether something serves the metrics API.
    pub(crate) async fn has_metrics(&self) -> Result<(), Trouble> {
        self.ask::<Value>("GET", METRICS, "", Vec::new(), None).await.map(drop)
    }

    /// Changes a pod by a JSON patch; a test that does not hold is [`Trouble::Invalid`].
    pub(crate) async fn patch_pod(&self, name: &str, operations: &[Value]) -> Result<Pod, Trouble> {
        let path = self.path("pods", &format!("/{}", escape(name)));
        let body = json!(operations).to_string().into_bytes();
        let kind = "application/json-patch+json";
        let changed = self.ask_pod("PATCH", &path, kind, body, Some(name)).await?;
        Self::that(name, changed)
    }

    /// Deletes a pod if it is still this one; never with a grace period of zero.
    pub(crate) async fn delete_pod(
        &self,
        name: &str,
        uid: &str,
        version: Option<&str>,
        grace: Option<u64>,
    ) -> Result<(), Trouble> {
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}});
        if let Some(version) = version {
            options["preconditions"]["resourceVersion"] = json!(version);
        }
        if let Some(grace) = grace {
            options["gracePeriodSeconds"] = json!(grace.max(1));
        }
        let path = self.path("pods", &format!("/{}", escape(name)));
        let body = options.to_string().into_bytes();
        self.ask::<Value>("DELETE", &path, "application/json", body, Some(name)).await.map(drop)
    }

    /// Pods by a selector of labels. An empty `version` asks the store itself.
    pub(crate) async fn list_pods(&self, selector: &str, limit: usize, next: &str) -> Result<Listed, Trouble> {
        let mut pairs = vec![("labelSelector", selector.to_owned()), ("limit", limit.to_string())];
        if !next.is_empty() {
            pairs.push(("continue", next.to_owned()));
        }
        let path = self.path("pods", &format!("?{}", query(&pairs)));
        let page: Page = self.ask("GET", &path, "", Vec::new(), None).await?;
        // Every listing of a server has one; an empty object has not, and would say that there is nothing.
        if page.metadata.resource_version.as_ref().is_none_or(String::is_empty) {
            return Err(Trouble::could_not_ask("the answer of the API server is no listing"));
        }
        Ok(Listed {
            next: page.metadata.continue_.clone().unwrap_or_default(),
            version: page.metadata.resource_version.clone().unwrap_or_default(),
            pods: page.pods()?,
        })
    }

    /// What happens to pods of a selector after a version.
    pub(crate) async fn watch_pods(
        &self,
        selector: &str,
        version: &str,
    ) -> Result<impl futures::Stream<Item = Result<WatchEvent<Pod>, Trouble>> + use<>, Trouble> {
        use futures::StreamExt as _;
        let path = self.path(
            "pods",
            &format!(
                "?{}",
                query(&[
                    ("watch", "true".to_owned()),
                    ("allowWatchBookmarks", "true".to_owned()),
                    ("labelSelector", selector.to_owned()),
                    ("resourceVersion", version.to_owned()),
                    ("timeoutSeconds", WATCH_SECONDS.to_string()),
                ])
            ),
        );
        let request = Request::get(path).body(Vec::new()).map_err(Trouble::could_not_ask)?;
        let open = async {
            loop {
                match self.client().request_events::<Seen>(request.clone()).await {
                    // A watch that begins anew begins with a listing, which costs a busy server much more.
                    Err(kube::Error::Api(refused)) if refused.code == 429 => tokio::time::sleep(THROTTLED).await,
                    opened => return opened,
                }
            }
        };
        let opened = tokio::time::timeout(self.limit, open).await;
        let events = opened
            .map_err(|_| Trouble::could_not_ask("the API server has not opened the watch in time"))?
            .map_err(|why| trouble(&why, None))?;
        Ok(events
            .map(|event: Result<WatchEvent<Seen>, kube::Error>| seen::event(event.map_err(|why| trouble(&why, None))?)))
    }

    /// Makes a secret, and gives it as the store has it.
    pub(crate) async fn create_secret(&self, secret: &Secret) -> Result<Secret, Trouble> {
        let body = serde_json::to_vec(secret).map_err(Trouble::could_not_ask)?;
        self.ask("POST", &self.path("secrets", ""), "application/json", body, None).await
    }

    /// The secret of a pod; `None` when there is none.
    pub(crate) async fn secret(&self, name: &str) -> Result<Option<Secret>, Trouble> {
        let path = self.path("secrets", &format!("/{}", escape(name)));
        match self.ask::<Secret>("GET", &path, "", Vec::new(), Some(name)).await {
            Ok(found) => Ok(Some(found)),
            Err(Trouble::Absent) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Replaces a secret, unless somebody else has changed it since it was read.
    pub(crate) async fn replace_secret(&self, name: &str, secret: &Secret) -> Result<(), Trouble> {
        let path = self.path("secrets", &format!("/{}", escape(name)));
        let body = serde_json::to_vec(secret).map_err(Trouble::could_not_ask)?;
        self.ask::<Value>("PUT", &path, "application/json", body, Some(name)).await.map(drop)
    }

    /// Removes a secret, if it is still as it was read. One that is not there, or another one by now, is as good.
    pub(crate) async fn delete_this_secret(&self, name: &str, secret: &Secret) -> Result<(), Trouble> {
        let (uid, version) = (&secret.metadata.uid, &secret.metadata.resource_version);
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1",
            "preconditions": {"uid": uid, "resourceVersion": version}});
        let path = self.path("secrets", &format!("/{}", escape(name)));
        let body = options.to_string().into_bytes();
        match self.ask::<Value>("DELETE", &path, "application/json", body, Some(name)).await {
            Ok(_) | Err(Trouble::Absent | Trouble::Moved) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Removes a secret; one that is not there is as good.
    pub(crate) async fn delete_secret(&self, name: &str) -> Result<(), Trouble> {
        let path = self.path("secrets", &format!("/{}", escape(name)));
        match self.ask::<Value>("DELETE", &path, "", Vec::new(), Some(name)).await {
            Ok(_) | Err(Trouble::Absent) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// The log of the container from a time on, each line after its time. Only opening it is limited: a reader that
    /// follows waits for as long as the container runs, at most [`SILENCE`] at a time.
    pub(crate) async fn log(
        &self,
        name: &str,
        since: Option<&str>,
        follow: bool,
    ) -> Result<impl futures::AsyncBufRead + use<>, Trouble> {
        let mut pairs = vec![("container", crate::marks::CONTAINER.to_owned()), ("timestamps", "true".to_owned())];
        if follow {
            pairs.push(("follow", "true".to_owned()));
        }
        if let Some(since) = since {
            pairs.push(("sinceTime", since.to_owned()));
        }
        let path = self.path("pods", &format!("/{}/log?{}", escape(name), query(&pairs)));
        let request = Request::get(path).body(Vec::new()).map_err(Trouble::could_not_ask)?;
        let opened = tokio::time::timeout(self.limit, self.client().request_stream(request)).await;
        opened
            .map_err(|_| Trouble::could_not_ask("the API server has not answered with the log in time"))?
            .map_err(|why| trouble(&why, Some(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_throttled_request_waits_and_never_shorter_than_a_second() {
        let wait = |code: StatusCode, after: &str| {
            let headers = [(http::header::RETRY_AFTER, after.parse().expect("a value"))].into_iter().collect();
            wait_of(code, &headers)
        };
        assert_eq!(wait(StatusCode::TOO_MANY_REQUESTS, "7"), Some(Duration::from_secs(7)));
        assert_eq!(wait(StatusCode::TOO_MANY_REQUESTS, "0"), Some(THROTTLED));
        assert_eq!(wait(StatusCode::TOO_MANY_REQUESTS, "Fri, 31 Dec 1999 23:59:59 GMT"), None);
        assert_eq!(wait(StatusCode::SERVICE_UNAVAILABLE, "7"), None);
        assert_eq!(wait_of(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new()), None);
    }

    #[test]
    fn nothing_leads_out_of_a_query() {
        assert_eq!(escape("a&b=c d/é"), "a%26b%3Dc%20d%2F%C3%A9");
        assert_eq!(
            query(&[("labelSelector", "a=b,!c".into()), ("limit", "5".into())]),
            "labelSelector=a%3Db%2C%21c&limit=5"
        );
    }
}
