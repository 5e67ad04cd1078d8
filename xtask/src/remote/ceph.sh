# Volumes in buckets of a real Ceph: one monitor, three OSDs in memory with two copies of each
# object, and the gateway. There is no systemd and no authentication inside, and only the loopback
# is used. One OSD is killed under load and comes back.
set -euo pipefail
seconds=$1 port=$2 gateway=$(($2 + 80))
for program in ceph ceph-mon ceph-osd radosgw radosgw-admin monmaptool curl openssl; do
    command -v $program >/dev/null || { echo "$program is missing: apt-get install ceph-mon ceph-osd radosgw ceph-common"; exit 1; }
done
folder=$(mktemp -d)
fault=
finish() {
    [ -z "$fault" ] || kill "$fault" 2>/dev/null || true
    for signal in TERM KILL; do
        for pid in "$folder"/run/*.pid; do [ ! -f "$pid" ] || kill -$signal "$(cat "$pid")" 2>/dev/null || true; done
        sleep 1
    done
    rm -rf "$folder"
}
trap finish EXIT
mkdir -p "$folder/run" "$folder/log" "$folder/mon.a" "$folder/rgw"
fsid=$(cat /proc/sys/kernel/random/uuid)
cat >"$folder/ceph.conf" <<END
[global]
fsid = $fsid
mon_host = [v2:127.0.0.1:$port,v1:127.0.0.1:$((port + 1))]
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_port_min = $((port + 2))
ms_bind_port_max = $((port + 79))
run_dir = $folder/run
admin_socket = $folder/run/\$name.asok
pid_file = $folder/run/\$name.pid
log_file = $folder/log/\$name.log
keyring = $folder/keyring
osd_pool_default_size = 2
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_max_pg_per_osd = 1000
[mon]
mon_data = $folder/mon.\$id
mon_cluster_log_file = $folder/log/cluster.log
mon_data_avail_crit = 1
[osd]
osd_data = $folder/osd.\$id
osd_objectstore = memstore
memstore_device_bytes = 2147483648
osd_crush_update_on_start = false
osd_numa_auto_affinity = false
[client]
rgw_frontends = beast endpoint=127.0.0.1:$gateway tcp_nodelay=1
rgw_rados_pool_pg_num_min = 8
rgw_data = $folder/rgw
END
export CEPH_CONF=$folder/ceph.conf CEPH_ARGS="--conf=$folder/ceph.conf"
: >"$folder/keyring"
monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$port,v1:127.0.0.1:$((port + 1))]" "$folder/monmap" >/dev/null
ceph-mon -i a --mkfs --monmap "$folder/monmap" --keyring "$folder/keyring"
ceph-mon -i a
for osd in 0 1 2; do
    mkdir -p "$folder/osd.$osd"
    uuid=$(cat /proc/sys/kernel/random/uuid)
    ceph osd new "$uuid" $osd >/dev/null
    ceph-osd -i $osd --mkfs --osd-uuid "$uuid" 2>/dev/null
    ceph osd crush add osd.$osd 1.0 root=default host=h >/dev/null 2>&1
    ceph-osd -i $osd 2>/dev/null
done
until ceph osd stat | grep -q ' 3 up'; do sleep 0.2; done
radosgw -n client.rgw.a
radosgw-admin -n client.rgw.a user create --uid=test --display-name=test --access-key=test --secret=testsecret >/dev/null
until curl -s -o /dev/null "http://127.0.0.1:$gateway/"; do sleep 0.2; done
date=$(date -R -u)
signature=$(printf 'PUT\n\n\n%s\n/bucket' "$date" | openssl dgst -sha1 -hmac testsecret -binary | base64)
curl -sf -X PUT -H "Date: $date" -H "Authorization: AWS test:$signature" -H 'Content-Length: 0' "http://127.0.0.1:$gateway/bucket"
ceph version
tests=(cargo test --package buttress-remote --test it --)
"${tests[@]}" --list >/dev/null
export BUTTRESS_S3=http://127.0.0.1:$gateway BUTTRESS_S3_SECONDS=$seconds
(
    sleep $((seconds / 4))
    kill -KILL "$(cat "$folder/run/osd.0.pid")"
    echo "killed one of three OSDs"
    sleep $((seconds / 4))
    # Ceph purges no OSD that it takes for alive.
    until ceph osd dump | grep -q '^osd.0 down'; do sleep 0.2; done
    # An OSD in memory comes back empty: the others fill it.
    ceph osd purge 0 --yes-i-really-mean-it >/dev/null 2>&1
    rm -rf "$folder/osd.0" && mkdir "$folder/osd.0"
    uuid=$(cat /proc/sys/kernel/random/uuid)
    ceph osd new "$uuid" 0 >/dev/null
    ceph-osd -i 0 --mkfs --osd-uuid "$uuid" 2>/dev/null
    ceph osd crush add osd.0 1.0 root=default host=h >/dev/null 2>&1
    ceph-osd -i 0 2>/dev/null
    echo "it is back, and empty"
) &
fault=$!
"${tests[@]}" server:: --nocapture
# Fails if the fault did.
wait "$fault"
ceph osd stat
