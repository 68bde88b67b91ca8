//! etcd's own members, for the people who look after them.

use std::time::Duration;

use etcd::ops;

use super::{layout::Member, shared::Shared};
use crate::contract::StoreError;

/// A member of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// etcd's id of it, in hexadecimal digits as etcd's own tools show it.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its address for clients.
    pub endpoint: String,
    /// It leads the others.
    pub leader: bool,
    /// It has no vote yet.
    pub learner: bool,
    /// Its release.
    pub version: String,
    /// Bytes of its database.
    pub db_size: u64,
    /// Bytes of them that are in use; the rest is free for new records.
    pub db_in_use: u64,
    /// Why it is not healthy: it does not answer, or it says so itself.
    pub error: Option<String>,
}

/// A registered server, and what was seen of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sign {
    /// The server.
    pub member: Member,
    /// How long ago it has shown that it lives, rounded up to the second; None = that could not be found out.
    pub ago: Option<Duration>,
}

/// How those are that the store depends on, and those that depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// etcd's members.
    pub peers: Vec<Peer>,
    /// The servers.
    pub servers: Vec<Sign>,
}

/// Asks for both.
pub(super) async fn standing(shared: &Shared) -> Result<Standing, StoreError> {
    Ok(Standing { peers: peers(shared).await?, servers: servers(shared).await? })
}

/// The servers that are registered, each with the last sign of its life: it keeps a lease.
async fn servers(shared: &Shared) -> Result<Vec<Sign>, StoreError> {
    let all = ops::prefix(&shared.keys.at("member/"));
    let found = shared.client.range(all).await.map_err(|error| shared.failure("asking for the servers", &error))?;
    let mut servers = Vec::new();
    for kv in found.kvs {
        let Ok(member) = serde_json::from_slice(&kv.value) else { continue };
        match shared.client.kept_ago(kv.lease).await {
            // It has gone in between.
            Ok(None) => {}
            Ok(ago) => servers.push(Sign { member, ago }),
            Err(error) => {
                tracing::debug!(error = %error, "the last sign of life of a server could not be found out");
                servers.push(Sign { member, ago: None });
            }
        }
    }
    Ok(servers)
}

/// Asks each member.
async fn peers(shared: &Shared) -> Result<Vec<Peer>, StoreError> {
    let members = shared.client.members_status().await;
    let members = members.map_err(|error| shared.failure("asking for etcd's members", &error))?;
    let peers = members.into_iter().map(|found| {
        let member = found.member;
        let mut peer = Peer {
            id: format!("{:x}", member.id),
            name: member.name,
            endpoint: member.client_urls.first().cloned().unwrap_or_default(),
            leader: false,
            learner: member.is_learner,
            version: String::new(),
            db_size: 0,
            db_in_use: 0,
            error: None,
        };
        match found.status {
            Ok(status) => {
                peer.leader = status.leader == member.id;
                peer.version = status.version;
                peer.db_size = status.db_size.unsigned_abs();
                peer.db_in_use = status.db_size_in_use.unsigned_abs();
                peer.error = if status.leader == 0 {
                    Some("it knows no leader".to_owned())
                } else {
                    Some(status.errors.join("; ")).filter(|errors| !errors.is_empty())
                };
            }
            Err(error) => peer.error = Some(error.to_string()),
        }
        peer
    });
    Ok(peers.collect())
}
