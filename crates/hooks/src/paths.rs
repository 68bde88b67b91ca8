//! Resolves the paths in a job to places below a task's directories.

use std::path::{Component, Path, PathBuf};

use host::{dirs::TaskDirs, env::PathView};

/// A path below a directory of the task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Whether it lies below the directory that the tasks share.
    pub(crate) shared: bool,
    /// Path relative to that directory.
    pub path: PathBuf,
}

/// Resolves a path of a job: relative to the task's directory, or as the task sees it.
pub(crate) fn place(path: &str, dirs: &TaskDirs, view: PathView) -> Result<Place, String> {
    let given = Path::new(path);
    let outside = || format!("{path:?} is not below the task's directories");
    let inside_view = view != PathView::Host;
    let (mut shared, rest) = match (given.strip_prefix(&dirs.root), given.strip_prefix(&dirs.alloc)) {
        (Ok(rest), _) => (false, rest),
        (_, Ok(rest)) => (true, rest),
        _ if given.is_absolute() && !inside_view => return Err(outside()),
        _ => (false, given),
    };
    let mut names: Vec<&std::ffi::OsStr> = Vec::new();
    for part in rest.components() {
        match part {
            Component::Normal(name) => names.push(name),
            Component::ParentDir => drop(names.pop().ok_or_else(outside)?),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    // Where tasks see `/alloc`, it is the shared directory.
    if inside_view && !shared && names.first().is_some_and(|n| *n == "alloc") {
        shared = true;
        names.remove(0);
    }
    match names.first() {
        None => Err(format!("{path:?} names no file")),
        Some(first) if !shared && *first == "private" => Err(format!("{path:?} is the node's own")),
        Some(_) => Ok(Place { shared, path: names.into_iter().collect() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_below_the_directories_only() {
        let dirs = TaskDirs {
            root: "/d/id/web".into(),
            alloc: "/d/id/alloc".into(),
            local: "/d/id/web/local".into(),
            secrets: "/d/id/web/secrets".into(),
        };
        for (path, view, wanted) in [
            ("local/x", PathView::Host, Some((false, "local/x"))),
            ("./local//x", PathView::Host, Some((false, "local/x"))),
            ("local/../secrets/x", PathView::Chroot, Some((false, "secrets/x"))),
            ("/d/id/web/local/x", PathView::Chroot, Some((false, "local/x"))),
            ("/d/id/alloc/data/x", PathView::Host, Some((true, "data/x"))),
            ("/local/x", PathView::Chroot, Some((false, "local/x"))),
            ("/alloc/data/x", PathView::Image, Some((true, "data/x"))),
            ("alloc/x", PathView::Host, Some((false, "alloc/x"))),
            ("/local/x", PathView::Host, None),
            ("/etc/passwd", PathView::Host, None),
            ("../other/x", PathView::Host, None),
            ("private/x", PathView::Host, None),
            ("/private/x", PathView::Chroot, None),
            ("local/../private/x", PathView::Host, None),
            ("/d/id/alloc/../../x", PathView::Host, None),
            ("", PathView::Host, None),
        ] {
            let found = place(path, &dirs, view).ok();
            let wanted = wanted.map(|(shared, path)| Place { shared, path: path.into() });
            assert_eq!(found, wanted, "{path}");
        }
    }
}
