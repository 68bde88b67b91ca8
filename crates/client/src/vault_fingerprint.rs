//! What a node knows of Vault, under the attribute names that jobs constrain on.

use std::{sync::Arc, time::Duration};

use host::fingerprint::computed_class;
use model::Node;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use vault::{Error, Health, Vault};

/// How often Vault is asked how it does: while it does not answer, and while it does.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Keeps the attributes of Vault until the node stops.
pub(crate) async fn run(vault: Vault, node: watch::Sender<Arc<Node>>, stop: CancellationToken) {
    let mut told = String::new();
    loop {
        let Some(health) = stop.run_until_cancelled(vault.health()).await else { return };
        let why = trouble(&health);
        if why != told {
            match why.as_str() {
                "" => tracing::info!("Vault answers"),
                why => tracing::warn!(why, "tasks with a vault block wait"),
            }
            told.clone_from(&why);
        }
        node.send_if_modified(|node| {
            let new = seen(node, &health);
            let changed = new.is_some();
            if let Some(new) = new {
                *node = Arc::new(new);
            }
            changed
        });
        let pause = if why.is_empty() { PAUSES.1 } else { PAUSES.0 };
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Why Vault is of no use now; empty = it is.
fn trouble(health: &Result<Health, Error>) -> String {
    match health {
        Err(error) => error.to_string(),
        Ok(health) if !health.initialized => "Vault is not initialized".to_owned(),
        Ok(health) if health.sealed => "Vault is sealed".to_owned(),
        Ok(_) => String::new(),
    }
}

/// The node after an answer; `None` = nothing new. A node keeps the version that it has seen: its tasks may wait there
/// for a Vault that is away for a while, and a change of the node would move none of them to a better place.
fn seen(node: &Node, health: &Result<Health, Error>) -> Option<Node> {
    let mut attributes = node.attributes.clone();
    match health {
        Ok(health) if trouble(&Ok(health.clone())).is_empty() => {
            for (name, value) in [
                ("vault.accessible", "true"),
                ("vault.version", health.version.trim_start_matches('v')),
                ("vault.cluster_id", &health.cluster_id),
                ("vault.cluster_name", &health.cluster_name),
            ] {
                attributes.insert(name.into(), value.into());
            }
        }
        _ => drop(attributes.remove("vault.accessible")),
    }
    if attributes == node.attributes {
        return None;
    }
    let mut new = Node { attributes, ..node.clone() };
    new.computed_class = computed_class(&new);
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_was_seen_stays_and_accessible_goes() {
        let health = Health {
            initialized: true,
            version: "v2.7.2".into(),
            cluster_name: "c".into(),
            cluster_id: "id".into(),
            ..Health::default()
        };
        let away = Err(Error::Unreachable { address: "a".into(), why: "away".into() });
        let node = Node::default();
        assert!(seen(&node, &away).is_none() && seen(&node, &Ok(Health::default())).is_none());
        let known = seen(&node, &Ok(health.clone())).expect("news");
        let of = |node: &Node, name: &str| node.attributes.get(name).map(|value| value.to_string());
        assert_eq!(of(&known, "vault.version").as_deref(), Some("2.7.2"));
        assert_eq!(of(&known, "vault.accessible").as_deref(), Some("true"));
        assert_ne!(known.computed_class, node.computed_class);
        assert!(seen(&known, &Ok(health.clone())).is_none(), "nothing new");
        let sealed = seen(&known, &Ok(Health { sealed: true, ..health })).expect("news");
        assert_eq!((of(&sealed, "vault.accessible"), of(&sealed, "vault.version").is_some()), (None, true));
    }
}
