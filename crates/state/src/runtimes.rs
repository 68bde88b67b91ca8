//! Remote runtimes as the nodes declare them: a few values that thousands of nodes have in common, counted, so that asking what a driver reaches
//! is no walk over the nodes.

use std::sync::Arc;

use model::node::{Node, NodeStatus, RemoteProvider};

/// A runtime that nodes declare for a driver.
#[derive(Clone, Copy, Debug)]
pub struct Runtime<'a> {
    /// As it was declared; nodes that declare one and the same runtime differently make several of these.
    pub provider: &'a RemoteProvider,
    /// A ready node on which the driver is healthy is among those that declare it.
    pub usable: bool,
}

/// How many nodes declare a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Declared {
    nodes: u32,
    /// Those of them that are ready, with a healthy driver.
    usable: u32,
}

/// By driver and declaration. Drivers without a remote runtime are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runtimes(imbl::OrdMap<(Arc<str>, RemoteProvider), Declared>);

/// What a node declares, each with whether it is usable there.
fn declared(node: &Node) -> impl Iterator<Item = ((Arc<str>, RemoteProvider), bool)> {
    let ready = node.status == NodeStatus::Ready;
    node.drivers.iter().filter_map(move |(name, d)| Some(((name.as_str().into(), d.remote.clone()?), ready && d.healthy)))
}

impl Runtimes {
    pub(crate) fn join(&mut self, node: &Node) {
        for (key, usable) in declared(node) {
            let count = self.0.entry(key).or_default();
            count.nodes += 1;
            count.usable += u32::from(usable);
        }
    }

    /// Takes back what the same node, as it was, has joined with.
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
        let declared = self.0.range((Arc::from(driver), RemoteProvider::default())..).take_while(move |((name, _), _)| **name == *driver);
        declared.map(|((_, provider), count)| Runtime { provider, usable: count.usable > 0 })
    }
}
