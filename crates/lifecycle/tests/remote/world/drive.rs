//! Ways to let a world go on.

use lifecycle::remote::node;

use super::{Action, Budget, Rule, World};

impl World {
    /// Nothing is left to happen but faults.
    pub(crate) fn is_quiet(&self, enabled: &[Action]) -> bool {
        enabled.iter().all(Action::is_fault) && (0..self.cfg.slots).all(|slot| !self.needs_place(slot))
    }

    /// Takes every step that `allowed` permits and that is no fault, the first one first, until there is none
    /// (retries are left alone).
    pub(crate) fn run(&mut self, allowed: impl Fn(&Action) -> bool) {
        for _ in 0..5 * self.cfg.steps {
            let next = self.enabled().into_iter().find(|a| {
                !a.is_fault()
                    && !matches!(a.of_any_agent(), Action::Retry(..) | Action::Late(_) | Action::Recover)
                    && allowed(a)
            });
            match next {
                Some(a) => self.apply(&a),
                None => return,
            }
        }
        self.violation(Rule::BecomesQuiet, "it does not");
    }

    /// Delivers and executes everything on all nodes in bulk, for worlds too large to list every action at every step.
    pub(crate) fn sweep(&mut self) {
        loop {
            let mut idle = true;
            for n in 0..self.nodes.len() {
                for slot in std::mem::take(&mut self.nodes[n].prepare) {
                    self.feed(n, slot, &node::Event::Prepared);
                }
                for slot in self.nodes[n].keep.keys().copied().collect::<Vec<_>>() {
                    self.apply(&Action::Kept(n, slot));
                }
                while !self.nodes[n].inbox.is_empty() {
                    self.apply(&Action::ToNode(n));
                    idle = false;
                }
                while let Some(i) = self.nodes[n].calls.iter().position(|c| c.answer.is_none()) {
                    self.apply(&Action::Execute(n, i));
                    idle = false;
                }
                while !self.nodes[n].calls.is_empty() {
                    self.apply(&Action::Answer(n, 0));
                    idle = false;
                }
                while !self.nodes[n].outbox.is_empty() {
                    self.apply(&Action::ToServers(n));
                    idle = false;
                }
            }
            if idle {
                return;
            }
        }
    }

    /// As [`World::run`] with the nodes as they are: none connects, none expires.
    pub(crate) fn run_as_is(&mut self) {
        self.run(|a| !matches!(a, Action::Connect(_) | Action::Lapse(_) | Action::Expire(_)));
    }

    /// kill -9 of the node, and the servers' lease of it over.
    pub(crate) fn kill_and_expire(&mut self, n: usize) {
        self.crash(n);
        self.apply(&Action::Expire(n));
    }

    /// The same, and what follows from it.
    pub(crate) fn lose(&mut self, n: usize) {
        self.kill_and_expire(n);
        self.run_as_is();
    }

    /// The node has a session, and what follows from it.
    pub(crate) fn come(&mut self, n: usize) {
        self.apply(&Action::Connect(n));
        self.run_as_is();
    }

    /// Every retry that waits is made once, and what follows from it.
    pub(crate) fn retry_all(&mut self) {
        for a in self.enabled().into_iter().filter(|a| matches!(a, Action::Retry(..))).collect::<Vec<_>>() {
            self.apply(&a);
        }
        self.run_as_is();
    }

    /// So many creates and stops have reached the provider, and nothing was violated.
    #[track_caller]
    pub(crate) fn assert_calls(&self, creates: u64, stops: u64) {
        assert_eq!((self.provider.creates, self.provider.stops), (creates, stops), "creates and stops");
        self.assert_ok();
    }

    #[track_caller]
    pub(crate) fn assert_ok(&self) {
        assert!(self.violations.is_empty(), "{:#?}", self.violations);
    }

    /// Takes every step that is not a fault until nothing is left to do: connect, deliver, place, execute. Gives the
    /// number of steps.
    pub(crate) fn settle(&mut self, mut pick: impl FnMut(usize) -> usize) -> usize {
        self.left = Budget::default();
        for steps in 0..self.cfg.steps {
            let mut actions: Vec<Action> = self
                .enabled()
                .into_iter()
                .filter(|a| !matches!(a, Action::ForceDrain(_) | Action::Lapse(_) | Action::Expire(_)))
                .collect();
            // Retrying what is held for a person goes on for ever; it is not progress.
            let progress = actions.iter().any(|a| !matches!(a.of_any_agent(), Action::Retry(..)));
            if !progress && (actions.is_empty() || steps > self.cfg.steps / 2) {
                return steps;
            }
            if !progress {
                let before = self.fingerprint();
                let retries: Vec<Action> = std::mem::take(&mut actions);
                for retry in retries {
                    self.apply(&retry);
                }
                while let Some(next) = self.enabled().into_iter().find(|a| {
                    matches!(
                        a.of_any_agent(),
                        Action::Execute(..)
                            | Action::Answer(..)
                            | Action::ToServers(_)
                            | Action::ToNode(_)
                            | Action::Observe(..)
                    )
                }) {
                    self.apply(&next);
                }
                if self.fingerprint() == before {
                    return steps;
                }
                continue;
            }
            let i = pick(actions.len());
            let action = actions.swap_remove(i);
            self.apply(&action);
        }
        self.violation(Rule::BecomesQuiet, "it does not");
        self.cfg.steps
    }
}
