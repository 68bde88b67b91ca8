//! A token of a workload identity, as the node holds it.

use api::node_rpc::SignedIdentity;
use lifecycle::identities::renew_at;
use serde::{Deserialize, Serialize};

/// A token of a task; times by this node's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) issued_ns: i64,
    /// Expiry in Unix nanoseconds; 0 = never.
    pub(crate) expires_ns: i64,
}

impl Token {
    /// A token that was signed just now, with its lifetime by this node's clock. The server's clock may differ. By it,
    /// a token half a lifetime old would cause requests without a pause.
    pub(crate) fn new(signed: SignedIdentity, now: i64) -> Self {
        let life = signed.expires_ns.checked_sub(signed.issued_ns).filter(|_| signed.expires_ns > 0);
        let expires_ns = life.map_or(0, |life| now.saturating_add(life.max(0)));
        Self { text: signed.token, issued_ns: now, expires_ns }
    }

    /// When its renewal is due, in Unix nanoseconds; `None` = never.
    pub(crate) fn renew_at(&self, spread: u64) -> Option<i64> {
        renew_at(self.issued_ns, self.expires_ns, spread)
    }

    pub(crate) fn valid(&self, now: i64) -> bool {
        self.expires_ns == 0 || now < self.expires_ns
    }
}
