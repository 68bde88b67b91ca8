//! Reading policies, tokens, roles, methods to log in and binding rules.

use std::sync::Arc;

use imbl::OrdSet;
use model::{
    Secret,
    acl::{AclPolicy, AclRole, AclToken, OneTimeToken},
    acl_login::{AclAuthMethod, AclBindingRule},
    ids::{StoreIndex, TimestampNs},
};

use crate::{
    Table,
    tables::{FIRST_INDEX, Rows, State, along, onward},
};

/// The second parts of the pairs that begin with this text.
fn of<'a>(pairs: &'a OrdSet<(Arc<str>, Arc<str>)>, first: &str) -> impl Iterator<Item = &'a Arc<str>> + use<'a> {
    let first: Arc<str> = first.into();
    pairs.range((first.clone(), Arc::from(""))..).take_while(move |(f, _)| *f == first).map(|(_, second)| second)
}

impl State {
    /// A policy.
    #[must_use]
    pub fn acl_policy(&self, name: &str) -> Option<&Arc<AclPolicy>> {
        self.acl.policies.get(name)
    }
    /// All policies, by name.
    pub fn acl_policies(&self) -> impl DoubleEndedIterator<Item = &Arc<AclPolicy>> {
        self.acl.policies.values()
    }
    /// The policies that are attached to the identities of a job or, where `job` is empty, of all jobs of a namespace.
    /// Which groups and tasks each of them concerns stands in it.
    pub fn acl_policies_of_job(&self, namespace: &str, job: &str) -> impl Iterator<Item = &Arc<AclPolicy>> {
        let (namespace, job) = (namespace.to_owned(), job.to_owned());
        self.acl
            .policies_by_job
            .range((namespace.clone(), job.clone(), Arc::from(""))..)
            .take_while(move |(ns, j, _)| *ns == namespace && *j == job)
            .filter_map(|(_, _, name)| self.acl.policies.get(name))
    }

    /// A token.
    #[must_use]
    pub fn acl_token(&self, accessor: &str) -> Option<&Arc<AclToken>> {
        self.acl.tokens.get(accessor)
    }
    /// The token with the secret of that digest ([`Secret::digest_of`]). The time of the search tells nothing of the
    /// secret, and whoever finds one has shown it: nobody can make another text with its digest.
    #[must_use]
    pub fn acl_token_by_digest(&self, digest: &[u8; 32]) -> Option<&Arc<AclToken>> {
        self.acl.tokens_by_secret.get(digest)
    }
    /// The token with that secret; see [`Self::acl_token_by_digest`].
    #[must_use]
    pub fn acl_token_by_secret(&self, secret: &str) -> Option<&Arc<AclToken>> {
        self.acl_token_by_digest(&Secret::digest_of(secret))
    }
    /// All tokens, by accessor.
    pub fn acl_tokens(&self) -> impl DoubleEndedIterator<Item = &Arc<AclToken>> {
        self.acl.tokens.values()
    }
    /// The tokens by accessor, from this one on; `reverse`: down from it.
    pub fn acl_tokens_onward(&self, from: Option<Arc<str>>, reverse: bool) -> Rows<'_, &Arc<AclToken>> {
        along(self.acl.tokens.range(onward(from, reverse)).map(|(_, token)| token), reverse)
    }
    /// The tokens with a link to that role, by accessor.
    pub fn acl_tokens_by_role(&self, role: &str) -> impl Iterator<Item = &Arc<AclToken>> {
        of(&self.acl.tokens_by_role, role).filter_map(|id| self.acl.tokens.get(id))
    }
    /// The tokens that have expired at this time or before, the earliest first.
    pub fn acl_tokens_expired_at(&self, at: TimestampNs) -> impl Iterator<Item = &Arc<AclToken>> {
        let expired = self.acl.tokens_by_expiry.iter().take_while(move |(end, _)| *end <= at);
        expired.filter_map(|(_, id)| self.acl.tokens.get(id))
    }

    /// A role.
    #[must_use]
    pub fn acl_role(&self, id: &str) -> Option<&Arc<AclRole>> {
        self.acl.roles.get(id)
    }
    /// The role of that name.
    #[must_use]
    pub fn acl_role_by_name(&self, name: &str) -> Option<&Arc<AclRole>> {
        self.acl.roles.get(self.acl.roles_by_name.get(name)?)
    }
    /// All roles, by id.
    pub fn acl_roles(&self) -> impl DoubleEndedIterator<Item = &Arc<AclRole>> {
        self.acl.roles.values()
    }

    /// A method to log in.
    #[must_use]
    pub fn acl_auth_method(&self, name: &str) -> Option<&Arc<AclAuthMethod>> {
        self.acl.auth_methods.get(name)
    }
    /// All methods to log in, by name.
    pub fn acl_auth_methods(&self) -> impl DoubleEndedIterator<Item = &Arc<AclAuthMethod>> {
        self.acl.auth_methods.values()
    }
    /// A binding rule.
    #[must_use]
    pub fn acl_binding_rule(&self, id: &str) -> Option<&Arc<AclBindingRule>> {
        self.acl.binding_rules.get(id)
    }
    /// All binding rules, by id.
    pub fn acl_binding_rules(&self) -> impl DoubleEndedIterator<Item = &Arc<AclBindingRule>> {
        self.acl.binding_rules.values()
    }
    /// The binding rules of a method, by id.
    pub fn acl_binding_rules_by_method(&self, method: &str) -> impl Iterator<Item = &Arc<AclBindingRule>> {
        of(&self.acl.rules_by_method, method).filter_map(|id| self.acl.binding_rules.get(id))
    }

    /// The one-time token with that secret, found and compared as in [`Self::acl_token_by_secret`].
    #[must_use]
    pub fn one_time_token(&self, secret: &str) -> Option<&Arc<OneTimeToken>> {
        let found = self.acl.one_time.get(&Secret::digest_of(secret))?;
        Some(found).filter(|token| token.one_time_secret_id.matches(secret))
    }
    /// All one-time tokens, in no order that says anything.
    pub fn one_time_tokens(&self) -> impl Iterator<Item = &Arc<OneTimeToken>> {
        self.acl.one_time.values()
    }

    /// Index of the last bootstrap; None = there was none.
    #[must_use]
    pub fn acl_bootstrap_index(&self) -> Option<StoreIndex> {
        Some(self.index(Table::AclBootstrap)).filter(|index| *index > FIRST_INDEX)
    }
}
