//! Where the servers keep their state: in a file of this server, or in an etcd that several servers share.

use std::{net::SocketAddr, path::Path, time::Duration};

use api::node_rpc::PROTOCOLS;
use server::ServerConfig;
use store::{EtcdOptions, FORMATS, Member, Versions};
use tls::{Protocol, Service, ServiceFiles, ServiceSettings};

use super::{super::config, reader::Reader};

/// Prefix of all keys in etcd, where the operator does not say.
const PREFIX: &str = "drover/";
/// How long etcd keeps the leadership of a server that has vanished, where the others do not notice before.
const LEASE: Duration = Duration::from_secs(10);

/// What the server's block says of a shared store, and its TLS. `None` where the state is in a file, or something is
/// wrong.
pub(super) fn read(
    r: &mut Reader,
    s: &config::Server,
    config: &ServerConfig,
    dev: bool,
) -> Option<(EtcdOptions, Option<Service>)> {
    let etcd = match s.store.as_deref() {
        None | Some("" | "sqlite") => false,
        Some("etcd") => true,
        Some(other) => {
            r.wrong(format!("server.store must be sqlite or etcd, it is {other:?}"));
            return None;
        }
    };
    let tls = &s.tls;
    if !etcd {
        if let Some(n) = s.bootstrap_expect.filter(|n| *n > 1) {
            r.wrong(format!(
                "server.bootstrap_expect = {n} is refused: several servers share an etcd; set server.store = \"etcd\" \
                    and server.endpoints to the addresses of its members"
            ));
        }
        for (name, given) in [
            ("server.endpoints", !s.endpoints.is_empty()),
            ("server.prefix", s.prefix.is_some()),
            ("server.user", s.user.is_some()),
            ("server.password_file", s.password_file.is_some()),
            ("server.tls", *tls != config::StoreTls::default()),
        ] {
            if given {
                r.wrong(format!("{name} is a setting of etcd: set server.store = \"etcd\" as well, or take it out"));
            }
        }
        return None;
    }
    if s.run_dir.as_ref().is_some_and(|dir| !dir.is_empty()) {
        r.wrong("server.run_dir is a setting of the store sqlite: take it out".into());
    }
    if dev {
        r.wrong("server.store = \"etcd\" is refused with -dev: a dev agent keeps nothing".into());
    }
    if s.bootstrap_expect.is_some_and(|n| n > 1) {
        r.idle("server.bootstrap_expect", "etcd says which server leads, also when it is the only one");
    }
    if s.endpoints.is_empty() {
        r.wrong("server.endpoints is missing: etcd's members, such as [\"http://10.0.0.1:2379\"]".into());
    }
    for endpoint in &s.endpoints {
        let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
        if rest.and_then(|rest| rest.rsplit_once(':')).is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            r.wrong(format!("server.endpoints must be like http://10.0.0.1:2379, one is {endpoint:?}"));
        }
    }
    let mut prefix = s.prefix.clone().unwrap_or_else(|| PREFIX.to_owned());
    if !prefix.ends_with('/') {
        prefix.push('/');
    }
    let user = user(r, s);
    let tls = service(r, s);
    let rpc = advertised(r, config);
    let options = EtcdOptions {
        endpoints: s.endpoints.clone(),
        prefix,
        tls: tls.as_ref().map(Service::dialer),
        user,
        member: Member {
            // Addresses of two servers differ, and those of one stay.
            id: rpc.map(|rpc| rpc.to_string()).unwrap_or_default(),
            name: config.name.clone(),
            rpc: rpc.map(|rpc| rpc.to_string()).unwrap_or_default(),
            http: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            formats: FORMATS,
            protocols: Versions { lowest: *PROTOCOLS.start(), highest: *PROTOCOLS.end() },
        },
        settle: Duration::ZERO,
        mark: config.data_dir.as_deref().map(|dir: &Path| dir.join("etcd")),
        lease: LEASE,
    };
    Some((options, tls))
}

/// Where other servers and nodes reach this one.
fn advertised(r: &mut Reader, config: &ServerConfig) -> Option<SocketAddr> {
    let rpc = config.rpc_advertise.unwrap_or(config.rpc_bind);
    if rpc.ip().is_unspecified() || rpc.port() == 0 {
        r.wrong(format!("advertise.rpc is missing: the other servers and the nodes cannot reach this one at {rpc}"));
        return None;
    }
    Some(rpc)
}

fn user(r: &mut Reader, s: &config::Server) -> Option<(String, String)> {
    match (&s.user, &s.password_file) {
        (Some(user), Some(file)) => match std::fs::read_to_string(file) {
            Ok(password) => Some((user.clone(), password.trim_end_matches(['\r', '\n']).to_owned())),
            Err(error) => {
                r.wrong(format!("server.password_file {file}: {error}"));
                None
            }
        },
        (Some(_), None) => {
            r.wrong("server.user needs server.password_file, a file with the user's password".into());
            None
        }
        (None, Some(_)) => {
            r.wrong("server.password_file needs server.user".into());
            None
        }
        (None, None) => None,
    }
}

fn service(r: &mut Reader, s: &config::Server) -> Option<Service> {
    let secured = s.endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
    if !secured {
        if s.tls != config::StoreTls::default() {
            r.wrong("server.tls is for endpoints that begin with https://, and none does".into());
        }
        return None;
    }
    let files = ServiceFiles {
        ca_file: s.tls.ca_file.as_str().into(),
        cert_file: s.tls.cert_file.as_str().into(),
        key_file: s.tls.key_file.as_str().into(),
    };
    let settings =
        ServiceSettings { ca: "server.tls.ca_file", cert: "server.tls.cert_file", key: "server.tls.key_file" };
    let loaded = Service::load(&files, settings, Protocol::Http2).map_err(|why| match why {
        // It knows no name of a setting.
        tls::Error::NoRoots(_) => format!("server.tls.ca_file is missing: {why}"),
        why => why.to_string(),
    });
    loaded.map_err(|why| r.wrong(why)).ok()
}
