//! From claims to the values that binding rules see.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::Claims;

/// What rules see of an identity: `value.NAME` and `list.NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Identity {
    /// Of `ClaimMappings`.
    pub value: BTreeMap<String, String>,
    /// Of `ListClaimMappings`.
    pub list: BTreeMap<String, Vec<String>>,
}

/// A list claim holds something else than texts, numbers and booleans.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} list claim could not be converted to string list")]
pub struct NoList(
    /// The claim.
    pub String,
);

/// Takes what the mappings name (claim or JSON pointer to name); a claim that the token lacks is left out.
///
/// # Errors
/// When a list claim cannot be a list of texts.
pub fn identity(
    claims: &Claims,
    values: &BTreeMap<String, String>,
    lists: &BTreeMap<String, String>,
) -> Result<Identity, NoList> {
    let mut found = Identity::default();
    for (claim, name) in values {
        if let Some(text) = find(claims, claim).and_then(as_text) {
            found.value.insert(name.clone(), text);
        }
    }
    for (claim, name) in lists {
        let Some(value) = find(claims, claim) else { continue };
        let items = match value {
            Value::Array(items) => items.iter().map(scalar).collect(),
            // A provider with one group may leave out the list.
            one => scalar(one).map(|text| vec![text]),
        };
        found.list.insert(name.clone(), items.ok_or_else(|| NoList(claim.clone()))?);
    }
    Ok(found)
}

/// A claim by its name, or by a pointer that begins with a slash (RFC 6901).
fn find<'c>(claims: &'c Claims, claim: &str) -> Option<&'c Value> {
    let Some(rest) = claim.strip_prefix('/') else { return claims.get(claim) };
    let (first, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    claims.get(&first.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Lists and objects as JSON. Nothing where there is null.
fn as_text(value: &Value) -> Option<String> {
    if value.is_null() { None } else { scalar(value).or_else(|| Some(value.to_string())) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(claim, name)| ((*claim).to_owned(), (*name).to_owned())).collect()
    }

    #[test]
    fn claims_become_values_and_lists() {
        let claims = json!({
            "sub": "ann", "n": 7, "on": true, "a": ["x", 1], "o": {"deep/er": {"unit": "eng"}}, "null": null,
            "groups": ["ops", 2, false], "one": "solo", "bad": [["x"]], "/odd": "never by its name",
        });
        let claims = claims.as_object().expect("an object");
        let values = names(&[
            ("sub", "who"),
            ("n", "n"),
            ("on", "on"),
            ("a", "a"),
            ("/o/deep~1er/unit", "unit"),
            ("none", "none"),
            ("null", "null"),
            ("/odd", "odd"),
            ("/a/0", "first"),
        ]);
        let found = identity(claims, &values, &names(&[("groups", "groups"), ("one", "one"), ("none", "none")]));
        let found = found.expect("an identity");
        let texts: Vec<(&str, &str)> = found.value.iter().map(|(k, v)| (&**k, &**v)).collect();
        let wanted = [("a", r#"["x",1]"#), ("first", "x"), ("n", "7"), ("on", "true"), ("unit", "eng"), ("who", "ann")];
        assert_eq!(texts, wanted);
        assert_eq!(found.list["groups"], ["ops", "2", "false"]);
        assert_eq!((&*found.list["one"], found.list.len()), (&["solo".to_owned()][..], 2));
        for bad in ["bad", "o", "null"] {
            let refused = identity(claims, &BTreeMap::new(), &names(&[(bad, "x")])).expect_err(bad).to_string();
            assert_eq!(refused, format!("{bad:?} list claim could not be converted to string list"));
        }
    }
}
