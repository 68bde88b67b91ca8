//! The pure crates know no clock, randomness, files, environment, network, threads or tables of the whole process, and
//! link nothing that does.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::source::Source;
use crate::{edges::PURE, process::Run, workspace};

/// The lint file that each pure crate has.
pub(super) const LINTS: &str = include_str!("pure-clippy.toml");

/// Where a pure crate keeps it.
pub(super) fn lint_file(name: &str) -> String {
    format!("crates/{name}/clippy.toml")
}

/// Parts of std that a pure crate does not name. Addresses of the network are values and may be used.
const FORBIDDEN: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];
const ALLOWED: &[&str] = &[
    "std::net::IpAddr",
    "std::net::Ipv4Addr",
    "std::net::Ipv6Addr",
    "std::net::SocketAddr",
    "std::net::AddrParseError",
];
/// Types that change behind a shared reference: in a `static` they are a table of the whole process.
const CHANGING: &[&str] = &["Atomic", "Cell<", "LazyLock", "Mutex", "OnceCell", "OnceLock", "RwLock"];

/// What today's code may do in spite of that: file, what, why.
pub(super) const EXEMPT: &[(&str, &str, &str)] = &[
    (
        "crates/hcl-lang/src/functions/host.rs",
        "std::fs",
        "`DiskHost` is the one door to files; callers choose it, and servers shut it",
    ),
    ("crates/hcl-lang/src/functions/host.rs", "std::env", "the home directory, for the paths of `DiskHost`"),
    ("crates/hcl-lang/src/functions/host.rs", "new_v4", "the random bytes of `DiskHost`"),
    ("crates/hcl-lang/src/room.rs", "std::thread", "a larger stack for deeply nested text; the caller waits for it"),
    ("crates/lifecycle/src/mutation.rs", "static CHOSEN", "the break of a test build; no other build has it"),
    ("crates/model/src/common.rs", "static TEXTS", "equal values are kept once; only memory shows it"),
    ("crates/model/src/alloc.rs", "static HAPPENINGS", "equal values are kept once; only memory shows it"),
    ("crates/model/src/remote.rs", "static POLICIES", "equal values are kept once; only memory shows it"),
];

/// Packages that the pure crates may link, at any depth. One that is not here is a decision: what does it read, and of
/// whom? `jiff` reads the system's time zones, and its clock is shut by the lint file; `rand_core` and `rand_xoshiro`
/// compute from a seed.
#[rustfmt::skip]
const LINKED: &[&str] = &[
    "aho-corasick", "annotate-snippets", "anstyle", "archery", "base64", "bcrypt", "block-buffer", "blowfish", "bstr",
    "bytemuck",
    "byteorder", "cfg-if", "cipher", "const-oid", "cpufeatures", "crypto-common", "digest", "equivalent", "fnv",
    "globset", "hashbrown",
    "hcl-edit", "hcl-primitives", "hybrid-array", "imbl", "imbl-sized-chunks", "indexmap", "inout", "itoa", "jiff",
    "jiff-core",
    "libyaml-rs", "md-5", "memchr", "num-bigint", "num-integer", "num-traits", "pratt", "rand_core", "rand_xoshiro",
    "regex",
    "regex-automata", "regex-syntax", "ryu", "safe_arch", "serde", "serde_core", "serde_json", "sha1", "sha1_smol",
    "sha2", "subtle",
    "thiserror", "typenum", "unicode-ident", "unicode-segmentation", "unicode-width", "uuid", "vecmap-rs", "wide",
    "winnow", "yaml_serde", "zeroize", "zmij",
];

/// Packages with an effect that pure crates link all the same: which, from where, why.
const IMPURE_LINKED: &[(&str, &[&str], &str)] = &[
    (
        "hcl-lang",
        &["chacha20", "getrandom", "libc", "rand"],
        "random bytes of `DiskHost`; bcrypt links getrandom for salts that it is always given",
    ),
    ("access", &["chacha20", "getrandom", "libc", "rand"], "through hcl-lang"),
    ("control", &["chacha20", "getrandom", "libc", "rand"], "through access, which reads policies with hcl-lang"),
    ("jobspec", &["chacha20", "getrandom", "libc", "rand"], "through hcl-lang"),
];

/// The code without comments, texts and test modules.
fn code(text: &str) -> String {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            // An attribute's module, function or import, up to where it ends in the first column.
            for line in lines.by_ref() {
                if line == "}" || (line.ends_with(';') && !line.starts_with(' ')) {
                    break;
                }
            }
            continue;
        }
        let line = line.split("//").next().unwrap_or_default().replace("'\"'", "");
        kept.push(line.split('"').step_by(2).collect::<Vec<_>>().join("\"\""));
    }
    kept.join("\n")
}

/// Paths of std in the code, with what `use std::{…}` names in braces written out.
fn paths(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("std::") {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        spell("std", &code[at + 5..], &mut found);
    }
    found
}

/// Reads one path, or a list of paths in braces; gives back what follows.
fn spell<'a>(before: &str, rest: &'a str, found: &mut BTreeSet<String>) -> &'a str {
    let rest = rest.trim_start();
    if let Some(mut rest) = rest.strip_prefix('{') {
        loop {
            rest = spell(before, rest, found).trim_start();
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
            if let Some(end) = rest.trim_start().strip_prefix('}') {
                return end;
            }
        }
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let path = format!("{before}::{}", &rest[..end]);
    match rest[end..].strip_prefix("::") {
        Some(more) => spell(&path, more, found),
        None => {
            found.insert(path);
            // `as name` is passed over.
            let rest = &rest[end..];
            rest.strip_prefix(" as ").map_or(rest, |r| r.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'))
        }
    }
}

/// What this file does that a pure one must not.
fn effects(text: &str) -> BTreeSet<String> {
    let code = code(text);
    let begins = |path: &str, with: &&&str| {
        path == **with || path.strip_prefix(**with).is_some_and(|rest| rest.starts_with("::"))
    };
    let mut found = BTreeSet::new();
    for path in paths(&code) {
        if let Some(part) = FORBIDDEN.iter().find(|part| begins(&path, part)) {
            found.extend((!ALLOWED.iter().any(|allowed| begins(&path, &allowed))).then(|| (*part).to_owned()));
        }
    }
    for name in ["new_v4", "now_v6", "now_v7", "Timestamp::now", "Zoned::now", "thread_local!"] {
        found.extend(code.contains(name).then(|| name.to_owned()));
    }
    for line in code.lines() {
        let line = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        if let Some((name, kind)) = line.strip_prefix("static ").and_then(|rest| rest.split_once(':')) {
            found.extend(CHANGING.iter().any(|part| kind.contains(part)).then(|| format!("static {name}")));
        }
    }
    found
}

/// Effects in pure crates that no exemption covers, and exemptions that cover nothing.
pub(super) fn impure(sources: &[Source], exempt: &[(&str, &str, &str)]) -> Vec<String> {
    let (mut wrong, mut needed) = (Vec::new(), BTreeSet::new());
    for source in sources.iter().filter(|s| s.is("rs") && !s.path.ends_with("tests.rs")) {
        if !PURE.iter().any(|name| source.path.starts_with(&format!("crates/{name}/src/"))) {
            continue;
        }
        for effect in effects(&source.text) {
            match exempt.iter().find(|(path, what, _)| *path == source.path && *what == effect) {
                Some((path, what, _)) => drop(needed.insert((*path, *what))),
                None => wrong.push(format!("{} uses {effect}; its crate is pure: take it as an argument", source.path)),
            }
        }
    }
    let idle = exempt.iter().filter(|(path, what, _)| !needed.contains(&(*path, *what)));
    wrong.extend(
        idle.map(|(path, what, _)| {
            format!("{path} no longer needs its exemption for {what} in xtask/src/tidy/purity.rs")
        }),
    );
    wrong
}

/// Pure crates without the lint file that all of them have.
pub(super) fn lint_files(sources: &[Source]) -> Vec<String> {
    let has = |name: &str| sources.iter().any(|s| s.path == lint_file(name) && s.text == LINTS);
    let lacking = PURE.iter().filter(|name| !has(name));
    lacking
        .map(|name| format!("{} is not the lint file of pure crates: run `cargo xtask lint --update`", lint_file(name)))
        .collect()
}

/// What `cargo tree` prints of a crate: the packages that it links, at any depth.
fn packages(tree: &str) -> BTreeSet<&str> {
    tree.lines().filter(|line| !line.contains("(proc-macro)")).filter_map(|line| line.split(' ').next()).collect()
}

/// Packages that a pure crate links and no list allows, and entries of the lists that nothing links.
fn compare(
    linked: &BTreeMap<String, BTreeSet<String>>,
    allowed: &[&str],
    impure: &[(&str, &[&str], &str)],
) -> Vec<String> {
    let (mut wrong, mut needed) = (Vec::new(), BTreeSet::new());
    let mut lacking: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, packages) in linked {
        for package in packages.iter().filter(|package| !PURE.contains(&package.as_str())) {
            let listed = allowed.contains(&package.as_str());
            let excused = impure.iter().any(|(of, what, _)| of == name && what.contains(&package.as_str()));
            if excused {
                needed.insert((name.as_str(), package.as_str()));
            } else if !listed {
                lacking.entry(package).or_default().push(name);
            }
        }
    }
    for (package, names) in lacking {
        wrong.push(format!(
            "{} must be pure and link {package}, which no list of xtask/src/tidy/purity.rs allows",
            names.join(", ")
        ));
    }
    let everywhere: BTreeSet<&str> = linked.values().flatten().map(String::as_str).collect();
    let idle = allowed.iter().filter(|package| !everywhere.contains(**package));
    wrong.extend(idle.map(|package| format!("no pure crate links {package}: take it from xtask/src/tidy/purity.rs")));
    for (of, packages, _) in impure {
        let idle = packages.iter().filter(|package| !needed.contains(&(*of, **package)));
        wrong.extend(
            idle.map(|package| {
                format!("{of} does not link {package}: take the exemption from xtask/src/tidy/purity.rs")
            }),
        );
    }
    wrong
}

/// The same of today's manifests. Each crate is looked at by itself, as somebody who depends on nothing else would link
/// it.
pub(super) fn linked() -> Result<Vec<String>> {
    let mut linked = BTreeMap::new();
    for name in PURE {
        let words = [
            "tree",
            "--offline",
            "--package",
            *name,
            "--edges",
            "normal,no-proc-macro",
            "--prefix",
            "none",
            "--no-dedupe",
        ];
        let tree = Run::new("cargo", words)
            .dir(workspace::root())
            .env("CARGO_RESOLVER_FEATURE_UNIFICATION", "selected")
            .output()?;
        linked.insert((*name).to_owned(), packages(&tree).into_iter().map(str::to_owned).collect());
    }
    Ok(compare(&linked, LINKED, IMPURE_LINKED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_effect_is_seen() {
        for (text, effect) in [
            ("use std::fs;", "std::fs"),
            ("use std::{collections::BTreeMap, fs::File};", "std::fs"),
            ("use std::{\n    sync::{Arc, Mutex},\n    time::{Duration, Instant},\n};", "std::time::Instant"),
            ("fn a() { std::env::var(\"HOME\").ok(); }", "std::env"),
            ("fn a() { let _ = std::net::TcpStream::connect(\"a\"); }", "std::net"),
            ("fn a() { std::process::exit(1) }", "std::process"),
            ("fn a() { let _ = std::time::SystemTime::now(); }", "std::time::SystemTime"),
            ("fn a() -> Uuid { Uuid::new_v4() }", "new_v4"),
            ("static TABLE: LazyLock<Mutex<u8>> = LazyLock::new(Mutex::default);", "static TABLE"),
            ("    pub static COUNT: AtomicU64 = AtomicU64::new(0);", "static COUNT"),
        ] {
            assert_eq!(effects(text), BTreeSet::from([effect.to_owned()]), "{text}");
        }
    }

    #[test]
    fn values_comments_texts_and_tests_are_no_effects() {
        let text = "//! std::fs\nuse std::{net::{IpAddr, Ipv4Addr}, time::Duration};\nconst A: &str \
            = \"std::env::var\";\nstatic B: Type = Type(&[]);\n\
                    #[cfg(test)]\nmod tests {\n    use std::fs;\n}\n#[cfg(test)]\nmod more;\nfn c() {} // \
                    std::process\n";
        assert_eq!(effects(text), BTreeSet::new());
    }

    #[test]
    fn an_effect_needs_an_exemption_and_an_exemption_an_effect() {
        let sources = [
            Source::new("crates/model/src/a.rs", "use std::fs;"),
            Source::new("crates/client/src/a.rs", "use std::fs;"),
        ];
        assert_eq!(impure(&sources, &[]).len(), 1);
        let exempt = ("crates/model/src/a.rs", "std::fs", "why");
        assert_eq!(impure(&sources, &[exempt]), Vec::<String>::new());
        assert!(impure(&sources[1..], &[exempt])[0].contains("no longer needs"));
        assert_eq!(lint_files(&[Source::new("crates/model/clippy.toml", "")]).len(), PURE.len());
        assert_eq!(lint_files(&[Source::new("crates/model/clippy.toml", LINTS)]).len(), PURE.len() - 1);
    }

    #[test]
    fn a_package_below_needs_a_line() {
        let tree = "model v0.1.0 (/a)\nuuid v1.29.1\nrand v0.10.3\nserde_derive v1.0.229 (proc-macro)\n";
        let of_it: BTreeSet<String> = packages(tree).into_iter().map(str::to_owned).collect();
        let linked = BTreeMap::from([("model".to_owned(), of_it)]);
        assert!(compare(&linked, &["uuid"], &[])[0].starts_with("model must be pure and link rand"));
        assert_eq!(compare(&linked, &["uuid"], &[("model", &["rand"], "why")]), Vec::<String>::new());
        assert_eq!(compare(&linked, &["uuid", "rand", "tokio"], &[]).len(), 1);
        assert_eq!(compare(&linked, &["uuid", "rand"], &[("model", &["libc"], "why")]).len(), 1);
    }
}
