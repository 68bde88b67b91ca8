//! `vault`: how the node reaches Vault, and what the servers give to jobs that use it.

use client::vault;
use model::{GoDuration, task::Identity};
use server::VaultRules;

use super::{super::config, reader::Reader, texts};

/// How the node reaches Vault; `None`: it is off. Reads the files of TLS.
pub(super) fn of_node(r: &mut Reader, given: &config::Vault) -> Option<vault::Vault> {
    if given.enabled != Some(true) {
        return None;
    }
    let default = vault::Settings::default();
    let settings = vault::Settings {
        address: given.address.clone().filter(|a| !a.is_empty()).unwrap_or(default.address),
        namespace: given.namespace.clone(),
        role: given.create_from_role.clone(),
        jwt_path: given.jwt_auth_backend_path.clone().filter(|p| !p.is_empty()).unwrap_or(default.jwt_path),
        tls: tls::ClientFiles {
            ca_cert: given.ca_file.clone().into(),
            ca_path: given.ca_path.clone().into(),
            client_cert: given.cert_file.clone().into(),
            client_key: given.key_file.clone().into(),
            server_name: given.tls_server_name.clone(),
            skip_verify: given.tls_skip_verify,
        },
    };
    match vault::Vault::new(settings) {
        Ok(vault) => Some(vault),
        Err(why) => {
            r.wrong(why.to_string());
            None
        }
    }
}

/// What the servers give to jobs that use Vault; `None`: it is off.
pub(super) fn of_server(r: &mut Reader, given: &config::Vault) -> Option<VaultRules> {
    if given.enabled != Some(true) {
        return None;
    }
    let Some(default) = &given.default_identity else { return Some(VaultRules::default()) };
    if default.aud.is_empty() {
        r.wrong(
            "vault.default_identity.aud is missing: Vault takes no token without an audience that it expects".into(),
        );
    }
    let ttl = match default.ttl.as_deref().unwrap_or_default() {
        "" => GoDuration::ZERO,
        text => text.parse().unwrap_or_else(|_| {
            r.wrong(format!("vault.default_identity.ttl must be a time span such as \"1h\", it is {text:?}"));
            GoDuration::ZERO
        }),
    };
    let identity = Identity {
        audience: default.aud.clone(),
        env: default.env,
        file: default.file,
        filepath: default.filepath.clone(),
        ttl,
        ..Identity::default()
    };
    let extra_claims = texts(&default.extra_claims);
    for wrong in server::claim_mistakes("vault.default_identity.extra_claims", &extra_claims) {
        r.wrong(wrong);
    }
    Some(VaultRules { identity: Some(identity), extra_claims })
}
