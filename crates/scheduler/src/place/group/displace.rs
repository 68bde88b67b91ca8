//! Placements that displace others: where no node has room, a job of higher priority gets that of lower ones.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use model::{
    Map,
    alloc::{Allocation, Preemption},
    ids::{AllocId, IncarnationId, JobKey, NodeId},
    metrics::{AllocMetric, NodeScore},
    plan::PlannedStop,
    resources::Usage,
};

use super::{
    super::rooms::{Known, Made, SHARED_FIRST, SHARED_LATER, group_of},
    GroupPlacer,
};
use crate::{
    cores,
    devices::{self, Holder},
    network::NetworkGrant,
    overlay::Overlay,
    preempt::{self, Candidate, GAP},
    rank::{Powers, Standing, mean},
    reconcile::Request,
    remote,
};

/// How many nodes where others could be displaced a placement compares. They are drawn at random; on each of them the
/// lowest priorities leave first. To know who would leave a node costs a look at all that runs there.
const COMPARED: usize = 100;

/// Whether an allocation has a port of its node.
fn holds(alloc: &Allocation, ip: &str, port: u16) -> bool {
    let same = |host: &str, value: i32| host == ip && value == i32::from(port);
    let r = &alloc.resources;
    let networks = r.tasks.values().flat_map(|t| &t.networks);
    r.shared.ports.iter().any(|p| same(&p.host_ip, p.value))
        || networks
            .flat_map(|n| n.reserved_ports.iter().chain(&n.dynamic_ports).map(|p| (&n.ip, p.value)))
            .any(|(host, value)| same(host, value))
}

impl GroupPlacer<'_, '_> {
    /// An allocation in the room of others; None = no node has enough that may be displaced.
    pub(super) fn displace(
        &mut self,
        r: &Request,
        among: Option<&BTreeSet<NodeId>>,
        needs: &[remote::Need],
        carried: &Map<Arc<str>, IncarnationId>,
    ) -> Option<Allocation> {
        if !self.cx.displaces {
            return None;
        }
        self.rooms.known.resize_with(self.ranking.candidates.len(), Known::default);
        loop {
            let (i, made) = self.best_made(r, among, needs)?;
            let slot = self.ranking.candidates[i].slot;
            for alloc in &made.leaving {
                self.overlay.remove(alloc);
            }
            let mut room = self.room.clone();
            if let Some(room) = &mut room {
                made.leaving.iter().for_each(|alloc| room.release(alloc));
                if let Err(why) = room.fits(&self.demand(slot)) {
                    self.limit = Some(why);
                    self.put_back(&made);
                    return None;
                }
            }
            let capacity = self.overlay.fleet.capacity(slot).cloned().unwrap_or_default();
            let grant = match self.ports.is_empty() {
                true => Ok(NetworkGrant::default()),
                false => self.ports.grant(&capacity, self.overlay.ports(slot), self.ids),
            };
            // Others of the plan may have got the devices meanwhile.
            let Some(grant) = grant.ok().filter(|_| self.assigned(slot).is_some()) else {
                self.put_back(&made);
                self.rooms.known[i] = Known::No;
                continue;
            };
            *self.room = room;
            let metrics = self.account_of(i, &made);
            let mut alloc = self.allocate(r, i, grant, carried.clone(), metrics);
            let preempted_allocations = made.leaving.iter().map(|a| a.id).collect();
            let preempted_by_allocation = AllocId::NIL;
            alloc.preemption = Some(Box::new(Preemption { preempted_allocations, preempted_by_allocation }));
            self.note(&alloc, &made);
            self.rooms.known[i] = Known::Nothing;
            return Some(alloc);
        }
    }

    fn put_back(&mut self, made: &Made) {
        for alloc in &made.leaving {
            self.overlay.add(alloc);
        }
    }

    /// Notes what leaves for an allocation.
    fn note(&mut self, alloc: &Allocation, made: &Made) {
        for gone in &made.leaving {
            let count = self.displaced.of_groups.entry(group_of(gone)).or_default();
            *count += 1;
            // From now on others of its group are dearer, wherever they are.
            if max_parallel(gone) > 0 && *count >= max_parallel(gone) {
                self.rooms.known.fill(Known::Nothing);
            }
            self.displaced.stops.push(PlannedStop {
                id: gone.id,
                node_id: gone.node_id,
                description: format!("Preempted by alloc ID {}", alloc.id),
                client_status: None,
                followup_eval_id: model::EvalId::NIL,
                preempted_by: alloc.id,
            });
        }
    }

    /// The best node where room can be made. A job without wishes about its nodes compares [`COMPARED`] of them.
    fn best_made(
        &mut self,
        r: &Request,
        among: Option<&BTreeSet<NodeId>>,
        needs: &[remote::Need],
    ) -> Option<(usize, Made)> {
        let affinities = self.rules.has_affinities() || self.rules.devices.has_affinities();
        let wishes = affinities || !self.buckets.plain() || !r.penalty.is_empty();
        let best = match among {
            // Few of many, as a rule.
            Some(among) => {
                let slots = among.iter().filter_map(|id| self.overlay.fleet.slot(*id));
                let all: Vec<usize> = slots.filter_map(|slot| self.ranking.find(slot)).collect();
                self.best_of(all, r, needs)
            }
            None if wishes || !needs.is_empty() => self.best_of(0..self.ranking.candidates.len(), r, needs),
            None => {
                self.look_for_room();
                self.best_of(self.rooms.found.clone(), r, needs)
            }
        };
        match &self.rooms.known[best?] {
            Known::Yes(made) => best.map(|i| (i, Made::clone(made))),
            Known::Nothing | Known::No => None,
        }
    }

    /// Looks at more nodes, in the order of their ties, until there is room on enough of them.
    fn look_for_room(&mut self) {
        if self.rooms.order.is_empty() {
            let mut order: Vec<usize> = (0..self.ranking.candidates.len()).collect();
            order.sort_unstable_by_key(|i| Reverse(self.ranking.tie(*i)));
            self.rooms.order = order;
        }
        let mut found = std::mem::take(&mut self.rooms.found);
        found.retain(|i| self.made(*i).is_some());
        while found.len() < COMPARED
            && let Some(next) = self.rooms.order.get(self.rooms.looked_at).copied()
        {
            self.rooms.looked_at += 1;
            if self.made(next).is_some() {
                found.push(next);
            }
        }
        self.rooms.found = found;
    }

    /// What is known of a candidate, or found out.
    fn made(&mut self, i: usize) -> Option<&Made> {
        if !matches!(self.ranking.candidates[i].standing, Standing::Exhausted(_)) {
            return None;
        }
        if matches!(self.rooms.known[i], Known::Nothing) {
            self.rooms.known[i] = self.make(i).map_or(Known::No, |made| Known::Yes(Box::new(made)));
        }
        match &self.rooms.known[i] {
            Known::Yes(made) => Some(made),
            Known::Nothing | Known::No => None,
        }
    }

    fn best_of(&mut self, of: impl IntoIterator<Item = usize>, r: &Request, needs: &[remote::Need]) -> Option<usize> {
        let mut best: Option<(f64, u64, usize)> = None;
        for i in of {
            let c = &self.ranking.candidates[i];
            if self.buckets.is_full(c.bucket) {
                continue;
            }
            let (tie, boost, node) = (self.ranking.tie(i), self.buckets.boost(c.bucket), self.node(c.slot));
            if !needs.iter().all(|need| need.met_by(node).is_ok()) {
                continue;
            }
            let penalised = r.penalty.contains(&node.id);
            let Some(made) = self.made(i) else { continue };
            let (sum, parts) = if penalised { (made.sum - 1.0, made.parts + 1) } else { (made.sum, made.parts) };
            let score = mean(sum, parts, boost);
            if best.is_none_or(|(s, t, _)| score.total_cmp(&s).then(tie.cmp(&t)).is_gt()) {
                best = Some((score, tie, i));
            }
        }
        best.map(|(.., i)| i)
    }

    /// Who would have to leave a candidate.
    fn make(&mut self, i: usize) -> Option<Made> {
        let slot = self.ranking.candidates[i].slot;
        let node = self.node(slot).clone();
        let (ask, _) = self.feasible(slot);
        // At a provider nobody takes anybody's room on the node.
        if ask.only_remote() {
            return None;
        }
        let of_cores = if ask.cores > 0 { ask.cores * cores::mhz_per_core(&node) } else { 0 };
        let asked = Usage { cpu: ask.cpu + of_cores, memory_mb: ask.memory_mb, disk_mb: ask.disk_mb };
        let (state, own) = (self.cx.state, self.cx.job.key());
        let live: Vec<&Arc<Allocation>> =
            state.allocs_by_node(node.id).filter(|a| a.occupies() && !self.overlay.has_removed(a.id)).collect();
        let may_go: Vec<&Arc<Allocation>> =
            live.iter().copied().filter(|a| may_go(a, &own, self.cx.job.priority)).collect();
        let candidates: Vec<Candidate<'_>> = may_go
            .iter()
            .map(|a| Candidate {
                alloc: a,
                priority: priority(a).unwrap_or(i32::MAX),
                takes: a.resources.usage(),
                max_parallel: max_parallel(a),
                displaced: self.displaced.of_groups.get(&group_of(a)).copied().unwrap_or(0),
            })
            .collect();
        let mut must = self.holders(slot, &live, &may_go)?;
        for holder in self.device_holders(slot, &may_go)? {
            if !must.contains(&holder) {
                must.push(holder);
            }
        }
        let free = free(self.overlay, slot);
        let chosen = preempt::choose(&candidates, &must, asked, free)?;
        let score = preempt::score(chosen.iter().map(|i| candidates[*i].priority));
        let leaving: Vec<Arc<Allocation>> = chosen.into_iter().map(|i| may_go[i].clone()).collect();
        for alloc in &leaving {
            self.overlay.remove(alloc);
        }
        let (ask, _) = self.feasible(slot);
        // Cores, sessions and the number of allocations.
        let fits = self.lacking(slot, ask).is_none();
        let here = self.job_use.on(&self.group.name, slot).group;
        let (fit, anti, affinity, devices) = self.parts(slot, here, &mut Powers::default());
        let others = [anti, affinity, devices].into_iter().filter(|part| *part != 0.0);
        let (sum, parts) = others.chain([score]).fold((fit, 1), |(sum, parts), part| (sum + part, parts + 1));
        let made = Made { leaving, sum, parts, part: score };
        self.put_back(&made);
        fits.then_some(made)
    }

    /// The places in `may_go` of those that hold a port that is asked for. None = somebody else holds one.
    fn holders(&self, slot: u32, live: &[&Arc<Allocation>], may_go: &[&Arc<Allocation>]) -> Option<Vec<usize>> {
        let mut must = Vec::new();
        let capacity = self.overlay.fleet.capacity(slot)?;
        for (ip, port) in self.ports.fixed_at(capacity)? {
            if !self.overlay.ports(slot).contains(ip, port) {
                continue;
            }
            let mut holders = live.iter().filter(|a| holds(a, ip, port)).peekable();
            // Nobody of the snapshot: an allocation of this plan.
            holders.peek()?;
            for holder in holders {
                let at = may_go.iter().position(|a| a.id == holder.id)?;
                if !must.contains(&at) {
                    must.push(at);
                }
            }
        }
        Some(must)
    }

    /// The places in `may_go` of those whose devices are asked for. None = not all that is asked for can be had.
    fn device_holders(&self, slot: u32, may_go: &[&Arc<Allocation>]) -> Option<Vec<usize>> {
        if self.rules.devices.is_empty() {
            return Some(Vec::new());
        }
        let holder = |a: &&Arc<Allocation>| Holder {
            priority: priority(a).unwrap_or(i32::MAX),
            devices: devices::of(a).collect(),
        };
        let holders: Vec<Holder> = may_go.iter().map(holder).collect();
        self.rules.devices.displaced(self.node(slot), &self.overlay.devices(slot), &holders)
    }

    /// The account of a placement that displaces. Later ones share it.
    fn account_of(&mut self, i: usize, made: &Made) -> Arc<AllocMetric> {
        if let Some((account, left)) = &mut self.rooms.account
            && *left > 0
        {
            *left -= 1;
            return account.clone();
        }
        let mut m = self.base.clone();
        // What is lacking while they are still there is why they leave.
        self.put_back(made);
        self.explain(&mut m, &[], false);
        for alloc in &made.leaving {
            self.overlay.remove(alloc);
        }
        let c = &self.ranking.candidates[i];
        let boost = self.buckets.boost(c.bucket);
        let mut scores = self.score(i, mean(made.sum, made.parts, boost), &[]);
        scores.scores.insert("preemption".into(), made.part);
        m.score_meta_data = vec![NodeScore { ..scores }];
        let m = Arc::new(m);
        let share = if self.rooms.placed == 0 { SHARED_FIRST } else { SHARED_LATER };
        self.rooms.placed += 1;
        self.rooms.account = Some((m.clone(), share - 1));
        m
    }
}

/// What is free on a node, as the plan under way would leave it; below 0 where more is taken than there is.
fn free(overlay: &Overlay<'_>, slot: u32) -> Usage {
    let (facts, taken) = (overlay.fleet.facts(slot), overlay.taken(slot));
    Usage {
        cpu: facts.cpu - taken.cpu,
        memory_mb: facts.memory_mb - taken.memory_mb,
        disk_mb: facts.disk_mb - taken.disk_mb,
    }
}

fn priority(alloc: &Allocation) -> Option<i32> {
    alloc.job.as_ref().map(|job| job.priority)
}

fn max_parallel(alloc: &Allocation) -> i32 {
    let group = alloc.job.as_ref().and_then(|job| job.group(&alloc.task_group));
    group.and_then(|group| group.migrate.as_ref()).and_then(|migrate| migrate.max_parallel).unwrap_or(0)
}

/// Whether an allocation may be displaced by a job of this priority. One with remote tasks never is: they take no room
/// of the node, and outlive whatever happens there.
fn may_go(alloc: &Allocation, by: &JobKey, above: i32) -> bool {
    !alloc.terminal()
        && alloc.job_key() != *by
        && alloc.remote.is_empty()
        && priority(alloc).is_some_and(|priority| priority <= above.saturating_sub(GAP))
}
