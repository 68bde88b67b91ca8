//! The servers of the cluster, as clients list them: this one, which leads, and those that share its store.

use std::collections::BTreeMap;

use api::shapes::Member;
use server::ServerHandle;

use crate::{options::ServerMember, request::Ctx};

/// Where nodes and other tools reach the server's RPC.
pub(crate) fn rpc_address(server: &ServerHandle) -> String {
    server.config().rpc_advertise.unwrap_or_else(|| server.rpc_addr()).to_string()
}

/// This server first, then the others by name.
pub(crate) fn all_servers(ctx: &Ctx) -> Vec<ServerMember> {
    let server = ctx.server();
    let rpc = rpc_address(server);
    let listed = ctx.app.options.servers.as_ref().map(|servers| servers()).unwrap_or_default();
    let (own, mut others): (Vec<_>, Vec<_>) = listed.into_iter().partition(|of| of.rpc == rpc);
    others.sort_by(|a, b| a.name.cmp(&b.name));
    let alone = || ServerMember {
        id: server.cluster_id().to_string(),
        name: server.config().name.clone(),
        rpc: rpc.clone(),
        version: ctx.app.options.version.clone(),
        leader: true,
    };
    // Whoever answers leads, also before its store lists it.
    let own = own.into_iter().next().map_or_else(alone, |own| ServerMember { leader: true, ..own });
    others.iter_mut().for_each(|other| other.leader = false);
    std::iter::once(own).chain(others).collect()
}

/// The server that answers.
pub(crate) fn member(ctx: &Ctx) -> Member {
    let server = ctx.server();
    let mut own = all_servers(ctx).into_iter();
    let mut member = own.next().map(|own| described(ctx, &own)).unwrap_or_default();
    let recovering = server.recovery_status().map(|status| ("recovering", status.waits_for()));
    let exposed = ctx.app.options.exposed.clone().map(|what| ("exposed", what));
    // A tag of its own: clients know few words for the status.
    member.tags.extend(recovering.into_iter().chain(exposed).map(|(k, v)| (k.to_owned(), v)));
    member
}

/// All of them, the one that answers first.
pub(crate) fn all_members(ctx: &Ctx) -> Vec<Member> {
    let others = all_servers(ctx).into_iter().skip(1).map(|other| described(ctx, &other));
    std::iter::once(member(ctx)).chain(others.collect::<Vec<_>>()).collect()
}

fn described(ctx: &Ctx, of: &ServerMember) -> Member {
    let config = ctx.server().config();
    let (host, port) = of.rpc.rsplit_once(':').unwrap_or((&of.rpc, ""));
    let host = host.trim_matches(['[', ']']);
    let alone = ctx.app.options.servers.is_none();
    let tags = [
        ("role", "nomad"),
        ("region", &config.region),
        ("dc", &config.datacenter),
        ("build", &of.version),
        ("id", &of.id),
        ("rpc_addr", host),
        ("port", port),
        ("vsn", "1"),
        ("raft_vsn", "3"),
    ];
    let mut tags: BTreeMap<String, String> = tags.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    if alone {
        tags.extend(["expect", "bootstrap"].map(|name| (name.to_owned(), "1".to_owned())));
    }
    Member {
        name: format!("{}.{}", of.name, config.region),
        addr: host.to_owned(),
        port: port.parse().unwrap_or_default(),
        tags,
        // One that has gone is no longer listed.
        status: "alive".to_owned(),
        protocol_min: 1,
        protocol_max: 1,
        protocol_cur: 1,
        delegate_min: 1,
        delegate_max: 1,
        delegate_cur: 1,
    }
}
