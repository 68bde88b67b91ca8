//! Two servers with their store: what befalls them, and who may lead.

use std::{sync::Arc, time::Duration};

use super::{LED, Mend, World};
use crate::{
    servers::{self, Place, Process},
    truth::{Faults, SERVERS, Truth, Way},
};

/// Two servers with their store.
pub(super) struct Two {
    pub(super) truth: Arc<Truth>,
    pub(super) processes: [Option<Process>; SERVERS],
    /// Faults that keep a server from leading, and whether any keeps both.
    away: [u32; SERVERS],
    pub(super) store: u32,
    /// When somebody led, or nobody could.
    pub(super) led: Duration,
    /// Who leads, and since when.
    leader: Option<(usize, Duration)>,
}

impl Two {
    pub(super) fn new(truth: Arc<Truth>) -> Self {
        let (processes, led) = (Default::default(), Duration::ZERO);
        Self { truth, processes, away: [0; SERVERS], store: 0, led, leader: None }
    }
}

impl World {
    pub(super) fn truth(&self, change: impl FnOnce(&Truth)) {
        if let Some(two) = &self.two {
            change(&two.truth);
        }
    }

    /// The leader, where it is not in that trouble already.
    pub(super) fn leader(&self, troubled: impl FnOnce(Way) -> bool) -> Option<usize> {
        let (two, leader) = (self.two.as_ref()?, self.doors.leader()?);
        (!troubled(two.truth.way(leader))).then_some(leader)
    }

    pub(super) fn server_away(&mut self, server: usize, by: i32) {
        let now = self.now();
        let Some(two) = &mut self.two else { return };
        two.away[server] = two.away[server].saturating_add_signed(by);
        if by < 0 {
            two.led = now;
        }
    }

    pub(super) fn start_process(&mut self, number: usize) {
        let (doors, net, history) = (self.doors.clone(), self.nets[number].clone(), self.history.clone());
        let Some(two) = &mut self.two else { return };
        let place = Place { number, truth: two.truth.clone(), doors, net, history };
        two.processes[number] = Some(Process::start(place));
    }

    pub(super) fn kill_process(&mut self, server: usize, down: u64) {
        let Some(process) = self.two.as_mut().and_then(|two| two.processes[server].take()) else { return };
        process.kill();
        self.history.note(format!("server {server} is killed"));
        self.server_away(server, 1);
        self.disturbed();
        self.mend_in(down, Mend::Process(server));
    }

    pub(super) fn store_trouble(
        &mut self,
        time: u64,
        what: &'static str,
        change: impl FnOnce(&mut Faults),
        mend: fn(&mut Faults),
    ) {
        self.truth(|truth| truth.set_faults(change));
        if let Some(two) = &mut self.two {
            two.store += 1;
            let id = self.trouble(what);
            self.mend_in(time, Mend::Store(id, mend));
        }
    }

    /// Judges who leads; the address of the leader and since when, where there are two servers.
    pub(super) fn judge_leaders(&mut self) -> Option<(String, Duration)> {
        let (now, answering) = (self.now(), self.doors.answering());
        let two = self.two.as_mut()?;
        if answering.len() > 1 {
            self.history.violated("both servers answer people");
        }
        let Some((server, handle)) = answering.first() else {
            two.leader = None;
            let nobody_can = two.store > 0 || two.away.iter().all(|away| *away > 0);
            if nobody_can {
                two.led = now;
            } else if now.saturating_sub(two.led) > LED {
                self.history.violated(format!("nobody has led for {} s", LED.as_secs()));
            }
            return Some((String::new(), now));
        };
        two.led = now;
        self.past.judge_leader(now, two.store > 0 || self.doors.shows_the_present(*server), &self.history);
        if let Some((before, index)) = self.doors.read(*server, handle) {
            self.history.violated(format!("people have read index {before}, and now {index} is the newest"));
        }
        let (_, since) = two.leader.filter(|(led, _)| led == server).unwrap_or((*server, now));
        two.leader = Some((*server, since));
        Some((servers::addresses()[*server].clone(), since))
    }
}
