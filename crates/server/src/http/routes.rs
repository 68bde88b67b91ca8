//! Every endpoint, one line each. The first pattern that fits decides; `:name` is one part of the path, `*name` one or more.

use futures::future::BoxFuture;
use http::Method;

use super::{
    agent, allocs, deployments, evals, event_stream, exec, job_writes, jobs, keyring, metrics, nodes, operator, proxy, refused, remote,
    reply::{HttpError, Reply},
    request::Ctx,
    scaling, search, services, ui,
};

/// Methods; PUT and POST are the same where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Put,
    Post,
    Delete,
}

impl Verb {
    pub(super) fn of(method: &Method) -> Option<Self> {
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
pub(super) enum Verbs {
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
    pub(super) fn shown(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put | Self::OnlyPut => "PUT",
            Self::Delete => "DELETE",
            Self::Any => "any",
        }
    }
}

pub(super) type Handler = fn(Ctx) -> BoxFuture<'static, Result<Reply, HttpError>>;

/// An endpoint.
pub(super) struct Route {
    pub(super) pattern: &'static str,
    pub(super) verbs: &'static [(Verbs, Handler)],
}

impl Route {
    pub(super) fn handler(&self, verb: Verb) -> Option<Handler> {
        self.verbs.iter().find(|(verbs, _)| verbs.contain(verb)).map(|(_, handler)| *handler)
    }
}

macro_rules! routes {
    ($($pattern:literal: $($verbs:ident $handler:path),+;)*) => {
        pub(super) const ROUTES: &[Route] = &[$(
            Route { pattern: $pattern, verbs: &[$((Verbs::$verbs, |ctx| Box::pin($handler(ctx)))),+] },
        )*];
    };
}

routes! {
    // Jobs.
    "/v1/jobs": Get jobs::list, Put job_writes::register;
    "/v1/jobs/parse": Put job_writes::parse;
    "/v1/jobs/statuses": Get refused::job_statuses, Put refused::job_statuses;
    "/v1/validate/job": Put job_writes::validate;
    "/v1/job/*id/plan": Put job_writes::plan;
    "/v1/job/*id/evaluate": Put job_writes::evaluate;
    "/v1/job/*id/allocations": Get jobs::allocations;
    "/v1/job/*id/evaluations": Get jobs::evaluations;
    "/v1/job/*id/deployments": Get jobs::deployments;
    "/v1/job/*id/deployment": Get jobs::latest_deployment;
    "/v1/job/*id/summary": Get jobs::summary;
    "/v1/job/*id/versions/:name/tag": Put refused::version_tags, Delete refused::version_tags;
    "/v1/job/*id/versions": Get jobs::versions;
    "/v1/job/*id/submission": Get jobs::submission;
    "/v1/job/*id/revert": Put job_writes::revert;
    "/v1/job/*id/stable": Put job_writes::stable;
    "/v1/job/*id/scale": Get jobs::scale_status, Put job_writes::scale;
    "/v1/job/*id/dispatch/payload": Put job_writes::dispatch_payload;
    "/v1/job/*id/dispatch": Put job_writes::dispatch;
    "/v1/job/*id/periodic/force": Put refused::periodic_force;
    "/v1/job/*id/services": Get services::of_job;
    "/v1/job/*id/actions": Get jobs::actions;
    "/v1/job/*id/action": Get refused::action;
    "/v1/job/*id": Get jobs::get, Put job_writes::register_named, Delete job_writes::deregister;

    // Allocations, evaluations, deployments.
    "/v1/allocations": Get allocs::list;
    "/v1/allocation/:id/stop": Put allocs::stop;
    "/v1/allocation/:alloc/checks": Get proxy::checks_of_alloc;
    "/v1/allocation/:id/services": Get services::of_alloc;
    "/v1/allocation/:id": Get allocs::get;
    "/v1/evaluations": Get evals::list, Delete refused::eval_delete;
    "/v1/evaluations/count": Get evals::count;
    "/v1/evaluation/:id/allocations": Get evals::allocations;
    "/v1/evaluation/:id": Get evals::get;
    "/v1/deployments": Get deployments::list;
    "/v1/deployment/allocations/:id": Get deployments::allocations;
    "/v1/deployment/fail/:id": Put deployments::fail;
    "/v1/deployment/pause/:id": Put deployments::pause;
    "/v1/deployment/promote/:id": Put deployments::promote;
    "/v1/deployment/allocation-health/:id": Put deployments::set_health;
    "/v1/deployment/unblock/:id": Put refused::deployment_unblock;
    "/v1/deployment/:id": Get deployments::get;

    // Nodes and pools.
    "/v1/nodes": Get nodes::list;
    "/v1/node/pools": Get nodes::pools, Put refused::node_pools;
    "/v1/node/pool/*name/nodes": Get nodes::pool_nodes;
    "/v1/node/pool/*name/jobs": Get nodes::pool_jobs;
    "/v1/node/pool/*name": Get nodes::pool, Put refused::node_pools, Delete refused::node_pools;
    "/v1/node/:id/allocations": Get nodes::allocations;
    "/v1/node/:id/drain": Put nodes::drain;
    "/v1/node/:id/eligibility": Put nodes::eligibility;
    "/v1/node/:id/evaluate": Put nodes::evaluate;
    "/v1/node/:id/purge": Put nodes::purge;
    "/v1/node/:id": Get nodes::get;

    // Remote tasks: ours, not in the API that we follow.
    "/v1/remote/tasks": Get remote::list;
    "/v1/remote/unbound": Get remote::unbound;
    "/v1/remote/unbound/:key": Delete remote::forget_unbound;
    "/v1/remote/unbound/:key/adopt": Put remote::adopt;
    "/v1/remote/unbound/:key/stop": Put remote::stop_unbound;
    "/v1/remote/task/*slot": Get remote::get, Delete remote::forget;
    "/v1/remote/restart/*slot": Put remote::restart;
    "/v1/remote/gone/*slot": Put remote::gone;

    // Client endpoints: answered here when the node is this agent's, else by the node.
    "/v1/client/fs/:operation/:alloc": Get proxy::by_alloc;
    "/v1/client/allocation/:alloc/stats": Get proxy::by_alloc;
    "/v1/client/allocation/:alloc/signal": Put proxy::by_alloc;
    "/v1/client/allocation/:alloc/restart": Put proxy::restart;
    "/v1/client/allocation/:alloc/gc": Get proxy::by_alloc;
    "/v1/client/allocation/:alloc/checks": Get proxy::by_alloc;
    "/v1/client/allocation/:alloc/exec": Get exec::exec;
    "/v1/client/allocation/:alloc/snapshot": Get proxy::by_alloc;
    "/v1/client/allocation/:alloc/pause": Get refused::alloc_pause, Put refused::alloc_pause;
    "/v1/client/stats": Get proxy::by_node;
    "/v1/client/audit": Get proxy::by_node, Put proxy::by_node;
    "/v1/client/drivers/reload": Put proxy::by_node;
    "/v1/client/gc": Get proxy::by_node, Put proxy::by_node;
    "/v1/client/metadata": Get proxy::by_node, Put proxy::metadata;

    // The agent.
    "/.well-known/jwks.json": Get keyring::jwks;
    "/.well-known/openid-configuration": Get refused::oidc_discovery;
    "/v1/agent/self": Get agent::agent_self;
    "/v1/agent/members": Get agent::members;
    "/v1/agent/servers": Get agent::servers, Put refused::set_servers;
    "/v1/agent/join": Put agent::join;
    "/v1/agent/force-leave": Put agent::force_leave;
    "/v1/agent/health": Get agent::health;
    "/v1/agent/reload": Put refused::agent_reload;
    "/v1/agent/monitor": Get refused::monitor;
    "/v1/agent/host": Get refused::debug;
    "/v1/agent/pprof/:profile": Get refused::debug;
    "/v1/agent/schedulers": Get agent::schedulers;
    "/v1/agent/schedulers/config": Get refused::schedulers_config, Put refused::schedulers_config;
    "/v1/agent/keyring/:operation": Get refused::gossip_keyring, Put refused::gossip_keyring;
    "/v1/metrics": Get metrics::metrics;
    "/v1/regions": Get agent::regions;
    "/v1/status/leader": Get agent::leader;
    "/v1/status/peers": Get agent::peers;

    // System and operator.
    "/v1/system/gc": OnlyPut operator::gc;
    "/v1/system/reconcile/summaries": OnlyPut operator::reconcile_summaries;
    "/v1/operator/scheduler/configuration": Get operator::scheduler_config, Put operator::set_scheduler_config;
    "/v1/operator/raft/configuration": Get operator::raft_configuration;
    "/v1/operator/raft/peer": Delete operator::raft_remove_peer;
    "/v1/operator/raft/transfer-leadership": Put refused::transfer_leadership;
    "/v1/operator/autopilot/configuration": Get refused::autopilot, Put refused::autopilot;
    "/v1/operator/autopilot/health": Get refused::autopilot;
    "/v1/operator/snapshot": Get refused::snapshot, Put refused::snapshot;
    "/v1/operator/keyring/keys": Get keyring::list;
    "/v1/operator/keyring/rotate": Put keyring::rotate;
    "/v1/operator/keyring/key/:id": Delete keyring::delete;
    "/v1/operator/upgrade-check/*kind": Get refused::upgrade_check;
    "/v1/operator/license": Get refused::license, Put refused::enterprise;

    // Scaling policies.
    "/v1/scaling/policies": Get scaling::list;
    "/v1/scaling/policy/:id": Get scaling::get;

    // Services.
    "/v1/services": Get services::list;
    "/v1/service/:name": Get services::get;
    "/v1/service/:name/:id": Delete services::delete;

    // Namespaces, search, events.
    "/v1/namespaces": Get operator::namespaces;
    "/v1/namespace": Put refused::namespace_writes;
    "/v1/namespace/:name": Get operator::namespace, Put refused::namespace_writes, Delete refused::namespace_writes;
    "/v1/search": Put search::prefix;
    "/v1/search/fuzzy": Put search::fuzzy;
    "/v1/event/stream": Get event_stream::stream;

    // What this release does not have, by name.
    "/v1/vars": Get refused::variables;
    "/v1/var/*path": Any refused::variables;
    "/v1/volumes": Get refused::empty_list, Put refused::volumes;
    "/v1/volumes/*rest": Any refused::volumes;
    "/v1/volume/*rest": Any refused::volumes;
    "/v1/plugins": Get refused::empty_list;
    "/v1/plugin/*rest": Any refused::volumes;
    "/v1/acl/*rest": Any refused::acl;
    "/v1/quotas": Any refused::enterprise;
    "/v1/quota-usages": Any refused::enterprise;
    "/v1/quota": Any refused::enterprise;
    "/v1/quota/*rest": Any refused::enterprise;
    "/v1/sentinel/*rest": Any refused::enterprise;
    "/v1/recommendations": Any refused::enterprise;
    "/v1/recommendations/*rest": Any refused::enterprise;
    "/v1/recommendation": Any refused::enterprise;
    "/v1/recommendation/*rest": Any refused::enterprise;

    // The web UI.
    "/ui": Get ui::redirect;
    "/ui/": Get ui::page;
    "/ui/*rest": Get ui::page;
}

/// The endpoint of a decoded path, with the parts that its pattern names.
pub(super) fn find(path: &str) -> Option<(&'static Route, Vec<(&'static str, String)>)> {
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
            params.push((name, middle.to_owned()));
            return Some(params);
        }
        let (have, path_rest) = path.split_once('/').map_or((path, None), |(a, b)| (a, Some(b)));
        match want.strip_prefix(':') {
            Some(name) if !have.is_empty() => params.push((name, have.to_owned())),
            Some(_) => return None,
            None if want == have => {}
            None => return None,
        }
        match (pattern_rest, path_rest) {
            (None, None) => return Some(params),
            (Some(p), Some(h)) => (pattern, path) = (p, h),
            _ => return None,
        }
    }
}

/// Takes the parts of `suffix` off the end of the path; what remains.
fn fit_back<'p>(suffix: &'static str, path: &'p str, params: &mut Vec<(&'static str, String)>) -> Option<&'p str> {
    let mut rest = path;
    for want in suffix.rsplit('/') {
        let (front, have) = rest.rsplit_once('/')?;
        match want.strip_prefix(':') {
            Some(name) if !have.is_empty() => params.push((name, have.to_owned())),
            Some(_) => return None,
            None if want == have => {}
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
            ("/v1/job/with space%", "/v1/job/*id", "id=with space%"),
            ("/v1/deployment/fail/d", "/v1/deployment/fail/:id", "id=d"),
            ("/v1/deployment/d", "/v1/deployment/:id", "id=d"),
            ("/v1/node/pool/a/b/nodes", "/v1/node/pool/*name/nodes", "name=a/b"),
            ("/v1/node/n/drain", "/v1/node/:id/drain", "id=n"),
            ("/v1/remote/task/default/j.g[0]/t", "/v1/remote/task/*slot", "slot=default/j.g[0]/t"),
            ("/v1/acl/token/self", "/v1/acl/*rest", "rest=token/self"),
            ("/ui/", "/ui/", ""),
            ("/ui/jobs/x", "/ui/*rest", "rest=jobs/x"),
        ] {
            let (route, found) = find(path).unwrap_or_else(|| panic!("{path}"));
            let found: Vec<String> = found.iter().map(|(k, v)| format!("{k}={v}")).collect();
            assert_eq!((route.pattern, found.join(" ").as_str()), (pattern, params), "{path}");
        }
        for path in
            ["/", "", "/v1", "/v1/", "/v1/jobs/", "/v1/job/", "/v1/node/", "/v1/nonsense", "/v2/jobs", "/v1/allocation/a/b/c", "jobs"]
        {
            assert!(find(path).is_none(), "{path}");
        }
    }

    #[test]
    fn methods() {
        let (gc, _) = find("/v1/system/gc").expect("route");
        assert!(gc.handler(Verb::Put).is_some() && gc.handler(Verb::Post).is_none() && gc.handler(Verb::Get).is_none());
        let (jobs, _) = find("/v1/jobs").expect("route");
        assert!(jobs.handler(Verb::Post).is_some() && jobs.handler(Verb::Delete).is_none());
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
