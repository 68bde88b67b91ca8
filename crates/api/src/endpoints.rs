//! Every endpoint of the HTTP API, one line each. From it come the client's calls ([`crate::call`]), the routes of the
//! server, which needs a handler for each of them, and the page of the reference.

/// Hands the table of all endpoints to the macro `$then`. The first pattern that fits a path decides; `:name` is one
/// part of the path, `*name` one or more. After the pattern come the names of its parameters, then what it does with
/// each method: `Get`, `Put` (PUT and POST), `OnlyPut`, `Delete` or `Any`. Behind the method stands in parentheses what
/// its caller needs, while ACLs are on; what can stand there and means what is in `crates/server-http/src/needs.rs`.
///
/// - `[name (Body) -> Reply = handler, "doc"]`: the call `name` takes a body and answers with a reply; `handler` is a
///   path in the server.
/// - `[refused handler]`: this release does not have it, and says why.
/// - `[other handler, "doc"]`: something else than JSON is asked or answered, and no client of ours calls it.
#[macro_export]
macro_rules! endpoints {
    ($then:ident) => { $then! {
    // Jobs.
    "/v1/jobs" ()
        Get (ns ListJobs) [jobs -> Vec<JobListStub> = jobs::list, "Lists jobs."]
        Put (handler "`submit-job` or `register-job` in the namespace of the job; a mount of each host volume")
            [job_register (JobRegisterRequest) -> JobRegisterResponse = job_writes::register, "Registers a job."];
    "/v1/jobs/parse" ()
        Put (ns ParseJob SubmitJob)
            [job_parse (JobParseRequest) -> Value = job_writes::parse, "Turns the text of a job file \
        into a job."];
    "/v1/jobs/statuses" ()
        Get (handler "`read-job` in the namespace of the request, or of a job that the body names")
            [job_statuses -> Vec<JobStatusRow> = job_statuses::read, "Shows how jobs are, the one that changed last \
            first."]
        Put (handler "`read-job` in the namespace of the request, or of a job that the body names")
            [job_statuses_of (JobStatusesRequest) -> Vec<JobStatusRow> = job_statuses::read, "Shows how the jobs of \
            the body are."];
    "/v1/validate/job" ()
        Put (handler "`read-job` in the namespace of the job")
            [job_validate (JobValidateRequest) -> JobValidateResponse = job_writes::validate, "Checks a job without \
            registering it."];
    "/v1/job/*id/plan" (id)
        Put (handler "`submit-job` or `plan-job` in the namespace of the job")
            [job_plan (JobPlanRequest) -> JobPlanResponse = job_writes::plan, "Shows what a registration of a job \
            would change."];
    "/v1/job/*id/evaluate" (id)
        Put (ns SubmitJob EvaluateJob)
            [job_evaluate (JobEvaluateRequest) -> JobRegisterResponse = job_writes::evaluate, "Evaluates a job again."];
    "/v1/job/*id/allocations" (id) Get (ns ReadJob) [job_allocations -> Vec<Allocation> = jobs::allocations,
        "Lists the allocations of a job."];
    "/v1/job/*id/evaluations" (id) Get (ns ReadJob) [job_evaluations -> Vec<Evaluation> = jobs::evaluations,
        "Lists the evaluations of a job."];
    "/v1/job/*id/deployments" (id) Get (ns ReadJob) [job_deployments -> Vec<Deployment> = jobs::deployments,
        "Lists the deployments of a job."];
    "/v1/job/*id/deployment" (id)
        Get (ns ReadJob)
            [job_deployment -> Option<Deployment> = jobs::latest_deployment, "Reads the latest deployment of a job."];
    "/v1/job/*id/summary" (id)
        Get (ns ReadJob) [job_summary -> JobSummary = jobs::summary, "Counts the allocations of a job."];
    "/v1/job/*id/versions/:name/tag" (id name)
        Put (ns SubmitJob TagJobVersion)
            [job_tag (JobTagRequest) -> JobTagResponse = job_writes::tag, "Names a version of a job."]
        Delete (ns SubmitJob TagJobVersion)
            [job_untag -> Raw = job_writes::untag, "Takes a name away from a version."];
    "/v1/job/*id/versions" (id)
        Get (ns ReadJob) [job_versions -> JobVersions = jobs::versions, "Lists the versions of a job."];
    "/v1/job/*id/submission" (id)
        Get (ns ReadJob) [job_submission -> Submission = jobs::submission, "Reads the source text \
        of a job."];
    "/v1/job/*id/revert" (id)
        Put (handler "`submit-job` or `revert-job` in the namespace of the request; a mount of each host volume of \
            that version")
            [job_revert (JobRevertRequest) -> JobRegisterResponse = job_writes::revert, "Returns a job to an earlier \
            version."];
    "/v1/job/*id/stable" (id)
        Put (ns SubmitJob StableJob)
            [job_stable (JobStabilityRequest) -> IndexResponse = job_writes::stable, "Marks a version of a job \
            as stable."];
    "/v1/job/*id/scale" (id)
        Get (ns ReadJob ReadJobScaling)
            [job_scale_status -> JobScaleStatus = jobs::scale_status, "Reads the counts and scaling events of a job."]
        Put (ns ScaleJob SubmitJob)
            [job_scale (ScaleRequest) -> JobRegisterResponse = job_writes::scale, "Sets the count of a group."];
    "/v1/job/*id/dispatch/payload" (id)
        Put (ns DispatchJob)
            [other job_writes::dispatch_payload, "Dispatches a parameterized job; the body is its payload."];
    "/v1/job/*id/dispatch" (id)
        Put (ns DispatchJob)
            [job_dispatch (JobDispatchRequest) -> JobDispatchResponse = job_writes::dispatch, "Dispatches a \
            parameterized job."];
    "/v1/job/*id/periodic/force" (id)
        Put (ns DispatchJob SubmitJob ForcePeriodicJob)
            [job_periodic_force -> PeriodicForceResponse = job_writes::force, "Launches a periodic job now."];
    "/v1/job/*id/services" (id)
        Get (ns ReadJob) [job_services -> Vec<ServiceRegistration> = services::of_job, "Lists the services \
        of a job."];
    "/v1/job/*id/actions" (id)
        Get (ns ReadJob) [job_actions -> Vec<Value> = jobs::actions, "Lists the actions of a job."];
    "/v1/job/*id/action" (id)
        Get (handler "`alloc-exec` in the namespace of the allocation; also `alloc-node-exec` where the driver does \
            not isolate tasks") [job_action -> Raw = exec::action, "Runs an action of a job in a task, over \
            a websocket."];
    "/v1/job/*id" (id)
        Get (ns ReadJob) [job -> Job = jobs::get, "Reads a job."]
        Put (handler "`submit-job` or `register-job` in the namespace of the job; a mount of each host volume")
            [job_update (JobRegisterRequest) -> JobRegisterResponse = job_writes::register_named, "Registers a job \
            under this id."]
        Delete (job_stop) [job_stop -> JobDeregisterResponse = job_writes::deregister, "Stops a job."];

    // Allocations, evaluations, deployments.
    "/v1/allocations" () Get (ns ReadJob) [allocs -> Vec<Allocation> = allocs::list, "Lists allocations."];
    "/v1/allocation/:id/stop" (id)
        Put (alloc AllocLifecycle) [alloc_stop -> AllocStopResponse = allocs::stop, "Stops an allocation and \
        places it again."];
    "/v1/allocation/:alloc/checks" (alloc)
        Get (alloc ReadJob)
            [alloc_checks -> BTreeMap<String, CheckResult> = proxy::checks_of_alloc, "Reads the checks of an \
            allocation's services."];
    "/v1/allocation/:id/services" (id)
        Get (alloc ReadJob)
            [alloc_services -> Vec<ServiceRegistration> = services::of_alloc, "Lists the services of an allocation."];
    "/v1/allocation/:id" (id) Get (former ReadJob) [alloc -> AllocDetail = allocs::get, "Reads an allocation."];
    "/v1/evaluations" () Get (ns ReadJob) [evals -> Vec<Evaluation> = evals::list,
        "Lists evaluations."] Delete (management)
            [evals_delete (EvalDeleteRequest) -> EvalDeleteResponse = evals::delete, "Deletes evaluations while \
            none are worked off."];
    "/v1/evaluations/count" () Get (ns ReadJob) [eval_count -> Count = evals::count, "Counts evaluations."];
    "/v1/evaluation/:id/allocations" (id)
        Get (eval ReadJob)
            [eval_allocations -> Vec<Allocation> = evals::allocations, "Lists the allocations of an evaluation."];
    "/v1/evaluation/:id" (id) Get (eval ReadJob) [eval -> Evaluation = evals::get, "Reads an evaluation."];
    "/v1/deployments" () Get (ns ReadJob) [deployments -> Vec<Deployment> = deployments::list, "Lists deployments."];
    "/v1/deployment/allocations/:id" (id)
        Get (deployment ReadJob)
            [deployment_allocations -> Vec<Allocation> = deployments::allocations, "Lists the allocations of a \
            deployment."];
    "/v1/deployment/fail/:id" (id)
        Put (deployment SubmitJob FailDeployment)
            [deployment_fail -> DeploymentUpdateResponse = deployments::fail, "Fails a deployment."];
    "/v1/deployment/pause/:id" (id)
        Put (deployment SubmitJob PauseDeployment)
            [deployment_pause (DeploymentPauseRequest) -> DeploymentUpdateResponse = deployments::pause,
            "Pauses or resumes a deployment."];
    "/v1/deployment/promote/:id" (id)
        Put (deployment SubmitJob PromoteDeployment)
            [deployment_promote (DeploymentPromoteRequest) -> DeploymentUpdateResponse = deployments::promote,
            "Promotes canaries."];
    "/v1/deployment/allocation-health/:id" (id)
        Put (deployment SubmitJob SetAllocHealthDeployment)
            [deployment_health (DeploymentHealthRequest) -> DeploymentUpdateResponse
            = deployments::set_health, "Sets the health of allocations."];
    "/v1/deployment/unblock/:id" (id)
        Put (deployment SubmitJob UnblockDeployment) [refused refused::deployment_unblock];
    "/v1/deployment/:id" (id)
        Get (deployment ReadJob) [deployment -> Deployment = deployments::get, "Reads a deployment."];

    // Nodes and pools.
    "/v1/nodes" () Get (node Read) [nodes -> Vec<Node> = nodes::list, "Lists nodes."];
    "/v1/node/pools" ()
        Get (any_pool Read) [node_pools -> Vec<NodePoolView> = nodes::pools, "Lists node pools."]
        Put (management)
            [node_pools_put (NodePool) -> Raw = nodes::put_pool, "Creates or changes a node pool."];
    "/v1/node/pool/*name/nodes" (name)
        Get (pool_nodes) [node_pool_nodes -> Vec<Node> = nodes::pool_nodes, "Lists the nodes \
        of a pool."];
    "/v1/node/pool/*name/jobs" (name)
        Get (pool_jobs) [node_pool_jobs -> Vec<JobListStub> = nodes::pool_jobs, "Lists the jobs \
        of a pool."];
    "/v1/node/pool/*name" (name)
        Get (pool Read) [node_pool -> NodePoolView = nodes::pool, "Reads a node pool."]
        Put (pool Write)
            [node_pool_put (NodePool) -> Raw = nodes::put_pool_named, "Creates or changes a node pool."]
        Delete (pool Delete)
            [node_pool_delete -> Raw = nodes::delete_pool, "Deletes a node pool that nothing uses."];
    "/v1/node/:id/allocations" (id) Get (node Read) [node_allocations -> Vec<Allocation> = nodes::allocations,
        "Lists the allocations of a node."];
    "/v1/node/:id/drain" (id)
        Put (own_drain)
            [node_drain (NodeDrainRequest) -> NodeUpdateResponse = nodes::drain, "Begins or ends the drain of a node."];
    "/v1/node/:id/eligibility" (id)
        Put (own_drain) [node_eligibility (NodeEligibilityRequest) -> NodeUpdateResponse
            = nodes::eligibility, "Makes a node eligible for scheduling, or not."];
    "/v1/node/:id/preview" (id)
        Get (node Read) [node_preview -> NodePreview = nodes::preview, "Shows what a drain or the loss of a node would \
            do."];
    "/v1/node/:id/evaluate" (id)
        Put (node Write) [node_evaluate -> NodeUpdateResponse = nodes::evaluate, "Evaluates the jobs of a node again."];
    "/v1/node/:id/purge" (id)
        Put (node Write) [node_purge -> NodeUpdateResponse = nodes::purge, "Deletes the record of a node."];
    "/v1/node/:id" (id) Get (node Read) [node -> Node = nodes::get, "Reads a node."];

    // Drivers: ours, not in the API that we follow.
    "/v1/drivers/schemas" ()
        Get (valid)
            [driver_schemas -> Vec<DriverSchemas> = drivers::schemas, "Reads the configuration schemas that nodes \
            have reported."];

    // Remote tasks: ours, not in the API that we follow.
    "/v1/remote/tasks" () Get (ns ReadJob) [remote_tasks -> Vec<RemoteTaskView> = remote::list, "Lists remote tasks."];
    "/v1/remote/unbound" ()
        Get (node Read) [remote_unbound -> Vec<RemoteSweep> = remote::unbound, "Lists orphaned instances of \
        providers."];
    "/v1/remote/unbound/:key" (key)
        Delete (management)
            [remote_unbound_forget -> IndexResponse = remote::forget_unbound, "Stops reporting an orphaned \
            instance."];
    "/v1/remote/unbound/:key/adopt" (key)
        Put (management)
            [remote_unbound_adopt -> RemoteAdopted = remote::adopt, "Adopts an orphaned instance into its slot."];
    "/v1/remote/unbound/:key/stop" (key)
        Put (management) [remote_unbound_stop -> IndexResponse = remote::stop_unbound, "Stops an orphaned instance."];
    "/v1/remote/task/*slot" (slot)
        Get (slot ReadJob) [remote_task -> RemoteTaskView = remote::get, "Reads a remote task."]
        Delete (management)
            [remote_forget -> IndexResponse = remote::forget, "Deletes the record of a remote task without \
            confirmation."];
    "/v1/remote/restart/*slot" (slot)
        Put (slot AllocLifecycle)
            [remote_restart -> IndexResponse = remote::restart, "Replaces the instance of a remote task."];
    "/v1/remote/gone/*slot" (slot)
        Put (management)
            [remote_gone -> IndexResponse = remote::gone, "Declares that the instance of a remote task is gone."];

    // Client endpoints: answered by the agent itself when the node is its own, else by the node.
    "/v1/client/fs/:operation/:alloc" (operation alloc)
        Get (files) [alloc_files -> Raw = proxy::by_alloc, "Lists, describes, reads or follows files and logs of an \
            allocation."];
    "/v1/client/allocation/:alloc/stats" (alloc)
        Get (alloc ReadJob)
            [alloc_stats -> AllocResourceUsage = proxy::by_alloc, "Reads the resource usage of an allocation."];
    "/v1/client/allocation/:alloc/signal" (alloc)
        Put (alloc AllocLifecycle)
            [alloc_signal (AllocSignalRequest) -> Raw = proxy::by_alloc, "Sends a signal to tasks."];
    "/v1/client/allocation/:alloc/restart" (alloc)
        Put (alloc AllocLifecycle)
            [alloc_restart (AllocRestartRequest) -> Raw = proxy::restart, "Restarts tasks in place."];
    "/v1/client/allocation/:alloc/gc" (alloc)
        Get (alloc SubmitJob GcAllocation)
            [alloc_gc -> Raw = proxy::by_alloc, "Collects an ended allocation on its node."];
    "/v1/client/allocation/:alloc/checks" (alloc)
        Get (alloc ReadJob)
            [alloc_node_checks -> BTreeMap<String, CheckResult> = proxy::by_alloc, "Reads the checks of an \
            allocation's services."];
    "/v1/client/allocation/:alloc/exec" (alloc)
        Get (handler "`alloc-exec` in the namespace of the allocation; `alloc-node-exec` too, where the driver does \
            not isolate tasks") [alloc_exec -> Raw = exec::exec, "Runs a command in a task, over \
        a websocket."];
    "/v1/client/allocation/:alloc/snapshot" (alloc)
        Get (former ReadFs) [alloc_snapshot -> Raw = proxy::archive, "Archives the directory of an allocation."];
    "/v1/client/identity" ()
        Get (node Read) [node_identity -> NodeIdentity = proxy::by_node, "Reads the claims of a node's identity."];
    "/v1/client/identity/renew" ()
        Put (node Write)
            [node_identity_renew (IdentityRenewRequest) -> Value = proxy::named_in_body, "Gives a node a new identity \
            with its next heartbeat."];
    "/v1/client/allocation/:alloc/pause" (alloc) Get (alloc ReadJob) [refused refused::alloc_pause]
        Put (alloc SubmitJob PauseAllocation) [refused refused::alloc_pause];
    "/v1/client/stats" ()
        Get (node Read) [node_stats -> HostStats = proxy::by_node, "Reads the resource usage of a node's host."];
    "/v1/client/audit" ()
        Get (node Read) [node_audit -> NodeAudit = proxy::by_node, "Compares what exists on a node with its records."]
        Put (node Write) [node_sweep -> NodeAudit = proxy::by_node, "Ends everything that no record of a node claims."];
    "/v1/client/drivers/reload" () Put (node Write) [drivers_reload -> DriverReload = proxy::by_node, "Reloads changed \
        plugin files."];
    "/v1/client/gc" ()
        Get (node Write) [node_gc_legacy -> Raw = proxy::by_node, "Collects the ended allocations of a node."]
        Put (node Write) [node_gc -> Raw = proxy::by_node, "Collects the ended allocations of a node."];
    "/v1/client/metadata" ()
        Get (node Read) [node_meta -> BTreeMap<String, Option<BTreeMap<String, Option<String>>>> = proxy::by_node,
            "Reads a node's metadata."]
        Put (node Write) [node_meta_apply (Value) -> Value = proxy::named_in_body, "Changes a node's metadata."];

    // The agent.
    "/.well-known/jwks.json" () Get (open) [jwks -> JsonWebKeys = keyring::jwks, "Reads the public keys of workload \
        identities."];
    "/v1/identity" () Get (open) [identity -> Value = keyring::identity, "Checks a workload identity."];
    "/.well-known/openid-configuration" () Get (open)
        [openid_configuration -> OpenIdConfiguration = keyring::discovery,
        "Says who issues workload identities and where their keys are."];
    "/v1/agent/self" ()
        Get (agent Read) [agent_self -> AgentSelf = agent::agent_self, "Reads the agent's configuration and \
        statistics."];
    "/v1/agent/members" () Get (node Read) [agent_members -> Members = agent::members, "Lists servers."];
    "/v1/agent/servers" ()
        Get (agent Read) [agent_servers -> Vec<String> = agent::servers, "Lists the addresses of the servers."]
        Put (agent Write) [refused refused::set_servers];
    "/v1/agent/join" () Put (agent Write) [agent_join -> Value = agent::join, "Joins no server: a cluster has one."];
    "/v1/agent/force-leave" ()
        Put (agent Write) [agent_force_leave -> Raw = agent::force_leave, "Forces no server to leave: a \
        cluster has one."];
    "/v1/agent/features" ()
        Get (open) [agent_features -> AgentFeatures = agent::features, "Tells what this release has and what it \
            refuses."];
    "/v1/agent/health" ()
        Get (open) [agent_health -> Health = agent::health, "Reads the health of the agent and its loops."];
    "/v1/operator/recovery" ()
        Get (operator Read)
            [recovery -> RecoveryView = operator::recovery, "Shows whether the servers recover, and what they \
            wait for."]
        Put (management) [recovery_end -> Raw = operator::end_recovery, "Ends the recovery."];
    "/v1/operator/recovery/excuse/:node" (node)
        Put (management) [recovery_excuse -> Raw = operator::excuse, "Counts a missing \
        node as down in the recovery."];
    "/v1/operator/recovery/accept/:node" (node)
        Put (management) [recovery_accept -> Raw = operator::accept, "Believes what a \
        node says to have without a proof, in the recovery."];
    "/v1/agent/reload" ()
        Put (agent Write) [agent_reload -> Raw = agent::reload, "Reads the agent's configuration again."];
    "/v1/agent/monitor" () Get (agent Read) [agent_monitor -> Raw = monitor::monitor, "Follows the agent's log."];
    "/v1/agent/monitor/export" () Get (agent Read) [refused refused::monitor_export];
    "/v1/agent/host" () Get (agent Read) [refused refused::host];
    "/v1/agent/pprof/:profile" (profile) Get (agent Write) [refused refused::debug];
    "/v1/agent/schedulers" ()
        Get (agent Read) [agent_schedulers -> Value = agent::schedulers, "Reads the number of scheduler \
        workers."];
    "/debug/pprof/*rest" (rest) Get (agent Write) [refused refused::debug];
    "/v1/agent/schedulers/config" () Get (agent Read) [refused refused::schedulers_config]
        Put (agent Write) [refused refused::schedulers_config];
    "/v1/agent/keyring/:operation" (operation) Get (agent Write) [refused refused::gossip_keyring]
        Put (agent Write) [refused refused::gossip_keyring];
    "/v1/metrics" () Get (open) [metrics -> Metrics = metrics::metrics, "Reads metrics, as JSON or for Prometheus."];
    "/v1/metrics/trends" ()
        Get (open) [trends -> Vec<Trend> = metrics::trends, "Reads what the cluster looked like over the last hour."];
    "/v1/metrics/history" ()
        Get (open) [history -> Vec<Trend> = history::history, "Reads what the cluster looked like over a longer time, \
            from Prometheus."];
    "/v1/regions" () Get (open) [regions -> Vec<String> = agent::regions, "Lists regions."];
    "/v1/status/leader" () Get (open) [leader -> String = agent::leader, "Reads the address of the leader."];
    "/v1/status/peers" () Get (open) [peers -> Vec<String> = agent::peers, "Lists the addresses of the servers."];

    // System and operator.
    "/v1/system/gc" () OnlyPut (management) [system_gc -> Raw = operator::gc, "Collects what has ended."];
    "/v1/system/reconcile/summaries" ()
        OnlyPut (management)
            [reconcile_summaries -> Raw = operator::reconcile_summaries, "Recounts the allocations of all jobs."];
    "/v1/operator/scheduler/configuration" ()
        Get (operator Read)
            [scheduler_config -> SchedulerConfigResponse = operator::scheduler_config, "Reads the scheduler's \
            settings."]
        Put (operator Write)
            [scheduler_config_set (SchedulerConfig) -> SchedulerConfigUpdate = operator::set_scheduler_config,
            "Changes the scheduler's settings."];
    "/v1/operator/raft/configuration" ()
        Get (management)
            [raft_configuration -> RaftConfiguration = operator::raft_configuration, "Lists servers, as if they were \
            peers of Raft."];
    "/v1/operator/raft/peer" ()
        Delete (management) [raft_remove_peer -> Raw = operator::raft_remove_peer, "Removes no peer: \
        servers do not use Raft."];
    "/v1/operator/raft/transfer-leadership" ()
        Put (management)
            [transfer_leadership -> LeadershipTransfer = autopilot::transfer_leadership, "Has the leader make room for \
            another server."];
    "/v1/operator/autopilot/configuration" () Get (operator Read) [refused refused::autopilot]
        Put (operator Write) [refused refused::autopilot];
    "/v1/operator/autopilot/health" ()
        Get (operator Read)
            [operator_health -> OperatorHealth = autopilot::health, "Shows how the servers and the members of their \
            store are; 429 when one of them is not well."];
    "/v1/operator/snapshot" ()
        Get (operator_can SnapshotSave) [snapshot -> Raw = operator::snapshot, "Saves the state of the \
        servers."] Put (management) [refused refused::restore];
    "/v1/operator/keyring/keys" ()
        Get (operator_can KeyringRead) [keys -> Vec<RootKeyMeta> = keyring::list, "Lists root keys."];
    "/v1/operator/keyring/rotate" ()
        Put (operator_can KeyringRotate) [key_rotate -> KeyRotated = keyring::rotate, "Makes a new root key."];
    "/v1/operator/keyring/key/:id" (id)
        Delete (operator_can KeyringDelete) [key_delete -> KeyDeleted = keyring::delete, "Deletes a root key."];
    "/v1/operator/upgrade-check/*kind" (kind) Get (operator Read) [refused refused::upgrade_check];
    "/v1/operator/utilization" () Put (operator Write) [refused refused::enterprise];
    "/v1/operator/license" () Get (operator_can LicenseRead) [refused refused::license]
        Put (operator Write) [refused refused::enterprise];

    // Scaling policies.
    "/v1/scaling/policies" ()
        Get (scaling_policies) [scaling_policies -> Vec<ScalingPolicyStub> = scaling::list, "Lists scaling \
        policies."];
    "/v1/scaling/policy/:id" (id)
        Get (scaling_policy) [scaling_policy -> ScalingPolicyDetail = scaling::get, "Reads a scaling policy."];

    // Services.
    "/v1/services" ()
        Get (services) [services -> Vec<NamespaceServices> = services::list, "Lists services, by namespace."];
    "/v1/service/:name" (name)
        Get (services) [service -> Vec<ServiceRegistration> = services::get, "Lists the instances of a \
        service."];
    "/v1/service/:name/:id" (name id)
        Delete (ns SubmitJob DeleteServiceRegistration) [service_delete -> IndexResponse = services::delete,
        "Deletes a registration of a service."];

    // Namespaces, search, events.
    "/v1/namespaces" ()
        Get (handler "nothing: those in which the caller has a capability are listed")
            [namespaces -> Vec<NamespaceRecord> = operator::namespaces, "Lists namespaces."];
    "/v1/namespace" ()
        Put (management)
            [namespaces_put (NamespaceRecord) -> Raw = operator::put_namespace, "Creates or changes a namespace."];
    "/v1/namespace/:name" (name)
        Get (namespace) [namespace -> NamespaceRecord = operator::namespace, "Reads a namespace."]
        Put (management)
            [namespace_put (NamespaceRecord) -> Raw = operator::put_namespace_named, "Creates or changes a namespace."]
        Delete (management)
            [namespace_delete -> Raw = operator::delete_namespace, "Deletes a namespace that nothing uses."];
    "/v1/search" ()
        Put (handler "what reading the objects needs, by context; others are left out")
            [search (SearchRequest) -> SearchResponse = search::prefix, "Finds objects by the beginning \
        of their ids."];
    "/v1/search/fuzzy" ()
        Put (handler "what reading the objects needs, by context; others are left out")
            [search_fuzzy (SearchRequest) -> FuzzySearchResponse = search::fuzzy, "Finds objects by parts of \
            their names."];
    "/v1/event/stream" ()
        Get (handler "what reading the objects needs, by topic; others are left out")
            [events -> Raw = event_stream::stream, "Follows events."];

    // What this release does not have, by name.
    "/v1/vars" ()
        Get (handler "`list` of the paths of variables; others are left out")
            [variables -> Vec<VariableView> = variables::list, "Lists variables, without their items."];
    "/v1/var/*path" (path)
        Get (handler "`read` of the path") [variable -> VariableView = variables::get, "Reads a variable."]
        Put (handler "`write` of the path")
            [variable_put (VariableView) -> VariableView = variables::put, "Writes a variable."]
        Delete (handler "`destroy` of the path") [variable_delete -> Raw = variables::delete, "Deletes a variable."];
    "/v1/volumes" ()
        Get (ns CsiListVolume ListJobs HostVolumeRead) [volumes -> Vec<HostVolumeStub> = volumes::list, "Lists \
        volumes of type `host`; there are none of type `csi`."] Put (management) [refused refused::volumes];
    "/v1/volumes/claims" ()
        Get (ns HostVolumeRead) [volume_claims -> Vec<VolumeClaim> = volumes::claims, "Lists the claims of groups \
        on host volumes."];
    "/v1/volumes/claim/:id" (id)
        Delete (ns HostVolumeDelete) [volume_claim_delete -> Raw = volumes::delete_claim, "Deletes a claim on a host \
        volume."];
    "/v1/volumes/*rest" (rest) Any (management) [refused refused::volumes];
    "/v1/volume/host/create" ()
        Put (handler "`host-volume-create` in the namespace of the volume")
            [host_volume_create (HostVolumeRequest) -> HostVolumeResponse = volumes::create, "Creates a host volume on \
            a node, or changes one."];
    "/v1/volume/host/register" ()
        Put (handler "`host-volume-register` in the namespace of the volume")
            [host_volume_register (HostVolumeRequest) -> HostVolumeResponse = volumes::register, "Registers a host \
            volume that is there already, or changes one."];
    "/v1/volume/host/:id" (id)
        Get (ns HostVolumeRead) [host_volume -> HostVolumeDetail = volumes::get, "Reads a host volume."]
        Delete (ns HostVolumeDelete) [host_volume_delete -> Raw = volumes::delete, "Deletes a host volume."];
    "/v1/volume/*rest" (rest) Any (management) [refused refused::volumes];
    "/v1/plugins" ()
        Get (plugin List) [volume_plugins -> Vec<Value> = refused::empty_list, "Lists plugins for volumes: there \
        are none."];
    "/v1/plugin/*rest" (rest) Any (plugin Read) [refused refused::volumes];
    "/v1/acl/identity/client-introduction-token" ()
        Put (node Write)
            [introduce (IntroductionRequest) -> IntroductionToken = nodes::introduce, "Makes an introduction token, \
            which admits new nodes."];
    "/v1/acl/explain" ()
        Put (handler "nothing; about another token a management token")
            [acl_explain (AclExplainRequest) -> AclExplanation = explain::explain, "Says which rule of a token's \
            policies allows or denies a request. Ours."];
    "/v1/acl/auth-methods" ()
        Get (open) [acl_auth_methods -> Vec<AclAuthMethodStub> = auth_methods::list, "Lists methods to log in."];
    "/v1/acl/auth-method" ()
        Put (management)
            [acl_auth_method_put (AclAuthMethod) -> AclAuthMethod = auth_methods::put, "Creates or changes a method to \
            log in."];
    "/v1/acl/auth-method/:name" (name)
        Get (management)
            [acl_auth_method -> AclAuthMethod = auth_methods::get, "Reads a method to log in, without its secrets."]
        Put (management)
            [acl_auth_method_update (AclAuthMethod) -> AclAuthMethod = auth_methods::put_named, "Creates or changes a \
            method to log in."]
        Delete (management)
            [acl_auth_method_delete -> Raw = auth_methods::delete, "Deletes a method to log in with its binding \
            rules."];
    "/v1/acl/binding-rules" ()
        Get (management) [acl_binding_rules -> Vec<AclBindingRuleStub> = binding_rules::list, "Lists binding rules."];
    "/v1/acl/binding-rule" ()
        Put (management)
            [acl_binding_rule_put (AclBindingRule) -> AclBindingRule = binding_rules::put, "Creates a binding rule."];
    "/v1/acl/binding-rule/:id" (id)
        Get (management) [acl_binding_rule -> AclBindingRule = binding_rules::get, "Reads a binding rule."]
        Put (management)
            [acl_binding_rule_update (AclBindingRule) -> AclBindingRule = binding_rules::put_named, "Changes a \
            binding rule."]
        Delete (management) [acl_binding_rule_delete -> Raw = binding_rules::delete, "Deletes a binding rule."];
    "/v1/acl/login" ()
        Put (open)
            [acl_login (AclLoginRequest) -> AclToken = login::login, "Exchanges the token of an identity provider for \
            one of the servers."];
    "/v1/acl/oidc/auth-url" ()
        Put (open)
            [oidc_auth_url (OidcAuthUrlRequest) -> OidcAuthUrl = login::auth_url, "Begins a login by browser."];
    "/v1/acl/oidc/complete-auth" ()
        Put (open)
            [oidc_complete_auth (OidcCompleteAuthRequest) -> AclToken = login::complete_auth, "Ends a login by browser \
            with a token."];
    "/v1/acl/bootstrap" ()
        Put (open)
            [acl_bootstrap (AclBootstrapRequest) -> AclToken = acl_tokens::bootstrap, "Makes the first management \
            token."];
    "/v1/acl/policies" ()
        Get (handler "nothing; other policies than one's own are left out but for a management token")
            [acl_policies -> Vec<AclPolicyStub> = acl_policies::list, "Lists policies."];
    "/v1/acl/policy/self" ()
        Get (valid) [acl_policy_self -> Vec<AclPolicyStub> = acl_policies::own, "Lists the policies that give the \
        caller its rights."];
    "/v1/acl/policy/:name" (name)
        Get (handler "a token that has the policy, or a management token; nothing for `anonymous`")
            [acl_policy -> AclPolicyView = acl_policies::get, "Reads a policy."]
        Put (management) [acl_policy_put (AclPolicy) -> Raw = acl_policies::put, "Creates or changes a policy."]
        Delete (management) [acl_policy_delete -> Raw = acl_policies::delete, "Deletes a policy."];
    "/v1/acl/tokens" ()
        Get (management) [acl_tokens -> Vec<AclTokenStub> = acl_tokens::list, "Lists tokens, without their secrets."];
    "/v1/acl/token" ()
        Put (management) [acl_token_put (AclToken) -> AclToken = acl_tokens::put, "Creates a token."];
    "/v1/acl/token/self" ()
        Get (handler "nothing") [acl_token_self -> AclToken = acl_tokens::own, "Reads the caller's own token."];
    "/v1/acl/token/onetime" ()
        Put (valid) [acl_one_time -> OneTimeTokenMade = acl_tokens::one_time, "Makes a one-time token for the \
        caller's own."];
    "/v1/acl/token/onetime/exchange" ()
        Put (open)
            [acl_one_time_exchange (OneTimeTokenExchange) -> OneTimeTokenExchanged = acl_tokens::exchange, "Exchanges \
            a one-time token for the token that it stands for."];
    "/v1/acl/token/:accessor" (accessor)
        Get (handler "the token itself, or a management token")
            [acl_token -> AclToken = acl_tokens::get, "Reads a token."]
        Put (management)
            [acl_token_update (AclToken) -> AclToken = acl_tokens::put_named, "Changes a token."]
        Delete (management) [acl_token_delete -> Raw = acl_tokens::delete, "Deletes a token."];
    "/v1/acl/roles" ()
        Get (handler "nothing; other roles than one's own are left out but for a management token")
            [acl_roles -> Vec<AclRole> = acl_roles::list, "Lists roles."];
    "/v1/acl/role" () Put (management) [acl_role_put (AclRole) -> AclRole = acl_roles::put, "Creates a role."];
    "/v1/acl/role/name/:name" (name)
        Get (handler "a token that has the role, or a management token")
            [acl_role_by_name -> AclRole = acl_roles::by_name, "Reads a role by its name."];
    "/v1/acl/role/:id" (id)
        Get (handler "a token that has the role, or a management token")
            [acl_role -> AclRole = acl_roles::get, "Reads a role."]
        Put (management) [acl_role_update (AclRole) -> AclRole = acl_roles::put_named, "Changes a role."]
        Delete (management) [acl_role_delete -> Raw = acl_roles::delete, "Deletes a role."];
    "/v1/acl/*rest" (rest) Any (open) [refused refused::acl];
    "/v1/quotas" () Any (management) [refused refused::enterprise];
    "/v1/quota-usages" () Any (management) [refused refused::enterprise];
    "/v1/quota" () Any (management) [refused refused::enterprise];
    "/v1/quota/*rest" (rest) Any (management) [refused refused::enterprise];
    "/v1/sentinel/*rest" (rest) Any (management) [refused refused::enterprise];
    "/v1/recommendations" () Any (management) [refused refused::enterprise];
    "/v1/recommendations/*rest" (rest) Any (management) [refused refused::enterprise];
    "/v1/recommendation" () Any (management) [refused refused::enterprise];
    "/v1/recommendation/*rest" (rest) Any (management) [refused refused::enterprise];

    // The web UI.
    "/ui" () Get (open) [other ui::redirect, ""];
    "/ui/" () Get (open) [other ui::page, ""];
    "/ui/*rest" (rest) Get (open) [other ui::page, ""];
    } };
}
