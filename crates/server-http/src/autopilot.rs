//! How the servers and the members of their store are, and a leader that makes room for another one. Names and shapes
//! are those of Nomad's autopilot and Raft; which server leads is decided by etcd.

use std::{collections::BTreeMap, time::Duration};

use api::shapes::{LeadershipTransfer, OperatorHealth, ServerAddress, ServerHealth, StoreHealth};
use http::StatusCode;
use model::GoDuration;

use crate::{
    members::all_servers,
    options::{ServerMember, StoreStanding},
    reply::{HttpError, Reply},
    request::Ctx,
};

/// A server from which nothing was seen for so long is not well: it shows twice in this time that it lives, and etcd
/// takes it off the list after as long again.
const OLD: Duration = Duration::from_secs(5);
/// Go's zero time: not known.
const UNKNOWN: &str = "0001-01-01T00:00:00Z";

/// `GET /v1/operator/autopilot/health`.
pub(crate) async fn health(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = &ctx.app.options;
    // Before their signs are read: a server that comes meanwhile is on the next list, instead of here without a sign.
    let servers = all_servers(&ctx);
    let standing = match &options.store {
        Some(ask) => Some(ask().await),
        None => None,
    };
    let kept = ctx.server().config().data_dir.is_some();
    let config = ctx.server().config();
    let seen = Seen {
        kind: if standing.is_some() {
            "etcd"
        } else if kept {
            "sqlite"
        } else {
            "memory"
        },
        standing: standing.unwrap_or_else(|| Ok(StoreStanding::default())),
        region: &config.region,
        index: ctx.server().snapshot().latest_index(),
        since: control::rfc3339(ctx.server().stats().started_at),
    };
    let health = health_of(servers, seen);
    let status = if health.healthy { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    Ok(ctx.plain(&health)?.with_status(status))
}

/// What is known besides the list of servers.
struct Seen<'a> {
    kind: &'static str,
    standing: Result<StoreStanding, String>,
    region: &'a str,
    index: u64,
    /// Since when that server runs.
    since: String,
}

/// The first of the servers answers, and leads.
fn health_of(servers: Vec<ServerMember>, seen: Seen<'_>) -> OperatorHealth {
    let Seen { kind, standing, region, index, since } = seen;
    let (standing, error) = match standing {
        Ok(standing) => (standing, String::new()),
        Err(why) => (StoreStanding::default(), why),
    };
    let StoreStanding { members, format, servers: signs } = standing;
    let store = StoreHealth {
        kind: kind.to_owned(),
        healthy: error.is_empty() && members.iter().all(|member| member.healthy),
        error,
        format,
        members,
    };
    let servers: Vec<ServerHealth> = servers
        .into_iter()
        .map(|of| {
            let ago = if of.leader { Some(Duration::ZERO) } else { sign(&signs, &of.id) };
            let healthy = ago.is_some_and(|ago| ago <= OLD);
            ServerHealth {
                name: format!("{}.{region}", of.name),
                address: of.rpc,
                serf_status: if healthy { "alive" } else { "failed" }.to_owned(),
                version: of.version,
                leader: of.leader,
                last_contact: ago.map(|ago| GoDuration::from(ago).to_string()).unwrap_or_default(),
                last_term: 0,
                last_index: index,
                healthy,
                voter: true,
                stable_since: if of.leader { since.clone() } else { UNKNOWN.to_owned() },
                id: of.id,
            }
        })
        .collect();
    let leader = servers.iter().find(|of| of.leader).map(|of| of.id.clone()).unwrap_or_default();
    OperatorHealth {
        healthy: store.healthy && servers.iter().all(|of| of.healthy),
        failure_tolerance: tolerance(&servers, &store),
        voters: servers.iter().map(|of| of.id.clone()).collect(),
        leader,
        servers,
        store,
    }
}

fn sign(signs: &BTreeMap<String, Option<Duration>>, id: &str) -> Option<Duration> {
    signs.get(id).copied().flatten()
}

/// How many may be lost: servers until one is left, members of etcd while most of them are left.
fn tolerance(servers: &[ServerHealth], store: &StoreHealth) -> i64 {
    let spare = servers.iter().filter(|of| of.healthy).count().saturating_sub(1);
    let voters = store.members.iter().filter(|member| member.voter);
    let (all, well) = voters.fold((0, 0), |(all, well), member| (all + 1, well + usize::from(member.healthy)));
    let most: usize = all / 2 + 1;
    let of_store = if all == 0 { usize::MAX } else { well.saturating_sub(most) };
    i64::try_from(spare.min(of_store)).unwrap_or_default()
}

/// `PUT /v1/operator/raft/transfer-leadership`: the leader makes room. Which server takes its place is not its choice.
pub(crate) async fn transfer_leadership(ctx: Ctx) -> Result<Reply, HttpError> {
    let (id, address) = (ctx.query.text("id"), ctx.query.text("address"));
    if !id.is_empty() && !address.is_empty() {
        return Err(HttpError::bad_request("must specify either id or address"));
    }
    let Some(step_down) = &ctx.app.options.step_down else {
        return Err(HttpError::unsupported("transferring leadership", "this server has its own store and is alone"));
    };
    let mut servers = all_servers(&ctx).into_iter();
    let short = |of: ServerMember| ServerAddress { id: of.id, address: of.rpc };
    let from = servers.next().map(short).unwrap_or_default();
    let others: Vec<ServerAddress> = servers.map(short).collect();
    let named = |of: &ServerAddress| (!id.is_empty() && of.id == id) || (!address.is_empty() && of.address == address);
    if named(&from) {
        return ctx.plain(&LeadershipTransfer { to: from.clone(), from, noop: true, err: None });
    }
    let wanted = others.iter().find(|of| named(of));
    if wanted.is_none() && !(id.is_empty() && address.is_empty()) {
        let (what, value) = if id.is_empty() { ("address", address) } else { ("id", id) };
        return Err(HttpError::internal(format_args!("{what} {value:?} was not found in the Raft configuration")));
    }
    let to = match &*others {
        [] => return Err(HttpError::internal("no other server waits to lead")),
        [only] => only.clone(),
        _ if wanted.is_some() => {
            return Err(HttpError::unsupported(
                "choosing the next leader",
                "the server that is first in etcd leads next; leave the peer out to have the leader make room",
            ));
        }
        _ => ServerAddress::default(),
    };
    step_down();
    ctx.plain(&LeadershipTransfer { from, to, noop: false, err: None })
}

#[cfg(test)]
mod tests {
    use api::shapes::StoreMember;

    use super::*;

    #[test]
    fn a_cluster_is_well_when_its_servers_and_the_members_of_its_store_are() {
        let server = |id: &str| ServerMember {
            id: id.to_owned(),
            name: id.to_owned(),
            rpc: format!("{id}:4647"),
            version: format!("1.{id}"),
            leader: id == "a",
        };
        let member = |healthy: bool| StoreMember { healthy, voter: true, ..StoreMember::default() };
        let ask = |standing: Result<(&[Option<u64>], &[bool]), String>| {
            let standing = standing.map(|(signs, members)| StoreStanding {
                members: members.iter().map(|well| member(*well)).collect(),
                format: 4,
                servers: ["b", "c"]
                    .map(str::to_owned)
                    .into_iter()
                    .zip(signs.iter().map(|s| s.map(Duration::from_secs)))
                    .collect(),
            });
            let seen = Seen { kind: "etcd", standing, region: "global", index: 7, since: "then".to_owned() };
            health_of(["a", "b", "c"].map(server).into(), seen)
        };
        let (fresh, well) = ([Some(1), Some(3)], [true; 3]);
        for (signs, members, healthy, tolerance) in [
            (fresh, &well[..], true, 1),
            (fresh, &[true; 5], true, 2),
            (fresh, &[true, true, false], false, 0),
            ([Some(1), Some(6)], &well, false, 1),
            ([Some(6), Some(6)], &well, false, 0),
            ([Some(1), None], &well, false, 1),
            (fresh, &[true], true, 0),
        ] {
            let health = ask(Ok((&signs, members)));
            assert_eq!((health.healthy, health.failure_tolerance), (healthy, tolerance), "{signs:?} {members:?}");
            assert_eq!((health.leader.as_str(), health.voters.len()), ("a", 3));
        }
        let health = ask(Ok((&[Some(1), Some(6)], &well)));
        assert_eq!(health.servers.iter().map(|of| &*of.version).collect::<Vec<_>>(), ["1.a", "1.b", "1.c"]);
        assert_eq!(health.store.format, 4);
        let told = |of: &ServerHealth| (of.last_contact.clone(), of.serf_status.clone(), of.healthy);
        assert_eq!(told(&health.servers[0]), ("0s".to_owned(), "alive".to_owned(), true));
        assert_eq!(told(&health.servers[2]), ("6s".to_owned(), "failed".to_owned(), false));
        let health = ask(Err("nobody answers".to_owned()));
        assert!(!health.healthy && !health.store.healthy && health.store.error == "nobody answers");
    }
}
