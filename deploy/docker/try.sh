#!/usr/bin/env bash
# Builds both images and runs docker-compose.yml on a Docker daemon of its own: `make test-containers`.
#
# It pulls nothing: the base image comes from debootstrap, Prometheus and Alertmanager from this machine's
# packages, and pip finds its wheels in a folder that was filled before. The daemon and all containers live
# in namespaces of their own (network, mounts, processes) and end with this script.
#
#   PYTHON   an interpreter whose pip fetches the wheels; its version is the one of Debian's SUITE
#   SUITE    the Debian release of the base image (bookworm)
#   CACHE    what is kept between two runs: base, wheels (build/containers)
#   SECONDS_AT_MOST   after which all is ended (1500)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

SUITE=${SUITE:-bookworm}
CACHE=${CACHE:-build/containers}
PYTHON=${PYTHON:-.venv/bin/python}
SECONDS_AT_MOST=${SECONDS_AT_MOST:-1500}

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
is() { [[ $2 == "$3" ]] || fail "$1 is $2, expected $3"; printf '   %s: %s\n' "$1" "$2"; }

# ---- outside: what may use the network ---------------------------------------------------------------

check_tools() {
    [[ $EUID -eq 0 ]] || fail 'a Docker daemon of its own takes root'
    local missing=() tool
    for tool in dockerd docker debootstrap iptables ip unshare curl jq prometheus promtool prometheus-alertmanager amtool; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    compose version >/dev/null 2>&1 || missing+=('docker compose (v2)')
    [[ ${#missing[@]} -eq 0 ]] || fail "missing: ${missing[*]} (Debian: docker.io debootstrap iptables iproute2 curl jq prometheus prometheus-alertmanager, and docker-compose from trixie on)"
}

compose() { if command -v docker-compose >/dev/null; then docker-compose --ansi never "$@"; else docker compose --ansi never "$@"; fi; }

fetch() {
    mkdir -p "$CACHE/wheels"
    if [[ ! -e $CACHE/base.tar ]]; then
        say "a base image: debootstrap $SUITE"
        local root
        root=$(mktemp -d)
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$SUITE" "$root" >"$CACHE/debootstrap.log"
        rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
        tar -C "$root" -cf "$CACHE/base.tar.part" .
        mv "$CACHE/base.tar.part" "$CACHE/base.tar"
        rm -rf "$root"
    fi
    say 'wheels, as constraints.txt pins them'
    "$PYTHON" -m pip download -qq --dest "$CACHE/wheels" --only-binary :all: --no-build-isolation \
        --constraint constraints.txt "$(grep '^torch==' constraints.txt)" hatchling '.[sidecar,demo]'
}

# ---- inside: namespaces of its own, without a network to the outside ---------------------------------

start_daemon() {
    ip link set lo up
    mkdir "$work/data" "$work/exec"
    cat >"$work/daemon.json" <<JSON
{"hosts": ["unix://$work/docker.sock"], "data-root": "$work/data", "exec-root": "$work/exec",
 "pidfile": "$work/docker.pid", "storage-driver": "overlay2", "bridge": "none", "oom-score-adjust": 0,
 "cgroup-parent": "/nanwatch-try", "log-level": "warn",
 "default-ulimits": {"nofile": {"Name": "nofile", "Soft": 1024, "Hard": 1024}}}
JSON
    dockerd --config-file "$work/daemon.json" >"$work/dockerd.log" 2>&1 &
    daemon=$!
    export DOCKER_HOST=unix://$work/docker.sock DOCKER_BUILDKIT=0 DOCKER_CONFIG=$work/docker-config
    for _ in {1..100}; do
        docker info >/dev/null 2>&1 && return
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/dockerd.log" >&2
    fail 'dockerd did not come up'
}

end_well() {
    local status=$?
    trap - EXIT
    if [[ $status -ne 0 ]]; then compose logs --no-color --tail 20 2>/dev/null || true; fi
    compose down --volumes --timeout 5 >/dev/null 2>&1 || true
    if [[ -n ${daemon:-} ]]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
    exit "$status"
}

build() { # TAG ARGUMENT...
    docker build --network none --tag "$@" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; fail "building $1"; }
}

build_images() {
    say 'images'
    docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' "$CACHE/base.tar" try-base >/dev/null
    build try-build-base --file - "$CACHE/wheels" <<'DOCKER'
FROM try-base
COPY . /wheels
RUN printf '[global]\nno-index = true\nfind-links = /wheels\ndisable-pip-version-check = true\n' >/etc/pip.conf
DOCKER
    mkdir "$work/prometheus"
    local tool
    for tool in prometheus promtool prometheus-alertmanager amtool; do cp "$(command -v "$tool")" "$work/prometheus"; done
    cp -r /usr/share/prometheus/alertmanager "$work/prometheus/templates" # Debian's does not hold them itself
    for tool in prometheus prometheus-alertmanager; do
        build "try-$tool" --build-arg "PROGRAM=$tool" --file - "$work/prometheus" <<'DOCKER'
FROM try-base
ARG PROGRAM
COPY . /usr/local/bin/
RUN install --directory --owner 65534 --group 65534 /prometheus && ln -s "$PROGRAM" /usr/local/bin/program \
 && mkdir -p /usr/share/prometheus && mv /usr/local/bin/templates /usr/share/prometheus/alertmanager
ENTRYPOINT ["/usr/local/bin/program"]
DOCKER
    done
    # No Grafana can be had: something that only stays, so that the recipe without names runs as it is written.
    build try-grafana - <<'DOCKER'
FROM try-base
ENTRYPOINT ["sh", "-c", "trap exit TERM; sleep infinity & wait"]
DOCKER
    local half began
    for half in sidecar engine; do
        began=$SECONDS
        build "try-$half" --file "deploy/docker/$half.Dockerfile" \
            --build-arg BASE=try-base --build-arg BUILD_BASE=try-build-base .
        printf '   %s: %s MB over its base of %s MB, built in %s s\n' "$half" \
            "$(((($(bytes "try-$half") - $(bytes try-base))) / 1000000))" "$(($(bytes try-base) / 1000000))" "$((SECONDS - began))"
    done
    build try-one-base --target build --file deploy/docker/sidecar.Dockerfile --build-arg BASE=try-build-base .
    printf '   BUILD_BASE is BASE where it is not named\n'
    local over=$(($(bytes try-sidecar) - $(bytes try-base)))
    [[ $over -lt 120000000 ]] || fail "the sidecar's image is $over bytes over its base, more than 120 MB"
    export BASE_IMAGE=try-base BUILD_BASE_IMAGE=try-build-base SIDECAR_IMAGE=try-sidecar ENGINE_IMAGE=try-engine
    export PROMETHEUS_IMAGE=try-prometheus ALERTMANAGER_IMAGE=try-prometheus-alertmanager GRAFANA_IMAGE=try-grafana
}

bytes() { docker image inspect --format '{{.Size}}' "$1"; }

get() { curl --silent --show-error --fail --noproxy '*' --max-time 5 "$@"; }
counted() { get http://127.0.0.1:10626/metrics | awk '/^corrupted_requests_total[{]/ {sum += $NF} END {print sum + 0}'; }
query() { get --get --data-urlencode "query=$1" http://127.0.0.1:9090/api/v1/query | jq -r '.data.result[0].value[1] // "none"'; }
health() { docker inspect --format '{{.State.Health.Status}}' "$(compose ps --all --quiet "$1")"; }

until_true() { # SECONDS WHAT COMMAND...
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [[ $SECONDS -lt $deadline ]] || fail "waited in vain: $what"
        sleep 0.5
    done
}
at_least() { [[ $(counted 2>/dev/null || echo 0) -ge $1 ]]; }
is_healthy() { [[ $(health "$1") == healthy ]]; }
drills() { get http://127.0.0.1:10626/metrics | awk '/^nanwatch_drill_requests_total[{]/ {sum += $NF} END {print sum + 0}'; }
drill_has_arrived() { get http://127.0.0.1:9093/api/v2/alerts | jq -e 'any(.[]; .labels.alertname == "NanwatchDrill")' >/dev/null; }
prometheus_says() { [[ $(query 'sum(corrupted_requests_total)') == "$1" ]]; }
alert_has_arrived() { [[ $(get http://127.0.0.1:9093/api/v2/alerts | jq length) -gt 0 ]]; }

try_the_stack() {
    say 'the stack: engine, sidecar, Prometheus, Alertmanager'
    compose up --detach --no-build --quiet-pull engine prometheus 2>&1 | tail -n 12
    for service in engine sidecar prometheus alertmanager; do
        until_true 60 "$service is healthy" is_healthy "$service"
        printf '   %s is healthy\n' "$service"
    done
    until_true 60 'two corrupted requests are counted' at_least 2
    is 'engine runs as' "$(compose exec -T engine id -u):$(compose exec -T engine id -g)" 10601:10600
    is 'sidecar runs as' "$(compose exec -T sidecar id -u):$(compose exec -T sidecar id -g)" 10602:10600
    is 'the journal' "$(compose exec -T engine stat -c '%U %G %a' /run/nanwatch)" 'engine nanwatch 2770'
    is 'its files' "$(compose exec -T engine sh -c 'stat -c "%U %G %a" /run/nanwatch/*.jsonl')" 'engine nanwatch 640'
    compose exec -T sidecar sh -c 'touch /run/nanwatch/x' 2>/dev/null && fail 'the sidecar can write to the journal'
    compose exec -T sidecar sh -c 'touch /opt/nanwatch/x' 2>/dev/null && fail "the sidecar's root can be written to"
    compose exec -T sidecar python3 -c 'import torch' 2>/dev/null && fail "torch is in the sidecar's image"
    printf '   the sidecar can write neither to the journal nor to its root, and has no torch\n'
    is 'sidecar is ready' "$(get http://127.0.0.1:10626/readyz | jq -r .ready)" true
    is 'capabilities of the engine' "$(compose exec -T engine sed -n 's/^CapEff:\t//p' /proc/1/status)" 0000000000000000
    docker stats --no-stream --format '   memory  {{.Name}}  {{.MemUsage}}'
    until_true 60 'an alert is at Alertmanager' alert_has_arrived
    printf '   alerts at Alertmanager: %s\n' "$(get http://127.0.0.1:9093/api/v2/alerts | jq -r '[.[].labels.alertname] | unique | join(", ")')"
    printf '   exemplars: %s\n' "$(get --get --data-urlencode 'query=corrupted_requests_total' --data-urlencode "start=$(($(date +%s) - 300))" \
        --data-urlencode "end=$(($(date +%s) + 60))" http://127.0.0.1:9090/api/v1/query_exemplars | jq -c '[.data[].exemplars[].labels.request_id]')"
}

try_drill() {
    say 'a drill'
    compose exec -T engine nanwatch drill | sed 's/^/   /'
    is 'drills at the sidecar' "$(drills)" 1
    until_true 60 'the alert of the drill is at Alertmanager' drill_has_arrived
    printf '   its alert is at Alertmanager\n'
}

try_restarts() {
    say 'restarts'
    compose stop --timeout 10 engine 2>/dev/null
    local before
    before=$(counted)
    until_true 30 'Prometheus has the same' prometheus_says "$before"
    printf '   engine stopped; sidecar and Prometheus say: %s\n' "$before"
    compose restart --timeout 10 sidecar 2>/dev/null
    until_true 30 'the sidecar is healthy' is_healthy sidecar
    is 'after the restart of the sidecar' "$(counted)" "$before"
    compose up --detach --no-build --no-deps --force-recreate engine 2>/dev/null
    until_true 60 'the new engine goes on' at_least "$((before + 1))"
    printf '   a new engine goes on: %s\n' "$(counted)"
    is 'files in the journal, of the engine and of the drill' "$(compose exec -T engine sh -c 'ls /run/nanwatch | wc -l')" 2
    until_true 30 'Prometheus has it too' eval '[[ $(query "sum(corrupted_requests_total)") -gt '"$before"' ]]'
    is 'counter resets seen by Prometheus' "$(query 'sum(resets(corrupted_requests_total[10m]))')" 0
    compose down --volumes --timeout 10 2>/dev/null
}

try_pipeline() {
    say 'in a pipeline'
    pipeline 3 'the whole stack, NaN'
    pipeline 3 'engine and sidecar, NaN' engine sidecar
    export DEMO_POISON_EVERY=0 DEMO_END_AFTER=8
    pipeline 0 'the whole stack, clean'
    pipeline 0 'engine and sidecar, clean' engine sidecar
}

pipeline() { # STATUS WHAT SERVICE...
    local expected=$1 what=$2 status=0
    shift 2
    NANWATCH_FAIL_FAST=1 compose up --no-build --exit-code-from sidecar "$@" >"$work/pipeline.log" 2>&1 || status=$?
    printf '   %s:\n' "$what"
    grep -E 'NaNs detected|, 0 poisoned$|(engine|sidecar)-1 exited' "$work/pipeline.log" | sed 's/^.*engine-1/      engine-1/' || true
    compose down --volumes --timeout 5 2>/dev/null
    is '   status' "$status" "$expected"
}

inside() {
    work=$1
    trap end_well EXIT
    trap 'exit 143' TERM INT
    start_daemon
    build_images
    try_the_stack
    try_drill
    try_restarts
    try_pipeline
    say "all well, in $SECONDS s"
}

if [[ ${1:-} == inside ]]; then
    inside "$2"
    exit
fi

check_tools
fetch
work=$(mktemp -d)
clean_up() {
    rm -rf --one-file-system "$work"
    find /sys/fs/cgroup -depth -type d -path '*/nanwatch-try*' -exec rmdir {} + 2>/dev/null || true
}
trap clean_up EXIT
timeout --kill-after 30 "$SECONDS_AT_MOST" unshare --net --mount --pid --fork --kill-child --mount-proc "$0" inside "$work"
