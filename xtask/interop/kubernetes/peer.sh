#!/bin/bash
# A real Kubernetes (etcd, kube-apiserver, controller manager, scheduler, kubelet, containerd, metrics-server) on
# loopback, for tests. As root.
#
#   peer.sh build OUT               what it needs, once: Kubernetes from Go modules, the rest from Debian's packages
#                                   (unpacked, not installed)
#   peer.sh start OUT DIR [NODES]   NODES nodes (default 1), named n1, n2, ...; prints exports to eval; DIR/env has
#                                   them too
#   peer.sh kill DIR PART           kill -9 of one part: etcd, kube-apiserver, kube-controller-manager,
#                                   kube-scheduler, metrics-server, n1.kubelet, n1.containerd, ... (what runs in pods
#                                   runs on)
#   peer.sh again DIR PART          starts that part again
#   peer.sh load DIR ROOT NAME      an image of the tree ROOT for every node; it has no settings
#   peer.sh stop DIR                ends everything, pods too; removes DIR
#
# Settings by environment at start: NODE_GRACE (seconds until a silent node is not Ready, default 10), LOG_MAX (size
# at which a container's log is rotated, default 10Mi), APISERVER_FLAGS, CONTROLLER_FLAGS.
# Images that are there: peer.test/busybox:1. Pods are reached from this machine by their IP, and nodes and the API
# server by addresses of their own on lo (10.x.0.N); there is no DNS and no Service.
# PIDs: DIR/PART.pid (freeze one with kill -STOP). Logs: DIR/log. Everything runs in the cgroups named in DIR/cgroup,
# and what a node mounts is in a mount namespace of its own, so that a stop finds all of it. Several clusters at once:
# stop the last one first, as each puts back the kernel settings it found.
# `build` needs Go and Debian 12; 5 to 25 minutes of two cores, once, for what others leave of them (GOFLAGS=-p=N is
# honoured).
set -euo pipefail
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
version=1.34.3 # the last minor release that takes a host with cgroup v1 without being told to
metrics=v0.8.0 # of metrics-server: a release that builds with these modules

fail() { echo "peer.sh: $*" >&2; exit 1; }

# ---------------------------------------------------------------- build

build() {
    local out=$1
    mkdir -p "$out"/{bin,cni}
    out=$(cd "$out" && pwd)
    [ "$(cat "$out/built" 2>/dev/null)" != "$version $metrics" ] || return 0
    command -v go >/dev/null || fail "Go 1.24 or later is needed"
    renice -n 19 -p $BASHPID >/dev/null
    local work
    work=$(mktemp -d "$out/work.XXXXXX")
    chmod 755 "$work"
    packages "$out" "$work"
    image "$out" "$work"
    programs "$out" "$work"
    rm -rf "$work"
    echo "$version $metrics" > "$out/built"
}

packages() { # OUT WORK
    local out=$1 work=$2 d
    mkdir -m 777 "$work/debs"
    (
        cd "$work/debs"
        apt-get -qq download containerd runc containernetworking-plugins busybox-static 2>/dev/null ||
            { apt-get -qq update; apt-get -qq download containerd runc containernetworking-plugins busybox-static; }
    )
    for d in "$work"/debs/*.deb; do dpkg-deb -x "$d" "$work/root"; done
    cp "$work"/root/usr/bin/{containerd,containerd-shim-runc-v2,ctr} "$work"/root/usr/sbin/runc \
        "$work"/root/bin/busybox "$out/bin"
    cp "$work"/root/usr/lib/cni/{ptp,host-local,loopback} "$out/cni"
    ldd "$out/bin/runc" | grep -q 'not found' && fail "runc needs libseccomp2 of Debian: install it"
    return 0
}

image() { # OUT WORK: one layer, two names, as `docker save` would write it
    local out=$1 root=$2/image layer config name
    mkdir -p "$root"/fs/{bin,tmp,etc,proc,sys,dev} "$root/tar"
    cp "$out/bin/busybox" "$root/fs/bin"
    (cd "$root/fs/bin" && for name in $(./busybox --list); do [ -e "$name" ] || ln -s busybox "$name"; done)
    chmod 1777 "$root/fs/tmp"
    printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' > "$root/fs/etc/passwd"
    tar -C "$root/fs" --sort=name --owner=0 --group=0 --mtime=@0 -cf "$root/tar/layer.tar" .
    layer=$(sha256sum < "$root/tar/layer.tar" | cut -d' ' -f1)
    for name in pause busybox; do
        config='{"architecture":"amd64","os":"linux",'
        config+='"config":{"Env":["PATH=/bin"],"Cmd":["/bin/tail","-f","/dev/null"]},'
        config+='"rootfs":{"type":"layers","diff_ids":["sha256:'$layer'"]},"history":[{"created_by":"'$name'"}]}'
        printf %s "$config" > "$root/tar/$name.json"
    done
    printf '[{"Config":"%s.json","RepoTags":["peer.test/%s:1"],"Layers":["layer.tar"]},' pause pause > \
        "$root/tar/manifest.json"
    printf '{"Config":"%s.json","RepoTags":["peer.test/%s:1"],"Layers":["layer.tar"]}]' busybox busybox >> \
        "$root/tar/manifest.json"
    tar -C "$root/tar" -cf "$out/images.tar" manifest.json pause.json busybox.json layer.tar
}

programs() { # OUT WORK: one program that is all of them, so that it is linked once
    local out=$1 src=$2/src mod at=k8s.io/component-base/version
    mkdir -p "$src"
    cat > "$src/main.go" <<'E'
// All programs of a cluster in one; the name it is called by says which.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	generic "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	metrics "sigs.k8s.io/metrics-server/cmd/metrics-server/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
		return
	}
	parts := map[string]func() *cobra.Command{
		"kube-apiserver":          func() *cobra.Command { return apiserver.NewAPIServerCommand() },
		"kube-controller-manager": func() *cobra.Command { return controllers.NewControllerManagerCommand() },
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"metrics-server": func() *cobra.Command {
			return metrics.NewMetricsServerCommand(generic.SetupSignalHandler())
		},
	}
	part, known := parts[name]
	if !known {
		fmt.Fprintln(os.Stderr, "call it as etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, "+
			"metrics-server or kubectl")
		os.Exit(2)
	}
	os.Exit(cli.Run(part()))
}
E
    # The module's own go.mod points at directories that are not in its archive; the same modules are published
    # with v0 for v1.
    mod=$(cd "$2" && go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    [ -d "$mod" ] || fail "k8s.io/kubernetes v$version could not be had"
    sed -e 's#^module k8s.io/kubernetes#module peer#' \
        -e "s#=> ./staging/src/\(k8s.io/[a-z-]*\)#=> \1 v0.${version#*.}#" "$mod/go.mod" > "$src/go.mod"
    cp "$mod/go.sum" "$src/go.sum"
    chmod u+w "$src"/go.*
    (
        cd "$src"
        export CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off
        # Debian's etcd 3.4 works too, but lacks what streamed lists and consistent lists from the cache need.
        local etcd
        etcd=$(sed -n 's#.*go.etcd.io/etcd/client/v3 ##p' go.mod)
        go get "k8s.io/kubernetes@v$version" "go.etcd.io/etcd/server/v3@$etcd" \
            "sigs.k8s.io/metrics-server@$metrics" 2> get.log ||
            { tail -n 5 get.log >&2; fail "the modules could not be had"; }
        flags="-s -w -X $at.gitVersion=v$version -X $at.gitMajor=1 -X $at.gitMinor=34"
        go build -mod=mod -buildvcs=false -trimpath -ldflags "$flags" -o "$out/bin/kube" .
    )
    for mod in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet metrics-server kubectl; do
        ln -sf kube "$out/bin/$mod"
    done
}

# ---------------------------------------------------------------- start and stop

sysctls="net/ipv4/ip_forward vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops"
sysctls+=" kernel/keys/root_maxkeys kernel/keys/root_maxbytes"

port() { # a port that nobody listens at, not given out before in this run
    local p
    while :; do
        p=$((20000 + RANDOM % 12000))
        case " ${given:-} " in *" $p "*) continue ;; esac
        if ! (exec 3<>/dev/tcp/127.0.0.1/$p) 2>/dev/null; then given="${given:-} $p"; got=$p; return; fi
    done
}

wait_for() { # WHAT SECONDS COMMAND...
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "$what did not become ready; see $dir/log"
        sleep 0.1
    done
}

hierarchies() { # where a cgroup has to be made: one directory for each v1 hierarchy, or the one of v2
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo /sys/fs/cgroup; return; fi
    local h
    for h in /sys/fs/cgroup/*/; do [ -L "${h%/}" ] || echo "${h%/}"; done
}

group() { # NAME: makes the cgroup everywhere
    local h f
    for h in $(hierarchies); do
        mkdir -p "$h/$1"
        for f in cpuset.cpus cpuset.mems; do
            [ ! -e "$h/$1/$f" ] || [ -e "$h/cgroup.controllers" ] || cat "$(dirname "$h/$1")/$f" > "$h/$1/$f"
        done
        [ ! -e "$h/cgroup.controllers" ] || for f in $(cat "$h/cgroup.controllers"); do
            echo "+$f" > "$(dirname "$h/$1")/cgroup.subtree_control" || true
        done 2>/dev/null
    done
}

run() { # PART COMMAND...: in the background, in our cgroup, with a pid file
    local part=$1 h=/sys/fs/cgroup/pids
    [ -d $h ] || h=/sys/fs/cgroup
    shift
    (
        echo $BASHPID > "$h/$(cat "$dir/cgroup")/parts/cgroup.procs"
        exec setsid "$@" >> "$dir/log/$part.log" 2>&1 < /dev/null
    ) &
    echo $! > "$dir/$part.pid"
}

begin() { # PART
    local bin=$out/bin n
    case $1 in
        etcd) run etcd "$bin/etcd" --name peer --data-dir "$dir/etcd" --listen-client-urls "http://127.0.0.1:$etcd" \
            --advertise-client-urls "http://127.0.0.1:$etcd" \
            --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
                --initial-cluster "peer=http://127.0.0.1:$peer" \
            --unsafe-no-fsync --log-level warn ;;
        kube-apiserver) run kube-apiserver "$bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd" \
            --bind-address "10.$subnet.0.254" --secure-port "$api" \
            --advertise-address "10.$subnet.0.254" --endpoint-reconciler-type none --tls-cert-file "$dir/pki/api.crt" \
                --tls-private-key-file "$dir/pki/api.key" \
            --client-ca-file "$dir/pki/ca.crt" --service-account-issuer https://kubernetes.default.svc \
                --service-account-key-file "$dir/pki/sa.key" \
            --service-account-signing-key-file "$dir/pki/sa.key" --authorization-mode Node,RBAC \
                --enable-admission-plugins NodeRestriction \
            --requestheader-client-ca-file "$dir/pki/ca.crt" --requestheader-allowed-names aggregator \
                --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
                --requestheader-extra-headers-prefix X-Remote-Extra- \
            --proxy-client-cert-file "$dir/pki/aggregator.crt" --proxy-client-key-file "$dir/pki/aggregator.key" \
                --enable-aggregator-routing \
            --service-cluster-ip-range 10.96.0.0/16 --kubelet-client-certificate "$dir/pki/admin.crt" \
                --kubelet-client-key "$dir/pki/admin.key" \
            --kubelet-preferred-address-types InternalIP --allow-privileged --profiling=false $apiserver_flags ;;
        kube-controller-manager) run kube-controller-manager "$bin/kube-controller-manager" --kubeconfig \
            "$dir/pki/controllers.conf" --leader-elect=false --secure-port 0 --use-service-account-credentials \
            --service-account-private-key-file "$dir/pki/sa.key" --root-ca-file "$dir/pki/ca.crt" \
                --node-monitor-period 1s --node-monitor-grace-period "${grace}s" \
            --cluster-signing-cert-file "$dir/pki/ca.crt" --cluster-signing-key-file "$dir/pki/ca.key" \
                --flex-volume-plugin-dir "$dir/plugins" --profiling=false $controller_flags ;;
        kube-scheduler) run kube-scheduler "$bin/kube-scheduler" --kubeconfig "$dir/pki/scheduler.conf" \
            --leader-elect=false --secure-port 0 ;;
        metrics-server) run metrics-server "$bin/metrics-server" --kubeconfig "$dir/kubeconfig" \
            --authentication-kubeconfig "$dir/kubeconfig" --authorization-kubeconfig "$dir/kubeconfig" \
            --bind-address "10.$subnet.0.1" --secure-port "$metrics_port" --cert-dir "$dir/metrics" \
            --kubelet-insecure-tls --kubelet-preferred-address-types InternalIP --kubelet-use-node-status-port \
            --kubelet-request-timeout 5s --metric-resolution 10s ;;
        n[0-9]*.holder)
            # Keeps the mount namespace of a node. What is put into fixed places of the machine goes with it.
            run "$1" unshare --mount --propagation private sh -c \
                'for d in /run /var/lib /var/log; do mount -n -t tmpfs -o mode=755 tmpfs $d; done
                exec sleep infinity' ;;
        n[0-9]*.containerd) n=${1%%.*}
            run "$1" nsenter --mount="/proc/$(cat "$dir/$n.holder.pid")/ns/mnt" env PATH="$bin:$PATH" \
                "$bin/containerd" --config "$dir/$n/containerd.toml" ;;
        n[0-9]*.kubelet) n=${1%%.*}
            run "$1" nsenter --mount="/proc/$(cat "$dir/$n.holder.pid")/ns/mnt" "$bin/kubelet" --config \
                "$dir/$n/kubelet.yaml" --root-dir "$dir/$n/kubelet" \
                --cert-dir "$dir/$n/pki" --kubeconfig "$dir/pki/$n.conf" --hostname-override "$n" --node-ip \
                    "10.$subnet.0.${n#n}" ;;
        *) fail "no part is called $1" ;;
    esac
}

certificate() { # NAME SUBJECT [EXTENSIONS]
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "$2" -keyout "$dir/pki/$1.key" \
        -out "$dir/pki/$1.csr" 2>/dev/null
    openssl x509 -req -in "$dir/pki/$1.csr" -CA "$dir/pki/ca.crt" -CAkey "$dir/pki/ca.key" -CAcreateserial -days \
        3650 -out "$dir/pki/$1.crt" \
        -extfile <(printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n%b' \
            "${3:-extendedKeyUsage=clientAuth\n}") 2>/dev/null
}

kubeconfig() { # NAME FILE
    cat > "$2" <<E
apiVersion: v1
kind: Config
clusters: [{name: peer, cluster: {server: "https://10.$subnet.0.254:$api",
    certificate-authority-data: $(base64 -w0 < "$dir/pki/ca.crt")}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 < "$dir/pki/$1.crt"),
    client-key-data: $(base64 -w0 < "$dir/pki/$1.key")}}]
contexts: [{name: peer, context: {cluster: peer, user: $1}}]
current-context: peer
E
}

node() { # N
    local n=n$1 at=$dir/n$1 snapshotter=overlayfs
    mkdir -p "$at"/{cni,pki}
    group "$(cat "$dir/cgroup")/$n"
    # An overlay does not lie on another one.
    [ "$(stat -f -c %T "$dir")" != overlayfs ] || snapshotter=native
    cat > "$at/cni/peer.conflist" <<E
{"cniVersion":"0.4.0","name":"peer","plugins":[{"type":"ptp","ipam":{"type":"host-local","dataDir":"$at/ipam",
 "ranges":[[{"subnet":"10.$subnet.$1.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
E
    cat > "$at/containerd.toml" <<E
version = 2
root = "$at/containerd"
state = "$at/run"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "$at/cri.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "$at/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "peer.test/pause:1"
# A root without CAP_SYS_RESOURCE may not lower the score; runc then ends with "can't get final child's PID".
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$out/cni"
conf_dir = "$at/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "$snapshotter"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "$out/bin/runc"
E
    # The API server passes requests on to no address of 127.0.0.0/8; this one is as local.
    ip address add "10.$subnet.0.$1/32" dev lo
    port
    cat > "$at/kubelet.yaml" <<E
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 10.$subnet.0.$1
port: $got
readOnlyPort: 0
healthzPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $dir/pki/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://$at/cri.sock
cgroupDriver: cgroupfs
cgroupRoot: /$(cat "$dir/cgroup")/$n
failSwapOn: false
failCgroupV1: false
makeIPTablesUtilChains: false
volumePluginDir: $at/plugins
podLogsDir: $at/logs
resolvConf: ""
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 10s
nodeLeaseDurationSeconds: 8
syncFrequency: 10s
maxPods: 250
serializeImagePulls: false
# Others fill the disk of this machine now and then; a share of it says nothing about this node.
evictionHard: {memory.available: 50Mi, nodefs.available: 50Mi, imagefs.available: 50Mi}
evictionPressureTransitionPeriod: 5s
imageGCHighThresholdPercent: 100
containerLogMaxSize: ${LOG_MAX:-10Mi}
containerLogMonitorInterval: 3s
E
    certificate "$n" "/O=system:nodes/CN=system:node:$n"
    kubeconfig "$n" "$dir/pki/$n.conf"
    begin "$n.holder"
    wait_for "the namespace of $n" 5 timeout 5 nsenter --mount="/proc/$(cat "$dir/$n.holder.pid")/ns/mnt" grep -q \
        '^tmpfs /var/log ' /proc/self/mounts
    begin "$n.containerd"
    wait_for "containerd of $n" 20 timeout 5 "$out/bin/ctr" -a "$at/cri.sock" version
    "$out/bin/ctr" -a "$at/cri.sock" -n k8s.io images import "$out/images.tar" > "$dir/log/$n.images.log" 2>&1
    begin "$n.kubelet"
}

metrics_api() { # the API server passes the metrics API on to metrics-server; there is no proxy for Services
    cat <<E
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {ports: [{name: https, port: 443, targetPort: $metrics_port}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: metrics-server, namespace: kube-system, labels: {kubernetes.io/service-name: metrics-server}}
addressType: IPv4
ports: [{name: https, port: $metrics_port}]
endpoints: [{addresses: [10.$subnet.0.1], conditions: {ready: true}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  service: {name: metrics-server, namespace: kube-system}
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
E
}

get() { # PATH
    curl -sf -m 5 --cacert "$dir/pki/ca.crt" --cert "$dir/pki/admin.crt" --key "$dir/pki/admin.key" \
        "https://10.$subnet.0.254:$api$1"
}

is_ready() { get "/api/v1/nodes/n$1" | tr -d ' \n' | grep -q '"status":"True"[^}]*"reason":"KubeletReady"'; }

start() {
    out=$(cd "$1" && pwd)
    dir=$2
    local nodes=${3:-1} n
    [ -f "$out/built" ] || fail "run 'build' first"
    [ ! -e "$dir" ] || fail "$dir exists"
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd -P)
    case $dir in /run/*|/var/lib/*|/var/log/*)
        rmdir "$dir"
        fail "DIR cannot be in /run, /var/lib or /var/log: a node has its own" ;;
    esac
    [ ${#dir} -le 60 ] || { rmdir "$dir"; fail "the name of DIR is too long for sockets in it"; }
    mkdir "$dir"/{log,pki,sysctl}
    chmod 700 "$dir/pki"
    local id s
    id=$(printf %s "$dir" | md5sum | cut -c1-12)
    echo "k8s-peer-$id" > "$dir/cgroup"
    for s in $sysctls; do cat "/proc/sys/$s" > "$dir/sysctl/${s//\//.}"; done
    {
        echo "out=$out"
        for s in etcd peer api metrics_port; do port; echo "$s=$got"; done
        echo "subnet=$((64 + 0x${id:0:4} % 128))"
        echo "grace=${NODE_GRACE:-10}"
        printf "apiserver_flags=%q\n" "${APISERVER_FLAGS:-}"
        printf "controller_flags=%q\n" "${CONTROLLER_FLAGS:-}"
    } > "$dir/vars"
    . "$dir/vars"
    # An address that pods reach, too: those of 127.0.0.0/8 are their own.
    ip address add "10.$subnet.0.254/32" dev lo
    group "k8s-peer-$id"
    group "k8s-peer-$id/parts"
    begin etcd

    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=peer -days 3650 -keyout \
        "$dir/pki/ca.key" -out "$dir/pki/ca.crt" 2>/dev/null
    openssl genrsa -out "$dir/pki/sa.key" 2048 2>/dev/null
    certificate api /CN=kube-apiserver "extendedKeyUsage=serverAuth\nsubjectAltName=IP:10.$subnet.0.254,IP:10.96.0.1,"\
'DNS:localhost,DNS:kubernetes.default.svc\n'
    certificate admin /O=system:masters/CN=admin
    certificate aggregator /CN=aggregator
    certificate controllers /CN=system:kube-controller-manager
    certificate scheduler /CN=system:kube-scheduler
    for s in controllers scheduler; do kubeconfig $s "$dir/pki/$s.conf"; done
    kubeconfig admin "$dir/kubeconfig"
    chmod 600 "$dir/kubeconfig"

    begin kube-apiserver
    wait_for kube-apiserver 60 get /readyz
    begin kube-controller-manager
    begin kube-scheduler
    for n in $(seq "$nodes"); do node "$n"; done
    wait_for "the service account" 60 get /api/v1/namespaces/default/serviceaccounts/default
    for n in $(seq "$nodes"); do wait_for "node $n" 60 is_ready "$n"; done
    begin metrics-server
    metrics_api | "$out/bin/kubectl" --kubeconfig "$dir/kubeconfig" apply -f - > "$dir/log/metrics-api.log"
    printf 'export KUBECONFIG=%s\nexport KUBECTL=%s\n' "$dir/kubeconfig" "$out/bin/kubectl" > "$dir/env"
    cat "$dir/env"
}

load() { # DIR ROOT NAME
    dir=$(cd "$1" && pwd -P)
    . "$dir/vars"
    local work layer n
    work=$(mktemp -d "$dir/image.XXXXXX")
    tar -C "$2" --sort=name --owner=0 --group=0 -cf "$work/layer.tar" .
    layer=$(sha256sum < "$work/layer.tar" | cut -d' ' -f1)
    printf '{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$layer" > "$work/config.json"
    printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$3" > "$work/manifest.json"
    tar -C "$work" -cf "$work/image.tar" manifest.json config.json layer.tar
    for n in "$dir"/n[0-9]*/cri.sock; do
        "$out/bin/ctr" -a "$n" -n k8s.io images import "$work/image.tar"
    done
    rm -rf "$work"
}

stop() {
    dir=$1
    [ -f "$dir/cgroup" ] || { [ ! -e "$dir" ] && return 0; fail "$dir is not ours"; }
    dir=$(cd "$dir" && pwd -P)
    local name h s end=$((SECONDS + 30)) pids
    name=$(cat "$dir/cgroup")
    h=/sys/fs/cgroup/pids
    [ -d $h ] || h=/sys/fs/cgroup
    # The parts first, so that nobody starts anything any more, then the rest.
    for s in parts .; do
        while [ -d "$h/$name/$s" ]; do
            pids=$(find "$h/$name/$s" -name cgroup.procs -exec cat {} + 2>/dev/null | grep -vx 0 || true)
            [ -n "$pids" ] || break
            kill -9 $pids 2>/dev/null || true
            [ $SECONDS -lt $end ] || fail "processes of $name do not end"
            sleep 0.05
        done
    done
    for h in $(hierarchies); do
        while [ -d "$h/$name" ]; do
            find "$h/$name" -depth -type d -exec rmdir {} + 2>/dev/null || true
            [ -d "$h/$name" ] || break
            [ $SECONDS -lt $end ] || fail "$h/$name cannot be removed"
            sleep 0.05
        done
    done
    s=$(sed -n 's/^subnet=//p' "$dir/vars" 2>/dev/null || true)
    for s in $(ip -o address show dev lo | sed -n "s#.* \(10\.${s:-none}\.0\.[0-9]*/32\) .*#\1#p"); do
        ip address del "$s" dev lo
    done
    for s in $sysctls; do
        [ "$(cat "/proc/sys/$s")" = "$(cat "$dir/sysctl/${s//\//.}")" ] || cat "$dir/sysctl/${s//\//.}" > "/proc/sys/$s"
    done
    # Its mounts went with its last process; its interfaces go with the last of them, a moment later.
    while ! rm -rf "$dir" 2>/dev/null; do
        [ $SECONDS -lt $end ] || fail "$dir cannot be removed"
        sleep 0.1
    done
}

case ${1:-} in
    build) build "${2:?OUT}" ;;
    start) start "${2:?OUT}" "${3:?DIR}" "${4:-1}" ;;
    stop) stop "${2:?DIR}" ;;
    load) load "${2:?DIR}" "${3:?ROOT}" "${4:?NAME}" ;;
    kill) kill -9 "$(cat "${2:?DIR}/${3:?PART}.pid")" ;;
    again) dir=$(cd "${2:?DIR}" && pwd -P); . "$dir/vars"; begin "${3:?PART}" ;;
    *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
