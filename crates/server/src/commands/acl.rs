//! Commands on policies, tokens and roles.

use std::{io, sync::Arc};

use control::acl::{self, Ttl};
use model::{AclPolicy, AclRole, AclToken, OneTimeToken, StoreIndex};
use state::{Batch, Change};

use crate::{
    commit::Decided,
    config::AclConfig,
    error::{Refused, ServerError},
    handle::ServerHandle,
};

/// File in the server's directory with the reset index of a further bootstrap.
const BOOTSTRAP_RESET_FILE: &str = "acl-bootstrap-reset";

/// What was written is gone again: somebody has deleted it in the same instant.
pub(super) fn gone(what: &'static str) -> ServerError {
    ServerError::Internal { what, why: "it was deleted while it was being written".to_owned() }
}

/// How long tokens may live.
pub(super) fn ttl(limits: &AclConfig) -> Ttl {
    Ttl { min: limits.token_min_expiration, max: limits.token_max_expiration }
}

impl ServerHandle {
    /// Creates or changes a policy.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn put_acl_policy(&self, policy: AclPolicy) -> Result<StoreIndex, ServerError> {
        self.decide(move |_, stamp, _| acl::put_policy(policy, stamp)).await
    }

    /// Forgets a policy; one that does not exist is no error.
    ///
    /// # Errors
    /// When the change could not be stored.
    pub async fn delete_acl_policy(&self, name: String) -> Result<StoreIndex, ServerError> {
        self.decide(move |_, stamp, _| {
            Ok(Decided { batch: Change::DeleteAclPolicy(name.into()).into(), answer: stamp.index })
        })
        .await
    }

    /// Creates a token, or changes the one that it names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn put_acl_token(&self, token: AclToken) -> Result<Arc<AclToken>, ServerError> {
        let ttl = ttl(&self.inner.config.acl);
        let accessor = self.decide(move |state, stamp, ids| acl::put_token(state, token, ttl, stamp, ids)).await?;
        self.snapshot().acl_token(&accessor).cloned().ok_or_else(|| gone("writing the token"))
    }

    /// Forgets tokens.
    ///
    /// # Errors
    /// When one of them does not exist.
    pub async fn delete_acl_tokens(&self, accessors: Vec<String>) -> Result<StoreIndex, ServerError> {
        self.decide(move |state, stamp, _| acl::delete_tokens(state, &accessors, stamp)).await
    }

    /// Creates a role, or changes the one that it names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn put_acl_role(&self, role: AclRole) -> Result<Arc<AclRole>, ServerError> {
        let id = self.decide(move |state, _, ids| acl::put_role(state, role, ids)).await?;
        self.snapshot().acl_role(&id).cloned().ok_or_else(|| gone("writing the role"))
    }

    /// Forgets a role; its tokens lose the link.
    ///
    /// # Errors
    /// When there is no such role.
    pub async fn delete_acl_role(&self, id: String) -> Result<StoreIndex, ServerError> {
        self.decide(move |state, stamp, _| match state.acl_role(&id) {
            None => Err(Refused::Invalid("ACL role not found".to_owned())),
            Some(role) => Ok(Decided { batch: Change::DeleteAclRole(role.id.clone()).into(), answer: stamp.index }),
        })
        .await
    }

    /// Makes the first management token, or another one when the reset file has the index of the last bootstrap.
    /// `secret`: what the token is to have; empty = a new one.
    ///
    /// # Errors
    /// When it was done before and the file does not allow another one, or the file cannot be read.
    pub async fn bootstrap_acl(&self, secret: String) -> Result<Arc<AclToken>, ServerError> {
        let reset = self.bootstrap_reset().await?;
        let accessor = self.decide(move |state, stamp, ids| acl::bootstrap(state, &secret, reset, stamp, ids)).await?;
        self.snapshot().acl_token(&accessor).cloned().ok_or_else(|| gone("writing the token"))
    }

    /// The index in the reset file; None where there is no file.
    async fn bootstrap_reset(&self) -> Result<Option<StoreIndex>, ServerError> {
        let Some(path) = self.inner.config.data_dir.as_ref().map(|dir| dir.join(BOOTSTRAP_RESET_FILE)) else {
            return Ok(None);
        };
        let of = path.clone();
        let failed = |why: String| ServerError::Internal { what: "reading the reset index of a bootstrap", why };
        match blocking::spawn(move || std::fs::read_to_string(of)).await.map_err(|_| ServerError::ShuttingDown)? {
            Ok(text) => match text.trim().parse() {
                Ok(index) => Ok(Some(index)),
                Err(_) => Err(failed(format!("{} must hold the reset index alone", path.display()))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(format!("{}: {error}", path.display()))),
        }
    }

    /// Makes a one-time token for the token of that accessor.
    ///
    /// # Errors
    /// When the change could not be stored.
    pub async fn make_one_time_token(&self, accessor: Arc<str>) -> Result<Arc<OneTimeToken>, ServerError> {
        let secret = self.decide(move |_, stamp, ids| Ok(acl::one_time(accessor, stamp, ids))).await?;
        self.snapshot().one_time_token(&secret).cloned().ok_or_else(|| gone("writing the one-time token"))
    }

    /// Exchanges a one-time token for the token that it stands for, with the index of that. None = it is unknown, used
    /// or expired.
    ///
    /// # Errors
    /// When the change could not be stored.
    pub async fn exchange_one_time_token(
        &self,
        secret: String,
    ) -> Result<Option<(Arc<AclToken>, StoreIndex)>, ServerError> {
        self.decide(move |state, stamp, _| {
            Ok(match acl::exchange(state, &secret, stamp.now) {
                None => Decided { batch: Batch::default(), answer: None },
                Some(Decided { batch, answer }) => Decided { batch, answer: Some((answer, stamp.index)) },
            })
        })
        .await
    }
}
