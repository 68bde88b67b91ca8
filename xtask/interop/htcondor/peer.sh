#!/bin/bash
# A real HTCondor (of Debian trixie: bookworm has none) on loopback, for tests. As root; several at a time have
# different DIRs.
#
#   peer.sh install TREE             its programs, with all libraries they need, below TREE: complete, or absent
#   peer.sh start TREE DIR [NODES]   NODES startds (default 1), the parts n1, n2, ...; its configuration is
#                                    DIR/condor_config, its commands are in DIR/bin (for every user)
#   peer.sh kill DIR PART            kill -9 of one part and what it has started: collector, negotiator, schedd (the
#                                    jobs run on), n1, n2, ... (its jobs end: a node that comes back never adopts any)
#   peer.sh again DIR PART           starts that part again
#   peer.sh stop DIR                 ends everything, also what jobs have left; removes DIR
#
# Settings, by environment at start: ADDRESS (of the daemons, default 127.0.0.1), LEASE (seconds that a job of which
# the schedd is silent runs on, default 2400 as HTCondor's own) and EXTRA (more lines of the configuration).
# The programs run on this machine as it is, by the loader and the libraries of TREE: no chroot, no mount, and jobs see
# what is here. TREE may be moved while nothing runs from it.
# Who may do what is by FS authentication: each user of this machine has their own jobs. Jobs of root are refused.
# PIDs of the parts: DIR/PART.pid. Logs: DIR/log/PART.log and PART.out, and DIR/log/shadow.log, PART.starter.log. Every
# job that left the queue is in DIR/spool/history. Everything runs in the process cgroup named in DIR/cgroup.
# Everybody must be able to reach DIR (each parent o+x). A TREE that others cannot reach is copied there.
set -euo pipefail
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin

fail() { echo "peer.sh: $*" >&2; exit 1; }

install() {
    local tree=$1 apt deb mirror codename
    [ ! -e "$tree" ] || return 0
    rm -rf "$tree.tmp"
    mkdir -p "$tree.tmp/apt"/{etc/apt/{apt.conf.d,preferences.d,sources.list.d},var/lib/apt/lists/partial} \
        "$tree.tmp/apt"/var/{cache/apt/archives/partial,lib/dpkg}
    tree=$(cd "$tree.tmp" && pwd)
    # An apt of its own, for which no package is installed: it fetches what is needed, down to the C library.
    : > "$tree/apt/var/lib/dpkg/status"
    # The mirror that this machine uses.
    codename=$(. /etc/os-release; echo "$VERSION_CODENAME")
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' \
        "Codename: $codename" | head -n 1)
    [ -n "$mirror" ] || fail "apt knows no mirror of Debian"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" \
        > "$tree/apt/etc/apt/sources.list"
    apt=(apt-get -qq -o "Dir=$tree/apt" -o "Dir::State::status=$tree/apt/var/lib/dpkg/status" -o Acquire::Retries=3
        -o APT::Sandbox::User=root)
    "${apt[@]}" update
    "${apt[@]}" install --download-only --no-install-recommends -y condor > /dev/null
    for deb in "$tree"/apt/var/cache/apt/archives/{lib,condor_,zlib1g}*.deb; do
        case ${deb##*/} in libjs-* | libperl* | libpython* | libboost-python*) continue ;; esac
        dpkg-deb -x "$deb" "$tree"
    done
    rm -rf "$tree/apt" "$tree"/usr/share "$tree"/usr/lib/{python*,blahp,locale} "$tree"/usr/lib/*/{gconv,perl*} \
        "$tree"/usr/libexec/blahp "$tree/etc"
    chmod 755 "$tree"
    mv "$tree" "${tree%.tmp}"
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
        [ $SECONDS -lt $end ] || { tail -n 5 "$dir"/log/* >&2; fail "$what did not become ready in time"; }
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
    local program=condor_$1 port=-1
    case $1 in
        collector | schedd) port=$(cat "$dir/$1.port") ;;
        negotiator) ;;
        n[0-9]*) program=condor_startd ;;
        *) fail "no part is called $1" ;;
    esac
    run "$1" env "CONDOR_CONFIG=$dir/$1.config" "$dir/sbin/$program" -f -p "$port"
}

programs() { # DIRECTORY...: of the tree, for the host: by the tree's own loader
    local from file lib
    lib=$(cd "$tree"/usr/lib/*-linux-gnu && pwd)
    for from; do
        mkdir -p "$dir/${from##*/}"
        for file in "$tree/$from"/*; do
            [ -f "$file" ] || continue
            if [ "$(head -c 4 "$file" | tail -c 3)" != ELF ]; then
                ln -s "$file" "$dir/${from##*/}/"
                continue
            fi
            cat > "$dir/${from##*/}/${file##*/}" <<E2
#!/bin/sh
export CONDOR_CONFIG="\${CONDOR_CONFIG:-$dir/condor_config}"
exec $(echo "$lib"/ld-linux-*.so.*) --argv0 "\$0" --library-path "$lib:$tree/usr/lib" "$file" "\$@"
E2
            chmod 755 "$dir/${from##*/}/${file##*/}"
        done
    done
}

start() {
    tree=$(cd "$1" && pwd) dir=$2
    local nodes=${3:-1} n root=/sys/fs/cgroup/pids mark part
    [ ! -e "$dir" ] || fail "$dir exists"
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd)
    chmod 755 "$dir"
    mkdir "$dir"/{log,spool,lock,run}
    # Users of jobs run the commands, and may be unable to reach the tree.
    if ! setpriv --reuid nobody --regid nogroup --clear-groups test -x "$tree/usr/bin/condor_q"; then
        cp -a "$tree" "$dir/tree"
        tree=$dir/tree
    fi
    [ -d $root ] || root=/sys/fs/cgroup
    mark=$(printf %s "$dir" | md5sum | cut -c1-12)
    mkdir "$root/htcondor-peer-$mark"
    echo "$root/htcondor-peer-$mark" > "$dir/cgroup"
    programs usr/bin usr/sbin usr/libexec/condor

    port
    echo $got > "$dir/schedd.port"
    port
    echo $got > "$dir/collector.port"
    cat > "$dir/condor_config" <<E2
RELEASE_DIR = $tree/usr
LOCAL_DIR = $dir
BIN = $dir/bin
SBIN = $dir/sbin
LIBEXEC = $dir/condor
LIB = $tree/usr/lib/condor
LOG = $dir/log
SPOOL = $dir/spool
LOCK = $dir/lock
RUN = $dir/run
EXECUTE = $dir/execute
REQUIRE_LOCAL_CONFIG_FILE = False
LOCAL_CONFIG_FILE =
LOCAL_CONFIG_DIR =
CONDOR_IDS = 0.0
NETWORK_INTERFACE = ${ADDRESS:-127.0.0.1}
NETWORK_HOSTNAME = localhost
SCHEDD_NAME = peer@localhost
BIND_ALL_INTERFACES = False
ENABLE_IPV6 = False
USE_SHARED_PORT = False
COLLECTOR_HOST = ${ADDRESS:-127.0.0.1}:$got
CONDOR_HOST = ${ADDRESS:-127.0.0.1}
UID_DOMAIN = peer
FILESYSTEM_DOMAIN = peer
TRUST_UID_DOMAIN = True
COLLECTOR_BOOTSTRAP_SSL_CERTIFICATE = False
# The parts have no common parent from which they would have it.
SEC_USE_FAMILY_SESSION = False
SEC_DEFAULT_AUTHENTICATION = REQUIRED
SEC_DEFAULT_AUTHENTICATION_METHODS = FS
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = root@peer
ALLOW_NEGOTIATOR = root@peer
ALLOW_ADMINISTRATOR = root@peer
ALLOW_CONFIG =
COLLECTOR_LOG = $dir/log/collector.log
NEGOTIATOR_LOG = $dir/log/negotiator.log
SCHEDD_LOG = $dir/log/schedd.log
SHADOW_LOG = $dir/log/shadow.log
HISTORY = $dir/spool/history
NEGOTIATOR_INTERVAL = 1
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
SCHEDD_MIN_INTERVAL = 1
PERIODIC_EXPR_INTERVAL = 5
UPDATE_INTERVAL = 5
POLLING_INTERVAL = 1
JOB_START_DELAY = 0
JOB_STOP_DELAY = 0
SHADOW_QUEUE_UPDATE_INTERVAL = 5
STARTER_UPDATE_INTERVAL = 5
STARTER_INITIAL_UPDATE_INTERVAL = 1
JOB_DEFAULT_LEASE_DURATION = ${LEASE:-2400}
# More than the machine has is fine: nothing is bound to processors.
NUM_CPUS = 64
MEMORY = 65536
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
START = True
SUSPEND = False
PREEMPT = False
KILL = False
RANK = 0
RunBenchmarks = False
BenchmarkJobs =
# The startd would look for these on this machine, and clean up there.
DOCKER =
MAIL = /bin/true
JAVA =
SINGULARITY =
FILETRANSFER_PLUGINS =
ENABLE_URL_TRANSFERS = False
# Jobs see the /tmp of this machine. HTCondor's own default is one for each job.
MOUNT_UNDER_SCRATCH =
# Processes are found by what they inherit.
BASE_CGROUP =
${EXTRA:-}
E2
    for part in collector negotiator schedd $(seq -f n%g "$nodes"); do
        {
            echo "include : $dir/condor_config"
            echo "PROCD_ADDRESS = $dir/run/$part.procd"
            echo "PROCD_LOG = $dir/log/$part.procd.log"
            case $part in
                n*)
                    mkdir -m 755 "$dir/execute.$part"
                    echo "STARTD_NAME = $part"
                    echo "STARTD_LOG = $dir/log/$part.log"
                    echo "STARTER_LOG = $dir/log/$part.starter.log"
                    echo "STARTD_ADDRESS_FILE = $dir/run/$part.address"
                    echo "STARTD_CLAIM_ID_FILE = $dir/run/$part.claim"
                    echo "EXECUTE = $dir/execute.$part"
                    echo "LOCK = $dir/lock/$part"
                    mkdir "$dir/lock/$part"
                    ;;
            esac
        } > "$dir/$part.config"
    done

    begin collector
    wait_for collector 120 "$dir/bin/condor_status" -collector
    begin negotiator
    begin schedd
    for n in $(seq "$nodes"); do begin "n$n"; done
    wait_for schedd 120 "$dir/bin/condor_q" -allusers
    for n in $(seq "$nodes"); do
        wait_for "node n$n" 180 sh -c "'$dir/bin/condor_status' -af Name | grep -q 'n$n@'"
    done
}

kill_part() { # PART
    local all new
    all=$(cat "$dir/$1.pid")
    kill -STOP "$all"
    new=$all
    # The shadows of a schedd would fight for the jobs with those of the next one: condor_master ends them too.
    while new=$(ps -o pid= --ppid "$(echo $new | tr ' ' ,)"); do all="$all $new"; done
    # Some of them may have ended by now.
    kill -9 $all 2>/dev/null || true
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
    rm -rf "$dir"
}

case ${1:-} in
    install) install "${2:?TREE}" ;;
    start) start "${2:?TREE}" "${3:?DIR}" "${4:-1}" ;;
    stop) stop "${2:?DIR}" ;;
    kill)
        dir=$(cd "${2:?DIR}" && pwd)
        kill_part "${3:?PART}" ;;
    again)
        dir=$(cd "${2:?DIR}" && pwd)
        begin "${3:?PART}" ;;
    *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
