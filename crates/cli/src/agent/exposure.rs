//! Who else than this machine reaches an agent's listeners: what is refused, and what is said of it.

use std::net::SocketAddr;

/// A listener, and who may speak to it.
pub(super) struct Listener {
    name: &'static str,
    at: SocketAddr,
    /// What passes cannot be read by others.
    tls: bool,
    /// Others than those with a certificate of the authority may speak.
    anybody: bool,
    /// It may be reached from elsewhere without a word of the operator.
    guarded: bool,
}

impl Listener {
    pub(super) fn http(at: SocketAddr, tls: Option<&tls::Agent>) -> Self {
        let tls = tls.map(tls::Agent::settings).filter(|tls| tls.http);
        let members = tls.as_ref().is_some_and(|tls| tls.verify_https_client);
        Self { name: "HTTP API", at, tls: tls.is_some(), anybody: !members, guarded: tls.is_some() }
    }

    pub(super) fn rpc(at: SocketAddr, tls: Option<&tls::Agent>) -> Self {
        let tls = tls.map(tls::Agent::settings).filter(|tls| tls.rpc);
        let on = tls.as_ref().is_some_and(|tls| !tls.rpc_upgrade_mode);
        // While a cluster changes to TLS its plain nodes are let in.
        Self { name: "node RPC", at, tls: on, anybody: !on, guarded: tls.is_some() }
    }

    /// Nodes that nobody has introduced are not let in.
    pub(super) fn introduced(self, strict: bool) -> Self {
        Self { guarded: self.guarded || strict, ..self }
    }
}

/// The listeners that others than this machine reach and of which something is true.
fn far(listening: &[Listener], wanted: impl Fn(&Listener) -> bool) -> String {
    let far = listening.iter().filter(|listener| !listener.at.ip().to_canonical().is_loopback() && wanted(listener));
    far.map(|listener| format!("{} on {}", listener.name, listener.at)).collect::<Vec<_>>().join(" and ")
}

/// Why an agent does not start whose operator has not said that it may be insecure; None = it may.
pub(super) fn refused(listening: &[Listener]) -> Option<String> {
    let open = far(listening, |listener| !listener.guarded);
    (!open.is_empty()).then(|| {
        format!(
            "the agent would listen beyond loopback without TLS ({open}): whoever reaches the API may run anything on \
                every node, and what passes between agents can be read. Set tls {{ http = true, rpc = true }} with \
                certificates of `drover tls`, or bind_addr = \"127.0.0.1\"; in a network that you trust, write drover \
                {{ insecure = true }}"
        )
    })
}

/// What to say of listeners that others than this machine reach. Without access control whoever may speak to the API
/// may do anything; with it, what a token lets do can be done by whoever reads the token on its way.
pub(super) fn exposed(listening: &[Listener], acl: bool) -> Option<String> {
    let (plain, anybody) = (far(listening, |listener| !listener.tls), far(listening, |listener| listener.anybody));
    match (plain.is_empty(), anybody.is_empty()) {
        (false, _) if acl => Some(format!(
            "beyond loopback without TLS ({plain}): whoever can read what passes can use its tokens; set tls {{ http = \
                true, rpc = true }}, or keep it in a private network"
        )),
        (false, _) => Some(format!(
            "beyond loopback without TLS and access control ({plain}): whoever reaches the API may run anything on \
                every node, and what passes between agents can be read; keep it in a private network"
        )),
        (true, false) if !acl => Some(format!(
            "beyond loopback without access control ({anybody}): whoever reaches the API may run anything on every \
                node; set acl.enabled or tls.verify_https_client, or keep it in a private network"
        )),
        (true, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Listener, exposed, refused};

    #[test]
    fn who_can_be_reached_is_told() {
        let at = |http: &str, rpc: &str| {
            let http = Listener::http(http.parse().expect(http), None);
            exposed(&[http, Listener::rpc(rpc.parse().expect(rpc), None)], false)
        };
        assert_eq!(at("127.0.0.1:4646", "[::1]:4647"), None);
        let both = at("0.0.0.0:4646", "10.0.0.5:4647").expect("open");
        assert!(both.contains("HTTP API on 0.0.0.0:4646 and node RPC on 10.0.0.5:4647"), "{both}");
        assert!(!at("127.0.0.1:4646", "10.0.0.5:4647").expect("open").contains("HTTP API"));
        let api = |tls, anybody, acl| {
            let at = "10.0.0.5:4646".parse().expect("an address");
            exposed(&[Listener { name: "HTTP API", at, tls, anybody, guarded: true }], acl)
        };
        let open = api(true, true, false).expect("open");
        assert!(open.contains("acl.enabled or tls.verify_https_client"), "{open}");
        assert_eq!(api(true, false, false), None);
        assert_eq!(api(true, true, true), None, "whoever speaks to it needs a token");
        let plain = api(false, true, true).expect("tokens pass in plain text");
        assert!(plain.contains("without TLS (") && plain.contains("tokens"), "{plain}");
    }

    #[test]
    fn beyond_loopback_an_agent_wants_tls_or_a_word() {
        let plain = |http: &str, rpc: &str, strict| {
            let http = Listener::http(http.parse().expect(http), None);
            refused(&[http, Listener::rpc(rpc.parse().expect(rpc), None).introduced(strict)])
        };
        assert_eq!(plain("127.0.0.1:1", "[::1]:2", false), None);
        assert_eq!(plain("[::ffff:127.0.0.1]:1", "127.8.0.1:2", false), None);
        let both = plain("0.0.0.0:1", "[::]:2", false).expect("refused");
        assert!(
            both.contains("HTTP API on 0.0.0.0:1 and node RPC on [::]:2") && both.contains("insecure = true"),
            "{both}"
        );
        let rpc = plain("127.0.0.1:1", "10.0.0.5:2", false).expect("refused");
        assert!(!rpc.contains("HTTP API"), "{rpc}");
        assert_eq!(plain("127.0.0.1:1", "10.0.0.5:2", true), None, "strangers are not let in");
        let http = plain("10.0.0.5:1", "10.0.0.5:2", true).expect("refused");
        assert!(!http.contains("node RPC"), "introductions do not guard the API: {http}");
    }
}
