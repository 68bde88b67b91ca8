#!/bin/bash
# A real Slurm (Debian's) on loopback, for tests. As root; several at a time have different DIRs.
#
#   peer.sh install
#   peer.sh start DIR [NODES]   NODES slurmds (default 1), the parts n1, n2, ...; its configuration is DIR/slurm.conf
#   peer.sh kill DIR PART       kill -9 of one part: slurmctld, n1, n2, ... (the jobs of a node run on)
#   peer.sh again DIR PART      starts that part again
#   peer.sh report DIR PART     one node, n1, n2, ...: its slurmd tells slurmctld which jobs it has
#   peer.sh stop DIR            ends everything, also what jobs have left; removes DIR
#
# Settings, by environment at start: ADDRESS (of the daemons, default 127.0.0.1), MIN_JOB_AGE (seconds that an ended job
# stays known to slurmctld, default 300) and SLURMD_TIMEOUT (seconds until a silent node is DOWN, default 10). Jobs go
# back into the queue unless they say no.
# With REST=1 there is slurmrestd as well, the part of that name, which takes tokens (JWT): DIR/rest.url is its address,
# and DIR/token a token of root.
# PIDs of the parts: DIR/PART.pid. Logs: DIR/log/PART.log and PART.out. Every job that ended has a line in
# DIR/jobcomp.txt. Everything runs in the process cgroup named in DIR/cgroup.
# Everybody must be able to reach DIR (each parent o+x), as munge demands.
set -euo pipefail
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin

fail() { echo "peer.sh: $*" >&2; exit 1; }

install() {
    local policy="" rc=0
    export DEBIAN_FRONTEND=noninteractive
    # The packages would start services of their own.
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        policy=/usr/sbin/policy-rc.d
        printf '#!/bin/sh\nexit 101\n' > $policy
        chmod 755 $policy
    fi
    local apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    "${apt[@]}" update || true
    "${apt[@]}" install -y --no-install-recommends slurmctld slurmd slurm-client munge slurmrestd \
        slurm-wlm-jwt-plugin > /dev/null || rc=$?
    [ -z "$policy" ] || rm -f $policy
    return $rc
}

port() { # a port that nobody listens at and that was not given out before in this run, in $got
    while :; do
        got=$((20000 + RANDOM % 12000))
        case " ${given:-} " in *" $got "*) continue ;; esac
        if ! (exec 3<>/dev/tcp/127.0.0.1/$got) 2>/dev/null; then given="${given:-} $got"; return; fi
    done
}

wait_for() { # WHAT SECONDS COMMAND...
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until timeout 5 "$@" > /dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { tail -n 5 "$dir"/log/*.out >&2; fail "$what did not become ready in time"; }
        sleep 0.05
    done
}

run() { # PART COMMAND...: in the background, in our cgroup, with a pid file
    local part=$1
    shift
    (
        echo $BASHPID > "$(cat "$dir/cgroup")/cgroup.procs"
        exec setsid "$@" >> "$dir/log/$part.out" 2>&1 < /dev/null
    ) &
    echo $! > "$dir/$part.pid"
}

begin() { # PART
    case $1 in
        munged) run munged munged --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" \
            --pid-file="$dir/munged.own.pid" --log-file="$dir/log/munged.log" --seed-file="$dir/munge.seed" \
            --num-threads=4 ;;
        slurmctld) run slurmctld slurmctld -D -f "$dir/slurm.conf" ;;
        # As root it would refuse to start. Without the variable it could not speak to slurmctld by tokens. It could not
        # load accounting where no slurmdbd is configured.
        slurmrestd) run slurmrestd env SLURM_JWT=daemon slurmrestd -u nobody -g nogroup -a rest_auth/jwt \
            -s openapi/v0.0.38 "$(sed 's#^http://##' "$dir/rest.url")" ;;
        n[0-9]*) run "$1" slurmd -D -N "$(cat "$dir/mark")$1" -f "$dir/slurm.conf" -L "$dir/log/$1.log" ;;
        *) fail "no part is called $1" ;;
    esac
}

start() {
    dir=$1
    local nodes=${2:-1} n root=/sys/fs/cgroup/pids mark jwt=
    [ ! -e "$dir" ] || fail "$dir exists"
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd)
    chmod 755 "$dir"
    mkdir "$dir"/{log,state,spool}
    [ -d $root ] || root=/sys/fs/cgroup
    mark=$(printf %s "$dir" | md5sum | cut -c1-12)
    mkdir "$root/slurm-peer-$mark"
    echo "$root/slurm-peer-$mark" > "$dir/cgroup"
    # slurmd names its cgroups after its node, and another cluster may run here.
    echo "p$mark" > "$dir/mark"

    (umask 077 && head -c 1024 /dev/urandom > "$dir/munge.key")
    begin munged
    if [ "${REST:-}" = 1 ]; then
        (umask 077 && head -c 32 /dev/urandom > "$dir/jwt.key")
        jwt="AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=$dir/jwt.key"
        port
        echo "http://${ADDRESS:-127.0.0.1}:$got" > "$dir/rest.url"
    fi
    port
    {
        cat <<E2
ClusterName=peer
SlurmctldHost=localhost(${ADDRESS:-127.0.0.1})
SlurmctldPort=$got
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
$jwt
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/slurmctld.own.pid
SlurmdPidFile=$dir/slurmd.%n.own.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=16
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1
# Jobs get the login environment of their user. Loading it may take longer than the 2 s of the default where a
# machine is busy.
GetEnvTimeout=60
SlurmdTimeout=${SLURMD_TIMEOUT:-10}
SlurmctldTimeout=10
KillWait=5
MinJobAge=${MIN_JOB_AGE:-300}
JobRequeue=1
ReturnToService=2
MaxJobCount=20000
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/jobcomp.txt
E2
        for n in $(seq "$nodes"); do
            port
            # More than the machine has is fine: nothing is bound to processors.
            echo "NodeName=p${mark}n$n NodeHostname=localhost NodeAddr=${ADDRESS:-127.0.0.1} Port=$got \
                CPUs=64 RealMemory=8192 State=UNKNOWN"
        done
        echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    } > "$dir/slurm.conf"
    {
        echo "CgroupAutomount=no"
        # Version 2 alone would be asked of systemd.
        [ -d /sys/fs/cgroup/freezer ] || echo "IgnoreSystemd=yes"
    } > "$dir/cgroup.conf"
    export SLURM_CONF=$dir/slurm.conf

    wait_for munged 60 munge -n -S "$dir/munge.socket"
    begin slurmctld
    wait_for slurmctld 120 scontrol ping
    if [ -n "$jwt" ]; then
        scontrol token username=root lifespan=86400 > "$dir/token"
        chmod 600 "$dir/token"
        begin slurmrestd
    fi
    for n in $(seq "$nodes"); do begin "n$n"; done
    for n in $(seq "$nodes"); do
        wait_for "node n$n" 180 sh -c "sinfo -h -N -n p${mark}n$n -o %T | grep -qx idle"
    done
}

stop() {
    dir=$1
    [ -f "$dir/cgroup" ] || { [ ! -e "$dir" ] && return 0; fail "$dir is not ours"; }
    local group n=0
    group=$(cat "$dir/cgroup")
    # Everything was started there and nothing leaves it, so this finds jobs that left their session as well.
    while [ -d "$group" ] && [ -n "$(cat "$group/cgroup.procs")" ]; do
        xargs -r kill -9 < "$group/cgroup.procs" 2>/dev/null || true
        n=$((n + 1))
        [ $n -lt 200 ] || fail "processes in $group do not end"
        sleep 0.02
    done
    while [ -d "$group" ] && ! rmdir "$group" 2>/dev/null; do
        n=$((n + 1))
        [ $n -lt 400 ] || fail "$group cannot be removed"
        sleep 0.02
    done
    # What slurmd has made, and what a killed slurmstepd has left there.
    for group in /sys/fs/cgroup/{freezer,.,system.slice}/*"$(cat "$dir/mark")"n*; do
        [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
    rm -rf "$dir"
}

case ${1:-} in
    install) install ;;
    start) start "${2:?DIR}" "${3:-1}" ;;
    stop) stop "${2:?DIR}" ;;
    kill) dir=${2:?DIR}; kill -9 "$(cat "$dir/${3:?PART}.pid")" ;;
    # A slurmd that reads its configuration again registers. slurmctld itself asks for that only each 20th time that it
    # looks after a node.
    report) dir=${2:?DIR}; kill -HUP "$(cat "$dir/${3:?PART}.pid")" ;;
    again)
        dir=${2:?DIR}
        export SLURM_CONF=$dir/slurm.conf
        begin "${3:?PART}" ;;
    *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
