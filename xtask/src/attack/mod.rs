//! `cargo xtask attack`: what has once broken a server, a node or a promise, played again from outside against real
//! agents: through HTTP, the command
//! line, signals, files and the node RPC. Each attack says what it does and what must hold, and has bounds of memory
//! and time that are generous, but
//! that a defect would break.

mod absurd;
mod access;
mod clocks;
mod disk;
mod engine;
mod fuzz;
mod kit;
mod past;
mod readers;
mod rogue;
mod secrets;
mod tasks;

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Result, bail, ensure};

use self::kit::Attack;
use crate::{builds, packages};

/// So many are under way at once. They mostly wait: for leases, restarts and bounds of time.
const AT_ONCE: usize = 4;

/// All of them; the long ones first, so that none is left alone at the end.
fn all() -> Vec<Attack> {
    [
        readers::ATTACKS,
        past::ATTACKS,
        secrets::ATTACKS,
        tasks::ATTACKS,
        clocks::ATTACKS,
        disk::ATTACKS,
        rogue::ATTACKS,
        fuzz::ATTACKS,
    ]
    .into_iter()
    .chain([absurd::ATTACKS, access::ATTACKS])
    .flat_map(|attacks| attacks.iter())
    .map(|a| Attack { name: a.name, does: a.does, holds: a.holds, run: a.run })
    .collect()
}

/// Names of all attacks.
pub(crate) fn names() -> Vec<&'static str> {
    all().into_iter().map(|attack| attack.name).collect()
}

/// `attack [--list] [--long] [NAME…]`.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    // Part of an attack: a process of its own, with descriptors of its own.
    if let ["hold", address, from, count] = args {
        return readers::hold(address, from, count);
    }
    let mut wanted = Vec::new();
    let (mut list, mut long) = (false, false);
    for arg in args {
        match *arg {
            "--list" => list = true,
            "--long" => long = true,
            flag if flag.starts_with('-') => {
                bail!("attack does not know {flag:?}; it takes --list, --long and names of attacks")
            }
            name => wanted.push(name),
        }
    }
    let mut attacks = all();
    if long {
        let more = readers::LONG.iter().chain(tasks::LONG);
        attacks.extend(more.map(|a| Attack { name: a.name, does: a.does, holds: a.holds, run: a.run }));
    }
    for name in &wanted {
        ensure!(attacks.iter().any(|a| a.name.starts_with(name)), "no attack is called {name:?}; `--list` names them");
    }
    attacks.retain(|a| wanted.is_empty() || wanted.iter().any(|name| a.name.starts_with(name)));
    if list {
        attacks.iter().for_each(|a| println!("{}\n    does:  {}\n    holds: {}", a.name, a.does, a.holds));
        return Ok(());
    }
    ensure!(
        packages::is_root(),
        "the attacks start tasks of other users, mount small disks and enter namespaces: run them as root"
    );
    builds::build(&["drover"])?;
    kit::open_many_files()?;
    let begun = Instant::now();
    let broken = play(attacks);
    println!("attack: {} s in all", begun.elapsed().as_secs());
    ensure!(broken.is_empty(), "what must hold does not hold: {}", broken.join(", "));
    Ok(())
}

/// Plays them, several at once; the names of those that broke something.
fn play(attacks: Vec<Attack>) -> Vec<&'static str> {
    let queue = Mutex::new(VecDeque::from(attacks));
    let broken = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(attack) = next else { return };
                    let begun = Instant::now();
                    let outcome = (attack.run)();
                    let seconds = begun.elapsed().as_secs_f64();
                    match outcome {
                        Ok(measured) => println!("attack {}: held ({seconds:.1} s) {measured}", attack.name),
                        Err(why) => {
                            println!(
                                "attack {}: BROKEN ({seconds:.1} s)\n  does:  {}\n  holds: {}\n  {why:#}",
                                attack.name, attack.does, attack.holds
                            );
                            broken.lock().unwrap_or_else(PoisonError::into_inner).push(attack.name);
                        }
                    }
                }
            });
        }
    });
    broken.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn every_attack_has_a_name_of_its_own_and_says_what_must_hold() {
        let all = super::all();
        let names: BTreeSet<_> = all.iter().map(|a| a.name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|a| !a.does.is_empty() && !a.holds.is_empty()));
    }
}
