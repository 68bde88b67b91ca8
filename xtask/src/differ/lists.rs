//! Differences that are known, each with the reason why ours is better.

mod exceptions;
mod known;

pub(super) use self::known::Known;
use self::known::{Fork, matches};
use super::tree::Difference;

/// What explains a difference of a scenario, in which all these were found.
pub(super) fn explain(scenario: &str, all: &[Difference], difference: &Difference) -> Option<&'static Known> {
    let step = |d: &Difference| d.path.split(' ').next().and_then(|n| n.parse::<u32>().ok());
    let forks = || {
        let mut forks = exceptions::FORKS.iter();
        let after = |fork: &Fork| all.iter().any(|d| fork.at.explains(scenario, d) && step(d) <= step(difference));
        forks.find(|fork| {
            fork.at.explains(scenario, difference) || (matches(fork.then, &difference.path) && after(fork))
        })
    };
    let mut known = exceptions::EXCEPTIONS.iter();
    known.find(|known| known.explains(scenario, difference)).or_else(|| forks().map(|fork| &fork.at))
}

/// All of them; the forks last.
pub(super) fn all() -> impl Iterator<Item = &'static Known> {
    exceptions::EXCEPTIONS.iter().chain(exceptions::FORKS.iter().map(|fork| &fork.at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_a_fork_is_explained_where_it_follows() {
        let told = |path: &str, stock: &str, ours: &str| Difference {
            path: path.into(),
            stock: Some(stock.into()),
            ours: (ours != "-").then(|| ours.into()),
        };
        let fork = told(
            "3 run/allocs/g[0]#1/DesiredDescription",
            "alloc is being updated due to job update",
            "alloc not needed due to job update",
        );
        let before = told("2 run/allocs/g[0]#2/ClientStatus", "complete", "running");
        let after = told("3 run/allocs/g[0]#2/ClientStatus", "complete", "running");
        let elsewhere = told("3 run/job/Status", "dead", "running");
        let all = [before.clone(), fork.clone(), after.clone(), elsewhere.clone()];
        let explained = |d: &Difference| explain("random-1-2", &all, d).is_some();
        assert_eq!([&fork, &before, &after, &elsewhere].map(explained), [true, false, true, false]);
        assert!(
            explain("random-1-2", std::slice::from_ref(&after), &after).is_none(),
            "without the fork it is a difference"
        );
        assert!(explain("rolling", &all, &after).is_none(), "elsewhere as well");
    }

    #[test]
    fn each_known_difference_says_why() {
        for known in all() {
            assert!(known.why.len() > 20 && known.why.ends_with('.'), "{}", known.label());
        }
    }
}
