//! From an identity to what its token may do: the binding rules of a method.

use std::collections::BTreeSet;

use filter::Filter;

use crate::mapping::Identity;

/// What a rule gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    /// Everything.
    Management,
    /// A role, by name.
    Role,
    /// A policy, by name.
    Policy,
}

impl Bind {
    /// Reads `management`, `role` or `policy`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "management" => Self::Management,
            "role" => Self::Role,
            "policy" => Self::Policy,
            _ => return None,
        })
    }
}

/// A binding rule as it is written.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'r> {
    /// Its id.
    pub id: &'r str,
    /// Which identities; empty = all.
    pub selector: &'r str,
    /// `role`, `policy` or `management`.
    pub bind_type: &'r str,
    /// Template of a name.
    pub bind_name: &'r str,
}

/// What a token may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Everything; then roles and policies do not count.
    pub management: bool,
    /// Names of roles.
    pub roles: BTreeSet<String>,
    /// Names of policies.
    pub policies: BTreeSet<String>,
}

impl Grant {
    /// Nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.management && self.roles.is_empty() && self.policies.is_empty()
    }
}

/// What became of one rule, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Outcome {
    /// It gave something.
    #[error("it gives {0:?}")]
    Given(
        /// The name; empty for management.
        String,
    ),
    /// The identity is none of its.
    #[error("its selector does not match")]
    NotMatched,
    /// The selector could not be asked. It matches nobody.
    #[error("its selector matches nobody: {0}")]
    Selector(
        /// Why.
        String,
    ),
    /// The name could not be made. It gives nothing: one bad rule does not lock everybody out.
    #[error("it gives nothing: {0}")]
    Name(
        /// Why.
        String,
    ),
    /// There is no role or policy of this name.
    #[error("it gives nothing: there is no such role or policy: {0:?}")]
    Missing(
        /// The name.
        String,
    ),
    /// It is of no kind that is known.
    #[error("it gives nothing: unsupported bind type: {0:?}")]
    Kind(
        /// As it is written.
        String,
    ),
}

/// What the rules give this identity, and what became of each. `exists` tells whether there is a role or policy.
pub fn bind<'r>(
    rules: impl IntoIterator<Item = Rule<'r>>,
    identity: &Identity,
    exists: impl Fn(Bind, &str) -> bool,
) -> (Grant, Vec<(&'r str, Outcome)>) {
    let (mut grant, mut outcomes) = (Grant::default(), Vec::new());
    for rule in rules {
        outcomes.push((rule.id, apply(&rule, identity, &exists, &mut grant)));
    }
    if grant.management {
        grant = Grant { management: true, ..Grant::default() };
    }
    (grant, outcomes)
}

fn apply(rule: &Rule<'_>, identity: &Identity, exists: &impl Fn(Bind, &str) -> bool, grant: &mut Grant) -> Outcome {
    match selected(rule.selector, identity) {
        Ok(true) => {}
        Ok(false) => return Outcome::NotMatched,
        Err(why) => return Outcome::Selector(why),
    }
    let Some(kind) = Bind::named(rule.bind_type) else { return Outcome::Kind(rule.bind_type.to_owned()) };
    if kind == Bind::Management {
        grant.management = true;
        return Outcome::Given(String::new());
    }
    let name = match bind_name(rule.bind_name, identity) {
        Ok(name) => name,
        Err(why) => return Outcome::Name(why),
    };
    if !exists(kind, &name) {
        return Outcome::Missing(name);
    }
    if kind == Bind::Role { &mut grant.roles } else { &mut grant.policies }.insert(name.clone());
    Outcome::Given(name)
}

fn selected(selector: &str, identity: &Identity) -> Result<bool, String> {
    if selector.trim().is_empty() {
        return Ok(true);
    }
    let filter = Filter::parse(selector).map_err(|e| e.to_string())?;
    filter.matches(identity).map_err(|e| e.to_string())
}

/// Whether a selector can be read.
///
/// # Errors
/// Why not.
pub fn check_selector(selector: &str) -> Result<(), String> {
    if selector.trim().is_empty() {
        return Ok(());
    }
    Filter::parse(selector).map(drop).map_err(|e| e.to_string())
}

/// A piece of a template of names.
enum Piece<'t> {
    Text(&'t str),
    /// Position of the variable, for errors, and the variable.
    Variable(usize, &'t str),
}

/// Reads `eng-${value.unit}`; `$${` stands for `${`.
fn pieces(template: &str) -> Result<Vec<Piece<'_>>, String> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(open) = template[at..].find("${").map(|i| at + i) {
        if template[at..open].ends_with('$') {
            found.extend([Piece::Text(&template[at..open - 1]), Piece::Text("${")]);
            at = open + 2;
            continue;
        }
        found.push(Piece::Text(&template[at..open]));
        let inside = &template[open + 2..];
        let end = inside.find('}').ok_or_else(|| format!("1:{}: expected \"}}\" after \"${{\"", open + 1))?;
        let name = inside[..end].trim();
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || !name.chars().all(plain) {
            return Err(format!("1:{}: {name:?} is not a variable, such as value.team", open + 3));
        }
        found.push(Piece::Variable(open + 3, name));
        at = open + 2 + end + 1;
    }
    found.push(Piece::Text(&template[at..]));
    Ok(found)
}

/// The name that a template makes. What comes from claims is lower-cased, what the rule itself says is not.
///
/// # Errors
/// When the template is broken, or names a variable that the identity does not have.
pub fn bind_name(template: &str, identity: &Identity) -> Result<String, String> {
    let mut name = String::new();
    for piece in pieces(template)? {
        match piece {
            Piece::Text(text) => name.push_str(text),
            Piece::Variable(at, variable) => {
                let value = variable.strip_prefix("value.").and_then(|key| identity.value.get(key));
                let value = value.ok_or_else(|| unknown(at, variable))?;
                name.push_str(&value.to_lowercase());
            }
        }
    }
    Ok(name)
}

/// Whether a template of names can be read.
///
/// # Errors
/// Why not.
pub fn check_bind_name(template: &str) -> Result<(), String> {
    pieces(template).map(drop)
}

/// The name of a token of this method. Values of the identity stay as they are; one that it does not have is left out:
/// a name for people locks nobody out.
///
/// # Errors
/// When the template is broken, or names something else than the method and values.
pub fn token_name(template: &str, kind: &str, method: &str, identity: &Identity) -> Result<String, String> {
    let mut name = String::new();
    for piece in pieces(template)? {
        match piece {
            Piece::Text(text) => name.push_str(text),
            Piece::Variable(_, "auth_method_type") => name.push_str(kind),
            Piece::Variable(_, "auth_method_name") => name.push_str(method),
            Piece::Variable(at, variable) => {
                let key = variable.strip_prefix("value.").ok_or_else(|| unknown(at, variable))?;
                name.push_str(identity.value.get(key).map_or("", String::as_str));
            }
        }
    }
    Ok(name)
}

fn unknown(at: usize, variable: &str) -> String {
    format!("1:{at}: unknown variable accessed: {variable}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity() -> Identity {
        Identity {
            value: [("unit", "Eng"), ("name", "ann")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            list: [("groups".to_owned(), vec!["ops".to_owned(), "dev".to_owned()])].into(),
        }
    }

    fn rule<'r>(id: &'r str, selector: &'r str, bind_type: &'r str, bind_name: &'r str) -> Rule<'r> {
        Rule { id, selector, bind_type, bind_name }
    }

    #[test]
    fn rules_give_what_exists_and_a_bad_one_locks_nobody_out() {
        let rules = [
            rule("all", "", "policy", "base"),
            rule("ops", r#""ops" in list.groups and value.unit=="Eng""#, "role", "ops-${value.unit}"),
            rule("other", r#"value.unit == "sales""#, "management", ""),
            rule("absent key", r#"value.nope == "x""#, "management", ""),
            rule("absent list", r#""x" in list.nope"#, "management", ""),
            rule("broken", "value.unit ==", "management", ""),
            rule("odd", r#"nothing.here == "x""#, "management", ""),
            rule("unknown", "", "policy", "p-${value.nope}"),
            rule("missing", "", "policy", "gone"),
            rule("kind", "", "quota", "x"),
        ];
        let exists = |_: Bind, name: &str| name != "gone";
        let (grant, outcomes) = bind(rules, &identity(), exists);
        assert!(!grant.management, "{grant:?}");
        assert_eq!((grant.roles, grant.policies), (["ops-eng".to_owned()].into(), ["base".to_owned()].into()));
        let said: Vec<String> = outcomes.iter().map(|(_, outcome)| outcome.to_string()).collect();
        assert_eq!(said[2], "its selector does not match");
        assert!(said[5].starts_with("its selector matches nobody: 1:14"), "{}", said[5]);
        assert!(said[6].starts_with("its selector matches nobody: error finding value"), "{}", said[6]);
        assert_eq!(said[7], "it gives nothing: 1:5: unknown variable accessed: value.nope");
        assert_eq!(said[8], r#"it gives nothing: there is no such role or policy: "gone""#);
        assert_eq!(said[9], r#"it gives nothing: unsupported bind type: "quota""#);
    }

    #[test]
    fn management_wins_over_everything() {
        let rules = [rule("a", "", "policy", "base"), rule("b", r#"list.groups contains "ops""#, "management", "")];
        let (grant, _) = bind(rules, &identity(), |_, _| true);
        assert_eq!(grant, Grant { management: true, ..Grant::default() });
        assert!(bind([rules[1]], &Identity::default(), |_, _| true).0.is_empty());
    }

    #[test]
    fn selectors_in_the_language_of_filters() {
        for (selector, matches) in [
            ("value.unit != \"Eng\"", false),
            ("value[\"unit\"] == Eng", true),
            ("not (value.unit == Eng) or value.name matches \"^a.n$\"", true),
            ("dev not in list.groups", false),
            ("list.groups is not empty and value is not empty", true),
            ("list.nope is empty", true),
        ] {
            assert_eq!(selected(selector, &identity()), Ok(matches), "{selector}");
            assert_eq!(check_selector(selector), Ok(()), "{selector}");
        }
        assert!(check_selector("and").is_err());
    }

    #[test]
    fn names_are_made_of_lower_cased_values() {
        for (template, name) in [
            ("Plain", Ok("Plain")),
            ("x-${value.unit}-${ value.name }", Ok("x-eng-ann")),
            ("$${value.unit}", Ok("${value.unit}")),
            ("$5", Ok("$5")),
            ("${value.unit", Err("1:1: expected \"}\" after \"${\"")),
            ("a${upper(value.unit)}", Err("1:4: \"upper(value.unit)\" is not a variable, such as value.team")),
            ("${list.groups}", Err("1:3: unknown variable accessed: list.groups")),
        ] {
            assert_eq!(bind_name(template, &identity()), name.map(str::to_owned).map_err(str::to_owned), "{template}");
        }
        assert!(check_bind_name("${}").is_err() && check_bind_name("${value.x}").is_ok());
    }

    #[test]
    fn a_token_is_named_by_its_method_and_values() {
        for (template, name) in [
            ("${auth_method_type}-${auth_method_name}", Ok("JWT-github")),
            ("${value.unit} ${value.nope}", Ok("Eng ")),
            ("${list.groups}", Err("1:3: unknown variable accessed: list.groups")),
            ("${value.unit", Err("1:1: expected \"}\" after \"${\"")),
        ] {
            let found = token_name(template, "JWT", "github", &identity());
            assert_eq!(found, name.map(str::to_owned).map_err(str::to_owned), "{template}");
        }
    }

    proptest! {
        #[test]
        fn any_template_is_read_or_refused(template in "[a-z${}. äß]{0,40}") {
            let _ = bind_name(&template, &identity());
        }
    }
}
