//! The checks, by subject. A new one is a row in the table of its file and a function; its fault goes into `faulty/`
//! and the table of `tests/suite.rs`.

mod base;
mod config;
mod exec;
mod launch;
mod network;
mod output;
mod recover;
mod remote;
mod remote_life;
mod start;
mod stats;
mod stop;
mod stream;
mod wait;

use crate::check::Check;

/// All checks, in the order in which a host comes across them.
pub fn all() -> impl Iterator<Item = &'static Check> {
    let tables = [
        launch::CHECKS,
        base::CHECKS,
        stream::CHECKS,
        config::CHECKS,
        start::CHECKS,
        wait::CHECKS,
        stop::CHECKS,
        recover::CHECKS,
        stats::CHECKS,
        output::CHECKS,
        exec::CHECKS,
        network::CHECKS,
        remote::CHECKS,
        remote_life::CHECKS,
    ];
    tables.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_unique_and_every_check_says_what_it_means() {
        let mut seen = BTreeSet::new();
        for check in super::all() {
            assert!(seen.insert(check.id), "{} is there twice", check.id);
            assert!(check.id.split('/').count() == 2 && check.id.len() <= 30, "{}", check.id);
            assert!(!check.title.is_empty() && check.meaning.len() > 20, "{}", check.id);
        }
        assert!(seen.len() > 60);
    }
}
