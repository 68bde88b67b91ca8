//! The file of what once failed: it is replayed before anything is drawn.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Where it is.
const FILE: &str = "xtask/regressions/chaos.txt";

/// A line of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Once {
    /// A fault of a node, and the seed of its run.
    Fault(String, u64),
    /// A seed of `chaos remote`.
    Remote(u64),
    /// A seed of `chaos cluster`.
    Cluster(u64),
}

/// Lines without comments. Every line names something that there is.
fn parse(text: &str, faults: &[&str]) -> Result<Vec<Once>> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (name, seed) = line.split_once(' ').with_context(|| format!("{FILE}: {line:?} has no seed"))?;
            let seed = seed.trim().parse().with_context(|| format!("{FILE}: {line:?} has no number at its end"))?;
            match name {
                "remote" => Ok(Once::Remote(seed)),
                "cluster" => Ok(Once::Cluster(seed)),
                name if faults.contains(&name) => Ok(Once::Fault(name.to_owned(), seed)),
                name => bail!("{FILE}: there is no fault {name:?}"),
            }
        })
        .collect()
}

/// What once failed.
pub(super) fn read() -> Result<Vec<Once>> {
    let text = fs::read_to_string(workspace::root().join(FILE)).with_context(|| format!("could not read {FILE}"))?;
    parse(&text, &super::names())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_faults_that_there_are_and_seeds() {
        read().expect("the file of the tree");
        let parse = |text| parse(text, &["logs"]);
        let right = parse("# none\nlogs 7 # a line came twice\n\nremote 12\ncluster 3").expect("read");
        assert_eq!(right, [Once::Fault("logs".into(), 7), Once::Remote(12), Once::Cluster(3)]);
        for wrong in ["logs", "logs seven", "log 7"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
