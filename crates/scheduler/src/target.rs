//! Operands of rules: attributes of nodes, or literal text.

use std::borrow::Cow;

use model::node::Node;

/// One side of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Literal(String),
    Datacenter,
    Class,
    Pool,
    Region,
    UniqueId,
    UniqueName,
    Attr(String),
    Meta(String),
    Driver(String),
    /// A reference to a property that nodes lack.
    Nothing,
}

impl Target {
    pub(crate) fn parse(text: &str) -> Self {
        let Some(inner) = text.strip_prefix("${").and_then(|t| t.strip_suffix('}')) else {
            return Self::Literal(text.to_owned());
        };
        match inner {
            "node.unique.id" => Self::UniqueId,
            "node.unique.name" => Self::UniqueName,
            "node.datacenter" => Self::Datacenter,
            "node.class" => Self::Class,
            "node.pool" => Self::Pool,
            "node.region" => Self::Region,
            _ => match inner.split_once('.') {
                Some(("attr", name)) => Self::Attr(name.to_owned()),
                Some(("meta", name)) => Self::Meta(name.to_owned()),
                Some(("driver", name)) => Self::Driver(name.to_owned()),
                _ => Self::Nothing,
            },
        }
    }

    /// Whether it differs between nodes of one class.
    pub(crate) fn unique(&self) -> bool {
        match self {
            Self::UniqueId | Self::UniqueName => true,
            Self::Attr(n) | Self::Meta(n) => n.starts_with("unique."),
            _ => false,
        }
    }

    pub(crate) fn resolve<'a>(&'a self, node: &'a Node, region: &'a str) -> Option<Cow<'a, str>> {
        let text = |s: &'a str| Some(Cow::Borrowed(s));
        match self {
            Self::Literal(s) => text(s),
            Self::Datacenter => text(&node.datacenter),
            Self::Class => text(&node.class),
            Self::Pool => text(&node.pool),
            Self::Region => text(region),
            Self::UniqueId => Some(Cow::Owned(node.id.to_string())),
            Self::UniqueName => text(&node.name),
            Self::Attr(name) => node.attributes.get(&**name).map(|s| Cow::Borrowed(&**s)),
            Self::Meta(name) => node.meta.get(&**name).map(|s| Cow::Borrowed(&**s)),
            Self::Driver(name) => {
                node.drivers.get(name).filter(|d| d.detected && d.healthy).map(|_| Cow::Borrowed("1"))
            }
            Self::Nothing => None,
        }
    }
}
