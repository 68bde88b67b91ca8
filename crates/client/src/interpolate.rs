//! `${name}` in texts of a job that are not HCL expressions any more: environment, metadata, user names.

/// Replaces each `${name}` that `lookup` knows; anything else stays as it was written.
#[must_use]
pub fn interpolate<'a>(
    text: &str,
    lookup: impl Fn(&str) -> Option<std::borrow::Cow<'a, str>>,
) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(end) = rest.find('}') else { break };
        let name = rest[2..end].trim();
        // env["X"] is the other spelling of X.
        let plain = name
            .strip_prefix("env[\"")
            .and_then(|n| n.strip_suffix("\"]"))
            .unwrap_or(name);
        let known = !plain.is_empty()
            && plain
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        match known.then(|| lookup(plain)).flatten() {
            Some(value) => {
                out.push_str(&value);
                rest = &rest[end + 1..];
            }
            None => {
                // Only the opening is taken over, so that `${${x}}` still finds x.
                out.push_str("${");
                rest = &rest[2..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_replaced_and_the_rest_stays() {
        let lookup = |name: &str| match name {
            "NOMAD_PORT_http" => Some("8080".into()),
            "attr.kernel.name" => Some("linux".into()),
            "meta.a-b" => Some("x".into()),
            _ => None,
        };
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            (":${NOMAD_PORT_http}/", ":8080/"),
            ("${attr.kernel.name}${meta.a-b}", "linuxx"),
            ("${unknown}", "${unknown}"),
            ("${", "${"),
            ("${}", "${}"),
            ("${NOMAD_PORT_http", "${NOMAD_PORT_http"),
            ("${env[\"NOMAD_PORT_http\"]}", "8080"),
            ("$NOMAD_PORT_http", "$NOMAD_PORT_http"),
            ("${${NOMAD_PORT_http}}", "${8080}"),
            ("ü${NOMAD_PORT_http}ü", "ü8080ü"),
        ] {
            assert_eq!(interpolate(text, lookup), expected, "{text:?}");
        }
    }
}
