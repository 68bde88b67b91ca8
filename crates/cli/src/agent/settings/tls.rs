//! TLS: from the block of the configuration to the agent's certificates, which are read and checked here.

use std::time::SystemTime;

use tls::{CipherSuite, Role, Settings, Version};

use super::{super::config, reader::Reader};

/// Reads the files. `None` where TLS is off, or something is wrong.
pub(super) fn read(r: &mut Reader, block: &config::Tls, region: &str, roles: Vec<Role>) -> Option<tls::Agent> {
    let min_version = Version::parse(&block.tls_min_version);
    let min_version = min_version.map_err(|why| r.wrong(format!("tls.tls_min_version {why}"))).ok();
    let suites = CipherSuite::parse(&block.tls_cipher_suites);
    let suites = suites.map_err(|why| r.wrong(format!("tls.tls_cipher_suites {why}"))).ok();
    let (min_version, cipher_suites) = min_version.zip(suites)?;
    if !block.http && !block.rpc {
        for (name, given) in [
            ("tls.ca_file", !block.ca_file.is_empty()),
            ("tls.cert_file", !block.cert_file.is_empty()),
            ("tls.key_file", !block.key_file.is_empty()),
            ("tls.verify_server_hostname", block.verify_server_hostname),
            ("tls.verify_https_client", block.verify_https_client),
            ("tls.rpc_upgrade_mode", block.rpc_upgrade_mode),
        ] {
            if given {
                r.idle(name, "TLS is off: neither tls.http nor tls.rpc is true");
            }
        }
        return None;
    }
    let settings = Settings {
        http: block.http,
        rpc: block.rpc,
        ca_file: block.ca_file.as_str().into(),
        cert_file: block.cert_file.as_str().into(),
        key_file: block.key_file.as_str().into(),
        verify_names: block.verify_server_hostname,
        verify_https_client: block.verify_https_client,
        rpc_upgrade_mode: block.rpc_upgrade_mode,
        min_version,
        cipher_suites,
        region: region.to_owned(),
        roles,
    };
    tls::Agent::load(&settings, SystemTime::now()).map_err(|why| r.wrong(why.to_string())).ok()
}

/// Whether certificates alone say who may join: nothing gets to the servers without one that names a role.
pub(super) fn admits_members_only(tls: Option<&tls::Agent>) -> bool {
    tls.is_some_and(|tls| {
        let settings = tls.settings();
        settings.rpc && settings.verify_names && !settings.rpc_upgrade_mode
    })
}
