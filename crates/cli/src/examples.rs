//! The examples that each command's help shows first. A test sees to it that no command is without one, and that all of them parse.

/// The examples of a command, one per line, a comment after two blanks.
pub(crate) fn of(path: &[&str]) -> Option<&'static str> {
    Some(match path {
        [] => {
            "\
drover demo    see the point of the project, in a few seconds
drover agent -dev    a server and node on this machine
drover run hello.nomad.hcl    submit a job and follow it
drover ps    list the jobs
drover logs -f hello    what job hello writes, as it comes
drover exec hello -- sh    a shell beside its task
drover stop hello    stop it"
        }
        ["agent"] => {
            "\
drover agent -dev    a server and node on this machine, nothing kept
drover agent -config /etc/drover.d    as the files there say
drover agent -config a.hcl -log-level debug    say more"
        }
        ["agent-info"] => {
            "\
drover agent-info    what this agent counts
drover agent-info -json    the same, with its configuration"
        }
        ["completion"] => {
            "\
source <(drover completion bash)    for this shell
drover completion bash > /etc/bash_completion.d/drover    for every new one
drover completion zsh > ~/.zfunc/_drover
drover completion fish > ~/.config/fish/completions/drover.fish"
        }
        ["config", "validate"] => "drover config validate /etc/drover.d    check the files without starting anything",
        ["demo"] => {
            "\
drover demo    drain, kill and replace nodes under a remote task that runs on
drover demo -keep    the same, and leave the cluster running to look around"
        }
        ["driver"] => {
            "\
drover driver list-checks    what a driver plugin is checked for
drover driver check ./my-driver    check one
drover driver schema raw_exec    what its task configuration takes"
        }
        ["fmt"] => {
            "\
drover fmt    all job and configuration files here
drover fmt -check web.hcl    exit code 1 when it would change
drover fmt - < web.hcl    from standard input to standard output"
        }
        ["status"] => {
            "\
drover status    list the jobs
drover status hello    show a job
drover status 4f2a    show whatever begins so: allocation, node, evaluation, deployment"
        }
        ["version"] => {
            "\
drover version
drover version -json"
        }
        ["alloc", verb] => alloc(verb)?,
        ["deployment", verb] => deployment(verb)?,
        ["driver", verb] => driver(verb)?,
        ["eval", verb] => eval(verb)?,
        ["job", verb] => job(verb)?,
        ["namespace", verb] => namespace(verb)?,
        ["node", verb] => node(verb)?,
        ["node", group, verb] => node_group(group, verb)?,
        ["operator", verb] => operator(&[verb])?,
        ["operator", group, verb] => operator(&[group, verb])?,
        ["remote", verb] => remote(verb)?,
        ["server", "members"] => {
            "\
drover server members    the servers, and which one leads
drover server members -detailed    with their tags"
        }
        ["service", verb] => service(verb)?,
        ["system", "gc"] => "drover system gc    collect everything that has ended, now",
        ["system", "reconcile", "summaries"] => "drover system reconcile summaries    count the allocations of all jobs anew",
        _ => return None,
    })
}

fn alloc(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "checks" => {
            "\
drover alloc checks hello    the checks of a job's newest allocation
drover alloc checks -json 4f2a    those of an allocation"
        }
        "exec" => {
            "\
drover exec hello -- sh    a shell beside the task of job hello
drover exec -task web 4f2a ps aux    a command beside one task of an allocation
echo hi | drover exec -t=false 4f2a cat    with standard input from a pipe"
        }
        "fs" => {
            "\
drover fs hello    the directory of a job's newest allocation
drover fs 4f2a alloc/logs    a directory
drover fs 4f2a web/local/config.yml    a file
drover fs -f -n 5 4f2a alloc/data/log    its last lines and what follows"
        }
        "logs" => {
            "\
drover logs hello    what the task of job hello has written
drover logs -f hello    both its streams, as they come
drover logs -stderr -tail -n 20 4f2a    the last lines of an allocation's standard error
drover logs -task web 4f2a    of one of several tasks"
        }
        "restart" => {
            "\
drover alloc restart 4f2a    all tasks that run, in place
drover alloc restart -task web 4f2a    one task"
        }
        "signal" => {
            "\
drover alloc signal -s HUP 4f2a    SIGHUP for all tasks
drover alloc signal -s USR1 -task web 4f2a    for one"
        }
        "status" => {
            "\
drover alloc status    list all allocations
drover alloc status 4f2a    one: tasks, events, why it failed
drover alloc status hello    the newest one of a job
drover alloc status -stats 4f2a    with its use of memory and processor"
        }
        "stop" => {
            "\
drover alloc stop 4f2a    stop it; a new one is placed
drover alloc stop -detach 4f2a    the same, without following that"
        }
        _ => return None,
    })
}

fn deployment(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "fail" => "drover deployment fail 7c1d    give it up",
        "list" => "drover deployment list    newest first",
        "pause" => "drover deployment pause 7c1d    roll out no further for now",
        "promote" => "drover deployment promote 7c1d    the canaries are good: roll the version out",
        "resume" => "drover deployment resume 7c1d    go on after a pause",
        "status" => "drover deployment status 7c1d    one deployment, group by group",
        _ => return None,
    })
}

fn driver(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "check" => "drover driver check ./my-driver    every check, against a plugin of your own",
        "list-checks" => "drover driver list-checks    the checks, and what it means when one fails",
        "schema" => "drover driver schema raw_exec    keys, types and defaults of its configuration",
        _ => return None,
    })
}

fn eval(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "list" => {
            "\
drover eval list -job hello    those of a job
drover eval list -status blocked    those that wait for room"
        }
        "status" => "drover eval status 9b3e    one evaluation, and why it could not place",
        _ => return None,
    })
}

fn job(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "allocs" => "drover job allocs hello    the allocations of a job",
        "deployments" => "drover job deployments hello    the deployments of a job",
        "dispatch" => {
            "\
drover job dispatch encode    start a parameterized job
drover job dispatch -meta file=a.wav encode in    with metadata, and a payload from file `in`"
        }
        "eval" => "drover job eval hello    have the scheduler look at a job again",
        "history" => {
            "\
drover job history hello    the versions of a job
drover job history -p hello    what each of them changed"
        }
        "init" => "drover job init    write an example to example.nomad.hcl",
        "inspect" => "drover job inspect hello    a job as the servers have it",
        "plan" => {
            "\
drover plan hello.nomad.hcl    what submitting it would do; exit code 1 when something
drover plan -var count=3 hello.nomad.hcl"
        }
        "promote" => "drover job promote hello    the canaries are good: roll the version out",
        "restart" => "drover job restart hello    restart its allocations, one after the other",
        "revert" => "drover job revert hello 2    return to version 2",
        "run" => {
            "\
drover run hello.nomad.hcl    submit a job and follow it
drover run -detach hello.nomad.hcl    submit it, and that is all
drover run -var image=web:2 hello.nomad.hcl    with a value for a variable"
        }
        "scale" => "drover job scale hello 3    run three of its group",
        "scaling-events" => "drover job scaling-events hello    how its counts have changed",
        "start" => "drover start hello    start a stopped job again",
        "status" => {
            "\
drover ps    list the jobs
drover job status hello    one job: groups, deployment, allocations"
        }
        "stop" => {
            "\
drover stop hello    stop a job; its history stays
drover stop -purge hello    and forget it"
        }
        "validate" => "drover validate hello.nomad.hcl    check a job file",
        _ => return None,
    })
}

fn namespace(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "inspect" => "drover namespace inspect default    a namespace as JSON",
        "list" => "drover namespace list    all namespaces",
        "status" => "drover namespace status default    one namespace",
        _ => return None,
    })
}

fn node(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "audit" => {
            "\
drover node audit    compare what exists on this node with its records
drover node audit -sweep n1    and end what no record claims, on node n1"
        }
        "config" => "drover node config -servers    the servers that this node knows",
        "drain" => {
            "\
drover node drain -enable -yes n1    move everything off node n1
drover node drain -enable -deadline 10m n1    stop the rest after ten minutes
drover node drain -disable n1    let the scheduler place on it again"
        }
        "eligibility" => {
            "\
drover node eligibility -disable n1    place nothing new on node n1
drover node eligibility -enable n1"
        }
        "status" => {
            "\
drover node status    list the nodes
drover node status n1    one node, by name or id: drivers, resources, allocations
drover node status -self    the one that this agent is
drover node status -stats n1    with its use of memory, processors and disks"
        }
        _ => return None,
    })
}

fn node_group(group: &str, verb: &str) -> Option<&'static str> {
    Some(match (group, verb) {
        ("drivers", "reload") => {
            "\
drover node drivers reload    take over changed plugins of this node
drover node drivers reload -driver exec n1    one plugin of node n1"
        }
        ("meta", "read") => "drover node meta read -node-id n1    the metadata of a node",
        ("meta", "apply") => {
            "\
drover node meta apply -node-id n1 rack=r2    set a key, without a restart
drover node meta apply -node-id n1 -unset rack    take it away"
        }
        ("pool", "info") => "drover node pool info default    one pool",
        ("pool", "jobs") => "drover node pool jobs default    the jobs that are placed in it",
        ("pool", "list") => "drover node pool list    all pools",
        ("pool", "nodes") => "drover node pool nodes default    the nodes in it",
        _ => return None,
    })
}

fn operator(path: &[&str]) -> Option<&'static str> {
    Some(match path {
        ["api"] => {
            "\
drover operator api /v1/jobs    any path of the API
drover operator api -filter 'Status==running' /v1/jobs    only what an expression picks
drover operator api -X PUT /v1/system/gc    with another method"
        }
        ["scheduler", "get-config"] => "drover operator scheduler get-config    how the scheduler is set",
        ["scheduler", "set-config"] => "drover operator scheduler set-config -scheduler-algorithm spread    spread the work out",
        _ => return None,
    })
}

fn remote(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "adopt" => "drover remote adopt 1f6c    take an instance that no record knows into its job's slot",
        "forget" => "drover remote forget crunch    give the record up; what lives at the provider lives on",
        "gone" => "drover remote gone crunch    declare that the instance does not exist any more",
        "list" => {
            "\
drover remote list    all remote tasks and who manages them
drover remote list -unmanaged    those that no node manages now
drover remote list -unbound    instances that no record knows"
        }
        "restart" => {
            "\
drover remote restart crunch    stop the instance of a job's only slot; another follows
drover remote restart 'default/crunch.g[0]/crunch'    of one slot of several"
        }
        "status" => "drover remote status crunch    the remote tasks of a job, with their history",
        "stop" => "drover remote stop 1f6c    stop an instance that no record knows",
        "sweep" => {
            "\
drover remote sweep    ask every provider what this cluster has there
drover remote sweep -stop -dry-run    say what would be stopped"
        }
        _ => return None,
    })
}

fn service(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "delete" => "drover service delete web _nomad-task-4f2a-web    forget one place of a service",
        "info" => {
            "\
drover service info web    where a service is reached
drover service info -verbose web    with ids, tags and metadata"
        }
        "list" => "drover service list    all services",
        _ => return None,
    })
}
