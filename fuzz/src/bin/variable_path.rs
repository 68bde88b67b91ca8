//! Paths of variables: which there may be, what policies with globs say of them, and what a task may read by itself.
#![no_main]

use access::{Access, Identity, Need, VariableCapability, parse};
use control::variables::check_path;

const NAMESPACE: &str = "default";

/// Whether a glob fits, by the book: `*` is any text.
fn fits(glob: &[u8], text: &[u8]) -> bool {
    // A place in the text that the glob may have come to, for each of its bytes.
    let mut places: Vec<bool> = (0..=text.len()).map(|at| at == 0).collect();
    for byte in glob {
        let mut next = vec![false; text.len() + 1];
        for at in 0..=text.len() {
            match byte {
                b'*' => next[at] = places[..=at].contains(&true),
                _ => next[at] = at > 0 && places[at - 1] && text[at - 1] == *byte,
            }
        }
        places = next;
    }
    places[text.len()]
}

fn access(path: &str, capability: &str) -> Option<Access> {
    let path = format!("{path:?}");
    let rule = format!("path {path} {{\n      capabilities = [{capability:?}]\n    }}");
    let text = format!("namespace {NAMESPACE:?} {{\n  variables {{\n    {rule}\n  }}\n}}\n");
    parse(&text).ok().map(|rules| Access::of([("p", &rules)]))
}

fn may(access: &Access, path: &str, capability: VariableCapability) -> bool {
    access.allows(&Need::Variable { namespace: NAMESPACE, path, capability })
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    let mut lines = text.splitn(3, '\n');
    let (Some(path), Some(glob)) = (lines.next(), lines.next()) else { return };
    let rest = lines.next().unwrap_or_default();
    let there = check_path(path).is_ok();
    if there {
        // What may be written can be named in a policy, and by nobody else's path.
        for (name, capability) in [
            ("read", VariableCapability::Read),
            ("write", VariableCapability::Write),
            ("list", VariableCapability::List),
            ("destroy", VariableCapability::Destroy),
        ] {
            let own = access(path, name).expect("a policy can name the path of a variable");
            assert!(may(&own, path, capability), "{path:?} {name}");
            assert!(!may(&own, &format!("{path}x"), capability), "{path:?} is more than itself");
        }
        let denied = access(path, "deny").expect("the same");
        assert!(!may(&denied, path, VariableCapability::Read));
        // A path is one: it has no parts that lead elsewhere, and no second spelling in an address.
        assert!(!path.split('/').any(|part| part == "." || part == "..") && !path.contains(['%', '\\', '?', '#']));
    }
    // One glob alone says just what it fits.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_~/*".contains(&byte);
    if there && !glob.is_empty() && glob.bytes().all(plain) {
        if let Some(one) = access(glob, "read") {
            let read = may(&one, path, VariableCapability::Read);
            assert_eq!(read, fits(glob.as_bytes(), path.as_bytes()), "{glob:?} and {path:?}");
            assert!(!may(&one, path, VariableCapability::Write));
        }
    }
    // A task reads what is its own, whatever the names of its job, group and task are.
    let mut names = rest.splitn(3, ',');
    let (job, group, task) = (names.next().unwrap_or_default(), names.next(), names.next());
    if let (false, Some(group), Some(task)) = (job.is_empty(), group, task) {
        let identity = Identity {
            namespace: NAMESPACE.to_owned(),
            job: job.to_owned(),
            group: group.to_owned(),
            task: Some(task.to_owned()),
        };
        let access = Access::none().with_identity(identity);
        let own = ["nomad/jobs".to_owned(), format!("nomad/jobs/{job}"), format!("nomad/jobs/{job}/{group}")];
        let own = own.into_iter().chain([format!("nomad/jobs/{job}/{group}/{task}")]).any(|own| own == path);
        assert_eq!(may(&access, path, VariableCapability::Read), own, "{job:?} {group:?} {task:?} and {path:?}");
        assert!(!may(&access, path, VariableCapability::Write) && !may(&access, path, VariableCapability::Destroy));
    }
});
