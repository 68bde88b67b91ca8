//! The requests of one group.

mod candidates;
mod displace;
mod explain;

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use model::{
    Map,
    alloc::{AllocDeploymentStatus, Allocation, ClientStatus, DesiredStatus, alloc_name},
    ids::{AllocId, NodeId},
    job::TaskGroup,
    metrics::{AllocMetric, NodeLeftOut, NodeScore},
    node::Node,
    records::NamespaceUse,
    resources::AllocatedResources,
};

use super::{
    class::{Ask, Class},
    context::{Blocked, Context, JobUse, Own, Progress},
    memory::{Memory, Shape},
    rooms::{Displaced, Rooms, SHARED_FIRST, SHARED_LATER},
};
use crate::{
    cores,
    devices::{self, Assigned},
    feasible::GroupRules,
    ids::Ids,
    limits::Room,
    network::{NetworkAsk, NetworkGrant},
    overlay::Overlay,
    pools::{PoolAsk, Pools},
    rank::{Candidate, Lack, Powers, Ranking, Standing, balanced, mean, packed},
    reconcile::{GroupRequests, Request},
    remote,
    rules::Distinct,
    spread::Buckets,
};

/// Number of nodes whose scores are shown.
const SHOWN: usize = 5;

/// Most candidates that are listed for requests to come.
const LISTED: usize = 128;

pub(super) struct GroupPlacer<'a, 'o> {
    cx: Context<'a>,
    group: &'a TaskGroup,
    wanted: &'o GroupRequests,
    overlay: &'o mut Overlay<'a>,
    job_use: &'o mut JobUse,
    ids: &'o mut Ids,
    rules: GroupRules,
    classes: Arc<[Class]>,
    ports: NetworkAsk,
    only_dynamic: Option<u32>,
    pools: Option<Pools>,
    buckets: Buckets,
    ranking: Ranking,
    /// Reasons about nodes that hold for every placement.
    base: AllocMetric,
    account: Option<(Arc<AllocMetric>, usize)>,
    placed: usize,
    /// The best candidate was looked for among all.
    looked: bool,
    sticky: bool,
    /// No node is left for ordinary requests.
    exhausted: bool,
    distinct_hosts: Option<bool>,
    /// On some nodes, tasks of the group are remote.
    any_remote: bool,
    /// Room within the limits of the namespace.
    room: &'o mut Option<Room>,
    /// Why its limits left no room for a placement.
    limit: Option<String>,
    /// Why the candidates' volumes were not for the last placement that found none.
    without_volumes: HashMap<u32, String>,
    /// What the plan displaces, and where more could be.
    displaced: &'o mut Displaced,
    rooms: Rooms,
    memory: &'o mut Memory,
    /// What the candidates depend on, if evaluations to come can use what is found.
    shape: Option<Shape>,
    /// Slots whose scores they must not take over.
    stale: Vec<u32>,
    any_pool: bool,
}

impl<'a, 'o> GroupPlacer<'a, 'o> {
    pub(super) fn new(
        cx: Context<'a>,
        group: &'a TaskGroup,
        wanted: &'o GroupRequests,
        progress: &'o mut Progress<'a, '_>,
        ids: &'o mut Ids,
    ) -> Self {
        let Context { state, job, .. } = cx;
        let Progress { overlay, job_use, room, displaced, memory } = progress;
        let fleet = overlay.fleet;
        let rules = GroupRules::new(state, job, group);
        let spreads: Vec<_> = job.spreads.iter().chain(&group.spreads).collect();
        let mut buckets = Buckets::new(&spreads, &rules.distinct, group.count());
        if !buckets.plain() {
            for (g, slot, n) in job_use.iter() {
                if let Some(node) = fleet.node(slot) {
                    (0..n).for_each(|_| buckets.count_existing(node, rules.region(), *g == group.name));
                }
            }
        }
        let distinct = rules
            .distinct
            .iter()
            .filter_map(|d| if let Distinct::Hosts { job_wide } = d { Some(*job_wide) } else { None });
        let distinct_hosts = distinct.reduce(|a, b| a || b);
        let salt = ids.salt();
        let ports = NetworkAsk::new(group);
        let mut p = Self {
            classes: Arc::default(),
            ranking: Ranking::default(),
            only_dynamic: ports.only_dynamic(),
            ports,
            sticky: group.ephemeral_disk.as_ref().is_some_and(|d| d.sticky == Some(true)),
            cx,
            group,
            wanted,
            overlay,
            job_use,
            ids,
            rules,
            pools: None,
            buckets,
            base: AllocMetric::default(),
            account: None,
            placed: 0,
            looked: false,
            exhausted: false,
            distinct_hosts,
            any_remote: false,
            room,
            limit: None,
            without_volumes: HashMap::new(),
            displaced,
            rooms: Rooms::default(),
            memory,
            shape: None,
            stale: Vec::new(),
            any_pool: false,
        };
        p.find_candidates(salt);
        p
    }

    fn node(&self, slot: u32) -> &'a Arc<Node> {
        let fleet: &'a state::Fleet = self.overlay.fleet;
        fleet.node(slot).expect("candidates are nodes that are registered")
    }

    fn feasible(&self, slot: u32) -> (&Ask, f64) {
        match &self.classes[self.overlay.fleet.facts(slot).class as usize] {
            Class::Feasible { ask, affinity } => (ask, *affinity),
            _ => unreachable!("candidates are of feasible classes"),
        }
    }

    /// Present score and standing of a candidate, with the job's allocations there: the sum and number of its parts.
    fn assess(&self, slot: u32, here: Own, powers: &mut Powers) -> (f64, u8, Standing) {
        let (ask, _) = self.feasible(slot);
        let taken = self.distinct_hosts.is_some_and(|job_wide| if job_wide { here.job } else { here.group } > 0);
        let standing = match taken {
            true => Standing::Distinct,
            false => self.lack(slot, ask).map_or(Standing::Open, Standing::Exhausted),
        };
        let (fit, anti, affinity, devices) = self.parts(slot, here.group, powers);
        let mut sum = fit;
        let mut parts = 1;
        for part in [anti, affinity, devices] {
            if part != 0.0 {
                sum += part;
                parts += 1;
            }
        }
        (sum, parts, standing)
    }

    /// What is lacking for one more.
    fn lack(&self, slot: u32, ask: &Ask) -> Option<Lack> {
        let (o, f) = (&*self.overlay, self.overlay.fleet.facts(slot));
        let (amount, devices) = (self.amount_lacking(slot, ask), !self.rules.devices.is_empty());
        if ask.cores == 0 && (amount.is_some() || !devices && !self.ports.has_ports()) {
            return amount;
        }
        if amount.is_none()
            && ask.cores == 0
            && !devices
            && let Some(n) = self.only_dynamic
            && !o.ports_touched(slot)
            && o.fleet.taken(slot).ports.saturating_add(n) <= f.dynamic_room
        {
            return None;
        }
        // With cores the order of dimensions is another one.
        (amount.is_some() || self.lacking(slot, ask).is_some()).then_some(Lack::Other)
    }

    /// What is lacking of amounts, cores left aside.
    fn amount_lacking(&self, slot: u32, ask: &Ask) -> Option<Lack> {
        let (f, taken) = (self.overlay.fleet.facts(slot), self.overlay.taken(slot));
        if f.max_allocs > 0 && taken.allocs >= i64::from(f.max_allocs) {
            return Some(Lack::Allocs);
        }
        let amounts = [
            (Lack::Cpu, taken.cpu, ask.cpu, f.cpu),
            (Lack::Memory, taken.memory_mb, ask.memory_mb, f.memory_mb),
            (Lack::Disk, taken.disk_mb, ask.disk_mb, f.disk_mb),
        ];
        let sessions = f.sessions > 0 && !fits(taken.sessions, ask.sessions, i64::from(f.sessions));
        let lacking = amounts.into_iter().find(|(_, taken, ask, has)| !fits(*taken, *ask, *has));
        lacking.map(|(lack, ..)| lack).or_else(|| sessions.then_some(Lack::Sessions))
    }

    /// The exhausted dimension of the node, for people.
    fn lacking(&self, slot: u32, ask: &Ask) -> Option<Cow<'static, str>> {
        let (o, f, taken) = (&*self.overlay, self.overlay.fleet.facts(slot), self.overlay.taken(slot));
        let amount = self.amount_lacking(slot, ask);
        if ask.cores > 0 && amount != Some(Lack::Allocs) {
            let node = self.node(slot);
            let free = cores::free(node, &o.cores(slot));
            if i64::try_from(free.len()).unwrap_or(i64::MAX) < ask.cores {
                return Some(Cow::Borrowed("cores"));
            }
            if taken.cpu + ask.cpu + ask.cores * cores::mhz_per_core(node) > f.cpu {
                return Some(Cow::Borrowed("cpu"));
            }
        }
        if let Some(dimension) = amount.and_then(Lack::dimension) {
            return Some(Cow::Borrowed(dimension));
        }
        if !self.rules.devices.is_empty() && self.assigned(slot).is_none() {
            return Some(Cow::Borrowed(devices::NONE_LEFT));
        }
        if self.ports.is_empty() {
            return None;
        }
        o.fleet.capacity(slot).and_then(|c| self.ports.fits(c, o.ports(slot)).err()).map(Cow::Owned)
    }

    /// The devices that the group would get on that node now.
    fn assigned(&self, slot: u32) -> Option<Assigned> {
        self.rules.devices.assign(self.node(slot), &self.overlay.devices(slot))
    }

    /// Bin-packing (or balance, or sessions), anti-affinity, affinity, affinity to devices; 0 = does not apply, except
    /// for the first. `here`: allocations of the group on that node.
    fn parts(&self, slot: u32, here: u32, powers: &mut Powers) -> (f64, f64, f64, f64) {
        let (ask, class_affinity) = self.feasible(slot);
        let (f, taken) = (self.overlay.fleet.facts(slot), self.overlay.taken(slot));
        let fit = if ask.only_remote() {
            // Management costs a session and nothing else: the ranking balances sessions.
            1.0 / (1 + taken.sessions.max(0)) as f64
        } else {
            let used_cpu =
                taken.cpu + ask.cpu + if ask.cores > 0 { ask.cores * cores::mhz_per_core(self.node(slot)) } else { 0 };
            let cpu = powers.of_free(used_cpu, f.cpu);
            let memory = powers.of_free(taken.memory_mb + ask.memory_mb, f.memory_mb);
            if self.rules.binpack { packed(cpu, memory) } else { balanced(cpu, memory) }
        };
        let anti = if here == 0 { 0.0 } else { -f64::from(here + 1) / f64::from(self.group.count().max(1)) };
        let affinity = if self.rules.affinity_unique() { self.rules.affinity(self.node(slot)) } else { class_affinity };
        let devices = if self.rules.devices.has_affinities() {
            self.assigned(slot).map_or(0.0, |assigned| assigned.score)
        } else {
            0.0
        };
        (fit, anti, if self.rules.has_affinities() { affinity } else { 0.0 }, devices)
    }

    fn touch(&mut self, slot: u32) {
        if let Some(i) = self.ranking.find(slot) {
            let here = self.job_use.on(&self.group.name, slot);
            let (sum, parts, standing) = self.assess(slot, here, &mut Powers::default());
            self.ranking.renew(i, sum, parts, standing);
        }
    }

    /// Frees the room of a replaced allocation for its replacement (`leave`), or takes it back.
    fn lend(&mut self, previous: &Allocation, leave: bool) {
        let slot = if leave { self.overlay.remove(previous) } else { self.overlay.add(previous) };
        let Some(slot) = slot else { return };
        let node = self.overlay.fleet.node(slot).cloned();
        if let Some(node) = node {
            if leave {
                self.buckets.uncount(&node, self.rules.region());
            } else {
                self.buckets.count_existing(&node, self.rules.region(), true);
                self.buckets.refresh();
            }
            if let Some(pools) = &mut self.pools {
                let ask = PoolAsk::of(previous, &node);
                if leave { pools.remove(&ask) } else { pools.add(&ask) }
            }
        }
        if leave {
            self.job_use.remove(&previous.task_group, slot);
        } else {
            self.job_use.add(&previous.task_group, slot);
        }
        self.touch(slot);
    }

    /// A new allocation for the request, or `None` when no node can take it.
    pub(super) fn place(&mut self, r: &Request) -> Option<Allocation> {
        let live = r.previous.as_ref().filter(|p| r.stop.is_some() && !p.terminal()).cloned();
        if let Some(p) = &live {
            self.lend(p, true);
            if let Some(room) = self.room {
                room.release(p);
            }
            self.exhausted = false;
        }
        let placed = self.choose(r);
        match (&placed, live) {
            (None, Some(p)) => {
                self.lend(&p, false);
                if let Some(room) = self.room {
                    room.take(&p.resources);
                }
            }
            (Some(_), _) => self.placed += 1,
            _ => {}
        }
        placed
    }

    /// The nodes where a placement may use its volumes now; `None` = any candidate.
    fn among(&mut self, r: &Request) -> Option<Arc<BTreeSet<NodeId>>> {
        if !self.rules.volumes.dynamic() {
            return r.among.clone();
        }
        let of = (&**self.cx.job, self.group, r.index);
        let mut why_not = HashMap::new();
        let mut among = BTreeSet::new();
        for slot in self.ranking.candidates.iter().map(|c| c.slot) {
            match self.rules.volumes.allows(self.cx.state, self.overlay, of, slot) {
                Ok(()) => drop(among.insert(self.node(slot).id)),
                Err(why) => drop(why_not.insert(slot, why.into_owned())),
            }
        }
        if let Some(only) = &r.among {
            among.retain(|id| only.contains(id));
        }
        if among.is_empty() {
            self.without_volumes = why_not;
        }
        Some(Arc::new(among))
    }

    fn choose(&mut self, r: &Request) -> Option<Allocation> {
        let among = self.among(r);
        let (needs, carried) = if self.any_remote || r.previous.as_ref().is_some_and(|p| !p.remote.is_empty()) {
            remote::slot(self.cx.state, self.cx.job, self.group, r.index, r.previous.as_deref())
        } else {
            Default::default()
        };
        let preferred = r.previous.as_ref().filter(|_| self.sticky).and_then(|p| self.overlay.fleet.slot(p.node_id));
        let special = !needs.is_empty() || !r.penalty.is_empty() || preferred.is_some() || among.is_some();
        if !special && self.exhausted {
            return self.displace(r, among.as_deref(), &needs, &carried);
        }
        // An existing instance already has its room at the provider.
        let adopting = !needs.is_empty();
        let mut shown = None;
        loop {
            let buckets = &self.buckets;
            let boost = |b: u32| if buckets.is_full(b) { None } else { Some(buckets.boost(b)) };
            let best = if special {
                let pools = self.pools.as_ref().filter(|_| !adopting);
                let allowed = |c: &Candidate| {
                    let node = self.node(c.slot);
                    among.as_ref().is_none_or(|among| among.contains(&node.id))
                        && needs.iter().all(|n| n.met_by(node).is_ok())
                        && pools.is_none_or(|p| p.fits(&self.feasible(c.slot).0.pool).is_ok())
                };
                let stay = preferred.and_then(|s| self.ranking.find(s)).filter(|i| {
                    let c = &self.ranking.candidates[*i];
                    c.standing == Standing::Open && !buckets.is_full(c.bucket) && allowed(c)
                });
                let penalised = |slot: u32| !r.penalty.is_empty() && r.penalty.contains(&self.node(slot).id);
                stay.or_else(|| self.ranking.best_linear(boost, allowed, penalised))
            } else if !self.looked {
                // Most evaluations place one or two: the account of the first needs a look at all anyway.
                self.looked = true;
                let mut top = match self.buckets.plain() {
                    // Each request changes a candidate, and one that it leaves.
                    true => self.ranking.list((2 * self.wanted.requests.len()).min(LISTED) + SHOWN),
                    false => self.ranking.top(SHOWN, boost, |_| false),
                };
                top.truncate(SHOWN);
                let best = top.first().map(|(i, _)| *i);
                shown = Some(top);
                best
            } else {
                if !self.ranking.built() {
                    self.ranking.build(buckets.len());
                }
                shown = None;
                self.ranking.best(boost)
            };
            let Some(i) = best else {
                self.exhausted |= !special;
                return self.displace(r, among.as_deref(), &needs, &carried);
            };
            let slot = self.ranking.candidates[i].slot;
            if !adopting
                && let Some(p) = &self.pools
                && p.fits(&self.feasible(slot).0.pool).is_err()
            {
                self.exclude(i);
                continue;
            }
            // What runs already at a provider has its room.
            if !adopting
                && let Some(room) = self.room.as_ref()
                && let Err(why) = room.fits(&self.demand(slot))
            {
                self.limit = Some(why);
                return None;
            }
            let grant = if self.ports.is_empty() {
                NetworkGrant::default()
            } else {
                let capacity = self.overlay.fleet.capacity(slot).cloned().unwrap_or_default();
                match self.ports.grant(&capacity, self.overlay.ports(slot), self.ids) {
                    Ok(grant) => grant,
                    // The count promised a port, but the remaining ones are reserved.
                    Err(_) => {
                        self.exclude(i);
                        continue;
                    }
                }
            };
            let metrics = self.metrics(i, &r.penalty, shown);
            return Some(self.allocate(r, i, grant, carried, metrics));
        }
    }

    /// What a new allocation on that node counts in its namespace.
    fn demand(&self, slot: u32) -> NamespaceUse {
        let (ask, _) = self.feasible(slot);
        let mut demand = NamespaceUse::of(&ask.given);
        if ask.cores > 0 {
            demand.cpu += ask.cores * cores::mhz_per_core(self.node(slot));
        }
        demand
    }

    /// Whether the limits of the namespace left no room.
    pub(super) fn limited(&self) -> bool {
        self.limit.is_some()
    }

    fn exclude(&mut self, i: usize) {
        let c = &self.ranking.candidates[i];
        let (sum, parts) = (c.sum, c.parts);
        self.ranking.renew(i, sum, parts, Standing::Exhausted(Lack::Other));
    }

    fn allocate(
        &mut self,
        r: &Request,
        i: usize,
        grant: NetworkGrant,
        carried: Map<Arc<str>, model::ids::IncarnationId>,
        metrics: Arc<AllocMetric>,
    ) -> Allocation {
        let Candidate { slot, bucket, .. } = self.ranking.candidates[i];
        let node = self.node(slot);
        let (ask, _) = self.feasible(slot);
        let resources = self.resources(slot, ask, grant);
        let pool = ask.pool.clone();
        let alloc = Allocation {
            id: AllocId(self.ids.uuid()),
            namespace: self.cx.job.namespace.clone(),
            eval_id: self.cx.eval.id,
            name: alloc_name(self.cx.job.id.as_str(), &self.group.name, r.index).into(),
            node_id: node.id,
            node_name: node.name.clone(),
            job_id: self.cx.job.id.clone(),
            job_version: self.cx.job.version,
            job: Some(self.cx.job.clone()),
            task_group: self.group.name.clone(),
            resources,
            metrics: Some(metrics),
            desired_status: DesiredStatus::Run,
            client_status: ClientStatus::Pending,
            deployment_id: self.wanted.deployment,
            deployment_status: r
                .canary
                .then(|| AllocDeploymentStatus { canary: true, ..AllocDeploymentStatus::default() }),
            previous_allocation: r.previous.as_ref().map_or(AllocId::NIL, |p| p.id),
            reschedule_tracker: r.tracker.clone(),
            remote: carried,
            create_time: self.cx.now,
            modify_time: self.cx.now,
            ..Allocation::default()
        };
        self.overlay.add(&alloc);
        if self.rules.volumes.dynamic() {
            self.overlay.uses_volumes(slot, &alloc);
        }
        if let Some(room) = self.room {
            room.take(&alloc.resources);
        }
        self.job_use.add(&self.group.name, slot);
        if let Some(p) = &mut self.pools {
            p.add(&pool);
        }
        self.buckets.placed(bucket);
        self.touch(slot);
        alloc
    }

    fn resources(&self, slot: u32, ask: &Ask, grant: NetworkGrant) -> Arc<AllocatedResources> {
        if ask.cores == 0 && self.ports.is_empty() && self.rules.devices.is_empty() {
            return ask.given.clone();
        }
        let mut given = AllocatedResources::clone(&ask.given);
        given.shared.networks = grant.networks;
        given.shared.ports = grant.ports;
        for (task, networks) in grant.tasks {
            if let Some(t) = given.tasks.get_mut(&task) {
                t.networks = networks;
            }
        }
        if ask.cores > 0 {
            let node = self.node(slot);
            let mut free = cores::free(node, &self.overlay.cores(slot)).into_iter();
            for t in self.group.tasks.iter().filter(|t| t.resources.cores.unwrap_or(0) > 0) {
                let n = t.resources.cores.unwrap_or(0);
                if let Some(a) = given.tasks.get_mut(&t.name).filter(|a| !a.remote) {
                    a.cpu.reserved_cores = free.by_ref().take(usize::try_from(n).unwrap_or(0)).collect();
                    a.cpu.cpu_shares = n * cores::mhz_per_core(node);
                }
            }
        }
        for (task, devices) in self.assigned(slot).unwrap_or_default().given {
            if let Some(t) = given.tasks.get_mut(&task) {
                t.devices.push(devices);
            }
        }
        Arc::new(given)
    }

    /// The ranking's account for this placement. Later placements share it, except for requests with penalised nodes.
    /// `shown`: the best few, where they are known.
    fn metrics(&mut self, chosen: usize, penalty: &[NodeId], shown: Option<Vec<(usize, f64)>>) -> Arc<AllocMetric> {
        if penalty.is_empty()
            && let Some((m, left)) = &mut self.account
            && *left > 0
        {
            *left -= 1;
            return m.clone();
        }
        let mut m = self.base.clone();
        let buckets = &self.buckets;
        let boost = |b: u32| if buckets.is_full(b) { None } else { Some(buckets.boost(b)) };
        let penalised = |slot: u32| !penalty.is_empty() && penalty.contains(&self.node(slot).id);
        let mut shown = shown.unwrap_or_else(|| self.ranking.top(SHOWN, boost, penalised));
        if !shown.iter().any(|(i, _)| *i == chosen) {
            // A request with penalised nodes: its own choice comes first.
            let c = &self.ranking.candidates[chosen];
            shown.insert(0, (chosen, mean(c.sum, c.parts, buckets.boost(c.bucket))));
            shown.truncate(SHOWN);
        }
        self.explain(&mut m, &[], false);
        m.score_meta_data = shown.into_iter().map(|(i, score)| self.score(i, score, penalty)).collect();
        let m = Arc::new(m);
        if !penalty.is_empty() {
            return m;
        }
        let share = if self.placed == 0 { SHARED_FIRST } else { SHARED_LATER };
        self.account = Some((m.clone(), share - 1));
        m
    }

    fn score(&self, i: usize, norm_score: f64, penalty: &[NodeId]) -> NodeScore {
        let c = &self.ranking.candidates[i];
        let here = self.job_use.on(&self.group.name, c.slot).group;
        let (fit, anti, affinity, devices) = self.parts(c.slot, here, &mut Powers::default());
        let first = if self.feasible(c.slot).0.only_remote() { "sessions" } else { "binpack" };
        let penal = if penalty.contains(&self.node(c.slot).id) { -1.0 } else { 0.0 };
        let parts = [
            (first, fit),
            ("job-anti-affinity", anti),
            ("node-reschedule-penalty", penal),
            ("node-affinity", affinity),
            ("devices", devices),
            ("allocation-spread", self.buckets.boost(c.bucket)),
        ];
        let shown = parts.into_iter().enumerate().filter(|(n, (_, v))| *n == 0 || *v != 0.0);
        NodeScore {
            node_id: self.node(c.slot).id,
            scores: shown.map(|(_, (k, v))| (k.into(), v)).collect(),
            norm_score,
        }
    }

    /// Requirements of the wanted slots' live instances on their next manager.
    fn needs(&self) -> Vec<remote::Need> {
        if self.cx.state.remote_tasks_by_job(&self.cx.job.key()).next().is_none() {
            return Vec::new();
        }
        let requests = self.wanted.requests.iter();
        requests
            .flat_map(|r| remote::slot(self.cx.state, self.cx.job, self.group, r.index, r.previous.as_deref()).0)
            .collect()
    }

    /// Why `failed` requests have no node.
    pub(super) fn failure(&self, failed: i64) -> AllocMetric {
        let mut m = self.base.clone();
        m.coalesced_failures = failed - 1;
        m.quota_exhausted.extend(self.limit.clone());
        self.name_filtered(&mut m);
        self.explain(&mut m, &self.needs(), true);
        m
    }

    /// Names nodes that break a rule; see [`name_node`]. The numbers are counted already.
    fn name_filtered(&self, m: &mut AllocMetric) {
        for (slot, facts) in (0_u32..).zip(self.overlay.fleet.all_facts()).filter(|(_, facts)| facts.ready) {
            match &self.classes[facts.class as usize] {
                Class::Unknown | Class::OutOfScope => {}
                Class::Filtered(why) => name_node(m, self.node(slot), why, false),
                Class::Feasible { .. } if self.rules.escaped() => {
                    if let Err(why) = self.rules.unique_meets(self.node(slot)) {
                        name_node(m, self.node(slot), &why, false);
                    }
                }
                Class::Feasible { .. } => {}
            }
        }
    }

    /// Adds the classes that could take the blocked requests.
    pub(super) fn eligibility(&self, blocked: &mut Blocked) {
        // A live instance's requirements are not a matter of classes.
        blocked.escaped |= self.rules.escaped() || !self.needs().is_empty();
        for (n, c) in (0_u32..).zip(&*self.classes) {
            let Some(name) = self.overlay.fleet.class_name(n) else { continue };
            match c {
                Class::Feasible { .. } => *blocked.classes.entry(name.to_string()).or_default() = true,
                Class::Filtered(_) => {
                    blocked.classes.entry(name.to_string()).or_default();
                }
                Class::Unknown | Class::OutOfScope => {}
            }
        }
    }
}

/// An empty request fits even where others exceed the capacity.
fn fits(taken: i64, ask: i64, has: i64) -> bool {
    ask == 0 || taken + ask <= has
}

/// Most nodes that a failure names for one reason, and in all: enough to go and look. Thousands of evaluations may
/// wait, each with its failures.
const NAMED: (usize, usize) = (3, 12);

fn name_node(m: &mut AllocMetric, node: &Node, why: &str, exhausted: bool) {
    let named = &m.nodes_left_out;
    if named.len() < NAMED.1 && named.iter().filter(|known| known.reason == why).count() < NAMED.0 {
        m.nodes_left_out.push(NodeLeftOut {
            node_id: node.id,
            name: node.name.clone(),
            reason: why.to_owned(),
            exhausted,
        });
    }
}

fn filtered(m: &mut AllocMetric, class: &str, why: String, n: i64) {
    m.nodes_filtered += n;
    *m.constraint_filtered.or_default(why) += n;
    count_class(&mut m.class_filtered, class, n);
}

/// Counts nodes of a node class, unless it is the unnamed one.
fn count_class(by_class: &mut Map<String, i64>, class: &str, n: i64) {
    if n > 0 && !class.is_empty() {
        *by_class.or_default(class.to_owned()) += n;
    }
}
