//! Which events are left out.

/// When an event is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before the request is looked at.
    Received,
    /// Before its answer leaves.
    Complete,
}

impl Stage {
    /// The name in events and settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Received => "OperationReceived",
            Self::Complete => "OperationComplete",
        }
    }
}

/// Leaves out the events that fit all three lists. In each `*` stands for everything; in endpoints it also stands for
/// any text within a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Paths, such as `/v1/metrics` or `/v1/evaluation/*`.
    pub endpoints: Vec<String>,
    /// Names of [`Stage`].
    pub stages: Vec<String>,
    /// Methods.
    pub operations: Vec<String>,
}

impl Filter {
    /// Does it leave out this event?
    #[must_use]
    pub fn leaves_out(&self, stage: Stage, method: &str, path: &str) -> bool {
        let named = |list: &[String], name: &str| list.iter().any(|l| l == "*" || l.eq_ignore_ascii_case(name));
        named(&self.stages, stage.name())
            && named(&self.operations, method)
            && self.endpoints.iter().any(|pattern| fits(pattern, path))
    }
}

/// Does a path fit a pattern with stars?
fn fits(pattern: &str, path: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = path.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::{Filter, Stage, fits};

    #[test]
    fn stars_in_paths() {
        for (pattern, path, fit) in [
            ("*", "/v1/jobs", true),
            ("/v1/jobs", "/v1/jobs", true),
            ("/v1/jobs", "/v1/jobs/parse", false),
            ("/v1/evaluation/*", "/v1/evaluation/a/allocations", true),
            ("/v1/evaluation/*", "/v1/evaluations", false),
            ("/v1/job/*/plan", "/v1/job/a/b/plan", true),
            ("/v1/job/*/plan", "/v1/job/plan", false),
            ("/v1/job/*/plan", "/v1/job//plan", true),
            ("*metrics", "/v1/metrics", true),
            ("/a*b*c", "/aXbYc", true),
            ("/a*b*c", "/aXcYb", false),
            ("/ab*b", "/ab", false),
            ("", "/", false),
        ] {
            assert_eq!(fits(pattern, path), fit, "{pattern} {path}");
        }
    }

    #[test]
    fn all_three_lists_decide() {
        let list = |items: &[&str]| items.iter().map(|i| (*i).to_owned()).collect::<Vec<_>>();
        let filter = |endpoints: &[&str], stages: &[&str], operations: &[&str]| Filter {
            endpoints: list(endpoints),
            stages: list(stages),
            operations: list(operations),
        };
        for (filter, out) in [
            (filter(&["/v1/metrics"], &["*"], &["*"]), true),
            (filter(&["/v1/jobs", "/v1/m*"], &["OperationReceived", "OperationComplete"], &["PUT", "get"]), true),
            (filter(&["/v1/metrics"], &["OperationReceived"], &["*"]), false),
            (filter(&["/v1/metrics"], &["*"], &["PUT"]), false),
            (filter(&["/v1/jobs"], &["*"], &["*"]), false),
            (filter(&["*"], &[], &["*"]), false),
            (filter(&["*"], &["*"], &[]), false),
            (filter(&[], &["*"], &["*"]), false),
        ] {
            assert_eq!(filter.leaves_out(Stage::Complete, "GET", "/v1/metrics"), out, "{filter:?}");
        }
    }
}
