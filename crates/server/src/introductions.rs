//! Introductions of nodes: the rule that this server follows, and how often it was broken.

use std::sync::atomic::{AtomicU64, Ordering};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use control::{
    introduction::{Enforcement, Shown, Verdict},
    nodes,
};
use model::Node;
use state::State;
use uuid::Uuid;

/// What is asked of new nodes, and how often one did not have it.
#[derive(Debug, Default)]
pub(crate) struct Introductions {
    enforcement: Enforcement,
    violations: AtomicU64,
}

impl Introductions {
    pub(crate) fn new(enforcement: Enforcement) -> Self {
        Self { enforcement, violations: AtomicU64::new(0) }
    }

    /// Nodes that were refused, or taken with a warning, since the start.
    pub(crate) fn violations(&self) -> u64 {
        self.violations.load(Ordering::Relaxed)
    }

    /// Judges what a node shows before anything of it counts. The error is the reason of the refusal.
    pub(crate) fn admits(&self, state: &State, node: &Node, shown: &Shown) -> Result<(), String> {
        match nodes::admits(state, node, shown, self.enforcement) {
            Verdict::Admit | Verdict::Warn(_) => Ok(()),
            Verdict::Refuse(why) => {
                self.violations.fetch_add(1, Ordering::Relaxed);
                Err(why)
            }
        }
    }

    /// Judges by the state of the commit that registers the node: it may have been removed in between.
    pub(crate) fn registers(&self, state: &State, node: &Node, shown: &Shown) -> Result<(), String> {
        match nodes::admits(state, node, shown, self.enforcement) {
            Verdict::Admit => Ok(()),
            Verdict::Warn(why) => {
                self.violations.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(node = %node.id, name = &*node.name, pool = node.pool, "{why}");
                Ok(())
            }
            Verdict::Refuse(why) => Err(why),
        }
    }
}

/// The key that a token names.
pub(crate) fn key_of(token: &str) -> Option<Uuid> {
    let (header, _) = token.split_once('.')?;
    let header: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
    header["kid"].as_str()?.parse().ok()
}
