//! Calls of the HTTP API: a function of each endpoint, made of [`endpoints!`](crate::endpoints). It knows method, path,
//! body and answer. Parameters of the query and of blocking are added to the call:
//! `call::job_allocations("web").with("all", true)`.
//!
//! [`ApiClient::call`](crate::ApiClient::call) sends them.

use std::{collections::BTreeMap, fmt::Display, marker::PhantomData, time::Duration};

use bytes::Bytes;
use http::Method;
use model::{
    AclAuthMethod, AclBindingRule, AclPolicy, AclRole, AclToken, Allocation, CheckResult, Deployment, Evaluation, Job,
    Node, SchedulerConfig, ServiceRegistration, StoreIndex, VolumeClaim,
};
use serde::Serialize;
use serde_json::Value;

use crate::{RequestOptions, go_json, query::percent_encode, shapes::*};

/// A request of an endpoint that has not been sent, and what its answer is: `R`. Rows of lists are read as their
/// objects; what a row leaves out has its default.
#[derive(Debug)]
pub struct Call<R> {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) options: RequestOptions,
    pub(crate) body: Result<Bytes, go_json::Error>,
    reply: PhantomData<fn() -> R>,
}

/// An answer that is not one JSON value: none, bytes, text, frames or a websocket.
#[derive(Clone, Copy, Debug)]
pub enum Raw {}

impl<R> Call<R> {
    fn new(method: Method, path: String) -> Self {
        // Whoever writes nothing in particular writes an empty object.
        let body = Ok(Bytes::from_static(if method == Method::PUT { b"{}" } else { b"" }));
        Self { method, path, options: RequestOptions::default(), body, reply: PhantomData }
    }

    /// The path, percent-encoded, without a query.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Options of the request, as its query has them.
    #[must_use]
    pub fn options(&self) -> &RequestOptions {
        &self.options
    }

    /// Adds a parameter of the query.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        self.options = self.options.with(name, value);
        self
    }

    /// Adds a parameter of the query, where there is one.
    #[must_use]
    pub fn with_some(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// In this namespace instead of the client's; `*` reads all of them.
    #[must_use]
    pub fn in_namespace(mut self, namespace: impl Display) -> Self {
        self.options = self.options.in_namespace(namespace.to_string());
        self
    }

    /// The answer waits for a change after this index, but not longer than this; 0 answers at once.
    #[must_use]
    pub fn after(mut self, index: StoreIndex, wait: Duration) -> Self {
        (self.options.index, self.options.wait) = (index, (index > 0).then_some(wait));
        self
    }

    /// Sends this body instead: a value that is passed on as it was read.
    #[must_use]
    pub fn carrying(mut self, body: &(impl Serialize + ?Sized)) -> Self {
        self.body = go_json::to_vec(body, false).map(Bytes::from);
        self
    }

    /// Reads the answer as something else, such as the JSON that the agent has sent.
    #[must_use]
    pub fn reading<T>(self) -> Call<T> {
        let Self { method, path, options, body, .. } = self;
        Call { method, path, options, body, reply: PhantomData }
    }
}

/// A pattern of a path with its parameters in their places. A slash within one belongs to its name, as dots do.
fn filled(pattern: &str, params: &[&dyn Display]) -> String {
    let mut params = params.iter();
    let mut path = String::with_capacity(pattern.len());
    for part in pattern.split('/').skip(1) {
        path.push('/');
        let param = if part.starts_with([':', '*']) { params.next().map(ToString::to_string) } else { None };
        match param.as_deref() {
            None => path.push_str(part),
            // As they are these would be taken for steps.
            Some(".") => path.push_str("%2E"),
            Some("..") => path.push_str("%2E%2E"),
            Some(text) => path.push_str(&percent_encode(text)),
        }
    }
    path
}

/// The parameters of a pattern have these names.
const fn fits(pattern: &str, names: &[&str]) -> bool {
    let (pattern, mut at, mut found) = (pattern.as_bytes(), 1, 0);
    while at < pattern.len() {
        if pattern[at - 1] == b'/' && matches!(pattern[at], b':' | b'*') {
            if found == names.len() {
                return false;
            }
            let (name, mut i) = (names[found].as_bytes(), 0);
            while i < name.len() {
                if at + 1 + i >= pattern.len() || pattern[at + 1 + i] != name[i] {
                    return false;
                }
                i += 1;
            }
            found += 1;
        }
        at += 1;
    }
    found == names.len()
}

macro_rules! calls {
    ($($pattern:literal $params:tt $($verb:ident $needs:tt $entry:tt)+;)+) => {
        $($(calls!(@one $verb $pattern $params $entry);)+)+
    };
    (@one $verb:ident $pattern:literal ($($param:ident)*) [$name:ident -> $reply:ty = $handler:path, $doc:literal]) => {
        #[doc = concat!($doc, " `", $pattern, "`.")]
        #[must_use]
        pub fn $name($($param: impl Display),*) -> Call<$reply> {
            const { assert!(fits($pattern, &[$(stringify!($param)),*]), "the call names the parameters of the path") };
            Call::new(calls!(@method $verb), filled($pattern, &[$(&$param),*]))
        }
    };
    (@one $verb:ident $pattern:literal ($($param:ident)*) [$name:ident ($body:ty) -> $reply:ty = $handler:path,
        $doc:literal]) => {
        #[doc = concat!($doc, " `", $pattern, "`.")]
        #[must_use]
        pub fn $name($($param: impl Display,)* body: &$body) -> Call<$reply> {
            const { assert!(fits($pattern, &[$(stringify!($param)),*]), "the call names the parameters of the path") };
            Call::new(calls!(@method $verb), filled($pattern, &[$(&$param),*])).carrying(body)
        }
    };
    (@one $verb:ident $pattern:literal $params:tt [$kind:ident $handler:path $(, $doc:literal)?]) => {};
    (@method Get) => { Method::GET };
    (@method Delete) => { Method::DELETE };
    (@method $other:ident) => { Method::PUT };
}

crate::endpoints!(calls);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_know_method_path_and_query() {
        let call = job_allocations("a/b ..").with("all", true).with_some("none", None::<u8>).in_namespace("*");
        assert_eq!((call.method.as_str(), call.path()), ("GET", "/v1/job/a%2Fb%20../allocations"));
        assert_eq!(call.options().params, [("all".to_owned(), "true".to_owned())]);
        assert_eq!(call.options().namespace.as_deref(), Some("*"));
        assert_eq!(job("..").path(), "/v1/job/%2E%2E");
        assert_eq!(service_delete("web", "x.y").path(), "/v1/service/web/x.y");
        assert_eq!(
            (job_stop("x").method, job_update("x", &JobRegisterRequest::default()).method),
            (Method::DELETE, Method::PUT)
        );
        let waits = nodes().after(7, Duration::from_secs(1));
        assert_eq!((waits.options().index, waits.options().wait), (7, Some(Duration::from_secs(1))));
        assert_eq!(nodes().after(0, Duration::from_secs(1)).options(), &RequestOptions::default());
    }

    #[test]
    fn writes_have_a_body_and_reads_none() {
        let body = |call: Call<Value>| String::from_utf8(call.body.expect("JSON").to_vec()).expect("text");
        assert_eq!(body(system_gc().reading()), "{}");
        assert_eq!(body(nodes().reading()), "");
        assert_eq!(body(job_stop("x").reading()), "");
        let request = AllocRestartRequest { task_name: "t".into(), all_tasks: false };
        assert_eq!(body(alloc_restart("a", &request).reading()), r#"{"TaskName":"t","AllTasks":false}"#);
        assert_eq!(body(alloc_restart("a", &request).carrying(&[1]).reading()), "[1]");
    }

    #[test]
    fn parameters_are_those_of_the_pattern() {
        assert!(fits("/v1/a/:id/b/*slot", &["id", "slot"]) && fits("/v1/a", &[]));
        for (pattern, names) in
            [("/v1/:id", &[][..]), ("/v1/:id", &["name"]), ("/v1/a", &["id"]), ("/v1/:id", &["id", "more"])]
        {
            assert!(!fits(pattern, names), "{pattern}");
        }
    }
}
