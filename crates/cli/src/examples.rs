//! The examples that each command's help shows first. A test sees to it that no command is without one, and that all
//! of them parse.

/// The examples of a command, one per line, a comment after two blanks.
pub(crate) fn of(path: &[&str]) -> Option<&'static str> {
    Some(match path {
        [] => {
            "\
drover demo    run a one-minute demo of remote tasks
drover agent -dev    a server and node on this machine
drover run hello.nomad.hcl    submit a job and follow it
drover ps    list the jobs
drover logs -f hello    follow the output of job hello
drover exec hello -- sh    open a shell in its task
drover stop hello    stop it"
        }
        ["agent"] => {
            "\
drover agent -dev    run a server and node on this machine; keep nothing
drover agent -config /etc/drover.d    run with the configuration files of a directory
drover agent -config a.hcl -log-level debug    log more"
        }
        ["agent-info"] => {
            "\
drover agent-info    show the state and counters of this agent
drover agent-info -json    print them with the configuration, as JSON"
        }
        ["completion"] => {
            "\
source <(drover completion bash)    complete in this shell
drover completion bash > /etc/bash_completion.d/drover    complete in every new shell
drover completion zsh > ~/.zfunc/_drover
drover completion fish > ~/.config/fish/completions/drover.fish"
        }
        ["config", "validate"] => "drover config validate /etc/drover.d    check the files without starting anything",
        ["demo"] => {
            "\
drover demo    drain, kill and replace nodes under a remote task that runs on
drover demo -keep    leave the cluster running to look around
drover demo -ui    watch the task in a browser while its managers die, until Ctrl-C
drover demo -with slurm -config /etc/drover/client.hcl    the same with a job of your cluster"
        }
        ["driver"] => {
            "\
drover driver list-checks    list the checks for driver plugins
drover driver check ./my-driver    check a plugin of your own
drover driver doctor -config /etc/drover/client.hcl slurm    see what tasks would lack
drover driver schema raw_exec    show the schema of its configuration"
        }
        ["fmt"] => {
            "\
drover fmt    format all job and configuration files here
drover fmt -check web.hcl    exit with code 1 if the file is not formatted
drover fmt - < web.hcl    format standard input to standard output"
        }
        ["monitor"] => {
            "\
drover monitor    follow the log of this agent
drover monitor -log-level debug    show more than the agent itself logs
drover monitor -node-id web-3 -json    follow the agent of another node, as JSON"
        }
        ["status"] => {
            "\
drover status    list the jobs
drover status hello    show a job
drover status 4f2a    show the allocation, node, evaluation or deployment with this id prefix"
        }
        ["version"] => {
            "\
drover version
drover version -json"
        }
        ["login"] => {
            "\
drover login    log in by browser with the cluster's default method
drover login -method ci -login-token @token.jwt    log in with a token of an identity provider"
        }
        ["acl", words @ ..] if !words.is_empty() => acl(words)?,
        ["alloc", verb] => alloc(verb)?,
        ["deployment", verb] => deployment(verb)?,
        ["check", "remote"] => {
            "\
drover check remote -list    list the failures, and what must hold
drover check remote -driver ./my-driver -config config.hcl -task tasks.hcl    replay them against your driver
drover check remote -only manager-killed    replay one of them with the mock provider"
        }
        ["driver", verb] => driver(verb)?,
        ["eval", verb] => eval(verb)?,
        ["job", "tag", "apply"] => {
            "\
drover job tag apply -name good hello    name the newest version
drover job tag apply -name good -version 3 hello    name another one"
        }
        ["job", "tag", "unset"] => "drover job tag unset -name good hello    take the name away",
        ["job", "periodic", "force"] => "drover job periodic force nightly    launch it now, whatever runs of it",
        ["job", verb] => job(verb)?,
        ["namespace", verb] => namespace(verb)?,
        ["node", verb] => node(verb)?,
        ["node", group, verb] => node_group(group, verb)?,
        ["operator", words @ ..] if !words.is_empty() => operator(words)?,
        ["remote", verb] => remote(verb)?,
        ["server", "members"] => {
            "\
drover server members    list the servers and their leader
drover server members -detailed    include their tags"
        }
        ["service", verb] => service(verb)?,
        ["system", "gc"] => "drover system gc    collect everything that has ended, now",
        ["system", "reconcile", "summaries"] => {
            "drover system reconcile summaries    recount the allocations of all jobs"
        }
        ["tls", "ca", verb] => authority(verb)?,
        ["tls", "cert", verb] => certificate(verb)?,
        ["scaling", "policy", "info"] => "drover scaling policy info 4f2a    show one policy",
        ["scaling", "policy", "list"] => "drover scaling policy list -job web    list the policies of a job",
        ["ui"] => {
            "\
drover ui    open the web UI
drover ui -authenticate hello    open the page of job hello, logged in
drover ui -show-url 4f2a    print the address of an allocation's page"
        }
        ["var", verb] => var(verb)?,
        ["volume", words @ ..] => volume(words)?,
        _ => return None,
    })
}

fn volume(words: &[&str]) -> Option<&'static str> {
    Some(match words {
        ["claim", "delete"] => "drover volume claim delete -yes 4f2a    let the group take another volume",
        ["claim", "list"] => "drover volume claim list -job db    list the claims of a job",
        ["create"] => "drover volume create volume.hcl    let a node make the volume",
        ["delete"] => {
            "\
drover volume delete 4f2a    delete a volume with its data
drover volume delete -force 4f2a    forget one whose node is gone"
        }
        ["init"] => "drover volume init    write volume.hcl, an example",
        ["register"] => "drover volume register existing.hcl    offer a directory that is there already",
        ["status"] => {
            "\
drover volume status    list the volumes
drover volume status 4f2a    show one, and who uses it
drover volume status -node edge-1    list those of a node"
        }
        _ => return None,
    })
}

fn authority(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "create" => "drover tls ca create    make nomad-agent-ca.pem and nomad-agent-ca-key.pem",
        "info" => "drover tls ca info nomad-agent-ca.pem    show an authority and when it expires",
        _ => return None,
    })
}

fn certificate(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "create" => {
            "\
drover tls cert create -server    make the certificate of the servers
drover tls cert create -client    make the certificate of the nodes
drover tls cert create -cli    make the certificate of a person"
        }
        "info" => "drover tls cert info global-server-nomad.pem    show a certificate and when it expires",
        _ => return None,
    })
}

fn alloc(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "checks" => {
            "\
drover alloc checks hello    show the checks of a job's newest allocation
drover alloc checks -json 4f2a    print the checks of an allocation as JSON"
        }
        "exec" => {
            "\
drover exec hello -- sh    open a shell in the task of job hello
drover exec -task web 4f2a ps aux    run a command in one task of an allocation
echo hi | drover exec -t=false 4f2a cat    read standard input from a pipe"
        }
        "fs" => {
            "\
drover fs hello    list the directory of a job's newest allocation
drover fs 4f2a alloc/logs    list a directory
drover fs 4f2a web/local/config.yml    print a file
drover fs -f -n 5 4f2a alloc/data/log    print its last five lines and follow it"
        }
        "logs" => {
            "\
drover logs hello    print the output of the task of job hello
drover logs -f hello    follow both output streams
drover logs -stderr -tail -n 20 4f2a    print the last 20 lines of standard error
drover logs -task web 4f2a    print the output of one task"
        }
        "restart" => {
            "\
drover alloc restart 4f2a    restart all running tasks in place
drover alloc restart -task web 4f2a    restart one task"
        }
        "signal" => {
            "\
drover alloc signal -s HUP 4f2a    send SIGHUP to all tasks
drover alloc signal -s USR1 -task web 4f2a    send SIGUSR1 to one task"
        }
        "status" => {
            "\
drover alloc status    list all allocations
drover alloc status 4f2a    show its tasks, events and cause of failure
drover alloc status hello    show the newest allocation of a job
drover alloc status -stats 4f2a    include memory and CPU usage"
        }
        "stop" => {
            "\
drover alloc stop 4f2a    stop an allocation and place a new one
drover alloc stop -detach 4f2a    do not follow the replacement"
        }
        _ => return None,
    })
}

fn deployment(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "fail" => "drover deployment fail 7c1d    fail a deployment",
        "list" => "drover deployment list    list all deployments, newest first",
        "pause" => "drover deployment pause 7c1d    pause the rollout",
        "promote" => "drover deployment promote 7c1d    promote healthy canaries",
        "resume" => "drover deployment resume 7c1d    resume the rollout",
        "status" => "drover deployment status 7c1d    show one deployment by group",
        _ => return None,
    })
}

fn driver(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "check" => "drover driver check ./my-driver    run all checks against a plugin of your own",
        "doctor" => {
            "\
drover driver doctor -config /etc/drover/client.hcl slurm    look with the configuration of this node's agent
drover driver doctor -config ecs.json ./drover-driver-ecs    look before there is an agent"
        }
        "list-checks" => "drover driver list-checks    list the checks with the meaning of a failure",
        "schema" => "drover driver schema raw_exec    show keys, types and defaults of its configuration",
        _ => return None,
    })
}

fn eval(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "delete" => {
            "\
drover eval delete 9b3e    delete an evaluation, while the broker is paused
drover eval delete -filter 'Status==pending'    delete all that wait"
        }
        "explain" => {
            "\
drover eval explain 9b3e    why these nodes were chosen, or none
drover eval explain hello    the newest evaluation of a job"
        }
        "list" => {
            "\
drover eval list -job hello    list the evaluations of a job
drover eval list -status blocked    list evaluations that wait for room"
        }
        "status" => "drover eval status 9b3e    show one evaluation and its placement failures",
        _ => return None,
    })
}

fn job(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "action" => {
            "\
drover action -job hello flush    run the action `flush` in the newest allocation
drover action -job hello -alloc 4f2a flush    run it in this one"
        }
        "tag" => "drover job tag apply -name good hello    name the newest version",
        "allocs" => "drover job allocs hello    list the allocations of a job",
        "deployments" => "drover job deployments hello    list the deployments of a job",
        "dispatch" => {
            "\
drover job dispatch encode    dispatch a parameterized job
drover job dispatch -meta file=a.wav encode in    pass metadata, and a payload from file `in`"
        }
        "periodic" => "drover job periodic force nightly    launch a periodic job now",
        "eval" => "drover job eval hello    evaluate a job again",
        "history" => {
            "\
drover job history hello    list the versions of a job
drover job history -p hello    show what each version changed"
        }
        "init" => "drover job init    write an example to example.nomad.hcl",
        "inspect" => "drover job inspect hello    print a registered job as JSON",
        "plan" => {
            "\
drover plan hello.nomad.hcl    show what a submission would change; exit code 1 if anything
drover plan -var count=3 hello.nomad.hcl    set a variable"
        }
        "promote" => "drover job promote hello    promote healthy canaries",
        "restart" => "drover job restart hello    restart its allocations one after the other",
        "revert" => "drover job revert hello 2    return to version 2",
        "run" => {
            "\
drover run hello.nomad.hcl    submit a job and follow it
drover run -detach hello.nomad.hcl    submit it and return at once
drover run -var image=web:2 hello.nomad.hcl    set a variable"
        }
        "scale" => "drover job scale hello 3    run three allocations of its group",
        "scaling-events" => "drover job scaling-events hello    show how its counts have changed",
        "start" => "drover start hello    start a stopped job again",
        "status" => {
            "\
drover ps    list the jobs
drover job status hello    show one job: groups, deployment, allocations"
        }
        "stop" => {
            "\
drover stop hello    stop a job; its history stays
drover stop -purge hello    stop a job and delete it"
        }
        "validate" => "drover validate hello.nomad.hcl    check a job file",
        _ => return None,
    })
}

fn namespace(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "apply" => {
            "\
drover namespace apply -description Staging staging    create a namespace, or change its description
drover namespace apply staging.hcl    create or replace a namespace from a file"
        }
        "delete" => "drover namespace delete staging    delete a namespace that nothing uses",
        "inspect" => "drover namespace inspect default    print a namespace as JSON",
        "list" => "drover namespace list    list all namespaces",
        "status" => "drover namespace status default    show one namespace",
        _ => return None,
    })
}

fn node(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "audit" => {
            "\
drover node audit    compare what exists on this node with its records
drover node audit -sweep n1    on node n1, and end what no record claims"
        }
        "config" => "drover node config -servers    show the servers that this node knows",
        "drain" => {
            "\
drover node drain -enable -yes n1    drain node n1
drover node drain -enable -deadline 10m n1    stop what remains after ten minutes
drover node drain -disable n1    end the drain; make n1 eligible again"
        }
        "eligibility" => {
            "\
drover node eligibility -disable n1    place nothing new on node n1
drover node eligibility -enable n1    place work on node n1 again"
        }
        "status" => {
            "\
drover node status    list the nodes
drover node status n1    show one node, by name or id
drover node status -self    show the node of this agent
drover node status -stats n1    include memory, CPU and disk usage"
        }
        _ => return None,
    })
}

fn node_group(group: &str, verb: &str) -> Option<&'static str> {
    Some(match (group, verb) {
        ("drivers", "reload") => {
            "\
drover node drivers reload    reload changed plugins of this node
drover node drivers reload -driver exec n1    reload one plugin of node n1"
        }
        ("identity", "get") => "drover node identity get n1    show what the servers say of node n1, and until when",
        ("identity", "renew") => "drover node identity renew n1    give node n1 a new identity with its next heartbeat",
        ("intro", "create") => {
            "\
drover node intro create    make a token that admits a node to the pool default
drover node intro create -node-name n7 -node-pool gpu -ttl 10m    admit only that node, to that pool, within 10 minutes"
        }
        ("meta", "read") => "drover node meta read -node-id n1    show the metadata of a node",
        ("meta", "apply") => {
            "\
drover node meta apply -node-id n1 rack=r2    set a key
drover node meta apply -node-id n1 -unset rack    remove a key"
        }
        ("pool", "apply") => "drover node pool apply pool.nomad.hcl    create or replace a node pool",
        ("pool", "delete") => "drover node pool delete gpu    delete a node pool that nothing uses",
        ("pool", "init") => "drover node pool init    write an example, pool.nomad.hcl",
        ("pool", "info") => "drover node pool info default    show one node pool",
        ("pool", "jobs") => "drover node pool jobs default    list its jobs",
        ("pool", "list") => "drover node pool list    list all node pools",
        ("pool", "nodes") => "drover node pool nodes default    list its nodes",
        _ => return None,
    })
}

fn operator(path: &[&str]) -> Option<&'static str> {
    Some(match path {
        ["api"] => {
            "\
drover operator api /v1/jobs    read any path of the API
drover operator api -filter 'Status==running' /v1/jobs    filter by an expression
drover operator api -X PUT /v1/system/gc    use another method"
        }
        ["debug"] => {
            "\
drover operator debug -duration 2m    capture two minutes of the cluster in one archive
drover operator debug -node-id a1b2c3d4 -server-id leader -event-topic Allocation    one node, the leader, events"
        }
        ["metrics"] => "drover operator metrics -format prometheus    print the metrics of an agent for Prometheus",
        ["autopilot", "health"] => {
            "\
drover operator autopilot health    show how the servers and the members of their etcd are
drover operator autopilot health -json    print it as JSON"
        }
        ["raft", "list-peers"] => "drover operator raft list-peers    list the servers and their leader",
        ["raft", "transfer-leadership"] => {
            "drover operator raft transfer-leadership    have the leader make room, before its machine is serviced"
        }
        ["gossip", "keyring", "generate"] => {
            "drover operator gossip keyring generate    make a key for server.encrypt of servers that share a store"
        }
        ["recover"] => {
            "\
drover operator recover -status    show whether the servers recover, and what they wait for
drover operator recover -excuse n3    do not wait for node n3, which is gone for good
drover operator recover -accept n4    believe what node n4 says to have, which nothing proves
drover operator recover -accept '*'    believe all nodes that say to have what nothing proves
drover operator recover -yes    end the recovery without the missing answers"
        }
        ["root", "keyring", "list"] => "drover operator root keyring list    list the root keys",
        ["root", "keyring", "remove"] => "drover operator root keyring remove 1f6c    delete a key that nothing needs",
        ["root", "keyring", "rotate"] => {
            "\
drover operator root keyring rotate -now    use a new key from now on
drover operator root keyring rotate -now -full    encrypt all variables again with it
drover operator root keyring rotate -prepublish 1h    publish a new key now, use it in an hour"
        }
        ["scheduler", "get-config"] => "drover operator scheduler get-config    show the scheduler configuration",
        ["snapshot", "save"] => "drover operator snapshot save drover.snap    save the state of the server",
        ["snapshot", "inspect"] => {
            "drover operator snapshot inspect drover.snap    verify a snapshot and show its contents"
        }
        ["snapshot", "state"] => {
            "drover operator snapshot state drover.snap | jq '.Jobs[].ID'    list the jobs in a snapshot"
        }
        ["snapshot", "restore"] => {
            "\
drover operator snapshot restore -data-dir /var/lib/drover drover.snap    restore a snapshot before the agent starts
drover operator snapshot restore -config server.hcl drover.snap    restore it into the etcd of server.hcl"
        }
        ["store", "copy"] => {
            "\
drover operator store copy -config server.hcl -to etcd    move the state of data_dir to the etcd of server.hcl
drover operator store copy -config server.hcl -data-dir /var/lib/drover -to sqlite    move it back"
        }
        ["scheduler", "set-config"] => {
            "drover operator scheduler set-config -scheduler-algorithm spread    spread work over the nodes"
        }
        _ => return None,
    })
}

fn remote(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "adopt" => "drover remote adopt 1f6c    adopt an orphaned instance into the slot of its job",
        "forget" => "drover remote forget crunch    delete the record; instances keep running",
        "gone" => "drover remote gone crunch    declare that the instance no longer exists",
        "list" => {
            "\
drover remote list    list all remote tasks with their managers
drover remote list -unmanaged    list tasks that no node manages
drover remote list -unbound    list orphaned instances"
        }
        "restart" => {
            "\
drover remote restart crunch    replace the instance of a job's only slot
drover remote restart 'default/crunch.g[0]/crunch'    replace the instance of one slot"
        }
        "status" => "drover remote status crunch    show the remote tasks of a job with their history",
        "stop" => {
            "\
drover remote stop 1f6c    stop an orphaned instance
drover remote stop -owner 9c1d2f4e-… 1f6c    stop an instance that another cluster left behind"
        }
        "sweep" => {
            "\
drover remote sweep    list the instances of this cluster at every provider
drover remote sweep -all-owners    include instances of other clusters
drover remote sweep -stop -dry-run    print what -stop would stop"
        }
        _ => return None,
    })
}

fn service(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "delete" => "drover service delete web _nomad-task-4f2a-web    delete one registration of a service",
        "info" => {
            "\
drover service info web    show the addresses of a service
drover service info -verbose web    include ids, tags and metadata"
        }
        "list" => "drover service list    list all services",
        _ => return None,
    })
}

fn var(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "get" => {
            "\
drover var get nomad/jobs/web    show a variable
drover var get -item password nomad/jobs/web    print one value, for a script
drover var get -out hcl nomad/jobs/web > web.hcl    write a file that `var put` takes"
        }
        "init" => "drover var init    write an example, spec.nsv.hcl",
        "list" => {
            "\
drover var list    list all variables
drover var list -out terse nomad/jobs    print the paths below nomad/jobs"
        }
        "lock" => {
            "\
drover var lock locks/backup ./backup.sh    run it while nobody else does
drover var lock -ttl 30s -shell=false locks/leader ./lead -v    without a shell"
        }
        "purge" => "drover var purge nomad/jobs/web    delete a variable",
        "put" => {
            "\
drover var put nomad/jobs/web user=web password=-    create a variable; the password comes from standard input
drover var put -force nomad/jobs/web cert=@web.pem    replace it by the content of a file, whatever was there
drover var put @web.hcl user=www    write what a file describes, with another user
drover var get nomad/jobs/web | drover var put - user=www    change one item, unless somebody else did"
        }
        _ => return None,
    })
}

fn acl(words: &[&str]) -> Option<&'static str> {
    Some(match words {
        ["bootstrap"] => {
            "\
drover acl bootstrap    make the first token; keep its secret
drover acl bootstrap -t '{{.SecretID}}' > secret    write its secret into a file"
        }
        ["explain"] => {
            "\
drover acl explain GET /v1/jobs    say whether the own token may list jobs, and why
drover acl explain -of 8f1c2d6e-… PUT '/v1/jobs?namespace=dev'    ask about another token"
        }
        ["auth-method", "create"] => {
            "\
drover acl auth-method create -name ci -type JWT -token-locality local -max-token-ttl 1h -config @ci.json"
        }
        ["auth-method", "delete"] => "drover acl auth-method delete ci    delete a method with its binding rules",
        ["auth-method", "info"] => "drover acl auth-method info ci    show a method",
        ["auth-method", "list"] => "drover acl auth-method list    list the methods; needs no token",
        ["auth-method", "update"] => {
            "drover acl auth-method update -max-token-ttl 8h ci    change how long tokens last"
        }
        ["binding-rule", "create"] => {
            "\
drover acl binding-rule create -auth-method ci -bind-type role -bind-name deploy -selector 'value.ref==main'"
        }
        ["binding-rule", "delete"] => "drover acl binding-rule delete 1f6c…    delete a rule",
        ["binding-rule", "info"] => "drover acl binding-rule info 1f6c…    show a rule",
        ["binding-rule", "list"] => "drover acl binding-rule list    list the rules",
        ["binding-rule", "update"] => "drover acl binding-rule update -bind-name ops 1f6c…    bind to another role",
        ["policy", "apply"] => {
            "\
drover acl policy apply -description Developers dev dev.policy.hcl    create or replace a policy
drover acl policy apply -namespace default -job web web-vars vars.policy.hcl    give it to the tasks of job web"
        }
        ["policy", "delete"] => "drover acl policy delete dev    delete a policy",
        ["policy", "info"] => "drover acl policy info dev    show a policy with its rules",
        ["policy", "list"] => "drover acl policy list    list the policies",
        ["policy", "self"] => "drover acl policy self    list the policies of the own token",
        ["role", "create"] => "drover acl role create -name ops -policy dev -policy nodes    join policies to a role",
        ["role", "delete"] => "drover acl role delete 1f6c…    delete a role",
        ["role", "info"] => "drover acl role info -by-name ops    show a role",
        ["role", "list"] => "drover acl role list    list the roles",
        ["role", "update"] => "drover acl role update -policy quotas 1f6c…    add a policy to a role",
        ["token", "create"] => {
            "\
drover acl token create -name alice -policy dev    create a token with a policy
drover acl token create -name ci -role-name ops -ttl 8h    create one with a role, for eight hours
drover acl token create -name root -type management    create one that may do everything"
        }
        ["token", "delete"] => "drover acl token delete 8f1c…    delete a token by its accessor id",
        ["token", "info"] => "drover acl token info 8f1c…    show a token by its accessor id",
        ["token", "list"] => "drover acl token list    list the tokens, without their secrets",
        ["token", "self"] => "drover acl token self    show the own token",
        ["token", "update"] => "drover acl token update -policy ops 8f1c…    replace the policies of a token",
        _ => return None,
    })
}
