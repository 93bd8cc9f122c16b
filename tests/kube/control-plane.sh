#!/usr/bin/env bash
# A real Kubernetes control plane on loopback, without containers or kubelets: etcd, kube-apiserver,
# kube-controller-manager and kube-scheduler, built from their Go modules, and kwok, which plays the
# kubelets of nodes that are not there. Beside them lies lws, the controller of LeaderWorkerSets and
# DisaggregatedSets, which tests start (tests/kube/lws.py).
#
#   control-plane.sh build      builds the programs, once (minutes); prints their folder
#   control-plane.sh where      prints that folder, whether it is there yet or not
#   control-plane.sh up DIR     starts it, state and logs in DIR; prints exports: eval "$(... up DIR)"
#   control-plane.sh down DIR   ends what `up DIR` has started; the logs stay
#   control-plane.sh run CMD... builds, starts in a temporary folder, runs CMD with KUBECONFIG and
#                               PATH set, ends it all; the exit status is CMD's
#
# KUBE_CACHE           where the programs are kept (${XDG_CACHE_HOME:-~/.cache}/specfabric/kube)
# KUBE_NODES           how many nodes (3): node-1, ...
# KUBE_NODE_RESOURCES  of each, beside cpu=64,memory=512Gi,pods=110: nvidia.com/gpu=8,rdma/hca=16
# KUBE_APISERVER_ARGS, KUBE_CONTROLLER_MANAGER_ARGS   further flags of these
#
# A pod, once scheduled, is running and ready; one that is not to be restarted always then succeeds.
# Claims of the default storage class are bound. A pod's metadata changes it:
#   annotation pod-ready.stage.kwok.x-k8s.io/delay: 20s    ready that late (1000h: never)
#   annotation pod-delete.stage.kwok.x-k8s.io/delay: 20s   gone that late
#   label pod-container-running-failed.stage.kwok.x-k8s.io: "true"   failed a moment later
# Nothing runs in them: no images, probes, logs, exec, DNS, network.
# Needs Go, openssl and util-linux.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=scripts/versions.env
source "$root/scripts/versions.env"

build_in() { # DIR
  local deploy
  deploy=$("$root/scripts/setup" --print-deploy-dir)
  export PATH=$deploy:$PATH:/usr/local/go/bin CGO_ENABLED=0 GOBIN=$1 GOFLAGS=-buildvcs=false
  local src='s/^\t"Dir": "\(.*\)",$/\1/p' minor v="-X k8s.io/component-base/version" s
  IFS=. read -r _ minor _ <<<"$KUBE_VERSION"
  v="$v.gitVersion=v$KUBE_VERSION $v.gitMajor=1 $v.gitMinor=$minor $v.gitTreeState=archive"
  mkdir "$1/src"; cd "$1/src"
  # Kubernetes' own go.mod, its in-tree k8s.io modules replaced by the same ones as published
  sed -E "s,^module .*,module control-plane,; s,=> \./staging/src/(.*),=> \1 v0.${KUBE_VERSION#*.}," \
    "$(go mod download -json "k8s.io/kubernetes@v$KUBE_VERSION" | sed -n "$src")/go.mod" >go.mod
  go mod edit -require="k8s.io/kubernetes@v$KUBE_VERSION"
  for s in kube-scheduler kubectl kube-controller-manager kube-apiserver; do
    echo "control plane: $s ..."
    go build -mod=mod -trimpath -ldflags "-s -w $v" -o "$1/" "k8s.io/kubernetes/cmd/$s"
  done
  echo "control plane: etcd, kwok, lws ..."
  go build -mod=mod -trimpath -ldflags "-s -w" -o "$1/etcd" go.etcd.io/etcd/server/v3
  go install -trimpath -ldflags "-s -w" "sigs.k8s.io/kwok/cmd/kwok@v$KWOK_VERSION"
  s=$(go mod download -json "sigs.k8s.io/lws@v$LWS_VERSION" | sed -n "$src")
  GOWORK=off go build -C "$s" -trimpath -ldflags "-s -w" -o "$1/lws" ./cmd
  cp "$s/config/webhook/manifests.yaml" "$1/lws-webhooks.yaml"; chmod u+w "$1/lws-webhooks.yaml"
  # kwok's own stages; completion by restartPolicy, not for Jobs only, and delays from annotations
  cd "$(go mod download -json "sigs.k8s.io/kwok@v$KWOK_VERSION" | sed -n "$src")/kustomize/stage"
  { sed -s '1i ---' node/fast/node-*.yaml node/heartbeat-with-lease/node-*.yaml \
      pod/chaos/pod-container-*.yaml volume/fast/p*.yaml
    sed "1i ---
      s/'.metadata.ownerReferences.*'/'.spec.restartPolicy'/
      s/'Job'/'Never'\n      - 'OnFailure'/" pod/fast/pod-complete.yaml
    for s in pod-ready pod-delete; do
      sed '1i ---' pod/fast/$s.yaml
      printf "  delay: {durationMilliseconds: 0, durationFrom: {expressionFrom: '%s'}}\n" \
        ".metadata.annotations[\"$s.stage.kwok.x-k8s.io/delay\"]"
    done; } >"$1/stages.yaml"
  cp volume/fast/storage-class.yaml "$1/"; rm -r "$1/src"
}
cache=${KUBE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/specfabric/kube}
bin=$cache/$({ echo "$KUBE_VERSION $KWOK_VERSION $LWS_VERSION"; declare -f build_in; } | sha256sum | cut -c1-16)
build() ( # -> $bin, one builder at a time
  mkdir -p "${bin%/*}"; exec 9>"$bin.lock"; flock 9
  [ ! -d "$bin" ] || exit 0
  rm -rf "$bin.new"; mkdir "$bin.new"; build_in "$bin.new" >&2; mv "$bin.new" "$bin"
)

tie=() # goes before a command that is to die with this script
start() { # NAME ARG...: $bin/NAME in the background
  local name=$1; shift
  "${tie[@]}" setsid "$bin/$name" "$@" >"$dir/logs/$name" 2>&1 </dev/null &
  echo "$! $bin/$name" >>"$dir/pids"
}
alive() { # pids of what start started, last first; not those that are another program's by now
  local pid exe
  tac "$dir/pids" | while read -r pid exe; do
    [[ $(readlink "/proc/$pid/exe") != "$exe"* ]] || echo "$pid"
  done
}
down() {
  local pids sig
  trap '' INT TERM
  [ -e "$dir/pids" ] || return 0
  for sig in TERM KILL; do
    mapfile -t pids < <(alive); kill -$sig "${pids[@]}" 2>/dev/null || :
    for _ in {1..50}; do [ -n "$(alive)" ] || break 2; sleep .1; done
  done
  rm -f "$dir/pids"
}
kubectl() { "$bin/kubectl" --kubeconfig "$dir/kubeconfig" "$@"; }
ready() { # CMD...: wait until it succeeds
  local n end=$((SECONDS + 120)); n=$(wc -l <"$dir/pids")
  until "$@" &>/dev/null; do
    if [ "$(jobs -rp | wc -l)" != "$n" ] || ((SECONDS > end)); then
      for n in "$dir"/logs/*; do echo "==> $n"; tail -n 5 "$n"; done >&2
      echo "failed: $*" >&2; return 1
    fi; sleep .2
  done
}

up() {
  local port p user token group file k r; local -A res=([cpu]=64 [memory]=512Gi [pods]=110)
  trap 'exit 130' INT; trap 'exit 143' TERM
  chmod 700 "$dir"; rm -rf "$dir/etcd"; mkdir -p "$dir/logs"; : >"$dir/pids"
  while :; do # three free ports in a row: etcd, etcd's peers, kube-apiserver
    port=$((20000 + RANDOM % 1200 * 10))
    for p in 0 1 2; do ! (: <>/dev/tcp/127.0.0.1/$((port + p))) 2>/dev/null || continue 2; done; break
  done
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=kube-apiserver \
    -keyout "$dir/tls.key" -out "$dir/tls.crt" \
    -addext subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc 2>/dev/null
  openssl genrsa -out "$dir/service-account.key" 2048 2>/dev/null
  while read -r file user group; do
    token=$(openssl rand -hex 16); echo "$token,$user,$user,$group" >&3
    cat >"$dir/$file" <<E
{apiVersion: v1, kind: Config, current-context: local,
contexts: [{name: local, context: {cluster: local, user: $user}}],
clusters: [{name: local, cluster: {server: "https://127.0.0.1:$((port + 2))",
  certificate-authority: "$dir/tls.crt"}}],
users: [{name: $user, user: {token: "$token"}}]}
E
  done 3>"$dir/tokens.csv" <<<"kubeconfig admin system:masters
    controller-manager.kubeconfig system:kube-controller-manager
    scheduler.kubeconfig system:kube-scheduler"

  k=$dir/service-account.key p=http://127.0.0.1:$((port + 1))
  start etcd --data-dir="$dir/etcd" --unsafe-no-fsync --log-level=warn \
    --initial-cluster="default=$p" \
    --listen-client-urls="http://127.0.0.1:$port" --advertise-client-urls="http://127.0.0.1:$port" \
    --listen-peer-urls="$p" --initial-advertise-peer-urls="$p"
  # shellcheck disable=SC2086
  start kube-apiserver --etcd-servers="http://127.0.0.1:$port" --bind-address=127.0.0.1 \
    --secure-port=$((port + 2)) --advertise-address=127.0.0.1 --endpoint-reconciler-type=none \
    --service-cluster-ip-range=198.19.0.0/17 --tls-cert-file="$dir/tls.crt" \
    --tls-private-key-file="$dir/tls.key" --token-auth-file="$dir/tokens.csv" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$k" \
    --service-account-signing-key-file="$k" --authorization-mode=Node,RBAC --allow-privileged \
    --kubelet-preferred-address-types=Hostname ${KUBE_APISERVER_ARGS:-}
  ready kubectl get --raw /readyz
  # shellcheck disable=SC2086
  start kube-controller-manager --kubeconfig="$dir/controller-manager.kubeconfig" --leader-elect=false \
    --secure-port=0 --use-service-account-credentials --service-account-private-key-file="$k" \
    --root-ca-file="$dir/tls.crt" \
    ${KUBE_CONTROLLER_MANAGER_ARGS:-}
  start kube-scheduler --kubeconfig="$dir/scheduler.kubeconfig" --leader-elect=false \
    --secure-port=0
  start kwok --kubeconfig="$dir/kubeconfig" --manage-all-nodes --cidr=198.18.0.0/16 \
    --node-ip=127.0.0.1 --node-lease-duration-seconds=40 --config="$bin/stages.yaml"

  for r in $(tr , ' ' <<<"${KUBE_NODE_RESOURCES:-}"); do res[${r%%=*}]=${r#*=}; done
  r=$(for k in "${!res[@]}"; do echo "\"$k\": \"${res[$k]}\","; done)
  for ((p = 1; p <= ${KUBE_NODES:-3}; p++)); do cat <<E
---
{apiVersion: v1, kind: Node, metadata: {name: node-$p,
  labels: {kubernetes.io/hostname: node-$p, kubernetes.io/os: linux, kubernetes.io/arch: amd64}},
status: {allocatable: {$r}, capacity: {$r}, addresses: [{type: Hostname, address: localhost},
  {type: InternalIP, address: 198.19.$((128 + p / 256)).$((p % 256))}]}}
E
  done | kubectl create -f - -f "$bin/storage-class.yaml" >/dev/null
  ((${KUBE_NODES:-3} == 0)) || ready kubectl wait --for=condition=Ready node --all --timeout=5s
  ready kubectl get -n default serviceaccount/default
}

verb=${1:-}; [ $# = 0 ] || shift
case $verb in
  build) build; echo "$bin" ;;
  where) echo "$bin" ;;
  up) build; mkdir -p "$1"; dir=$(realpath "$1")
    [ ! -s "$dir/pids" ] || { echo "$dir is up, or was never taken down" >&2; exit 1; }
    trap down EXIT; up; trap - EXIT
    echo "export KUBECONFIG=$dir/kubeconfig PATH=$bin:\$PATH" ;;
  down) dir=$(realpath "$1"); down ;;
  run) build; tie=(setpriv --pdeathsig KILL); dir=$(mktemp -d)
    trap 'down; rm -rf "$dir"' EXIT
    up; KUBECONFIG=$dir/kubeconfig PATH=$bin:$PATH "${tie[@]}" "$@" <&0 & wait $! ;;
  *) sed -n '2,/^set /{/^set /!p}' "$0" | cut -c3- >&2; exit 2 ;;
esac
