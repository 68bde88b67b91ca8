//! Policies, tokens, roles, methods to log in and binding rules.

use std::sync::Arc;

use model::{
    acl::{AclPolicy, AclRole, AclToken, AclTokenRole, OneTimeToken},
    acl_login::{AclAuthMethod, AclBindingRule},
    ids::StoreIndex,
};

use super::Applier;
use crate::{
    acl_tables::Digest,
    applied::{Cause, Object},
    table::Table,
};

impl Applier<'_> {
    /// Index of an object's creation: that of its former version, or of this batch.
    fn since(&self, before: Option<StoreIndex>) -> StoreIndex {
        before.unwrap_or(self.index)
    }

    pub(super) fn put_acl_policy(&mut self, policy: AclPolicy) {
        let create_index = self.since(self.state.acl_policy(&policy.name).map(|b| b.create_index));
        let policy = AclPolicy { hash: policy.digest(), create_index, modify_index: self.index, ..policy };
        let policy = Arc::new(policy);
        self.state.acl.put_policy(policy.clone());
        self.set.put(Cause::ACLPolicyUpserted, Object::AclPolicy(policy));
    }

    pub(super) fn delete_acl_policy(&mut self, name: &str) {
        if let Some(policy) = self.state.acl.remove_policy(name) {
            self.set.delete(Cause::ACLPolicyDeleted, Object::AclPolicy(policy));
        }
    }

    pub(super) fn put_acl_token(&mut self, mut token: AclToken) {
        let create_index = self.since(self.state.acl_token(&token.accessor_id).map(|b| b.create_index));
        (token.hash, token.create_index, token.modify_index) = (token.digest(), create_index, self.index);
        let token = Arc::new(token);
        self.state.acl.put_token(token.clone());
        self.set.put(Cause::ACLTokenUpserted, Object::AclToken(token));
    }

    pub(super) fn delete_acl_token(&mut self, accessor: &str) {
        let Some(token) = self.state.acl.remove_token(accessor) else { return };
        let exchanged = self.state.acl.one_time_by_token.range((token.accessor_id.clone(), [0; 32])..);
        let exchanged: Vec<Digest> =
            exchanged.take_while(|(of, _)| *of == token.accessor_id).map(|(_, digest)| *digest).collect();
        exchanged.iter().for_each(|digest| self.delete_one_time_token(digest));
        self.set.delete(Cause::ACLTokenDeleted, Object::AclToken(token));
    }

    /// Tokens show the name of a role, so a new name goes to them.
    pub(super) fn put_acl_role(&mut self, role: AclRole) {
        let before = self.state.acl_role(&role.id).cloned();
        let create_index = self.since(before.as_ref().map(|b| b.create_index));
        let role = AclRole { hash: role.digest(), create_index, modify_index: self.index, ..role };
        let role = Arc::new(role);
        self.state.acl.put_role(role.clone());
        self.set.put(Cause::ACLRoleUpserted, Object::AclRole(role.clone()));
        if before.is_some_and(|before| before.name != role.name) {
            let renamed = |link: AclTokenRole| {
                Some(if link.id == role.id { AclTokenRole { name: role.name.clone(), ..link } } else { link })
            };
            self.edit_links(&role.id, renamed);
        }
    }

    pub(super) fn delete_acl_role(&mut self, id: &str) {
        let Some(role) = self.state.acl.remove_role(id) else { return };
        self.edit_links(id, |link| (*link.id != *id).then_some(link));
        self.set.delete(Cause::ACLRoleDeleted, Object::AclRole(role));
    }

    /// Changes the links of the tokens that have that role.
    fn edit_links(&mut self, role: &str, edit: impl Fn(AclTokenRole) -> Option<AclTokenRole>) {
        let tokens: Vec<_> = self.state.acl_tokens_by_role(role).cloned().collect();
        for token in tokens {
            let roles = token.roles.iter().cloned().filter_map(&edit).collect();
            self.put_acl_token(AclToken { roles, ..AclToken::clone(&token) });
        }
    }

    pub(super) fn put_acl_auth_method(&mut self, method: AclAuthMethod) {
        let create_index = self.since(self.state.acl_auth_method(&method.name).map(|b| b.create_index));
        let method = AclAuthMethod { hash: method.digest(), create_index, modify_index: self.index, ..method };
        let method = Arc::new(method);
        self.state.acl.auth_methods.insert(method.name.clone(), method.clone());
        self.set.put(Cause::ACLAuthMethodUpserted, Object::AclAuthMethod(method));
    }

    /// Its rules go with it: a later method of that name must not inherit what it did not grant.
    pub(super) fn delete_acl_auth_method(&mut self, name: &str) {
        let Some(method) = self.state.acl.auth_methods.remove(name) else { return };
        let rules: Vec<_> = self.state.acl_binding_rules_by_method(name).map(|rule| rule.id.clone()).collect();
        rules.iter().for_each(|id| self.delete_acl_binding_rule(id));
        self.set.delete(Cause::ACLAuthMethodDeleted, Object::AclAuthMethod(method));
    }

    pub(super) fn put_acl_binding_rule(&mut self, rule: AclBindingRule) {
        let create_index = self.since(self.state.acl_binding_rule(&rule.id).map(|b| b.create_index));
        let rule = AclBindingRule { hash: rule.digest(), create_index, modify_index: self.index, ..rule };
        let rule = Arc::new(rule);
        self.state.acl.put_rule(rule.clone());
        self.set.put(Cause::ACLBindingRuleUpserted, Object::AclBindingRule(rule));
    }

    pub(super) fn delete_acl_binding_rule(&mut self, id: &str) {
        if let Some(rule) = self.state.acl.remove_rule(id) {
            self.set.delete(Cause::ACLBindingRuleDeleted, Object::AclBindingRule(rule));
        }
    }

    pub(super) fn put_one_time_token(&mut self, mut token: OneTimeToken) {
        (token.create_index, token.modify_index) = (self.index, self.index);
        let token = Arc::new(token);
        self.state.acl.put_one_time(token.clone());
        self.set.put(Cause::Derived, Object::OneTimeToken(token));
    }

    pub(super) fn delete_one_time_token(&mut self, digest: &Digest) {
        if let Some(token) = self.state.acl.remove_one_time(digest) {
            self.set.delete(Cause::Derived, Object::OneTimeToken(token));
        }
    }

    /// The table has no rows. Its index tells when this was done last.
    pub(super) fn acl_bootstrapped(&mut self) {
        self.set.tables.insert(Table::AclBootstrap);
    }
}
