//! What templates ask of a registry of services.

/// Which places of a service a template asks for: `TAG.NAME?ns=NAMESPACE@REGION`, all but the name optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceQuery {
    /// Name of the service.
    pub name: String,
    /// In this namespace; none = the task's own.
    pub namespace: Option<String>,
    /// In this region; none = the task's own.
    pub region: Option<String>,
    /// So many places, and the key for which they are always the same while they last.
    pub choose: Option<(u32, String)>,
}

/// A place where a service is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlace {
    /// Id of the registration.
    pub id: String,
    /// Name of the service.
    pub name: String,
    /// Id of the node.
    pub node: String,
    /// Address.
    pub address: String,
    /// Port; 0 = the service has none.
    pub port: i64,
    /// Datacenter of the node.
    pub datacenter: String,
    /// Tags.
    pub tags: Vec<String>,
    /// Id of the job.
    pub job: String,
    /// Id of the allocation.
    pub alloc: String,
}

/// A service in the list of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceName {
    /// Name.
    pub name: String,
    /// All tags of its places.
    pub tags: Vec<String>,
}

fn word(text: &str, more: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || more.contains(c))
}

/// Reads a query; the tag beside it is looked for in what is found.
pub(crate) fn parse_query(text: &str) -> Result<(ServiceQuery, Option<String>), String> {
    let wrong =
        || format!("{text:?} is no query for a service: TAG.NAME?ns=NAMESPACE@REGION, all but the name optional");
    let (rest, region) = match text.split_once('@') {
        Some((rest, region)) => (rest, Some(region.to_owned())),
        None => (text, None),
    };
    let (rest, namespace) = match rest.split_once("?ns=") {
        Some((rest, namespace)) => (rest, Some(namespace.to_owned()).filter(|n| !n.is_empty())),
        None => (rest, None),
    };
    let (tag, name) = match rest.rsplit_once('.') {
        Some((tag, name)) => (Some(tag.to_owned()), name),
        None => (None, rest),
    };
    let fine = word(name, "-")
        && tag.as_deref().is_none_or(|t| word(t, "=:.-"))
        && namespace.as_deref().is_none_or(|n| word(n, "-"))
        && region.as_deref().is_none_or(|r| word(r, ".-"));
    if !fine {
        return Err(wrong());
    }
    Ok((ServiceQuery { name: name.to_owned(), namespace, region, choose: None }, tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_name_a_service_and_more() {
        let query = |name: &str, namespace: Option<&str>, region: Option<&str>| ServiceQuery {
            name: name.into(),
            namespace: namespace.map(Into::into),
            region: region.map(Into::into),
            choose: None,
        };
        for (text, wanted, tag) in [
            ("web", query("web", None, None), None),
            ("v1.2.web-a", query("web-a", None, None), Some("v1.2")),
            ("web?ns=prod@eu", query("web", Some("prod"), Some("eu")), None),
            ("web?ns=", query("web", None, None), None),
            ("a=b.web@eu-1.x", query("web", None, Some("eu-1.x")), Some("a=b")),
        ] {
            assert_eq!(parse_query(text), Ok((wanted, tag.map(Into::into))), "{text}");
        }
        for text in ["", "web ", "web/x", ".web", "web@", "web?ns=a b", "web|passing", "web?ns=*"] {
            parse_query(text).expect_err(text);
        }
    }
}
