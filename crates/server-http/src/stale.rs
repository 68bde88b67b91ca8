//! Which reads a server that does not lead may answer from its copy of the state.
//!
//! A client asks for such an answer with `stale`. Everything else is the leader's to answer: default reads are never
//! older than the newest write that was acknowledged, and some endpoints read what only a leader has (sessions of
//! nodes, schemas that nodes have told, sweeps of providers, its loops).

use api::query::Query;
use http::{Method, Uri};

use crate::routes;

/// The endpoints whose GET needs nothing but the state.
const FROM_STATE: &[&str] = &[
    "/v1/jobs",
    "/v1/jobs/statuses",
    "/v1/job/*id/allocations",
    "/v1/job/*id/evaluations",
    "/v1/job/*id/deployments",
    "/v1/job/*id/deployment",
    "/v1/job/*id/summary",
    "/v1/job/*id/versions",
    "/v1/job/*id/submission",
    "/v1/job/*id/scale",
    "/v1/job/*id/services",
    "/v1/job/*id/actions",
    "/v1/job/*id",
    "/v1/allocations",
    "/v1/allocation/:id/services",
    "/v1/allocation/:id",
    "/v1/evaluations",
    "/v1/evaluations/count",
    "/v1/evaluation/:id/allocations",
    "/v1/evaluation/:id",
    "/v1/deployments",
    "/v1/deployment/allocations/:id",
    "/v1/deployment/:id",
    "/v1/nodes",
    "/v1/node/pools",
    "/v1/node/pool/*name/nodes",
    "/v1/node/pool/*name/jobs",
    "/v1/node/pool/*name",
    "/v1/node/:id/allocations",
    "/v1/node/:id",
    "/v1/remote/tasks",
    "/v1/remote/task/*slot",
    "/v1/operator/scheduler/configuration",
    "/v1/operator/snapshot",
    "/v1/operator/keyring/keys",
    "/v1/scaling/policies",
    "/v1/scaling/policy/:id",
    "/v1/services",
    "/v1/service/:name",
    "/v1/namespaces",
    "/v1/namespace/:name",
    "/v1/event/stream",
    "/v1/volumes",
    "/v1/volumes/claims",
    "/v1/volume/host/:id",
    "/v1/acl/auth-methods",
    "/v1/acl/auth-method/:name",
    "/v1/acl/binding-rules",
    "/v1/acl/binding-rule/:id",
    "/v1/acl/policies",
    "/v1/acl/policy/self",
    "/v1/acl/policy/:name",
    "/v1/acl/tokens",
    "/v1/acl/token/self",
    "/v1/acl/token/:accessor",
    "/v1/acl/roles",
    "/v1/acl/role/name/:name",
    "/v1/acl/role/:id",
];

/// Whether a server that does not lead may answer this request from its copy of the state.
#[must_use]
pub fn may_be_stale(method: &Method, uri: &Uri) -> bool {
    let stale = |query: &str| Query::parse(query).is_ok_and(|query| query.flag("stale").unwrap_or(false));
    // What cannot be read is refused by whoever leads.
    method == Method::GET
        && uri.query().is_some_and(stale)
        && routes::find(uri.path()).is_some_and(|(route, _)| FROM_STATE.contains(&route.pattern))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{ROUTES, Verb, endpoints};

    /// Reads of what only the leader has, or of one agent.
    const NOT_FROM_STATE: &[&str] = &[
        "/v1/allocation/:alloc/checks",
        "/v1/drivers/schemas",
        "/v1/remote/unbound",
        "/v1/client/fs/:operation/:alloc",
        "/v1/client/allocation/:alloc/stats",
        "/v1/client/allocation/:alloc/gc",
        "/v1/client/allocation/:alloc/checks",
        "/v1/client/allocation/:alloc/exec",
        "/v1/job/*id/action",
        "/v1/client/allocation/:alloc/snapshot",
        "/v1/node/:id/preview",
        "/v1/client/identity",
        "/v1/client/stats",
        "/v1/client/audit",
        "/v1/client/gc",
        "/v1/client/metadata",
        "/.well-known/jwks.json",
        "/.well-known/openid-configuration",
        "/v1/identity",
        "/v1/agent/self",
        "/v1/agent/members",
        "/v1/agent/servers",
        "/v1/agent/features",
        "/v1/agent/health",
        "/v1/operator/recovery",
        "/v1/agent/monitor",
        "/v1/agent/schedulers",
        "/v1/metrics",
        "/v1/metrics/trends",
        "/v1/metrics/history",
        "/v1/regions",
        "/v1/status/leader",
        "/v1/status/peers",
        "/v1/operator/raft/configuration",
        "/v1/operator/autopilot/health",
        "/v1/plugins",
        "/v1/vars",
        "/v1/var/*path",
        "/ui",
        "/ui/",
        "/ui/*rest",
    ];

    #[test]
    fn every_read_is_either_from_the_state_or_the_leaders() {
        let reads = endpoints()
            .filter(|endpoint| endpoint.verbs.iter().any(|answered| answered.method == "GET" && !answered.refused));
        let reads: Vec<&str> = reads.map(|endpoint| endpoint.pattern).collect();
        for pattern in &reads {
            let places = [FROM_STATE, NOT_FROM_STATE].map(|list| list.contains(pattern));
            assert!(places[0] != places[1], "{pattern} is in none or both of the lists");
        }
        for pattern in FROM_STATE.iter().chain(NOT_FROM_STATE) {
            assert!(reads.contains(pattern), "{pattern} is no endpoint that reads");
        }
        for route in ROUTES.iter().filter(|route| FROM_STATE.contains(&route.pattern)) {
            assert!(route.answering(Verb::Get).is_some(), "{}", route.pattern);
        }
    }

    #[test]
    fn a_read_is_stale_only_where_the_client_says_so() {
        for (method, uri, stale) in [
            ("GET", "/v1/jobs?stale", true),
            ("GET", "/v1/jobs?stale=", true),
            ("GET", "/v1/jobs?stale=true", true),
            ("GET", "/v1/jobs?stale=1&index=7&wait=5s", true),
            ("GET", "/v1/jobs?stale=false", false),
            ("GET", "/v1/jobs?stale=perhaps", false),
            ("GET", "/v1/jobs?stale&x=%zz", false),
            ("GET", "/v1/jobs", false),
            ("GET", "/v1/job/a/b/allocations?stale", true),
            ("GET", "/v1/job/x%2Fallocations?stale", true),
            ("GET", "/v1/event/stream?topic=Job&stale", true),
            ("GET", "/v1/allocation/5c3c2f5a-9a3e-4b0e-8e55-0a6a3c1f2d11/checks?stale", false),
            ("GET", "/v1/client/fs/logs/5c3c2f5a-9a3e-4b0e-8e55-0a6a3c1f2d11?stale", false),
            ("GET", "/v1/operator/snapshot?stale", true),
            ("GET", "/v1/status/leader?stale", false),
            ("GET", "/v1/nonsense?stale", false),
            ("HEAD", "/v1/jobs?stale", false),
            ("PUT", "/v1/jobs?stale", false),
            ("DELETE", "/v1/job/web?stale", false),
        ] {
            let (method, parsed) = (method.parse().expect("a method"), uri.parse().expect("a path"));
            assert_eq!(may_be_stale(&method, &parsed), stale, "{method} {uri}");
        }
    }
}
