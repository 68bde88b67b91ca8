//! The tables of access control with their secondary indexes.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use model::{
    acl::{AclPolicy, AclRole, AclToken, OneTimeToken},
    acl_login::{AclAuthMethod, AclBindingRule},
    ids::TimestampNs,
};

/// The digest by which a secret is found.
pub(crate) type Digest = [u8; 32];

/// The tables with their secondary indexes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acl {
    pub(crate) policies: OrdMap<Arc<str>, Arc<AclPolicy>>,
    /// Namespace and job of those that are attached to identities, with their names.
    pub(crate) policies_by_job: OrdSet<(String, String, Arc<str>)>,
    pub(crate) tokens: OrdMap<Arc<str>, Arc<AclToken>>,
    /// The tokens themselves: each request looks for one, and a second search would cost it as much again.
    pub(crate) tokens_by_secret: OrdMap<Digest, Arc<AclToken>>,
    pub(crate) tokens_by_role: OrdSet<(Arc<str>, Arc<str>)>,
    pub(crate) tokens_by_expiry: OrdSet<(TimestampNs, Arc<str>)>,
    pub(crate) roles: OrdMap<Arc<str>, Arc<AclRole>>,
    pub(crate) roles_by_name: OrdMap<String, Arc<str>>,
    pub(crate) auth_methods: OrdMap<Arc<str>, Arc<AclAuthMethod>>,
    pub(crate) binding_rules: OrdMap<Arc<str>, Arc<AclBindingRule>>,
    pub(crate) rules_by_method: OrdSet<(Arc<str>, Arc<str>)>,
    pub(crate) one_time: OrdMap<Digest, Arc<OneTimeToken>>,
    pub(crate) one_time_by_token: OrdSet<(Arc<str>, Digest)>,
}

fn job_of(policy: &AclPolicy) -> Option<(String, String, Arc<str>)> {
    policy.job_acl.as_ref().map(|job| (job.namespace.clone(), job.job_id.clone(), policy.name.clone()))
}

impl Acl {
    pub(crate) fn put_policy(&mut self, policy: Arc<AclPolicy>) {
        self.remove_policy(&policy.name);
        self.policies_by_job.extend(job_of(&policy));
        self.policies.insert(policy.name.clone(), policy);
    }

    pub(crate) fn remove_policy(&mut self, name: &str) -> Option<Arc<AclPolicy>> {
        let before = self.policies.remove(name)?;
        if let Some(job) = job_of(&before) {
            self.policies_by_job.remove(&job);
        }
        Some(before)
    }

    pub(crate) fn put_token(&mut self, token: Arc<AclToken>) {
        self.remove_token(&token.accessor_id);
        let id = &token.accessor_id;
        self.tokens_by_secret.insert(token.secret_id.digest(), token.clone());
        self.tokens_by_role.extend(token.roles.iter().map(|role| (role.id.clone(), id.clone())));
        self.tokens_by_expiry.extend(token.expiration_time.ns().map(|at| (at, id.clone())));
        self.tokens.insert(id.clone(), token);
    }

    pub(crate) fn remove_token(&mut self, accessor: &str) -> Option<Arc<AclToken>> {
        let before = self.tokens.remove(accessor)?;
        let digest = before.secret_id.digest();
        // Within one batch another token may have come to the secret.
        if self.tokens_by_secret.get(&digest).is_some_and(|of| of.accessor_id == before.accessor_id) {
            self.tokens_by_secret.remove(&digest);
        }
        for role in &before.roles {
            self.tokens_by_role.remove(&(role.id.clone(), before.accessor_id.clone()));
        }
        if let Some(at) = before.expiration_time.ns() {
            self.tokens_by_expiry.remove(&(at, before.accessor_id.clone()));
        }
        Some(before)
    }

    pub(crate) fn put_role(&mut self, role: Arc<AclRole>) {
        self.remove_role(&role.id);
        self.roles_by_name.insert(role.name.clone(), role.id.clone());
        self.roles.insert(role.id.clone(), role);
    }

    pub(crate) fn remove_role(&mut self, id: &str) -> Option<Arc<AclRole>> {
        let before = self.roles.remove(id)?;
        // Within one batch another role may have come to the name.
        if self.roles_by_name.get(&before.name) == Some(&before.id) {
            self.roles_by_name.remove(&before.name);
        }
        Some(before)
    }

    pub(crate) fn put_rule(&mut self, rule: Arc<AclBindingRule>) {
        self.remove_rule(&rule.id);
        self.rules_by_method.insert((rule.auth_method.clone(), rule.id.clone()));
        self.binding_rules.insert(rule.id.clone(), rule);
    }

    pub(crate) fn remove_rule(&mut self, id: &str) -> Option<Arc<AclBindingRule>> {
        let before = self.binding_rules.remove(id)?;
        self.rules_by_method.remove(&(before.auth_method.clone(), before.id.clone()));
        Some(before)
    }

    pub(crate) fn put_one_time(&mut self, token: Arc<OneTimeToken>) {
        let digest = token.one_time_secret_id.digest();
        self.remove_one_time(&digest);
        self.one_time_by_token.insert((token.accessor_id.clone(), digest));
        self.one_time.insert(digest, token);
    }

    pub(crate) fn remove_one_time(&mut self, digest: &Digest) -> Option<Arc<OneTimeToken>> {
        let before = self.one_time.remove(digest)?;
        self.one_time_by_token.remove(&(before.accessor_id.clone(), *digest));
        Some(before)
    }
}
