//! Remote providers as nodes declare them. Thousands of nodes share a few values, and counting them saves an iteration
//! over all nodes.

use std::sync::Arc;

use model::node::{Node, NodeStatus, RemoteProvider};

/// A provider that nodes declare for a driver.
#[derive(Clone, Copy, Debug)]
pub struct Runtime<'a> {
    /// The declaration; different declarations of one provider make several of these.
    pub provider: &'a RemoteProvider,
    /// Whether a ready node with a healthy driver declares it.
    pub usable: bool,
}

/// Number of nodes with a declaration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Declared {
    nodes: u32,
    /// Those that are ready and have a healthy driver.
    usable: u32,
}

/// By driver and declaration, without drivers of local tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runtimes(imbl::OrdMap<(Arc<str>, RemoteProvider), Declared>);

/// The declarations of a node, each with whether it is usable there.
fn declared(node: &Node) -> impl Iterator<Item = ((Arc<str>, RemoteProvider), bool)> {
    let ready = node.status == NodeStatus::Ready;
    node.drivers
        .iter()
        .filter_map(move |(name, d)| Some(((name.as_str().into(), d.remote.clone()?), ready && d.healthy)))
}

impl Runtimes {
    pub(crate) fn join(&mut self, node: &Node) {
        for (key, usable) in declared(node) {
            let count = self.0.entry(key).or_default();
            count.nodes += 1;
            count.usable += u32::from(usable);
        }
    }

    /// Removes a node's earlier declarations.
    pub(crate) fn leave(&mut self, node: &Node) {
        for (key, usable) in declared(node) {
            let Some(count) = self.0.get_mut(&key) else { continue };
            count.nodes -= 1;
            count.usable -= u32::from(usable);
            if count.nodes == 0 {
                self.0.remove(&key);
            }
        }
    }

    pub(crate) fn of<'a>(&'a self, driver: &'a str) -> impl Iterator<Item = Runtime<'a>> {
        // The default is the least of all declarations.
        let declared = self
            .0
            .range((Arc::from(driver), RemoteProvider::default())..)
            .take_while(move |((name, _), _)| **name == *driver);
        declared.map(|((_, provider), count)| Runtime { provider, usable: count.usable > 0 })
    }
}
