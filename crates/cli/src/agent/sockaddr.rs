//! Addresses that are found on the machine: the go-sockaddr templates that configuration files use most, such as `{{
//! GetPrivateIP }}`.

use std::net::IpAddr;

use host::fingerprint::InterfaceAddress;

/// What is understood, for errors.
const KNOWN: &str = "GetPrivateIP, GetPublicIP, GetInterfaceIP \"NAME\", and GetDefaultInterfaces, \
    GetPrivateInterfaces or GetPublicInterfaces with \
                     | attr \"address\" or | attr \"name\"";

/// Replaces each `{{ … }}` of a text.
///
/// # Errors
/// What is not understood, or not found on this machine.
pub(crate) fn expand(text: &str, machine: &[InterfaceAddress]) -> Result<String, String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("{{") {
        let (template, after) = after.split_once("}}").ok_or_else(|| format!("{text:?} has {{{{ without }}}}"))?;
        out.push_str(before);
        out.push_str(&value(template.trim(), machine)?);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn value(template: &str, machine: &[InterfaceAddress]) -> Result<String, String> {
    let unknown =
        || format!("{{{{ {template} }}}} is not understood in this release: there are {KNOWN}; or write the address");
    let stages: Vec<Vec<&str>> = template.split('|').map(|stage| stage.split_whitespace().collect()).collect();
    let quoted = |word: &str| word.strip_prefix(['"', '`']).and_then(|w| w.strip_suffix(['"', '`'])).map(str::to_owned);
    let (source, attribute) = match stages.as_slice() {
        [source] => (source, None),
        [source, stage] => match stage.as_slice() {
            ["attr", name] => (source, quoted(name)),
            _ => return Err(unknown()),
        },
        _ => return Err(unknown()),
    };
    // The addresses of IPv4 come first, as those that people mean.
    let mut found: Vec<&InterfaceAddress> = machine.iter().filter(|a| a.up).collect();
    found.sort_by_key(|a| (!a.default_route, a.ip.is_ipv6()));
    let on_default = |a: &&&InterfaceAddress| a.default_route;
    let first = match (source.as_slice(), attribute.is_some()) {
        (["GetPrivateIP"], false) => {
            found.iter().find(|a| a.default_route && private(a.ip)).or_else(|| found.iter().find(|a| private(a.ip)))
        }
        (["GetPublicIP"], false) => found.iter().find(|a| public(a.ip)),
        (["GetInterfaceIP", name], false) => {
            let name = quoted(name).ok_or_else(unknown)?;
            found.iter().find(|a| a.interface == name)
        }
        (["GetDefaultInterfaces"], true) => found.iter().find(on_default),
        (["GetPrivateInterfaces"], true) => found.iter().find(|a| private(a.ip)),
        (["GetPublicInterfaces"], true) => found.iter().find(|a| public(a.ip)),
        _ => return Err(unknown()),
    };
    let first =
        first.ok_or_else(|| format!("{{{{ {template} }}}} finds no address on this machine; write the address"))?;
    match attribute.as_deref() {
        None | Some("address") => Ok(first.ip.to_string()),
        Some("name") => Ok(first.interface.clone()),
        Some(_) => Err(unknown()),
    }
}

fn private(ip: IpAddr) -> bool {
    match ip {
        // Shared addresses of carriers count, too.
        IpAddr::V4(ip) => ip.is_private() || (ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64),
        IpAddr::V6(ip) => ip.is_unique_local(),
    }
}

fn public(ip: IpAddr) -> bool {
    let local = match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified(),
    };
    !local && !private(ip)
}

#[cfg(test)]
mod tests {
    use host::fingerprint::InterfaceAddress;

    use super::expand;

    #[test]
    fn templates_are_the_addresses_of_the_machine() {
        let at = |interface: &str, ip: &str, default_route: bool| InterfaceAddress {
            interface: interface.into(),
            ip: ip.parse().expect("an address"),
            up: interface != "down0",
            default_route,
        };
        let machine = [
            at("lo", "127.0.0.1", false),
            at("down0", "10.9.9.9", false),
            at("docker0", "172.17.0.1", false),
            at("eth0", "fe80::1", true),
            at("eth0", "10.0.0.5", true),
            at("eth1", "198.51.100.7", false),
        ];
        for (text, value) in [
            ("192.0.2.1", "192.0.2.1"),
            ("{{ GetPrivateIP }}", "10.0.0.5"),
            ("{{GetPublicIP}}:4646", "198.51.100.7:4646"),
            ("{{ GetInterfaceIP \"docker0\" }}", "172.17.0.1"),
            ("{{ GetInterfaceIP `eth0` }}", "10.0.0.5"),
            ("{{ GetDefaultInterfaces | attr \"name\" }}", "eth0"),
            ("{{ GetPrivateInterfaces | attr \"address\" }}", "10.0.0.5"),
        ] {
            assert_eq!(expand(text, &machine).expect(text), value, "{text}");
        }
        for (text, part) in [
            ("{{ GetInterfaceIP \"eth7\" }}", "finds no address on this machine"),
            ("{{ GetInterfaceIP \"down0\" }}", "finds no address on this machine"),
            (
                "{{ GetAllInterfaces | include \"network\" \"10.0.0.0/8\" | attr \"address\" }}",
                "is not understood in this release",
            ),
            ("{{ GetPrivateIP", "without }}"),
        ] {
            assert!(expand(text, &machine).expect_err(text).contains(part), "{text}");
        }
    }
}
