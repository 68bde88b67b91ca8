//! New introduction tokens.

use std::time::Duration;

use control::Refused;
use node_gateway::{NodeClaims, Signing};
use state::{ALL_NODE_POOL, DEFAULT_NODE_POOL};

use crate::{
    clock::{new_id, time_of_day},
    error::ServerError,
    handle::ServerHandle,
};

impl ServerHandle {
    /// Makes an introduction token: it admits nodes with that name (empty = any) to that pool (empty = `default`), any
    /// number of them, for `ttl` (None = the default). A `ttl` above the configured maximum is cut to it.
    ///
    /// # Errors
    /// When no node can be in that pool, or the token cannot be signed.
    pub fn introduce(&self, name: &str, pool: &str, ttl: Option<Duration>) -> Result<String, ServerError> {
        let pool = if pool.is_empty() { DEFAULT_NODE_POOL } else { pool };
        if pool == ALL_NODE_POOL {
            return Err(ServerError::Refused(Refused::BadRequest(format!(
                "no node can join the node pool {ALL_NODE_POOL:?}, which holds every node; name another one"
            ))));
        }
        let config = &self.inner.config;
        let longest = config.introduction.max_ttl;
        let asked = ttl.unwrap_or(config.introduction.default_ttl);
        if asked > longest {
            tracing::warn!(
                ?asked,
                ?longest,
                "an introduction token was asked for a longer time than \
                    server.client_introduction.max_identity_ttl, and is valid for that time"
            );
        }
        let signing = Signing { region: &config.region, now: time_of_day(), ttl: asked.min(longest), id: new_id() };
        Ok(self.inner.keyring.sign(&NodeClaims::introduction(name, pool, signing))?)
    }
}
