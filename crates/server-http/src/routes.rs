//! Which handler answers a request: the table of [`api::endpoints!`], and how a path finds its line.

use futures::future::BoxFuture;
use http::Method;

use crate::{
    acl_policies, acl_roles, acl_tokens, agent, allocs, auth_methods, autopilot, binding_rules,
    caller::Unchecked,
    deployments, drivers, evals, event_stream, exec, explain, history, job_statuses, job_writes, jobs, keyring, login,
    metrics, monitor,
    needs::{Needs, needs},
    nodes, operator, proxy, refused, remote,
    reply::{HttpError, Reply},
    request::Ctx,
    scaling, search, services, ui, variables, volumes,
};

/// Methods; PUT and POST are the same where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Put,
    Post,
    Delete,
}

impl Verb {
    pub(crate) fn of(method: &Method) -> Option<Self> {
        Some(match *method {
            Method::GET => Self::Get,
            Method::PUT => Self::Put,
            Method::POST => Self::Post,
            Method::DELETE => Self::Delete,
            _ => return None,
        })
    }
}

/// Which verbs an entry of the table answers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verbs {
    /// GET.
    Get,
    /// PUT and POST.
    Put,
    /// PUT, not POST.
    OnlyPut,
    /// DELETE.
    Delete,
    /// All of them.
    Any,
}

impl Verbs {
    fn contain(self, verb: Verb) -> bool {
        match self {
            Self::Get => verb == Verb::Get,
            Self::Put => matches!(verb, Verb::Put | Verb::Post),
            Self::OnlyPut => verb == Verb::Put,
            Self::Delete => verb == Verb::Delete,
            Self::Any => true,
        }
    }
    pub(crate) fn shown(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put | Self::OnlyPut => "PUT",
            Self::Delete => "DELETE",
            Self::Any => "any",
        }
    }
}

pub(crate) type Handler = fn(Ctx) -> BoxFuture<'static, Result<Reply, HttpError>>;

/// An endpoint.
pub(crate) struct Route {
    pub(crate) pattern: &'static str,
    pub(crate) verbs: &'static [(Verbs, Needs, Handler)],
}

impl Route {
    /// What answers, and what it needs.
    pub(crate) fn answering(&self, verb: Verb) -> Option<(Needs, Handler)> {
        self.verbs.iter().find(|(verbs, ..)| verbs.contain(verb)).map(|(_, needs, handler)| (*needs, *handler))
    }
}

/// What the reference says of an endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its path; `:name` stands for one part, `*name` for one or more.
    pub pattern: &'static str,
    /// What it does with each method.
    pub verbs: Vec<Answered>,
}

/// What an endpoint does with a method.
#[derive(Clone, Debug)]
pub struct Answered {
    /// `GET`, `PUT` (which stands for POST too), `DELETE` or `any`.
    pub method: &'static str,
    /// It answers only that this release does not do it, and why.
    pub refused: bool,
    /// What its caller needs while ACLs are on, in Markdown.
    pub needs: String,
    /// What it does, in a sentence, or what is refused and why; empty where there is nothing to say.
    pub doc: &'static str,
}

/// Every endpoint, in the order of the table.
pub fn endpoints() -> impl Iterator<Item = Endpoint> {
    ROUTES.iter().zip(TOLD).map(|(route, told)| {
        let verbs = route.verbs.iter().zip(*told);
        let verbs = verbs.map(|((verbs, needs, _), (refused, doc))| Answered {
            method: verbs.shown(),
            refused: *refused,
            needs: needs.shown(),
            doc: if *refused { crate::refused::reason(doc) } else { doc },
        });
        Endpoint { pattern: route.pattern, verbs: verbs.collect() }
    })
}

macro_rules! routes {
    ($($pattern:literal $params:tt $($verb:ident $needs:tt $entry:tt)+;)*) => {
        pub(crate) const ROUTES: &[Route] = &[$(
            Route { pattern: $pattern, verbs: &[$((Verbs::$verb, needs!($needs), routes!(@handler $needs $entry))),+] },
        )*];
        /// What the reference says of each, as they stand in [`ROUTES`]: it is refused and by which handler, or what it
        /// does.
        const TOLD: &[&[(bool, &str)]] = &[$(&[$(routes!(@told $entry)),+]),*];
    };
    (@handler (handler $needs:literal) [$name:ident $(($body:ty))? -> $reply:ty = $handler:path,
        $doc:literal]) => { |ctx| Box::pin($handler(Unchecked::new(ctx))) };
    (@handler $needs:tt [refused $handler:path]) => { |ctx| Box::pin($handler(ctx)) };
    (@handler (handler $needs:literal) [other $handler:path, $doc:literal]) => {
        |ctx| Box::pin($handler(Unchecked::new(ctx)))
    };
    (@handler $needs:tt [other $handler:path, $doc:literal]) => { |ctx| Box::pin($handler(ctx)) };
    (@handler $needs:tt [$name:ident $(($body:ty))? -> $reply:ty = $handler:path,
        $doc:literal]) => { |ctx| Box::pin($handler(ctx)) };
    (@told [refused $handler:path]) => { (true, stringify!($handler)) };
    (@told [other $handler:path, $doc:literal]) => { (false, $doc) };
    (@told [$name:ident $(($body:ty))? -> $reply:ty = $handler:path, $doc:literal]) => { (false, $doc) };
}

api::endpoints!(routes);

/// The endpoint of a path as it was sent, with the parts that its pattern names. A slash that is encoded belongs to
/// a name: a job `x/allocations` is not the list of allocations of `x`.
pub(crate) fn find(path: &str) -> Option<(&'static Route, Vec<(&'static str, String)>)> {
    ROUTES.iter().find_map(|route| fit(route.pattern, path).map(|params| (route, params)))
}

fn fit(pattern: &'static str, path: &str) -> Option<Vec<(&'static str, String)>> {
    let mut params = Vec::new();
    let (mut pattern, mut path) = (pattern.strip_prefix('/')?, path.strip_prefix('/')?);
    // From the front up to the part that may hold slashes, then from the back.
    loop {
        let (want, pattern_rest) = pattern.split_once('/').map_or((pattern, None), |(a, b)| (a, Some(b)));
        if let Some(name) = want.strip_prefix('*') {
            let middle = match pattern_rest {
                None => path,
                Some(suffix) => fit_back(suffix, path, &mut params)?,
            };
            if middle.is_empty() {
                return None;
            }
            params.push((name, decoded(middle)?));
            return Some(params);
        }
        let (have, path_rest) = path.split_once('/').map_or((path, None), |(a, b)| (a, Some(b)));
        match want.strip_prefix(':') {
            Some(name) if !have.is_empty() => params.push((name, decoded(have)?)),
            Some(_) => return None,
            None if decoded(have).as_deref() == Some(want) => {}
            None => return None,
        }
        match (pattern_rest, path_rest) {
            (None, None) => return Some(params),
            (Some(p), Some(h)) => (pattern, path) = (p, h),
            _ => return None,
        }
    }
}

fn decoded(part: &str) -> Option<String> {
    api::query::percent_decode(part, false)
}

/// Takes the parts of `suffix` off the end of the path; what remains.
fn fit_back<'p>(suffix: &'static str, path: &'p str, params: &mut Vec<(&'static str, String)>) -> Option<&'p str> {
    let mut rest = path;
    for want in suffix.rsplit('/') {
        let (front, have) = rest.rsplit_once('/')?;
        match want.strip_prefix(':') {
            Some(name) if !have.is_empty() => params.push((name, decoded(have)?)),
            Some(_) => return None,
            None if decoded(have).as_deref() == Some(want) => {}
            None => return None,
        }
        rest = front;
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_find_their_route() {
        for (path, pattern, params) in [
            ("/v1/jobs", "/v1/jobs", ""),
            ("/v1/job/web", "/v1/job/*id", "id=web"),
            ("/v1/job/a/b/c", "/v1/job/*id", "id=a/b/c"),
            ("/v1/job/a/b/plan", "/v1/job/*id/plan", "id=a/b"),
            ("/v1/job/plan", "/v1/job/*id", "id=plan"),
            ("/v1/job/plan/plan", "/v1/job/*id/plan", "id=plan"),
            ("/v1/job/x/periodic/force", "/v1/job/*id/periodic/force", "id=x"),
            ("/v1/job/x/y/versions/v1/tag", "/v1/job/*id/versions/:name/tag", "name=v1 id=x/y"),
            ("/v1/job/x/allocation", "/v1/job/*id", "id=x/allocation"),
            ("/v1/job/with%20space%25", "/v1/job/*id", "id=with space%"),
            ("/v1/job/x%2Fallocations", "/v1/job/*id", "id=x/allocations"),
            ("/v1/job/x%2Fallocations/allocations", "/v1/job/*id/allocations", "id=x/allocations"),
            ("/v1/job/x%2F%2Fy/plan", "/v1/job/*id/plan", "id=x//y"),
            ("/v1/job/%2E%2E", "/v1/job/*id", "id=.."),
            ("/v1/node/pool/a%2Fb", "/v1/node/pool/*name", "name=a/b"),
            ("/v1/%6Aobs", "/v1/jobs", ""),
            ("/v1/deployment/fail/d", "/v1/deployment/fail/:id", "id=d"),
            ("/v1/deployment/d", "/v1/deployment/:id", "id=d"),
            ("/v1/node/pool/a/b/nodes", "/v1/node/pool/*name/nodes", "name=a/b"),
            ("/v1/node/n/drain", "/v1/node/:id/drain", "id=n"),
            ("/v1/remote/task/default/j.g[0]/t", "/v1/remote/task/*slot", "slot=default/j.g[0]/t"),
            ("/v1/acl/token/self", "/v1/acl/token/self", ""),
            ("/v1/acl/token/x", "/v1/acl/token/:accessor", "accessor=x"),
            ("/v1/acl/nothing/such", "/v1/acl/*rest", "rest=nothing/such"),
            ("/ui/", "/ui/", ""),
            ("/ui/jobs/x", "/ui/*rest", "rest=jobs/x"),
        ] {
            let (route, found) = find(path).unwrap_or_else(|| panic!("{path}"));
            let found: Vec<String> = found.iter().map(|(k, v)| format!("{k}={v}")).collect();
            assert_eq!((route.pattern, found.join(" ").as_str()), (pattern, params), "{path}");
        }
        for path in [
            "/",
            "",
            "/v1",
            "/v1/",
            "/v1/jobs/",
            "/v1/job/",
            "/v1/node/",
            "/v1/nonsense",
            "/v2/jobs",
            "/v1/allocation/a/b/c",
            "jobs",
        ] {
            assert!(find(path).is_none(), "{path}");
        }
    }

    #[test]
    fn methods() {
        let (gc, _) = find("/v1/system/gc").expect("route");
        assert!(
            gc.answering(Verb::Put).is_some()
                && gc.answering(Verb::Post).is_none()
                && gc.answering(Verb::Get).is_none()
        );
        let (jobs, _) = find("/v1/jobs").expect("route");
        assert!(jobs.answering(Verb::Post).is_some() && jobs.answering(Verb::Delete).is_none());
        assert!(Verb::of(&Method::PATCH).is_none());
    }

    #[test]
    fn no_pattern_is_hidden_by_an_earlier_one() {
        for (i, route) in ROUTES.iter().enumerate() {
            let sample: String = route.pattern.replace(['*', ':'], "~");
            let (first, _) = find(&sample).expect("each pattern fits itself");
            assert_eq!(first.pattern, route.pattern, "line {i}");
        }
    }
}
